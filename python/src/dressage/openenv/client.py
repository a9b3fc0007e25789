"""The environment over the network: upstream's `OpenCodeEnv`, whose `run_rollout` works.

It speaks OpenEnv's JSON-RPC over HTTP (`POST /mcp`, sessions of `openenv` 0.5 and later) with a server of Dressage as
with one of upstream, and needs no `openenv`. The client of `openenv` itself works with a server of Dressage as well.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, Field
from typing_extensions import Self

from .. import api, errors
from .models import OpenCodeState, RolloutResult


class ListToolsAction(BaseModel):
    """Asks for the tools."""


class CallToolAction(BaseModel):
    """Asks for a tool."""

    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


@dataclass
class Observation:
    """What an action gave."""

    tool_name: str | None = None
    result: Any = None
    error: dict[str, str] | None = None
    tools: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class StepResult:
    """What a step gave; the reward of a rollout is in its result."""

    observation: Observation
    reward: float | None = None
    done: bool = False


class ToolError(errors.DressageError, RuntimeError):
    """The server did not do what a call asked for."""


class _Session:
    """What both clients send and what they make of it."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.id: str | None = None
        self.state = OpenCodeState()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The body of a request."""
        if self.id is not None:
            params["session_id"] = self.id
        return {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": params}

    @staticmethod
    def result(response: httpx.Response) -> dict[str, Any]:
        """What a reply says. Raises `ToolError` where it is an error."""
        api.check(response)
        try:
            # White space before it keeps the connection alive while a rollout runs.
            reply = response.json()
        except ValueError as error:
            raise errors.DressageError("the reply is no JSON: is this a server of OpenEnv?") from error
        if isinstance(reply, dict) and isinstance(reply.get("error"), dict):
            raise ToolError(str(reply["error"].get("message", "it said nothing")))
        result = reply.get("result") if isinstance(reply, dict) else None
        return result if isinstance(result, dict) else {}

    def opened(self, result: Mapping[str, Any]) -> StepResult:
        """Begins an episode in the session that was made."""
        self.id = str(result.get("session_id", ""))
        self.state = OpenCodeState(episode_id=self.id)
        return StepResult(Observation(metadata={"status": "ready"}))

    def rolled_out(self, text: str) -> RolloutResult:
        """Reads the result of a rollout, and counts it."""
        result = RolloutResult.model_validate_json(text)
        self.state = self.state.model_copy(
            update={
                "rollouts_completed": self.state.rollouts_completed + 1,
                "last_reward": result.reward,
                "last_task_id": result.task_id or None,
                "last_sandbox_id": result.sandbox_id or None,
            }
        )
        return result


def _http_options(base_url: str, headers: Mapping[str, str] | None, timeout: httpx.Timeout) -> dict[str, Any]:
    parts = urlsplit(base_url.rstrip("/"))
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    options = api.connection(parts._replace(scheme=scheme).geturl(), None)
    options["headers"] = {**options["headers"], **(headers or {})}
    options["timeout"] = timeout
    return options


def _arguments(
    *,
    endpoint: str,
    base_url: str,
    api_key: str,
    model: str,
    instruction: str,
    setup: Sequence[str] | None,
    verify: Sequence[str] | None,
    task_id: str,
    mode: str,
    disable_thinking: bool | None,
    max_tokens_cap: int,
    top_logprobs: int,
    agent_timeout_s: float,
    template: str,
) -> dict[str, Any]:
    arguments = dict(locals())
    arguments["setup"], arguments["verify"] = list(setup or ()), list(verify or ())
    return arguments


class OpenCodeEnv:
    """A session with a server of `opencode_env`'s protocol, for asyncio; `with` and `.sync()` give one for threads.

    `message_timeout_s` is how long a reply may take; a server of Dressage sends white space while a rollout runs, so
    with it that is the longest silence. `api_key` is one of the server's keys.
    """

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float = 1800.0,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | httpx.BaseTransport | None = None,
    ) -> None:
        given = dict(headers or {})
        if api_key:
            given["Authorization"] = f"Bearer {api_key}"
        timeout = httpx.Timeout(message_timeout_s, connect=connect_timeout_s)
        self._options = _http_options(base_url, given, timeout)
        self._transport = transport
        self._http: httpx.AsyncClient | None = None
        self._sync: SyncOpenCodeEnv | None = None
        self._session = _Session()

    def __repr__(self) -> str:
        return f"OpenCodeEnv({self._options['base_url']!r})"

    def sync(self) -> SyncOpenCodeEnv:
        """The same session for threads."""
        return SyncOpenCodeEnv(self._options, self._transport)

    def __enter__(self) -> SyncOpenCodeEnv:
        self._sync = self.sync()
        return self._sync.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sync is not None:
            self._sync.close()

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Opens a session, unless there is one."""
        if self._session.id is None:
            self._session.opened(await self._call("openenv/session/create"))

    async def close(self) -> None:
        """Closes the session and the connection."""
        try:
            if self._session.id is not None:
                await self._call("openenv/session/close")
        except errors.DressageError:
            # It may have been closed by the other side; there is nothing to be saved.
            pass
        finally:
            self._session.id = None
            if self._http is not None:
                await self._http.aclose()
                self._http = None

    async def reset(self) -> StepResult:
        """Begins an episode: a fresh session."""
        if self._session.id is not None:
            await self._call("openenv/session/close")
            self._session.id = None
        return self._session.opened(await self._call("openenv/session/create"))

    async def state(self) -> OpenCodeState:
        """What this session has done so far."""
        return self._session.state

    async def list_tools(self) -> list[dict[str, Any]]:
        """The tools, each with name, description and schema."""
        await self.connect()
        return list((await self._call("tools/list")).get("tools") or ())

    async def call_tool(self, name: str, **arguments: Any) -> Any:
        """Calls a tool and gives its data: for `run_rollout` the JSON of a `RolloutResult`. Raises `ToolError`."""
        await self.connect()
        return _data(await self._call("tools/call", name=name, arguments=arguments))

    async def step(self, action: Any) -> StepResult:
        """Does an action; a tool that fails is an observation."""
        await self.connect()
        if not hasattr(action, "tool_name"):
            return StepResult(Observation(tools=await self.list_tools()))
        try:
            result = await self._call("tools/call", name=action.tool_name, arguments=dict(action.arguments))
        except ToolError as error:
            return _failed(action.tool_name, error)
        return StepResult(Observation(tool_name=action.tool_name, result=result))

    async def run_rollout(
        self,
        *,
        instruction: str,
        endpoint: str = "",
        base_url: str = "",
        api_key: str = "",
        model: str = "",
        setup: Sequence[str] | None = None,
        verify: Sequence[str] | None = None,
        task_id: str = "",
        mode: str = "transparent_proxy",
        disable_thinking: bool | None = None,
        max_tokens_cap: int = 4096,
        top_logprobs: int = 5,
        agent_timeout_s: float = 600.0,
        template: str = "",
    ) -> RolloutResult:
        """Runs one rollout: arguments and defaults are upstream's. Raises `ToolError` where the server refuses it."""
        arguments = _arguments(**{key: value for key, value in locals().items() if key != "self"})
        return self._session.rolled_out(extract_text(await self.call_tool("run_rollout", **arguments)))

    async def _call(self, method: str, **params: Any) -> dict[str, Any]:
        if self._http is None:
            self._http = httpx.AsyncClient(**self._options, transport=self._transport)  # type: ignore[arg-type]
        with api.translated(method):
            response = await self._http.post("/mcp", json=self._session.call(method, **params))
        return self._session.result(response)


