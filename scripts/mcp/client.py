"""Drives `dressage serve` and `dressage mcp` with FastMCP, unmodified.

usage: client.py http URL | client.py stdio PROGRAM ARGUMENT...

client.mjs does the same with the TypeScript SDK. Says what it saw; ends with 1 where something is not as it should be.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from contextlib import suppress
from typing import Any

import fastmcp
from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp.exceptions import ToolError

STAGES = ["boot", "setup", "agent", "verify", "collect"]
TOOLS = ["cancel_rollout", "get_rollout", "list_rollouts", "run_rollout", "start_rollout"]
# The fourth has another library below it, which tells the server by itself when a call is given up.
IS_FOURTH = not fastmcp.__version__.startswith("3.")


def endless(task: str) -> dict[str, Any]:
    """A rollout that is in setup until it is cancelled."""
    return {"endpoint": "demo", "task": {"id": task, "instruction": "x", "setup": ["sleep 600"]}}


async def call(client: Client[Any], name: str, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Calls a tool. The client holds what it gives against the tool's output schema."""
    result = await client.call_tool(name, arguments, timeout=300, **options)
    assert not result.is_error, result
    assert json.loads(result.content[0].text) == result.structured_content, result
    return dict(result.structured_content)


async def refused(client: Client[Any], name: str, arguments: dict[str, Any], code: str) -> None:
    """What a tool refuses is a result that says why, with a code, and not an error of the protocol."""
    result = await client.call_tool(name, arguments, raise_on_error=False)
    assert result.is_error, result
    assert json.loads(result.content[0].text)["error"]["code"] == code, result
    with suppress(ToolError):
        await client.call_tool(name, arguments)
        raise AssertionError(f"{name} {arguments} was not refused")


async def is_cancelled(client: Client[Any], rollout: str) -> None:
    over = await call(client, "get_rollout", {"id": rollout, "wait_s": 50})
    assert (over["state"], over["ended"], over["reward"]) == ("finished", "cancelled", None), over


def schemas(tool: Any) -> list[dict[str, Any]]:
    """The schemas of input and output; versions of the library name them in their own way."""
    dumped = tool.model_dump(by_alias=True)
    return [dumped["inputSchema"], dumped["outputSchema"]]


async def drive(client: Client[Any], kind: str) -> None:
    tools = await client.list_tools()
    assert sorted(tool.name for tool in tools) == TOOLS, tools
    for tool in tools:
        assert [schema["type"] for schema in schemas(tool)] == ["object", "object"], tool

    told: list[tuple[float, str | None]] = []

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        del total
        told.append((progress, message))

    whole = await call(
        client, "run_rollout", {"preset": "binary_search", "endpoint": "demo"}, progress_handler=progress
    )
    assert (whole["state"], whole["ended"], whole["reward"]) == ("finished", "completed", 1.0), whole
    assert [message for _, message in told if message in STAGES] == STAGES, told
    assert [number for number, _ in told] == list(range(1, len(told) + 1)), told
    assert any(re.fullmatch(r"call 1: \d+ prompt and \d+ completion tokens", message or "") for _, message in told)

    (started,) = (await call(client, "start_rollout", endless(f"started-{kind}")))["rollouts"]
    assert (await call(client, "get_rollout", {"id": started["id"]}))["state"] in ("queued", "running")
    listed = await call(client, "list_rollouts", {"task_id": f"started-{kind}"})
    assert [rollout["id"] for rollout in listed["rollouts"]] == [started["id"]], listed
    await call(client, "cancel_rollout", {"id": started["id"]})
    await is_cancelled(client, started["id"])

    in_setup = asyncio.Event()

    async def until_setup(progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        if message == "setup":
            in_setup.set()

    running = asyncio.create_task(
        client.call_tool("run_rollout", endless(f"given-up-{kind}"), progress_handler=until_setup)
    )
    await asyncio.wait_for(in_setup.wait(), 60)
    if IS_FOURTH:
        running.cancel()
    else:
        # The third tells nobody by itself, and does not say which number a request had: it was the last one.
        await client.cancel(client.session._request_id - 1, "enough")
    with suppress(Exception, asyncio.CancelledError):
        await asyncio.wait_for(running, 60)
    (given_up,) = (await call(client, "list_rollouts", {"task_id": f"given-up-{kind}"}))["rollouts"]
    await is_cancelled(client, given_up["id"])

    await refused(client, "get_rollout", {"id": "nothing"}, "unknown_rollout")
    await refused(client, "run_rollout", {"preset": "nothing"}, "invalid_request")


async def main(kind: str, target: str, *rest: str) -> None:
    transport = StreamableHttpTransport(target) if kind == "http" else StdioTransport(target, list(rest))
    async with Client(transport) as client:
        await drive(client, f"python-{fastmcp.__version__}-{kind}")
    print(f"FastMCP {fastmcp.__version__} over {kind}: everything as it should be")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
