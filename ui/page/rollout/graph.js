// Calls as a graph, the first at the top: a line is a conversation; where one parts from another, or breaks its prefix, one sees
// it.

import { h, svg } from "../dom.js";
import { brief, duration, number, words } from "../format.js";
import { flagChip, purposeChip, whyUntrained } from "../marks.js";
import { to } from "../router.js";
import { plain } from "../text.js";
import { readReply } from "./document.js";

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

export function graph(id, trajectory, explanations) {
  const { calls } = trajectory;
  if (calls.length === 0) return h("div", { class: "panel empty" }, h("h2", null, "No calls yet"));
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
    const explanation = explanations?.get(call.index);
    const row = h("li", null,
      h("a", { class: "index", href: to(`rollouts/${id}/tokens`, { call: call.index }), "data-item": true, "aria-label": `call ${call.index}` }, call.index),
      purposeChip(call.meta.purpose),
      h("span", { class: "number muted" }, `${brief(trajectory.promptLength(call))} → ${brief(call.ids.length || call.meta.usage?.completion_tokens || 0)}`),
      h("span", { class: "number faint" }, duration(call.meta.duration_ms)),
      call.meta.end !== "complete" && h("span", { class: "chip bad", title: plain(call.meta.error ?? "") }, words(call.meta.end)),
      call.prefix_break && h("span", { class: "chip warn", title: explained(call, explanation) }, "prefix break"),
      call.flags.filter((flag) => flag !== "sampling_defaulted").map(flagChip),
      why ? h("span", { class: "chip warn", title: why }, "not trained") : h("span", { class: "chip good" }, "trained"),
      h("span", { class: "said ellipsis" }, gist(trajectory, call)));
    row.style.setProperty("padding-left", `${width}px`);
    return row;
  });
  return h("div", { class: "stack" },
    h("div", { class: "panel" }, h("div", { class: "graph" }, drawing, h("ol", { "aria-label": "calls" }, rows))),
    h("div", { class: "legend" },
      h("span", null, node(""), "the agent’s own"), h("span", null, node("hollow"), "not trained"), h("span", null, node("other"), "title, summary, sub-agent, foreign"), h("span", null, node("failed"), "failed"),
      h("span", null, edge(""), "goes on from"), h("span", null, edge("broken"), "prefix break")),
    details(id, trajectory, explanations));
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
function details(id, trajectory, explanations) {
  return h("details", { class: "panel" }, h("summary", { class: "body" }, "All numbers"), h("div", { class: "scroll" }, h("table", null,
    h("thead", null, h("tr", null, ["Call", "Purpose", "Ended", "Level", "Prompt", "Sampled", "First token", "Time", "Status", "Model", "Sampling", "Continues", "Why not trained", "Prefix break"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, trajectory.calls.map((call) => h("tr", null,
      h("td", null, h("a", { href: to(`rollouts/${id}/tokens`, { call: call.index }) }, call.index)),
      h("td", null, words(call.meta.purpose)), h("td", null, words(call.meta.end)), h("td", null, call.meta.level),
      h("td", { class: "right" }, brief(trajectory.promptLength(call))), h("td", { class: "right" }, brief(call.ids.length || call.meta.usage?.completion_tokens)),
      h("td", { class: "right" }, duration(call.meta.first_token_ms)), h("td", { class: "right" }, duration(call.meta.duration_ms)),
      h("td", null, call.meta.status ?? "–"), h("td", null, plain(call.meta.model ?? "–")),
      h("td", { class: "small" }, Object.entries(call.meta.sampling).map(([key, value]) => `${key} ${typeof value === "number" ? Number(number(value, 4)) : value}`).join(", ")),
      h("td", null, call.continues ?? "–"), h("td", null, whyUntrained(call.untrained) ?? "–"),
      h("td", null, call.prefix_break ? explained(call, explanations?.get(call.index)) : "–")))))));
}
