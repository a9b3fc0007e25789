// Source text: colours by what the name of a file says of its language, and what differs between two texts.

import { h } from "../dom.js";
import { pieces, plain } from "../text.js";

/** Lines that are shown before one asks for more. */
const LINES_MAX = 3000;

function numbered(lines, from = 0) {
  return lines.map((nodes, place) => h("div", { class: "l" }, h("span", null, from + place + 1), h("span", null, nodes)));
}

/** A file with numbers and colours; a long one a part at a time. */
export function source(text, name) {
  const all = lines(text);
  const node = h("div", { class: "source", tabindex: "0", role: "group", "aria-label": `content of ${plain(name)}` });
  const language = languageOf(name);
  const state = beginning();
  let done = 0;
  const more = h("button", { type: "button", class: "button small" });
  const fill = () => {
    const to = Math.min(all.length, done + LINES_MAX);
    more.remove();
    node.append(...numbered(all.slice(done, to).map((line) => coloured(line, language, state)), done));
    done = to;
    if (done < all.length) {
      more.textContent = `${all.length - done} more lines`;
      node.append(more);
    }
  };
  more.addEventListener("click", fill);
  fill();
  return node;
}

const WORDS = {
  python: "and as assert async await break class continue def del elif else except finally for from global if import in is lambda match None nonlocal not or pass raise return True False try while with yield",
  js: "async await break case catch class const continue default delete do else export extends false finally for from function if import in instanceof let new null of return static super switch this throw true try typeof undefined var void while yield interface type enum implements readonly public private",
  rust: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while",
  c: "auto bool break case char class const continue default delete do double else enum extern false float for if inline int long namespace new nullptr private public return short signed sizeof static struct switch template this throw true try typedef union unsigned using virtual void while include define package func go defer chan range map interface import var",
  shell: "if then else elif fi for in do done while case esac function return exit export local set test echo cd",
  json: "true false null",
};

function languageOf(name) {
  const end = name.toLowerCase().split(".").pop();
  const by = { py: "python", pyi: "python", js: "js", mjs: "js", cjs: "js", ts: "js", tsx: "js", jsx: "js", rs: "rust", c: "c", h: "c", cc: "c", cpp: "c", hpp: "c", java: "c", go: "c", cs: "c", sh: "shell", bash: "shell", toml: "shell", yaml: "shell", yml: "shell", ini: "shell", cfg: "shell", json: "json" }[end];
  if (!by) return null;
  return { words: new Set(WORDS[by].split(" ")), hash: ["python", "shell"].includes(by), slashes: ["js", "rust", "c"].includes(by), triple: by === "python", ticks: by === "js" };
}

const TOKEN = /("""|'''|"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|`(?:\\.|[^`\\])*`?)|(#.*|\/\/.*|\/\*)|(\b\d[\w.]*\b)|([A-Za-z_$][\w$]*)/g;

/** What goes on over lines: a string of three quotes, a comment. */
const beginning = () => ({ until: null, kind: null });

/** Nodes for a line. What began in a line before is in `state`. */
function coloured(line, language, state) {
  if (!language || line.length > 4000) return pieces(line, false);
  const nodes = [];
  const say = (text, kind) => {
    if (text) nodes.push(kind ? h("span", { class: kind }, pieces(text, false)) : pieces(text, false));
  };
  let from = 0;
  /** Says what begins at `start` and ends with `until`, here or in a later line; gives whether it ended. */
  const over = (start, search, until, kind) => {
    const end = line.indexOf(until, search);
    Object.assign(state, end < 0 ? { until, kind } : beginning());
    from = end < 0 ? line.length : end + until.length;
    say(line.slice(start, from), kind);
    TOKEN.lastIndex = from;
    return end >= 0;
  };
  TOKEN.lastIndex = 0;
  if (state.until && !over(0, 0, state.until, state.kind)) return nodes;
  for (let found = TOKEN.exec(line); found; found = TOKEN.exec(line)) {
    const [text, string, comment, number, word] = found;
    if (comment && ((comment[0] === "#" && !language.hash) || (comment[0] === "/" && !language.slashes))) {
      TOKEN.lastIndex = found.index + 1;
      continue;
    }
    say(line.slice(from, found.index));
    from = found.index + text.length;
    if (string && (string === '"""' || string === "'''") && language.triple) {
      if (!over(found.index, from, string, "s")) return nodes;
    } else if (comment?.startsWith("/*")) {
      if (!over(found.index, found.index + 2, "*/", "c")) return nodes;
    } else if (string) say(text, "s");
    else if (comment) say(text, "c");
    else if (number) say(text, "n");
    else say(text, language.words.has(word) ? "k" : line[from] === "(" ? "f" : null);
  }
  say(line.slice(from));
  return nodes;
}

