from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

import dressage
from dressage.openenv import CallToolAction, ListToolsAction, OpenCodeEnv, ToolError
from dressage.openenv.client import _extract_text
from dressage.openenv.models import RolloutResult

RESULT = {"task_id": "t", "sandbox_id": "s", "reward": 1.0, "proxy_turns": [{"turn": 1}], "files": {"a.py": "x"}}


class FakeEnvironment:
    """Plays `POST /mcp`, with the white space that keeps connections alive before a reply."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.sessions: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/mcp"
        self.headers = request.headers
        call = json.loads(request.content)
        self.calls.append(call)
        method, params = call["method"], call["params"]
        if method == "openenv/session/create":
            self.sessions.append(f"s{len(self.sessions) + 1}")
            return self.result(call, session_id=self.sessions[-1])
        if params.get("session_id") != self.sessions[-1]:
            return self.error(call, -32602, "Unknown session_id")
        if method == "tools/list":
            return self.result(call, tools=[{"name": "run_rollout", "inputSchema": {}}])
        if method == "tools/call" and params["name"] == "run_rollout":
            text = json.dumps(RESULT)
            return self.result(call, content=[{"type": "text", "text": text}], data=text, is_error=False)
        if method == "tools/call":
            return self.error(call, -32603, f"Unknown tool: '{params['name']}'")
        return self.result(call, closed=True)

    def result(self, call: dict[str, Any], **members: Any) -> httpx.Response:
        body = json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": members})
        return httpx.Response(200, content=b"   " + body.encode())

    def error(self, call: dict[str, Any], code: int, message: str) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": call["id"], "error": {"code": code, "message": message, "data": None}}
        return httpx.Response(200, json=body)

    @property
    def methods(self) -> list[str]:
        return [call["method"].rsplit("/", 1)[-1] for call in self.calls]


def env(fake: FakeEnvironment, **options: Any) -> OpenCodeEnv:
    return OpenCodeEnv("ws://env.test", transport=httpx.MockTransport(fake), **options)


def test_with_gives_a_client_for_threads_whose_run_rollout_works() -> None:
    fake = FakeEnvironment()
    with env(fake) as client:
        assert client.reset().observation.metadata == {"status": "ready"}
        result = client.run_rollout(endpoint="demo", instruction="x", verify=["true"], task_id="t")
        state = client.state()
    assert (result.reward, len(result.proxy_turns), result.files) == (1.0, 1, {"a.py": "x"})
    assert (state.rollouts_completed, state.last_reward, state.last_task_id, state.last_sandbox_id) == (
        1,
        1.0,
        "t",
        "s",
    )
    assert fake.methods == ["create", "close", "create", "call", "close"]
    arguments = fake.calls[3]["params"]["arguments"]
    assert arguments == {
        "endpoint": "demo",
        "base_url": "",
        "api_key": "",
        "model": "",
        "instruction": "x",
        "setup": [],
        "verify": ["true"],
        "task_id": "t",
        "mode": "transparent_proxy",
        "disable_thinking": None,
        "max_tokens_cap": 4096,
        "top_logprobs": 5,
        "agent_timeout_s": 600.0,
        "template": "",
    }


def test_the_snippet_of_the_readme_works() -> None:
    fake = FakeEnvironment()

    async def main() -> RolloutResult:
        async with env(fake) as client:
            await client.reset()
            raw = await client.call_tool("run_rollout", endpoint="openai", instruction="x", setup=[], verify=[])
            return RolloutResult.model_validate_json(_extract_text(raw))

    assert asyncio.run(main()).reward == 1.0
    assert fake.methods[-1] == "close"


def test_run_rollout_can_be_awaited() -> None:
    async def main() -> float | None:
        async with env(FakeEnvironment()) as client:
            return (await client.run_rollout(instruction="x")).reward

    assert asyncio.run(main()) == 1.0


def test_steps_are_actions() -> None:
    with env(FakeEnvironment()).sync() as client:
        listed = client.step(ListToolsAction()).observation.tools
        assert listed is not None
        assert listed[0]["name"] == "run_rollout"
        done = client.step(CallToolAction(tool_name="run_rollout", arguments={"instruction": "x"})).observation
        assert json.loads(done.result["content"][0]["text"])["reward"] == 1.0
        failed = client.step(CallToolAction(tool_name="nope")).observation
        assert failed.error == {"error_type": "execution_error", "message": "Unknown tool: 'nope'"}
        with pytest.raises(ToolError, match="Unknown tool"):
            client.call_tool("nope")


def test_a_key_goes_to_the_server_it_was_given_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRESSAGE_API_KEY", "environment-key")
    fake = FakeEnvironment()
    with env(fake, api_key="mine") as client:
        assert fake.headers["authorization"] == "Bearer mine"
        assert "mine" not in repr(client)
    with env(fake):
        assert "authorization" not in fake.headers


def test_a_server_that_is_none_is_said_to_be_none() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text="<html>"))
    with pytest.raises(dressage.DressageError, match="OpenEnv"), OpenCodeEnv("http://x", transport=transport):
        pass
