// What people do on the page, in a real browser, against a real server.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { PROGRAM, browse, modules, picture, serve, until } from "./harness.mjs";
import { modelServer } from "./model.mjs";

const AXE = readFileSync(modules.resolve("axe-core/axe.min.js"), "utf8");

let browser;
let server;
before(async () => {
  browser = await browse();
  server = await serve({ arguments: ["--concurrency", "4", "--queue", "100"] });
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

const hanging = { task: { instruction: "Wait for me", setup: ["for i in $(seq 1 600); do echo line $i; sleep 0.1; done"], limits: { setup_timeout_s: 500 } }, endpoint: "demo" };

/** What axe finds that is serious. */
async function findings(page) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return violations.filter((one) => ["serious", "critical"].includes(one.impact)).map((one) => `${one.id}: ${one.help}\n  ${one.nodes.map((node) => `${node.html} ${node.failureSummary}`).slice(0, 4).join("\n  ")}`);
}

async function open(view, options) {
  const page = await browser.page(options);
  await page.goto(`${(options?.server ?? server).base}/web/${view}`);
  return page;
}

/** A test by its name. What its pages show at the end is kept, also where it failed. */
function journey(name, work) {
  test(name, async () => {
    try {
      await work((page) => done(page, name));
    } catch (error) {
      for (const [at, page] of [...browser.open].entries()) await picture(page, "failed", String(at), name).catch(() => {});
      for (const page of [...browser.open]) console.log(`# at ${page.url()}: ${page.problems.join("\n") || "no problem was told"}`);
      throw error;
    } finally {
      for (const page of [...browser.open]) await page.context().close().catch(() => {});
    }
  });
}

async function done(page, name) {
  await picture(page, name);
  assert.deepEqual(page.problems, []);
  await page.context().close();
}

/** Follows a rollout beside the page: `line` is the last that was told. */
function counting({ base }, id) {
  const control = new AbortController();
  const told = { line: 0, stop: () => control.abort() };
  (async () => {
    const { body } = await fetch(`${base}/api/v1/rollouts/${id}/events`, { signal: control.signal });
    const decoder = new TextDecoder();
    for await (const piece of body) for (const [, line] of decoder.decode(piece, { stream: true }).matchAll(/line (\d+)/g)) told.line = Math.max(told.line, Number(line));
  })().catch((error) => {
    if (error.name !== "AbortError") throw error;
  });
  return told;
}

/** Lines 1 to n, each once. */
function assertCounted(text) {
  const lines = text.trim().split("\n");
  assert.deepEqual(lines, lines.map((_, at) => `line ${at + 1}`));
  return lines.length;
}

journey("whoever comes first is told what to do, and watches the real agent get its reward", async (done) => {
  const empty = await serve({ agent: "real" });
  const page = await open("", { server: empty });
  await page.getByRole("heading", { name: "No rollouts yet" }).waitFor();
  await page.getByRole("link", { name: "Run the first one" }).click();
  await page.getByLabel("Instruction").waitFor();
  assert.match(await page.getByLabel("Instruction").inputValue(), /binary_search/);
  assert.match(await page.locator(".snippet pre").first().textContent(), /^dressage run \\\n {2}--preset binary_search \\\n {2}--endpoint demo/);
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.waitForURL(/\/web\/rollouts\/[0-9a-f-]{36}$/);
  await page.locator(".tiles .reward[data-level=full]").waitFor();
  await page.locator(".stage-table [data-stage=verify][data-state=done]").waitFor();
  // Calls are on the line of time, within the agent's stage, and lead to their tokens.
  assert.ok(await page.locator(".timeline .call").count() >= 3);
  const [agent, ...calls] = await page.evaluate(() => [".timeline .stage[data-stage=agent]", ".timeline .call:not(.other)"]
    .flatMap((those) => [...document.querySelectorAll(those)].map((node) => node.getBoundingClientRect().toJSON())));
  for (const call of calls) assert.ok(call.left >= agent.left - 5 && call.right <= agent.right + 5, JSON.stringify([call, agent]));
  await done(page);
  await empty.stop();
});

journey("what is wrong in the form is said beside the field", async (done) => {
  const page = await open("run");
  await page.getByLabel("Instruction").waitFor();
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.locator("#field-task-instruction-wrong").filter({ hasText: "say what is to be done" }).waitFor();
  await page.getByLabel("Instruction").fill("x");
  await page.getByText("Calls, sampling, limits, sandbox").click();
  await page.getByLabel("Agent, seconds").fill("-3");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.locator("#field-task-limits-agent_timeout_s-wrong:not([hidden])").waitFor();
  await page.getByLabel("Agent, seconds").fill("0");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  // This one only the server knows.
  await page.locator("#field-task-limits-agent_timeout_s-wrong").filter({ hasText: "agent_timeout_s" }).waitFor();
  assert.equal(await page.getByLabel("Agent, seconds").getAttribute("aria-invalid"), "true");
  await picture(page, "wrong fields");
  await page.getByLabel("Agent, seconds").fill("");
  await page.getByLabel("Only these hosts").fill("git.example.org, not a host!");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.locator("#field-task-network-wrong:not([hidden])").waitFor();
  await page.getByLabel("Only these hosts").fill("");
  await page.getByLabel("Endpoint").selectOption("an address of your own…");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.locator("#field-base_url-wrong").filter({ hasText: "say where it is" }).waitFor();
  await page.getByLabel("Base URL").fill("http://169.254.169.254/v1");
  await page.getByLabel("Model", { exact: true }).fill("m");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.locator("#field-base_url-wrong:not([hidden])").filter({ hasNotText: "say where" }).waitFor();
  await done(page);
});

/** What the form says elsewhere: command line, Python, request. */
async function snippets(page) {
  return page.locator(".snippet pre").allTextContents();
}

const STAND_IN = `import json, os
class Rollout:
    reward, ended = 1, "completed"
class Client:
    def __init__(self, **given): pass
    def run(self, **given):
        print(json.dumps(given))
        return Rollout()
    def run_all(self, specs):
        print(json.dumps(specs[0]))
        return [Rollout()]
`;

journey("what the form says as a command line, in Python and as a request is what it would run", async (done) => {
  const own = await serve({ arguments: ["--tasks", "tasks"], files: {
    "tasks/greet.toml": "instruction = 'Write fizzbuzz.py with fizzbuzz(n).'\nverify = ['test -f note.txt', 'test -f fizzbuzz.py']\n[files]\n'note.txt' = \"it's\\n\"\n[limits]\nmax_calls = 30\n",
    "tasks/wrong.toml": "instruction = 'x'\nverfy = []\n",
    "dressage.py": STAND_IN,
  } });
  const place = join(own.folder, "work");
  const shell = (text) => execFileSync("bash", ["-ec", text], { cwd: place, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"],
    env: { ...own.env, DRESSAGE_DATA_DIR: join(own.folder, "other"), PATH: `${dirname(PROGRAM)}:${process.env.PATH}` } });
  const page = await open("run?preset=fizzbuzz&endpoint=demo", { server: own });
  await page.getByLabel("Instruction").waitFor();
  const fill = async (label, value) => page.getByLabel(label, { exact: true }).fill(value);
  const CASES = [
    ["a ready-made task", async () => {}],
    ["with other limits", async () => {
      await page.getByText("Calls, sampling, limits, sandbox").click();
      await fill("Agent, seconds", "77");
      await fill("Top k", "-1");
      await fill("Top log-probabilities", "2");
    }],
    ["of one’s own", async () => {
      await fill("Instruction", "Write fizzbuzz.py with `fizzbuzz(n)`: it's \"quoted\" $HOME");
      await fill("Setup", "echo '$x' > a\ntrue");
      await fill("Verify", "test -f fizzbuzz.py\ntest -f a");
      await fill("Rollouts", "2");
    }],
    ["of an instruction like an option", async () => fill("Instruction", "--fizzbuzz of fizzbuzz.py")],
    ["of a file of the server", async () => {
      await page.getByLabel("Task files of this server").selectOption("greet.toml");
      await until("its instruction", async () => (await page.getByLabel("Instruction").inputValue()) === "Write fizzbuzz.py with fizzbuzz(n).");
      await fill("Agent, seconds", "66");
      await fill("Rollouts", "1");
    }],
    ["of such a file with another verify", async () => fill("Verify", "test -f note.txt\ntest -f fizzbuzz.py\ntrue")],
  ];
  for (const [what, change] of CASES) {
    await change();
    const [command, python, request] = await snippets(page);
    const posted = JSON.parse(shell(`set -- ${request.replace(/^curl -s \S+/, "")}; printf %s "\${@: -1}"`));
    assert.deepEqual(JSON.parse(shell(`cat >snippet.py <<'SNIPPET'\n${python}\nSNIPPET\nPYTHONDONTWRITEBYTECODE=1 python3 snippet.py`).split("\n")[0]), posted, what);
    const got = JSON.parse(shell(request));
    const rows = [];
    for (const { id } of got.rollouts) rows.push(await own.ended(id));
    const ran = shell(`${command} --json`).trim().split("\n").map((line) => JSON.parse(line));
    assert.deepEqual(ran.map(({ reward }) => reward?.value), rows.map(({ reward }) => reward), `${what}: ${command}`);
    assert.ok(rows.every(({ reward }) => reward === 1), `${what}: ${JSON.stringify(rows.map(({ reward }) => reward))}`);
    // The same task, key by key.
    const [here] = rows;
    const there = JSON.parse(shell(`dressage show ${ran[0].id} --json`));
    const { id: _, ...task } = there.start.task;
    const { id: __, ...asked } = here.start.task;
    assert.deepEqual(task, asked, what);
  }
  await page.getByLabel("Task files of this server").selectOption("wrong.toml");
  await page.locator(".toast.bad").filter({ hasText: "verfy" }).waitFor();
  await done(page);
  await own.stop();
});

journey("endpoints are probed, paused and resumed, and a sandbox is ended", async (done) => {
  const model = await modelServer(() => ({ pieces: ["yes"], tool: null }));
  const own = await serve({ environment: { VLLM_URL: model.url, VLLM_MODEL: "hostile" } });
  const [id] = await own.submit(hanging);
  const page = await open("machine", { server: own });
  const panel = page.locator("section.panel").filter({ has: page.getByRole("heading", { name: "vllm", exact: true }) });
  await panel.getByRole("button", { name: "Probe" }).click();
  await panel.getByText("What it returns").waitFor();
  await panel.locator(".chip.good").filter({ hasText: "tokens" }).first().waitFor();
  await panel.getByRole("button", { name: "Pause" }).click();
  await panel.locator(".chip").filter({ hasText: "paused" }).waitFor();
  assert.equal((await own.get("/api/v1/endpoints/vllm")).paused, true);
  await panel.getByRole("button", { name: "Resume" }).click();
  await panel.getByRole("button", { name: "Pause" }).waitFor();
  assert.equal((await own.get("/api/v1/endpoints/vllm")).paused, false);
  await page.getByRole("button", { name: /^End sandbox/ }).click();
  assert.equal((await own.ended(id)).ended, "cancelled");
  await page.getByText("None: each is made for a rollout").waitFor();
  await page.goto(`${own.base}/web/run?endpoint=vllm`);
  await page.getByLabel("Endpoint").locator("option", { hasText: "vllm · hostile · token ids" }).waitFor({ state: "attached" });
  await done(page);
  await own.stop();
  await model.close();
});

journey("a long list comes a page at a time", async (done) => {
  const own = await serve({ arguments: ["--queue", "200", "--concurrency", "1"] });
  await own.submit(hanging);
  await own.submit({ task: { instruction: "One of many" }, endpoint: "demo", n: 120 });
  const page = await open("?state=queued", { server: own });
  const rows = page.locator("table.list tbody tr");
  await rows.nth(49).waitFor();
  assert.equal(await rows.count(), 50);
  await page.getByRole("button", { name: "More" }).click();
  await rows.nth(99).waitFor();
  await page.getByRole("button", { name: "More" }).click();
  await rows.nth(119).waitFor();
  await page.getByRole("button", { name: "More" }).waitFor({ state: "hidden" });
  assert.equal(await rows.count(), 120);
  assert.equal(new Set(await rows.evaluateAll((all) => all.map((row) => row.dataset.id))).size, 120);
  await done(page);
  await own.stop();
});

journey("a rollout is watched, reloaded in the middle, and cancelled", async (done) => {
  const [id] = await server.submit(hanging);
  const page = await open(`rollouts/${id}`);
  await page.locator(".activity pre").filter({ hasText: "line 3" }).waitFor();
  await page.locator(".stage-table [data-stage=setup][data-state=now]").waitFor();
  await page.reload();
  await page.locator(".activity pre").filter({ hasText: "line 8" }).waitFor();
  await page.getByRole("tab", { name: /Commands/ }).click();
  const output = page.locator("#panel .output");
  await output.filter({ hasText: "line 10" }).waitFor();
  // Nothing is missed and nothing is doubled by the reload.
  assertCounted(await output.textContent());
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.locator(".head .chip").filter({ hasText: "cancelled" }).waitFor();
  assert.equal((await server.ended(id)).ended, "cancelled");
  await done(page);
});

journey("a stream that breaks goes on where it was", async (done) => {
  const [id] = await server.submit(hanging);
  const page = await browser.page();
  const asked = [];
  await page.route(`**/api/v1/rollouts/${id}/events`, async (route) => {
    asked.push(route.request().headers()["last-event-id"] ?? null);
    if (asked.length > 1) return route.continue();
    // The first piece, and then the connection is gone.
    const events = await fetch(`${server.base}/api/v1/rollouts/${id}/events`);
    let text = "";
    const decoder = new TextDecoder();
    for await (const piece of events.body) {
      text += decoder.decode(piece);
      if (text.split("\n\n").length > 12) break;
    }
    return route.fulfill({ headers: { "content-type": "text/event-stream" }, body: text.slice(0, text.lastIndexOf("\n\n") + 2 + 7) });
  });
  await page.goto(`${server.base}/web/rollouts/${id}/commands`);
  await page.locator("#panel .output").filter({ hasText: "line 20" }).waitFor();
  assertCounted(await page.locator("#panel .output").textContent());
  assert.equal(asked[0], null);
  assert.match(asked[1], /^\d+$/);
  await server.post(`/api/v1/rollouts/${id}/cancel`);
  await done(page);
});

journey("a tab that sleeps misses nothing", async (done) => {
  const [id] = await server.submit(hanging);
  const page = await open(`rollouts/${id}/commands`);
  const output = page.locator("#panel .output");
  await output.filter({ hasText: "line 3" }).waitFor();
  const session = await page.context().newCDPSession(page);
  await session.send("Page.setWebLifecycleState", { state: "frozen" });
  const told = counting(server, id);
  await until("a line", () => told.line > 0);
  const slept = told.line;
  await until("lines that it sleeps over", () => told.line > slept + 20);
  told.stop();
  await session.send("Page.setWebLifecycleState", { state: "active" });
  await output.filter({ hasText: `line ${slept + 21}` }).waitFor();
  assert.ok(assertCounted(await output.textContent()) > slept + 20);
  await server.post(`/api/v1/rollouts/${id}/cancel`);
  await done(page);
});

journey("a server that is started anew is followed again, and what it left is said to be over", async (done) => {
  const own = await serve();
  const [left, again] = [...(await own.submit(hanging)), ...(await own.submit({ ...hanging, on_interrupt: "rerun" }))];
  const pages = [await open(`rollouts/${left}`, { server: own }), await open(`rollouts/${again}/commands`, { server: own }), await open("", { server: own })];
  await pages[0].locator(".activity pre").filter({ hasText: "line 3" }).waitFor();
  await pages[1].locator("#panel .output").filter({ hasText: "line 3" }).waitFor();
  await pages[2].locator(".live-dot[data-state=live]").waitFor();
  await own.crash();
  for (const page of pages) await page.locator(".live-dot[data-state=wait]").waitFor();
  await own.startAgain();
  await pages[0].getByText("The process that ran it died over it").waitFor();
  await pages[2].locator(".live-dot[data-state=live]").waitFor();
  await pages[2].locator(`tr[data-id="${left}"] .chip`).filter({ hasText: "interrupted" }).waitFor();
  // What begins anew is shown from its new beginning.
  await pages[1].locator("#panel .output").filter({ hasText: "line 3" }).waitFor();
  await until("lines of the new beginning", async () => (await pages[1].locator("#panel .output").textContent()).trim().split("\n").at(-1) === `line ${assertCounted(await pages[1].locator("#panel .output").textContent())}`);
  await own.post(`/api/v1/rollouts/${again}/cancel`);
  await pages[1].locator(".head .chip").filter({ hasText: "cancelled" }).waitFor();
  for (const page of pages) await done(page);
  await own.stop();
});

journey("calls appear, and what is sampled streams in", async (done) => {
  let release;
  const held = new Promise((go) => (release = go));
  const model = await modelServer((number) => ({ pieces: ["<think>", "so", "</think>", "I", " will", " count", "."], tool: number === 0 ? { name: "bash", input: { command: "echo 1", description: "x" } } : null, hold: number === 0 ? held : null }));
  const [id] = await server.submit({ task: { instruction: "Count" }, base_url: model.url, api_key: "x", model: "hostile" });
  const page = await open(`rollouts/${id}`);
  await page.locator(".stage-table [data-stage=agent][data-state=now]").waitFor();
  await page.locator(".flying .output").filter({ hasText: "<think>so</think>" }).waitFor();
  await page.locator(".timeline .call.now").waitFor();
  await picture(page, "a call in flight");
  await page.getByRole("tab", { name: /Tokens/ }).click();
  release();
  await page.locator(".turn").nth(1).waitFor();
  assert.match(await page.locator(".turn").first().textContent(), /I will count\./);
  await server.ended(id);
  await page.getByRole("tab", { name: /Overview/ }).click();
  await page.locator(".head .chip").filter({ hasText: "completed" }).waitFor();
  assert.equal(await page.locator(".flying:not([hidden])").count(), 0);
  await done(page);
  await model.close();
});

journey("twenty rollouts at once are on the board, and end in a group", async (done) => {
  const page = await open("board");
  await page.getByRole("heading", { name: "Board" }).waitFor();
  await server.submit({ preset: "fizzbuzz", endpoint: "demo", n: 20 });
  await page.locator(".cards .card").first().waitFor();
  await page.locator(".cards .card.fresh .reward[data-level=full]").first().waitFor();
  await until("their end", async () => (await server.get("/api/v1/groups")).groups[0].finished === 20);
  await page.getByRole("heading", { name: "Nothing runs" }).waitFor();
  await page.getByRole("link", { name: "Groups" }).click();
  const row = page.locator("table.list tbody tr").first();
  await row.filter({ hasText: "20 of 20" }).waitFor();
  await row.getByRole("link").first().click();
  await page.locator(".tile").filter({ hasText: "Mean reward" }).locator(".reward[data-level=full]").waitFor();
  assert.equal(await page.locator("table.list tbody tr").count(), 20);
  await page.locator("td.pick input").nth(0).check();
  await page.locator("td.pick input").nth(1).check();
  await page.getByRole("button", { name: "Compare two" }).click();
  await page.getByRole("heading", { name: "Two rollouts" }).waitFor();
  await page.locator(".talk .message").first().waitFor();
  // The scripted model says the same each time.
  await page.getByRole("row", { name: /sampled the same until/ }).filter({ hasText: "the end" }).waitFor();
  await done(page);
});

journey("conversation, calls, tokens, files, logs and raw are there, each at its own address", async (done) => {
  const [id] = await server.submit({ preset: "binary_search", endpoint: "demo", top_logprobs: 3 });
  await server.ended(id);
  const page = await open(`rollouts/${id}/conversation`);
  await page.locator(".message[data-role=assistant] .tool-call").first().waitFor();
  assert.ok(await page.locator(".message[data-role=tool]").count() >= 2);
  assert.equal(await page.locator("details.reasoning[open]").count(), 0);

  await page.getByRole("link", { name: "address of message 2" }).click();
  assert.match(page.url(), /\/conversation\?message=2$/);
  await page.reload();
  await page.locator(".message.on[aria-label$='message 2']").waitFor();

  await page.getByRole("tab", { name: /Calls/ }).click();
  await page.locator(".graph li").nth(2).waitFor();
  await page.getByRole("button", { name: "details of call 1" }).click();
  await page.getByText("Request and reply").click();
  await page.locator(".json .key").filter({ hasText: "messages" }).first().waitFor();
  assert.match(page.url(), /\/calls\?call=1$/);
  assert.equal(await page.locator(".panel > .graph .edge").count(), (await page.locator(".graph li").count()) - 1);
  assert.ok(await page.locator(".panel > .graph .edge.broken").count() >= 1);

  await page.getByRole("tab", { name: /Tokens/ }).click();
  const tokens = page.locator(".turn").first().locator(".trained .t");
  await tokens.first().waitFor();
  await page.getByRole("heading", { name: "Entropy along the turns" }).waitFor();
  const document = await server.get(`/api/v1/rollouts/${id}/trajectory`);
  const completion = document.calls[0].completions[0];
  await until("all tokens of the turn", async () => (await tokens.count()) === completion.token_ids.length);
  // What is shown of a token is what was captured of it.
  for (const at of [0, 7, completion.token_ids.length - 1]) {
    await tokens.nth(at).click();
    const said = await page.locator(".inspector .facts").textContent();
    assert.ok(said.includes(String(completion.token_ids[at])), said);
    assert.ok(said.includes(completion.logprobs[at].toFixed(4)), said);
  }
  await page.locator(".alternatives .alt").nth(2).waitFor();
  const share = Math.exp(completion.top_logprobs.at(-1)[0].logprob) * 100;
  const first = await page.locator(".alternatives .alt .number").first().textContent();
  assert.ok(Math.abs(parseFloat(first) - share) < 0.1, `${first} ${share}`);
  assert.match(page.url(), new RegExp(`/tokens\\?call=0&token=${completion.token_ids.length - 1}$`));
  await page.keyboard.press("ArrowLeft");
  await page.locator(".inspector .facts").filter({ hasText: String(completion.token_ids.at(-2)) }).waitFor();
  // Searching for an id finds each place of it.
  const inPrompts = new Set(document.calls.flatMap((call) => call.prompt.tail));
  const wanted = completion.token_ids.find((one) => inPrompts.has(one));
  const places = document.calls.flatMap((call) => call.completions[0].token_ids).filter((one) => one === wanted).length;
  await page.getByLabel("Find a token by id or text").fill(String(wanted));
  await page.getByText(`${places} found`).waitFor();
  // And in what is new of each prompt.
  const inContext = document.calls.flatMap((call) => call.prompt.tail).filter((one) => one === wanted).length;
  assert.ok(inContext > 0);
  await page.getByText(`${places} found, ${inContext} in context`).waitFor();
  await page.getByLabel("Find a token by id or text").press("Enter");
  await page.getByText(`1 of ${places + inContext}`).waitFor();
  // A token's address leads to it.
  const address = page.url();
  const other = await browser.page();
  await other.goto(address);
  await other.locator(".t.on").waitFor();
  await done(other);

  await page.getByRole("tab", { name: /Files/ }).click();
  await page.locator(".source .k").first().waitFor();
  assert.match(await page.locator(".source").textContent(), /def binary_search/);
  await page.getByRole("tab", { name: /Logs/ }).click();
  await page.locator(".output").first().waitFor();
  await page.getByRole("tab", { name: /Raw/ }).click();
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "trajectory.json" }).click()]);
  assert.deepEqual(JSON.parse(readFileSync(await download.path(), "utf8")), document);
  await page.goBack();
  await page.waitForURL(/\/logs$/);
  await done(page);
});

