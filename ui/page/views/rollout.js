// One rollout, as it happens and afterwards.

import { ApiError, Unreachable, get, send } from "../api.js";
import { atMost, copyButton, eachFrame, h, put, toast } from "../dom.js";
import { follow } from "../events.js";
import { brief, bytes, count, duration, moment, shortId, words } from "../format.js";
import { STAGES, clock, exitChip, facts, failure, faultBox, loading, rewardMark, stateChip, tile } from "../marks.js";
import { activity } from "../rollout/activity.js";
import { conversation } from "../rollout/conversation.js";
import { fetchDocument } from "../rollout/document.js";
import { files } from "../rollout/files.js";
import { graph } from "../rollout/graph.js";
import { jsonTree } from "../rollout/json.js";
import { Model } from "../rollout/model.js";
import { timeline } from "../rollout/timeline.js";
import { tokens } from "../rollout/tokens.js";
import { setWords, to } from "../router.js";
import { block, plain } from "../text.js";

const TABS = [["", "Overview"], ["conversation", "Conversation"], ["tokens", "Tokens"], ["calls", "Calls"], ["commands", "Commands"], ["files", "Files"], ["logs", "Logs"], ["raw", "Raw"]];

export async function rollout(page) {
  const [id] = page.parts;
  let tab = page.parts[1] ?? "";
  let asked = { ...page.words };
  let view = await get(`api/v1/rollouts/${encodeURIComponent(id)}`, page.signal);
  const model = new Model();
  const head = h("div");
  const body = h("div", { role: "tabpanel", id: "panel", "aria-live": "off" });
  const strip = h("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the rollout" });
  page.setTitle(plain(view.title || shortId(id)).slice(0, 60));

  const isOver = () => view.state === "finished" || view.state === "interrupted";
  /** It ended while it was looked at. */
  let ended = false;
  /** Parts that change as events come, of the tab that is shown. */
  let live = null;
  /** What is shown of the tab: `reread` takes a later document. */
  let shown = null;
  let stopTab = null;
  let reading = null;

  // The head

  let headShown = "";
  /** One that was asked for alone has a group of its own, which tells nothing. */
  let inGroup = view.sample > 0;
  if (view.group && !inGroup) {
    get(`api/v1/rollouts?group=${view.group}&limit=2`, page.signal).then((got) => {
      inGroup = got.rollouts.length > 1;
      headShown = "";
      showHead();
    }, () => {});
  }
  function showHead() {
    const row = { ...view, stage: model.stage ?? view.stage };
    const now = JSON.stringify([row.state, row.stage, row.cancelling, row.ended, row.reward, model.heldUntil, row.queue_position]);
    if (now === headShown) return;
    headShown = now;
    const began = view.started_unix_ms ?? view.created_unix_ms;
    const task = view.start?.task;
    put(head, h("div", { class: "head split" },
      h("div", { class: "row" }, h("h1", { class: "wrap clamp" }, plain(task?.instruction.trim().split("\n")[0] ?? view.title) || "no instruction"), stateChip(row),
      view.state === "finished" && rewardMark(view.reward, { range: task?.reward })),
      h("div", { class: "row" }, !isOver() && h("span", { class: "muted" }, clock(began)),
      view.group && inGroup && h("a", { class: "button", href: to(`groups/${view.group}`) }, `Group, sample ${view.sample}`),
      task && h("a", { class: "button", href: to("run", { like: id }) }, "Run again"),
      !isOver() && h("button", { type: "button", class: "button danger", id: "cancel", disabled: row.cancelling, onclick: cancel }, row.cancelling ? "Stopping" : "Cancel")),
      h("div", { class: "sub row small" },
        h("span", { class: "mono", title: id }, shortId(id)), copyButton(() => id, "Copy id"),
        view.task_id && h("span", null, plain(view.task_id)),
        h("span", null, `${view.agent}${view.agent_version ? ` ${view.agent_version}` : ""}`), h("span", null, `${view.endpoint} · ${plain(view.model)}`), h("span", null, `sandbox ${view.backend}`),
        h("span", { title: "asked for" }, moment(view.created_unix_ms)))));
  }

  async function cancel() {
    try {
      await send(`api/v1/rollouts/${id}/cancel`, { method: "POST" });
      view.cancelling = true;
      headShown = "";
      showHead();
    } catch (error) {
      toast(error.message, "bad");
    }
  }

  // Tabs

  function showTabs() {
    const numbers = { calls: model.calls.length || view.totals.calls, commands: model.commands.size, files: view.outcome ? Object.keys(view.outcome.files).length : 0, tokens: view.totals.completion_tokens || model.calls.reduce((sum, call) => sum + call.completion_tokens, 0) };
    if (strip.children.length === 0) {
      strip.addEventListener("keydown", (event) => {
        const at = [...strip.children].indexOf(event.target.closest("a"));
        const next = { ArrowRight: at + 1, ArrowLeft: at - 1 + TABS.length, Home: 0, End: TABS.length - 1 }[event.key];
        if (at < 0 || next === undefined) return;
        event.preventDefault();
        const link = strip.children[next % TABS.length];
        link.click();
        link.focus({ preventScroll: true });
      });
      put(strip, TABS.map(([key, name]) => h("a", { href: to(`rollouts/${id}${key ? `/${key}` : ""}`), role: "tab", "aria-controls": "panel", id: `tab-${key || "overview"}` }, name, h("span", { class: "n" }))));
    }
    TABS.forEach(([key], at) => {
      const link = strip.children[at];
      link.setAttribute("aria-selected", String(key === tab));
      link.tabIndex = key === tab ? 0 : -1;
      const many = numbers[key];
      const text = many ? brief(many) : "";
      if (link.lastChild.textContent !== text) link.lastChild.textContent = text;
    });
    body.setAttribute("aria-labelledby", `tab-${tab || "overview"}`);
  }

  /** The native document, read anew where calls have ended since. */
  function readDocument() {
    const calls = model.calls.length;
    if (reading && reading.calls === calls && reading.over === isOver()) return reading.document;
    reading = { calls, over: isOver(), document: fetchDocument(id, { signal: page.signal }) };
    reading.document.catch(() => (reading = null));
    return reading.document;
  }

  /** `again` where the same is shown anew, which stays in its place meanwhile. */
  async function showTab({ again: isAgain = false } = {}) {
    live = null;
    shown = null;
    stopTab?.();
    stopTab = null;
    showTabs();
    const mine = tab;
    const show = SHOWS[tab];
    if (!show) return put(body, failure(new Error(`There is no part called ${tab}.`)));
    if (show.slow && !isAgain) put(body, loading());
    try {
      const made = await show(mine);
      if (tab === mine && made) {
        put(body, made.node ?? made);
        stopTab = made.stop ?? null;
        made.shown?.();
        shown = made;
        live = made.update ? made : null;
        live?.update();
      }
    } catch (error) {
      if (error.name === "AbortError") return undefined;
      if (error instanceof ApiError && error.status === 404 && !isOver()) return put(body, loading("Nothing yet"));
      put(body, failure(error, () => showTab()));
      if (!("hint" in error)) console.error(error);
    }
    return undefined;
  }

  const SHOWS = {
    "": overview,
    conversation: Object.assign(async () => conversation(id, await readDocument(), asked), { slow: true }),
    tokens: Object.assign(async () => tokens(page, id, await readDocument(), asked), { slow: true }),
    calls: Object.assign(async () => graph(page, id, await readDocument(), asked), { slow: true }),
    commands: () => commands(id, model, asked.command),
    files: () => files(view.outcome, view.start?.task, asked.file),
    logs: () => logs(view),
    raw: () => raw(id, view),
  };

  function overview() {
    const line = timeline(id, model);
    const acts = activity(id, model, () => !isOver() || ended);
    const tiles = h("div", { class: "tiles" });
    const side = h("div", { class: "stack" });
    const fault = h("div");
    const flying = inFlight(model);
    let wall = null;
    const wallClock = () => {
      if (wall?.since !== model.began) wall = { since: model.began, node: clock(model.began) };
      return wall.node;
    };
    const update = () => {
      flying.update();
      const totals = sums(model, view);
      put(tiles,
        tile("Reward", model.hasReward || view.state === "finished" ? rewardMark(view.outcome?.reward ? view.outcome.reward.value : model.reward, { range: view.start?.task?.reward, large: true }) : "–", rewardNote(view)),
        tile("Calls", count(totals.calls), model.open.size > 0 ? `${model.open.size} in flight` : totals.trainable === null ? null : `${count(totals.trainable)} trainable`),
        tile("Tokens sampled", brief(totals.sampled), `${brief(totals.prompt)} in prompts`),
        tile("Prefix breaks", count(totals.breaks), view.totals.level ? `level ${view.totals.level}` : null),
        tile("Wall time", view.wall_ms !== null ? duration(view.wall_ms) : model.began === null || isOver() ? "–" : wallClock(), view.finished_unix_ms ? `ended ${moment(view.finished_unix_ms).slice(11)}` : null));
      line.update();
      acts.update();
      if (side.childElementCount === 0 || side.dataset.state !== view.state) {
        side.dataset.state = view.state;
        put(side, taskPanel(view), outcomePanel(view));
        put(fault, view.outcome?.fault && faultBox(view.outcome.fault), view.state === "interrupted" && h("section", { class: "panel failure" }, h("div", { class: "body" }, h("p", { class: "what" }, "The process that ran it died over it, and nothing came of it."))),
          (view.outcome?.warnings?.length ?? 0) > 0 && h("section", { class: "panel" }, h("div", { class: "body" }, view.outcome.warnings.map((warning) => h("p", null, h("span", { class: "chip warn" }, "note"), " ", plain(warning))))));
      }
    };
    const node = h("div", { class: "stack" }, fault, tiles,
      h("section", { class: "panel" }, h("header", null, h("h2", null, "Stages")), h("div", { class: "body" }, line.node)),
      h("div", { class: "columns" }, h("section", { class: "panel" }, h("header", null, h("h2", null, "What happened")), acts.node, flying.node), side));
    return { node, update, tick: () => line.update() };
  }

  // Events

  const redraw = eachFrame(() => {
    showHead();
    showTabs();
    live?.update();
  });
  async function readAnew() {
    const mine = shown;
    if (mine?.reread) {
      const document = await readDocument();
      if (shown === mine) await mine.reread(document);
    } else if (mine === null && SHOWS[tab]?.slow) await showTab({ again: true });
  }
  const reread = atMost(() => !isOver() && readAnew().catch(() => {}), 2000);

  async function readEnd() {
    // The last event is told before the outcome is stored with it.
    for (let wait = 50; !page.signal.aborted; wait = Math.min(wait * 2, 2000)) {
      try {
        view = await get(`api/v1/rollouts/${id}`, page.signal);
      } catch (error) {
        if (!(error instanceof Unreachable)) throw error;
      }
      if (isOver()) break;
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
    headShown = "";
    showHead();
    reading = null;
    page.setLive("none");
    // What one looks at stays in its place.
    if (live) redraw();
    else if (shown?.reread) await readAnew();
    else await showTab();
  }

  let caught = false;
  const stop = follow(`api/v1/rollouts/${id}/events`, {
    onState: (state) => page.setLive(isOver() ? "none" : state),
    onEvents: (sent) => {
      const before = model.calls.length;
      for (const one of sent) {
        const event = JSON.parse(one.data);
        model.take(event);
        if (event.event.type === "stage_started" && view.state === "queued") {
          view.state = "running";
          if (event.event.stage === "boot") get(`api/v1/rollouts/${id}`, page.signal).then((got) => {
            if (!isOver()) view = got;
            redraw();
          }, () => {});
        }
      }
      view.stage = model.stage;
      view.held_until_unix_ms = model.heldUntil;
      if (model.finished && !ended && !isOver()) {
        ended = true;
        readEnd().catch(() => {});
      }
      if (model.calls.length !== before && caught) reread();
      redraw();
      if (tab === "commands" && !live) showTab();
    },
    isLast: (one) => one.event === "finished",
    // The stream of one that was interrupted ends without a last event; so does each where the server stops.
    isOver: async () => {
      if (isOver()) return true;
      view = await get(`api/v1/rollouts/${id}`, page.signal);
      if (isOver()) await readEnd();
      return isOver();
    },
  });
  page.onLeave(stop);
  const ticking = setInterval(() => {
    if (isOver() || document.hidden) return;
    live?.tick?.();
  }, 200);
  page.onLeave(() => clearInterval(ticking));
  page.onChange(({ parts, words: now }) => {
    tab = parts[1] ?? "";
    asked = { ...now };
    showTab();
  });

  showHead();
  page.show(head, strip, body);
  await showTab();
  caught = true;
}

