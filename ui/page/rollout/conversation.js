// A conversation as the agent had it: messages, tool calls with arguments and results, reasoning folded.

import { h, put } from "../dom.js";
import { brief, duration, words } from "../format.js";
import { flagChip, purposeChip } from "../marks.js";
import { setWords, to } from "../router.js";
import { block, plain } from "../text.js";
import { jsonTree } from "./json.js";
import { readMessage, readReply, readSystem } from "./document.js";

/** Messages that are made at once; more come as one scrolls. */
const BATCH = 60;

/** The conversation of a document that ends with the call `leaf`. */
export function conversation(id, trajectory, wanted) {
  const leaves = trajectory.leaves();
  if (leaves.length === 0) return h("div", { class: "panel empty" }, h("h2", null, "No calls yet"), h("p", null, "What the agent and its model say is here as soon as the first call has ended."));
  let leaf = trajectory.call(Number(wanted ?? NaN)) ?? leaves[0];
  const talk = h("div", { class: "talk" });
  const chooser = leaves.length > 1 && h("select", {
    "aria-label": "Conversation",
    onchange: (event) => {
      leaf = trajectory.call(Number(event.target.value));
      setWords({ call: event.target.value });
      show();
    },
  }, leaves.map((one) => h("option", { value: String(one.index), selected: one === leaf },
    `${words(one.meta.purpose)}, ${trajectory.line(one).length} calls, to call ${one.index}`)));
  if (chooser) chooser.value = String(leaf.index);
  const count = h("span", { class: "muted small" });
  const tools = h("span");

  function show() {
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
    count.textContent = `${list.length} messages`;
    const results = new Map();
    for (const { message } of list) for (const part of message.parts) if (part.kind === "result" && part.id) results.set(part.id, part);
    put(talk);
    let next = 0;
    const end = h("div", { class: "loading" });
    const batch = () => {
      const from = next;
      next = Math.min(list.length, next + BATCH);
      end.before(...list.slice(from, next).map((one) => messageNode(id, one, trajectory)));
      if (next >= list.length) {
        watch.disconnect();
        end.remove();
      }
    };
    const watch = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && batch(), { rootMargin: "1200px" });
    talk.append(end);
    batch();
    if (end.isConnected) watch.observe(end);
    const offered = leaf.request.tools ? trajectory.content(leaf.request.tools.content) : null;
    put(tools, Array.isArray(offered) && offered.length > 0 && h("details", { class: "panel" },
      h("summary", { class: "body" }, `${offered.length} tools offered to the model`), h("div", { class: "body" }, jsonTree(offered))));
  }
  show();
  return h("div", { class: "stack" }, h("div", { class: "row" }, chooser, count), tools, talk);
}

function messageNode(id, { message, call }, trajectory) {
  const role = message.role;
  return h("article", { class: "message", "data-role": role },
    h("header", null, h("b", null, words(role)),
      call && [h("a", { href: to(`rollouts/${id}/tokens`, { call: call.index }) }, `call ${call.index}`),
        h("span", { class: "number" }, `${brief(trajectory.promptLength(call))} → ${brief(call.ids.length || call.meta.usage?.completion_tokens || 0)} tokens, ${duration(call.meta.duration_ms)}`),
        call.meta.purpose !== "agent" && purposeChip(call.meta.purpose),
        h("span", { class: `chip ${call.trainable ? "good" : "warn"}` }, call.trainable ? "trained" : "not trained"),
        call.flags.filter((flag) => flag !== "sampling_defaulted").map(flagChip)]),
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
      return h("div", null, part.failed && h("span", { class: "chip bad" }, "failed"), block(part.text, { kind: "output", part: 12_000 }));
    default:
      return jsonTree(part.value);
  }
}

function argumentsOf(input) {
  if (input === null || typeof input !== "object") return h("dl", null, h("dd", null, block(input ?? "", { kind: "text mono" })));
  const entries = Object.entries(input);
  if (entries.length === 0) return h("dl", null, h("dd", { class: "faint" }, "no arguments"));
  return h("dl", null, entries.map(([key, value]) => [h("dt", null, plain(key)),
    h("dd", null, block(typeof value === "string" ? value : JSON.stringify(value, null, 2), { kind: "text mono", part: 8000 }))]));
}
