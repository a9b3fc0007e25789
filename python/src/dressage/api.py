"""The REST API as values: each function gives the request for one route, and how its reply is read.

`dressage.Client` and `dressage.AsyncClient` differ only in how they send these.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from . import control_token, errors, models
from .spec import RolloutSpec

T = TypeVar("T")
M = TypeVar("M", bound=models.Model)

DEFAULT_URL = "http://127.0.0.1:8000"

LOOPBACK = ("127.0.0.1", "localhost", "::1")

PREFIX = "/api/v1"

PROBE_S = 600.0
"""Seconds that an endpoint may take for the calls that probe it."""


@dataclass(frozen=True)
class Request(Generic[T]):
    """A request, and how its reply is read."""

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    takes_s: float = 0.0
    """Seconds that the server may work before it answers, beyond the client's timeout."""

    @property
    def name(self) -> str:
        """What it is, for messages."""
        return f"{self.method} {self.path}"

    @property
    def is_repeatable(self) -> bool:
        """Whether sending it twice does no more than sending it once."""
        return self.method == "GET" or "Idempotency-Key" in self.headers

    def arguments(self, timeout_s: float) -> dict[str, Any]:
        """Those of `httpx.Client.request`, without a body where there is none."""
        arguments: dict[str, Any] = {
            "method": self.method,
            "url": PREFIX + self.path,
            "params": dict(self.params),
            "headers": dict(self.headers),
            "timeout": httpx.Timeout(timeout_s, read=timeout_s + self.takes_s),
        }
        if self.json is not None:
            arguments["json"] = self.json
        if self.content is not None:
            arguments["content"] = self.content
        return arguments


def read_model(kind: type[M]) -> Callable[[httpx.Response], M]:
    """Reads a reply as a model."""
    return lambda response: parsed(kind.model_validate_json, response.content)


def read_list(kind: type[M], key: str) -> Callable[[httpx.Response], list[M]]:
    """Reads the models that a reply has under `key`."""
    table = TypeAdapter(dict[str, Any])
    several = TypeAdapter(list[kind])  # type: ignore[valid-type]

    def read(response: httpx.Response) -> list[M]:
        members = parsed(table.validate_json, response.content)
        return parsed(several.validate_python, members.get(key))

    return read


def read_object(response: httpx.Response) -> dict[str, Any]:
    """Reads a reply as it is."""
    return parsed(TypeAdapter(dict[str, Any]).validate_json, response.content)


def parsed(read: Callable[[Any], T], content: object) -> T:
    """What `read` makes of `content`.

    Raises `errors.DressageError` where it makes nothing of it: another program may listen there.
    """
    try:
        return read(content)
    except ValidationError as error:
        raise errors.DressageError(f"a reply is none of this API: {error}") from error


# --- routes ---


def submit(specs: Sequence[RolloutSpec], idempotency_key: str | None) -> Request[list[models.Submitted]]:
    """`POST /rollouts`."""
    return Request(
        "POST",
        "/rollouts",
        read_list(models.Submitted, "rollouts"),
        json=dict(specs[0]) if len(specs) == 1 else {"rollouts": [dict(spec) for spec in specs]},
        headers={"Idempotency-Key": idempotency_key} if idempotency_key else {},
    )


def list_rollouts(filters: Mapping[str, Any]) -> Request[models.Page]:
    """`GET /rollouts`."""
    params = {
        key: ",".join(value) if isinstance(value, (list, tuple)) else value
        for key, value in filters.items()
        if value is not None
    }
    return Request("GET", "/rollouts", read_model(models.Page), params=params)


def go_on(filters: dict[str, Any], page: models.Page) -> bool:
    """Makes the filters of a page those of the next one; False where there is none."""
    if page.next_cursor is not None:
        filters["cursor"] = page.next_cursor
    elif page.next_skip is not None:
        filters["skip"] = page.next_skip
    else:
        return False
    return True


def get(rollout: str) -> Request[models.Rollout]:
    """`GET /rollouts/{id}`."""
    return Request("GET", rollout_path(rollout), read_model(models.Rollout))


def cancel(rollout: str) -> Request[models.Rollout]:
    """`POST /rollouts/{id}/cancel`."""
    return Request("POST", rollout_path(rollout, "cancel"), read_model(models.Rollout))


