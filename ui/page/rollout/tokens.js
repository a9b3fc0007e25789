// Every token of a rollout: what was sampled, coloured by its log-probability, between what was context. Only what is near the
// window is in the document, so that the number of tokens does not matter.

import { h, put, toast } from "../dom.js";
import { brief, count, duration, number, percent, words } from "../format.js";
import { flagChip, purposeChip, whyUntrained } from "../marks.js";
import { setWords, to } from "../router.js";
import { plain, signOf } from "../text.js";
import { along, entropy, histogram, mean } from "./charts.js";
import { fetchDocument } from "./document.js";

/** Tokens of a chunk, about; it ends at a line feed where there is one. */
const CHUNK = 400;
const CHUNK_MIN = 200;
const CHUNK_MAX = 700;

/** The lowest log-probability of each colour but the last: 95, 80, 50, 20, 5 and 1 percent. */
const BOUNDS = [-0.0513, -0.2231, -0.6931, -1.6094, -2.9957, -4.6052];
const SCALE = ["≥95%", "≥80%", "≥50%", "≥20%", "≥5%", "≥1%", "<1%"];

function level(logprob) {
  let at = 0;
  while (at < BOUNDS.length && logprob < BOUNDS[at]) at += 1;
  return at;
}

const CONTROL = /^(<\|[^>]*\|>|<\/?[A-Za-z_][\w.-]*>|\[[A-Z_/]+\]|<｜[^>]*｜>|<[a-z]+_of_[a-z]+>)$/;

/** Sampled tokens whose alternatives are read before anybody asks for one. */
const AT_ONCE_MAX = 20_000;

/** Where chunks begin, over texts of tokens. */
export function chunks(texts, length) {
  const starts = [];
  let from = 0;
  while (from < length) {
    starts.push(from);
    let end = Math.min(length, from + CHUNK_MAX);
    for (let at = from + CHUNK_MIN; at < Math.min(length, from + CHUNK_MAX); at += 1) {
      if (at >= from + CHUNK && !texts) {
        end = at;
        break;
      }
      if (texts?.[at]?.includes("\n")) {
        end = at + 1;
        break;
      }
    }
    from = end;
  }
  return starts;
}

