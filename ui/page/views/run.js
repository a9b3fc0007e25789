// Asking for rollouts: a form, with the same as a command line, a request and a few lines of Python beside it.

import { ApiError, catalogue, forgetCatalogue, get, post } from "../api.js";
import { copyButton, h, put, toast } from "../dom.js";
import { words as asWords } from "../format.js";
import { go, setWords, to } from "../router.js";
import { commandLine, curl, prune, python, same } from "../run/elsewhere.js";
import { GROUPS, FIELDS, at, place } from "../run/fields.js";
import { plain } from "../text.js";

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

export async function run(page) {
  page.setTitle("Run");
  const [endpoints, agents, backends, presets, { tasks }, usual, like] = await Promise.all([
    ...["endpoints", "agents", "backends", "presets", "tasks"].map(catalogue), usualTask(page.signal),
    page.words.like ? get(`api/v1/rollouts/${encodeURIComponent(page.words.like)}`, page.signal) : null,
  ]);
  const inputs = new Map();
  const wrongs = new Map();
  /** What the task has, also besides what the form shows; what is as usual is left out. */
  let base = {};
  /** What the form was filled from: `{preset, task}`, `{path, task}`, or nothing that has a name. */
  let from = null;
  /** What stood in each field when it was filled: what was not changed stays as it was in the task. */
  const filled = new Map();

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
      endpointName(one))),
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
  function fill(task, source, title) {
    base = prune(structuredClone(task), usual) ?? {};
    from = source ? { ...source, task: base } : null;
    instruction.value = base.instruction ?? "";
    setup.value = (base.setup ?? []).join("\n");
    verify.value = (base.verify ?? []).join("\n");
    for (const one of FIELDS.filter(({ path }) => path.startsWith("task."))) {
      const value = at({ task: base }, one.path);
      inputs.get(one.path).value = value === undefined || value === null || typeof value === "object" ? "" : String(value);
    }
    inputs.get("hosts").value = (base.network?.allow ?? []).join(", ");
    for (const [path, input] of inputs) if (path.startsWith("task.") || path === "hosts") filled.set(path, input.value);
    agentSelect.value = base.agent?.name ?? "opencode";
    for (const [key, button] of presetButtons) button.setAttribute("aria-pressed", String(key === source?.preset));
    taskSelect.value = source?.path ?? "";
    if (title) toast(`Filled in: ${title}`);
    changed();
  }

  const wrongFile = (name, error) => toast(`${name}: ${error.message}${error.hint ? ` (${error.hint})` : ""}`, "bad");
  const file = h("input", { type: "file", accept: ".toml,.json", class: "sr", id: "task-file", onchange: async () => {
    const [chosen] = file.files;
    file.value = "";
    if (!chosen) return;
    try {
      const { task } = await post("api/v1/tasks/read", { text: await chosen.text(), format: chosen.name.endsWith(".json") ? "json" : "toml" });
      fill({ id: chosen.name.replace(/\.[a-z]+$/, ""), ...task }, null, chosen.name);
    } catch (error) {
      wrongFile(chosen.name, error);
    }
  } });
  const taskSelect = h("select", { "aria-label": "Task files of this server", onchange: async () => {
    const chosen = tasks.find(({ path }) => path === taskSelect.value);
    if (!chosen) return;
    try {
      const { task } = await get(`api/v1/tasks/${encodeURIComponent(chosen.name)}`, page.signal);
      fill(task, { path: chosen.path }, chosen.name);
    } catch (error) {
      wrongFile(chosen.name, error);
      taskSelect.value = from?.path ?? "";
    }
  } }, h("option", { value: "" }, "Task files…"), tasks.map(({ name, path }) => h("option", { value: path }, name)));
  for (const one of presets.presets) {
    presetButtons.set(one.name, h("button", { type: "button", class: "button", "aria-pressed": "false", title: one.title,
      onclick: () => fill(one.task, { preset: one.name }) }, one.name));
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
        h("div", { class: "presets", role: "group", "aria-label": "Ready-made tasks" }, [...presetButtons.values()], tasks.length > 0 && taskSelect,
          h("label", { class: "button", htmlFor: "task-file" }, "Open a task file…"), file),
        field("task.instruction", "Instruction", instruction, "what the agent is told, word for word"),
        h("div", { class: "halves" },
          field("task.setup", "Setup", setup, "commands before the agent, one a line"),
          field("task.verify", "Verify", verify, "commands after it, one a line: the reward is passed / total")))))),
    h("section", { class: "panel" }, h("div", { class: "body" }, h("fieldset", null, h("legend", null, "Model and agent"),
      h("div", { class: "stack" },
        h("div", { class: "fields four" }, field("endpoint", "Endpoint", endpointSelect), modelField,
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
    const body = { task };
    const isChanged = (path) => inputs.get(path).value !== (filled.get(path) ?? "");
    task.instruction = instruction.value;
    // What has lines of its own within a command stays whole as long as it is not changed.
    for (const [key, { value: text }] of Object.entries({ setup, verify })) if (isChanged(`task.${key}`)) place(body, `task.${key}`, text.trim() ? lines(text) : undefined);
    if (agentSelect.value !== (base.agent?.name ?? "opencode")) task.agent = { ...task.agent, name: agentSelect.value };
    for (const one of FIELDS) if (one.path !== "hosts" && isChanged(one.path)) place(body, one.path, value(one));
    if (isChanged("hosts")) {
      const allow = inputs.get("hosts").value.split(/[\s,]+/).filter(Boolean);
      place(body, "task.network", allow.length > 0 ? { allow } : value(FIELDS.find(({ path }) => path === "task.network")));
    }
    body.task = prune(task, usual) ?? {};
    if (endpointSelect.value === OWN) {
      body.base_url = inputs.get("base_url").value;
      if (inputs.get("api_key").value) body.api_key = inputs.get("api_key").value;
    } else {
      body.endpoint = endpointSelect.value;
    }
    if (inputs.get("model").value) body.model = inputs.get("model").value;
    const n = Number(samples.value);
    if (samples.value !== "" && n !== 1) body.n = n;
    if (from?.preset && same(body.task, from.task)) {
      delete body.task;
      return { preset: from.preset, ...body };
    }
    return body;
  }

  /** What endpoints return, as far as that was found out. */
  const known = new Map();
  for (const one of usable.filter(({ name }) => name !== "demo")) {
    get(`api/v1/endpoints/${encodeURIComponent(one.name)}`, page.signal).then(({ probe }) => {
      known.set(one.name, probe);
      const option = [...endpointSelect.options].find(({ value: name }) => name === one.name);
      option.textContent = `${endpointName(one)}${probe ? ` · ${RETURNS[probe.stream?.level] ?? "refused"}` : ""}`;
      changed();
    }, () => {
      // It is not known, then.
    });
  }

  function changed() {
    const one = endpoints.endpoints.find(({ name }) => name === endpointSelect.value);
    ownFields.hidden = endpointSelect.value !== OWN;
    const probe = known.get(one?.name);
    put(endpointNote, one && aboutEndpoint(one, probe));
    const agent = agents.agents.find(({ name }) => name === agentSelect.value);
    put(agentNote, agent && !agent.installed && h("span", { class: "wrong" }, `${plain(agent.problem)}. `, h("code", null, `dressage agents install ${agent.name}`)));
    showSnippets();
  }

  function showSnippets() {
    const body = spec();
    const shown = { ...body };
    if (shown.api_key) shown.api_key = "KEY";
    const sandbox = backends.default === "local" ? null : backends.default;
    put(snippets, snippet("Command line", commandLine(shown, { from, sandbox }), (shown.hold || shown.priority) && "It runs at once, on its own: priority and hold are matters of this server."), snippet("Python", python(shown)), snippet("REST", curl(shown)));
  }

  /** As another rollout was asked for, as far as that was kept. */
  function fillLike({ start, title }) {
    const listed = endpoints.endpoints.find(({ name, usable: is }) => name === start.endpoint && is);
    endpointSelect.value = listed ? listed.name : OWN;
    if (!listed) inputs.get("base_url").value = start.base_url;
    if (!listed || (listed.model && listed.model !== start.model)) inputs.get("model").value = start.model;
    const others = { mode: start.mode, placement: start.placement, backend: start.backend };
    const first = { mode: "transparent_proxy", placement: "relay", backend: backends.default };
    for (const [path, value] of Object.entries(others)) inputs.get(path).value = value === first[path] ? "" : value ?? "";
    const ready = presets.presets.find((one) => same(one.task, start.task));
    fill(start.task, ready ? { preset: ready.name } : null, title);
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
    if (body.base_url === "") blame("base_url", "say where it is");
    for (const [path, input] of inputs) if (input.validity?.badInput || input.validity?.rangeOverflow || input.validity?.rangeUnderflow || input.validity?.stepMismatch) blame(path, input.validationMessage);
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
      if (by) blame(by === "endpoint" && body.base_url !== undefined ? "base_url" : by, error.message);
      put(summary, h("section", { class: "panel failure" }, h("div", { class: "body" }, h("p", { class: "what" }, plain(error.message)),
        left.length > 1 && h("ul", null, left.map(({ path, message }) => h("li", null, `${plain(path)}: ${plain(message)}`))),
        error.hint && h("p", { class: "hint" }, plain(error.hint)))));
      (first ?? summary).focus?.();
    } finally {
      submit.disabled = false;
    }
  }

  page.show(h("div", { class: "head" }, h("h1", null, "Run a task")),
    h("div", { class: "columns even" }, form, h("aside", { class: "stack sticky", "aria-label": "The same elsewhere" }, snippets)));
  const wanted = presets.presets.find((one) => one.name === page.words.preset);
  if (like?.start) fillLike(like);
  else if (wanted) fill(wanted.task, { preset: wanted.name });
  else changed();
  setWords({ preset: page.words.preset, like: page.words.like });
  instruction.focus({ preventScroll: true });
}

function endpointName({ name, model, usable }) {
  return `${name}${model ? ` · ${model}` : ""}${usable ? "" : " (not configured)"}`;
}

/** What an endpoint returns, by the level of what can be made of it. */
const RETURNS = { tokens: "token ids", logprobs: "log-probabilities", text: "text alone" };

/** What is known of an endpoint: where it is, and what it returns. */
function aboutEndpoint(one, probe) {
  if (!one.usable) return [plain(one.problem), one.hint ? `: ${plain(one.hint)}` : ""];
  if (!one.base_url) return "A scripted model inside Dressage: no network, no key. It returns token ids, log-probabilities and alternatives, and knows the ready-made tasks.";
  const returns = (found) => h("b", null, found?.error ? "nothing: it refuses" : RETURNS[found?.level] ?? "nothing");
  return ["Asks ", h("code", null, one.base_url), one.has_key === false ? ", without a key" : ", with its key", `, capture ${one.capture}. `,
    probe ? ["Streams return ", returns(probe.stream), ", with tools ", returns(probe.stream_with_tools), "."]
      : ["What it returns is not known yet: ", h("a", { href: to("machine") }, "probe it"), "."]];
}

/** A task of which nothing is said but what is to be done: what it has is as usual. */
async function usualTask(signal) {
  const { task } = await post("api/v1/tasks/read", { text: JSON.stringify({ instruction: "-" }), format: "json" }, signal);
  delete task.instruction;
  return task;
}

function snippet(name, text, note) {
  return h("section", { class: "panel" }, h("header", null, h("h2", null, name), h("span", { class: "space" }), copyButton(() => text)),
    h("div", { class: "body snippet stack" }, h("pre", { tabindex: "0" }, text), note && h("p", { class: "small muted" }, note)));
}