def calls(rollout: str) -> Request[list[models.Call]]:
    """`GET /rollouts/{id}/calls`."""
    return Request("GET", rollout_path(rollout, "calls"), read_list(models.Call, "calls"))


def call(rollout: str, index: int) -> Request[models.Turn]:
    """`GET /rollouts/{id}/calls/{index}`."""
    return Request("GET", rollout_path(rollout, "calls", str(index)), read_model(models.Turn))


def trajectory(rollout: str) -> Request[models.Trajectory]:
    """`GET /rollouts/{id}/trajectory?format=training`."""
    path = rollout_path(rollout, "trajectory")
    return Request("GET", path, read_model(models.Trajectory), params={"format": "training"})


def native_trajectory(rollout: str) -> Request[dict[str, Any]]:
    """`GET /rollouts/{id}/trajectory`."""
    return Request("GET", rollout_path(rollout, "trajectory"), read_object)


def export(
    *,
    shape: str,
    where: str,
    ids: Iterable[str],
    train: Iterable[str],
    truncated: str,
    subagent_reward: str,
    top_logprobs: str,
) -> dict[str, Any]:
    """Arguments of `httpx.Client.stream` for `GET /export`; what is empty is left to the server."""
    asked = {
        "shape": shape,
        "filter": where,
        "ids": ",".join(ids),
        "train": ",".join(train),
        "truncated": truncated,
        "subagent_reward": subagent_reward,
        "top_logprobs": top_logprobs,
    }
    params = {name: value for name, value in asked.items() if value}
    return {"method": "GET", "url": f"{PREFIX}/export", "params": params}


def row(line: str) -> dict[str, Any]:
    """A line of an export."""
    return parsed(TypeAdapter(dict[str, Any]).validate_json, line.encode())


def logs(rollout: str) -> Request[models.Logs]:
    """`GET /rollouts/{id}/logs`."""
    return Request("GET", rollout_path(rollout, "logs"), read_model(models.Logs))


def read_file(rollout: str, path: str) -> Request[bytes]:
    """`GET /rollouts/{id}/files/{path}`."""
    route = rollout_path(rollout, "files", path)
    return Request("GET", route, lambda response: response.content, takes_s=120.0)


def write_file(rollout: str, path: str, content: bytes) -> Request[None]:
    """`PUT /rollouts/{id}/files/{path}`."""
    return Request(
        "PUT",
        rollout_path(rollout, "files", path),
        lambda _: None,
        content=content,
        headers={"Content-Type": "application/octet-stream"},
        takes_s=120.0,
    )


def execute(
    rollout: str,
    command: str,
    timeout_s: float,
    env: Mapping[str, str] | None,
    cwd: str | None,
) -> Request[models.CommandResult]:
    """`POST /rollouts/{id}/exec`."""
    body: dict[str, Any] = {"command": command, "timeout_s": timeout_s}
    if env:
        body["env"] = dict(env)
    if cwd is not None:
        body["cwd"] = cwd
    path = rollout_path(rollout, "exec")
    return Request("POST", path, read_model(models.CommandResult), json=body, takes_s=timeout_s)


def finish(rollout: str, reward: float | None, detail: Mapping[str, Any] | None) -> Request[models.Rollout]:
    """`POST /rollouts/{id}/finish`."""
    body: dict[str, Any] = {"reward": reward}
    if detail:
        body["detail"] = dict(detail)
    return Request("POST", rollout_path(rollout, "finish"), read_model(models.Rollout), json=body)


def endpoints() -> Request[list[models.Endpoint]]:
    """`GET /endpoints`."""
    return Request("GET", "/endpoints", read_list(models.Endpoint, "endpoints"))


def endpoint(name: str) -> Request[models.EndpointView]:
    """`GET /endpoints/{name}`."""
    return Request("GET", endpoint_path(name), read_model(models.EndpointView))


def pause_endpoint(name: str, wait: bool, timeout_s: float) -> Request[models.EndpointView]:
    """`POST /endpoints/{name}/pause`."""
    return Request(
        "POST",
        endpoint_path(name, "pause"),
        read_model(models.EndpointView),
        json={"wait": wait, "timeout_s": timeout_s},
        takes_s=timeout_s if wait else 0.0,
    )


def resume_endpoint(name: str, policy_version: str | None) -> Request[models.EndpointView]:
    """`POST /endpoints/{name}/resume`."""
    body = {} if policy_version is None else {"policy_version": policy_version}
    return Request("POST", endpoint_path(name, "resume"), read_model(models.EndpointView), json=body)


