// Measures the page, and prints a line of JSON a value, as the benchmark driver reads them: scripts/bench-page runs it.

import { execFileSync } from "node:child_process";
import { createServer, request as forward } from "node:http";
import { browse, serve, until } from "./harness.mjs";
import { modelServer } from "./model.mjs";

const server = await serve({ arguments: ["--concurrency", "4"] });
const browser = await browse();
const tell = (metric, value, goal = {}) => console.log(JSON.stringify({ metric, value: Math.round(value * 1000) / 1000, ...goal }));
const FILL = `
import sqlite3, sys
store = sqlite3.connect(sys.argv[1] + "/dressage.db")
columns = [row[1] for row in store.execute("PRAGMA table_info(rollouts)")]
there, template = store.execute("SELECT count(*), min(number) FROM rollouts WHERE state = 'finished'").fetchone()
own = {"number": None, "id": "printf('018f0000-0000-7000-8000-%012x', :i)", "task_id": "'task ' || (:i % 500)"}
kept = [column for column in columns if own.get(column, column)]
chosen = ", ".join(own.get(column, column) for column in kept)
for number in range(10_000 - there):
    made = store.execute(f"INSERT INTO rollouts ({', '.join(kept)}) SELECT {chosen} FROM rollouts WHERE number = :template", {"i": number, "template": template}).lastrowid
    store.execute("INSERT INTO documents SELECT ?, kind, body FROM documents WHERE rollout = ?", (made, template))
store.commit()
`;
const middle = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

/** Milliseconds from the start of a navigation until `selector` is there. */
async function view(page, address, selector) {
  await page.goto(address, { waitUntil: "commit" });
  return page.evaluate(async (wanted) => {
    while (!document.querySelector(wanted)) await new Promise((next) => setTimeout(next, 1));
    return performance.now();
  }, selector);
}