const HOSTILE = [
  "<script>window.hacked = 1</script>", "<img src=x onerror='window.hacked = 1'>", "\u001b[31mred\u001b[0m \u001b]0;title\u0007 \u001b[2J", "a\u202egnp.exe\u202c b\u200b", "</pre></div><iframe src='javascript:window.hacked=1'>",
].join("\n");

journey("what agents, models and programs write is shown as text", async (done) => {
  const model = await modelServer((number) => ({
    pieces: ["<|im_start|>", "<script>", "window", ".hacked = 1", "</script>", "\u202e", "\u0000", "\u001b[31m", "\n", "<img src=x onerror=", "alert(1)>", "😀", "", "\ud83d"],
    tool: number === 0 ? { name: "bash", input: { command: `cat hostile.txt`, description: HOSTILE } } : null, top: 2,
  }));
  const line = "head -c 5000000 /dev/zero | tr '\\0' 'x'";
  const [id] = await server.submit({
    task: { id: HOSTILE, instruction: HOSTILE, setup: ["cat hostile.txt", line], verify: ["cat hostile.txt >&2; false"], files: { "hostile.txt": HOSTILE, "a<b>&\"'.py": HOSTILE } },
    base_url: model.url, api_key: "x", model: "hostile", top_logprobs: 2,
  });
  await server.ended(id);
  const page = await open(`rollouts/${id}`);
  page.on("dialog", () => page.problems.push("a dialog was opened"));
  for (const part of ["", "/conversation", "/tokens", "/calls", "/commands", "/files", "/logs", "/raw"]) {
    await page.goto(`${server.base}/web/rollouts/${id}${part}`);
    await page.locator("#panel > :not(.loading)").first().waitFor();
    if (part === "/tokens") await page.locator(".t").nth(10).waitFor();
    const found = await page.evaluate(() => ({
      hacked: window.hacked, scripts: document.querySelectorAll("main script, main iframe, main img").length,
      hidden: /[\u0000-\u0008\u001b\u200b\u202a-\u202e\u2066-\u2069]/.test(document.querySelector("main").textContent),
      wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    }));
    assert.deepEqual(found, { hacked: undefined, scripts: 0, hidden: false, wide: 0 }, part);
  }
  await page.goto(`${server.base}/web/rollouts/${id}/commands`);
  const outputs = page.locator("#panel .output");
  await outputs.filter({ hasText: "<script>window.hacked = 1</script>" }).first().waitFor();
  assert.equal(await page.locator("#panel .ansi-1").first().textContent(), "red");
  // Of five megabytes in a line a part is there, and the rest can be had.
  const lengths = await outputs.evaluateAll((all) => all.map((one) => one.textContent.length));
  assert.ok(Math.max(...lengths) <= 100_000, String(lengths));
  await page.goto(`${server.base}/web/`);
  await page.locator("table.list").getByText("<script>window.hacked = 1</script>").first().waitFor();
  await done(page);
  await model.close();
});

