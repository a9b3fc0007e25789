// Small marks that many views show.

import { h, svg } from "./dom.js";
import { duration, reward as rewardText, words } from "./format.js";
import { plain } from "./text.js";

export const STAGES = ["boot", "setup", "agent", "verify", "collect"];

/** A reward: a number beside a disc that is filled as far as it goes. `range` is the task's. */
export function rewardMark(value, { range = { min: 0, max: 1 }, large = false } = {}) {
  const has = value !== null && value !== undefined;
  const span = range.max - range.min || 1;
  const share = has ? Math.min(1, Math.max(0, (value - range.min) / span)) : 0;
  const level = !has ? "none" : share >= 1 ? "full" : share <= 0 ? "zero" : "part";
  const disc = svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("circle", { class: "ring", cx: 8, cy: 8, r: 6.6 }));
  if (share >= 1) {
    disc.append(svg("circle", { class: "part", cx: 8, cy: 8, r: 6.6 }));
    disc.append(svg("path", { d: "M4.8 8.2l2.2 2.2 4.2-4.6", fill: "none", stroke: "var(--panel)", "stroke-width": 1.8 }));
  } else if (share > 0) {
    const angle = 2 * Math.PI * share;
    const [x, y] = [8 + 6.6 * Math.sin(angle), 8 - 6.6 * Math.cos(angle)];
    disc.append(svg("path", { class: "part", d: `M8 8V1.4A6.6 6.6 0 ${share > 0.5 ? 1 : 0} 1 ${x.toFixed(2)} ${y.toFixed(2)}Z` }));
  } else if (has) {
    disc.append(svg("path", { d: "M5.4 5.4l5.2 5.2M10.6 5.4l-5.2 5.2", fill: "none", stroke: "currentColor", "stroke-width": 1.8 }));
  }
  return h("span", { class: `reward${large ? " large" : ""}`, "data-level": level }, disc,
    h("span", null, h("span", { class: "sr" }, "reward "), has ? rewardText(value) : "none"));
}

const ENDINGS = { completed: "good", budget: "warn", timeout: "bad", agent_error: "bad", setup_error: "bad", cancelled: "" };

/** Where a rollout is, or how it ended. */
export function stateChip(row) {
  if (row.state === "queued") {
    const before = row.queue_position;
    return h("span", { class: "chip" }, before === undefined || before === null ? "waits" : before === 0 ? "next" : `waits, ${before} before`);
  }
  if (row.state === "running") {
    const word = row.cancelling ? "stopping" : row.held_until_unix_ms ? "held" : row.stage ?? "runs";
    return h("span", { class: "chip accent pulse" }, word);
  }
  if (row.state === "interrupted") return h("span", { class: "chip bad" }, "interrupted");
  return h("span", { class: `chip ${ENDINGS[row.ended] ?? ""}` }, words(row.ended));
}

/** Five dots, one a stage. `states` maps a stage to `done` or `now`. */
export function stageDots(states) {
  const now = STAGES.find((stage) => states[stage] === "now");
  return h("span", { class: "stage-dots", role: "img", "aria-label": now ? `in stage ${now}` : "stages" },
    STAGES.map((stage) => h("i", { "data-stage": stage, "data-state": states[stage] ?? "waiting", title: stage })));
}

/** What failed, whole. */
export function faultBox(fault) {
  return h("section", { class: "panel failure", "aria-label": "failure" }, h("div", { class: "body" },
    h("div", { class: "row" }, h("span", { class: "chip bad" }, `${fault.owner}’s fault`),
      fault.stage && h("span", { class: "chip" }, `in ${fault.stage}`),
      h("code", null, fault.code),
      h("span", { class: "small muted" }, fault.retryable ? "may succeed when run again" : "would fail again")),
    h("p", { class: "what" }, plain(fault.message)),
    fault.causes?.length > 0 && h("ul", null, fault.causes.map((cause) => h("li", null, plain(cause)))),
    fault.hint && h("p", { class: "hint" }, plain(fault.hint))));
}

