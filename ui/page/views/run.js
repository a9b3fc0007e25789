// Asking for rollouts: a form, with the same as a command line, a request and a few lines of Python beside it.

import { ApiError, ROOT, catalogue, forgetCatalogue, get, post } from "../api.js";
import { copyButton, h, put, toast } from "../dom.js";
import { words as asWords } from "../format.js";
import { go, setWords, to } from "../router.js";
import { plain } from "../text.js";

// Each field: where its value stands in the request, how it is shown, and what it is.
const number = (path, label, option, note, extra = {}) => ({ path, label, option, note, kind: "number", ...extra });
const choice = (path, label, option, options, note) => ({ path, label, option, options, note, kind: "choice" });

const GROUPS = [
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
    number("task.limits.memory_mb", "Memory, MB", null, "4096 if left", { min: 1, whole: true }),
  ]],
  ["Sandbox", [
    choice("backend", "Sandbox", "--sandbox", [], null),
    { path: "image", label: "Image or template", option: "--image", kind: "text", note: "for sandboxes with such" },
    choice("task.network", "Network", "--network", ["none", "open"], "none: its model and nothing else"),
    choice("task.verify_in", "Verify in", "--verify-in", ["same", "fresh"], "fresh: a second sandbox"),
    choice("task.verify_when", "Verify", null, ["completed", "always"], "also after an agent that failed?"),
  ]],
  ["Queue", [
    number("priority", "Priority", null, "higher goes first", { whole: true }),
    choice("hold", "Hold", null, [["true", "keep the sandbox"]], "for a verifier of your own"),
  ]],
];
const FIELDS = GROUPS.flatMap(([, fields]) => fields);

function at(object, path) {
  return path.split(".").reduce((value, key) => value?.[key], object);
}

function place(object, path, value) {
  const keys = path.split(".");
  const last = keys.pop();
  const into = keys.reduce((value, key) => (value[key] ??= {}), object);
  if (value === undefined) delete into[last];
  else into[last] = value;
}

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

