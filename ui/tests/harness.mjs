// A server of its own and a browser, for tests of the page.

import { execFileSync, spawn } from "node:child_process";
import { chmodSync, copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
export const PROGRAM = resolve(process.env.DRESSAGE_BINARY ?? join(ROOT, "target/debug/dressage"));

/** What scripts/web-tests installs. */
export const modules = createRequire(`${process.env.NODE_MODULES ?? join(ROOT, "target/node/web")}/`);
const { chromium } = modules("playwright-core");

const BROWSER = process.env.CHROMIUM ?? "/usr/bin/chromium";

/** Where agents are installed that are no part of a test. */
const CACHE = process.env.DRESSAGE_CACHE_DIR ?? (process.getuid() === 0 ? "/var/cache/dressage" : join(process.env.HOME, ".cache/dressage"));

/** Where the pictures of journeys are kept. */
export const PICTURES = resolve(process.env.PAGE_PICTURES ?? join(ROOT, "target/page"));

/** How long anything may take to come. A machine with two slow cores and other work on them is no failure. */
export const PATIENCE_MS = 180_000;

/** A program that is built beside `dressage`, or was for tests. */
function beside(name) {
  const places = [dirname(PROGRAM), join(ROOT, "target/debug"), join(ROOT, "target/release")].map((folder) => join(folder, name));
  const found = places.find(existsSync);
  if (!found) throw new Error(`${name} is in none of ${places.join(", ")}: build it with cargo build -p dressage-testkit --bins`);
  return found;
}

/** The scripted model as a program of its own: what it says and what goes wrong, as its options `--script` and `--faults` have it. */
export async function scriptedModel(turns, faults) {
  const folder = mkdtempSync(join(tmpdir(), "dressage-model-"));
  const arguments_ = [];
  for (const [option, value] of Object.entries({ script: turns, faults })) {
    if (value === undefined) continue;
    writeFileSync(join(folder, `${option}.json`), JSON.stringify(value));
    arguments_.push(`--${option}`, join(folder, `${option}.json`));
  }
  const child = spawn(beside("scripted_model"), arguments_, { stdio: ["ignore", "pipe", "inherit"] });
  process.once("exit", () => child.kill("SIGKILL"));
  let said = "";
  child.stdout.on("data", (data) => (said += data));
  await until("the model’s address", () => said.includes("\n"));
  child.unref();
  child.stdout.unref();
  return { url: said.trim(), close: () => {
    child.kill("SIGTERM");
    rmSync(folder, { recursive: true, force: true });
  } };
}

/** Starts `dressage serve` with a data directory of its own. `agent` is `scripted`, in the place of OpenCode, or `real`. */
export async function serve({ agent = "scripted", arguments: given = [], environment = {}, files = {} } = {}) {
  const folder = mkdtempSync(join(tmpdir(), "dressage-web-"));
  // Sandboxes of root run as other users, which must be able to pass.
  chmodSync(folder, 0o755);
  for (const name of ["home", "work"]) mkdirSync(join(folder, name));
  const env = {
    PATH: process.env.PATH, HOME: join(folder, "home"), DRESSAGE_DATA_DIR: join(folder, "data"), DRESSAGE_CACHE_DIR: CACHE, ...environment,
  };
  if (agent === "scripted") {
    const listed = JSON.parse(execFileSync(PROGRAM, ["agents", "list", "--json"], { env }));
    const version = listed.find((one) => one.name === "opencode").pinned_version;
    env.DRESSAGE_CACHE_DIR = join(folder, "cache");
    const bin = join(env.DRESSAGE_CACHE_DIR, "agents/opencode", version, "bin");
    mkdirSync(bin, { recursive: true });
    copyFileSync(beside("scripted_agent"), join(bin, "opencode"));
  }
  for (const [name, content] of Object.entries(files)) {
    mkdirSync(dirname(join(folder, "work", name)), { recursive: true });
    writeFileSync(join(folder, "work", name), content);
  }
  let child;
  let exited;
  let said = "";
  /** Starts it, at `port`; gives where it listens. */
  const start = async (port) => {
    const ports = join(folder, "port");
    rmSync(ports, { force: true });
    const own = spawn(PROGRAM, ["serve", "--port", String(port), "--port-file", ports, "--grace", "1", ...given], { env, cwd: join(folder, "work"), stdio: ["ignore", "pipe", "pipe"] });
    for (const stream of [own.stdout, own.stderr]) stream.on("data", (data) => (said = (said + data).slice(-20_000)));
    exited = new Promise((done) => own.once("exit", done));
    // One that a test left where it failed.
    process.once("exit", () => own.kill("SIGKILL"));
    own.unref();
    for (const stream of [own.stdout, own.stderr]) stream.unref();
    child = own;
    await until("the server’s port", () => {
      if (own.exitCode !== null) throw new Error(`the server ended:\n${said}`);
      return existsSync(ports);
    });
    return readFileSync(ports, "utf8").trim();
  };
  const port = await start(0);
  const base = `http://127.0.0.1:${port}`;
  const ask = async (method, path, body, headers = {}) => {
    const reply = await fetch(base + path, { method, headers: { ...headers, ...(body ? { "content-type": "application/json" } : {}) }, body: body && JSON.stringify(body) });
    if (!reply.ok) throw new Error(`${method} ${path}: ${reply.status} ${await reply.text()}`);
    return reply.json();
  };
  return {
    base, folder, env, said: () => said,
    get: (path, headers) => ask("GET", path, undefined, headers),
    post: (path, body = {}) => ask("POST", path, body),
    submit: async (spec) => (await ask("POST", "/api/v1/rollouts", spec)).rollouts.map((one) => one.id),
    ended: async (id) => {
      let row;
      await until(`the end of ${id}`, async () => (row = await ask("GET", `/api/v1/rollouts/${id}`)).state === "finished");
      return row;
    },
    /** Ends it as a machine that loses power would. */
    crash: async () => {
      child.ref();
      child.kill("SIGKILL");
      await exited;
    },
    /** Starts it anew, where it was. */
    startAgain: () => start(port),
    stop: async () => {
      child.ref();
      child.kill("SIGTERM");
      await exited;
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** Waits until `found` gives something, and says `what` did not come where it does not. */
export async function until(what, found, ms = PATIENCE_MS) {
  const end = Date.now() + ms;
  for (;;) {
    const got = await found();
    if (got) return got;
    if (Date.now() > end) throw new Error(`${what} did not come within ${ms / 1000} s`);
    await new Promise((next) => setTimeout(next, 50));
  }
}

/** A browser; its pages fail tests where they log an error or break their own policy. */
export async function browse() {
  const browser = await chromium.launch({ executablePath: BROWSER, args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"], timeout: PATIENCE_MS });
  const open = new Set();
  return {
    close: () => browser.close(),
    /** Pages that are open still. */
    open,
    page: async (options = {}) => {
      const context = await browser.newContext({ viewport: { width: 1360, height: 900 }, ...options });
      const page = await context.newPage();
      page.problems = [];
      page.on("pageerror", (error) => page.problems.push(`${error.message}\n${error.stack}`));
      page.on("console", (message) => {
        if (message.type() === "error" && !/Failed to load resource/.test(message.text())) page.problems.push(message.text());
      });
      page.setDefaultTimeout(PATIENCE_MS);
      open.add(page);
      page.on("close", () => open.delete(page));
      return page;
    },
  };
}

/** Keeps a picture of what a page shows, under a name made of words. */
export async function picture(page, ...name) {
  mkdirSync(PICTURES, { recursive: true });
  const file = name.join(" ").toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 100);
  await page.screenshot({ path: join(PICTURES, `${file}.png`) });
}
