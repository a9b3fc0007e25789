// The frame of the page: navigation, theme, keys of the keyboard, and which view is shown.

import { forgetKey, get, hasKey, ofBrowser, setKeyAsker } from "./api.js";
import { h, put, svg, toast } from "./dom.js";
import { failure, loading } from "./marks.js";
import { go, here, onAddress, to, words } from "./router.js";
// A view is loaded when it is first shown, and the others while nothing else is to be done.
const FILES = {
  rollouts: () => import("./views/rollouts.js"), rollout: () => import("./views/rollout.js"), groups: () => import("./views/groups.js"),
  compare: () => import("./views/compare.js"), board: () => import("./views/board.js"), run: () => import("./views/run.js"),
  machine: () => import("./views/machine.js"),
};

/** Addresses; the view that is shown at each and the file that it is in; the link that leads there. */
const VIEWS = [
  [/^$/, "rollouts", "rollouts", ""],
  [/^rollouts$/, "rollouts", "rollouts", ""],
  [/^rollouts\/([^/]+)(?:\/([^/]+))?$/, "rollout", "rollout", ""],
  [/^groups$/, "groups", "groups", "groups"],
  [/^groups\/([^/]+)$/, "group", "groups", "groups"],
  [/^compare\/([^/]+)\/([^/]+)$/, "compare", "compare", ""],
  [/^board$/, "board", "board", "board"],
  [/^run$/, "run", "run", "run"],
  [/^machine$/, "machine", "machine", "machine"],
];

async function load(file) {
  try {
    return await FILES[file]();
  } catch (cause) {
    throw Object.assign(new Error("a part of the page could not be loaded", { cause }), { hint: "The server may be another version by now, or not be there.", again: () => location.reload() });
  }
}

const LINKS = [["", "Rollouts", "r"], ["groups", "Groups", "g"], ["board", "Board", "b"], ["run", "Run", "n"], ["machine", "Machine", "m"]];

const main = h("main", { id: "main", tabindex: "-1" });
/** Says to those who listen which view is shown now. */
const heard = h("div", { class: "sr", role: "status" });
const dot = h("span", { class: "live-dot", "data-state": "wait", role: "status" });
const navigation = h("nav", { "aria-label": "Views" }, LINKS.map(([view, name, key]) =>
  h("a", { href: to(view), "data-view": view, title: `${name} (g ${key})` }, name)));
const running = h("span", { class: "count", hidden: true });
navigation.children[2].append(running);

/** Whether what is shown is what is. */
function setLive(state) {
  dot.dataset.state = state;
  dot.textContent = { live: "live", wait: "connecting", off: "not connected", none: "" }[state] ?? "";
  dot.hidden = state === "none";
}

// Light and dark

const THEMES = { auto: "dark", dark: "light", light: "auto" };
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const themeButton = h("button", { type: "button", class: "button quiet", onclick: () => setTheme(THEMES[theme()]) });

function theme() {
  return ofBrowser.get("dressage.theme") ?? "auto";
}

function setTheme(wanted) {
  ofBrowser.set("dressage.theme", wanted);
  const dark = wanted === "dark" || (wanted === "auto" && systemDark.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const icon = { auto: "M8 1.5a6.5 6.5 0 100 13z M8 1.5a6.5 6.5 0 010 13", light: "M8 4.5a3.5 3.5 0 100 7 3.5 3.5 0 000-7z", dark: "M13 9.8A5.8 5.8 0 016.2 3a5.8 5.8 0 106.8 6.8z" }[wanted];
  put(themeButton, svg("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" },
    svg("path", { d: icon, fill: wanted === "auto" ? "none" : "currentColor", stroke: "currentColor", "stroke-width": 1.4 }),
    wanted === "auto" && svg("path", { d: "M8 1.5a6.5 6.5 0 000 13z", fill: "currentColor" })));
  themeButton.setAttribute("aria-label", `Colours: ${wanted}`);
  themeButton.title = `Colours: ${wanted}`;
}
systemDark.addEventListener("change", () => setTheme(theme()));