export async function run(page) {
  page.setTitle("Run");
  const [endpoints, agents, backends, presets] = await Promise.all(["endpoints", "agents", "backends", "presets"].map(catalogue));
  const inputs = new Map();
  const wrongs = new Map();
  /** What the task has besides what the form shows. */
  let base = {};
  let preset = null;

  function field(path, label, control, note) {
    const id = `field-${path.replaceAll(".", "-")}`;
    control.id = id;
    const wrong = h("span", { class: "wrong", id: `${id}-wrong`, role: "alert", hidden: true });
    const noteNode = note ? h("span", { class: "note", id: `${id}-note` }, note) : null;
    control.setAttribute("aria-describedby", `${id}-wrong${note ? ` ${id}-note` : ""}`);
    inputs.set(path, control);
    wrongs.set(path, wrong);
    control.addEventListener("input", changed);
    return h("div", { class: "field" }, h("label", { htmlFor: id }, label), control, noteNode, wrong);
  }

  const options = (list, first) => [first !== undefined && h("option", { value: "" }, first),
    list.map((one) => (Array.isArray(one) ? h("option", { value: one[0] }, one[1]) : h("option", { value: one }, asWords(one))))];

  const OWN = "\u0000own";
  const endpointSelect = h("select", null,
    endpoints.endpoints.map((one) => h("option", { value: one.name, disabled: !one.usable },
      `${one.name}${one.model ? ` · ${one.model}` : ""}${one.usable ? "" : " (not configured)"}`)),
    endpoints.client_base_url !== "none" && h("option", { value: OWN }, "an address of your own…"));
  const usable = endpoints.endpoints.filter((one) => one.usable);
  endpointSelect.value = page.words.endpoint ?? endpoints.default ?? (usable.some((one) => one.name === "vllm") ? "vllm" : usable[0]?.name ?? "");
  if (endpointSelect.selectedIndex < 0 || endpointSelect.selectedOptions[0]?.disabled) endpointSelect.value = usable[0]?.name ?? OWN;
  const endpointNote = h("div", { class: "note small muted" });
  const ownFields = h("div", { class: "fields", hidden: true },
    field("base_url", "Base URL", h("input", { type: "url", placeholder: "http://127.0.0.1:8000/v1", autocomplete: "off" }), "up to and with /v1"),
    field("api_key", "Key", h("input", { type: "password", autocomplete: "off" }), "neither stored nor logged"));
  const modelField = field("model", "Model", h("input", { type: "text", autocomplete: "off" }), "the endpoint’s own if left");

  const agentSelect = h("select", null, agents.agents.map((one) =>
    h("option", { value: one.name }, `${one.name}${one.version ? ` ${one.version}` : ""}${one.installed ? "" : " (not installed)"}`)));
  agentSelect.value = "opencode";
  const agentNote = h("div", { class: "note small" });

  const instruction = h("textarea", { rows: 6, required: true, spellcheck: "false", placeholder: "Write fizzbuzz.py with fizzbuzz(n) returning …" });
  const setup = h("textarea", { rows: 3, class: "code", spellcheck: "false", placeholder: "git init -q" });
  const verify = h("textarea", { rows: 4, class: "code", spellcheck: "false", placeholder: "test -f fizzbuzz.py" });
  const samples = h("input", { type: "number", min: 1, max: 1024, step: 1, value: page.words.n ?? "1" });

  const presetButtons = new Map();
  function usePreset(name, task, title) {
    preset = name;
    base = structuredClone(task);
    instruction.value = task.instruction ?? "";
    setup.value = (task.setup ?? []).join("\n");
    verify.value = (task.verify ?? []).join("\n");
    for (const one of FIELDS.filter((one) => one.path.startsWith("task."))) {
      const value = at({ task }, one.path);
      inputs.get(one.path).value = value === undefined || value === null ? "" : String(value);
    }
    if (task.agent?.name) agentSelect.value = task.agent.name;
    for (const [key, button] of presetButtons) button.setAttribute("aria-pressed", String(key === name));
    if (title) toast(`Filled in: ${title}`);
    changed();
  }

  const file = h("input", { type: "file", accept: ".toml,.json", class: "sr", id: "task-file", onchange: async () => {
    const [chosen] = file.files;
    file.value = "";
    if (!chosen) return;
    try {
      const { task } = await post("api/v1/tasks/read", { text: await chosen.text(), format: chosen.name.endsWith(".json") ? "json" : "toml" });
      usePreset(null, { id: chosen.name.replace(/\.[a-z]+$/, ""), ...task }, chosen.name);
    } catch (error) {
      toast(`${chosen.name}: ${error.message}${error.hint ? ` (${error.hint})` : ""}`, "bad");
    }
  } });
  for (const one of presets.presets) {
    presetButtons.set(one.name, h("button", { type: "button", class: "button", "aria-pressed": "false", title: one.title,
      onclick: () => usePreset(one.name, one.task) }, one.name));
  }

  const summary = h("div", { role: "alert" });
  const submit = h("button", { class: "button first" }, "Run");
  const snippets = h("div", { class: "stack" });

  function control(one) {
    if (one.kind === "choice") {
      if (one.path === "backend") return h("select", null, options(backends.backends.map(({ name }) => name), `${backends.default} (default)`));
      return h("select", null, options(one.options, "default"));
    }
    if (one.kind === "text") return h("input", { type: "text", autocomplete: "off" });
    return h("input", { type: "number", min: one.min, max: one.max, step: one.step ?? 1, inputmode: "decimal" });
  }

  const form = h("form", { novalidate: true, class: "stack", onsubmit: send },
    h("section", { class: "panel" }, h("div", { class: "body stack" }, h("fieldset", null, h("legend", null, "Task"),
      h("div", { class: "stack" },
        h("div", { class: "presets", role: "group", "aria-label": "Ready-made tasks" }, [...presetButtons.values()],
          h("label", { class: "button", htmlFor: "task-file" }, "Open a task file…"), file),
        field("task.instruction", "Instruction", instruction, "what the agent is told, word for word"),
        h("div", { class: "halves" },
          field("task.setup", "Setup", setup, "commands before the agent, one a line"),
          field("task.verify", "Verify", verify, "commands after it, one a line: the reward is passed / total")))))),
    h("section", { class: "panel" }, h("div", { class: "body" }, h("fieldset", null, h("legend", null, "Model and agent"),
      h("div", { class: "stack" },
        h("div", { class: "fields" }, field("endpoint", "Endpoint", endpointSelect), modelField,
          field("task.agent.name", "Agent", agentSelect), field("n", "Rollouts", samples, "a group, where more than one")),
        ownFields, endpointNote, agentNote)))),
    h("details", { class: "panel" }, h("summary", { class: "body" }, "Calls, sampling, limits, sandbox"),
      h("div", { class: "body stack" }, GROUPS.map(([name, fields]) => h("fieldset", null, h("legend", null, name),
        h("div", { class: "fields" }, fields.map((one) => field(one.path, one.label, control(one), one.note))))))),
    summary,
    h("div", { class: "row" }, submit, h("span", { class: "small faint" }, "Ctrl Enter")));
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      form.requestSubmit();
    }
  });

  function value(one) {
    const text = inputs.get(one.path).value;
    if (text === "") return undefined;
    if (one.kind === "number") return Number(text);
    if (text === "true" || text === "false") return text === "true";
    return text;
  }

  /** The request that the form stands for. */
  function spec() {
    const task = structuredClone(base);
    task.instruction = instruction.value;
    const lists = { setup: setup.value, verify: verify.value };
    for (const [key, text] of Object.entries(lists)) {
      // What has lines of its own within a command stays whole as long as it is not changed.
      if (text !== (base[key] ?? []).join("\n")) task[key] = lines(text);
    }
    if (agentSelect.value !== (base.agent?.name ?? "opencode")) task.agent = { ...task.agent, name: agentSelect.value };
    const body = { task };
    for (const one of FIELDS) {
      const now = value(one);
      if (now !== at({ task: base }, one.path)) place(body, one.path, now);
    }
    if (endpointSelect.value === OWN) {
      body.base_url = inputs.get("base_url").value;
      if (inputs.get("api_key").value) body.api_key = inputs.get("api_key").value;
    } else {
      body.endpoint = endpointSelect.value;
    }
    if (inputs.get("model").value) body.model = inputs.get("model").value;
    const n = Number(samples.value);
    if (samples.value !== "" && n !== 1) body.n = n;
    const chosen = presets.presets.find((one) => one.name === preset);
    if (chosen && JSON.stringify(chosen.task) === JSON.stringify(body.task)) {
      delete body.task;
      return { preset, ...body };
    }
    return body;
  }

  /** What is known of endpoints beyond the list: what they return. */
  const known = new Map();
  async function learn(name) {
    if (known.has(name)) return;
    known.set(name, null);
    try {
      known.set(name, (await get(`api/v1/endpoints/${encodeURIComponent(name)}`, page.signal)).probe);
      changed();
    } catch {
      // It is not known, then.
    }
  }

  function changed() {
    const one = endpoints.endpoints.find(({ name }) => name === endpointSelect.value);
    ownFields.hidden = endpointSelect.value !== OWN;
    if (one?.usable && one.name !== "demo") learn(one.name);
    const probe = known.get(one?.name);
    put(endpointNote, one && (one.usable
      ? one.base_url ? ["asks ", h("code", null, one.base_url), one.has_key === false ? ", without a key" : "", `, capture ${one.capture}`, probe ? [". Streams return ", h("b", null, probe.stream?.level ?? "nothing"), ", with tools ", h("b", null, probe.stream_with_tools?.level ?? "nothing")] : [". What it returns is not known yet: ", h("a", { href: to("machine") }, "probe it")]] : one.name === "demo" ? "a scripted model inside Dressage: no network, no key; it knows the ready-made tasks" : ""
      : [plain(one.problem), one.hint ? `: ${plain(one.hint)}` : ""]));
    const agent = agents.agents.find(({ name }) => name === agentSelect.value);
    put(agentNote, agent && !agent.installed && h("span", { class: "wrong" }, `${plain(agent.problem)}. `, h("code", null, `dressage agents install ${agent.name}`)));
    showSnippets();
  }

  function showSnippets() {
    const body = spec();
    const shown = { ...body };
    if (shown.api_key) shown.api_key = "…";
    put(snippets, snippet("Command line", commandLine(shown)), snippet("Python", python(shown)), snippet("REST", curl(shown)));
  }

  async function send(event) {
    event.preventDefault();
    for (const [path, wrong] of wrongs) {
      wrong.hidden = true;
      inputs.get(path).removeAttribute("aria-invalid");
    }
    put(summary);
    const body = spec();
    let first = null;
    const blame = (path, message) => {
      const known = [...inputs.keys()].filter((key) => path === key || path.startsWith(`${key}.`) || path.startsWith(`${key}[`)).sort((a, b) => b.length - a.length)[0];
      if (!known) return false;
      const [input, wrong] = [inputs.get(known), wrongs.get(known)];
      wrong.textContent = plain(message);
      wrong.hidden = false;
      input.setAttribute("aria-invalid", "true");
      input.closest("details")?.setAttribute("open", "");
      first ??= input;
      return true;
    };
    if (!instruction.value.trim()) blame("task.instruction", "say what is to be done, or take a ready-made task");
    if (body.base_url === "") blame("base_url", "is missing");
    for (const [path, input] of inputs) if (input.validity?.badInput || input.validity?.rangeOverflow || input.validity?.rangeUnderflow) blame(path, input.validationMessage);
    if (first) return first.focus();
    submit.disabled = true;
    try {
      const { rollouts } = await post("api/v1/rollouts", body);
      forgetCatalogue();
      const [one] = rollouts;
      go(rollouts.length > 1 && one.group ? to(`groups/${one.group}`) : to(`rollouts/${one.id}`));
    } catch (error) {
      const left = error instanceof ApiError ? error.details.filter(({ path, message }) => !blame(path, message)) : [];
      const by = { endpoint_unusable: "endpoint", agent_unusable: "task.agent.name", backend_unusable: "backend", unknown_endpoint: "endpoint" }[error.code];
      if (by) blame(by, error.message);
      put(summary, h("section", { class: "panel failure" }, h("div", { class: "body" }, h("p", { class: "what" }, plain(error.message)),
        left.length > 1 && h("ul", null, left.map(({ path, message }) => h("li", null, `${plain(path)}: ${plain(message)}`))),
        error.hint && h("p", { class: "hint" }, plain(error.hint)))));
      (first ?? summary).focus?.();
    } finally {
      submit.disabled = false;
    }
  }

  page.show(h("div", { class: "head" }, h("h1", null, "Run a task")),
    h("div", { class: "columns" }, form, h("aside", { class: "stack sticky", "aria-label": "The same elsewhere" }, snippets)));
  const wanted = presets.presets.find((one) => one.name === page.words.preset);
  if (wanted) usePreset(wanted.name, wanted.task);
  else changed();
  setWords({ preset: page.words.preset });
  instruction.focus({ preventScroll: true });
}

