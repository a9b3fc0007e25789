// Takes the pictures of docs/page/: `node ui/tests/shots.mjs [FOLDER]`, where scripts/web-tests has been run once.

import { mkdirSync } from "node:fs";
import { browse, serve, until } from "./harness.mjs";

const folder = process.argv[2] ?? new URL("../../docs/page", import.meta.url).pathname;
mkdirSync(folder, { recursive: true });

const server = await serve({ agent: process.env.SHOTS_AGENT ?? "real", arguments: ["--concurrency", "3"] });
const browser = await browse();
try {
  const ids = [];
  for (const [preset, n] of [["binary_search", 1], ["fizzbuzz", 4], ["pandas_csv", 1]]) ids.push(...(await server.submit({ preset, endpoint: "demo", n, top_logprobs: 5 })));
  const partly = { instruction: "Write `fizzbuzz.py` with `fizzbuzz(n)`, and a test of it.", verify: ["test -f fizzbuzz.py", "test -f test_fizzbuzz.py", "true"] };
  ids.push(...(await server.submit({ task: { id: "half", ...partly }, endpoint: "demo" })));
  ids.push(...(await server.submit({ task: { id: "broken-setup", instruction: "Never begun", setup: ["echo preparing", "exit 3"] }, endpoint: "demo" })));
  for (const id of ids) await server.ended(id);
  const group = (await server.get("/api/v1/groups")).groups[0].id;
  const slow = { instruction: "Set up the project, and make its tests pass", setup: ["for i in $(seq 1 400); do echo \"Collecting package $i of 400\"; sleep 0.15; done"], limits: { setup_timeout_s: 300 } };
  const running = await server.submit({ task: { id: "project", ...slow }, endpoint: "demo", n: 6 });
  await until("one that runs", async () => (await server.get("/api/v1/queue")).running === 3);
  const [first] = ids;
  const VIEWS = [
    ["rollouts", ""], ["run", "run?preset=binary_search"], ["live", `rollouts/${running[0]}`], ["board", "board", 2500], ["rollout", `rollouts/${first}`],
    ["conversation", `rollouts/${first}/conversation`], ["tokens", `rollouts/${first}/tokens?call=1&token=12`, 700], ["calls", `rollouts/${first}/calls`],
    ["group", `groups/${group}`], ["machine", "machine", 800],
  ];
  const only = process.env.SHOTS?.split(",");
  for (const scheme of ["light", "dark"]) {
    const page = await browser.page({ colorScheme: scheme, viewport: { width: 1280, height: 800 } });
    for (const [name, view, wait = 400] of VIEWS) {
      if (only && !only.includes(name)) continue;
      await page.goto(`${server.base}/web/${view}`);
      await page.locator("main > :not(.loading)").first().waitFor();
      await page.waitForFunction(() => !document.querySelector("main .loading"));
      await page.waitForTimeout(wait);
      await page.screenshot({ path: `${folder}/${name}-${scheme}.png` });
    }
    if (page.problems.length > 0) console.error(page.problems.join("\n"));
  }
  const phone = await browser.page({ viewport: { width: 390, height: 780 }, isMobile: true, deviceScaleFactor: 1 });
  for (const [name, view] of [["rollout", `rollouts/${first}`], ["tokens", `rollouts/${first}/tokens`]]) {
    if (only && !only.includes(name)) continue;
    await phone.goto(`${server.base}/web/${view}`);
    await phone.waitForFunction(() => !document.querySelector("main .loading"));
    await phone.waitForTimeout(500);
    await phone.screenshot({ path: `${folder}/${name}-phone.png` });
  }
} finally {
  await browser.close();
  await server.stop();
}
