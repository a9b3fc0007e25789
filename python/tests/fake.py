"""A server of the REST API that is played: rollouts go where a test says, and every request is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

import httpx

from dressage import AsyncClient, Client

URL = "http://dressage.test"

Answer = Callable[[httpx.Request], httpx.Response]


def reply(status: int = 200, **members: Any) -> httpx.Response:
    return httpx.Response(status, json=members)


def refusal(status: int, code: str, message: str, **more: Any) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": message, **more}})


def row(rollout: str = "r1", state: str = "running", **more: Any) -> dict[str, Any]:
    return {"id": rollout, "state": state, "owner": "o", "title": "t", "start": None, "outcome": None, **more}


def outcome(rollout: str = "r1", ended: str = "completed", reward: float | None = 1.0, **more: Any) -> dict[str, Any]:
    return {
        "id": rollout,
        "ended": ended,
        "fault": None,
        "reward": {"value": reward, "overridden": False, "commands": [], "separation": "namespace"},
        "agent": {"exit_code": 0, "spoke": True, "log_tail": '{"type":"text"}\n', "duration_ms": 10},
        **more,
    }


def finished(rollout: str = "r1", ended: str = "completed", reward: float | None = 1.0, **more: Any) -> dict[str, Any]:
    came = outcome(rollout, ended, reward, **more)
    return row(rollout, "finished", ended=ended, reward=reward, outcome=came)


def fault(code: str, owner: str = "task", *, retryable: bool = False) -> dict[str, Any]:
    return {"code": code, "owner": owner, "stage": "setup", "retryable": retryable, "message": f"{code} happened"}


class FakeServer:
    """Answers each route with what is left of its script; the last answer of a script stays."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self._scripts: dict[tuple[str, str], list[httpx.Response | Answer | Exception]] = {}

    def on(self, method: str, path: str, *answers: httpx.Response | Answer | Exception) -> FakeServer:
        self._scripts[method, path] = list(answers)
        return self

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        path = request.url.raw_path.decode().split("?")[0]
        script = self._scripts.get((request.method, path))
        if script is None:
            return refusal(404, "unknown_route", f"there is nothing at `{unquote(path)}`")
        answer = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return answer
        return answer(request)

    def client(self, **options: Any) -> Client:
        return Client(URL, transport=httpx.MockTransport(self), **options)

    def async_client(self, **options: Any) -> AsyncClient:
        return AsyncClient(URL, transport=httpx.MockTransport(self), **options)

    def sent(self, method: str, path: str) -> list[Any]:
        """The JSON bodies that were sent to a route."""
        return [json.loads(request.content or b"null") for request in self.all(method, path)]

    def all(self, method: str, path: str) -> list[httpx.Request]:
        found = [request for request in self.requests if request.method == method]
        return [request for request in found if request.url.raw_path.decode().split("?")[0] == path]


def event(sequence: int, kind: str, **more: Any) -> bytes:
    data = {"rollout": "r1", "sequence": sequence, "unix_ms": 1, "event": {"type": kind, **more}}
    return f"id: {sequence}\nevent: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def stream(*pieces: bytes | Exception) -> httpx.Response:
    """A stream of events that breaks off where an exception stands."""
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=_Pieces(pieces))


class _Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, pieces: Iterable[bytes | Exception]) -> None:
        self._pieces = list(pieces)

    def __iter__(self) -> Any:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def __aiter__(self) -> Any:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece


def turn(index: int, prompt: list[int], completion: list[int], **more: Any) -> dict[str, Any]:
    """A turn of a trajectory, trainable unless told otherwise."""
    whole = {
        "turn": index + 1,
        "node_id": f"r1:{index}",
        "parent_node_id": f"r1:{index - 1}" if index else None,
        "role": "agent",
        "finish_reason": "stop",
        "prompt_token_ids": prompt,
        "completion_token_ids": completion,
        "completion_tokens": [f"token_id:{token}" for token in completion],
        "per_token_logps": [-0.5] * len(completion),
        "loss_mask": [0] * len(prompt) + [1] * len(completion),
        "request": {"messages": [{"role": "user", "content": "task"}], "tools": [{"type": "function"}]},
        "response": {"choices": [{"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]},
        "flags": [],
        "metadata": {"end": "complete", "level": "tokens", "purpose": "agent", "sampling_params": {"temperature": 1.0}},
        "latency_s": 0.1,
        "timestamp": 1.0,
        "upstream_status": None,
        "upstream_error": None,
    }
    return {**whole, **more}


def failed_turn(index: int) -> dict[str, Any]:
    """A call that the endpoint answered with an error."""
    return turn(
        index,
        [],
        [],
        prompt_token_ids=None,
        loss_mask=None,
        response={"error": "unavailable"},
        upstream_status=503,
        upstream_error={"end": "upstream_error", "message": "503"},
        metadata={"end": "upstream_error", "level": "text"},
    )