/** Calls that go on, with what they have sampled so far. */
function inFlight(model) {
  const node = h("div", { class: "flying", hidden: true });
  const made = new Map();
  function update() {
    for (const [call, open] of model.open) {
      let own = made.get(call);
      if (!own) {
        const text = h("pre", { class: "output", tabindex: "0" });
        const tokens = h("span", { class: "number muted" });
        own = { text, tokens, shown: -1, node: h("section", null, h("header", { class: "row small" }, h("span", { class: "chip accent pulse" }, "a call in flight"), tokens, clock(open.at)), text) };
        made.set(call, own);
        node.append(own.node);
      }
      if (own.shown === open.tokens) continue;
      own.shown = open.tokens;
      own.tokens.textContent = open.tokens > 0 ? `${count(open.tokens)} tokens` : "";
      own.text.hidden = open.text === "";
      own.text.textContent = plain(open.text);
      own.text.scrollTop = own.text.scrollHeight;
    }
    for (const [call, own] of made) {
      if (model.open.has(call)) continue;
      own.node.remove();
      made.delete(call);
    }
    node.hidden = made.size === 0;
  }
  return { node, update };
}

function sums(model, view) {
  if (view.state === "finished") {
    const totals = view.totals;
    return { calls: totals.calls, trainable: totals.trainable_calls, sampled: totals.completion_tokens, prompt: totals.prompt_tokens, breaks: totals.prefix_breaks };
  }
  const sum = (key) => model.calls.reduce((all, call) => all + call[key], 0);
  return { calls: model.calls.length, trainable: null, sampled: sum("completion_tokens"), prompt: sum("prompt_tokens"), breaks: model.calls.filter((call) => call.prefix_break).length };
}

