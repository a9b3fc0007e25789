// Takes the pictures of docs/page/: `node ui/tests/shots.mjs [FOLDER]`, where scripts/web-tests has been run once. SHOTS names those
// that are wanted, else all are taken.

import { mkdirSync } from "node:fs";
import { browse, scriptedModel, serve, until } from "./harness.mjs";

const folder = process.argv[2] ?? new URL("../../docs/page", import.meta.url).pathname;
mkdirSync(folder, { recursive: true });

const STATS = `"""Means and medians."""


def mean(values):
    return sum(values) / len(values)


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle]
`;
const TESTS = `import unittest

from stats import mean, median


class Stats(unittest.TestCase):
    def test_mean(self):
        self.assertEqual(mean([1, 2, 3]), 2)

    def test_median_of_an_odd_number(self):
        self.assertEqual(median([3, 1, 2]), 2)

    def test_median_of_an_even_number(self):
        self.assertEqual(median([4, 1, 2, 3]), 2.5)


if __name__ == "__main__":
    unittest.main()
`;
const HOME = "/home/user/workdir";
const TURNS = [
  { reasoning: "The tests are said to fail. I should see how before I change anything.", text: "I run the tests first.", tool_calls: [{ name: "bash", arguments: { command: "python3 -B -m unittest -v test_stats.py", description: "Runs the tests" } }] },
  { reasoning: "The median of an even number of values is wrong: it has to be the mean of the two in the middle. Let me read the module.", text: "", tool_calls: [{ name: "read", arguments: { filePath: `${HOME}/stats.py` } }] },
  { reasoning: "`middle` is the upper one of the two. Where the length is even, I take both.", text: "`median` takes the upper of the two middle values; I mend that.", tool_calls: [{ name: "edit", arguments: { filePath: `${HOME}/stats.py`, oldString: "    return ordered[middle]\n", newString: "    if len(ordered) % 2 == 0:\n        return mean(ordered[middle - 1 : middle + 1])\n    return ordered[middle]\n" } }] },
  { reasoning: "Now all of them should pass.", text: "", tool_calls: [{ name: "bash", arguments: { command: "python3 -B -m unittest -v test_stats.py", description: "Runs the tests again" } }] },
  { reasoning: "All pass.", text: "`median` gives the mean of the two middle values where their number is even. All three tests pass.", tool_calls: [] },
];
const PROJECT = { id: "median", instruction: "The tests in `test_stats.py` fail. Find out why, and mend `stats.py`.", files: { "stats.py": STATS, "test_stats.py": TESTS },
  verify: ["python3 -B -m unittest test_stats.py", "python3 -B -c 'from stats import median; assert median([1, 9]) == 5'"] };

const server = await serve({ agent: process.env.SHOTS_AGENT ?? "real", arguments: ["--concurrency", "4"] });
const browser = await browse();
// The third of all its calls breaks off, and is made again.
const broken = { calls: { 2: [{ fault: "cut", after_events: 9, how: "reset" }] } };
const models = [await scriptedModel(TURNS, broken), await scriptedModel(TURNS.map((turn) => ({ ...turn, delay_ms: 900, event_delay_ms: 90 })))];
const [quick, slow] = models.map(({ url }) => ({ base_url: url, api_key: "none", model: "scripted", top_logprobs: 5 }));
try {
  const ids = [];
  for (const [preset, n] of [["fizzbuzz", 4], ["pandas_csv", 1], ["binary_search", 1]]) ids.push(...(await server.submit({ preset, endpoint: "demo", n, top_logprobs: 5 })));
  const partly = { instruction: "Write `fizzbuzz.py` with `fizzbuzz(n)`, and a test of it.", verify: ["test -f fizzbuzz.py", "test -f test_fizzbuzz.py", "true"] };
  ids.push(...(await server.submit({ task: { id: "half", ...partly }, endpoint: "demo", n: 2 })));
  ids.push(...(await server.submit({ task: { id: "broken-setup", instruction: "Never begun: its setup fails", setup: ["echo preparing", "exit 3"] }, endpoint: "demo" })));
  const [first] = await server.submit({ task: PROJECT, ...quick });
  for (const id of [...ids, first]) await server.ended(id);
  const group = (await server.get("/api/v1/groups?rollouts_min=4")).groups[0].id;
  const views = (running) => [
    ["live", `rollouts/${running}`, ".flying .output:not(:empty)"], ["board", "board", ".card .last:not(:empty)", 6000], ["rollouts", ""], ["run", "run?preset=binary_search"],
    ["rollout", `rollouts/${first}`], ["conversation", `rollouts/${first}/conversation?message=6`, ".message.on"], ["tokens", `rollouts/${first}/tokens?call=4&token=12`, ".alternatives .alt"],
    ["calls", `rollouts/${first}/calls`], ["files", `rollouts/${first}/files`], ["group", `groups/${group}`], ["machine", "machine", "text=This machine"],
  ];
  const only = process.env.SHOTS?.split(",");
  for (const scheme of ["light", "dark"]) {
    // What runs is asked for anew, so that it is not over before its picture is taken.
    const running = await server.submit({ task: PROJECT, ...slow, n: 6 });
    await until("one that its agent works on", async () => {
      const { rollouts } = await server.get("/api/v1/rollouts?state=running");
      return rollouts.length === 4 && rollouts.every((row) => row.totals.calls >= 1);
    });
    const page = await browser.page({ colorScheme: scheme, viewport: { width: 1280, height: 880 } });
    for (const [name, view, what = "main > :not(.loading)", wait = 600] of views(running[0])) {
      if (only && !only.includes(name)) continue;
      await page.goto(`${server.base}/web/${view}`);
      await page.waitForFunction(() => document.querySelector("main > *") && !document.querySelector("main .loading"));
      await page.locator(what).first().waitFor();
      await page.evaluate(() => document.querySelectorAll("details.reasoning").forEach((one) => (one.open = true)));
      await page.waitForTimeout(wait);
      await page.screenshot({ path: `${folder}/${name}-${scheme}.png` });
    }
    if (page.problems.length > 0) console.error(page.problems.join("\n"));
    await page.context().close();
    for (const id of running) await server.post(`/api/v1/rollouts/${id}/cancel`);
    for (const id of running) await server.ended(id);
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
  for (const model of models) model.close();
}