/** A request that failed, in the place of what it was to bring. */
export function failure(error, again) {
  return h("section", { class: "panel failure", role: "alert" }, h("div", { class: "body" },
    h("p", { class: "what" }, plain(error.message)),
    error.hint && h("p", { class: "hint" }, plain(error.hint)),
    again && h("p", { class: "hint" }, h("button", { type: "button", class: "button", onclick: again }, "Try again"))));
}

export function loading(what = "Loading") {
  return h("div", { class: "loading", role: "status" }, `${what}…`);
}

export function empty(title, ...children) {
  return h("div", { class: "empty" }, h("h2", null, title), children);
}

export function tile(label, value, more) {
  return h("div", { class: "tile" }, h("div", { class: "label" }, label), h("div", { class: "value" }, value),
    more !== undefined && more !== null && h("div", { class: "more" }, more));
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter((pair) => pair && pair[1] !== null && pair[1] !== undefined)
    .map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
}

const PURPOSES = { agent: "accent", title: "", summary: "", subagent: "", foreign: "warn" };

export function purposeChip(purpose) {
  return h("span", { class: `chip ${PURPOSES[purpose] ?? ""}` }, words(purpose));
}

/** What each flag says; those that keep a call out of training first. */
const FLAGS = {
  ids_disagree: "two sources of ids disagree",
  logprob_invalid: "a log-probability is not a finite number at or below 0",
  length_mismatch: "ids and log-probabilities differ in number",
  tokens_missing: "fewer or more ids than the endpoint counted",
  usage_missing: "the endpoint sent no count to check against",
  prompt_ids_missing: "no ids of the prompt",
  multiple_choices: "more than one choice",
  sampling_altered: "the agent bent the distribution",
  budget: "a budget answered in the endpoint’s place",
  logprobs_raw: "the log-probabilities are those before temperature",
  superseded: "a later attempt took its place",
  abandoned: "a twin with the same prompt was continued instead",
  sandbox_integrity: "recorded where the agent could have written it",
  capture_incomplete: "the captured reply could not be read in full",
  truncated: "ended by a token limit",
  request_changed: "sent again without what the endpoint refused",
  sampling_defaulted: "the neutral sampling set was sent, since none was asked for",
};
const HARMLESS = new Set(["truncated", "request_changed", "sampling_defaulted"]);

export function flagMeaning(flag) {
  return FLAGS[flag] ?? words(flag);
}

export function flagChip(flag) {
  return h("span", { class: `chip ${HARMLESS.has(flag) ? "" : "warn"}`, title: flagMeaning(flag) }, words(flag));
}

const UNTRAINED = {
  purpose: "it was made for something that is not trained",
  end: "it did not complete",
  level: "not every token was captured with its id and log-probability",
  truncated: "a token limit ended it, and such turns are dropped",
  empty: "nothing was sampled",
  unfit: "ids and log-probabilities do not fit each other",
};

/** Why a call is not trained, in words. */
export function whyUntrained(untrained) {
  if (untrained === null || untrained === undefined) return null;
  const why = typeof untrained === "object" ? untrained.flag ?? Object.values(untrained)[0] : untrained;
  return UNTRAINED[why] ?? flagMeaning(why);
}

/** What came of a command. */
export function exitChip(result) {
  if (!result) return h("span", { class: "chip accent pulse" }, "runs");
  const word = result.timed_out ? "timed out" : result.signal ? `signal ${result.signal}` : `exit ${result.exit_code}`;
  return h("span", { class: `chip ${result.exit_code === 0 ? "good" : "bad"}` }, word);
}

/** An elapsed time that goes on by itself, as long as it is shown. */
export function clock(sinceUnixMs, until = null) {
  const node = h("span", { class: "number" }, duration((until ?? Date.now()) - sinceUnixMs));
  if (until === null) {
    const timer = setInterval(() => {
      if (!node.isConnected) return clearInterval(timer);
      node.textContent = duration(Date.now() - sinceUnixMs);
    }, 100);
  }
  return node;
}
