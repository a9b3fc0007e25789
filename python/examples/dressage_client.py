"""A group of rollouts with the client of Dressage: live events, calls, and a verdict of one's own.

python dressage_client.py [ADDRESS]
"""

from __future__ import annotations

import contextlib
import sys

import dressage
from dressage import models

TASK = {
    "id": "binary_search_v1",
    "instruction": (
        "Create binary_search.py exposing def binary_search(arr, target) -> int that returns the index of target in"
        " arr, or -1 if absent. Use a relative path."
    ),
}

CHECK = """
import binary_search
cases = [([1, 2, 3], 2, 1), ([], 1, -1), ([5], 5, 0), ([1, 3], 2, -1)]
print(sum(binary_search.binary_search(list(arr), target) == index for arr, target, index in cases) / len(cases))
"""


def judge(client: dressage.Client, rollout: str) -> None:
    """Looks at the held sandbox and gives a reward between 0 and 1."""
    client.write_file(rollout, "check.py", CHECK)
    ran = client.exec(rollout, "python check.py", timeout_s=30)
    reward = float(ran.stdout or 0.0) if ran.exit_code == 0 else 0.0
    client.finish(rollout, reward, {"stderr": ran.stderr[-1000:]})


def show(event: models.RolloutEvent) -> None:
    """Says what happens, in a line."""
    match event.event:
        case models.StageStarted(stage=stage):
            print(f"  {stage}")
        case models.CallEnded(call=call):
            print(f"    call {call.index}: {call.prompt_tokens} + {call.completion_tokens} tokens, {call.level}")
        case models.AgentSaid(event={"kind": "tool", "name": name, "input": given}):
            print(f"    {name} {given[:80]}")
        case _:
            pass


def main() -> None:
    """Runs two rollouts, each judged here."""
    with contextlib.ExitStack() as stack:
        if len(sys.argv) > 1:
            client = stack.enter_context(dressage.Client(sys.argv[1]))
        else:
            client = stack.enter_context(stack.enter_context(dressage.serve()).client())
        rewards = []
        for submitted in client.submit(TASK, n=2, endpoint="demo", hold=True):
            print("rollout", submitted.id)
            for event in client.events(submitted.id):
                show(event)
                # Said again whenever the deadline of the hold moves.
                if isinstance(event.event, models.Held) and client.get(submitted.id).is_held:
                    judge(client, submitted.id)
            rollout = client.get(submitted.id)
            trainable = [turn for turn in client.trajectory(submitted.id).turns if any(turn.loss_mask or ())]
            print(f"  reward {rollout.reward}, {len(trainable)} trainable turns, {rollout.fault or 'no fault'}")
            rewards.append(rollout.reward)
    sys.exit(0 if rewards == [1.0, 1.0] else 1)


if __name__ == "__main__":
    main()