// Keys of the API

setKeyAsker((wasWrong) => new Promise((resolve) => {
  const input = h("input", { type: "password", id: "key", autocomplete: "off", required: true, "aria-describedby": "key-note" });
  const dialog = h("dialog", { "aria-labelledby": "key-title" }, h("form", {
    class: "body",
    onsubmit: (event) => {
      event.preventDefault();
      if (input.value.trim()) end(input.value.trim());
    },
  },
  h("h2", { id: "key-title" }, "This server asks for a key"),
  h("div", { class: "field" }, h("label", { htmlFor: "key" }, "API key"), input,
    wasWrong && h("span", { class: "wrong", role: "alert" }, "That key is wrong."),
    h("span", { class: "note", id: "key-note" }, "It is kept for this tab until it is closed, and sent as a header.")),
  h("div", { class: "row" }, h("button", { class: "button first" }, "Go on"))));
  const end = (value) => {
    dialog.close();
    dialog.remove();
    setTimeout(setKeyButton);
    resolve(value);
  };
  dialog.addEventListener("cancel", () => end(null));
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
}));

const keyButton = h("button", { type: "button", class: "button quiet small", hidden: true, onclick: () => {
  forgetKey();
  location.reload();
} }, "Forget key");

function setKeyButton() {
  keyButton.hidden = !hasKey();
}

// Keys of the keyboard

const KEYS = [
  ["g r", "rollouts"], ["g g", "groups"], ["g b", "board"], ["g n", "run"], ["g m", "machine"],
  ["/", "search"], ["j  k", "next, previous in a list"], ["Enter", "open"], ["x", "take a rollout for comparing"],
  ["[  ]", "previous, next tab of a rollout"], ["← →", "previous, next token"], ["↑ ↓", "token in the turn before, after"],
  ["Enter  ⇧ Enter", "next, previous that was found"], ["Ctrl Enter", "run what the form says"], ["?", "this list"],
];

function help() {
  const dialog = h("dialog", { "aria-labelledby": "help-title" }, h("div", { class: "body" },
    h("h2", { id: "help-title" }, "Keys"),
    h("dl", { class: "facts" }, KEYS.map(([key, what]) => [h("dt", null, h("kbd", null, key)), h("dd", null, what)])),
    h("form", { method: "dialog" }, h("button", { class: "button", value: "close" }, "Close"))));
  dialog.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close();
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

let before = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const writes = event.target.closest?.("input:not([type=checkbox]), textarea, select, dialog");
  if (writes) {
    if (event.key === "Escape") event.target.blur?.();
    return;
  }
  const link = before === "g" && LINKS.find(([, , key]) => key === event.key);
  before = event.key === "g" && before !== "g" ? "g" : "";
  if (link) {
    event.preventDefault();
    go(to(link[0]));
  } else if (event.key === "?") {
    event.preventDefault();
    help();
  } else if (event.key === "/") {
    const search = main.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
      search.select();
    }
  } else if (event.key === "j" || event.key === "k") {
    const links = [...main.querySelectorAll("[data-item]")].filter((item) => item.offsetParent !== null);
    if (links.length === 0) return;
    const at = links.indexOf(document.activeElement);
    const next = at < 0 ? 0 : at + (event.key === "j" ? 1 : -1);
    links[Math.min(links.length - 1, Math.max(0, next))].focus();
    event.preventDefault();
  } else if (event.key === "x") {
    document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]")?.click();
  } else if (event.key === "[" || event.key === "]") {
    const tabs = [...main.querySelectorAll(".tabs a")];
    const at = tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
    if (at >= 0) {
      event.preventDefault();
      const next = tabs[(at + (event.key === "]" ? 1 : tabs.length - 1)) % tabs.length];
      next.click();
      next.focus({ preventScroll: true });
    }
  }
});

// Views

