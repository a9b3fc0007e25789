// Server-sent events, read by fetch, so that a key can be a header. A stream that breaks, or says nothing for longer than the
// server would let it, is opened anew after the last event that was read: nothing is missed and nothing comes twice.

import { ApiError, send } from "./api.js";

/** The server says something every 15 seconds at least. */
const SILENCE_MS = 40_000;

/** A tab that nobody sees gives its connection back: browsers have six for a server. */
const HIDDEN_MS = 20_000;

/** Takes pieces of a stream and gives whole events, wherever the pieces were cut. */
export class Parser {
  #text = "";
  #decoder = new TextDecoder();

  /** The events that this piece makes whole: `{id, event, data}`. */
  push(bytes) {
    this.#text += this.#decoder.decode(bytes, { stream: true });
    const events = [];
    let start = 0;
    for (let end = this.#text.indexOf("\n\n", start); end >= 0; end = this.#text.indexOf("\n\n", start)) {
      const event = { id: null, event: "message", data: "" };
      for (const line of this.#text.slice(start, end).split("\n")) {
        const colon = line.indexOf(":");
        if (colon <= 0) continue;
        const value = line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
        const name = line.slice(0, colon);
        if (name === "data") event.data += event.data ? `\n${value}` : value;
        else if (name in event) event[name] = value;
      }
      if (event.id !== null) events.push(event);
      start = end + 2;
    }
    this.#text = this.#text.slice(start);
    return events;
  }
}

/**
 * Follows a stream until it is told to stop, or `isLast` says that an event is the last. `onEvents` gets lists of them; what
 * came together comes together. A stream that ends well is over where `isOver` comes to say so, which may have to ask. `onState`
 * is told `live`, `wait` (between two tries) and `off` (with the error, for good).
 */
export function follow(path, { onEvents, onState = () => {}, isLast = () => false, isOver = () => false, after = null }) {
  let last = after;
  let stopped = false;
  let open = null;
  let wake = null;
  let hiddenTimer = 0;
  let paused = false;

  const stop = () => {
    stopped = true;
    document.removeEventListener("visibilitychange", seen);
    window.removeEventListener("online", online);
    clearTimeout(hiddenTimer);
    open?.abort();
    wake?.();
  };
  const seen = () => {
    clearTimeout(hiddenTimer);
    if (document.hidden) {
      hiddenTimer = setTimeout(() => {
        paused = true;
        open?.abort();
      }, HIDDEN_MS);
    } else if (paused) {
      paused = false;
      wake?.();
    }
  };
  const online = () => wake?.();
  document.addEventListener("visibilitychange", seen);
  window.addEventListener("online", online);

  const read = async () => {
    open = new AbortController();
    const opened = open;
    let silence = setTimeout(() => opened.abort(), SILENCE_MS);
    try {
      const headers = last === null ? {} : { "last-event-id": last };
      const reply = await send(path, { signal: opened.signal, headers });
      onState("live");
      const reader = reply.body.getReader();
      const parser = new Parser();
      for (;;) {
        const { done, value } = await reader.read();
        clearTimeout(silence);
        if (done) return;
        silence = setTimeout(() => opened.abort(), SILENCE_MS);
        const events = parser.push(value);
        if (events.length === 0) continue;
        last = events[events.length - 1].id;
        onEvents(events);
        if (events.some(isLast)) {
          stop();
          return;
        }
      }
    } finally {
      clearTimeout(silence);
    }
  };

  const run = async () => {
    let pause = 250;
    while (!stopped) {
      const began = performance.now();
      try {
        await read();
        if (await isOver()) stop();
      } catch (error) {
        if (stopped) return;
        // Not so the other failures: the server may be starting.
        if (error instanceof ApiError && error.status >= 400 && error.status < 500) {
          onState("off", error);
          return;
        }
      }
      if (stopped) return;
      onState("wait");
      if (performance.now() - began > 5000) pause = 250;
      await new Promise((resolve) => {
        wake = resolve;
        if (!paused) setTimeout(resolve, pause);
      });
      wake = null;
      pause = Math.min(pause * 2, 5000);
    }
  };
  run();
  return stop;
}
