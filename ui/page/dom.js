// Making elements. Text is only ever text: nothing here, or anywhere on this page, reads markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (name in PROPERTIES) node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  add(node, children);
  return node;
}

// What is a property rather than an attribute.
const PROPERTIES = { value: 1, checked: 1, disabled: 1, selected: 1, indeterminate: 1, open: 1, htmlFor: 1, readOnly: 1 };

function add(node, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false) continue;
    if (Array.isArray(child)) add(node, child);
    else node.append(child instanceof Node ? child : String(child));
  }
}

/** An element: its name, attributes (`onclick` and its like are listeners), and children: nodes, texts, lists of them. */
export function h(name, props, ...children) {
  return fill(document.createElement(name), props, children);
}

/** An element of SVG. */
export function svg(name, props, ...children) {
  return fill(document.createElementNS(SVG, name), props, children);
}

/** Puts these children in the place of those that are there. */
export function put(node, ...children) {
  node.replaceChildren();
  add(node, children);
  return node;
}

/** Has `work` put others in the place of what is in `box`; who is at one of its controls is then at the same of the new ones. */
export function keepingFocus(box, work) {
  const key = (node) => [node.closest("[data-id]")?.dataset.id, node.localName, node.getAttribute("aria-label") ?? node.textContent].join(" ");
  const focused = box.contains(document.activeElement) ? document.activeElement : null;
  const wanted = focused && key(focused);
  work();
  if (!focused || document.activeElement === focused) return;
  const now = focused.isConnected ? focused : [...box.querySelectorAll("a, button, input, select, summary")].find((node) => key(node) === wanted);
  now?.focus({ preventScroll: true });
}

/** Runs `work` once in the next frame, however often it is asked for meanwhile; a page that is not shown has no frames. */
export function eachFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    const run = () => {
      if (!asked) return;
      asked = false;
      work();
    };
    if (document.hidden) setTimeout(run, 200);
    else requestAnimationFrame(run);
  };
}

/** Runs `work` after a pause in being asked. */
export function afterPause(work, ms) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), ms);
  };
}

/** Runs `work` at most once in so many milliseconds, and once more at the end. */
export function atMost(work, ms) {
  let timer = 0;
  let last = -Infinity;
  return () => {
    if (timer) return;
    const wait = Math.max(0, last + ms - performance.now());
    timer = setTimeout(() => {
      timer = 0;
      last = performance.now();
      work();
    }, wait);
  };
}

let said;

/** Says something at the edge of the page, to those who listen too. */
export function toast(text, kind = "") {
  said ??= document.body.appendChild(h("div", { class: "toasts", role: "status", "aria-live": "polite" }));
  const one = h("div", { class: `toast ${kind}` }, text);
  said.append(one);
  setTimeout(() => one.remove(), kind === "bad" ? 9000 : 4000);
}

/** Puts a text where it can be pasted from. Away from loopback a page without TLS is let by the older way only. */
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = h("textarea", { class: "sr", readOnly: true, value: text });
  const before = document.activeElement;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  before?.focus?.();
  if (!done) throw new Error("the browser did not copy it");
  return undefined;
}

/** A button that copies what `text` gives. */
export function copyButton(text, label = "Copy") {
  return h("button", {
    type: "button",
    class: "button small",
    onclick: async (event) => {
      const button = event.currentTarget;
      try {
        await copy(text());
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not allowed";
      }
      setTimeout(() => (button.textContent = label), 1500);
    },
  }, label);
}
