// A conversation as the agent had it: messages, tool calls with arguments and results, reasoning folded.

import { h, put } from "../dom.js";
import { brief, duration, plural, words } from "../format.js";
import { flagChip, purposeChip } from "../marks.js";
import { setWords, to } from "../router.js";
import { block, plain } from "../text.js";
import { jsonTree } from "./json.js";
import { readMessage, readReply, readSystem } from "./document.js";
import { difference, snippet } from "./source.js";

/** Messages that are made at once; more come as one scrolls. */
const BATCH = 60;

/** Keys under which tools of agents are given what an edit replaces, and by what. */
const EDITS = [["oldString", "newString"], ["old_string", "new_string"], ["old_str", "new_str"], ["old_text", "new_text"]];

/** Characters that are coloured. */
const COLOURED_MAX = 20_000;

/**
 * The conversation of a document that ends with the call `wanted.call`, at message `wanted.message`. `reread` shows a later
 * document of the same rollout: what is there stays, with what was opened in it.
 */
export function conversation(id, trajectory, wanted = {}) {
  let leaf = null;
  const talk = h("div", { class: "talk" });
  const chooser = h("select", { "aria-label": "Conversation", onchange: (event) => {
    leaf = trajectory.call(Number(event.target.value));
    if (here()) setWords({ call: event.target.value, message: null });
    show();
  } });
  const many = h("span", { class: "muted small" });
  const tools = h("div");
  const none = h("div", { class: "panel empty" }, h("h2", null, "No calls yet"), h("p", null, "What the agent and its model say is here as soon as the first call has ended."));
  const node = h("div", { class: "stack" });
  const here = () => location.pathname === to(`rollouts/${id}/conversation`);
  let watch = null;
  /** Messages that are there: what they were made of, and their nodes where they are made. */
  let shown = [];

  function read() {
    const places = trajectory.messages(leaf);
    const system = readSystem(trajectory.rest(leaf));
    const list = places.map((place) => ({ message: readMessage(trajectory.content(place)), call: null }));
    if (system) list.unshift({ message: system, call: null });
    // The assistant's messages are replies of the calls of this line, in order.
    const line = trajectory.line(leaf);
    const offset = system ? 1 : 0;
    for (const [number, call] of line.entries()) {
      const next = line[number + 1];
      if (!next) continue;
      const at = trajectory.messages(call).length + offset;
      const found = list.findIndex((one, place) => place >= at && one.message.role === "assistant" && one.call === null);
      if (found >= 0 && found <= at + 2) list[found].call = call;
    }
    for (const message of readReply(trajectory.content(leaf.response))) list.push({ message, call: leaf });
    const names = new Map();
    for (const { message } of list) for (const part of message.parts) if (part.kind === "call" && part.id) names.set(part.id, part.name);
    for (const one of list) {
      for (const part of one.message.parts) if (part.kind === "result") part.of = names.get(part.id);
      one.key = JSON.stringify([one.message, one.call?.index, one.call?.trainable, one.call?.flags]);
    }
    return list;
  }

  function show(keep = false) {
    const list = read();
    many.textContent = plural(list.length, "message");
    let same = 0;
    if (keep) while (same < Math.min(shown.length, list.length) && shown[same].key === list[same].key) same += 1;
    for (const one of shown.slice(same)) one.node?.remove();
    for (let at = 0; at < same; at += 1) list[at].node = shown[at].node;
    shown = list;
    watch?.disconnect();
    const end = talk.querySelector(":scope > .loading") ?? h("div", { class: "loading" });
    talk.append(end);
    const batch = (least = 0) => {
      const from = list.findIndex((one) => !one.node);
      if (from >= 0) {
        const fresh = list.slice(from, Math.max(least, from + BATCH));
        fresh.forEach((one, at) => (one.node = messageNode(id, one, trajectory, from + at, here)));
        end.before(...fresh.map((one) => one.node));
      }
      if (list.every((one) => one.node)) {
        watch.disconnect();
        end.remove();
      }
    };
    watch = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && batch(), { rootMargin: "1200px" });
    batch(Number(wanted.message ?? -1) + 1);
    if (end.isConnected) watch.observe(end);
    const offered = leaf.request.tools ? trajectory.content(leaf.request.tools.content) : null;
    if (!keep) put(tools, Array.isArray(offered) && offered.length > 0 && h("details", { class: "panel" },
      h("summary", { class: "body" }, `${plural(offered.length, "tool")} offered to the model`), h("div", { class: "body" }, jsonTree(offered))));
  }

  function reread(document) {
    const keep = leaf !== null;
    trajectory = document;
    const leaves = trajectory.leaves();
    if (leaves.length === 0) return put(node, none);
    const before = leaf;
    // Who follows a conversation to its end goes on with it.
    leaf = (before && leaves.find((one) => trajectory.line(one).some((call) => call.index === before.index)))
      ?? trajectory.call(Number(wanted.call ?? NaN)) ?? leaves[0];
    const choices = leaves.includes(leaf) ? leaves : [leaf, ...leaves];
    put(chooser, choices.map((one) => h("option", { value: String(one.index) },
      `${words(one.meta.purpose)}, ${plural(trajectory.line(one).length, "call")}, to call ${one.index}`)));
    chooser.value = String(leaf.index);
    chooser.hidden = choices.length < 2;
    if (!talk.isConnected) put(node, h("div", { class: "row" }, chooser, many), tools, talk);
    return show(keep);
  }
  reread(trajectory);
  return {
    node, reread,
    stop: () => watch?.disconnect(),
    shown: () => {
      const one = shown[Number(wanted.message ?? NaN)];
      if (!one?.node) return;
      one.node.classList.add("on");
      one.node.scrollIntoView({ block: "start" });
    },
  };
}

