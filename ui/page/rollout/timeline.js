// The stages of a rollout on a line of time, with its calls on it.

import { h, put, svg } from "../dom.js";
import { brief, duration, words } from "../format.js";
import { STAGES } from "../marks.js";
import { to } from "../router.js";

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 15000, 30000, 60000, 120000, 300000, 600000, 1800000, 3600000];

/** Calls that have a mark of their own, which leads to their tokens; the earlier ones of very many are drawn together. */
const MARKS_MAX = 500;

/** What is shown of `model`; `update` draws it anew, as often as one likes. */
export function timeline(id, model) {
  const lane = h("div", { class: "lane" });
  const earlier = svg("path", {});
  const together = svg("svg", { class: "together", preserveAspectRatio: "none", "aria-hidden": "true" }, earlier);
  const calls = h("div", { class: "lane calls", role: "group", "aria-label": "calls" }, together);
  const axis = h("div", { class: "axis", "aria-hidden": "true" });
  const table = h("div", { class: "stage-table", role: "list", "aria-label": "stages" });
  const node = h("div", { class: "stack" }, table, h("div", { class: "timeline" }, lane, calls, axis), h("div", { class: "legend" },
    STAGES.map((stage) => h("span", { "data-stage": stage }, h("i"), stage)),
    h("span", null, h("i", { class: "call" }), "a call of the agent"), h("span", null, h("i", { class: "other" }), "another call")));
  const made = new Map();
  const flying = new Map();
  /** Calls that are drawn together, and how. */
  let folded = 0;
  let path = "";

  function update(now = Date.now()) {
    const began = STAGES.map((stage) => model.stages[stage].started).find((at) => at !== null) ?? null;
    put(table, STAGES.map((stage) => {
      const one = model.stages[stage];
      const ms = one.state === "now" ? now - one.started : one.ms;
      return h("div", { "data-stage": stage, "data-state": one.state, role: "listitem" },
        h("div", { class: "name" }, stage, one.state === "now" && h("span", { class: "chip accent pulse" }, "now")),
        h("div", { class: "time" }, one.state === "waiting" ? "–" : duration(ms)));
    }));
    if (began === null) return;
    const end = model.finished ? Math.max(model.finished.at, began + 1) : Math.max(now, began + 1);
    const whole = end - began;
    const left = (at) => `${Math.max(0, ((at - began) / whole) * 100)}%`;
    const width = (ms) => `${Math.max(0, (ms / whole) * 100)}%`;
    put(lane, STAGES.map((stage) => {
      const one = model.stages[stage];
      if (one.started === null) return null;
      const ms = one.state === "now" ? end - one.started : one.ms ?? end - one.started;
      const wide = ms / whole > 0.07;
      return h("div", { class: `stage${one.state === "now" ? " now" : ""}`, "data-stage": stage, title: `${stage}: ${duration(ms)}`, style: { left: left(one.started), width: width(ms) } },
        wide ? `${stage} · ${duration(ms)}` : "");
    }));
    if (made.size + folded > model.calls.length) {
      // It began again.
      for (const mark of made.values()) mark.remove();
      made.clear();
      [folded, path] = [0, ""];
    }
    const before = folded;
    for (; model.calls.length - folded > MARKS_MAX; folded += 1) {
      const call = model.calls[folded];
      path += `M${Math.max(0, call.began - began)} 8h${Math.max(1, call.duration_ms)}`;
      made.get(call.id)?.remove();
      made.delete(call.id);
    }
    if (before !== folded) earlier.setAttribute("d", path);
    together.setAttribute("viewBox", `0 0 ${whole} 16`);
    for (const call of model.calls.slice(folded)) {
      let mark = made.get(call.id);
      if (!mark) {
        const kind = call.end !== "complete" && call.end !== "budget" ? " failed" : call.purpose === "agent" ? "" : " other";
        const text = `call ${call.index}, ${words(call.purpose)}: ${brief(call.prompt_tokens)} tokens in, ${brief(call.completion_tokens)} out, ${duration(call.duration_ms)}`;
        mark = h("a", { class: `call${kind}`, href: to(`rollouts/${id}/tokens`, { call: call.index }), title: text, "aria-label": text });
        made.set(call.id, mark);
        calls.append(mark);
      }
      mark.style.setProperty("left", left(call.began));
      mark.style.setProperty("width", width(call.duration_ms));
    }
    for (const [call, { at }] of model.open) {
      if (!flying.has(call)) {
        const mark = h("span", { class: "call now", title: "a call in flight" });
        flying.set(call, mark);
        calls.append(mark);
      }
      flying.get(call).style.setProperty("left", left(at));
      flying.get(call).style.setProperty("width", width(end - at));
    }
    for (const [call, mark] of flying) {
      if (model.open.has(call)) continue;
      mark.remove();
      flying.delete(call);
    }
    const step = STEPS.find((one) => whole / one <= 8) ?? whole / 6;
    const marks = [];
    for (let at = 0; at < whole - step * 0.4; at += step) marks.push(at);
    put(axis, marks.map((at) => h("span", { style: { left: `${(at / whole) * 100}%` } }, at === 0 ? "0" : tick(at))),
      h("span", { style: { left: "100%" } }, duration(whole)));
  }
  return { node, update };
}

function tick(ms) {
  if (ms < 1000) return `${ms} ms`;
  if (ms < 60000) return `${ms / 1000} s`;
  return `${Math.round(ms / 60000)} min`;
}
