// What happens in a rollout, a line each, the latest at the end.

import { h, put } from "../dom.js";
import { brief, duration, reward as rewardText, words } from "../format.js";
import { exitChip, flagChip, purposeChip } from "../marks.js";
import { to } from "../router.js";
import { block, pieces, plain } from "../text.js";

/** Lines that are in the document; earlier ones are left out, and said to be. */
const SHOWN_MAX = 600;

/** `follows` says whether the end is to be kept in sight. */
export function activity(id, model, follows) {
  const list = h("ol", { class: "activity", tabindex: "0", "aria-label": "What happened" });
  const earlier = h("li", { hidden: true }, h("time"), h("span"), h("span", { class: "faint" }));
  let done = 0;
  /** Nodes of commands whose output grows. */
  const growing = new Map();

  function update() {
    const atEnd = follows() && list.scrollHeight - list.scrollTop - list.clientHeight < 60;
    if (model.dropped + model.activity.length < done) {
      done = 0;
      put(list);
    }
    const from = Math.max(0, done - model.dropped);
    const fresh = model.activity.slice(from);
    list.append(...fresh.slice(-SHOWN_MAX).map(line));
    done = model.dropped + model.activity.length;
    while (list.children.length > SHOWN_MAX + 1) list.children[earlier.isConnected ? 1 : 0].remove();
    const left = done - (list.children.length - (earlier.isConnected ? 1 : 0));
    if (left > 0) {
      if (!earlier.isConnected) list.prepend(earlier);
      earlier.hidden = false;
      earlier.lastChild.textContent = `${left} earlier ones are not shown`;
    }
    for (const [command, draw] of growing) {
      draw();
      if (command.result) growing.delete(command);
    }
    if (atEnd) list.scrollTop = list.scrollHeight;
  }

  function line(entry) {
    const since = model.began === null ? 0 : Math.max(0, entry.at - model.began);
    const [kind, ...what] = said(entry);
    return h("li", { "data-stage": entry.stage ?? null }, h("time", { title: new Date(entry.at).toISOString() }, since < 1000 ? `${since} ms` : duration(since)),
      h("span", { class: `sign ${kind}` }), h("div", { class: "what" }, what));
  }

  function said(entry) {
    switch (entry.kind) {
      case "stage":
        return ["", h("span", { class: "muted" }, entry.text, entry.ms !== undefined && ` after ${duration(entry.ms)}`)];
      case "command": {
        const { command } = entry;
        const exit = h("span");
        const output = h("pre", { hidden: true, tabindex: "0" });
        let shown = -1;
        const draw = () => {
          const text = command.output || (command.result ? command.result.stdout + command.result.stderr : "");
          if (command.result) put(exit, exitChip(command.result), " ", h("span", { class: "faint small number" }, duration(command.result.duration_ms)));
          else put(exit, exitChip(null));
          if (text.length === shown) return;
          shown = text.length;
          output.hidden = text === "";
          put(output, pieces(text.slice(-4000).replace(/\n$/, "")));
          output.scrollTop = output.scrollHeight;
        };
        draw();
        growing.set(command, draw);
        return ["", h("code", { class: "wrap" }, plain(command.command.length > 300 ? `${command.command.slice(0, 300)}…` : command.command)), " ", exit, output];
      }
      case "agent":
        return agentSaid(entry.agent);
      case "call": {
        const { call } = entry;
        const failed = call.end !== "complete" && call.end !== "budget";
        return [failed ? "bad" : "call", h("a", { href: to(`rollouts/${id}/tokens`, { call: call.index }) }, `call ${call.index}`), " ",
          call.purpose !== "agent" && [purposeChip(call.purpose), " "],
          h("span", { class: "muted number" }, `${brief(call.prompt_tokens)} → ${brief(call.completion_tokens)} tokens in ${duration(call.duration_ms)}`),
          failed && [" ", h("span", { class: "chip bad" }, words(call.end))],
          call.prefix_break && [" ", h("span", { class: "chip warn", title: "the prompt does not begin with the earlier prompt and reply" }, "prefix break")],
          call.flags.filter((flag) => flag !== "sampling_defaulted").map((flag) => [" ", flagChip(flag)])];
      }
      case "reward":
        return ["", h("b", null, `reward ${rewardText(entry.value)}`)];
      case "end":
        return [entry.fault ? "bad" : "", h("b", null, words(entry.ended)), entry.fault && h("div", null, plain(entry.fault.message))];
      default:
        return ["", h("span", { class: "muted" }, entry.text)];
    }
  }
  return { node: list, update };
}

function agentSaid(event) {
  switch (event.kind) {
    case "text":
      return ["", block(event.text.replace(/^\s*\n|\s+$/g, ""), { kind: "said", part: 4000 })];
    case "tool":
      return [event.failed ? "bad" : "tool", h("b", null, plain(event.name)), " ", h("code", { class: "wrap" }, plain(event.input.slice(0, 600))), event.failed && [" ", h("span", { class: "chip bad" }, "failed")]];
    case "error":
      return ["bad", block(event.message, { part: 4000 })];
    case "session":
      return ["", h("span", { class: "muted" }, "session ", h("code", null, plain(event.id)))];
    case "step_ended":
      return ["", h("span", { class: "faint" }, `step ended: ${words(event.reason)}`)];
    default:
      return ["", h("span", { class: "muted" }, words(event.kind))];
  }
}

/** The last thing that an agent did, in a line. */
export function lastWord(model) {
  const running = [...model.commands.values()].findLast((command) => command.result === null);
  if (running?.output) return plain(running.output.slice(-400).trimEnd().split("\n").at(-1));
  for (let place = model.activity.length - 1; place >= 0; place -= 1) {
    const entry = model.activity[place];
    if (entry.kind === "agent" && entry.agent.kind === "tool") return plain(`${entry.agent.name} ${entry.agent.input}`.slice(0, 200));
    if (entry.kind === "agent" && entry.agent.kind === "text") return plain(entry.agent.text.slice(0, 200));
    if (entry.kind === "command") return plain(`$ ${entry.command.command}`.slice(0, 200));
  }
  return "";
}
