// What the form stands for, said elsewhere: as a command line, in Python, as a request. Each can be pasted and run as it is.

import { ROOT, hasKey } from "../api.js";
import { FIELDS, at, place } from "./fields.js";

const isTable = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** Whether two values of JSON are the same; the order of members does not matter. */
export function same(a, b) {
  if (a === b) return true;
  if (Array.isArray(a)) return Array.isArray(b) && a.length === b.length && a.every((one, place) => same(one, b[place]));
  if (!isTable(a) || !isTable(b)) return false;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => key in b && same(a[key], b[key]));
}

/** What a value says beyond a usual one: members that are as usual are left out; undefined where all are. */
export function prune(value, usual) {
  if (same(value, usual)) return undefined;
  if (!isTable(value) || !isTable(usual)) return value;
  const left = Object.entries(value).map(([key, one]) => [key, prune(one, usual[key])]).filter(([, one]) => one !== undefined);
  return left.length > 0 ? Object.fromEntries(left) : undefined;
}

/** A word of a shell. */
export function quoted(text) {
  const string = String(text);
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(string) ? string : `'${string.replaceAll("'", "'\\''")}'`;
}

/** An option with a value, which may look like an option itself. */
function option(name, value) {
  return String(value).startsWith("-") ? `${name}=${quoted(value)}` : `${name} ${quoted(value)}`;
}

/** What of a task has options: each with its words, and where it stands in the task. */
function taskOptions(task) {
  const found = FIELDS.filter((one) => one.option && one.path.startsWith("task.") && at({ task }, one.path) !== undefined)
    .map((one) => ({ path: one.path, words: option(one.option, at({ task }, one.path)) }));
  if (task.agent?.name) found.push({ path: "task.agent.name", words: option("--agent", task.agent.name) });
  if (task.verify_when === "always") found.push({ path: "task.verify_when", words: "--verify-always" });
  const { network } = task;
  if (isTable(network) && Object.keys(network).length === 1 && Array.isArray(network.allow)) {
    const known = found.findIndex(({ path }) => path === "task.network");
    const words = option("--network", `allow:${network.allow.join(",")}`);
    if (known >= 0) found[known].words = words;
    else found.push({ path: "task.network", words });
  }
  return found;
}

/** A task without what options say. */
function without(task, options) {
  const body = { task: structuredClone(task) };
  for (const { path } of options) place(body, path, undefined);
  return prune(body.task, { agent: {}, sampling: {}, limits: {} }) ?? {};
}

/** Whether a command line takes this for something else than an instruction. */
function isMistakable(instruction) {
  return /^[@-]/.test(instruction) || (!/\s/.test(instruction) && /(\.toml|\.json|\/)$/.test(instruction));
}

/**
 * The command that does the same. `from` is the ready-made task or the file that the form was filled from (`{preset, task}` or
 * `{path, task}`): where options say all that was changed since, it is named. What no option says goes into a task file.
 */
export function commandLine(body, { from = null, sandbox = null } = {}) {
  const task = body.task ?? null;
  const parts = [];
  let before = "";
  let first = [];
  let last = null;
  if (body.preset) first = [option("--preset", body.preset)];
  else {
    const options = taskOptions(task);
    const usual = from?.task ?? null;
    const changed = usual && options.filter(({ path }) => !same(at({ task }, path), at({ task: usual }, path)));
    const gone = usual && taskOptions(usual).some(({ path }) => at({ task }, path) === undefined);
    const { instruction = "", setup = [], verify = [], ...more } = without(task, options);
    if (usual && !gone && same(without(task, options), without(usual, taskOptions(usual)))) {
      if (from.preset) first = [option("--preset", from.preset)];
      else last = quoted(from.path);
      parts.push(...changed.map(({ words }) => words));
    } else if (Object.keys(more).length > 0 || isMistakable(instruction)) {
      before = `cat >task.json <<'TASK'\n${JSON.stringify(task, null, 2)}\nTASK\n`;
      last = "task.json";
    } else {
      parts.push(...options.map(({ words }) => words));
      parts.push(...setup.map((command) => option("--setup", command)), ...verify.map((command) => option("--verify", command)));
      last = quoted(instruction);
    }
  }
  const whole = [];
  if (body.endpoint) whole.push(option("--endpoint", body.endpoint));
  if (body.base_url) whole.push(option("--base-url", body.base_url));
  if (body.api_key) whole.push("--api-key-env KEY");
  if (body.model) whole.push(option("--model", body.model));
  if (body.n) whole.push(`-n ${body.n}`);
  if (sandbox && !body.backend) whole.push(option("--sandbox", sandbox));
  for (const one of FIELDS.filter(({ path, option: name }) => name && !path.startsWith("task."))) {
    const value = at(body, one.path);
    if (value !== undefined) whole.push(one.path === "disable_thinking" ? `--disable-thinking=${value}` : option(one.option, value));
  }
  return before + ["dressage run", ...first, ...whole, ...parts, ...(last === null ? [] : [last])].join(" \\\n  ");
}

function pythonValue(value, indent = "    ") {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "number") return String(value);
  // A string of JSON is one of Python too.
  if (typeof value === "string") return JSON.stringify(value);
  const inner = `${indent}    `;
  if (Array.isArray(value)) return value.length === 0 ? "[]" : `[\n${value.map((one) => `${inner}${pythonValue(one, inner)},\n`).join("")}${indent}]`;
  const entries = Object.entries(value);
  return entries.length === 0 ? "{}" : `{\n${entries.map(([key, one]) => `${inner}${JSON.stringify(key)}: ${pythonValue(one, inner)},\n`).join("")}${indent}}`;
}

const address = () => ROOT.href.replace(/\/$/, "");

export function python(body) {
  const { api_key: secret, ...rest } = body;
  const needsKey = hasKey();
  const client = [`base_url=${JSON.stringify(address())}`, needsKey && "api_key=os.environ[\"DRESSAGE_API_KEY\"]"].filter(Boolean).join(", ");
  const head = `${secret || needsKey ? "import os\n\n" : ""}import dressage\n\nclient = dressage.Client(${client})\n`;
  const { task, ...options } = rest;
  const given = { ...(task ? { task } : {}), ...options };
  const lines = (indent, sign) => Object.entries(given).map(([key, value]) => `${indent}${sign === ":" ? JSON.stringify(key) : key}${sign === ":" ? ": " : "="}${pythonValue(value, indent)},\n`).join("")
    + (secret ? `${indent}${sign === ":" ? "\"api_key\": " : "api_key="}os.environ["KEY"],\n` : "");
  if (body.n) return `${head}for rollout in client.run_all([{\n${lines("    ", ":")}}]):\n    print(rollout.reward, rollout.ended)`;
  return `${head}rollout = client.run(\n${lines("    ", "=")})\nprint(rollout.reward, rollout.ended)`;
}

export function curl(body) {
  const key = hasKey() ? " \\\n  -H \"x-api-key: $DRESSAGE_API_KEY\"" : "";
  const { api_key: secret, ...rest } = body;
  const text = JSON.stringify(secret ? { ...rest, api_key: "KEY" } : rest, null, 2);
  // The key of an endpoint comes from the environment, as in the other two.
  const sent = secret ? quoted(text).replace("\"api_key\": \"KEY\"", "\"api_key\": \"'\"$KEY\"'\"") : quoted(text);
  return `curl -s ${quoted(`${address()}/api/v1/rollouts`)}${key} \\\n  -H 'content-type: application/json' \\\n  -d ${sent}`;
}
