// Requests to the server that this page came from. A key, where one is asked for, is kept for this tab alone and sent as a
// header: it is in no address and no cookie.

/** The root of the server: this file is at `<root>web/assets/<version>/api.js`. */
export const ROOT = new URL("../../../", import.meta.url);

const KEY = "dressage.key";

/** What this tab keeps, or this browser does; where a frame may keep nothing, it is there until the page is left. */
class Kept {
  #of;
  #own = new Map();

  constructor(of) {
    this.#of = of;
  }

  get(name) {
    try {
      return globalThis[this.#of].getItem(name);
    } catch {
      return this.#own.get(name) ?? null;
    }
  }

  set(name, value) {
    try {
      if (value === null) globalThis[this.#of].removeItem(name);
      else globalThis[this.#of].setItem(name, value);
    } catch {
      if (value === null) this.#own.delete(name);
      else this.#own.set(name, value);
    }
  }
}

export const ofTab = new Kept("sessionStorage");
export const ofBrowser = new Kept("localStorage");

let keyAsker = null;
let asking = null;

/** Says who asks people for a key. It gives null where they do not want to. */
export function setKeyAsker(asker) {
  keyAsker = asker;
}

export function hasKey() {
  return ofTab.get(KEY) !== null;
}

export function forgetKey() {
  ofTab.set(KEY, null);
}

/** A failure that the server told of. */
export class ApiError extends Error {
  constructor(status, told) {
    super(told.message ?? `the server answered with ${status}`);
    this.status = status;
    this.code = told.code ?? "unknown";
    this.hint = told.hint ?? null;
    this.details = told.details ?? [];
  }
}

/** The server could not be reached. */
export class Unreachable extends Error {
  constructor() {
    super("the server cannot be reached");
    this.hint = "It may have been stopped; this page goes on when it is there again.";
    this.details = [];
  }
}

/** Sends a request and gives the reply where it went well. Where a key is wanted it is asked for, and the request sent again. */
export async function send(path, { method = "GET", body, headers = {}, signal } = {}) {
  for (;;) {
    const key = ofTab.get(KEY);
    const sent = { ...headers };
    if (key !== null) sent["x-api-key"] = key;
    if (body !== undefined) sent["content-type"] = "application/json";
    let reply;
    try {
      reply = await fetch(new URL(path, ROOT), {
        method, signal, headers: sent, credentials: "omit", cache: "no-store",
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Unreachable();
    }
    if (reply.ok) return reply;
    const told = await reply.json().catch(() => ({}));
    const error = new ApiError(reply.status, told.error ?? {});
    if (reply.status !== 401 || !keyAsker) throw error;
    if (ofTab.get(KEY) !== key) continue;
    asking ??= keyAsker(key !== null).finally(() => (asking = null));
    const given = await asking;
    if (given === null) throw error;
    ofTab.set(KEY, given);
  }
}

/** A JSON document. */
export async function get(path, signal) {
  return (await send(path, { signal })).json();
}

export async function post(path, body, signal) {
  return (await send(path, { method: "POST", body: body ?? {}, signal })).json();
}

/** Words for a query, without those that are empty. */
export function query(words) {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(words)) {
    if (value !== undefined && value !== null && value !== "") search.set(key, value);
  }
  const text = search.toString();
  return text ? `?${text}` : "";
}

const remembered = new Map();

/** What hardly changes while a page is open; asked for again after half a minute. */
export function catalogue(name) {
  const found = remembered.get(name);
  if (found && performance.now() - found.at < 30_000) return found.reply;
  const reply = get(`api/v1/${name}`);
  remembered.set(name, { at: performance.now(), reply });
  reply.catch(() => remembered.delete(name));
  return reply;
}

export function forgetCatalogue() {
  remembered.clear();
}
