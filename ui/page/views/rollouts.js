// All rollouts: filtered, searched, sorted, a page at a time.

import { catalogue, get, query } from "../api.js";
import { afterPause, atMost, h, keepingFocus, put } from "../dom.js";
import { listen } from "../feed.js";
import { ago, brief, count, duration, moment, shortId } from "../format.js";
import { empty, failure, rewardMark, stateChip } from "../marks.js";
import { go, setWords, to } from "../router.js";
import { plain } from "../text.js";

const PAGE = 50;

const STATES = [["", "Any state"], ["queued,running", "Not over"], ["running", "Running"], ["queued", "Waiting"], ["finished", "Finished"], ["interrupted", "Interrupted"]];
const ENDINGS = [["", "Any ending"], ["completed", "Completed"], ["budget", "Budget"], ["timeout", "Timeout"], ["agent_error", "Agent error"], ["setup_error", "Setup error"], ["cancelled", "Cancelled"]];
const REWARDS = { "": {}, full: { reward_min: 1 }, part: { reward_min: 0.000001, reward_max: 0.999999 }, zero: { reward_max: 0 } };
const REWARD_NAMES = [["", "Any reward"], ["full", "Reward 1"], ["part", "Between"], ["zero", "Reward 0"]];

/** A row of a rollout; others that list rollouts show the same. */
export function rolloutRow(row, { picked = null, onPick = null } = {}) {
  const address = to(`rollouts/${row.id}`);
  const started = row.started_unix_ms;
  const wall = row.wall_ms ?? (row.state === "running" && started ? Date.now() - started : null);
  const name = row.task_id ? plain(row.task_id) : null;
  return h("tr", {
    "data-id": row.id,
    onclick: (event) => {
      if (event.target.closest("a, input, button, label")) return;
      if (String(getSelection())) return;
      go(address);
    },
  },
  onPick && h("td", { class: "pick" }, h("input", {
    type: "checkbox", checked: picked.has(row.id), "aria-label": `compare ${shortId(row.id)}`,
    onchange: (event) => onPick(row.id, event.target.checked),
  })),
  h("td", { class: "reward-cell" }, row.state === "finished" ? rewardMark(row.reward) : h("span", { class: "faint" }, "–")),
  h("td", { class: "title" },
    h("a", { href: address, "data-item": true, title: plain(row.title) }, plain(row.title) || "no instruction"),
    h("span", { class: "sub" }, h("span", { class: "mono" }, shortId(row.id)), name && h("span", null, name),
      row.group && h("span", null, `sample ${row.sample}`))),
  h("td", null, stateChip(row), row.fault_code && h("span", { class: "small faint hide-small" }, ` ${row.fault_code}`)),
  h("td", { class: "ellipsis" }, row.agent),
  h("td", null, h("div", { class: "ellipsis" }, row.endpoint), h("div", { class: "small faint ellipsis" }, plain(row.model))),
  h("td", { class: "right" }, count(row.totals.calls), h("span", { class: "sr unit" }, " calls")),
  h("td", { class: "right", title: `${count(row.totals.trainable_tokens)} can be trained on` }, brief(row.totals.completion_tokens), h("span", { class: "sr unit" }, " tokens")),
  h("td", { class: "right" }, duration(wall)),
  h("td", { class: "right faint", title: moment(row.created_unix_ms) }, ago(row.created_unix_ms)));
}

/** The head of such a table; `sorted` says by what, and `onSort` is told of another wish. */
export function rolloutHead({ picks = false, sorted = null, onSort = null } = {}) {
  const cell = (name, key, right = false) => {
    const by = sorted && key && sorted.sort === key;
    return h("th", { scope: "col", class: right ? "right" : null, "aria-sort": by ? sorted.order : null },
      onSort && key ? h("button", { type: "button", onclick: () => onSort(key) }, name) : name);
  };
  return h("thead", null, h("tr", null,
    picks && h("th", { scope: "col" }, h("span", { class: "sr" }, "compare")),
    cell("Reward", "reward"), cell("Task", null), cell("State", null), cell("Agent", null), cell("Endpoint", null),
    cell("Calls", "calls", true), cell("Tokens", "completion_tokens", true), cell("Time", "wall_ms", true), cell("Asked for", "created", true)));
}