function rewardNote(view) {
  const reward = view.outcome?.reward;
  if (!reward) return view.state === "finished" ? "verify did not run" : null;
  const passed = reward.commands.filter((command) => command.exit_code === 0).length;
  if (reward.source === "caller") return "given by the caller";
  return reward.overridden ? "written by a verify command" : `${passed} of ${reward.commands.length} commands passed`;
}

function taskPanel(view) {
  const task = view.start?.task;
  return h("section", { class: "panel" }, h("header", null, h("h2", null, "Task")), h("div", { class: "body stack" },
    block(task?.instruction ?? view.title, { part: 3000 }),
    task && h("div", null,
      task.setup.length > 0 && [h("h3", null, "Setup"), h("pre", { class: "output", tabindex: "0" }, plain(task.setup.join("\n")).slice(0, 4000))],
      task.verify.length > 0 && [h("h3", null, "Verify"), h("pre", { class: "output", tabindex: "0" }, plain(task.verify.join("\n")).slice(0, 4000))]),
    task && facts([["network", task.network], ["agent’s time", `${task.limits.agent_timeout_s} s`], ["calls", task.limits.max_calls ?? "no limit"], ["tokens of a call", task.limits.max_tokens_cap || "no cap"],
      Object.keys(task.sampling).length > 0 ? ["sampling", Object.entries(task.sampling).map(([key, value]) => `${key} ${value}`).join(", ")] : null])));
}

