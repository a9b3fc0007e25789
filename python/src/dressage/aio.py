"""A client of `dressage serve` for asyncio: that for threads, awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Literal, TypeVar

import httpx
from typing_extensions import Self, Unpack

from . import api, errors, models
from .client import next_pause_s, not_over
from .follow import Follow, Missed
from .spec import Options, RolloutSpec, Task, rollout_spec

T = TypeVar("T")


class AsyncClient:
    """Talks to `dressage serve`; each method is that of `Client`.

    `base_url` is that of the server (else DRESSAGE_URL, else http://127.0.0.1:8000), `api_key` one of its keys (else
    DRESSAGE_API_KEY), `timeout_s` how long an answer may take. Methods raise `DressageError` and what is below it.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(**api.connection(base_url, api_key), transport=transport)

    def __repr__(self) -> str:
        return f"AsyncClient({str(self._http.base_url)!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    @property
    def base_url(self) -> str:
        """Where the server is."""
        return str(self._http.base_url).rstrip("/")

    async def is_healthy(self) -> bool:
        """Whether a server answers."""
        try:
            return (await self._http.get("/health", timeout=2.0)).is_success
        except httpx.TransportError:
            return False

    # --- rollouts ---

    async def submit(
        self,
        task: Task | None = None,
        *,
        preset: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[Options],
    ) -> list[models.Submitted]:
        """Asks for rollouts of a task or preset, `n` of them; returns at once."""
        spec = rollout_spec(task, preset=preset, **options)
        return await self._send(api.submit([spec], idempotency_key))

    async def submit_all(
        self, specs: Sequence[RolloutSpec], *, idempotency_key: str | None = None
    ) -> list[models.Submitted]:
        """Asks for rollouts of several specs: all are taken, or none."""
        return await self._send(api.submit(specs, idempotency_key))

    async def run(
        self,
        task: Task | None = None,
        *,
        preset: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> models.Rollout:
        """Submits one rollout and waits until it is over; a wait that ends without it cancels it."""
        specs = [rollout_spec(task, preset=preset, **options)]
        return (await self.run_all(specs, timeout_s=timeout_s))[0]

    async def run_all(self, specs: Sequence[RolloutSpec], *, timeout_s: float | None = None) -> list[models.Rollout]:
        """Submits the rollouts of several specs and waits until all are over; a wait that ends without them cancels."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        ids = [submitted.id for submitted in await self.submit_all(specs)]
        over: list[models.Rollout] = []
        try:
            for rollout in ids:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                over.append(await self.wait(rollout, timeout_s=left))
        except BaseException:
            # The task itself may be cancelled; that does not keep the rollouts from being so.
            await asyncio.shield(self._cancel_all(ids[len(over) :]))
            raise
        return over

    async def get(self, rollout: str) -> models.Rollout:
        """A rollout: where it is, how it started, what came of it."""
        return await self._send(api.get(rollout))

    async def wait(self, rollout: str, *, timeout_s: float | None = None, or_held: bool = False) -> models.Rollout:
        """Waits until a rollout is over, or with `or_held` until its sandbox is held."""
        begun = time.monotonic()
        while True:
            found = await self.get(rollout)
            if found.is_over or (or_held and found.is_held):
                return found
            waited = time.monotonic() - begun
            if timeout_s is not None and waited >= timeout_s:
                raise not_over(found, timeout_s)
            await asyncio.sleep(next_pause_s(waited, None if timeout_s is None else timeout_s - waited))

    async def cancel(self, rollout: str) -> models.Rollout:
        """Asks a rollout to stop; one that is over stays as it is. Returns at once."""
        return await self._send(api.cancel(rollout))

    async def page(self, **filters: Any) -> models.Page:
        """A page of rollouts, the latest first; the filters are those of `Client.page`."""
        return await self._send(api.list_rollouts(filters))

    async def rollouts(self, **filters: Any) -> AsyncIterator[models.RolloutSummary]:
        """All rollouts that the filters of `Client.page` let through, the latest first, page by page."""
        while True:
            page = await self.page(**filters)
            for rollout in page.rollouts:
                yield rollout
            if not api.go_on(filters, page):
                return

    async def groups(self, **filters: Any) -> models.Groups:
        """A page of groups, the latest first; the filters are those of `Client.groups`."""
        return await self._send(api.groups(filters))

    # --- what is kept of a rollout ---

    async def calls(self, rollout: str) -> list[models.Call]:
        """Its model calls, without what was said."""
        return await self._send(api.calls(rollout))

    async def call(self, rollout: str, index: int) -> models.Turn:
        """One of its calls, whole."""
        return await self._send(api.call(rollout, index))

    async def trajectory(self, rollout: str) -> models.Trajectory:
        """Its calls as trainers read them: ids, log-probabilities, masks, requests and replies."""
        return await self._send(api.trajectory(rollout))

    async def native_trajectory(self, rollout: str) -> dict[str, Any]:
        """Its calls as they are stored: what each adds to those before it."""
        return await self._send(api.native_trajectory(rollout))

    async def export(
        self,
        shape: str = "native",
        *,
        where: str = "",
        ids: Iterable[str] = (),
        train: Iterable[str] = (),
        truncated: str = "",
        subagent_reward: str = "",
        top_logprobs: str = "",
    ) -> AsyncIterator[dict[str, Any]]:
        """Rows of a shape (`native`, `trl`, `verl`, `chat`, `atif`), as they come.

        `where` holds terms such as `reward>=0.5 agent=opencode -flag=truncated`; the rest says what is trained. Where
        the server fails on the way, `ConnectionFailedError` is raised.
        """
        arguments = api.export(
            shape=shape,
            where=where,
            ids=ids,
            train=train,
            truncated=truncated,
            subagent_reward=subagent_reward,
            top_logprobs=top_logprobs,
        )
        async with self._stream("an export", arguments) as response:
            async for line in response.aiter_lines():
                yield api.row(line)

    async def logs(self, rollout: str) -> models.Logs:
        """The ends of what its programs wrote."""
        return await self._send(api.logs(rollout))

    async def read_file(self, rollout: str, path: str) -> bytes:
        """A file: of a held sandbox as it is there, of a rollout that is over as it was collected."""
        return await self._send(api.read_file(rollout, path))

    # --- held rollouts ---

    async def exec(
        self,
        rollout: str,
        command: str,
        *,
        timeout_s: float = 120.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> models.CommandResult:
        """Runs a shell command in a held sandbox as a verify command would be run; a failing one is a result."""
        return await self._send(api.execute(rollout, command, timeout_s, env, cwd))

    async def write_file(self, rollout: str, path: str, content: bytes | str) -> None:
        """Writes a file into a held sandbox; folders are made."""
        data = content.encode() if isinstance(content, str) else content
        await self._send(api.write_file(rollout, path, data))

    async def finish(
        self,
        rollout: str,
        reward: float | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> models.Rollout:
        """Ends a hold with the caller's reward; without one, what verify said stands. `wait` for the end."""
        return await self._send(api.finish(rollout, reward, detail))

    # --- events ---

    async def events(self, rollout: str, *, after: str | None = None) -> AsyncIterator[models.RolloutEvent]:
        """What happens in a rollout, from its start to its end, as it happens; nothing missed or doubled."""
        async for event in self._follow(Follow(rollout, after)):
            if isinstance(event, models.RolloutEvent):
                yield event

    def all_events(self) -> AsyncIterator[models.RolloutEvent | Missed]:
        """What happens in all rollouts, from now on. Never ends by itself."""
        return self._follow(Follow(None, None))

    # --- what there is ---

    async def endpoints(self) -> list[models.Endpoint]:
        """The model endpoints that have a name."""
        return await self._send(api.endpoints())

    async def endpoint(self, name: str) -> models.EndpointView:
        """One endpoint, as it is used now: what it works on, whether it is paused, its limits."""
        return await self._send(api.endpoint(name))

    async def pause_endpoint(self, name: str, *, wait: bool = False, timeout_s: float = 600.0) -> models.EndpointView:
        """Has new calls to an endpoint wait, of all rollouts, so that its weights can be changed.

        With `wait` it answers when no call is in flight, or after `timeout_s`: `in_flight` says what still is.
        """
        return await self._send(api.pause_endpoint(name, wait, timeout_s))

    async def resume_endpoint(self, name: str, policy_version: str | None = None) -> models.EndpointView:
        """Sends the calls that wait; `policy_version` says which weights the endpoint serves from now on."""
        return await self._send(api.resume_endpoint(name, policy_version))

    async def probe_endpoint(self, name: str) -> models.EndpointView:
        """Asks an endpoint, with six small calls, what it returns: see `probe` of the answer."""
        return await self._send(api.probe_endpoint(name))

    async def agents(self) -> list[models.Agent]:
        """The agents."""
        return await self._send(api.agents())

    async def backends(self) -> list[models.Backend]:
        """The sandbox backends."""
        return await self._send(api.backends())

    async def presets(self) -> list[models.Preset]:
        """The ready-made tasks."""
        return await self._send(api.presets())

    async def task_files(self) -> list[models.TaskFile]:
        """The task files that the server offers."""
        return await self._send(api.task_files())

    async def task_file(self, name: str) -> dict[str, Any]:
        """The task that one of them says, with its defaults."""
        return await self._send(api.task_file(name))

    async def read_task(self, text: str, file_format: Literal["toml", "json"] = "toml") -> dict[str, Any]:
        """The task that the text of a task file says, with its defaults."""
        return await self._send(api.read_task(text, file_format))

    async def queue(self) -> models.Queue:
        """What waits and runs, and the limits."""
        return await self._send(api.queue())

    async def sandboxes(self) -> dict[str, Any]:
        """The sandboxes of the server's data directory, by their leases, and those that are kept ready."""
        return await self._send(api.sandboxes())

    async def end_sandbox(self, sandbox: str) -> dict[str, Any]:
        """Ends a sandbox that a dead process left; one of a rollout of the server by cancelling that."""
        return await self._send(api.end_sandbox(sandbox))

    async def doctor(self) -> dict[str, Any]:
        """What the server's machine can do."""
        return await self._send(api.doctor())

    async def version(self) -> models.Version:
        """What the server is, and which versions of stored and exported forms it writes."""
        return await self._send(api.version())

    # ---

    async def _cancel_all(self, rollouts: Sequence[str]) -> None:
        for rollout in rollouts:
            with suppress(errors.DressageError):
                await self.cancel(rollout)

    async def _send(self, request: api.Request[T]) -> T:
        try:
            response = await self._sent(request)
        except errors.ConnectionFailedError:
            # The server may have closed a connection that was kept, just as it was used again.
            if not request.is_repeatable:
                raise
            response = await self._sent(request)
        api.check(response)
        return request.read(response)

    async def _sent(self, request: api.Request[T]) -> httpx.Response:
        with api.translated(request.name):
            return await self._http.request(**request.arguments(self._timeout_s))

    async def _follow(self, follow: Follow) -> AsyncIterator[models.RolloutEvent | Missed]:
        while True:
            failure: errors.DressageError | None = None
            try:
                async with self._stream("following events", follow.arguments()) as response:
                    async for piece in response.aiter_raw():
                        for event in follow.feed(piece):
                            yield event
                        if follow.is_over:
                            return
            except (errors.ConnectionFailedError, errors.TimedOutError, errors.ApiError) as error:
                failure = error
            # Nothing came and nothing failed: there may be no event left, as where its server died over it.
            silent = failure is None and follow.was_fruitless
            if silent and follow.rollout is not None and (await self.get(follow.rollout)).is_over:
                return
            await asyncio.sleep(follow.pause_s(failure))

    @asynccontextmanager
    async def _stream(self, what: str, arguments: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        with api.translated(what):
            async with self._http.stream(**arguments) as response:
                if not response.is_success:
                    await response.aread()
                    api.check(response)
                yield response
