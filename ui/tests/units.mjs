// Parts of the page that need no browser.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { Parser } from "../page/events.js";
import { duration, percent } from "../page/format.js";
import { whyUntrained } from "../page/marks.js";
import { Trajectory, readMessage, readReply } from "../page/rollout/document.js";
import { entropy } from "../page/rollout/charts.js";
import { diff } from "../page/rollout/source.js";
import { lanes, retries } from "../page/rollout/graph.js";
import { Model } from "../page/rollout/model.js";
import { chunks } from "../page/rollout/tokens.js";
import { plain } from "../page/text.js";
import { parting } from "../page/views/compare.js";
import { commandLine, prune, quoted } from "../page/run/elsewhere.js";

test("any split of a stream gives the same events", () => {
  const text = "event: position\nid: a-0\ndata: {}\n\n:\n\nid: a-1\nevent: agent\ndata: {\"text\":\"ü😀\"}\n\nid: 2\ndata: a\ndata:b\n\nid: 3\ndata: cut";
  const bytes = new TextEncoder().encode(text);
  const whole = new Parser().push(bytes);
  assert.deepEqual(whole, [
    { id: "a-0", event: "position", data: "{}" }, { id: "a-1", event: "agent", data: "{\"text\":\"ü😀\"}" }, { id: "2", event: "message", data: "a\nb" },
  ]);
  for (let size = 1; size < 40; size += 1) {
    const parser = new Parser();
    const events = [];
    for (let at = 0; at < bytes.length; at += size) events.push(...parser.push(bytes.slice(at, at + size)));
    assert.deepEqual(events, whole, `pieces of ${size}`);
  }
});

test("a difference has every line of both, and what they share once", () => {
  const lines = (text) => text.split("");
  for (const [before, after, expected] of [["abc", "abc", " a b c"], ["abc", "axc", " a-b+x c"], ["", "ab", "+a+b"], ["abcd", "bd", "-a b-c d"], ["xabx", "xbax", " x-a b+a x"]]) {
    const got = diff(lines(before), lines(after));
    assert.equal(got.map(([sign, line]) => sign + line).join(""), expected);
    assert.equal(got.filter(([sign]) => sign !== "+").map(([, line]) => line).join(""), before);
    assert.equal(got.filter(([sign]) => sign !== "-").map(([, line]) => line).join(""), after);
  }
});

test("chunks cover all tokens, and end at line feeds", () => {
  const texts = Array.from({ length: 5000 }, (_, at) => (at % 37 === 36 ? "x\n" : "x"));
  const starts = chunks(texts, texts.length);
  assert.equal(starts[0], 0);
  starts.slice(1).forEach((start, at) => {
    assert.equal(texts[start - 1], "x\n");
    assert.ok(start - starts[at] <= 700 && start > starts[at]);
  });
  assert.deepEqual(chunks(null, 900), [0, 400, 800]);
  assert.deepEqual(chunks([], 0), []);
});

test("a conversation stays in its lane, and a branch gets one of its own", () => {
  const call = (index, continues, ...children) => ({ index, continues, children });
  const lane = lanes([call(0, null), call(1, null, 2), call(2, 1, 3, 4), call(3, 2, 5), call(4, 2), call(5, 3)]);
  assert.deepEqual([...lane.values()], [0, 0, 0, 0, 1, 0]);
});

test("prompts and messages are put together from what they share", () => {
  const call = (index, continues, messages, prompt, ids) => ({ meta: { index, purpose: "agent" }, continues, flags: [], request: { messages, rest: 0 }, prompt, response: 0, completions: [{ token_ids: ids, tokens: ids.map((id) => `t${id}`), logprobs: [], top_logprobs: [] }] });
  const trajectory = new Trajectory({
    contents: [{ text: "{\"a\":1}" }, { text: "not json" }],
    calls: [call(0, null, { base: null, shared: 0, tail: [4, 5] }, { base: null, shared: 0, tail: [1, 2] }, [3, 9]), call(1, 0, { base: 0, shared: 1, tail: [6] }, { base: 0, shared: 3, tail: [7] }, [8])],
  });
  assert.deepEqual(trajectory.promptIds(trajectory.call(1)), [1, 2, 3, 7]);
  assert.deepEqual(trajectory.messages(trajectory.call(1)), [4, 6]);
  assert.equal(trajectory.promptLength(trajectory.call(1)), 4);
  assert.deepEqual([trajectory.content(0), trajectory.content(1)], [{ a: 1 }, "not json"]);
  assert.equal(trajectory.vocabulary().get(9), "t9");
  assert.deepEqual(trajectory.leaves().map((one) => one.index), [1]);
});