/** `reread` takes a later document of the same rollout: what is there stays in its place. */
export function tokens(page, id, trajectory, wanted) {
  let calls = [];
  const list = h("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": "Tokens; the arrow keys go from one to the next", "aria-describedby": "token-help" });
  const none = h("div", { class: "panel empty" }, h("h2", null, "No calls yet"), h("p", null, "Tokens are here as soon as the first call has ended."));
  const inspector = h("div", { class: "body stack", "aria-live": "polite" });
  const parts = new Map();
  let vocabulary = null;
  let selected = null;
  let full = null;
  let fullAsked = null;
  let found = null;

  // Chunks

  const heights = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const part = entry.target.tokens;
      if (entry.isIntersecting && !part.filled) fill(part);
      else if (!entry.isIntersecting && part.filled && part !== selected?.part) drop(part);
    }
  }, { rootMargin: "1500px 0px" });

  /** About so many lines of 90 characters; what was seen once has its own height. */
  function estimate(part) {
    let characters = 0;
    let lines = 1;
    const { texts } = part;
    for (let at = part.from; at < part.to; at += 1) {
      const text = texts ? texts[at] ?? "" : "      ";
      characters += text.length;
      if (text.includes("\n")) lines += 1;
    }
    return Math.max(lines, Math.ceil(characters / 95)) * 24;
  }

  function chunk(part) {
    const node = h("div", { class: "chunk" });
    node.tokens = part;
    part.node = node;
    node.style.setProperty("min-height", `${estimate(part)}px`);
    heights.observe(node);
    return node;
  }

  function fill(part) {
    part.filled = true;
    const fragment = document.createDocumentFragment();
    for (let at = part.from; at < part.to; at += 1) fragment.append(token(part, at));
    part.node.style.removeProperty("min-height");
    part.node.append(fragment);
  }

  function drop(part) {
    part.node.style.setProperty("min-height", `${part.node.offsetHeight}px`);
    part.filled = false;
    part.node.replaceChildren();
  }

  function token(part, at) {
    const text = part.texts?.[at];
    const node = document.createElement("span");
    let classes = "t";
    if (text === undefined || text === "") {
      classes += " id";
      node.textContent = part.ids?.[at] === undefined ? "∅" : String(part.ids[at]);
    } else {
      if (CONTROL.test(text)) classes += " control";
      write(node, text);
    }
    if (part.logprobs) {
      const logprob = part.logprobs[at];
      if (logprob === null || logprob === undefined) classes += " lp-none";
      else {
        const of = level(logprob);
        if (of > 0) classes += ` lp-${of}`;
      }
    }
    if (found !== null && part.ids?.[at] === found) classes += " found";
    if (selected?.part === part && selected.at === at) classes += " on";
    node.className = classes;
    node.dataset.at = at;
    return node;
  }

  function write(node, text) {
    if (!text.includes("\n")) {
      node.textContent = plain(text);
      return;
    }
    const lines = text.split("\n");
    lines.forEach((line, place) => {
      if (place > 0) {
        const mark = document.createElement("span");
        mark.className = "nl";
        mark.textContent = "↵";
        mark.ariaHidden = "true";
        node.append(mark, "\n");
      }
      if (line) node.append(plain(line));
    });
  }

  // Turns

  function turn(call) {
    const trained = h("div", { class: "trained" });
    const own = { call, parts: [], node: null, head: h("div"), showContext: null };
    parts.set(call.index, own);
    const texts = call.tokens.length > 0 ? call.tokens : null;
    const length = lengthOf(call);
    if (length === 0) {
      trained.append(h("span", { class: "muted" }, call.meta.level === "text" ? "The endpoint sent neither ids nor log-probabilities: there are no tokens to show." : "Nothing was sampled."));
    }
    const starts = chunks(texts, length);
    starts.forEach((from, place) => {
      const part = { own, texts, ids: call.ids, logprobs: call.logprobs, from, to: starts[place + 1] ?? length, context: false, filled: false, node: null };
      own.parts.push(part);
      trained.append(chunk(part));
    });
    head(own);
    own.node = h("section", { class: "turn", id: `call-${call.index}`, "aria-label": `call ${call.index}` }, own.head, context(own), trained);
    return own.node;
  }

  const lengthOf = (call) => Math.max(call.ids.length, call.tokens.length);

  /** What is said of a turn; it changes when the other calls are known. */
  function head(own) {
    const { call } = own;
    const length = lengthOf(call);
    const why = call.trainable ? null : whyUntrained(call.untrained);
    put(own.head, h("header", null, h("b", null, `call ${call.index}`), purposeChip(call.meta.purpose),
      h("span", { class: `chip ${call.trainable ? "good" : "warn"}` }, call.trainable ? "trained" : "not trained"),
      h("span", { class: "muted number" }, `${count(length)} sampled, ${duration(call.meta.duration_ms)}`),
      call.first?.finish_reason && h("span", { class: "chip" }, words(call.first.finish_reason)),
      call.flags.map(flagChip),
      h("span", { class: "space" }),
      length > 0 && call.logprobs.length > 0 && h("span", { class: "small muted number", title: "mean of the log-probabilities" }, `mean ${number(mean(call.logprobs))}`)),
    why && h("div", { class: "why" }, `Not trained: ${why}.`));
  }

  /** Shows a later document: turns that are there stay, and those that are new come to the end. */
  function reread(document) {
    trajectory = document;
    calls = trajectory.calls;
    vocabulary = null;
    full = null;
    fullAsked = null;
    for (const call of calls) {
      const own = parts.get(call.index);
      if (own) {
        own.call = call;
        head(own);
      } else list.append(turn(call));
    }
    put(jump, calls.map((call) => h("option", { value: String(call.index) }, `call ${call.index} · ${words(call.meta.purpose)} · ${brief(lengthOf(call))}`)));
    put(node, calls.length === 0 ? none : view);
    node.className = calls.length === 0 ? "" : "columns";
    if (selected) jump.value = String(selected.part.own.call.index);
    scope = null;
    drawCharts();
    const sampled = calls.reduce((sum, call) => sum + lengthOf(call), 0);
    if (sampled > 0 && sampled <= AT_ONCE_MAX) readAlternatives();
  }

  /** The prompt: what of it is new since the call it goes on from, and all of it; both folded. */
  function context(own) {
    const { call } = own;
    const length = trajectory.promptLength(call);
    const before = call.prompt?.base !== null && call.prompt ? trajectory.call(call.prompt.base) : null;
    const shared = call.prompt?.shared ?? 0;
    const broken = call.prefix_break;
    const label = before
      ? `context: ${count(length)} tokens, ${count(call.prompt.tail.length)} of them not in call ${before.index}`
      : `context: ${count(length)} tokens`;
    const body = h("div");
    const details = h("details", { class: "context" }, h("summary", null, label), broken && h("p", null,
      h("span", { class: "chip warn" }, "prefix break"), ` at token ${count(broken.at)}, ${broken.inside_completion ? "inside the earlier reply" : "inside the earlier prompt"}: expected `,
      idText(broken.expected_token_id), ", found ", broken.found_token_id === null ? "the end" : idText(broken.found_token_id)), body);
    let shownFrom = null;
    /** Has the prompt there from a token on; from where it is new, if none is named. */
    own.showContext = (from = null) => {
      const ids = trajectory.promptIds(own.call);
      if (!ids) return put(body, h("span", { class: "muted" }, "The ids of the prompt were not captured."));
      const start = shared > 0 && shared < ids.length && (from === null || from >= shared) ? shared : 0;
      if (shownFrom !== null && shownFrom <= start) return undefined;
      shownFrom = start;
      vocabulary ??= trajectory.vocabulary();
      const texts = ids.map((one) => vocabulary.get(one));
      put(body, start > 0 && h("button", { type: "button", class: "button small", onclick: () => own.showContext(0) }, `The ${count(start)} before them too`));
      own.parts = own.parts.filter((part) => !part.context);
      const starts = chunks(null, ids.length - start);
      const made = starts.map((one, place) => ({ own, texts, ids, logprobs: null, from: start + one, to: start + (starts[place + 1] ?? ids.length - start), context: true, filled: false, node: null }));
      own.parts.unshift(...made);
      for (const part of made) body.append(chunk(part));
      return undefined;
    };
    details.addEventListener("toggle", () => details.open && own.showContext());
    own.details = details;
    return details;
  }

  function idText(one) {
    vocabulary ??= trajectory.vocabulary();
    const text = vocabulary.get(one);
    return h("code", null, text === undefined ? `#${one}` : `${JSON.stringify(plain(text))} #${one}`);
  }

  // The token that is looked at

  function pick(part, at, { scroll = false, keep = true } = {}) {
    mark(selected, false);
    selected = { part, at };
    if (!part.filled) fill(part);
    mark(selected, true);
    if (scroll) part.node.children[at - part.from]?.scrollIntoView({ block: "nearest" });
    inspect();
    drawCharts();
    jump.value = String(part.own.call.index);
    if (keep && !part.context) remember();
  }

  const remember = () => setWords({ call: selected.part.own.call.index, token: selected.at });

  function mark(one, on) {
    const node = one?.part.filled && one.part.node.children[one.at - one.part.from];
    if (node) node.classList.toggle("on", on);
  }

  function inspect() {
    const { part, at } = selected;
    const { call } = part.own;
    const text = part.texts?.[at];
    const logprob = part.logprobs?.[at];
    const one = part.ids?.[at];
    const surprising = part.logprobs && logprob !== null && logprob !== undefined;
    put(inspector,
      h("div", { class: "token" }, text === undefined ? `#${one}` : text === "" ? "(no text)" : shownToken(text)),
      h("dl", { class: "facts" }, [
        ["id", one === undefined ? "not captured" : String(one)],
        ["place", part.context ? `${count(at)} of the prompt of call ${call.index}` : `${count(at)} of ${count(Math.max(call.ids.length, call.tokens.length))}, call ${call.index}`],
        part.context ? ["role", "context: not trained in this turn"] : ["role", call.trainable ? "sampled, trained" : "sampled, not trained"],
        surprising ? ["log-probability", number(logprob, 4)] : null,
        surprising ? ["probability", percent(Math.exp(logprob))] : null,
        part.logprobs && !surprising ? ["log-probability", "was no finite number"] : null,
      ].filter(Boolean).map(([name, value]) => [h("dt", null, name), h("dd", { class: "number" }, value)])),
      part.context ? null : alternatives(part, at));
  }

  function shownToken(text) {
    return [...text].map((character) => (character === " " ? "␣" : character === "\n" ? "↵" : character === "\t" ? "⇥" : /[\p{Cc}\p{Cf}]/u.test(character) ? signOf(character) : character)).join("");
  }

  function readAlternatives() {
    fullAsked ??= fetchDocument(id, { top: true, signal: page.signal }).then((got) => {
      full = got;
      if (selected) inspect();
      scope = null;
      drawCharts();
    }, () => {
      fullAsked = null;
    });
  }

  function alternatives(part, at) {
    const of = full?.call(part.own.call.index)?.first?.top_logprobs?.[at];
    if (full === null) {
      readAlternatives();
      return h("p", { class: "small faint" }, "Alternatives are being read…");
    }
    if (!of || of.length === 0) return h("p", { class: "small faint" }, "No alternatives were asked for: ", h("code", null, "top_logprobs"), " of a rollout keeps up to 20.");
    const chosen = part.ids?.[at];
    return h("div", null, h("h3", null, "Alternatives"), h("div", { class: "alternatives" }, of.map((one) => {
      const share = Math.exp(one.logprob ?? -Infinity);
      return h("div", { class: `alt${one.token_id !== undefined ? (one.token_id === chosen ? " chosen" : "") : one.token === part.texts?.[at] ? " chosen" : ""}` },
        h("i", { style: { width: `${share * 100}%` } }), h("span", { class: "ellipsis" }, shownToken(one.token)), h("span", { class: "number" }, percent(share)), h("span", { class: "number faint" }, number(one.logprob, 3)));
    })));
  }

  list.addEventListener("mouseover", (event) => {
    const node = event.target.closest(".t");
    if (node) pick(node.parentNode.tokens, Number(node.dataset.at), { keep: false });
  });
  list.addEventListener("click", (event) => {
    const node = event.target.closest(".t");
    if (!node) return;
    pick(node.parentNode.tokens, Number(node.dataset.at));
    list.focus({ preventScroll: true });
  });
  list.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, PageDown: 50, PageUp: -50 };
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const at = calls.findIndex((call) => call === selected?.part.own.call) + (event.key === "ArrowDown" ? 1 : -1);
      const own = calls[at] && parts.get(calls[at].index);
      const first = own?.parts.find((part) => !part.context);
      if (first) {
        event.preventDefault();
        pick(first, 0);
        own.node.scrollIntoView({ block: "start" });
      }
      return;
    }
    if (!(event.key in steps)) return;
    event.preventDefault();
    step(steps[event.key]);
  });

  function step(by) {
    if (!selected) return pickFirst();
    let { part, at } = selected;
    at += by;
    const all = calls.flatMap((call) => parts.get(call.index).parts.filter((one) => one.context === part.context));
    let place = all.indexOf(part);
    while (at >= part.to && all[place + 1]) {
      const over = at - part.to;
      place += 1;
      part = all[place];
      at = part.from + over;
    }
    while (at < part.from && all[place - 1]) {
      const under = part.from - at;
      place -= 1;
      part = all[place];
      at = part.to - under;
    }
    pick(part, Math.min(part.to - 1, Math.max(part.from, at)), { scroll: true, keep: false });
    return undefined;
  }

  function pickFirst() {
    const first = calls.map((call) => parts.get(call.index).parts.find((part) => !part.context)).find(Boolean);
    if (first) pick(first, first.from, { keep: false });
  }

  // Searching

  const places = h("span", { class: "small muted", role: "status" });
  /** Where it was found: call, whether in its prompt, place. */
  let hits = [];
  let hitAt = -1;
  const search = h("input", {
    type: "search", placeholder: "Find an id or a text", "aria-label": "Find a token by id or text", title: "a number is an id; in quotes it is a text",
    onkeydown: (event) => {
      if (event.key === "Enter") {
        event.preventDefault();
        next(event.shiftKey ? -1 : 1);
      }
    },
    oninput: () => find(search.value.trim()),
  });

  function find(what) {
    hits = [];
    hitAt = -1;
    found = /^#?\d+$/.test(what) ? Number(what.replace("#", "")) : null;
    const text = found === null ? what.replace(/^"(.*)"$/s, "$1") : "";
    if (found !== null || text !== "") {
      vocabulary ??= trajectory.vocabulary();
      const is = (one, name) => (found !== null ? one === found : name?.includes(text));
      for (const call of calls) {
        // What a prompt shares with an earlier one was looked through there.
        const from = call.prompt?.base === null ? 0 : call.prompt?.shared ?? 0;
        call.prompt?.tail.forEach((one, at) => is(one, vocabulary.get(one)) && hits.push({ call, context: true, at: from + at }));
        const length = lengthOf(call);
        for (let at = 0; at < length; at += 1) if (is(call.ids[at], call.tokens[at])) hits.push({ call, context: false, at });
        if (found === null) hits.push(...across(call, text));
      }
    }
    for (const own of parts.values()) {
      for (const part of own.parts) {
        if (part.filled) for (const node of part.node.children) node.classList.toggle("found", found !== null && part.ids?.[Number(node.dataset.at)] === found);
      }
    }
    const before = hits.filter((hit) => hit.context).length;
    places.textContent = what === "" ? "" : `${count(hits.length - before)} found${before > 0 ? `, ${count(before)} in context` : ""}`;
  }

  /** Texts that go over several tokens: where they begin. */
  function across(call, text) {
    const out = [];
    if (text.length < 2 || call.tokens.length === 0) return out;
    const whole = call.tokens.join("");
    let at = 0;
    let end = call.tokens[0].length;
    for (let from = whole.indexOf(text); from >= 0; from = whole.indexOf(text, from + 1)) {
      while (end <= from) end += call.tokens[(at += 1)].length;
      if (from + text.length > end) out.push({ call, context: false, at });
    }
    return out;
  }

  function next(by) {
    if (hits.length === 0) return toast("Nothing was found");
    hitAt = hitAt < 0 && by < 0 ? hits.length - 1 : (hitAt + by + hits.length) % hits.length;
    const { call, context: isContext, at } = hits[hitAt];
    const own = parts.get(call.index);
    if (isContext) {
      own.showContext(at);
      own.details.open = true;
    }
    const part = own.parts.find((one) => one.context === isContext && at >= one.from && at < one.to);
    if (!part) return undefined;
    pick(part, at);
    part.node.children[at - part.from]?.scrollIntoView({ block: "center" });
    places.textContent = `${count(hitAt + 1)} of ${count(hits.length)}${isContext ? ", in context" : ""}`;
    return undefined;
  }

  // Charts

  const charts = h("div", { class: "stack" });
  /** Which call the charts are of; `all` for all of the agent's. */
  let scope = null;
  let scopeWanted = "call";
  let curves = [];
  const scopes = ["call", "all"].map((name) => h("button", { type: "button", class: "button small", onclick: () => {
    scopeWanted = name;
    drawCharts();
  } }, name));

  function drawCharts() {
    const own = selected && scopeWanted === "call" ? selected.part.own : null;
    const now = own ? own.call.index : "all";
    if (now !== scope) {
      scope = now;
      const of = own ? [own.call] : calls.filter((call) => call.meta.purpose === "agent");
      const logprobs = of.flatMap((call) => call.logprobs);
      const finite = logprobs.filter((one) => one !== null);
      const entropies = full ? of.flatMap((call) => (full.call(call.index)?.first?.top_logprobs ?? []).map(entropy)) : [];
      const pickAt = (at) => {
        let left = at;
        for (const call of of) {
          if (left < lengthOf(call)) return goTo(call.index, left);
          left -= lengthOf(call);
        }
        return undefined;
      };
      curves = [];
      const curve = (values, what) => {
        curves.push(along(values, what, pickAt));
        return curves[curves.length - 1].node;
      };
      scopes[0].textContent = own ? `Call ${own.call.index}` : "A call";
      scopes[0].disabled = selected === null;
      scopes[1].textContent = "All calls";
      scopes.forEach((button, at) => button.setAttribute("aria-pressed", String((at === 0) === (own !== null))));
      put(charts, finite.length > 0 && [h("div", { class: "row" }, h("h3", null, "Of"), scopes),
        h("div", null, h("h3", null, "Log-probabilities"), histogram(finite)),
        h("div", null, h("h3", null, own ? "Surprise along the turn" : "Surprise along the turns"), curve(logprobs.map((one) => (one === null ? null : -one)), "mean of −log p"))],
      entropies.some((one) => one !== null) && h("div", null, h("h3", null, own ? "Entropy along the turn" : "Entropy along the turns"), curve(entropies, "of the alternatives, in nats")));
    }
    if (!selected || selected.part.context) return curves.forEach((one) => one.mark(null));
    const before = own ? 0 : calls.filter((call) => call.meta.purpose === "agent" && call.index < selected.part.own.call.index).reduce((sum, call) => sum + lengthOf(call), 0);
    return curves.forEach((one) => one.mark(own || selected.part.own.call.meta.purpose === "agent" ? before + selected.at : null));
  }

  const colours = h("button", { type: "button", class: "button small", "aria-pressed": "true", onclick: () => {
    const off = list.classList.toggle("no-colour");
    colours.setAttribute("aria-pressed", String(!off));
  } }, "Colours");
  const jump = h("select", { "aria-label": "Go to a call", onchange: (event) => goTo(Number(event.target.value)) });

  function goTo(index, at = null) {
    const own = parts.get(index);
    if (!own) return;
    own.node.scrollIntoView({ block: "start" });
    const part = own.parts.filter((one) => !one.context).find((one) => at === null || (at >= one.from && at < one.to));
    if (part) {
      pick(part, at ?? part.from, { scroll: at !== null, keep: at !== null });
      if (at === null) setWords({ call: index, token: null });
    }
    jump.value = String(index);
  }

  const view = [
    h("div", null, h("div", { class: "filters" }, search, h("button", { type: "button", class: "button small", onclick: () => next(1) }, "Next"), places, jump, colours,
      h("span", { class: "scale", role: "img", "aria-label": "Scale: from at least 95 percent, without colour, to under 1 percent" },
        SCALE.map((name, at) => h("span", { class: at > 0 ? `lp-${at}` : null }, name)))),
    h("span", { class: "sr", id: "token-help" }, "Left and right go to the token before and after, up and down to the call before and after."), list),
    h("aside", { class: "panel inspector", "aria-label": "Token" },
      h("header", null, h("h2", null, "Token"), h("span", { class: "space" }), h("a", { class: "small", href: to(`rollouts/${id}/calls`) }, "calls")), inspector, h("details", { class: "body", open: innerWidth > 1000 }, h("summary", null, "Curves"), charts)),
  ];
  const node = h("div");
  put(inspector, h("p", { class: "muted" }, "Point at a token, or go through them with the arrow keys."));
  reread(trajectory);
  return {
    node, reread,
    stop: () => heights.disconnect(),
    shown: () => {
      if (wanted.call !== undefined && wanted.call !== null) goTo(Number(wanted.call), wanted.token === undefined ? null : Number(wanted.token));
    },
  };
}
