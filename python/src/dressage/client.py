"""A client of `dressage serve` for threads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal, TypeVar

import httpx
from typing_extensions import Self, Unpack

from . import api, errors, models
from .follow import Follow, Missed
from .spec import Options, RolloutSpec, Task, rollout_spec

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
"""How soon a rollout that is waited for is looked at again; the pause grows with the wait."""

LONGEST_PAUSE_S = 1.0


def next_pause_s(waited_s: float, left_s: float | None) -> float:
    """How long to wait before looking at a rollout again."""
    pause = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, waited_s / 10))
    return pause if left_s is None else max(0.0, min(pause, left_s))


def not_over(rollout: models.RolloutSummary, timeout_s: float) -> errors.TimedOutError:
    """The error of a wait that ended too soon."""
    place = rollout.stage or rollout.state
    return errors.TimedOutError(f"rollout {rollout.id} is not over after {timeout_s:g} s ({place})")


class Client:
    """Talks to `dressage serve`. Can be used from several threads at once.

    `base_url` is that of the server (else DRESSAGE_URL, else http://127.0.0.1:8000), `api_key` one of its keys (else
    DRESSAGE_API_KEY, else the control token of this user's server), `timeout_s` how long an answer may take. Methods
    raise `DressageError` and what is below it.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._http = httpx.Client(**api.connection(base_url, api_key), transport=transport)

    def __repr__(self) -> str:
        return f"Client({str(self._http.base_url)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    @property
    def base_url(self) -> str:
        """Where the server is."""
        return str(self._http.base_url).rstrip("/")

    def is_healthy(self) -> bool:
        """Whether a server answers."""
        try:
            return self._http.get("/health", timeout=2.0).is_success
        except httpx.TransportError:
            return False

    # --- rollouts ---

    def submit(
        self,
        task: Task | None = None,
        *,
        preset: str | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[Options],
    ) -> list[models.Submitted]:
        """Asks for rollouts of a task or preset, `n` of them; returns at once.

        With an `idempotency_key` a request that is sent twice counts once, for 24 hours.
        Raises `QueueFullError` where too many wait already, `InvalidRequestError` where something is wrong.
        """
        spec = rollout_spec(task, preset=preset, **options)
        return self._send(api.submit([spec], idempotency_key))

    def submit_all(self, specs: Sequence[RolloutSpec], *, idempotency_key: str | None = None) -> list[models.Submitted]:
        """Asks for rollouts of several specs: all are taken, or none."""
        return self._send(api.submit(specs, idempotency_key))

    def run(
        self,
        task: Task | None = None,
        *,
        preset: str | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> models.Rollout:
        """Submits one rollout and waits until it is over.

        A wait that ends without it, by its timeout or an interrupt, cancels it.
        """
        return self.run_all([rollout_spec(task, preset=preset, **options)], timeout_s=timeout_s)[0]

    def run_all(self, specs: Sequence[RolloutSpec], *, timeout_s: float | None = None) -> list[models.Rollout]:
        """Submits the rollouts of several specs and waits until all are over, in the order of specs and samples.

        A wait that ends without them, by its timeout or an interrupt, cancels those that are left.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        ids = [submitted.id for submitted in self.submit_all(specs)]
        over: list[models.Rollout] = []
        try:
            for rollout in ids:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                over.append(self.wait(rollout, timeout_s=left))
        except BaseException:
            for rollout in ids[len(over) :]:
                with suppress(errors.DressageError):
                    self.cancel(rollout)
            raise
        return over

    def get(self, rollout: str) -> models.Rollout:
        """A rollout: where it is, how it started, what came of it."""
        return self._send(api.get(rollout))

    def wait(self, rollout: str, *, timeout_s: float | None = None, or_held: bool = False) -> models.Rollout:
        """Waits until a rollout is over, or with `or_held` until its sandbox is held.

        Raises `TimedOutError`, which is a `TimeoutError`; the rollout goes on.
        """
        begun = time.monotonic()
        while True:
            found = self.get(rollout)
            if found.is_over or (or_held and found.is_held):
                return found
            waited = time.monotonic() - begun
            if timeout_s is not None and waited >= timeout_s:
                raise not_over(found, timeout_s)
            time.sleep(next_pause_s(waited, None if timeout_s is None else timeout_s - waited))

    def cancel(self, rollout: str) -> models.Rollout:
        """Asks a rollout to stop; one that is over stays as it is. Returns at once."""
        return self._send(api.cancel(rollout))

    def page(
        self,
        *,
        state: str | Sequence[str] | None = None,
        task_id: str | None = None,
        agent: str | None = None,
        endpoint: str | None = None,
        backend: str | None = None,
        model: str | None = None,
        group: str | None = None,
        ended: str | None = None,
        fault_owner: str | None = None,
        reward_min: float | None = None,
        reward_max: float | None = None,
        since: int | None = None,
        search: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        sort: str | None = None,
        order: str | None = None,
        skip: int | None = None,
    ) -> models.Page:
        """A page of rollouts, the latest first. `since` is in milliseconds since the Unix epoch, `limit` 1 to 1000.

        Sorted by `reward`, `wall_ms`, `calls` or `completion_tokens` the next page is at `next_skip`.
        """
        filters = {key: value for key, value in locals().items() if key != "self"}
        return self._send(api.list_rollouts(filters))

    def rollouts(self, **filters: Any) -> Iterator[models.RolloutSummary]:
        """All rollouts that the filters of `page` let through, the latest first, page by page."""
        while True:
            page = self.page(**filters)
            yield from page.rollouts
            if not api.go_on(filters, page):
                return

    def groups(
        self,
        *,
        task_id: str | None = None,
        search: str | None = None,
        rollouts_min: int | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> models.Groups:
        """A page of groups, the latest first: rollouts that were asked for together, summed up."""
        filters = {key: value for key, value in locals().items() if key != "self"}
        return self._send(api.groups(filters))

    # --- what is kept of a rollout ---

    def calls(self, rollout: str) -> list[models.Call]:
        """Its model calls, without what was said."""
        return self._send(api.calls(rollout))

    def call(self, rollout: str, index: int) -> models.Turn:
        """One of its calls, whole."""
        return self._send(api.call(rollout, index))

    def trajectory(self, rollout: str) -> models.Trajectory:
        """Its calls as trainers read them: ids, log-probabilities, masks, requests and replies."""
        return self._send(api.trajectory(rollout))

    def native_trajectory(self, rollout: str) -> dict[str, Any]:
        """Its calls as they are stored: what each adds to those before it."""
        return self._send(api.native_trajectory(rollout))

    def export(
        self,
        shape: str = "native",
        *,
        where: str = "",
        ids: Iterable[str] = (),
        train: Iterable[str] = (),
        truncated: str = "",
        subagent_reward: str = "",
        top_logprobs: str = "",
    ) -> Iterator[dict[str, Any]]:
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
        with self._stream("an export", arguments) as response:
            for line in response.iter_lines():
                yield api.row(line)

    def logs(self, rollout: str) -> models.Logs:
        """The ends of what its programs wrote."""
        return self._send(api.logs(rollout))

    def read_file(self, rollout: str, path: str) -> bytes:
        """A file: of a held sandbox as it is there, of a rollout that is over as it was collected."""
        return self._send(api.read_file(rollout, path))

    # --- held rollouts ---

    def exec(
        self,
        rollout: str,
        command: str,
        *,
        timeout_s: float = 120.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> models.CommandResult:
        """Runs a shell command in a held sandbox as a verify command would be run; a failing one is a result."""
        return self._send(api.execute(rollout, command, timeout_s, env, cwd))

    def write_file(self, rollout: str, path: str, content: bytes | str) -> None:
        """Writes a file into a held sandbox; folders are made."""
        data = content.encode() if isinstance(content, str) else content
        self._send(api.write_file(rollout, path, data))

    def finish(
        self,
        rollout: str,
        reward: float | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> models.Rollout:
        """Ends a hold with the caller's reward; without one, what verify said stands. `wait` for the end."""
        return self._send(api.finish(rollout, reward, detail))

    # --- events ---

    def events(self, rollout: str, *, after: str | None = None) -> Iterator[models.RolloutEvent]:
        """What happens in a rollout, from its start to its end, as it happens.

        Connections that break are made anew, with nothing missed or doubled. `after` is the sequence number of the
        last event that is known already.
        """
        for event in self._follow(Follow(rollout, after)):
            if isinstance(event, models.RolloutEvent):
                yield event

    def all_events(self) -> Iterator[models.RolloutEvent | Missed]:
        """What happens in all rollouts, from now on. Never ends by itself."""
        return self._follow(Follow(None, None))

    # --- what there is ---

    def endpoints(self) -> list[models.Endpoint]:
        """The model endpoints that have a name."""
        return self._send(api.endpoints())

    def endpoint(self, name: str) -> models.EndpointView:
        """One endpoint, as it is used now: what it works on, whether it is paused, its limits."""
        return self._send(api.endpoint(name))

    def pause_endpoint(self, name: str, *, wait: bool = False, timeout_s: float = 600.0) -> models.EndpointView:
        """Has new calls to an endpoint wait, of all rollouts, so that its weights can be changed.

        With `wait` it answers when no call is in flight, or after `timeout_s`: `in_flight` says what still is.
        """
        return self._send(api.pause_endpoint(name, wait, timeout_s))

    def resume_endpoint(self, name: str, policy_version: str | None = None) -> models.EndpointView:
        """Sends the calls that wait; `policy_version` says which weights the endpoint serves from now on."""
        return self._send(api.resume_endpoint(name, policy_version))

    def probe_endpoint(self, name: str) -> models.EndpointView:
        """Asks an endpoint, with six small calls, what it returns: see `probe` of the answer."""
        return self._send(api.probe_endpoint(name))

    def agents(self) -> list[models.Agent]:
        """The agents."""
        return self._send(api.agents())

    def backends(self) -> list[models.Backend]:
        """The sandbox backends."""
        return self._send(api.backends())

    def presets(self) -> list[models.Preset]:
        """The ready-made tasks."""
        return self._send(api.presets())

    def task_files(self) -> list[models.TaskFile]:
        """The task files that the server offers."""
        return self._send(api.task_files())

    def task_file(self, name: str) -> dict[str, Any]:
        """The task that one of them says, with its defaults."""
        return self._send(api.task_file(name))

    def read_task(self, text: str, file_format: Literal["toml", "json"] = "toml") -> dict[str, Any]:
        """The task that the text of a task file says, with its defaults."""
        return self._send(api.read_task(text, file_format))

    def queue(self) -> models.Queue:
        """What waits and runs, and the limits."""
        return self._send(api.queue())

    def sandboxes(self) -> dict[str, Any]:
        """The sandboxes of the server's data directory, by their leases, and those that are kept ready."""
        return self._send(api.sandboxes())

    def end_sandbox(self, sandbox: str) -> dict[str, Any]:
        """Ends a sandbox that a dead process left; one of a rollout of the server by cancelling that."""
        return self._send(api.end_sandbox(sandbox))

    def doctor(self) -> dict[str, Any]:
        """What the server's machine can do."""
        return self._send(api.doctor())

    def version(self) -> models.Version:
        """What the server is, and which versions of stored and exported forms it writes."""
        return self._send(api.version())

    # ---

    def _send(self, request: api.Request[T]) -> T:
        try:
            response = self._sent(request)
        except errors.ConnectionFailedError:
            # The server may have closed a connection that was kept, just as it was used again.
            if not request.is_repeatable:
                raise
            response = self._sent(request)
        api.check(response)
        return request.read(response)

    def _sent(self, request: api.Request[T]) -> httpx.Response:
        with api.translated(request.name):
            return self._http.request(**request.arguments(self._timeout_s))

    def _follow(self, follow: Follow) -> Iterator[models.RolloutEvent | Missed]:
        while True:
            failure: errors.DressageError | None = None
            try:
                with self._stream("following events", follow.arguments()) as response:
                    for piece in response.iter_raw():
                        yield from follow.feed(piece)
                        if follow.is_over:
                            return
            except (errors.ConnectionFailedError, errors.TimedOutError, errors.ApiError) as error:
                failure = error
            # Nothing came and nothing failed: there may be no event left, as where its server died over it.
            silent = failure is None and follow.was_fruitless
            if silent and follow.rollout is not None and self.get(follow.rollout).is_over:
                return
            time.sleep(follow.pause_s(failure))

    @contextmanager
    def _stream(self, what: str, arguments: dict[str, Any]) -> Iterator[httpx.Response]:
        with (
            api.translated(what),
            self._http.stream(**arguments) as response,
        ):
            if not response.is_success:
                response.read()
                api.check(response)
            yield response
