// JSON as a tree, whose branches are made when they are opened.

import { h } from "../dom.js";
import { plain } from "../text.js";

const LONG = 2000;

function leaf(value) {
  if (typeof value !== "string") return h("span", { class: "n" }, String(value));
  const node = h("span", { class: "s" });
  const text = JSON.stringify(value);
  if (text.length <= LONG) {
    node.append(plain(text));
    return node;
  }
  const more = h("button", { type: "button", class: "button small", onclick: () => node.replaceChildren(plain(text.slice(0, 400_000))) }, `${text.length} characters`);
  node.append(plain(text.slice(0, LONG)), "… ", more);
  return node;
}

export function jsonTree(value, open = 1) {
  return h("div", { class: "json", tabindex: "0", role: "group", "aria-label": "JSON" }, branch(null, value, open));
}

function branch(key, value, open) {
  const name = key === null ? null : [h("span", { class: "key" }, plain(key)), ": "];
  if (value === null || typeof value !== "object") return h("div", { class: "leaf" }, name, leaf(value));
  const entries = Array.isArray(value) ? value.map((one, place) => [String(place), one]) : Object.entries(value);
  const size = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  const node = h("details", null, h("summary", null, name, h("span", { class: "faint" }, size)));
  let made = 0;
  const fill = () => {
    const to = Math.min(entries.length, made + 200);
    node.append(...entries.slice(made, to).map(([one, inner]) => branch(one, inner, open - 1)));
    made = to;
    if (made < entries.length) {
      const more = h("button", { type: "button", class: "button small", onclick: () => {
        more.remove();
        fill();
      } }, `${entries.length - made} more`);
      node.append(more);
    }
  };
  node.addEventListener("toggle", () => {
    if (node.open && made === 0) fill();
  });
  if (open > 0) {
    node.open = true;
    fill();
  }
  return node;
}
