from __future__ import annotations

import asyncio
import inspect
from typing import Any

import httpx
import pytest

from dressage import AsyncClient, Client

from .fake import FakeServer, finished, reply, row, stream
from .test_client import ALL

R = "/api/v1/rollouts"


def run(work: Any) -> Any:
    return asyncio.run(work)


def test_both_clients_have_the_same_methods() -> None:
    def public(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}

    assert public(Client) == public(AsyncClient)


def test_a_rollout_is_run(fake: FakeServer) -> None:
    fake.on("POST", R, reply(202, rollouts=[{"id": "r1"}]))
    fake.on("GET", f"{R}/r1", reply(**row(stage="agent")), reply(**finished(reward=0.5)))

    async def work() -> float | None:
        async with fake.async_client() as client:
            return (await client.run(preset="fizzbuzz")).reward

    assert run(work()) == 0.5


def test_a_task_that_is_cancelled_cancels_its_rollout(fake: FakeServer) -> None:
    fake.on("POST", R, reply(202, rollouts=[{"id": "r1"}]))
    fake.on("GET", f"{R}/r1", reply(**row(stage="agent")))
    fake.on("POST", f"{R}/r1/cancel", reply(202, **row()))

    async def work() -> None:
        async with fake.async_client() as client:
            await asyncio.wait_for(client.run(preset="fizzbuzz"), 0.05)

    with pytest.raises(TimeoutError if issubclass(TimeoutError, asyncio.TimeoutError) else asyncio.TimeoutError):
        run(work())
    assert len(fake.all("POST", f"{R}/r1/cancel")) == 1


def test_pages_and_events_are_iterated(fake: FakeServer) -> None:
    fake.on("GET", R, reply(rollouts=[row("r2")], next_cursor="r2"), reply(rollouts=[row("r1")], next_cursor=None))
    fake.on("GET", f"{R}/r1/events", stream(*ALL[:2], httpx.ReadError("cut")), stream(*ALL[2:]))

    async def work() -> tuple[list[str], list[int]]:
        async with fake.async_client() as client:
            ids = [rollout.id async for rollout in client.rollouts(limit=1)]
            return ids, [told.sequence async for told in client.events("r1")]

    assert run(work()) == (["r2", "r1"], [0, 1, 2, 3, 4])


def test_an_export_is_read_row_by_row(fake: FakeServer) -> None:
    fake.on("GET", "/api/v1/export", httpx.Response(200, content=b'{"leaf": 1}\n{"leaf": 2}\n'))

    async def work() -> list[dict[str, Any]]:
        return [row async for row in fake.async_client().export("chat")]

    assert asyncio.run(work()) == [{"leaf": 1}, {"leaf": 2}]