def probe_endpoint(name: str) -> Request[models.EndpointView]:
    """`POST /endpoints/{name}/probe`."""
    return Request("POST", endpoint_path(name, "probe"), read_model(models.EndpointView), takes_s=PROBE_S)


def agents() -> Request[list[models.Agent]]:
    """`GET /agents`."""
    return Request("GET", "/agents", read_list(models.Agent, "agents"))


def backends() -> Request[list[models.Backend]]:
    """`GET /backends`."""
    return Request("GET", "/backends", read_list(models.Backend, "backends"))


def presets() -> Request[list[models.Preset]]:
    """`GET /presets`."""
    return Request("GET", "/presets", read_list(models.Preset, "presets"))


def task_files() -> Request[list[models.TaskFile]]:
    """`GET /tasks`."""
    return Request("GET", "/tasks", read_list(models.TaskFile, "tasks"))


def task_file(name: str) -> Request[dict[str, Any]]:
    """`GET /tasks/{name}`."""
    return Request("GET", _path("tasks", name), _task)


def read_task(text: str, file_format: str) -> Request[dict[str, Any]]:
    """`POST /tasks/read`."""
    return Request("POST", "/tasks/read", _task, json={"text": text, "format": file_format})


def _task(response: httpx.Response) -> dict[str, Any]:
    table = TypeAdapter(dict[str, dict[str, Any]])
    return parsed(table.validate_json, response.content).get("task", {})


def queue() -> Request[models.Queue]:
    """`GET /queue`."""
    return Request("GET", "/queue", read_model(models.Queue))


def groups(filters: Mapping[str, Any]) -> Request[models.Groups]:
    """`GET /groups`."""
    params = {key: value for key, value in filters.items() if value is not None}
    return Request("GET", "/groups", read_model(models.Groups), params=params)


def sandboxes() -> Request[dict[str, Any]]:
    """`GET /sandboxes`."""
    return Request("GET", "/sandboxes", read_object)


def end_sandbox(sandbox: str) -> Request[dict[str, Any]]:
    """`POST /sandboxes/{id}/end`."""
    return Request("POST", _path("sandboxes", sandbox, "end"), read_object)


def doctor() -> Request[dict[str, Any]]:
    """`GET /doctor`."""
    return Request("GET", "/doctor", read_object)


def version() -> Request[models.Version]:
    """`GET /version`."""
    return Request("GET", "/version", read_model(models.Version))


def rollout_path(rollout: str, *parts: str) -> str:
    """The path of something of a rollout; no part of it can lead elsewhere."""
    return _path("rollouts", rollout, *parts)


def endpoint_path(name: str, *parts: str) -> str:
    """The path of something of an endpoint; no part of it can lead elsewhere."""
    return _path("endpoints", name, *parts)


def _path(*parts: str) -> str:
    return "".join("/" + quote(part, safe="") for part in parts)


# --- what both clients need around a request ---


def connection(base_url: str | None, api_key: str | None) -> dict[str, Any]:
    """Arguments of `httpx.Client`: where the server is, and who asks."""
    usual = (os.environ.get("DRESSAGE_URL") or DEFAULT_URL).rstrip("/")
    url = (base_url or usual).rstrip("/")
    is_here = urlsplit(url).hostname in LOOPBACK
    key = api_key
    if key is None and url == usual:
        # What is found goes with the server of the environment, and to no other.
        key = os.environ.get("DRESSAGE_API_KEY") or (control_token.of_this_machine() if is_here else None)
    return {
        "base_url": url,
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        # Proxies of the environment are for the world outside, not for a server on this machine.
        "trust_env": not is_here,
        # As many as callers have threads or tasks: waiting for a free one would look like a slow server.
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=100),
    }


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turns what httpx raises into what this package raises."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise errors.TimedOutError(f"{what} was not answered in time") from error
    except httpx.TransportError as error:
        raise errors.ConnectionFailedError(f"{what} failed: {error}") from error


def check(response: httpx.Response) -> None:
    """Raises the error that a reply tells of. Its body must have been read."""
    if response.is_success:
        return
    try:
        body = response.json()
    except ValueError:
        body = None
    raise errors.from_reply(response.status_code, body, response.headers.get("retry-after"))