test("messages of each dialect are read", () => {
  const kinds = (message) => [message.role, ...message.parts.map((part) => part.kind)].join(" ");
  for (const [value, expected] of [
    [{ role: "assistant", content: "hi", reasoning_content: "hm", tool_calls: [{ id: "1", function: { name: "bash", arguments: "{\"a\":1}" } }] }, "assistant reasoning text call"],
    [{ role: "tool", tool_call_id: "1", content: "out" }, "tool result"],
    [{ role: "user", content: [{ type: "tool_result", tool_use_id: "1", content: [{ type: "text", text: "out" }] }] }, "tool result"],
    [{ role: "assistant", content: [{ type: "thinking", thinking: "hm" }, { type: "tool_use", id: "1", name: "Bash", input: {} }] }, "assistant reasoning call"],
    [{ type: "function_call_output", call_id: "1", output: "out" }, "tool result"],
    [{ type: "message", role: "developer", content: [{ type: "input_text", text: "x" }] }, "system text"],
    [{ role: "model", parts: [{ text: "hm", thought: true }, { functionCall: { name: "run", args: {} } }] }, "assistant reasoning call"],
  ]) assert.equal(kinds(readMessage(value)), expected);
  assert.equal(kinds(readReply({ choices: [{ message: { content: "x" } }] })[0]), "assistant text");
  assert.equal(kinds(readReply({ output: [{ type: "reasoning", summary: [{ text: "hm" }] }, { type: "message", role: "assistant", content: [{ type: "output_text", text: "x" }] }] })[0]), "assistant reasoning text");
  assert.equal(kinds(readReply({ content: [{ type: "text", text: "x" }] })[0]), "assistant text");
  assert.equal(kinds(readReply({ candidates: [{ content: { parts: [{ text: "x" }] } }] })[0]), "assistant text");
});

test("events come to stages, commands and calls, also of one that begins again", () => {
  const model = new Model();
  let sequence = 0;
  const take = (event) => model.take({ sequence: sequence++, unix_ms: 1000 + sequence * 10, event });
  take({ type: "queued", position: 0 });
  take({ type: "stage_started", stage: "boot" });
  take({ type: "stage_ended", stage: "boot", duration_ms: 5 });
  take({ type: "stage_started", stage: "setup" });
  take({ type: "command_started", stage: "setup", index: 0, command: "x" });
  take({ type: "command_output", stage: "setup", index: 0, stream: "stdout", text: "a" });
  take({ type: "command_output", stage: "setup", index: 0, stream: "stdout", text: "b" });
  assert.equal(model.commands.get("setup:0").output, "ab");
  assert.deepEqual(model.dots, { boot: "done", setup: "now", agent: "waiting", verify: "waiting", collect: "waiting" });
  take({ type: "call_started", call: "c" });
  take({ type: "call_progress", call: "c", tokens: 2, text: "ab" });
  take({ type: "call_progress", call: "c", tokens: 3, text: "c" });
  assert.deepEqual([...model.open.values()].map(({ tokens, text }) => [tokens, text]), [[3, "abc"]]);
  take({ type: "call_ended", call: { id: "c", index: 0, flags: [], completion_tokens: 3 } });
  assert.deepEqual([model.open.size, model.calls.length], [0, 1]);
  take({ type: "queued", position: 1 });
  assert.deepEqual([model.stage, model.calls.length, model.commands.size], [null, 0, 0]);
  for (let at = 0; at < 10_000; at += 1) take({ type: "agent", event: { kind: "text", text: "x" } });
  assert.ok(model.activity.length <= 4000);
  assert.ok(model.dropped + model.activity.length > 10_000);
});

test("what cannot be seen is shown", () => {
  assert.equal(plain("a\u202eb\u001b[1m\u0000"), "aRLOb␛[1m␀");
  assert.equal(plain("tab\tline\nünï 😀"), "tab\tline\nünï 😀");
});

test("a command line is read by a shell as it was meant", () => {
  for (const text of ["plain", "it's", "a b", "$(reboot)", "`x`", "a\nb", "", "*", "ü\"\\"]) {
    assert.equal(execFileSync("sh", ["-c", `printf %s ${quoted(text)}`], { encoding: "utf8" }), text);
  }
  assert.equal(commandLine({ endpoint: "vllm", n: 4, disable_thinking: true, task: { instruction: "do it", verify: ["test -f 'a b'"], limits: { max_calls: 3 } } }),
    "dressage run \\\n  --endpoint vllm \\\n  -n 4 \\\n  --disable-thinking=true \\\n  --max-calls 3 \\\n  --verify 'test -f '\\''a b'\\''' \\\n  'do it'");
});

