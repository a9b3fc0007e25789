"""Each operation of the REST API has a method in both clients that asks for just that, also one that comes."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import dressage
from dressage import api

from .fake import FakeServer

DOCUMENT = Path(__file__).parent.parent.parent / "server" / "tests" / "openapi.json"

INDEX = 4711

METHODS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "submit_rollouts": ("submit", ("do it",)),
    "list_rollouts": ("page", ()),
    "get_rollout": ("get", ("{id}",)),
    "cancel_rollout": ("cancel", ("{id}",)),
    "list_groups": ("groups", ()),
    "list_calls": ("calls", ("{id}",)),
    "get_call": ("call", ("{id}", INDEX)),
    "get_trajectory": ("trajectory", ("{id}",)),
    "export": ("export", ()),
    "get_logs": ("logs", ("{id}",)),
    "read_file": ("read_file", ("{id}", "{path}")),
    "write_file": ("write_file", ("{id}", "{path}", b"")),
    "exec": ("exec", ("{id}", "true")),
    "finish": ("finish", ("{id}", 1.0)),
    "follow_rollout": ("events", ("{id}",)),
    "follow_all": ("all_events", ()),
    "list_endpoints": ("endpoints", ()),
    "get_endpoint": ("endpoint", ("{name}",)),
    "pause_endpoint": ("pause_endpoint", ("{name}",)),
    "resume_endpoint": ("resume_endpoint", ("{name}",)),
    "probe_endpoint": ("probe_endpoint", ("{name}",)),
    "list_agents": ("agents", ()),
    "list_backends": ("backends", ()),
    "list_presets": ("presets", ()),
    "list_task_files": ("task_files", ()),
    "get_task_file": ("task_file", ("{name}",)),
    "list_sandboxes": ("sandboxes", ()),
    "end_sandbox": ("end_sandbox", ("{id}",)),
    "doctor": ("doctor", ()),
    "read_task": ("read_task", ('instruction = "x"',)),
    "get_queue": ("queue", ()),
    "get_version": ("version", ()),
}
"""For each operation the method that asks for it, and arguments that show in the path."""

KINDS = {"get", "put", "post", "delete", "patch", "head", "options"}


def document() -> Any:
    """The OpenAPI document, as it was reviewed."""
    return json.loads(DOCUMENT.read_text())


def operations() -> dict[str, tuple[str, str]]:
    """Method and path of each operation of the API."""
    return {
        operation["operationId"]: (kind.upper(), path)
        for path, kinds in document()["paths"].items()
        if path.startswith(api.PREFIX + "/")
        for kind, operation in kinds.items()
        if kind in KINDS
    }


def asked(fake: FakeServer) -> tuple[str, str]:
    """What was asked, once, with the path as the document has it."""
    (request,) = fake.requests
    path = unquote(request.url.raw_path.decode().split("?")[0])
    return request.method, path.replace(str(INDEX), "{index}")


def test_every_operation_is_in_the_table_and_no_other() -> None:
    assert set(METHODS) == set(operations())


@pytest.mark.parametrize("operation", METHODS)
def test_the_client_asks_for_it(fake: FakeServer, operation: str) -> None:
    name, arguments = METHODS[operation]

    def work() -> None:
        answer = getattr(fake.client(), name)(*arguments)
        if inspect.isgenerator(answer):
            next(answer)

    # Whatever is asked for is not there.
    with pytest.raises(dressage.NotFoundError):
        work()
    assert asked(fake) == operations()[operation]


@pytest.mark.parametrize("operation", METHODS)
def test_the_asynchronous_client_asks_for_it(fake: FakeServer, operation: str) -> None:
    name, arguments = METHODS[operation]

    async def work() -> None:
        answer = getattr(fake.async_client(), name)(*arguments)
        if inspect.isasyncgen(answer):
            await answer.__anext__()
        else:
            await answer

    with pytest.raises(dressage.NotFoundError):
        asyncio.run(work())
    assert asked(fake) == operations()[operation]