journey("of 60,000 tokens only those near the window are in the document", async (done) => {
  const words = ["def ", "merge", "(", "left", ", ", "right", ")", ":\n", "    ", "return ", "sorted", "x", " = ", "1", "\n"];
  const calls = 30;
  const model = await modelServer((number) => ({ pieces: Array.from({ length: 2000 }, (_, at) => words[(at * 7 + number) % words.length]), tool: number < calls - 1 ? { name: "bash", input: { command: `echo ${number}`, description: "x" } } : null }));
  const [id] = await server.submit({ task: { instruction: "Say much", limits: { max_tokens_cap: 0 } }, base_url: model.url, api_key: "x", model: "hostile" });
  const row = await server.ended(id);
  assert.ok(row.totals.completion_tokens >= 60_000, JSON.stringify(row.totals));
  const page = await open("");
  await page.locator("table.list tbody tr").first().waitFor();
  const took = await page.evaluate(async (address) => {
    const began = performance.now();
    history.pushState(null, "", address);
    dispatchEvent(new PopStateEvent("popstate"));
    while (!document.querySelector(".turn .trained .t")) await new Promise(requestAnimationFrame);
    const shown = performance.now();
    const read = performance.getEntriesByType("resource").findLast((one) => one.name.includes("/trajectory"));
    return { all: shown - began, own: shown - read.responseEnd };
  }, `/web/rollouts/${id}/tokens`);
  const scrolled = await page.evaluate(async () => {
    const frames = [];
    const step = document.documentElement.scrollHeight / 120;
    let last = performance.now();
    for (let at = 0; at < 120; at += 1) {
      window.scrollBy(0, step);
      await new Promise(requestAnimationFrame);
      const now = performance.now();
      frames.push(now - last);
      last = now;
    }
    frames.sort((a, b) => a - b);
    return { median: frames[60], worst: frames.at(-1), there: document.querySelectorAll(".t").length };
  });
  console.log(`# 60,000 tokens: first ones after ${took.all.toFixed(0)} ms, ${took.own.toFixed(0)} ms of it the page’s; frames ${scrolled.median.toFixed(0)} ms, worst ${scrolled.worst.toFixed(0)} ms; ${scrolled.there} in the document`);
  // How long it takes depends on the machine's load and on how the server was built: measure.mjs says that of a release build.
  assert.ok(scrolled.there < 5_000, `${scrolled.there} tokens are in the document`);
  await done(page);
  await model.close();
});