function messageNode(id, { message, call }, trajectory, number, here) {
  const role = message.role;
  const address = to(`rollouts/${id}/conversation`, { call: here() ? new URLSearchParams(location.search).get("call") : null, message: number });
  return h("article", { class: "message", "data-role": role, "aria-label": `${words(role)}, message ${number}` },
    h("header", null, h("b", null, words(role)),
      call && [h("a", { href: to(`rollouts/${id}/tokens`, { call: call.index }) }, `call ${call.index}`),
        h("span", { class: "number" }, `${brief(trajectory.promptLength(call))} → ${brief(call.ids.length || call.meta.usage?.completion_tokens || 0)} tokens, ${duration(call.meta.duration_ms)}`),
        call.meta.purpose !== "agent" && purposeChip(call.meta.purpose),
        h("span", { class: `chip ${call.trainable ? "good" : "warn"}` }, call.trainable ? "trained" : "not trained"),
        call.flags.filter((flag) => flag !== "sampling_defaulted").map(flagChip)],
      h("span", { class: "space" }),
      h("a", { class: "anchor number", href: address, "aria-label": `address of message ${number}`, onclick: (event) => {
        if (!here()) return;
        event.preventDefault();
        setWords({ message: number });
        for (const other of event.currentTarget.closest(".talk").querySelectorAll(".message.on")) other.classList.remove("on");
        event.currentTarget.closest(".message").classList.add("on");
      } }, `#${number}`)),
    h("div", { class: "body" }, message.parts.length === 0 ? h("span", { class: "faint" }, "nothing") : message.parts.map(partNode)));
}

function partNode(part) {
  switch (part.kind) {
    case "text":
      return block(part.text.replace(/^\n+|\n+$/g, ""), { part: 12_000 });
    case "reasoning":
      return h("details", { class: "reasoning" }, h("summary", null, `reasoning, ${brief(part.text.length)} characters`), block(part.text.trim(), { part: 12_000 }));
    case "call":
      return h("section", { class: "tool-call", "aria-label": `tool ${part.name}` }, h("header", null, h("b", null, plain(part.name ?? "tool")), part.id && h("span", { class: "faint mono ellipsis" }, plain(part.id))),
        argumentsOf(part.input));
    case "result":
      return h("div", null, (part.of || part.failed) && h("div", { class: "row result" }, part.of && h("span", { class: "small muted" }, "result of ", h("b", null, plain(part.of))), part.failed && h("span", { class: "chip bad" }, "failed")), block(part.text, { kind: "output", part: 12_000 }));
    default:
      return jsonTree(part.value);
  }
}

function argumentsOf(input) {
  if (input === null || typeof input !== "object") return h("dl", null, h("dd", null, block(input ?? "", { kind: "text mono" })));
  const entries = Object.entries(input);
  if (entries.length === 0) return h("dl", null, h("dd", { class: "faint" }, "no arguments"));
  const path = ["filePath", "file_path", "path", "filename", "absolute_path"].map((key) => input[key]).find((one) => typeof one === "string") ?? "";
  const edit = EDITS.find((keys) => keys.every((key) => typeof input[key] === "string")) ?? [];
  const colours = (key, value) => {
    if (value.length > COLOURED_MAX) return null;
    if (["command", "cmd"].includes(key)) return snippet(value, "command.sh");
    return path && ["content", "file_text", "contents"].includes(key) ? snippet(value, path) : null;
  };
  return h("dl", null, entries.map(([key, value]) => !edit.includes(key) && [h("dt", null, plain(key)),
    h("dd", null, (typeof value === "string" && colours(key, value)) || block(typeof value === "string" ? value : JSON.stringify(value, null, 2), { kind: "text mono", part: 8000 }))]),
  edit.length > 0 && [h("dt", null, "change"), h("dd", null, difference(input[edit[0]], input[edit[1]], path))]);
}
