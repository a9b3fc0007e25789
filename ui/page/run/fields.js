// The fields of the form that have a place of their own in a request.

// Each: where its value stands in the request, how it is shown, and what it is.
const number = (path, label, option, note, extra = {}) => ({ path, label, option, note, kind: "number", ...extra });
const choice = (path, label, option, options, note) => ({ path, label, option, options, note, kind: "choice" });

export const GROUPS = [
  ["Calls", [
    choice("mode", "Mode", "--mode", ["transparent_proxy", "black_box"], "black_box captures nothing"),
    choice("placement", "Placement", "--placement", ["relay", "direct", "in_sandbox"], "where the tap answers"),
    choice("capture", "Capture", "--capture", ["auto", "stream", "buffer"], "how the endpoint is asked"),
    number("top_logprobs", "Top log-probabilities", "--top-logprobs", "alternatives at each token, 0 to 20", { min: 0, max: 20, whole: true }),
    choice("disable_thinking", "Thinking", "--disable-thinking", [["true", "told not to"], ["false", "allowed"]], "the endpoint’s own setting if left"),
  ]],
  ["Sampling", [
    number("task.sampling.temperature", "Temperature", "--temperature", null, { min: 0, step: "any" }),
    number("task.sampling.top_p", "Top p", "--top-p", null, { min: 0, max: 1, step: "any" }),
    number("task.sampling.top_k", "Top k", "--top-k", "-1 turns it off", { whole: true }),
    number("task.sampling.min_p", "Min p", "--min-p", null, { min: 0, max: 1, step: "any" }),
    number("task.sampling.seed", "Seed", "--seed", null, { whole: true }),
  ]],
  ["Limits", [
    number("task.limits.agent_timeout_s", "Agent, seconds", "--agent-timeout", "600 if left", { min: 0, step: "any" }),
    number("task.limits.setup_timeout_s", "Setup command, seconds", "--setup-timeout", "120 if left", { min: 0, step: "any" }),
    number("task.limits.verify_timeout_s", "Verify command, seconds", "--verify-timeout", "120 if left", { min: 0, step: "any" }),
    number("task.limits.max_calls", "Calls", "--max-calls", "no limit if left", { min: 1, whole: true }),
    number("task.limits.max_completion_tokens", "Sampled tokens", "--max-completion-tokens", "no limit if left", { min: 1, whole: true }),
    number("task.limits.max_wall_s", "Wall time, seconds", "--max-wall", "a budget: the work is verified", { min: 0, step: "any" }),
    number("task.limits.max_tokens_cap", "Tokens of a call", "--max-tokens-cap", "4096 if left; 0 is no cap", { min: 0, whole: true }),
    number("task.limits.memory_mb", "Memory, MB", "--memory-mb", "4096 if left", { min: 1, whole: true }),
  ]],
  ["Sandbox", [
    choice("backend", "Sandbox", "--sandbox", [], null),
    { path: "image", label: "Image or template", option: "--image", kind: "text", note: "for sandboxes with such" },
    choice("task.network", "Network", "--network", ["none", "open"], "none: its model and nothing else"),
    { path: "hosts", label: "Only these hosts", kind: "text", note: "such as git.example.org, *.example.com" },
    choice("task.verify_in", "Verify in", "--verify-in", ["same", "fresh"], "fresh: a second sandbox"),
    choice("task.verify_when", "Verify when", null, ["completed", "always"], "also after an agent that failed?"),
  ]],
  ["Queue", [
    number("priority", "Priority", null, "higher goes first", { whole: true }),
    choice("hold", "Hold", null, [["true", "keep the sandbox"]], "for a verifier of your own"),
  ]],
];
export const FIELDS = GROUPS.flatMap(([, fields]) => fields);

/** What a request has at a path. */
export function at(object, path) {
  return path.split(".").reduce((value, key) => value?.[key], object);
}

/** Puts a value there; undefined takes away what is there. */
export function place(object, path, value) {
  const keys = path.split(".");
  const last = keys.pop();
  const into = keys.reduce((value, key) => (value[key] ??= {}), object);
  if (value === undefined) delete into[last];
  else into[last] = value;
}