class SyncOpenCodeEnv:
    """`OpenCodeEnv` for threads: the same methods, not awaited."""

    def __init__(
        self, options: Mapping[str, Any], transport: httpx.AsyncBaseTransport | httpx.BaseTransport | None
    ) -> None:
        self._options = options
        self._http = httpx.Client(**options, transport=transport)  # type: ignore[arg-type]
        self._session = _Session()

    def __repr__(self) -> str:
        return f"SyncOpenCodeEnv({self._options['base_url']!r})"

    def __enter__(self) -> Self:
        try:
            self.connect()
        except BaseException:
            self._http.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connect(self) -> None:
        """Opens a session, unless there is one."""
        if self._session.id is None:
            self._session.opened(self._call("openenv/session/create"))

    def close(self) -> None:
        """Closes the session and the connection."""
        try:
            if self._session.id is not None:
                self._call("openenv/session/close")
        except errors.DressageError:
            # It may have been closed by the other side; there is nothing to be saved.
            pass
        finally:
            self._session.id = None
            self._http.close()

    def reset(self) -> StepResult:
        """Begins an episode: a fresh session."""
        if self._session.id is not None:
            self._call("openenv/session/close")
            self._session.id = None
        return self._session.opened(self._call("openenv/session/create"))

    def state(self) -> OpenCodeState:
        """What this session has done so far."""
        return self._session.state

    def list_tools(self) -> list[dict[str, Any]]:
        """The tools, each with name, description and schema."""
        self.connect()
        return list(self._call("tools/list").get("tools") or ())

    def call_tool(self, name: str, **arguments: Any) -> Any:
        """Calls a tool and gives its data: for `run_rollout` the JSON of a `RolloutResult`. Raises `ToolError`."""
        self.connect()
        return _data(self._call("tools/call", name=name, arguments=arguments))

    def step(self, action: Any) -> StepResult:
        """Does an action; a tool that fails is an observation."""
        self.connect()
        if not hasattr(action, "tool_name"):
            return StepResult(Observation(tools=self.list_tools()))
        try:
            result = self._call("tools/call", name=action.tool_name, arguments=dict(action.arguments))
        except ToolError as error:
            return _failed(action.tool_name, error)
        return StepResult(Observation(tool_name=action.tool_name, result=result))

    def run_rollout(
        self,
        *,
        instruction: str,
        endpoint: str = "",
        base_url: str = "",
        api_key: str = "",
        model: str = "",
        setup: Sequence[str] | None = None,
        verify: Sequence[str] | None = None,
        task_id: str = "",
        mode: str = "transparent_proxy",
        disable_thinking: bool | None = None,
        max_tokens_cap: int = 4096,
        top_logprobs: int = 5,
        agent_timeout_s: float = 600.0,
        template: str = "",
    ) -> RolloutResult:
        """Runs one rollout: arguments and defaults are upstream's. Raises `ToolError` where the server refuses it."""
        arguments = _arguments(**{key: value for key, value in locals().items() if key != "self"})
        return self._session.rolled_out(extract_text(self.call_tool("run_rollout", **arguments)))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        with api.translated(method):
            response = self._http.post("/mcp", json=self._session.call(method, **params))
        return self._session.result(response)


def extract_text(result: object) -> str:
    """The text of a tool's result, in whichever form a client of OpenEnv gives it.

    Takes the text itself, a result of MCP as a table or an object (`content[0].text`), and an observation that has one
    as its `result`. Anything else is given as JSON.
    """
    if isinstance(result, str):
        return result
    for holder in (result, _member(result, "result")):
        content = _member(holder, "content")
        if isinstance(content, Sequence) and content and isinstance(text := _member(content[0], "text"), str):
            return text
    return json.dumps(result, default=str)


_extract_text = extract_text
"""Upstream's name for it, which its README imports."""


def _member(holder: object, name: str) -> object:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _data(result: dict[str, Any]) -> Any:
    return result.get("data", result)


def _failed(tool: str, error: ToolError) -> StepResult:
    return StepResult(Observation(tool_name=tool, error={"error_type": "execution_error", "message": str(error)}))