export function select(label, options, value, onchange) {
  const node = h("select", { "aria-label": label, onchange: (event) => onchange(event.target.value) },
    options.map(([key, name]) => h("option", { value: key, selected: key === value }, name)));
  node.value = value ?? "";
  return node;
}

export async function rollouts(page) {
  page.setTitle("Rollouts");
  let wanted = { ...page.words };
  let rows = new Map();
  let next = null;
  let generation = 0;
  const picked = new Set();

  const body = h("tbody");
  const tableBox = h("div", { class: "panel" });
  const more = h("button", { type: "button", class: "button", hidden: true, onclick: () => load(true) }, "More");
  const compareButton = h("button", { type: "button", class: "button", disabled: true, onclick: () => {
    const [first, second] = picked;
    go(to(`compare/${first}/${second}`));
  } }, "Compare two");
  const total = h("span", { class: "muted small", role: "status" });
  const search = h("input", {
    type: "search", placeholder: "Search instruction or task", "aria-label": "Search", value: wanted.search ?? "",
    oninput: afterPause((event) => change({ search: event.target.value }), 250),
  });
  const filters = h("div", { class: "filters", role: "search" });

  const change = (words) => {
    wanted = { ...wanted, ...words };
    setWords(words);
    load();
  };
  const sorted = () => ({ sort: wanted.sort ?? "created", order: wanted.order ?? "descending" });
  const onSort = (key) => {
    const now = sorted();
    const order = now.sort === key && now.order === "descending" && key !== "created" ? "ascending" : "";
    change({ sort: key === "created" ? "" : key, order });
    showHead();
  };
  const onPick = (id, is) => {
    if (is) picked.add(id);
    else picked.delete(id);
    if (picked.size > 2) picked.delete([...picked][0]);
    compareButton.disabled = picked.size !== 2;
    for (const input of body.querySelectorAll("input[type=checkbox]")) input.checked = picked.has(input.closest("tr").dataset.id);
  };
  const table = h("table", { class: "list cardlike" }, rolloutHead({ picks: true, sorted: sorted(), onSort }), body);
  const showHead = () => table.tHead.replaceWith(rolloutHead({ picks: true, sorted: sorted(), onSort }));
  put(tableBox, h("div", { class: "scroll" }, table));

  const ask = (skip) => {
    const { reward, tasks, ...rest } = wanted;
    const after = skip && next ? (next.cursor ? { cursor: next.cursor } : { skip: next.skip }) : {};
    return get(`api/v1/rollouts${query({ ...rest, ...REWARDS[reward ?? ""], ...after, limit: PAGE })}`, page.signal);
  };
  const isFiltered = () => Object.entries(wanted).some(([key, value]) => value && !["sort", "order"].includes(key));

  async function load(further = false) {
    generation += 1;
    const mine = generation;
    more.disabled = true;
    let got;
    try {
      got = await ask(further);
    } catch (error) {
      if (error.name === "AbortError" || mine !== generation) return;
      put(tableBox, failure(error, () => {
        put(tableBox, h("div", { class: "scroll" }, table));
        load();
      }));
      return;
    }
    if (mine !== generation) return;
    if (!further) rows = new Map();
    for (const row of got.rollouts) rows.set(row.id, row);
    next = got.next_cursor ? { cursor: got.next_cursor } : got.next_skip ? { skip: got.next_skip } : null;
    render(further ? got.rollouts : null);
  }

  function render(added) {
    more.hidden = next === null;
    more.disabled = false;
    total.textContent = rows.size === 0 ? "" : `${count(rows.size)}${next ? " and more" : ""}`;
    if (rows.size === 0) {
      put(tableBox, isFiltered()
        ? empty("Nothing passes these filters", h("button", { type: "button", class: "button", onclick: () => go(to("")) }, "Clear filters"))
        : firstSteps());
      return;
    }
    if (!table.isConnected) put(tableBox, h("div", { class: "scroll" }, table));
    const made = (added ?? [...rows.values()]).map((row) => rolloutRow(row, { picked, onPick }));
    if (added) return body.append(...made);
    return keepingFocus(body, () => body.replaceChildren(...made));
  }

  // What happens changes rows that are shown, and brings new ones to the first page.
  const isFirstPage = () => wanted.sort === undefined && rows.size <= PAGE;
  const refresh = atMost(() => !document.hidden && isFirstPage() && load(), 1000);
  /** Of one that ended where rows stay where they are. */
  const readEnd = async (row) => {
    Object.assign(row, await get(`api/v1/rollouts/${row.id}`, page.signal));
    changed.add(row.id);
    redraw();
  };
  page.onLeave(listen({
    onState: page.setLive,
    onMissed: refresh,
    onEvents: (events) => {
      let anew = false;
      for (const { rollout: id, event } of events) {
        if (event.type === "queued" || event.type === "finished" || (event.type === "stage_started" && event.stage === "boot")) anew = true;
        const row = rows.get(id);
        if (!row) continue;
        if (event.type === "finished" && !isFirstPage()) setTimeout(() => readEnd(row).catch(() => {}), 150);
        if (event.type === "stage_started") Object.assign(row, { state: "running", stage: event.stage });
        else if (event.type === "call_ended") {
          row.totals.calls += 1;
          row.totals.completion_tokens += event.call.completion_tokens;
        } else continue;
        changed.add(id);
      }
      if (changed.size > 0) redraw();
      // The end is told before the outcome is stored.
      if (anew) setTimeout(refresh, 150);
    },
  }));
  const changed = new Set();
  const redraw = atMost(() => {
    for (const id of changed) {
      const old = body.querySelector(`tr[data-id="${CSS.escape(id)}"]`);
      if (old) keepingFocus(body, () => old.replaceWith(rolloutRow(rows.get(id), { picked, onPick })));
    }
    changed.clear();
  }, 300);

  const names = (list) => list.map(({ name }) => [name, name]);
  let [endpoints, agents, backends] = [{ endpoints: [] }, { agents: [] }, { backends: [] }];
  function showFilters() {
    keepingFocus(filters, () => put(filters, search,
      select("State", STATES, wanted.state ?? "", (state) => change({ state })),
      select("Ending", ENDINGS, wanted.ended ?? "", (ended) => change({ ended })),
      select("Reward", REWARD_NAMES, wanted.reward ?? "", (reward) => change({ reward })),
      select("Agent", [["", "Any agent"], ...names(agents.agents)], wanted.agent ?? "", (agent) => change({ agent })),
      select("Endpoint", [["", "Any endpoint"], ...names(endpoints.endpoints)], wanted.endpoint ?? "", (endpoint) => change({ endpoint })),
      select("Sandbox", [["", "Any sandbox"], ...names(backends.backends)], wanted.backend ?? "", (backend) => change({ backend }))));
  }
  showFilters();
  page.onChange(({ words }) => {
    wanted = { ...words };
    search.value = wanted.search ?? "";
    showFilters();
    showHead();
    load();
  });
  page.show(
    h("div", { class: "head" }, h("h1", null, "Rollouts"), total, h("span", { class: "space" }), compareButton,
      h("a", { class: "button first", href: to("run") }, "Run a task")),
    filters, tableBox, h("div", { class: "empty" }, more));
  // What there is to choose from is not waited for.
  const first = load();
  Promise.all(["endpoints", "agents", "backends"].map(catalogue)).then((lists) => {
    [endpoints, agents, backends] = lists;
    showFilters();
  }, () => {});
  await first;
}

/** What to do where there is nothing yet. */
function firstSteps() {
  return empty("No rollouts yet",
    h("p", null, "A rollout is one run of a coding agent on a task, in a sandbox, with every token captured and a reward at the end. The endpoint ",
      h("code", null, "demo"), " is a scripted model inside Dressage: it needs neither a network nor a key."),
    h("div", { class: "row" }, h("a", { class: "button first", href: to("run", { preset: "binary_search", endpoint: "demo" }) }, "Run the first one"),
      h("a", { class: "button", href: to("machine") }, "What this machine can do")),
    h("p", { class: "small" }, "On a command line: ", h("code", null, "dressage run --preset binary_search --endpoint demo")));
}
