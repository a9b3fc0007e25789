// Calls as a graph, the first at the top: a line is a conversation; where one parts from another, or breaks its prefix, one sees
// it.

import { get } from "../api.js";
import { h, put, svg } from "../dom.js";
import { brief, bytes, count, duration, moment, number, words } from "../format.js";
import { facts, failure, flagChip, flagMeaning, loading, purposeChip, whyUntrained } from "../marks.js";
import { setWords, to } from "../router.js";
import { plain } from "../text.js";
import { readReply } from "./document.js";
import { jsonTree } from "./json.js";

const ROW = 40;
const LANE = 22;
const LEFT = 18;

/** The lane of each call, so that a conversation stays in one, and lanes are used again. */
export function lanes(calls) {
  const last = new Map(calls.map((call) => [call.index, Math.max(call.index, ...call.children)]));
  const place = new Map(calls.map((call, at) => [call.index, at]));
  const until = new Map();
  const tips = new Map();
  const lane = new Map();
  for (const call of calls) {
    const parent = call.continues;
    let mine = null;
    if (parent !== null && lane.has(parent) && tips.get(lane.get(parent)) === parent) mine = lane.get(parent);
    if (mine === null) {
      mine = 0;
      while (until.has(mine) && until.get(mine) >= place.get(call.index)) mine += 1;
    }
    lane.set(call.index, mine);
    tips.set(mine, call.index);
    until.set(mine, place.get(last.get(call.index)) ?? place.get(call.index));
  }
  return lane;
}

/** The attempt that took the place of each that was given up, and the other way round. */
export function retries(calls) {
  const [by, of] = [new Map(), new Map()];
  for (const call of calls.filter(({ flags }) => flags.includes("superseded"))) {
    const later = calls.find((one) => one.index > call.index && one.meta.retry_key === call.meta.retry_key);
    if (!later) continue;
    by.set(call.index, later.index);
    of.set(later.index, call.index);
  }
  return { by, of };
}