test("a command line names what the form was filled from, and puts into a file what no option says", () => {
  const task = { instruction: "do it", verify: ["true"], limits: { max_calls: 3 } };
  const from = { preset: "fizzbuzz", task };
  assert.equal(commandLine({ endpoint: "demo", preset: "fizzbuzz" }, { from }), "dressage run \\\n  --preset fizzbuzz \\\n  --endpoint demo");
  const changed = { ...task, limits: { max_calls: 4 }, network: { allow: ["a.example", "b.example:22"] } };
  assert.equal(commandLine({ endpoint: "demo", task: changed }, { from }),
    "dressage run \\\n  --preset fizzbuzz \\\n  --endpoint demo \\\n  --max-calls 4 \\\n  --network allow:a.example,b.example:22");
  const file = { path: "/srv/my tasks/x.toml", task: { ...task, files: { a: "b" } } };
  assert.equal(commandLine({ endpoint: "demo", task: { ...file.task, limits: { max_calls: 3, agent_timeout_s: 5 } } }, { from: file }),
    "dressage run \\\n  --endpoint demo \\\n  --agent-timeout 5 \\\n  '/srv/my tasks/x.toml'");
  // A limit that was taken away has no option, nor have files, nor an instruction that would be taken for something else.
  for (const [one, given] of [[{ ...task, limits: {} }, from], [{ ...task, files: { a: "it's" } }, from], [{ instruction: "-x" }, null], [{ instruction: "@x" }, null], [{ instruction: "x.toml" }, null]]) {
    const said = commandLine({ endpoint: "demo", task: one }, { from: given });
    const text = /^cat >task\.json <<'TASK'\n([^]*)\nTASK\ndressage run \\\n {2}--endpoint demo \\\n {2}task\.json$/.exec(said)?.[1];
    if (given && !one.files) assert.match(said, /^dressage run/);
    else assert.deepEqual(JSON.parse(text), one);
  }
});

test("what is as usual is left out", () => {
  const usual = { setup: [], limits: { a: 1, b: null }, network: "none", files: {} };
  assert.equal(prune({ setup: [], limits: { a: 1, b: null }, network: "none", files: {} }, usual), undefined);
  assert.deepEqual(prune({ instruction: "x", setup: ["y"], limits: { a: 2, b: null }, network: { allow: [] }, files: { z: { base64: "" } } }, usual),
    { instruction: "x", setup: ["y"], limits: { a: 2 }, network: { allow: [] }, files: { z: { base64: "" } } });
});

test("where two rollouts part is the first token that one sampled and the other did not", () => {
  const trajectory = (...turns) => new Trajectory({ contents: [], calls: turns.map((ids, index) => ({ meta: { index, purpose: "agent" }, continues: index === 0 ? null : index - 1, flags: [], request: { messages: { base: null, shared: 0, tail: [] } }, completions: [{ token_ids: ids, tokens: [], logprobs: [], top_logprobs: [] }] })) });
  const one = trajectory([1, 2], [3, 4, 5]);
  assert.equal(parting(one, trajectory([1, 2], [3, 4, 5])), "end");
  assert.deepEqual(parting(one, trajectory([1, 2], [3, 9, 5])), { calls: [1, 1], token: 1 });
  assert.deepEqual(parting(one, trajectory([1], [3])), { calls: [0, 0], token: 1 });
  assert.equal(parting(one, trajectory()), null);
});

test("an attempt that was given up leads to the one that took its place", () => {
  const call = (index, key, ...flags) => ({ index, flags, meta: { retry_key: key } });
  const { by, of } = retries([call(0, "a", "superseded"), call(1, "b"), call(2, "a", "superseded"), call(3, "a"), call(4, "c", "superseded")]);
  assert.deepEqual([[...by], [...of]], [[[0, 2], [2, 3]], [[2, 0], [3, 2]]]);
});

test("why a call is not trained is said in words", () => {
  assert.match(whyUntrained({ reason: "end" }), /did not complete/);
  assert.match(whyUntrained("purpose"), /something that is not trained/);
  assert.match(whyUntrained({ flag: "usage_missing" }), /no count to check against/);
  assert.equal(whyUntrained(null), null);
});

test("numbers are written as people read them", () => {
  assert.deepEqual([0, 999, 1234, 12_345, 83_000, 3_720_000, null].map(duration), ["0 ms", "999 ms", "1.23 s", "12.3 s", "1m 23s", "1h 02m", "–"]);
  assert.deepEqual([1, 0.5, 0.001, 0.00001].map(percent), ["100%", "50.0%", "0.10%", "<0.01%"]);
  const half = Math.log(0.5);
  assert.ok(Math.abs(entropy([{ logprob: half }, { logprob: half }]) - Math.log(2)) < 1e-9);
  assert.equal(entropy([]), null);
});