function outcomePanel(view) {
  const start = view.start;
  const outcome = view.outcome;
  if (!start) return null;
  return h("section", { class: "panel" }, h("header", null, h("h2", null, "Details")), h("div", { class: "body" }, facts([
    ["id", h("code", null, view.id)], ["endpoint", start.base_url], ["model", plain(start.model)], ["mode", `${words(start.mode)}, ${words(start.placement)}, ${start.capture}`],
    outcome?.sandbox ? ["sandbox", h("code", null, outcome.sandbox)] : null,
    outcome?.agent ? ["agent", h("span", null, exitChip({ exit_code: outcome.agent.exit_code, signal: outcome.agent.signal }), ` after ${duration(outcome.agent.duration_ms)}`)] : null,
    outcome?.agent?.session ? ["session", h("code", null, plain(outcome.agent.session))] : null,
    outcome?.reward ? ["separation", outcome.reward.separation] : null,
    outcome?.reward?.detail ? ["detail", jsonTree(outcome.reward.detail)] : null,
    outcome?.stages.some((stage) => stage.warm) ? ["boot", "from a warm pool"] : null,
    ["trainable tokens", view.state === "finished" ? count(view.totals.trainable_tokens) : null]])));
}

/** Setup and verify, each command with what it printed; it grows while they run. */
function commands(id, model, wanted) {
  const node = h("div", { class: "stack" });
  const made = new Map();
  const none = h("div", { class: "panel empty" }, h("h2", null, "No commands"), h("p", null, "Setup and verify commands are here, with their output as it is printed."));
  function update() {
    if (model.commands.size === 0) {
      put(node, none);
      return;
    }
    none.remove();
    for (const [key, command] of model.commands) {
      let own = made.get(key);
      if (own?.command !== command) {
        own?.node.remove();
        own = panel(key, command);
        made.set(key, own);
        node.append(own.node);
        if (key === wanted) requestAnimationFrame(() => own.node.scrollIntoView({ block: "start" }));
      }
      own.draw();
    }
  }
  function panel(key, command) {
    const exit = h("span");
    const out = h("div", { class: "stack" });
    let shown = null;
    const draw = () => {
      const { result } = command;
      const now = result ? "over" : command.output.length;
      if (now === shown) return;
      shown = now;
      put(exit, exitChip(result), result && [" ", h("span", { class: "faint small number" }, duration(result.duration_ms))]);
      if (!result) {
        const text = h("div", { class: "output", tabindex: "0" });
        put(out, command.output && text);
        text.append(plain(command.output.slice(-20_000)));
        text.scrollTop = text.scrollHeight;
        return;
      }
      // What was told as it was printed is whole where it is as long as the ends of both streams, which the result has.
      const isWhole = !command.cut && command.output.length >= result.stdout.length + result.stderr.length;
      if (isWhole && result.stderr === "") put(out, command.output && block(command.output.replace(/\n$/, ""), { kind: "output", end: true }));
      else put(out, result.stdout && block(result.stdout.replace(/\n$/, ""), { kind: "output", end: true }), result.stderr && [h("h3", null, "Standard error"), block(result.stderr.replace(/\n$/, ""), { kind: "output err", end: true })]);
      if (!result.stdout && !result.stderr && !command.output) put(out, h("span", { class: "faint small" }, "It printed nothing."));
      if (result.output_bytes > (result.stdout.length + result.stderr.length) * 1.5 + 1000) out.append(h("p", { class: "small faint" }, `${bytes(result.output_bytes)} in all.`));
    };
    return { command, draw, node: h("section", { class: "panel", "data-stage": command.stage }, h("header", null, h("span", { class: "chip" }, command.stage), h("span", { class: "space" }), exit,
      h("a", { class: "anchor small", href: to(`rollouts/${id}/commands`, { command: key }), "aria-label": `address of ${command.stage} command ${command.index}`, onclick: (event) => {
        event.preventDefault();
        setWords({ command: key });
      } }, `#${command.index}`)),
      h("div", { class: "body stack" }, block(command.command, { kind: "text mono", part: 4000 }), out)) };
  }
  return { node, update };
}