/** Lines that are the same in both, and those of one alone: the longest common subsequence, but for what both begin and end with. */
export function diff(before, after) {
  const [a, b] = [before, after];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const out = a.slice(0, start).map((line) => [" ", line]);
  const [x, y] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  if (x.length * y.length > 4_000_000) {
    // It would take long, and would be no help.
    out.push(...x.map((line) => ["-", line]), ...y.map((line) => ["+", line]));
  } else {
    const width = y.length + 1;
    const table = new Uint32Array((x.length + 1) * width);
    for (let i = x.length - 1; i >= 0; i -= 1) {
      for (let j = y.length - 1; j >= 0; j -= 1) {
        table[i * width + j] = x[i] === y[j] ? table[(i + 1) * width + j + 1] + 1 : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
      }
    }
    let [i, j] = [0, 0];
    while (i < x.length || j < y.length) {
      if (i < x.length && j < y.length && x[i] === y[j]) {
        out.push([" ", x[i]]);
        i += 1;
        j += 1;
      } else if (i < x.length && (j >= y.length || table[(i + 1) * width + j] >= table[i * width + j + 1])) {
        out.push(["-", x[i]]);
        i += 1;
      } else {
        out.push(["+", y[j]]);
        j += 1;
      }
    }
  }
  out.push(...a.slice(a.length - end).map((line) => [" ", line]));
  return out;
}

/** Lines that are shown around what differs. */
const CONTEXT = 4;

/** What differs between two texts, with colours; what is far from any change is left out, and said to be. */
export function difference(before, after, name) {
  const changes = diff(lines(before), lines(after));
  const near = changes.map(() => false);
  changes.forEach(([sign], at) => {
    if (sign !== " ") for (let one = Math.max(0, at - CONTEXT); one <= Math.min(changes.length - 1, at + CONTEXT); one += 1) near[one] = true;
  });
  const language = languageOf(name);
  const [old, now] = [beginning(), beginning()];
  const nodes = [];
  let number = 0;
  let left = 0;
  const gap = () => {
    if (left > 0) nodes.push(h("div", { class: "l gap" }, h("span", null, "⋯"), h("span", null, left === 1 ? "a line is the same" : `${left} lines are the same`)));
    left = 0;
  };
  changes.forEach(([sign, text], at) => {
    if (sign !== "-") number += 1;
    const line = coloured(text, language, sign === "-" ? old : now);
    if (sign === " ") Object.assign(old, now);
    if (!near[at]) {
      left += 1;
      return;
    }
    gap();
    nodes.push(h("div", { class: `l ${sign === "+" ? "add" : sign === "-" ? "remove" : ""}` }, h("span", null, sign === "-" ? "" : number), h("span", null, line)));
  });
  gap();
  if (before !== "" && after !== "" && before.endsWith("\n") !== after.endsWith("\n")) {
    nodes.push(h("div", { class: "l gap" }, h("span"), h("span", null, `only ${after.endsWith("\n") ? "the new text" : "the old text"} ends with a line feed`)));
  }
  return h("div", { class: "source", tabindex: "0", role: "group", "aria-label": `difference of ${plain(name)}` }, nodes);
}

/** A line feed at the end begins no line. */
function lines(text) {
  if (text === "") return [];
  const all = text.split("\n");
  if (all[all.length - 1] === "") all.pop();
  return all;
}

/** A short text in colours, without numbers. */
export function snippet(text, name) {
  const [language, state] = [languageOf(name), beginning()];
  const nodes = text.split("\n").flatMap((line, at) => [at > 0 ? "\n" : "", coloured(line, language, state)]);
  return h("div", { class: "text mono" }, nodes);
}
