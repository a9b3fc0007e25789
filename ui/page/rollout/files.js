// Files that were collected, with colours; those that the task brought, with what was changed in them.

import { h, put } from "../dom.js";
import { bytes } from "../format.js";
import { setWords } from "../router.js";
import { pieces, plain } from "../text.js";

const LINES_MAX = 3000;

export function files(outcome, task, wanted) {
  const found = Object.entries(outcome?.files ?? {});
  const extra = outcome?.files_extra ?? [];
  if (found.length === 0 && extra.length === 0) {
    return h("div", { class: "panel empty" }, h("h2", null, "No files"), h("p", null, outcome ? "Nothing was left in the working directory." : "Files are collected at the end of a rollout."));
  }
  const before = new Map();
  for (const [path, content] of Object.entries(task?.files ?? {})) {
    const text = typeof content === "string" ? content : null;
    if (text !== null) before.set(path.replace(/^(\/home\/user|~)\/workdir\//, "").replace(/^\.\//, ""), text);
  }
  const view = h("div");
  const kind = (path, text) => (!before.has(path) ? "new" : before.get(path) === text ? "same" : "changed");
  const links = found.map(([path, text]) => h("a", {
    href: `?file=${encodeURIComponent(path)}`, "data-item": true,
    onclick: (event) => {
      event.preventDefault();
      setWords({ file: path });
      show(path);
    },
  }, h("span", null, plain(path)), h("span", { class: `chip ${kind(path, text) === "changed" ? "warn" : ""}` }, kind(path, text))));

  function show(path) {
    const place = found.findIndex(([name]) => name === path);
    const [name, text] = found[Math.max(0, place)] ?? [];
    if (name === undefined) return;
    for (const [at, link] of links.entries()) {
      if (found[at][0] === name) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    const isBinary = /\u0000/.test(text.slice(0, 8000));
    const changed = kind(name, text) === "changed";
    const body = h("div");
    const whole = () => put(body, isBinary ? h("div", { class: "empty" }, "It is not text.") : source(text, name));
    const difference = () => put(body, diffView(before.get(name), text));
    const buttons = changed && h("div", { class: "row" },
      h("button", { type: "button", class: "button small", onclick: difference }, "Difference"), h("button", { type: "button", class: "button small", onclick: whole }, "Whole file"));
    put(view, h("header", { class: "row body" }, h("code", null, plain(name)), h("span", { class: "small faint" }, bytes(new Blob([text]).size)), buttons), body);
    if (changed) difference();
    else whole();
  }
  show(wanted ?? (found.find(([path]) => !/(^|\/)(__pycache__|node_modules|\.git)\//.test(path)) ?? found[0])?.[0]);
  return h("div", { class: "panel files" }, h("ul", null, links.map((link) => h("li", null, link)),
    extra.length > 0 && h("li", null, h("details", null, h("summary", null, `${extra.length} not collected`), extra.slice(0, 500).map((path) => h("div", { class: "mono faint wrap" }, plain(path)))))), view);
}

function numbered(lines, from = 0) {
  return lines.map((nodes, place) => h("div", { class: "l" }, h("span", null, from + place + 1), h("span", null, nodes)));
}

function source(text, name) {
  const lines = text.split("\n");
  if (lines[lines.length - 1] === "") lines.pop();
  const node = h("div", { class: "source", tabindex: "0", role: "group", "aria-label": `content of ${plain(name)}` });
  const language = languageOf(name);
  const state = { string: null };
  let done = 0;
  const more = h("button", { type: "button", class: "button small" });
  const fill = () => {
    const to = Math.min(lines.length, done + LINES_MAX);
    more.remove();
    node.append(...numbered(lines.slice(done, to).map((line) => coloured(line, language, state)), done));
    done = to;
    if (done < lines.length) {
      more.textContent = `${lines.length - done} more lines`;
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

const TOKEN = /("""|'''|"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|`(?:\\.|[^`\\])*`?)|(#.*|\/\/.*)|(\b\d[\w.]*\b)|([A-Za-z_$][\w$]*)/g;

/** Nodes for a line. Strings of three quotes go on over lines: `state` knows. */
function coloured(line, language, state) {
  if (!language || line.length > 4000) return pieces(line, false);
  const nodes = [];
  const say = (text, kind) => {
    if (text) nodes.push(kind ? h("span", { class: kind }, pieces(text, false)) : pieces(text, false));
  };
  let from = 0;
  if (state.string) {
    const end = line.indexOf(state.string);
    if (end < 0) {
      say(line, "s");
      return nodes;
    }
    from = end + 3;
    say(line.slice(0, from), "s");
    state.string = null;
  }
  TOKEN.lastIndex = from;
  for (let found = TOKEN.exec(line); found; found = TOKEN.exec(line)) {
    const [text, string, comment, number, word] = found;
    if (comment && ((comment[0] === "#" && !language.hash) || (comment[0] === "/" && !language.slashes))) {
      TOKEN.lastIndex = found.index + 1;
      continue;
    }
    say(line.slice(from, found.index));
    from = found.index + text.length;
    if (string && (string === '"""' || string === "'''") && language.triple) {
      const end = line.indexOf(string, from);
      if (end < 0) {
        state.string = string;
        say(line.slice(found.index), "s");
        return nodes;
      }
      from = end + 3;
      say(line.slice(found.index, from), "s");
      TOKEN.lastIndex = from;
    } else if (string) say(text, "s");
    else if (comment) say(text, "c");
    else if (number) say(text, "n");
    else say(text, language.words.has(word) ? "k" : line[from] === "(" ? "f" : null);
  }
  say(line.slice(from));
  return nodes;
}

/** Lines that are the same in both: the longest common subsequence, by Myers' way from both ends. */
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

const CONTEXT = 4;

function diffView(before, after) {
  const changes = diff(before.split("\n"), after.split("\n"));
  const near = changes.map(() => false);
  changes.forEach(([sign], at) => {
    if (sign !== " ") for (let one = Math.max(0, at - CONTEXT); one <= Math.min(changes.length - 1, at + CONTEXT); one += 1) near[one] = true;
  });
  const lines = [];
  let number = 0;
  let gap = false;
  changes.forEach(([sign, text], at) => {
    if (sign !== "-") number += 1;
    if (!near[at]) {
      if (!gap) lines.push(h("div", { class: "l" }, h("span", null, "…"), h("span")));
      gap = true;
      return;
    }
    gap = false;
    lines.push(h("div", { class: `l ${sign === "+" ? "add" : sign === "-" ? "remove" : ""}` }, h("span", null, sign === "-" ? "" : number), h("span", null, pieces(text, false))));
  });
  return h("div", { class: "source", tabindex: "0", role: "group", "aria-label": "difference" }, lines);
}