function logs(view) {
  const agent = view.outcome?.agent;
  if (!view.outcome) return h("div", { class: "panel empty" }, h("h2", null, "No log yet"), h("p", null, "What the agent’s program wrote is here at its end; what it does is in the overview as it does it."));
  if (!agent) return h("div", { class: "panel empty" }, h("h2", null, "No log"), h("p", null, "The agent was never started."));
  return h("section", { class: "panel" }, h("header", null, h("h2", null, "The agent’s output"), exitChip(agent), h("span", { class: "space" }), copyButton(() => agent.log_tail)),
    h("div", { class: "body" }, agent.log_tail ? block(agent.log_tail, { kind: "output", end: true }) : h("span", { class: "faint" }, "It wrote nothing.")));
}

function raw(id, view) {
  const save = (name, path) => h("button", { type: "button", class: "button", onclick: async (event) => {
    const button = event.currentTarget;
    button.disabled = true;
    try {
      const blob = await (await send(path)).blob();
      const address = URL.createObjectURL(blob);
      const link = h("a", { href: address, download: name });
      document.body.append(link);
      link.click();
      link.remove();
      setTimeout(() => URL.revokeObjectURL(address), 10_000);
    } catch (error) {
      toast(error.message, "bad");
    }
    button.disabled = false;
  } }, name);
  return h("div", { class: "stack" },
    h("section", { class: "panel" }, h("header", null, h("h2", null, "To keep")), h("div", { class: "body row" },
      save("trajectory.json", `api/v1/rollouts/${id}/trajectory`), save("training.json", `api/v1/rollouts/${id}/trajectory?format=training`), save("calls.json", `api/v1/rollouts/${id}/calls`), save("rollout.json", `api/v1/rollouts/${id}`))),
    h("section", { class: "panel" }, h("header", null, h("h2", null, "The rollout"), h("code", { class: "small faint" }, `GET /api/v1/rollouts/${id}`)), h("div", { class: "body" }, jsonTree(view, 1))));
}

export { STAGES };
