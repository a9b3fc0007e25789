// The native document of a rollout (docs/export.md), read so that requests, prompts and conversations can be had from it.

import { get } from "../api.js";

/** Fetches it; `top` with the alternatives at each position, which can be many times the rest. */
export async function fetchDocument(id, { top = false, signal } = {}) {
  const path = `api/v1/rollouts/${id}/trajectory?sequences=drop&top_logprobs=${top ? "keep" : "drop"}`;
  return new Trajectory(await get(path, signal));
}

export class Trajectory {
  #byIndex = new Map();
  #ids = new Map();
  #messages = new Map();
  #parsed = new Map();
  #vocabulary = null;

  constructor(raw) {
    this.raw = raw;
    this.calls = raw.calls.map((call) => {
      const first = call.completions[0] ?? null;
      return {
        ...call,
        index: call.meta.index,
        first,
        ids: first?.token_ids ?? [],
        tokens: first?.tokens ?? [],
        logprobs: first?.logprobs ?? [],
        children: [],
      };
    });
    for (const call of this.calls) this.#byIndex.set(call.index, call);
    for (const call of this.calls) this.#byIndex.get(call.continues)?.children.push(call.index);
  }

  call(index) {
    return this.#byIndex.get(index) ?? null;
  }

  /** What was said, as JSON where it is JSON, else as text. */
  content(place) {
    if (place === null || place === undefined) return null;
    if (this.#parsed.has(place)) return this.#parsed.get(place);
    const text = this.raw.contents[place]?.text ?? null;
    let value = text;
    try {
      if (text !== null) value = JSON.parse(text);
    } catch {
      // It is shown as it is.
    }
    this.#parsed.set(place, value);
    return value;
  }

  #list(call, of, whole, memory) {
    // Each rests on an earlier one, so this goes back and then forward, without recursion.
    const chain = [];
    for (let at = call; at && !memory.has(at.index); ) {
      chain.push(at);
      const base = of(at)?.base;
      at = base === null || base === undefined ? null : this.#byIndex.get(base);
    }
    for (const one of chain.reverse()) {
      const delta = of(one);
      if (!delta) {
        memory.set(one.index, null);
        continue;
      }
      const base = delta.base === null ? null : this.#byIndex.get(delta.base);
      const before = base ? whole(base, memory.get(base.index) ?? []) : [];
      memory.set(one.index, before.slice(0, delta.shared).concat(delta.tail));
    }
    return memory.get(call.index) ?? null;
  }

  /** Positions of the contents that are the messages of a call's request. */
  messages(call) {
    return this.#list(call, (one) => one.request.messages, (_, list) => list, this.#messages) ?? [];
  }

  /** The ids of a call's prompt; null where they were not captured. */
  promptIds(call) {
    return this.#list(call, (one) => one.prompt, (one, list) => list.concat(one.ids), this.#ids);
  }

  /** How long a prompt is, without making it. */
  promptLength(call) {
    return call.prompt ? call.prompt.shared + call.prompt.tail.length : call.meta.usage?.prompt_tokens ?? 0;
  }

