// What runs and waits now, a card each, for a second screen.

import { get, send } from "../api.js";
import { atMost, eachFrame, h, keepingFocus, put, svg, toast } from "../dom.js";
import { listen } from "../feed.js";
import { brief, count, duration, plural } from "../format.js";
import { clock, empty, rewardMark, stageDots, stateChip, tile } from "../marks.js";
import { lastWord } from "../rollout/activity.js";
import { Model } from "../rollout/model.js";
import { to } from "../router.js";
import { plain } from "../text.js";

/** Cards that are shown; more are counted. */
const CARDS_MAX = 120;

/** Rollouts that are over and still shown. */
const ENDED_MAX = 24;

/** How long ago one that is over may have ended to be shown when one comes. */
const ENDED_MS = 600_000;

/** Seconds of the curve of throughput. */
const SECONDS = 120;

export async function board(page) {
  page.setTitle("Board");
  const rows = new Map();
  const models = new Map();
  const nodes = new Map();
  const ended = [];
  let queue = null;
  let lineShown = null;
  const tokens = new Array(SECONDS).fill(0);
  let second = Math.floor(Date.now() / 1000);
  const finished = [];
  /** Tokens of calls that go on. */
  const sampled = new Map();

  const tiles = h("div", { class: "tiles" });
  const cards = h("div", { class: "cards" });
  const waiting = h("div");
  const over = h("div", { class: "cards" });
  const overHead = h("h2", { hidden: true }, "Just ended");
  const none = empty("Nothing runs", h("p", null, "Rollouts that run or wait are here, whoever asked for them: this page, a trainer, or an OpenEnv client."),
    h("a", { class: "button first", href: to("run") }, "Run a task"));

  const modelOf = (id) => {
    let model = models.get(id);
    if (!model) models.set(id, (model = new Model()));
    return model;
  };

  async function load() {
    const [got, now] = await Promise.all([
      get(`api/v1/rollouts?state=queued,running&limit=${CARDS_MAX * 4}`, page.signal), get("api/v1/queue", page.signal)]);
    queue = now;
    const there = new Set(got.rollouts.map((row) => row.id));
    for (const id of rows.keys()) if (!there.has(id)) rows.delete(id);
    for (const row of got.rollouts.reverse()) rows.set(row.id, { ...rows.get(row.id), ...row });
    draw();
  }
  const reload = atMost(() => load().catch(() => {}), 500);

  const draw = eachFrame(() => {
    advance();
    const running = [...rows.values()].filter((row) => row.state !== "queued");
    const queued = [...rows.values()].filter((row) => row.state === "queued");
    const shown = running.slice(0, CARDS_MAX);
    const keep = new Set(shown.map((row) => row.id));
    for (const [id, node] of nodes) {
      if (!keep.has(id)) {
        node.node.remove();
        nodes.delete(id);
      }
    }
    for (const row of shown) {
      let own = nodes.get(row.id);
      if (!own) {
        own = card(row);
        nodes.set(row.id, own);
        cards.append(own.node);
      }
      own.draw(row, modelOf(row.id));
    }
    const line = JSON.stringify([queue?.waiting, queued.map((row) => [row.id, row.queue_position])]);
    if (line !== lineShown) keepingFocus(waiting, () => put(waiting, queued.length > 0 && h("section", { class: "panel" }, h("header", null, h("h2", null, "Waiting"), h("span", { class: "chip" }, count(queue?.waiting ?? queued.length))),
      h("div", { class: "scroll" }, h("table", { class: "list cardlike" }, h("tbody", null, queued.slice(0, 12).map((row) => h("tr", { "data-id": row.id },
        h("td", { class: "title" }, h("a", { href: to(`rollouts/${row.id}`), "data-item": true }, plain(row.title))), h("td", null, row.agent), h("td", null, row.endpoint), h("td", null, stateChip(row)), h("td", { class: "right faint" }, clock(row.created_unix_ms))))))),
      queued.length > 12 && h("div", { class: "body small muted" }, `and ${count(Math.max(queued.length, queue?.waiting ?? 0) - 12)} more`))));
    lineShown = line;
    none.hidden = rows.size > 0;
    overHead.hidden = ended.length === 0;
    showTiles(running.length, queued.length);
  });

  function showTiles(running, queued) {
    const now = Date.now();
    while (finished.length > 0 && now - finished[0].at > 60_000) finished.shift();
    const rewards = finished.map((one) => one.reward).filter((one) => one !== null && one !== undefined);
    const rate = tokens.slice(-11, -1).reduce((sum, one) => sum + one, 0) / 10;
    put(tiles,
      tile("Running", count(queue ? queue.running : running), queue && `of ${count(queue.limits.running)} at once`),
      tile("Waiting", count(Math.max(queued, queue?.waiting ?? 0)), queue && queue.held > 0 ? `${queue.held} held` : null),
      tile("Ended in a minute", count(finished.length), rewards.length > 0 ? `mean reward ${(rewards.reduce((sum, one) => sum + one, 0) / rewards.length).toFixed(2)}` : null),
      h("div", { class: "tile" }, h("div", { class: "label" }, "Tokens a second"), h("div", { class: "value" }, brief(Math.round(rate))), curve(tokens)));
  }

  /** The curve goes on with the seconds. */
  function advance() {
    const now = Math.floor(Date.now() / 1000);
    for (let missing = Math.min(SECONDS, now - second); missing > 0; missing -= 1) {
      tokens.push(0);
      tokens.shift();
    }
    second = Math.max(second, now);
  }

  async function cancel(id, button) {
    button.disabled = true;
    try {
      await send(`api/v1/rollouts/${id}/cancel`, { method: "POST" });
      button.textContent = "Stopping";
    } catch (error) {
      button.disabled = false;
      toast(error.message, "bad");
    }
  }

  function card(row) {
    const link = h("a", { href: to(`rollouts/${row.id}`), class: "ellipsis", "data-item": true }, plain(row.title));
    const dots = h("span");
    const last = h("div", { class: "last" });
    const numbers = h("span");
    const state = h("span");
    const button = h("button", { type: "button", class: "button small", onclick: () => cancel(row.id, button), "aria-label": `Cancel ${plain(row.title)}` }, "Cancel");
    const time = h("span");
    let timed = null;
    const node = h("article", { class: "card" }, h("div", { class: "top" }, link, h("span", { class: "space" }), state), h("div", { class: "row small muted" }, dots, h("span", { class: "ellipsis" }, [row.agent, row.endpoint, `#${row.sample}`].join(" · "))), last,
      h("div", { class: "foot" }, time, numbers, h("span", { class: "space" }), button));
    let before = "";
    const drawCard = (now, model) => {
      const stage = model.stage ?? now.stage ?? null;
      const calls = Math.max(model.calls.length, now.totals.calls);
      const sampled = Math.max(model.calls.reduce((sum, call) => sum + call.completion_tokens, 0), now.totals.completion_tokens);
      const streamed = [...model.open.values()].map((open) => open.text).filter(Boolean).at(-1);
      const word = streamed ? plain(streamed.slice(-160)) : lastWord(model);
      const key = `${stage}${calls}${sampled}${word}${now.held_until_unix_ms}${now.cancelling}`;
      if (key === before) return;
      before = key;
      if (stage) node.dataset.stage = stage;
      const order = ["boot", "setup", "agent", "verify", "collect"];
      const states = Object.fromEntries(order.map((one) => [one, order.indexOf(one) < order.indexOf(stage) ? "done" : one === stage ? "now" : "waiting"]));
      put(dots, stageDots(states));
      put(state, stateChip({ ...now, stage }));
      last.textContent = word || (stage ? "" : "about to start");
      numbers.textContent = `${plural(calls, "call")} · ${brief(sampled)} tokens`;
      const began = now.started_unix_ms ?? now.created_unix_ms;
      if (timed !== began) {
        timed = began;
        put(time, clock(began));
      }
      if (now.cancelling) {
        button.disabled = true;
        button.textContent = "Stopping";
      }
    };
    return { node, draw: drawCard };
  }

  function addEnded(row, kind = "") {
    finished.push({ id: row.id, at: row.finished_unix_ms ?? Date.now(), reward: row.reward });
    const node = h("article", { class: `card ${kind}` }, h("div", { class: "top" }, h("a", { href: to(`rollouts/${row.id}`), class: "ellipsis", "data-item": true }, plain(row.title)), h("span", { class: "small muted number" }, duration(row.wall_ms))),
      h("div", { class: "foot" }, rewardMark(row.reward), stateChip(row), h("span", { class: "space" }), h("span", null, `${brief(row.totals.completion_tokens)} tokens`)));
    ended.unshift(node);
    for (const old of ended.splice(ENDED_MAX)) old.remove();
    over.prepend(node);
  }

  /** Those that ended before one came. */
  async function loadEnded() {
    const got = await get(`api/v1/rollouts?state=finished&limit=${ENDED_MAX}`, page.signal);
    const since = Date.now() - ENDED_MS;
    const late = got.rollouts.filter((row) => row.finished_unix_ms > since && !finished.some(({ id }) => id === row.id));
    for (const row of late.sort((a, b) => a.finished_unix_ms - b.finished_unix_ms)) addEnded(row);
  }

  async function end(id) {
    rows.delete(id);
    for (const call of models.get(id)?.open.keys() ?? []) sampled.delete(call);
    models.delete(id);
    try {
      let row = await get(`api/v1/rollouts/${id}`, page.signal);
      for (let tries = 0; row.state === "running" && tries < 20; tries += 1) {
        await new Promise((resolve) => setTimeout(resolve, 100));
        row = await get(`api/v1/rollouts/${id}`, page.signal);
      }
      addEnded(row, "fresh");
      draw();
    } catch {
      // It is in the list of rollouts all the same.
    }
  }

  page.onLeave(listen({
    onState: page.setLive,
    onMissed: reload,
    onEvents: (events) => {
      advance();
      for (const event of events) {
        const { rollout: id, event: what } = event;
        if (what.type === "queued") reload();
        if (what.type === "finished") {
          end(id);
          reload();
          continue;
        }
        const row = rows.get(id);
        if (what.type === "stage_started" && what.stage === "boot") reload();
        modelOf(id).take(event);
        // What was told while a call went on is not counted again at its end.
        if (what.type === "call_progress") {
          tokens[SECONDS - 1] += what.tokens - (sampled.get(what.call) ?? 0);
          sampled.set(what.call, what.tokens);
        } else if (what.type === "call_ended") {
          tokens[SECONDS - 1] += Math.max(0, what.call.completion_tokens - (sampled.get(what.call.id) ?? 0));
          sampled.delete(what.call.id);
        }
        if (row && what.type === "stage_started") Object.assign(row, { state: "running", stage: what.stage });
        if (row && what.type === "held") row.held_until_unix_ms = what.until_unix_ms;
        if (row && what.type === "released") row.held_until_unix_ms = undefined;
      }
      draw();
    },
  }));
  const ticking = setInterval(() => {
    if (!document.hidden) draw();
  }, 1000);
  page.onLeave(() => clearInterval(ticking));
  await Promise.all([load(), loadEnded()]);
  page.show(h("div", { class: "head" }, h("h1", null, "Board"), h("span", { class: "space" }), h("a", { class: "button first", href: to("run") }, "Run a task")),
    h("div", { class: "stack" }, tiles, none, cards, waiting, overHead, over));
}

function curve(values) {
  const top = Math.max(...values, 1);
  const path = values.map((value, at) => `${at === 0 ? "M" : "L"}${((at / (values.length - 1)) * 200).toFixed(1)} ${(34 - (value / top) * 32).toFixed(1)}`).join("");
  return svg("svg", { class: "spark chart", viewBox: "0 0 200 36", preserveAspectRatio: "none", role: "img", "aria-label": `tokens a second over two minutes, at most ${top}` }, svg("path", { class: "line", d: path }));
}