try {
  const ids = await server.submit({ preset: "fizzbuzz", endpoint: "demo", n: 60 });
  for (const id of ids) await server.ended(id);

  // First views, with nothing in the cache.
  const first = async (name, address, selector, goal, turns = 7) => {
    const times = [];
    for (let turn = 0; turn < turns; turn += 1) {
      const page = await browser.page();
      times.push(await view(page, `${server.base}/web/${address}`, selector));
      await page.context().close();
    }
    tell(`${name}_median_ms`, middle(times), { at_most: goal });
    tell(`${name}_worst_ms`, Math.max(...times));
  };
  await first("first_view_list", "", "table.list tbody tr", 300);
  await first("first_view_rollout", `rollouts/${ids[0]}`, ".activity li:nth-child(5)", 300);
  await first("first_view_board", "board", ".tile .value", 300);

  // A rollout of 60,000 sampled tokens.
  const words = ["def ", "merge", "(", "left", ", ", "right", ")", ":\n", "    ", "return ", "sorted", "x", " = ", "1", "\n"];
  const model = await modelServer((number) => ({ pieces: Array.from({ length: 2000 }, (_, at) => words[(at * 7 + number) % words.length]), tool: number < 29 ? { name: "bash", input: { command: `echo ${number}`, description: "x" } } : null }));
  const [long] = await server.submit({ task: { instruction: "Say much", limits: { max_tokens_cap: 0 } }, base_url: model.url, api_key: "x", model: "long" });
  await server.ended(long);
  await first("tokens_60k", `rollouts/${long}/tokens`, ".turn .trained .t", 1000, 5);
  await model.close();

  // From an event to what is shown of it.
  const [live] = await server.submit({ task: { instruction: "x", setup: ["for i in $(seq 1 200); do echo line-$i-; sleep 0.05; done"] }, endpoint: "demo" });
  const page = await browser.page();
  await page.goto(`${server.base}/web/rollouts/${live}`);
  await page.locator(".activity pre").filter({ hasText: "line-5-" }).waitFor();
  const seen = page.evaluate(() => new Promise((done) => {
    const times = {};
    const look = () => {
      const text = document.querySelector(".activity pre").textContent;
      for (const [, number] of text.matchAll(/line-(\d+)-/g)) times[number] ??= Date.now();
      if (times[195]) done(times);
    };
    new MutationObserver(look).observe(document.querySelector(".activity"), { subtree: true, childList: true, characterData: true });
  }));
  const shown = await seen;
  const told = {};
  for (const part of (await (await fetch(`${server.base}/api/v1/rollouts/${live}/events`, { headers: {} }).then((reply) => reply.text())).split("\n"))) {
    if (!part.startsWith("data: ")) continue;
    const { unix_ms: at, event } = JSON.parse(part.slice(6));
    if (event.type === "command_output") for (const [, number] of event.text.matchAll(/line-(\d+)-/g)) told[number] ??= at;
  }
  const delays = Object.entries(shown).filter(([number]) => Number(number) > 20).map(([number, at]) => at - told[number]);
  tell("event_to_screen_median_ms", middle(delays), { at_most: 100 });
  tell("event_to_screen_worst_ms", Math.max(...delays), { at_most: 100 });
  await page.context().close();

  // An hour of ten events a second, as fast as they are taken.
  const [example] = ids;
  const events = 36_000;
  let sent = 0;
  const proxy = createServer((asked, answer) => {
    if (/\/events$/.test(asked.url)) {
      answer.writeHead(200, { "content-type": "text/event-stream" });
      const write = () => {
        let room = true;
        while (room && sent < events) {
          const call = { id: `c${sent}`, index: sent, end: "complete", purpose: "agent", level: "tokens", prompt_tokens: 4000, completion_tokens: 200, flags: [], duration_ms: 900, prefix_break: false };
          const event = sent % 10 === 9 ? { type: "call_ended", call } : sent % 10 < 5 ? { type: "agent", event: { kind: "text", text: `Said ${sent}: ${"some words ".repeat(20)}` } } : { type: "agent", event: { kind: "tool", name: "bash", input: `python -m pytest -q tests/test_${sent}.py`, failed: false } };
          room = answer.write(`id: ${sent + 3}\nevent: x\ndata: ${JSON.stringify({ rollout: example, sequence: sent + 3, unix_ms: 1_800_000_000_000 + sent * 100, event })}\n\n`);
          sent += 1;
          if (sent % 600 === 0) {
            // A minute is over: time for a frame.
            setTimeout(write, 250);
            return;
          }
        }
        if (sent < events) answer.once("drain", write);
      };
      const begin = [{ type: "queued", position: 0 }, { type: "stage_started", stage: "boot" }, { type: "stage_started", stage: "agent" }];
      begin.forEach((event, sequence) => answer.write(`id: ${sequence}\nevent: x\ndata: ${JSON.stringify({ rollout: example, sequence, unix_ms: 1_800_000_000_000, event })}\n\n`));
      write();
      return;
    }
    // The server answers for its own origin alone.
    const { origin: _, ...headers } = asked.headers;
    const onward = forward(server.base + asked.url, { method: asked.method, headers: { ...headers, host: new URL(server.base).host } }, (reply) => {
      if (asked.url !== `/api/v1/rollouts/${example}`) {
        answer.writeHead(reply.statusCode, reply.headers);
        reply.pipe(answer);
        return;
      }
      // As it was while it ran.
      let body = "";
      reply.on("data", (data) => (body += data));
      reply.on("end", () => answer.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify({ ...JSON.parse(body), state: "running", outcome: null, ended: null, reward: null, wall_ms: null, finished_unix_ms: null })));
    });
    asked.pipe(onward);
  });
  await new Promise((done) => proxy.listen(0, "127.0.0.1", done));
  const hour = await browser.page();
  const session = await hour.context().newCDPSession(hour);
  const heap = async () => {
    await session.send("HeapProfiler.collectGarbage");
    const { usedSize } = await session.send("Runtime.getHeapUsage");
    const nodes = await hour.evaluate(() => document.querySelectorAll("*").length);
    return [usedSize / 1e6, nodes];
  };
  await hour.goto(`http://127.0.0.1:${proxy.address().port}/web/rollouts/${example}`);
  const marks = [];
  for (const share of [0.25, 0.5, 0.75, 1]) {
    await until("events", () => sent >= events * share, 300_000);
    await hour.waitForTimeout(500);
    marks.push(await heap());
  }
  marks.forEach(([size, nodes], at) => {
    tell(`hour_heap_${(at + 1) * 15}min_mb`, size);
    tell(`hour_elements_${(at + 1) * 15}min`, nodes);
  });
  // From the first quarter on what is kept is bounded, but for a line of numbers of each call.
  tell("hour_heap_grown_after_15min_mb", marks[3][0] - marks[0][0], { at_most: 2 });
  tell("hour_elements_grown_after_15min", marks[3][1] - marks[0][1], { at_most: 100 });
  proxy.closeAllConnections();
  proxy.close();

  // With 10,000 rollouts: copies of one, with ids of their own.
  await server.crash();
  execFileSync("python3", ["-c", FILL, server.env.DRESSAGE_DATA_DIR], { stdio: "inherit" });
  await server.startAgain();
  await first("first_view_list_of_10000", "", "table.list tbody tr", 300);
  await first("first_view_search_of_10000", "?search=task%2077", "table.list tbody tr", 300);
} finally {
  await browser.close();
  await server.stop();
}
