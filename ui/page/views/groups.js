// Rollouts that were asked for together: how their rewards spread.

import { get, query } from "../api.js";
import { afterPause, atMost, h, keepingFocus, put, svg } from "../dom.js";
import { listen } from "../feed.js";
import { ago, brief, count, duration, moment, number, plural, reward as rewardText, title } from "../format.js";
import { empty, failure, rewardMark, tile } from "../marks.js";
import { go, setWords, to } from "../router.js";
import { plain } from "../text.js";
import { rolloutHead, rolloutRow } from "./rollouts.js";

/** From the lowest to the highest reward, with a mark at the mean. */
function spread(group) {
  if (group.rewarded === 0) return h("span", { class: "faint" }, "–");
  const low = Math.min(0, group.reward_worst);
  const high = Math.max(1, group.reward_best);
  const at = (value) => `${((value - low) / (high - low)) * 100}%`;
  return h("div", { class: "spread", role: "img", "aria-label": `from ${rewardText(group.reward_worst)} to ${rewardText(group.reward_best)}, mean ${rewardText(group.reward_mean)}` },
    h("i", { style: { left: at(group.reward_worst), right: `calc(100% - ${at(group.reward_best)})` } }), h("b", { style: { left: at(group.reward_mean) } }));
}

export async function groups(page) {
  page.setTitle("Groups");
  let wanted = { ...page.words };
  let next = null;
  const body = h("tbody");
  const table = h("div", { class: "scroll" }, h("table", { class: "list cardlike" }, h("thead", null, h("tr", null,
    [["Mean", ""], ["Task", ""], ["Rollouts", ""], ["Best", "right"], ["Spread", ""], ["Deviation", "right"], ["Agent", ""], ["Endpoint", ""], ["Tokens", "right"], ["Mean time", "right"], ["Asked for", "right"]].map(([name, of]) => h("th", { scope: "col", class: of }, name)))), body));
  const box = h("div", { class: "panel" }, table);
  const more = h("button", { type: "button", class: "button", hidden: true, onclick: () => load(true) }, "More");
  const search = h("input", { type: "search", placeholder: "Search instruction or task", "aria-label": "Search", value: wanted.search ?? "", oninput: afterPause((event) => {
    wanted = { search: event.target.value };
    setWords(wanted);
    load();
  }, 250) });

  async function load(further = false) {
    let got;
    try {
      got = await get(`api/v1/groups${query({ ...wanted, rollouts_min: 2, cursor: further ? next : null })}`, page.signal);
    } catch (error) {
      if (error.name !== "AbortError") put(box, failure(error, () => load()));
      return;
    }
    next = got.next_cursor;
    more.hidden = next === null;
    const rows = got.groups.map((group) => h("tr", { "data-id": group.id, onclick: (event) => {
      if (!event.target.closest("a")) go(to(`groups/${group.id}`));
    } },
    h("td", null, rewardMark(group.reward_mean)),
    h("td", { class: "title" }, h("a", { href: to(`groups/${group.id}`), "data-item": true, title: plain(group.title) }, plain(group.title)), h("span", { class: "sub" }, group.task_id && plain(group.task_id))),
    h("td", null, progress(group)),
    h("td", { class: "right" }, rewardText(group.reward_best)),
    h("td", null, spread(group)),
    h("td", { class: "right" }, number(group.reward_deviation, 3)),
    h("td", null, group.agent), h("td", null, h("div", null, group.endpoint), h("div", { class: "small faint" }, plain(group.model))),
    h("td", { class: "right" }, brief(group.completion_tokens)),
    h("td", { class: "right" }, duration(group.wall_mean_ms)),
    h("td", { class: "right faint", title: moment(group.created_unix_ms) }, ago(group.created_unix_ms))));
    if (further) body.append(...rows);
    else keepingFocus(body, () => body.replaceChildren(...rows));
    if (body.childElementCount > 0) put(box, table);
    else put(box, wanted.search ? empty("No group is called so") : empty("No groups yet", h("p", null, "Ask for several rollouts of a task at once: they are a group, whose rewards are compared here."), h("a", { class: "button first", href: to("run", { n: 4 }) }, "Run a group")));
  }
  const refresh = atMost(() => {
    if (!document.hidden && body.childElementCount <= 50) load();
  }, 2000);
  page.onLeave(listen({ onState: page.setLive, onMissed: refresh, onEvents: (events) => events.some(({ event }) => event.type === "finished" || event.type === "queued") && setTimeout(refresh, 150) }));
  page.show(h("div", { class: "head" }, h("h1", null, "Groups"), h("span", { class: "space" }), h("a", { class: "button first", href: to("run", { n: 4 }) }, "Run a group")),
    h("div", { class: "filters" }, search), box, h("div", { class: "empty" }, more));
  await load();
}

function progress(group) {
  const parts = [`${count(group.finished)} of ${count(group.rollouts)}`];
  const more = [["running", group.running], ["waiting", group.queued], ["interrupted", group.interrupted], ["failed", group.failed]].filter(([, many]) => many > 0).map(([name, many]) => `${count(many)} ${name}`);
  return h("div", null, h("div", { class: "number" }, parts), more.length > 0 && h("div", { class: "small faint" }, more.join(", ")));
}

