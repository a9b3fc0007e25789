// What a rollout's events come to, one after the other: the same for one that runs and one that is long over.

import { STAGES } from "../marks.js";

/** Characters of a command's output that are kept while it runs; its result has the end of it. */
const OUTPUT_MAX = 400_000;

/** Characters of a call in flight that are kept. */
const STREAM_MAX = 4000;

/** Entries of the activity that are kept. */
const ACTIVITY_MAX = 4000;

export class Model {
  stages = Object.fromEntries(STAGES.map((stage) => [stage, { state: "waiting", started: null, ms: null }]));
  commands = new Map();
  activity = [];
  /** Entries that were dropped from the front. */
  dropped = 0;
  calls = [];
  open = new Map();
  reward = null;
  hasReward = false;
  heldUntil = null;
  finished = null;
  first = null;
  last = null;

  /** When it began to run: what went before was waiting. */
  get began() {
    return this.stages.boot.started ?? this.first;
  }

  /** The stage that it is in. */
  get stage() {
    return STAGES.find((stage) => this.stages[stage].state === "now") ?? null;
  }

  get dots() {
    return Object.fromEntries(STAGES.map((stage) => [stage, this.stages[stage].state]));
  }

  take(event) {
    const { unix_ms: at, event: what } = event;
    this.first ??= at;
    this.last = at;
    switch (what.type) {
      case "queued":
        // One that is run again begins anew.
        this.#begin();
        this.first = at;
        return this.#note(at, { kind: "note", text: what.position > 0 ? `queued, with ${what.position} before it` : "queued" });
      case "stage_started":
        this.stages[what.stage] = { state: "now", started: at, ms: null };
        return this.#note(at, { kind: "stage", stage: what.stage, text: `${what.stage} began` });
      case "stage_ended": {
        const stage = this.stages[what.stage];
        stage.state = "done";
        stage.ms = what.duration_ms;
        stage.started ??= at - what.duration_ms;
        return this.#note(at, { kind: "stage", stage: what.stage, text: `${what.stage} ended`, ms: what.duration_ms });
      }
      case "command_started": {
        const command = { stage: what.stage, index: what.index, command: what.command, output: "", cut: false, result: null, at };
        this.commands.set(`${what.stage}:${what.index}`, command);
        return this.#note(at, { kind: "command", stage: what.stage, command });
      }
      case "command_output": {
        const key = `${what.stage}:${what.index}`;
        // Whoever came in the middle does not know what it is.
        const command = this.commands.get(key) ?? { stage: what.stage, index: what.index, command: "", output: "", cut: true, result: null, at };
        this.commands.set(key, command);
        command.output += what.text;
        if (command.output.length > OUTPUT_MAX) {
          command.output = command.output.slice(-OUTPUT_MAX / 2);
          command.cut = true;
        }
        return undefined;
      }
      case "command_ended": {
        const key = `${what.stage}:${what.index}`;
        const command = this.commands.get(key);
        if (command) command.result = what.result;
        else this.commands.set(key, { stage: what.stage, index: what.index, command: what.result.command, output: "", cut: false, result: what.result, at });
        return undefined;
      }
      case "agent":
        if (what.event.kind === "text" && what.event.text.trim() === "") return undefined;
        return this.#note(at, { kind: "agent", stage: "agent", agent: what.event });
      case "call_started":
        this.open.set(what.call, { at, tokens: 0, text: "" });
        return undefined;
      case "call_progress": {
        const open = this.open.get(what.call) ?? { at, tokens: 0, text: "" };
        open.tokens = what.tokens;
        open.text = (open.text + what.text).slice(-STREAM_MAX);
        this.open.set(what.call, open);
        return undefined;
      }
      case "call_ended":
        // Its end is told when it is stored, which can be a while after it.
        this.calls.push({ ...what.call, began: this.open.get(what.call.id)?.at ?? at - what.call.duration_ms });
        this.open.delete(what.call.id);
        return this.#note(at, { kind: "call", call: what.call });
      case "reward":
        this.reward = what.value;
        this.hasReward = true;
        return this.#note(at, { kind: "reward", value: what.value });
      case "held":
        this.heldUntil = what.until_unix_ms;
        return this.#note(at, { kind: "note", text: "held for the caller" });
      case "released":
        this.heldUntil = null;
        return this.#note(at, { kind: "note", text: `released by ${what.by}` });
      case "finished":
        this.finished = { ended: what.ended, fault: what.fault, at };
        this.open.clear();
        for (const stage of STAGES) if (this.stages[stage].state === "now") this.stages[stage].state = "done";
        return this.#note(at, { kind: "end", ended: what.ended, fault: what.fault });
      default:
        return undefined;
    }
  }

  #begin() {
    for (const stage of STAGES) this.stages[stage] = { state: "waiting", started: null, ms: null };
    this.commands.clear();
    this.open.clear();
    this.calls = [];
    this.finished = null;
    this.hasReward = false;
  }

  #note(at, entry) {
    this.activity.push({ at, ...entry });
    if (this.activity.length > ACTIVITY_MAX) {
      const many = this.activity.length - ACTIVITY_MAX / 2;
      this.activity.splice(0, many);
      this.dropped += many;
    }
  }
}