journey("a server with keys is asked with one, which is in no address", async (done) => {
  const key = "0123456789abcdef-page";
  const keyed = await serve({ environment: { DRESSAGE_API_KEYS: key } });
  const page = await browser.page();
  const addresses = [];
  page.on("request", (request) => addresses.push(request.url()));
  await page.goto(`${keyed.base}/web/`);
  await page.getByLabel("API key").fill("0123456789abcdef-wrong");
  await page.getByRole("button", { name: "Go on" }).click();
  await page.getByText("That key is wrong").waitFor();
  await page.getByLabel("API key").fill(key);
  await page.getByRole("button", { name: "Go on" }).click();
  await page.getByRole("heading", { name: "No rollouts yet" }).waitFor();
  await page.reload();
  await page.getByRole("heading", { name: "No rollouts yet" }).waitFor();
  assert.ok(addresses.length > 20 && addresses.every((address) => !address.includes("0123456789")));
  assert.deepEqual(await page.context().cookies(), []);
  assert.deepEqual(await page.evaluate(() => Object.keys(localStorage)), ["dressage.theme"]);
  await done(page);
  await keyed.stop();
});

journey("everything can be done by keyboard", async (done) => {
  const page = await open("");
  await page.locator("table.list tbody tr").first().waitFor();
  await page.keyboard.press("j");
  await page.keyboard.press("j");
  assert.equal(await page.evaluate(() => document.activeElement.closest("tr")?.rowIndex), 2);
  await page.keyboard.press("x");
  await page.keyboard.press("j");
  await page.keyboard.press("x");
  await page.getByRole("button", { name: "Compare two" }).focus();
  await page.keyboard.press("Enter");
  await page.waitForURL(/compare\//);
  await page.getByRole("heading", { name: "Two rollouts" }).waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  await page.goBack();
  await page.locator("table.list tbody tr").nth(2).waitFor();
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.waitForURL(/rollouts\/[0-9a-f-]{36}$/);
  await page.getByRole("tab", { name: /Overview/ }).waitFor();
  await page.keyboard.press("]");
  await page.waitForURL(/\/conversation$/);
  // Within the tabs the arrows go from one to the next.
  await page.keyboard.press("ArrowRight");
  await page.waitForURL(/\/tokens$/);
  await page.keyboard.press("?");
  await page.getByRole("heading", { name: "Keys" }).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("g");
  await page.keyboard.press("b");
  await page.waitForURL(/\/board$/);
  await page.keyboard.press("g");
  await page.keyboard.press("r");
  await page.getByRole("searchbox").waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("no such rollout");
  await page.getByRole("heading", { name: "Nothing passes these filters" }).waitFor();
  assert.match(page.url(), /search=no\+such\+rollout/);
  await done(page);
});

for (const scheme of ["light", "dark"]) {
  journey(`axe finds nothing serious, ${scheme}`, async (done) => {
    const [id] = await server.submit({ preset: "pandas_csv", endpoint: "demo" });
    await server.ended(id);
    const group = (await server.get("/api/v1/groups")).groups[0];
    const page = await open("", { colorScheme: scheme });
    const found = [];
    for (const view of ["", "run", "groups", `groups/${group.id}`, `compare/${id}/${id}`, "board", "machine", ...["", "/conversation", "/tokens", "/calls", "/commands", "/files", "/logs", "/raw"].map((part) => `rollouts/${id}${part}`)]) {
      await page.goto(`${server.base}/web/${view}`);
      await page.locator("main > :not(.loading)").first().waitFor();
      await page.waitForFunction(() => !document.querySelector("main .loading"));
      found.push(...(await findings(page)).map((one) => `${view}: ${one}`));
    }
    assert.deepEqual(found, []);
    await done(page);
  });
}

journey("nothing is wider than a phone", async (done) => {
  const [row] = (await server.get("/api/v1/rollouts?state=finished&limit=1")).rollouts;
  const group = (await server.get("/api/v1/groups")).groups[0].id;
  const page = await open("", { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true });
  for (const view of ["", "run", "groups", `groups/${group}`, `compare/${row.id}/${row.id}`, "board", "machine", ...["", "/conversation", "/tokens", "/calls", "/commands", "/files", "/logs", "/raw"].map((part) => `rollouts/${row.id}${part}`)]) {
    await page.goto(`${server.base}/web/${view}`);
    await page.locator("main > :not(.loading)").first().waitFor();
    await page.waitForFunction(() => !document.querySelector("main .loading"));
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    await picture(page, "phone", view.replace(/[0-9a-f-]{36}/g, "") || "rollouts");
    assert.ok(wide <= 0, `${view}: ${wide} pixels too wide`);
  }
  await done(page);
});
