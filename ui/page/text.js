// Text that agents, models and programs wrote, shown as text and nothing else: characters that would not be seen, or would
// turn others around, are shown by a sign; colours of terminals are classes; what is very long comes a part at a time.

import { h } from "./dom.js";
import { bytes } from "./format.js";

/** Characters of a text that are shown before one asks for more. */
const PART = 60_000;

// Controls but tab and line feed; marks that set or turn the direction of writing; what has no width; surrogates alone.
// eslint-disable-next-line no-control-regex
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/u;
// eslint-disable-next-line no-control-regex
const PIECES = /\u001b\[([0-9;:]*)m|\r\n|([\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}])/gu;

const NAMES = {
  0x200b: "ZWSP", 0x200c: "ZWNJ", 0x200d: "ZWJ", 0x200e: "LRM", 0x200f: "RLM", 0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF",
  0x202d: "LRO", 0x202e: "RLO", 0x2066: "LRI", 0x2067: "RLI", 0x2068: "FSI", 0x2069: "PDI", 0x2028: "LS", 0x2029: "PS",
  0xfeff: "BOM", 0xad: "SHY", 0x61c: "ALM", 0x7f: "␡",
};

/** A sign for a character that cannot be seen. */
export function signOf(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return NAMES[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** The same text, where it has nothing to hide; else with signs, as one string. For titles and the like. */
export function plain(text) {
  const string = String(text);
  if (!HIDDEN.test(string)) return string;
  return string.replace(new RegExp(HIDDEN.source, "gu"), (character) => signOf(character));
}

function style(state, codes) {
  const parts = codes === "" ? ["0"] : codes.split(/[;:]/);
  for (let place = 0; place < parts.length; place += 1) {
    const code = Number(parts[place]);
    if (code === 0) state.clear();
    else if (code === 1) state.set("weight", "ansi-bold");
    else if (code === 2) state.set("weight", "ansi-faint");
    else if (code === 3) state.set("slant", "ansi-italic");
    else if (code === 4) state.set("line", "ansi-under");
    else if (code === 22) state.delete("weight");
    else if (code === 23) state.delete("slant");
    else if (code === 24) state.delete("line");
    else if (code === 39) state.delete("colour");
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) state.set("colour", `ansi-${code % 10}`);
    else if (code === 38 || code === 48) place += parts[place + 1] === "5" ? 2 : 4;
  }
  return [...state.values()].join(" ");
}

/** Nodes for a text, with `colours` of terminals where wanted. */
export function pieces(text, colours = true) {
  if (!HIDDEN.test(text)) return [text];
  const nodes = [];
  const state = new Map();
  let classes = "";
  let from = 0;
  const say = (string) => {
    if (string) nodes.push(classes ? h("span", { class: classes }, string) : string);
  };
  for (const found of text.matchAll(PIECES)) {
    say(text.slice(from, found.index));
    from = found.index + found[0].length;
    if (found[1] !== undefined && colours) classes = style(state, found[1]);
    else if (found[0] === "\r\n") say("\n");
    else if (found[1] !== undefined) nodes.push(h("span", { class: "sign-c" }, "␛"), found[0].slice(1));
    else nodes.push(h("span", { class: "sign-c", title: "a character that cannot be seen" }, signOf(found[2])));
  }
  say(text.slice(from));
  return nodes;
}

/** A block of text that may be long: its beginning, and a button for more. */
export function block(text, { tag = "div", kind = "text", colours = true, end = false, part = PART } = {}) {
  const string = String(text ?? "");
  const body = h(tag, { class: kind, tabindex: kind.startsWith("output") ? "0" : undefined });
  if (string.length <= part) {
    body.append(...pieces(string, colours));
    return body;
  }
  // Of output the end tells most.
  let from = end ? cut(string, string.length - part) : 0;
  let to = end ? string.length : cut(string, part);
  const more = h("button", { type: "button", class: "button small more" });
  const label = () => {
    const left = end ? from : string.length - to;
    more.textContent = `${end ? "Earlier" : "More"}: ${bytes(left)} are not shown`;
    more.hidden = left === 0;
  };
  more.addEventListener("click", () => {
    if (end) {
      const before = cut(string, Math.max(0, from - part * 4));
      body.prepend(...pieces(string.slice(before, from), colours));
      from = before;
    } else {
      const after = cut(string, Math.min(string.length, to + part * 4));
      body.append(...pieces(string.slice(to, after), colours));
      to = after;
    }
    label();
  });
  body.append(...pieces(string.slice(from, to), colours));
  label();
  return h("div", null, end ? [more, body] : [body, more]);
}

/** A place that is not within a pair of surrogates. */
function cut(string, place) {
  const code = string.charCodeAt(place);
  return code >= 0xdc00 && code <= 0xdfff ? place + 1 : place;
}