  /** Texts of ids, as far as they were ever sampled, or an alternative, in this rollout. */
  vocabulary() {
    if (this.#vocabulary) return this.#vocabulary;
    const words = new Map();
    for (const call of this.calls) {
      for (const completion of call.completions) {
        completion.token_ids.forEach((id, place) => {
          if (completion.tokens[place] !== undefined) words.set(id, completion.tokens[place]);
        });
        for (const list of completion.top_logprobs) {
          for (const one of list) if (one.token_id !== undefined && !words.has(one.token_id)) words.set(one.token_id, one.token);
        }
      }
    }
    this.#vocabulary = words;
    return words;
  }

  /** Calls that nothing goes on from: each ends a conversation. The agent's own first, the longest first. */
  leaves() {
    const order = { agent: 0, subagent: 1, summary: 2, title: 3, foreign: 4 };
    return this.calls
      .filter((call) => call.children.length === 0 && !call.flags.includes("superseded"))
      .sort((a, b) => (order[a.meta.purpose] ?? 9) - (order[b.meta.purpose] ?? 9) || b.index - a.index);
  }

  /** The call whose reply a message of the assistant is, going back from `call`. */
  line(call) {
    const line = [];
    for (let at = call; at; at = this.#byIndex.get(at.continues)) line.unshift(at);
    return line;
  }

  /** The end of a sequence that a message is in. */
  rest(call) {
    return this.content(call.request.rest);
  }
}

// Messages of all dialects in one form: `{role, parts: [{kind, …}]}`, with kinds text, reasoning, call, result, other.

function textOf(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return value.map((part) => (typeof part === "string" ? part : part?.text ?? JSON.stringify(part))).join("\n");
  return typeof value.text === "string" ? value.text : JSON.stringify(value, null, 2);
}

function readArguments(value) {
  if (typeof value !== "string") return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

function chatParts(message) {
  const parts = [];
  const reasoning = message.reasoning_content ?? message.reasoning;
  if (reasoning) parts.push({ kind: "reasoning", text: textOf(reasoning) });
  if (message.role === "tool") {
    parts.push({ kind: "result", id: message.tool_call_id, text: textOf(message.content) });
  } else if (typeof message.content === "string") {
    if (message.content !== "") parts.push({ kind: "text", text: message.content });
  } else {
    for (const part of message.content ?? []) parts.push(...blockParts(part));
  }
  for (const call of message.tool_calls ?? []) {
    parts.push({ kind: "call", id: call.id, name: call.function?.name ?? call.type, input: readArguments(call.function?.arguments) });
  }
  return parts;
}

function blockParts(part) {
  if (typeof part === "string") return [{ kind: "text", text: part }];
  switch (part?.type) {
    case "text": case "input_text": case "output_text": case "refusal":
      return [{ kind: "text", text: part.text ?? part.refusal ?? "" }];
    case "thinking": case "reasoning":
      return [{ kind: "reasoning", text: part.thinking ?? textOf(part.summary?.length ? part.summary : part.content) }];
    case "redacted_thinking":
      return [{ kind: "reasoning", text: "[hidden by the endpoint]" }];
    case "tool_use": case "function_call": case "custom_tool_call":
      return [{ kind: "call", id: part.call_id ?? part.id, name: part.name, input: readArguments(part.input ?? part.arguments) }];
    case "tool_result": case "function_call_output": case "custom_tool_call_output":
      return [{ kind: "result", id: part.tool_use_id ?? part.call_id, text: textOf(part.content ?? part.output), failed: part.is_error === true }];
    default:
      if (typeof part?.text === "string") return [{ kind: part.thought ? "reasoning" : "text", text: part.text }];
      if (part?.functionCall) return [{ kind: "call", id: part.functionCall.id, name: part.functionCall.name, input: part.functionCall.args }];
      if (part?.functionResponse) return [{ kind: "result", id: part.functionResponse.id, text: textOf(part.functionResponse.response?.output ?? part.functionResponse.response) }];
      return [{ kind: "other", value: part }];
  }
}

/** A message of a request, whatever dialect it is in. */
export function readMessage(value) {
  if (value === null || typeof value !== "object") return { role: "user", parts: [{ kind: "text", text: String(value) }] };
  if (value.parts) {
    return { role: value.role === "model" ? "assistant" : value.role ?? "user", parts: value.parts.flatMap(blockParts) };
  }
  if (value.type && value.type !== "message" && !value.role) {
    const parts = blockParts(value);
    return { role: parts[0]?.kind === "result" ? "tool" : "assistant", parts };
  }
  const parts = chatParts(value);
  const onlyResults = value.role === "user" && parts.length > 0 && parts.every((part) => part.kind === "result");
  return { role: onlyResults ? "tool" : value.role === "developer" ? "system" : value.role ?? "user", parts };
}

/** The system prompt, where a dialect has it beside the messages. */
export function readSystem(rest) {
  const system = rest?.system ?? rest?.instructions ?? rest?.systemInstruction ?? rest?.system_instruction;
  if (!system) return null;
  return { role: "system", parts: [{ kind: "text", text: textOf(system.parts ?? system) }] };
}

/** The reply of a call as messages. */
export function readReply(value) {
  if (value === null || value === undefined) return [];
  if (typeof value !== "object") return [{ role: "assistant", parts: [{ kind: "text", text: String(value) }] }];
  if (value.error) return [{ role: "assistant", failed: true, parts: [{ kind: "other", value }] }];
  if (value.choices) return value.choices.map((choice) => readMessage({ role: "assistant", ...choice.message }));
  if (Array.isArray(value.output)) return [{ role: "assistant", parts: value.output.flatMap((item) => readMessage(item).parts) }];
  if (Array.isArray(value.content)) return [{ role: "assistant", parts: value.content.flatMap(blockParts) }];
  if (value.candidates) return value.candidates.map((one) => readMessage({ role: "model", parts: [], ...one.content }));
  return [{ role: "assistant", parts: [{ kind: "other", value }] }];
}
