// The events of all rollouts, for views that show many. One stream, however many views listen.

import { follow } from "./events.js";

const listeners = new Set();
let stop = null;
let state = "wait";
let closing = 0;

function tell(name, ...given) {
  for (const listener of [...listeners]) listener[name]?.(...given);
}

/** Listens: `onEvents` gets lists of events, `onMissed` is told where what is shown must be read anew. Gives what ends it. */
export function listen(listener) {
  listeners.add(listener);
  clearTimeout(closing);
  if (stop === null) {
    stop = follow("api/v1/events", {
      onEvents: (sent) => {
        const events = [];
        let missed = false;
        for (const one of sent) {
          if (one.event === "missed") missed = true;
          else if (one.event !== "position") events.push(JSON.parse(one.data));
        }
        if (missed) tell("onMissed");
        if (events.length > 0) tell("onEvents", events);
      },
      onState: (now) => {
        state = now;
        tell("onState", now);
      },
    });
  }
  listener.onState?.(state);
  return () => {
    listeners.delete(listener);
    // The next view may want it too.
    closing = setTimeout(() => {
      if (listeners.size > 0) return;
      stop?.();
      stop = null;
      state = "wait";
    }, 1000);
  };
}
