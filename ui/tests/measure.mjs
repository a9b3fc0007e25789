// Measures the page and prints a table for docs/benchmarks.md: `node ui/tests/measure.mjs`, where scripts/web-tests has been run
// once.

import { createServer, request as forward } from "node:http";
import { browse, serve, until } from "./harness.mjs";
import { modelServer } from "./model.mjs";

const server = await serve({ arguments: ["--concurrency", "4"] });
const browser = await browse();
const rows = [];
const say = (what, wanted, measured, met) => rows.push(`| ${what} | ${wanted} | ${measured} | ${met ? "yes" : "**no**"} |`);
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
  for (const [name, address, selector] of [["list of rollouts", "", "table.list tbody tr"], ["one rollout", `rollouts/${ids[0]}`, ".activity li:nth-child(5)"]]) {
    const times = [];
    for (let turn = 0; turn < 7; turn += 1) {
      const page = await browser.page();
      times.push(await view(page, `${server.base}/web/${address}`, selector));
      await page.context().close();
    }
    say(`first view: ${name}`, "under 300 ms", `${middle(times).toFixed(0)} ms, worst ${Math.max(...times).toFixed(0)} ms`, middle(times) < 300);
  }

  // A rollout of 60,000 sampled tokens.
  const words = ["def ", "merge", "(", "left", ", ", "right", ")", ":\n", "    ", "return ", "sorted", "x", " = ", "1", "\n"];
  const model = await modelServer((number) => ({ pieces: Array.from({ length: 2000 }, (_, at) => words[(at * 7 + number) % words.length]), tool: number < 29 ? { name: "bash", input: { command: `echo ${number}`, description: "x" } } : null }));
  const [long] = await server.submit({ task: { instruction: "Say much", limits: { max_tokens_cap: 0 } }, base_url: model.url, api_key: "x", model: "long" });
  const { totals } = await server.ended(long);
  const opened = [];
  for (let turn = 0; turn < 5; turn += 1) {
    const page = await browser.page();
    opened.push(await view(page, `${server.base}/web/rollouts/${long}/tokens`, ".turn .trained .t"));
    await page.context().close();
  }
  say(`tokens of a rollout with ${totals.completion_tokens.toLocaleString("en-US")} sampled ones`, "under 1 s", `${middle(opened).toFixed(0)} ms, worst ${Math.max(...opened).toFixed(0)} ms`, middle(opened) < 1000);
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
  say("from an event to what is shown of it", "under 100 ms", `${middle(delays)} ms, worst ${Math.max(...delays)} ms`, middle(delays) < 100);
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
    const onward = forward(server.base + asked.url, { method: asked.method, headers: { ...asked.headers, host: new URL(server.base).host } }, (reply) => {
      if (!asked.url.endsWith(`/rollouts/${example}`)) {
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
  const [early, late] = [marks[0], marks[3]];
  say("memory of the page over an hour of events (36,000)", "stable", `${marks.map(([size]) => size.toFixed(1)).join(", ")} MB after each quarter; ${marks.map(([, nodes]) => nodes).join(", ")} elements`, late[0] < early[0] * 2 && late[1] < early[1] * 1.5);
  proxy.closeAllConnections();
  proxy.close();

  console.log("| goal | wanted | measured | met |\n| --- | --- | --- | --- |");
  console.log(rows.join("\n"));
} finally {
  await browser.close();
  await server.stop();
}
