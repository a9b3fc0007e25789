"""Three lines to a reward. Needs neither network nor key: the model is the built-in scripted one."""

import dressage

rollout = dressage.rollout(preset="binary_search", endpoint="demo")
print("reward:", rollout.reward)

if rollout.fault is not None:
    raise SystemExit(str(rollout.fault))
