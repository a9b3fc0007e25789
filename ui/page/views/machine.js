// Endpoints, agents, sandboxes: what is configured, what is live, and what can be done about it.

import { ROOT, catalogue, forgetCatalogue, get, post } from "../api.js";
import { h, keepingFocus, put, toast } from "../dom.js";
import { count, shortId, words } from "../format.js";
import { clock, empty, facts, failure, loading } from "../marks.js";
import { to } from "../router.js";
import { plain } from "../text.js";

export async function machine(page) {
  page.setTitle("Machine");
  /** Buttons of endpoints that wait for an answer: meanwhile they stay as they are. */
  let acting = 0;
  const endpointBox = h("div", { class: "stack" });
  const sandboxBox = h("div", { class: "stack" });
  const doctorBox = h("div", { class: "stack" }, loading("Looking at this machine"));

  async function showEndpoints() {
    const { endpoints } = await get("api/v1/endpoints", page.signal);
    const views = new Map();
    await Promise.all(endpoints.filter((one) => one.usable && one.name !== "demo").map(async (one) => {
      try {
        views.set(one.name, await get(`api/v1/endpoints/${encodeURIComponent(one.name)}`, page.signal));
      } catch {
        // What is listed of it is shown.
      }
    }));
    unlessSame(endpointBox, [endpoints, [...views]], () => endpoints.map((one) => endpoint(one, views.get(one.name))));
  }

  const shown = new Map();
  /** Shows what `make` gives, where it is of something else than what is shown. */
  function unlessSame(box, of, make) {
    const key = JSON.stringify(of);
    if (shown.get(box) === key) return;
    shown.set(box, key);
    keepingFocus(box, () => put(box, make()));
  }

  function endpoint(one, view) {
    const act = (name, path, body) => h("button", { type: "button", class: "button small", onclick: async (event) => {
      const button = event.currentTarget;
      button.disabled = true;
      button.textContent = `${name}…`;
      acting += 1;
      try {
        await post(`api/v1/endpoints/${encodeURIComponent(one.name)}/${path}`, body);
        toast(`${one.name}: ${path} done`);
      } catch (error) {
        toast(`${one.name}: ${error.message}${error.hint ? ` (${error.hint})` : ""}`, "bad");
      }
      acting -= 1;
      forgetCatalogue();
      shown.delete(endpointBox);
      await showEndpoints().catch(() => {});
    } }, name);
    const probe = view?.probe;
    return h("section", { class: "panel", "data-id": one.name }, h("header", null, h("h3", null, one.name), one.usable ? h("span", { class: "chip good" }, "configured") : h("span", { class: "chip" }, "not configured"),
      view?.paused && h("span", { class: "chip warn" }, "paused"), view?.policy_version && h("span", { class: "chip accent" }, plain(view.policy_version)), h("span", { class: "space" }),
      view && [act("Probe", "probe"), view.paused ? act("Resume", "resume") : act("Pause", "pause")]),
    h("div", { class: "body stack" },
      !one.usable ? h("p", { class: "muted" }, plain(one.problem), one.hint && [": ", plain(one.hint)])
        : one.name === "demo" ? h("p", { class: "muted" }, "A scripted model inside Dressage: no network, no key, token ids and log-probabilities. It knows the ready-made tasks.")
          : facts([["address", h("code", null, plain(one.base_url))], view?.replicas?.length > 0 ? ["replicas", count(view.replicas.length)] : null, ["model", plain(one.model ?? "asked for by each rollout")], ["key", one.has_key ? "set" : "none"], ["capture", one.capture],
            view ? ["calls", `${count(view.in_flight)} in flight, ${count(view.waiting)} waiting${view.max_calls_at_once ? `, at most ${view.max_calls_at_once}` : ""}`] : null]),
      probe && h("div", null, h("h3", null, "What it returns"), facts(["whole", "stream", "whole_with_tools", "stream_with_tools"].filter((key) => probe[key]).map((key) => [words(key), probe[key].error ? h("span", { class: "chip bad", title: plain(probe[key].error) }, "refused") : [h("span", { class: `chip ${probe[key].level === "tokens" ? "good" : "warn"}` }, probe[key].level), (probe[key].flags ?? []).map((flag) => [" ", h("span", { class: "chip" }, words(flag))])]])))));
  }

  async function showSandboxes() {
    const got = await get("api/v1/sandboxes", page.signal);
    unlessSame(sandboxBox, got, () => [
      got.pools.length > 0 && h("section", { class: "panel" }, h("header", null, h("h3", null, "Warm pools")), h("div", { class: "scroll" }, h("table", null,
        h("thead", null, h("tr", null, ["Sandbox", "Ready", "Were ready", "Had to be made", "Failures"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", null, got.pools.map((pool) => h("tr", null, h("td", null, pool.backend), h("td", null, count(pool.ready)), h("td", null, count(pool.hits)), h("td", null, count(pool.misses)), h("td", null, count(pool.failures)))))))),
      got.unreadable.length > 0 && failure(new Error(`Leases that cannot be read: ${got.unreadable.join("; ")}`)),
      h("section", { class: "panel" }, h("header", null, h("h3", null, "Live sandboxes"), h("span", { class: "chip" }, count(got.sandboxes.length))),
        got.sandboxes.length === 0 ? h("div", { class: "body muted" }, "None: each is made for a rollout and removed with it.")
          : h("div", { class: "scroll" }, h("table", null, h("thead", null, h("tr", null, ["Sandbox", "Kind", "Owner", "Rollout", "Age", ""].map((name) => h("th", { scope: "col" }, name || h("span", { class: "sr" }, "actions"))))),
            h("tbody", null, got.sandboxes.map((one) => h("tr", null, h("td", { class: "mono", title: one.sandbox }, shortId(one.sandbox)), h("td", null, one.backend),
              h("td", null, one.owner_alive ? h("span", { class: "chip good" }, "alive") : h("span", { class: "chip bad" }, "dead")),
              h("td", null, one.rollout ? h("a", { href: to(`rollouts/${one.rollout}`), class: "mono" }, shortId(one.rollout)) : "–"),
              h("td", { class: "number" }, one.created_unix_ms ? clock(one.created_unix_ms) : "–"),
              h("td", { class: "right" }, h("button", { type: "button", class: "button small danger", onclick: (event) => end(one, event.currentTarget), "aria-label": `End sandbox ${shortId(one.sandbox)}` }, "End"))))))))]);
  }

  async function end(one, button) {
    button.disabled = true;
    try {
      const got = await post(`api/v1/sandboxes/${one.sandbox}/end`);
      toast(got.ended ? "The sandbox is ended" : "Its rollout was asked to stop");
    } catch (error) {
      button.disabled = false;
      toast(`${error.message}${error.hint ? `: ${error.hint}` : ""}`, "bad");
    }
    setTimeout(() => showSandboxes().catch(() => {}), 300);
  }

  async function showDoctor() {
    const [found, { agents }, version] = await Promise.all([get("api/v1/doctor", page.signal), catalogue("agents"), get("api/v1/version", page.signal)]);
    const states = { good: "good", lacking: "warn", bad: "bad" };
    put(doctorBox,
      h("section", { class: "panel" }, h("header", null, h("h3", null, "Agents")), h("div", { class: "scroll" }, h("table", null, h("thead", null, h("tr", null, ["Agent", "Version", "State", "Speaks"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", null, agents.map((agent) => h("tr", null, h("td", null, agent.name), h("td", { class: "mono" }, agent.version || "–"),
          h("td", null, agent.installed ? h("span", { class: "chip good" }, "installed") : [h("span", { class: "chip" }, "not installed"), " ", h("code", { class: "small" }, `dressage agents install ${agent.name}`)]),
          h("td", { class: "faint" }, words(agent.dialect)))))))),
      h("section", { class: "panel" }, h("header", null, h("h3", null, "Kinds of sandboxes")), h("div", { class: "body stack" }, found.sandboxes.map((one) => h("div", null,
        h("div", { class: "row" }, h("b", null, one.name), one.problem ? h("span", { class: "chip" }, "cannot work here") : h("span", { class: "chip good" }, "works"), h("span", { class: "muted small" }, one.summary)),
        one.problem && h("p", { class: "small wrap" }, plain(one.problem), one.hint && [". ", h("span", { class: "muted" }, plain(one.hint))]),
        one.facts.length > 0 && h("p", { class: "small faint wrap" }, one.facts.map(([name, value]) => `${name}: ${plain(value)}`).join(" · ")))))),
      h("section", { class: "panel" }, h("header", null, h("h3", null, "This machine"), h("span", { class: "muted small" }, plain(found.system))), h("div", { class: "body" }, facts(found.checks.map((check) => [check.name,
        [h("span", { class: `chip ${states[check.state]}` }, check.state), " ", h("span", { class: "wrap small" }, plain(check.value)), check.hint && h("span", { class: "small muted" }, ` ${plain(check.hint)}`)]])))),
      h("p", { class: "small faint" }, `dressage ${version.version} · `, h("a", { href: new URL("docs", ROOT).href, target: "_blank", rel: "noreferrer" }, "HTTP reference")));
  }

  page.show(h("div", { class: "head" }, h("h1", null, "Machine")), h("div", { class: "halves" },
    h("section", { class: "stack", "aria-label": "Endpoints" }, h("h2", null, "Endpoints"), endpointBox, h("h2", null, "Sandboxes"), sandboxBox),
    h("section", { class: "stack", "aria-label": "Agents and machine" }, h("h2", null, "Agents and machine"), doctorBox)));
  const shield = (work, box) => work().catch((error) => {
    shown.delete(box);
    if (error.name !== "AbortError") put(box, failure(error, () => shield(work, box)));
  });
  const ticking = setInterval(() => {
    if (document.hidden) return;
    showSandboxes().catch(() => {});
    if (acting === 0) showEndpoints().catch(() => {});
  }, 3000);
  page.onLeave(() => clearInterval(ticking));
  await Promise.all([shield(showEndpoints, endpointBox), shield(showSandboxes, sandboxBox), shield(showDoctor, doctorBox)]);
  if (endpointBox.childElementCount === 0) put(endpointBox, empty("No endpoints"));
}