/** `wanted.call` is the one whose details are shown; `reread` takes a later document of the same rollout. */
export function graph(page, id, trajectory, wanted) {
  const box = h("div", { class: "stack" });
  let explanations = new Map();
  let chosen = wanted.call === undefined ? null : Number(wanted.call);
  const numbers = h("details", { class: "panel" });
  const about = h("div");

  function draw() {
    const { calls } = trajectory;
    if (calls.length === 0) return put(box, h("div", { class: "panel empty" }, h("h2", null, "No calls yet"), h("p", null, "Each call of the agent to its model is here when it has ended.")));
    const again = retries(calls);
    const lane = lanes(calls);
    const place = new Map(calls.map((call, at) => [call.index, at]));
    const width = LEFT + (Math.max(...lane.values()) + 1) * LANE;
    const x = (call) => LEFT + lane.get(call.index) * LANE;
    const y = (call) => place.get(call.index) * ROW + ROW / 2;
    const drawing = svg("svg", { width, height: calls.length * ROW, "aria-hidden": "true" });
    for (const call of calls) {
      const parent = trajectory.call(call.continues);
      if (!parent) continue;
      const [x1, y1, x2, y2] = [x(parent), y(parent), x(call), y(call)];
      const bend = x1 === x2 ? `M${x1} ${y1}V${y2}` : `M${x1} ${y1}C${x1} ${y1 + ROW * 0.7} ${x2} ${y1 + ROW * 0.3} ${x2} ${Math.min(y2, y1 + ROW)}V${y2}`;
      drawing.append(svg("path", { class: `edge${call.prefix_break ? " broken" : ""}`, d: bend }));
    }
    for (const call of calls) {
      const failed = !["complete", "budget"].includes(call.meta.end);
      const kind = failed ? "failed" : call.meta.purpose !== "agent" ? "other" : call.trainable ? "" : "hollow";
      drawing.append(svg("circle", { class: `node ${kind}`, cx: x(call), cy: y(call), r: 7 }));
    }
    const rows = calls.map((call) => {
      const why = call.trainable ? null : whyUntrained(call.untrained);
      const row = h("li", { "aria-current": chosen === call.index ? "true" : null, onclick: (event) => !event.target.closest("a, button") && choose(call.index) },
        h("a", { class: "index", href: to(`rollouts/${id}/tokens`, { call: call.index }), "data-item": true, "aria-label": `tokens of call ${call.index}` }, call.index),
        purposeChip(call.meta.purpose),
        h("span", { class: "number muted" }, `${brief(trajectory.promptLength(call))} → ${brief(call.ids.length || call.meta.usage?.completion_tokens || 0)}`),
        h("span", { class: "number faint" }, duration(call.meta.duration_ms)),
        call.meta.end !== "complete" && h("span", { class: "chip bad", title: plain(call.meta.error ?? "") }, words(call.meta.end)),
        again.by.has(call.index) && h("span", { class: "chip warn" }, `tried again: call ${again.by.get(call.index)}`),
        again.of.has(call.index) && h("span", { class: "chip" }, `retry of call ${again.of.get(call.index)}`),
        call.prefix_break && h("span", { class: "chip warn", title: explained(call, explanations.get(call.index)) }, "prefix break"),
        call.flags.filter((flag) => flag !== "sampling_defaulted" && !(flag === "superseded" && again.by.has(call.index))).map(flagChip),
        why ? h("span", { class: "chip warn", title: why }, "not trained") : h("span", { class: "chip good" }, "trained"),
        h("span", { class: "said ellipsis" }, gist(trajectory, call)),
        h("button", { type: "button", class: "button small", "aria-expanded": String(chosen === call.index), "aria-label": `details of call ${call.index}`, onclick: () => choose(call.index) }, "Details"));
      row.style.setProperty("padding-left", `${width}px`);
      return row;
    });
    put(numbers, h("summary", { class: "body" }, "All numbers"), table(id, trajectory, explanations));
    return put(box,
      h("div", { class: "panel" }, h("div", { class: "graph" }, drawing, h("ol", { "aria-label": "calls" }, rows))),
      h("div", { class: "legend" },
        h("span", null, node(""), "the agent’s own"), h("span", null, node("hollow"), "not trained"), h("span", null, node("other"), "title, summary, sub-agent, foreign"), h("span", null, node("failed"), "failed"),
        h("span", null, edge(""), "goes on from"), h("span", null, edge("broken"), "prefix break")),
      about, numbers);
  }

  function choose(index) {
    chosen = chosen === index ? null : index;
    setWords({ call: chosen });
    draw();
    showAbout();
    if (chosen !== null) about.scrollIntoView({ block: "nearest" });
  }

  function showAbout() {
    const call = trajectory.call(chosen);
    put(about, call && details(page, id, trajectory, call, explanations.get(call.index)));
  }

  async function explain() {
    const { calls } = await get(`api/v1/rollouts/${id}/calls`, page.signal);
    explanations = new Map(calls.filter((call) => call.explanation).map((call) => [call.index, call.explanation]));
    draw();
    showAbout();
  }

  draw();
  return {
    node: box,
    shown: () => explain().catch(() => showAbout()),
    reread: (document) => {
      trajectory = document;
      draw();
      return explain();
    },
  };
}

/** All that is known of a call, and what was said in it. */
function details(page, id, trajectory, call, explanation) {
  const { meta } = call;
  const said = h("details", null, h("summary", null, "Request and reply"));
  said.addEventListener("toggle", async () => {
    if (!said.open || said.children.length > 1) return;
    const parts = h("div", { class: "stack" }, loading());
    said.append(parts);
    try {
      const turn = await get(`api/v1/rollouts/${id}/calls/${call.index}`, page.signal);
      put(parts, h("div", null, h("h3", null, "Request"), jsonTree(turn.request, 1)), h("div", null, h("h3", null, "Reply"), jsonTree(turn.response, 2)));
    } catch (error) {
      if (error.name !== "AbortError") put(parts, failure(error));
    }
  });
  return h("section", { class: "panel", "aria-label": `call ${call.index}` }, h("header", null, h("h2", null, `Call ${call.index}`), purposeChip(meta.purpose), h("span", { class: "space" }),
    h("a", { class: "button small", href: to(`rollouts/${id}/tokens`, { call: call.index }) }, "Tokens"), h("a", { class: "button small", href: to(`rollouts/${id}/conversation`, { call: call.index }) }, "Conversation to here")),
  h("div", { class: "body stack" }, meta.error && h("p", { class: "wrong wrap" }, plain(meta.error), meta.hint && h("span", { class: "muted" }, ` ${plain(meta.hint)}`)), h("div", { class: "halves" }, facts([
    ["ended", `${words(meta.end)}${meta.status ? `, status ${meta.status}` : ""}`], ["model", plain(meta.model ?? "–")], ["dialect", `${words(meta.dialect)}${meta.streamed ? ", streamed" : ", whole"}`],
    ["asked for", moment(meta.started_unix_ms)], ["first token", duration(meta.first_token_ms)], ["time", duration(meta.duration_ms)],
    ["tokens", `${count(trajectory.promptLength(call))} in the prompt, ${count(call.ids.length || meta.usage?.completion_tokens || 0)} sampled`],
    ["bytes", `${bytes(meta.request_bytes)} asked, ${bytes(meta.upstream_bytes)} answered`],
  ]), facts([
    ["level", meta.level], ["trained", call.trainable ? "yes" : `no: ${whyUntrained(call.untrained)}`], ["goes on from", call.continues === null ? "nothing" : `call ${call.continues}`],
    call.prefix_break ? ["prefix break", explained(call, explanation)] : null,
    call.flags.length > 0 ? ["flags", call.flags.map((flag) => h("div", null, `${words(flag)}: ${flagMeaning(flag)}`))] : null,
    meta.changes.length > 0 ? ["changed", meta.changes.map((change) => h("div", { class: "wrap" }, plain(typeof change === "string" ? words(change) : JSON.stringify(change))))] : null,
    meta.untranslated?.length > 0 ? ["not carried over", plain(meta.untranslated.join(", "))] : null,
    meta.policy_version_at_completion ? ["weights", plain(meta.policy_version_at_completion)] : null,
    ["sampling", sampling(meta)], meta.session ? ["session", h("code", null, plain(meta.session))] : null,
  ])), said));
}

