// Curves and bars over the tokens of a rollout or of one call.

import { h, svg } from "../dom.js";
import { number, percent } from "../format.js";

/** Points of a curve, at most: beyond, each is a mean of several tokens. */
const POINTS = 160;

export function mean(values) {
  let sum = 0;
  let many = 0;
  for (const value of values) {
    if (value === null) continue;
    sum += value;
    many += 1;
  }
  return many === 0 ? null : sum / many;
}

/** Entropy of alternatives, in nats; the rest of the mass counts as one more. */
export function entropy(list) {
  if (!list || list.length === 0) return null;
  let sum = 0;
  let mass = 0;
  for (const { logprob } of list) {
    if (logprob === null) continue;
    const share = Math.exp(logprob);
    mass += share;
    sum -= share * logprob;
  }
  const rest = 1 - mass;
  return rest > 1e-9 ? sum - rest * Math.log(rest) : sum;
}

export function histogram(values) {
  const [low, bins] = [-8, 32];
  const counts = new Array(bins).fill(0);
  for (const value of values) counts[Math.min(bins - 1, Math.max(0, Math.floor(((Math.max(low, value) - low) / -low) * bins)))] += 1;
  // Most are near zero: a scale of logarithms shows the others too.
  const top = Math.log1p(Math.max(...counts));
  const text = `Histogram of ${values.length} log-probabilities: ${percent(values.filter((one) => one > -0.6931).length / values.length)} above one half`;
  return h("div", null, svg("svg", { class: "chart", viewBox: `0 0 ${bins * 10} 84`, preserveAspectRatio: "none", role: "img", "aria-label": text },
    counts.map((many, at) => {
      const height = top === 0 ? 0 : (Math.log1p(many) / top) * 80;
      return svg("rect", { class: "bar-1", x: at * 10 + 1, width: 8, y: 84 - height, height }, svg("title", null, `${number(low + (at * -low) / bins, 2)} to ${number(low + ((at + 1) * -low) / bins, 2)}: ${many}`));
    }), svg("line", { class: "zero", x1: 0, x2: bins * 10, y1: 83.5, y2: 83.5 })),
  h("div", { class: "chart-axis", "aria-hidden": "true" }, h("span", null, "≤ −8"), h("span", null, "−4"), h("span", null, "0")));
}

/**
 * A curve of `values`, one a token, where null is none. `onPick` is told the place that was clicked: of the tokens there, that
 * with the highest value. `mark` shows a place.
 */
export function along(values, what, onPick) {
  const size = Math.max(1, values.length / POINTS);
  const means = [];
  for (let at = 0; at < values.length; at += size) means.push(mean(values.slice(Math.floor(at), Math.max(Math.floor(at) + 1, Math.floor(at + size)))) ?? 0);
  const top = Math.max(...means, 0.1);
  const x = (at) => ((at + 0.5) / means.length) * 320;
  const points = means.map((value, at) => `${x(at).toFixed(1)} ${(80 - (value / top) * 74).toFixed(1)}`);
  const here = svg("line", { class: "here", y1: 0, y2: 84, visibility: "hidden" });
  const drawing = svg("svg", { class: "chart pickable", viewBox: "0 0 320 84", preserveAspectRatio: "none", role: "img", "aria-label": `${what}, at most ${number(top, 2)}`, onclick: (event) => {
    const box = drawing.getBoundingClientRect();
    const at = Math.min(means.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * means.length)));
    let best = Math.floor(at * size);
    for (let one = best; one < Math.min(values.length, Math.floor((at + 1) * size)); one += 1) if ((values[one] ?? -1) > (values[best] ?? -1)) best = one;
    onPick(best);
  } },
  svg("line", { class: "zero", x1: 0, x2: 320, y1: 80, y2: 80 }), here,
  means.length === 1 ? svg("circle", { class: "bar-1", cx: 160, cy: 80 - (means[0] / top) * 74, r: 3 }) : svg("path", { class: "line", d: `M${points.join("L")}` }));
  return {
    node: h("div", null, drawing, h("div", { class: "chart-axis", "aria-hidden": "true" }, h("span", null, "first"), h("span", null, `${what}; top ${number(top, 2)}`), h("span", null, "last"))),
    mark: (at) => {
      here.setAttribute("visibility", at === null ? "hidden" : "visible");
      if (at === null) return;
      for (const end of ["x1", "x2"]) here.setAttribute(end, x(Math.floor(at / size)).toFixed(1));
    },
  };
}