export async function group(page) {
  const [id] = page.parts;
  page.setTitle("Group");
  const rows = new Map();
  const body = h("tbody");
  const head = h("div");
  const tiles = h("div", { class: "tiles" });
  const dots = h("div", { class: "body" });
  const compare = h("button", { type: "button", class: "button", disabled: true, onclick: () => {
    const [first, second] = picked;
    go(to(`compare/${first}/${second}`));
  } }, "Compare two");
  const picked = new Set();
  const onPick = (one, is) => {
    if (is) picked.add(one);
    else picked.delete(one);
    if (picked.size > 2) picked.delete([...picked][0]);
    compare.disabled = picked.size !== 2;
    for (const input of body.querySelectorAll("input[type=checkbox]")) input.checked = picked.has(input.closest("tr").dataset.id);
  };

  async function load() {
    let cursor = null;
    do {
      const got = await get(`api/v1/rollouts${query({ group: id, limit: 1000, cursor })}`, page.signal);
      for (const row of got.rollouts) rows.set(row.id, row);
      cursor = got.next_cursor;
    } while (cursor);
    draw();
  }

  function draw() {
    const all = [...rows.values()].sort((a, b) => a.sample - b.sample);
    if (all.length === 0) {
      page.show(empty("There is no such group", h("a", { href: to("groups") }, "All groups")));
      return;
    }
    const rewards = all.map((row) => row.reward).filter((one) => one !== null);
    const mean = rewards.reduce((sum, one) => sum + one, 0) / rewards.length;
    const deviation = Math.sqrt(rewards.reduce((sum, one) => sum + (one - mean) ** 2, 0) / rewards.length);
    const walls = all.map((row) => row.wall_ms).filter((one) => one !== null).sort((a, b) => a - b);
    page.setTitle(plain(all[0].title).slice(0, 60));
    put(head, h("div", { class: "head split" }, h("h1", { class: "wrap clamp" }, plain(title(all[0].title))), compare,
      h("div", { class: "sub small row" }, h("span", { class: "mono" }, id), h("span", null, all[0].agent), h("span", null, `${all[0].endpoint} · ${plain(all[0].model)}`), h("span", null, `sandbox ${all[0].backend}`))));
    put(tiles,
      tile("Mean reward", rewards.length > 0 ? rewardMark(mean, { large: true }) : "–", plural(rewards.length, "reward")),
      tile("Best", rewards.length > 0 ? rewardText(Math.max(...rewards)) : "–", rewards.length > 0 ? `worst ${rewardText(Math.min(...rewards))}` : null),
      tile("Deviation", rewards.length > 0 ? number(deviation, 3) : "–", deviation === 0 && rewards.length > 1 ? "all the same: nothing to learn from within the group" : null),
      tile("Over", `${count(all.filter((row) => row.state === "finished").length)} of ${count(all.length)}`, `${count(all.filter((row) => row.fault_code).length)} failed`),
      tile("Median time", duration(walls[Math.floor(walls.length / 2)]), walls.length > 1 ? `${duration(walls[0])} to ${duration(walls[walls.length - 1])}` : null));
    put(dots, strip(all));
    keepingFocus(body, () => body.replaceChildren(...all.map((row) => rolloutRow(row, { picked, onPick }))));
  }
  const refresh = atMost(() => load().catch(() => {}), 1000);
  page.onLeave(listen({ onState: page.setLive, onMissed: refresh, onEvents: (events) => {
    if (events.some(({ rollout, event }) => rows.has(rollout) && ["finished", "stage_started"].includes(event.type))) setTimeout(refresh, 150);
  } }));
  page.show(head, h("div", { class: "stack" }, tiles, h("section", { class: "panel" }, h("header", null, h("h2", null, "Rewards by sample")), dots),
    h("div", { class: "panel" }, h("div", { class: "scroll" }, h("table", { class: "list cardlike" }, rolloutHead({ picks: true }), body)))));
  await load();
}

/** A bar a sample. */
function strip(all) {
  const width = Math.max(1, all.length);
  const bars = all.slice(0, 512).map((row, at) => {
    const value = row.reward;
    const has = value !== null;
    const height = has ? Math.max(2, Math.min(1, Math.max(0, value)) * 60) : 4;
    return svg("a", { href: to(`rollouts/${row.id}`), "aria-label": `sample ${row.sample}: ${rewardText(value)}` },
      svg("rect", { x: at * 10 + 1, y: 64 - height, width: 8, height, rx: 1, fill: has ? (value >= 1 ? "var(--good)" : value <= 0 ? "var(--bad)" : "var(--warn)") : "var(--line-strong)" }, svg("title", null, `sample ${row.sample}: ${rewardText(value)}`)));
  });
  return svg("svg", { viewBox: `0 0 ${width * 10} 66`, preserveAspectRatio: "none", class: "chart", style: { "max-width": `${width * 36}px` }, role: "group", "aria-label": "Rewards by sample" }, bars);
}
