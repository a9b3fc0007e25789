"""The unmodified `openenv` client against `dressage serve`: what users of OpenEnv's `opencode_env` run today.

    dressage serve &
    pip install openenv
    python openenv_client.py http://127.0.0.1:8000

Without an address it starts a server of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

from openenv.core.mcp_client import MCPToolClient

TASK = {
    "endpoint": "demo",
    "instruction": (
        "Create binary_search.py exposing def binary_search(arr, target) -> int that returns the index of target in"
        " arr, or -1 if absent. Use a relative path."
    ),
    "verify": [
        "test -f /home/user/workdir/binary_search.py",
        "python -c \"import sys; sys.path.insert(0, '/home/user/workdir'); import binary_search; "
        "assert binary_search.binary_search([1,2,3], 2) == 1; print('OK')\"",
    ],
    "task_id": "binary_search_v1",
}


async def run(address: str) -> float | None:
    """Runs the task through the server at `address` and gives its reward."""
    # A rollout takes longer than the client's minute of patience.
    async with MCPToolClient(base_url=address, message_timeout_s=900) as env:
        await env.reset()
        raw = await env.call_tool("run_rollout", **TASK)
    result = json.loads(raw if isinstance(raw, str) else raw["content"][0]["text"])
    print("reward:", result["reward"])
    print("turns:", len(result["proxy_turns"]))
    print("files:", list(result["files"]))
    print("wall:", result["wall_s"], "s")
    if result["error"]:
        print("error:", result["error"])
    reward = result["reward"]
    return reward if reward is None else float(reward)


def main() -> None:
    """Runs against the address that is given, or against a server of its own."""
    with contextlib.ExitStack() as stack:
        if len(sys.argv) > 1:
            address = sys.argv[1]
        else:
            import dressage

            address = stack.enter_context(dressage.serve()).url
        reward = asyncio.run(run(address))
    sys.exit(0 if reward == 1.0 else 1)


if __name__ == "__main__":
    main()
