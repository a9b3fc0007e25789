"""OpenCode as sessions for trainers: upstream's `OpenCodeSession` and its factory, over a server of Dressage.

One trajectory serves both contracts of TRL: `fetch_training_trace` for 1.16, `fetch_proxy_trace` for what came before.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from .. import errors, models
from ..client import Client
from ..server import shared_client
from ..spec import Options, RolloutSpec
from .config import OpenCodeConfig
from .contract import Message, ResourceSession, ResourceSessionFactory, ToolResult, TrainingTrace, VerifyResult
from .sandbox import HeldSandbox, SandboxBackend, SandboxHandle, SandboxNotReadyError, StagedSandbox, release
from .task import OpenCodeTask
from .training import trace_entries, training_trace
from .translate import Mode, checked_sampling, rollout_spec, task_table

Verifier = Callable[[SandboxHandle, OpenCodeTask], VerifyResult]
"""Judges a rollout in its sandbox, after the agent."""

DETAIL_MAX_BYTES = 60_000
"""Bytes of a verifier's metrics that are stored with the reward."""

log = logging.getLogger(__name__)


class RolloutFailedError(errors.DressageError, RuntimeError):
    """A rollout ended before its agent did, or its agent was never started."""

    def __init__(self, message: str, *, fault: models.Fault | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        """Why, where that is known."""


class OpenCodeSession(ResourceSession):
    """One rollout of OpenCode.

        session = factory.create(task)
        session.wait_for_completion()
        trace = session.fetch_training_trace()
        result = session.verify([])
        session.close()

    `close` can be called from another thread, and ends every wait.
    """

    def __init__(
        self,
        *,
        client: Client,
        spec: RolloutSpec,
        config: OpenCodeConfig,
        task: OpenCodeTask,
        verifier: Verifier | None = None,
        attempts: int = 1,
        backoff_s: float = 0.0,
    ) -> None:
        self.config = config
        self.task = task
        self.rollout_id: str | None = None
        """Its id in the REST API, once the agent was asked for."""
        self._client = client
        self._spec = spec
        self._verifier = verifier
        self._attempts = attempts
        self._backoff_s = backoff_s
        self._staged = StagedSandbox()
        self._verdict: VerifyResult | None = None
        self._closing = threading.Event()
        self._key = uuid.uuid4().hex

    def __repr__(self) -> str:
        return f"OpenCodeSession(rollout={self.rollout_id!r})"

    # --- the contract of a session ---

    def initial_messages(self) -> list[Message]:
        """The instruction, as the user's message."""
        return [{"role": "user", "content": self.task.instruction}]

    def list_tools(self) -> list[Any]:
        """None: OpenCode has its own tools and its own loop."""
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """An error: OpenCode has its own tools and its own loop."""
        return ToolResult(error=f"`{name}` cannot be called: OpenCode runs its own tools")

    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:
        """Judges the rollout: by the verifier, in the held sandbox; without one, by the task's `verify` commands.

        `env_reward` is None, never 0, where the rollout failed or was ended, and `artifacts["error"]` says why. Without
        a verifier the sandbox ends with this. What the verifier raises is raised.
        """
        del transcript, final_state
        rollout = self._view()
        if not rollout.is_over and not rollout.is_held:
            # The caller's wait timed out. There is no verdict on an agent that still works.
            self._client.cancel(rollout.id)
            rollout = self._client.wait(rollout.id)
        if self._verifier is None and rollout.is_held:
            self._client.finish(rollout.id)
            rollout = self._client.wait(rollout.id)
        if self._verifier is None:
            return _verdict(rollout)
        if rollout.is_over:
            # It failed, or its hold ran out: there is no sandbox to judge in, and so no verdict.
            return replace(_verdict(rollout), env_reward=None, artifacts={"error": _why(rollout)})
        self._verdict = self._verifier(self.sandbox, self.task)
        return self._verdict

    def close(self) -> None:
        """Ends the rollout, wherever it is, and the sandbox with it. A verifier's reward is stored with it."""
        self._closing.set()
        if self.rollout_id is None:
            return
        reward, detail = None, None
        if self._verifier is not None and self._verdict is not None:
            reward, detail = self._verdict.env_reward, _detail(self._verdict)
        try:
            self._release(reward, detail)
        except errors.DressageError as error:
            log.warning("rollout %s could not be closed: %s", self.rollout_id, error)

    # --- upstream's own ---

    @property
    def sandbox(self) -> SandboxHandle:
        """The sandbox: before the agent one that takes files, after it the held one. See `dressage.openenv.sandbox`."""
        if self.rollout_id is None:
            return self._staged
        return HeldSandbox(self._client, self.rollout_id, self.config.sandbox_home)

    def start_agent(self) -> None:
        """Asks for the rollout and returns once its agent works. Does nothing where that was done.

        Waits while the server is full, and tries again what may succeed then. Raises `RolloutFailedError` where setup
        fails, and what the server says of a wrong request.
        """
        if self.rollout_id is not None:
            return
        if self._staged.files:
            task = dict(self._spec["task"])
            task["files"] = {**task.get("files", {}), **self._staged.files}
            self._spec = {**self._spec, "task": task}
        pause = self._backoff_s
        for attempt in range(1, self._attempts + 1):
            try:
                self._start_once()
            except errors.QueueFullError as error:
                failure: Exception = error
                wait = max(pause, error.retry_after_s or 0.0)
            except (errors.ConnectionFailedError, errors.ServerError, errors.TimedOutError) as error:
                failure, wait = error, pause
            except RolloutFailedError as error:
                if error.fault is None or not error.fault.retryable:
                    raise
                failure, wait = error, pause
            else:
                return
            if attempt == self._attempts or self._closing.is_set():
                raise failure
            log.warning(
                "attempt %d of %d to start a rollout failed, next in %.1f s: %s", attempt, self._attempts, wait, failure
            )
            self._closing.wait(wait)
            pause *= 2

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        """Waits until the agent has ended, and gives its exit code.

        Raises `TimeoutError` where the agent ran into its own deadline, or after `timeout_s`; what was captured until
        then can be fetched all the same. Raises `RolloutFailedError` where there was no agent to wait for.
        """
        if self.rollout_id is None:
            raise SandboxNotReadyError("the agent was not started; call start_agent() first")
        rollout = self._client.wait(self.rollout_id, timeout_s=timeout_s, or_held=True)
        if rollout.is_held:
            if self._has_timed_out(rollout):
                raise errors.TimedOutError(f"the agent did not end within {self.config.agent_timeout_s:g} s")
            return 0
        outcome = rollout.outcome
        if outcome is not None and outcome.ended == "timeout":
            raise errors.TimedOutError(str(outcome.fault or "the agent did not end in time"))
        if outcome is None or outcome.agent is None or outcome.ended == "cancelled":
            raise RolloutFailedError(f"rollout {rollout.id}: {_why(rollout)}", fault=rollout.fault)
        return outcome.agent.exit_code

    def fetch_trace(self) -> str:
        """The end of what OpenCode wrote, JSON lines; empty where the server has it only after `close`."""
        return self._client.logs(self._started()).agent or ""

    def fetch_proxy_trace(self) -> list[dict[str, Any]]:
        """Every model call as upstream's proxy records them, titles and failed calls too; empty for `black_box`."""
        if self._spec.get("mode") == "black_box":
            return []
        return trace_entries(self._client.trajectory(self._started()).turns)

    def fetch_training_trace(self) -> TrainingTrace:
        """The agent's own turns in tokens, for TRL.

        Raises `ValueError` where nothing was captured in tokens, and `RuntimeError` where no call succeeded; see
        `dressage.openenv.training.training_trace`.
        """
        if self._spec.get("mode") == "black_box":
            raise ValueError('mode "black_box" captures nothing; train with "transparent_proxy"')
        return training_trace(self._client.trajectory(self._started()).turns)

    # ---

    def _started(self) -> str:
        if self.rollout_id is None:
            raise SandboxNotReadyError("the agent was not started; call start_agent() first")
        return self.rollout_id

    def _view(self) -> models.Rollout:
        return self._client.get(self._started())

    def _start_once(self) -> None:
        """Submits the rollout and waits for its agent. One that does not get so far leaves nothing."""
        submitted = self._client.submit_all([self._spec], idempotency_key=self._key)
        self.rollout_id = submitted[0].id
        # From here on another attempt is another rollout; until here it is the same one, whose answer was lost.
        self._key = uuid.uuid4().hex
        try:
            self._wait_for_agent(self.rollout_id)
        except BaseException:
            try:
                self._client.cancel(self.rollout_id)
            except errors.DressageError as error:
                log.warning("rollout %s could not be cancelled: %s", self.rollout_id, error)
            self.rollout_id = None
            raise

    def _wait_for_agent(self, rollout_id: str) -> None:
        pause = 0.02
        while True:
            rollout = self._client.get(rollout_id)
            # Files are collected after a failed setup, too: what comes of that stage has to be awaited.
            has_begun = rollout.stage in ("agent", "verify") or rollout.is_held
            has_run = rollout.outcome is not None and rollout.outcome.agent is not None
            if (has_begun or has_run) and not self._closing.is_set():
                return
            if rollout.is_over or self._closing.is_set():
                raise RolloutFailedError(f"rollout {rollout_id}: {_why(rollout)}", fault=rollout.fault)
            time.sleep(pause)
            pause = min(1.0, pause * 1.5)

    def _has_timed_out(self, rollout: models.Rollout) -> bool:
        """Whether the agent of a held rollout was ended by its deadline; only with `verify_when` it is held then."""
        if self._spec["task"].get("verify_when") != "always":
            return False
        for told in self._client.events(rollout.id):
            match told.event:
                case models.StageEnded(stage="agent", duration_ms=duration_ms):
                    return duration_ms >= 1000 * self.config.agent_timeout_s
                case models.Held() | models.Finished():
                    break
        raise RolloutFailedError(f"rollout {rollout.id}: the agent was not started")

    def _release(self, reward: float | None, detail: dict[str, Any] | None) -> None:
        rollout = self._started()
        try:
            release(self._client, rollout, reward, detail)
        except errors.InvalidRequestError as error:
            # Out of the task's range: the trainer has it, here it is only told.
            log.warning("the reward of rollout %s was not stored: %s", rollout, error)
            release(self._client, rollout, None, {"refused_reward": repr(reward)})
        except errors.ConflictError:
            # The hold ended in between; if by its deadline, the rollout ends by itself.
            self._client.cancel(rollout)


class OpenCodeSessionFactory(ResourceSessionFactory):
    """Makes sessions of OpenCode. Can be pickled, with a verifier that can; sessions can be made in several threads.

    `mode`, `verifier` and the timeouts are upstream's; a `sandbox_backend` is one of `dressage.openenv.sandbox`.
    `sampling` is put on every model call over what OpenCode asks for; TRL gives it. `server` is the URL of a
    `dressage serve` with its `api_key`; without it that of DRESSAGE_URL, or one that is started here.
    `verify_when="always"` lets the verifier judge after a timeout or a failure of the agent, too. `verify_in="fresh"`
    lets it judge in a second sandbox, into which only the working directory is copied. `network` is what sandboxes
    reach: `"none"`, `"open"`, or a list of the hosts that they may reach and no others. `tasks` are whole tasks by
    their instruction, for trainers that pass the instruction alone. `options` are further ones of a rollout, such as
    `priority`.
    """

    def __init__(
        self,
        *,
        config: OpenCodeConfig,
        sandbox_backend: SandboxBackend | None = None,
        mode: Mode = "black_box",
        verifier: Verifier | None = None,
        install_timeout_s: float = 240,
        setup_timeout_s: float = 300,
        create_attempts: int = 3,
        create_backoff_s: float = 2.0,
        sampling: Mapping[str, float] | None = None,
        server: str | None = None,
        api_key: str | None = None,
        verify_when: Literal["completed", "always"] = "completed",
        verify_in: Literal["same", "fresh"] | None = None,
        network: Literal["none", "open"] | Sequence[str] | None = None,
        tasks: Mapping[str, OpenCodeTask | dict[str, Any]] | None = None,
        options: Options | None = None,
    ) -> None:
        if mode not in ("black_box", "transparent_proxy"):
            raise ValueError(f"mode is `black_box` or `transparent_proxy`, not {mode!r}")
        if not config.base_url and not config.endpoint:
            raise ValueError("the config names neither a base_url nor an endpoint")
        if create_attempts < 1:
            raise ValueError("create_attempts is below 1")
        if sandbox_backend is not None and not isinstance(sandbox_backend, SandboxBackend):
            raise TypeError("sandbox_backend is none of `dressage.openenv.sandbox`")
        self.sampling = checked_sampling(sampling or {})
        self._config = config
        self._backend = sandbox_backend
        self._mode = mode
        self._verifier = verifier
        self._install_timeout_s = install_timeout_s
        self._setup_timeout_s = setup_timeout_s
        self._create_attempts = create_attempts
        self._create_backoff_s = create_backoff_s
        self._server = server
        self._api_key = api_key
        self._verify_when = verify_when
        self._verify_in = verify_in
        self._network = network
        self._tasks = dict(tasks or {})
        self._options = options or {}
        self._client: Client | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"OpenCodeSessionFactory(mode={self._mode!r}, config={self._config!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the connection, which each process makes for itself."""
        return {key: value for key, value in self.__dict__.items() if key not in ("_client", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._client = None
        self._lock = threading.Lock()

    def create(
        self,
        task: Any,
        seed: int | None = None,
        episode_id: str | None = None,
        start_agent: bool = True,
    ) -> OpenCodeSession:
        """Makes a session, and starts its agent unless told not to.

        `task` is what `OpenCodeTask.coerce` takes; where it is the instruction of one of the factory's `tasks`, it is
        that. `seed` and `episode_id` are stored with the rollout; `seed` chooses tasks in trainers, and is none of the
        sampler.
        """
        meant = OpenCodeTask.coerce(task)
        if (known := self._tasks.get(meant.instruction)) is not None:
            meant = OpenCodeTask.coerce(known)
        session = OpenCodeSession(
            client=self._connection(),
            spec=self._spec(meant, seed, episode_id),
            config=self._config,
            task=meant,
            verifier=self._verifier,
            attempts=self._create_attempts,
            backoff_s=self._create_backoff_s,
        )
        if start_agent:
            session.start_agent()
        return session

    def _spec(self, task: OpenCodeTask, seed: int | None, episode_id: str | None) -> RolloutSpec:
        table = task_table(
            task,
            self._config,
            mode=self._mode,
            sampling=self.sampling,
            install_timeout_s=self._install_timeout_s,
            setup_timeout_s=self._setup_timeout_s,
        )
        table["verify_when"] = self._verify_when
        if self._verify_in is not None:
            table["verify_in"] = self._verify_in
        if self._network is not None:
            table["network"] = self._network if isinstance(self._network, str) else {"allow": list(self._network)}
        told = {"seed": seed, "episode_id": episode_id}
        table["metadata"] = {**table["metadata"], **{key: value for key, value in told.items() if value is not None}}
        spec = rollout_spec(table, self._config, self._backend, self._mode)
        return {"hold": True, **spec, **self._options}

    def _connection(self) -> Client:
        with self._lock:
            if self._client is None:
                if self._server is None:
                    self._client = shared_client(env=self._backend.env if self._backend else None)
                else:
                    self._client = Client(self._server, api_key=self._api_key)
            return self._client


def _verdict(rollout: models.Rollout) -> VerifyResult:
    """What a rollout that is over says of itself."""
    reward = rollout.outcome.reward if rollout.outcome else None
    metrics: dict[str, Any] = {"ended": rollout.ended or rollout.state}
    artifacts: dict[str, Any] = {"rollout_id": rollout.id}
    if reward is not None:
        artifacts["commands"] = [command.model_dump() for command in reward.commands]
    if rollout.fault is not None or reward is None or reward.value is None:
        artifacts["error"] = _why(rollout)
    return VerifyResult(env_reward=rollout.reward, done=True, metrics=metrics, artifacts=artifacts)


def _why(rollout: models.Rollout) -> str:
    """Why there is no more to a rollout, in a line."""
    return str(rollout.fault) if rollout.fault else f"it is {rollout.ended or rollout.state}"


def _detail(verdict: VerifyResult) -> dict[str, Any] | None:
    """A verifier's metrics, if they can be stored."""
    try:
        text = json.dumps({"metrics": verdict.metrics}, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return {"metrics": verdict.metrics} if verdict.metrics and len(text) <= DETAIL_MAX_BYTES else None
