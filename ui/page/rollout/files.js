// Files that were collected, with colours; those that the task brought, with what was changed in them.

import { copyButton, h, put } from "../dom.js";
import { bytes } from "../format.js";
import { setWords } from "../router.js";
import { plain } from "../text.js";
import { difference, source } from "./source.js";

export function files(outcome, task, wanted) {
  const found = Object.entries(outcome?.files ?? {});
  const extra = outcome?.files_extra ?? [];
  const before = new Map();
  for (const [path, content] of Object.entries(task?.files ?? {})) {
    if (typeof content === "string") before.set(path.replace(/^(\/home\/user|~)\/workdir\//, "").replace(/^\.\//, ""), content);
  }
  // What the task brought and nobody found again; what is elsewhere than in the working directory is not looked for.
  if (outcome) for (const path of before.keys()) if (!/^[/~]/.test(path) && !(path in outcome.files) && !extra.includes(path)) found.push([path, null]);
  if (found.length === 0 && extra.length === 0) {
    return h("div", { class: "panel empty" }, h("h2", null, "No files"), h("p", null, outcome ? "Nothing was left in the working directory." : "Files are collected at the end of a rollout."));
  }
  const view = h("div");
  const kind = (path, text) => (text === null ? "removed" : !before.has(path) ? "new" : before.get(path) === text ? "same" : "changed");
  const colour = { changed: "warn", removed: "bad", new: "accent" };
  const links = found.map(([path, text]) => h("a", {
    href: `?file=${encodeURIComponent(path)}`, "data-item": true,
    onclick: (event) => {
      event.preventDefault();
      setWords({ file: path });
      show(path);
    },
  }, h("span", null, plain(path)), h("span", { class: `chip ${colour[kind(path, text)] ?? ""}` }, kind(path, text))));

  function show(path) {
    const place = found.findIndex(([name]) => name === path);
    const [name, text] = found[Math.max(0, place)] ?? [];
    if (name === undefined) return;
    for (const [at, link] of links.entries()) {
      if (found[at][0] === name) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    const isBinary = /\u0000/.test((text ?? "").slice(0, 8000));
    const changed = !isBinary && ["changed", "removed"].includes(kind(name, text));
    const body = h("div");
    const whole = () => put(body, isBinary ? h("div", { class: "empty" }, "It is not text.") : source(text ?? before.get(name), name));
    const changes = () => put(body, difference(before.get(name), text ?? "", name));
    const buttons = changed && h("div", { class: "row" },
      h("button", { type: "button", class: "button small", onclick: changes }, "Difference"), h("button", { type: "button", class: "button small", onclick: whole }, text === null ? "As it was" : "Whole file"));
    put(view, h("header", { class: "row body" }, h("code", { class: "wrap" }, plain(name)), h("span", { class: "small faint" }, text === null ? "removed" : bytes(new Blob([text]).size)), h("span", { class: "space" }), buttons, text !== null && !isBinary && copyButton(() => text)), body);
    if (changed) changes();
    else whole();
  }
  if (found.length > 0) show(wanted ?? (found.find(([path]) => !/(^|\/)(__pycache__|node_modules|\.git)\//.test(path)) ?? found[0])?.[0]);
  return h("div", { class: "panel files" }, h("ul", null, links.map((link) => h("li", null, link)),
    extra.length > 0 && h("li", null, h("details", null, h("summary", null, `${extra.length} not collected`), extra.slice(0, 500).map((path) => h("div", { class: "mono faint wrap" }, plain(path)))))), view);
}
