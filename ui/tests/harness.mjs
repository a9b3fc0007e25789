// A server of its own and a browser, for tests of the page.

import { execFileSync, spawn } from "node:child_process";
import { chmodSync, copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
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

/** Starts `dressage serve` with a data directory of its own. `agent` is `scripted`, in the place of OpenCode, or `real`. */
export async function serve({ agent = "scripted", arguments: given = [], environment = {} } = {}) {
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
    copyFileSync(join(dirname(PROGRAM), "scripted_agent"), join(bin, "opencode"));
  }
  const ports = join(folder, "port");
  const child = spawn(PROGRAM, ["serve", "--port", "0", "--port-file", ports, ...given], { env, cwd: join(folder, "work"), stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (said = (said + data).slice(-20_000)));
  const exited = new Promise((done) => child.once("exit", done));
  // One that a test left where it failed.
  process.once("exit", () => child.kill("SIGKILL"));
  child.unref();
  for (const stream of [child.stdout, child.stderr]) stream.unref();
  await until("the server’s port", () => {
    if (child.exitCode !== null) throw new Error(`the server ended:\n${said}`);
    return existsSync(ports);
  });
  const base = `http://127.0.0.1:${readFileSync(ports, "utf8").trim()}`;
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
      await until(`the end of ${id}`, async () => (row = await ask("GET", `/api/v1/rollouts/${id}`)).state === "finished", 120_000);
      return row;
    },
    stop: async () => {
      child.ref();
      child.kill("SIGTERM");
      await exited;
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

export async function until(what, found, ms = 60_000) {
  const end = Date.now() + ms;
  for (;;) {
    const got = await found();
    if (got) return got;
    if (Date.now() > end) throw new Error(`${what} did not come`);
    await new Promise((next) => setTimeout(next, 20));
  }
}

/** A browser; its pages fail tests where they log an error or break their own policy. */
export async function browse() {
  const browser = await chromium.launch({ executablePath: BROWSER, args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"] });
  return {
    close: () => browser.close(),
    page: async (options = {}) => {
      const context = await browser.newContext({ viewport: { width: 1360, height: 900 }, ...options });
      const page = await context.newPage();
      page.problems = [];
      page.on("pageerror", (error) => page.problems.push(`${error.message}\n${error.stack}`));
      page.on("console", (message) => {
        if (message.type() === "error" && !/Failed to load resource/.test(message.text())) page.problems.push(message.text());
      });
      page.setDefaultTimeout(30_000);
      return page;
    },
  };
}