function snippet(name, text) {
  return h("section", { class: "panel" }, h("header", null, h("h2", null, name), h("span", { class: "space" }), copyButton(() => text)),
    h("div", { class: "body snippet" }, h("pre", { tabindex: "0" }, text)));
}

/** A word of a shell. */
export function quoted(text) {
  const string = String(text);
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(string) ? string : `'${string.replaceAll("'", "'\\''")}'`;
}

export function commandLine(body) {
  const task = body.task ?? {};
  const parts = ["dressage run"];
  if (body.preset) parts.push(`--preset ${quoted(body.preset)}`);
  if (body.endpoint) parts.push(`--endpoint ${quoted(body.endpoint)}`);
  if (body.base_url) parts.push(`--base-url ${quoted(body.base_url)}`);
  if (body.api_key) parts.push("--api-key-env KEY");
  if (body.model) parts.push(`--model ${quoted(body.model)}`);
  if (task.agent?.name && task.agent.name !== "opencode") parts.push(`--agent ${quoted(task.agent.name)}`);
  if (body.n) parts.push(`-n ${body.n}`);
  for (const one of FIELDS) {
    const value = at(body, one.path);
    if (!one.option || value === undefined) continue;
    parts.push(one.path === "disable_thinking" ? `--disable-thinking=${value}` : `${one.option} ${quoted(value)}`);
  }
  if (task.verify_when === "always") parts.push("--verify-always");
  for (const [key, option] of [["setup", "--setup"], ["verify", "--verify"]]) {
    for (const command of task[key] ?? []) parts.push(`${option} ${quoted(command)}`);
  }
  if (!body.preset) parts.push(quoted(task.instruction ?? ""));
  return parts.join(" \\\n  ");
}

