// Two rollouts side by side.

import { get } from "../api.js";
import { h, put } from "../dom.js";
import { brief, count, duration, moment, number, shortId, words } from "../format.js";
import { failure, faultBox, loading, rewardMark, stateChip } from "../marks.js";
import { conversation } from "../rollout/conversation.js";
import { fetchDocument } from "../rollout/document.js";
import { difference } from "../rollout/source.js";
import { to } from "../router.js";
import { plain } from "../text.js";

export async function compare(page) {
  page.setTitle("Two rollouts");
  const ids = page.parts;
  const views = await Promise.all(ids.map((id) => get(`api/v1/rollouts/${encodeURIComponent(id)}`, page.signal)));
  const stage = (view, name) => view.outcome?.stages.find((one) => one.stage === name)?.duration_ms;
  const lines = [
    ["reward", (view) => rewardMark(view.reward, { range: view.start?.task?.reward }), (view) => view.reward],
    ["ended", (view) => stateChip(view), (view) => view.ended],
    ["agent", (view) => `${view.agent} ${view.agent_version}`],
    ["endpoint", (view) => `${view.endpoint} · ${plain(view.model)}`],
    ["sandbox", (view) => view.backend],
    ["wall time", (view) => duration(view.wall_ms)],
    ...["boot", "setup", "agent", "verify", "collect"].map((name) => [`  ${name}`, (view) => duration(stage(view, name))]),
    ["calls", (view) => count(view.totals.calls)],
    ["trainable calls", (view) => count(view.totals.trainable_calls)],
    ["tokens in prompts", (view) => brief(view.totals.prompt_tokens)],
    ["tokens sampled", (view) => brief(view.totals.completion_tokens)],
    ["prefix breaks", (view) => count(view.totals.prefix_breaks)],
    ["level", (view) => words(view.totals.level)],
    ["asked for", (view) => moment(view.created_unix_ms)],
  ];
  const exact = h("tbody", null, lines.map(([name, show, key]) => {
    const [a, b] = views.map((view) => (key ? key(view) : show(view)));
    return h("tr", null, h("th", { scope: "row" }, name), views.map((view) => h("td", null, show(view))), h("td", null, String(a) !== String(b) && h("span", { class: "chip warn" }, "differs")));
  }));
  const meanRow = h("tr", null, h("th", { scope: "row" }, "mean log-probability"), h("td", null, "…"), h("td", null, "…"), h("td"));
  const partRow = h("tr", null, h("th", { scope: "row" }, "sampled the same until"), h("td", null, "…"), h("td", null, "…"), h("td"));
  exact.append(meanRow, partRow);
  const talks = ids.map(() => h("div", null, loading()));
  const fileBox = h("div", { class: "body stack" });
  page.show(h("div", { class: "head" }, h("h1", null, "Two rollouts")),
    h("div", { class: "stack" },
      h("section", { class: "panel" }, h("table", { class: "two" }, h("thead", null, h("tr", null, h("td"), views.map((view) => h("th", { scope: "col" }, h("a", { href: to(`rollouts/${view.id}`) }, plain(view.title).slice(0, 80), h("span", { class: "mono faint" }, ` ${shortId(view.id)}`)))), h("td"))), exact)),
      views.some((view) => view.outcome?.fault) && h("div", { class: "halves" }, views.map((view) => (view.outcome?.fault ? faultBox(view.outcome.fault) : h("div")))),
      h("section", { class: "panel" }, h("header", null, h("h2", null, "Files")), fileBox),
      h("section", null, h("h2", { class: "head" }, "Conversations"), h("div", { class: "halves" }, talks))));
  fileDiffs(fileBox, views);
  const documents = await Promise.allSettled(ids.map((id) => fetchDocument(id, { signal: page.signal })));
  documents.forEach((got, at) => {
    if (got.status === "rejected") return put(talks[at], failure(got.reason));
    put(talks[at], conversation(ids[at], got.value).node);
    const all = got.value.calls.filter((call) => call.meta.purpose === "agent").flatMap((call) => call.logprobs).filter((one) => one !== null);
    put(meanRow.children[at + 1], all.length === 0 ? "–" : number(all.reduce((sum, one) => sum + one, 0) / all.length, 4));
    return undefined;
  });
  const [a, b] = documents.map((got) => got.value);
  if (!a || !b) return;
  const found = parting(a, b);
  ids.forEach((id, at) => put(partRow.children[at + 1], found === null ? "–" : found === "end" ? "the end"
    : h("a", { href: to(`rollouts/${id}/tokens`, { call: found.calls[at], token: found.token }) }, `call ${found.calls[at]}, token ${count(found.token)}`)));
}

/** Where two rollouts first sample something else: the call of each, and the place in it; `end` where they do not. */
export function parting(a, b) {
  const lines = [a, b].map((trajectory) => {
    const [leaf] = trajectory.leaves();
    return leaf ? trajectory.line(leaf) : [];
  });
  const sampled = (call) => (call.ids.length > 0 ? call.ids : call.tokens);
  for (let at = 0; at < Math.max(lines[0].length, lines[1].length); at += 1) {
    const [one, other] = [lines[0][at], lines[1][at]];
    if (!one || !other) return at === 0 ? null : { calls: [lines[0][Math.min(at, lines[0].length - 1)].index, lines[1][Math.min(at, lines[1].length - 1)].index], token: 0 };
    const [x, y] = [sampled(one), sampled(other)];
    let same = 0;
    while (same < x.length && same < y.length && x[same] === y[same]) same += 1;
    if (same < x.length || same < y.length) return { calls: [one.index, other.index], token: same };
  }
  return lines[0].length === 0 ? null : "end";
}

function fileDiffs(box, views) {
  const [a, b] = views.map((view) => view.outcome?.files ?? {});
  const names = [...new Set([...Object.keys(a), ...Object.keys(b)])].filter((name) => !/(^|\/)__pycache__\//.test(name)).sort();
  if (names.length === 0) return put(box, h("span", { class: "faint" }, "Neither has files."));
  return put(box, names.map((name) => {
    if (a[name] === b[name]) return h("div", { class: "row" }, h("code", null, plain(name)), h("span", { class: "chip" }, "the same"));
    if (a[name] === undefined || b[name] === undefined) return h("div", { class: "row" }, h("code", null, plain(name)), h("span", { class: "chip warn" }, a[name] === undefined ? "only in the second" : "only in the first"));
    const node = h("details", null, h("summary", null, h("code", null, plain(name)), " ", h("span", { class: "chip warn" }, "differs")));
    node.addEventListener("toggle", () => {
      if (!node.open || node.children.length > 1) return;
      node.append(difference(a[name], b[name], name));
    });
    return node;
  }));
}