let leave = null;
let shown = "";

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function show() {
  const path = here().split("/").map(decoded).join("/");
  const found = VIEWS.map(([pattern, view, file, link]) => ({ match: pattern.exec(path), view, file, link })).find(({ match }) => match);
  for (const link of navigation.children) {
    if (found && link.dataset.view === found.link) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!found) {
    leave?.();
    leave = null;
    document.title = "Dressage";
    put(main, h("div", { class: "empty" }, h("h2", null, "There is nothing here"), h("a", { href: to("") }, "All rollouts")));
    return;
  }
  // A view that can show this address too is left in its place.
  const identity = `${found.view}/${found.match[1] ?? ""}/${found.view === "compare" ? found.match[2] : ""}`;
  if (identity === shown && leave?.change) {
    leave.change({ parts: found.match.slice(1), words: words() });
    return;
  }
  leave?.();
  shown = identity;
  const left = new AbortController();
  const stops = [];
  const mine = () => {
    left.abort();
    for (const stop of stops.splice(0)) stop();
  };
  // What a view does after it was left is not shown.
  const unlessLeft = (work) => (...given) => (left.signal.aborted ? undefined : work(...given));
  const page = {
    parts: found.match.slice(1),
    words: words(),
    signal: left.signal,
    setLive: unlessLeft(setLive),
    setTitle: unlessLeft((title) => {
      document.title = `${title} · Dressage`;
      heard.textContent = title;
    }),
    onLeave: (stop) => (left.signal.aborted ? stop() : stops.push(stop)),
    onChange: (work) => (mine.change = work),
    show: unlessLeft((...children) => put(main, ...children)),
  };
  // Whoever goes on by keyboard begins where the new view begins.
  if (leave) main.focus({ preventScroll: true });
  leave = mine;
  put(main, loading());
  setLive("none");
  window.scrollTo(0, 0);
  load(found.file).then((file) => (left.signal.aborted ? undefined : file[found.view](page))).catch((error) => {
    if (left.signal.aborted || error.name === "AbortError") return;
    put(main, failure(error, error.again ?? (() => {
      shown = "";
      show();
    })));
    if (!("hint" in error)) console.error(error);
  });
}

async function countRunning() {
  if (!document.hidden) {
    try {
      const queue = await get("api/v1/queue");
      const busy = queue.running + queue.waiting + queue.held;
      running.textContent = busy > 999 ? "999+" : busy;
      running.hidden = busy === 0;
      running.setAttribute("aria-label", `${busy} running or waiting`);
    } catch {
      running.hidden = true;
    }
  }
  setTimeout(countRunning, 5000);
}

setTheme(theme());
setKeyButton();
put(document.getElementById("page"),
  h("a", { class: "skip", href: "#main", onclick: (event) => {
    event.preventDefault();
    main.focus();
  } }, "To the content"),
  h("header", { class: "bar" },
    h("a", { class: "brand", href: to("") },
      svg("svg", { viewBox: "0 0 32 32", "aria-hidden": "true" }, svg("rect", { width: 32, height: 32, rx: 7, fill: "#1f4b99" }),
        svg("path", { d: "M8 24V8h7.5c5 0 8.5 3.2 8.5 8s-3.5 8-8.5 8H8z", fill: "none", stroke: "#fff", "stroke-width": 3 }),
        svg("circle", { cx: 14.5, cy: 16, r: 2.6, fill: "#f2b134" })), "Dressage"),
    navigation, h("span", { class: "space" }), dot, keyButton, themeButton,
    h("button", { type: "button", class: "button quiet", title: "Keys (?)", "aria-label": "Keys of the keyboard", onclick: help }, "?")),
  main, heard);
onAddress(show);
setTimeout(countRunning, 300);
setTimeout(() => Promise.allSettled(Object.values(FILES).map((file) => file())), 2000);
window.addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name === "AbortError") return event.preventDefault();
  toast(event.reason?.message ?? "Something failed", "bad");
});