function pythonValue(value, indent = "    ") {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "number") return String(value);
  // A string of JSON is one of Python, but for characters beyond the first plane, which are escaped in pairs by neither.
  if (typeof value === "string") return JSON.stringify(value);
  const inner = `${indent}    `;
  if (Array.isArray(value)) return value.length === 0 ? "[]" : `[\n${value.map((one) => `${inner}${pythonValue(one, inner)},\n`).join("")}${indent}]`;
  const entries = Object.entries(value);
  return entries.length === 0 ? "{}" : `{\n${entries.map(([key, one]) => `${inner}${JSON.stringify(key)}: ${pythonValue(one, inner)},\n`).join("")}${indent}}`;
}

function python(body) {
  const head = `import dressage\n\nclient = dressage.Client(base_url=${JSON.stringify(ROOT.origin)})\n`;
  if (body.n) return `${head}for rollout in client.run_all([${pythonValue(body, "")}]):\n    print(rollout.reward, rollout.ended)`;
  const given = Object.entries(body).map(([key, value]) => `    ${key}=${pythonValue(value)},\n`).join("");
  return `${head}rollout = client.run(\n${given})\nprint(rollout.reward, rollout.ended)`;
}

function curl(body) {
  return `curl -s ${quoted(new URL("api/v1/rollouts", ROOT).href)} \\\n  -H 'content-type: application/json' \\\n  -d ${quoted(JSON.stringify(body, null, 2))}`;
}
