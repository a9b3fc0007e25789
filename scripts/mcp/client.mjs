// Drives `dressage serve` and `dressage mcp` with the TypeScript SDK of MCP, unmodified.
// usage: node client.mjs http URL | node client.mjs stdio PROGRAM ARGUMENT...
// client.py does the same with FastMCP. Says what it saw; ends with 1 where something is not as it should be.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

// Where npm was told to install it, which is not beside this file.
const installed = createRequire(join(process.env.NODE_MODULES, "client.mjs"));
const load = async (name) => import(pathToFileURL(installed.resolve(`@modelcontextprotocol/sdk/client/${name}.js`)));
const { Client } = await load("index");
const { StdioClientTransport } = await load("stdio");
const { StreamableHTTPClientTransport } = await load("streamableHttp");

const STAGES = ["boot", "setup", "agent", "verify", "collect"];
const TOOLS = ["cancel_rollout", "get_rollout", "list_rollouts", "run_rollout", "start_rollout"];
const PATIENCE = { timeout: 300_000 };

/** A rollout that is in setup until it is cancelled. */
const endless = (id) => ({ endpoint: "demo", task: { id, instruction: "x", setup: ["sleep 600"] } });

/** Calls a tool. The client holds what it gives against the tool's output schema. */
async function call(client, name, args, options = {}) {
  const result = await client.callTool({ name, arguments: args }, undefined, { ...PATIENCE, ...options });
  assert.ok(!result.isError, JSON.stringify(result));
  assert.deepEqual(JSON.parse(result.content[0].text), result.structuredContent);
  return result.structuredContent;
}

/** What a tool refuses is a result that says why, with a code, and not an error of the protocol. */
async function refused(client, name, args, code) {
  const result = await client.callTool({ name, arguments: args }, undefined, PATIENCE);
  assert.equal(result.isError, true, JSON.stringify(result));
  assert.equal(JSON.parse(result.content[0].text).error.code, code);
}

/** References of a schema must lead somewhere in it. */
function resolves(schema, where = schema) {
  if (where === null || typeof where !== "object") return;
  if (typeof where.$ref === "string") {
    const steps = where.$ref.replace(/^#\//, "").split("/");
    assert.ok(steps.reduce((at, step) => at?.[step], schema) !== undefined, `${where.$ref} leads nowhere`);
  }
  for (const below of Object.values(where)) resolves(schema, below);
}

async function isCancelled(client, id) {
  const over = await call(client, "get_rollout", { id, wait_s: 50 });
  assert.deepEqual([over.state, over.ended, over.reward], ["finished", "cancelled", null]);
}

async function drive(client, kind) {
  assert.equal(client.getServerVersion().name, "dressage");
  assert.ok(client.getServerCapabilities().tools);
  const { tools } = await client.listTools();
  assert.deepEqual(tools.map((tool) => tool.name).sort(), TOOLS);
  for (const tool of tools) {
    for (const schema of [tool.inputSchema, tool.outputSchema]) {
      assert.equal(schema.type, "object", tool.name);
      resolves(schema);
    }
  }

  const told = [];
  const whole = await call(client, "run_rollout", { preset: "binary_search", endpoint: "demo" }, {
    onprogress: (progress) => told.push(progress),
  });
  assert.deepEqual([whole.state, whole.ended, whole.reward], ["finished", "completed", 1]);
  assert.deepEqual(told.map(({ message }) => message).filter((message) => STAGES.includes(message)), STAGES);
  assert.deepEqual(told.map(({ progress }) => progress), told.map((_, index) => index + 1));
  assert.ok(told.some(({ message }) => /^call 1: \d+ prompt and \d+ completion tokens$/.test(message)));

  const { rollouts: [started] } = await call(client, "start_rollout", endless(`started-${kind}`));
  assert.match((await call(client, "get_rollout", { id: started.id })).state, /^(queued|running)$/);
  const { rollouts } = await call(client, "list_rollouts", { task_id: `started-${kind}` });
  assert.deepEqual(rollouts.map(({ id }) => id), [started.id]);
  await call(client, "cancel_rollout", { id: started.id });
  await isCancelled(client, started.id);

  const abort = new AbortController();
  const running = client.callTool({ name: "run_rollout", arguments: endless(`given-up-${kind}`) }, undefined, {
    ...PATIENCE,
    signal: abort.signal,
    onprogress: ({ message }) => message === "setup" && abort.abort("enough"),
  });
  await assert.rejects(running, /enough/);
  const { rollouts: [givenUp] } = await call(client, "list_rollouts", { task_id: `given-up-${kind}` });
  await isCancelled(client, givenUp.id);

  await refused(client, "get_rollout", { id: "nothing" }, "unknown_rollout");
  await refused(client, "run_rollout", { preset: "nothing" }, "invalid_request");
  await assert.rejects(client.callTool({ name: "nothing" }), /no tool is named `nothing`/);
}

const [kind, target, ...rest] = process.argv.slice(2);
const client = new Client({ name: "dressage-tests", version: "1" });
const transport = kind === "http"
  ? new StreamableHTTPClientTransport(new URL(target))
  : new StdioClientTransport({ command: target, args: rest, env: process.env, stderr: "inherit" });
await client.connect(transport);
await drive(client, `node-${kind}`);
if (kind === "http") await transport.terminateSession();
await client.close();
console.log(`the TypeScript SDK over ${kind}: everything as it should be`);
