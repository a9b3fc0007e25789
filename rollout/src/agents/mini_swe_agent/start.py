"""Starts mini-swe-agent with the prompt on standard input, and prints each of its messages as a line of JSON.

usage: start.py TREE CONFIG, where TREE holds its packages and CONFIG is put over its own mini.yaml.
"""

import json
import os
import sys

tree, config = sys.argv[1:]
prompt = sys.stdin.buffer.read().decode("utf-8")
sys.path.insert(0, tree)
# Whatever else is printed is for people.
lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)

from minisweagent.agents.interactive import InteractiveAgent  # noqa: E402
from minisweagent.config import builtin_config_dir  # noqa: E402
from minisweagent.run.mini import main  # noqa: E402


class Told(InteractiveAgent):
    def add_messages(self, *messages):
        for message in messages:
            print(json.dumps(message, default=str), file=lines, flush=True)
        return super().add_messages(*messages)


agent = main(
    model_name=None,
    model_class=None,
    agent_class="__main__.Told",
    environment_class=None,
    task=prompt,
    yolo=True,
    cost_limit=None,
    config_spec=[str(builtin_config_dir / "mini.yaml"), config],
    output=None,
    exit_immediately=True,
)
status = agent.messages[-1].get("extra", {}).get("exit_status")
sys.exit(0 if status == "Submitted" else 1)