function sampling(meta) {
  return Object.entries(meta.sampling).map(([key, value]) => `${key} ${typeof value === "number" ? Number(number(value, 4)) : value}`).join(", ");
}

function node(kind) {
  return svg("svg", { width: 16, height: 16, class: "graph-mark", "aria-hidden": "true" }, svg("g", { class: "graph" }, svg("circle", { class: `node ${kind}`, cx: 8, cy: 8, r: 6 })));
}

function edge(kind) {
  return svg("svg", { width: 22, height: 16, "aria-hidden": "true" }, svg("g", { class: "graph" }, svg("path", { class: `edge ${kind}`, d: "M1 8H21" })));
}

/** What a call said, in a line. */
function gist(trajectory, call) {
  const parts = readReply(trajectory.content(call.response)).flatMap((message) => message.parts);
  const calls = parts.filter((part) => part.kind === "call").map((part) => `${part.name}(${short(part.input)})`);
  const text = parts.filter((part) => part.kind === "text").map((part) => part.text.trim()).filter(Boolean).join(" ");
  return plain((calls.join(" ") || text).replace(/\s+/g, " ").slice(0, 220));
}

function short(input) {
  if (input === null || typeof input !== "object") return String(input ?? "").slice(0, 80);
  return Object.values(input).map((value) => (typeof value === "string" ? value : JSON.stringify(value))).join(", ").slice(0, 100);
}

function explained(call, explanation) {
  const broken = call.prefix_break;
  const where = broken.inside_completion ? "inside the earlier reply" : "inside the earlier prompt";
  const how = explanation ? `; ${words(explanation.change)}${explanation.members?.length ? `: ${explanation.members.join(", ")}` : ""}` : "";
  return `at token ${broken.at}, ${where}${how}`;
}

/** The numbers of each call, for those who want them all. */
function table(id, trajectory, explanations) {
  return h("div", { class: "scroll" }, h("table", null,
    h("thead", null, h("tr", null, ["Call", "Purpose", "Ended", "Level", "Prompt", "Sampled", "First token", "Time", "Status", "Model", "Sampling", "Continues", "Why not trained", "Prefix break"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, trajectory.calls.map((call) => h("tr", null,
      h("td", null, h("a", { href: to(`rollouts/${id}/tokens`, { call: call.index }) }, call.index)),
      h("td", null, words(call.meta.purpose)), h("td", null, words(call.meta.end)), h("td", null, call.meta.level),
      h("td", { class: "right" }, brief(trajectory.promptLength(call))), h("td", { class: "right" }, brief(call.ids.length || call.meta.usage?.completion_tokens)),
      h("td", { class: "right" }, duration(call.meta.first_token_ms)), h("td", { class: "right" }, duration(call.meta.duration_ms)),
      h("td", null, call.meta.status ?? "–"), h("td", null, plain(call.meta.model ?? "–")),
      h("td", { class: "small" }, sampling(call.meta)),
      h("td", null, call.continues ?? "–"), h("td", null, whyUntrained(call.untrained) ?? "–"),
      h("td", null, call.prefix_break ? explained(call, explanations.get(call.index)) : "–"))))));
}
