"""Run real coding agents as reinforcement-learning rollouts.

    import dressage
    rollout = dressage.rollout(preset="binary_search", endpoint="demo")
    print(rollout.reward)

`Client` and `AsyncClient` talk to `dressage serve`, `serve` starts one here, and `dressage.openenv` has the names that
users of OpenEnv's `opencode_env` know, with what trainers need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from typing_extensions import Unpack

from .aio import AsyncClient
from .client import Client
from .errors import (
    ApiError,
    ConflictError,
    ConnectionFailedError,
    DressageError,
    InvalidRequestError,
    NotFoundError,
    QueueFullError,
    ServeError,
    ServerError,
    TimedOutError,
    UnauthorizedError,
)
from .follow import Missed
from .models import (
    Call,
    CommandResult,
    Fault,
    Outcome,
    Rollout,
    RolloutEvent,
    RolloutSummary,
    Submitted,
    Trajectory,
    Turn,
)
from .server import Server, serve, shared_client
from .spec import Options, RolloutSpec, Task, rollout_spec, task_table

__all__ = [
    "ApiError",
    "AsyncClient",
    "Call",
    "Client",
    "CommandResult",
    "ConflictError",
    "ConnectionFailedError",
    "DressageError",
    "Fault",
    "InvalidRequestError",
    "Missed",
    "NotFoundError",
    "Options",
    "Outcome",
    "QueueFullError",
    "Rollout",
    "RolloutEvent",
    "RolloutSpec",
    "RolloutSummary",
    "ServeError",
    "Server",
    "ServerError",
    "Submitted",
    "Task",
    "TimedOutError",
    "Trajectory",
    "Turn",
    "UnauthorizedError",
    "rollout",
    "rollout_spec",
    "rollouts",
    "serve",
]


def rollout(
    task: Task | None = None,
    *,
    preset: str | None = None,
    setup: Sequence[str] = (),
    verify: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    **options: Unpack[Options],
) -> Rollout:
    """Runs one rollout and gives what came of it; `reward` is None where there is no verdict.

    The server is that of DRESSAGE_URL, or one that is started here and stopped when Python ends. A rollout that fails
    is no exception: see `fault`. A wait that ends without it, by `timeout_s` or an interrupt, cancels it.
    """
    options["n"] = 1
    return rollouts(
        task,
        preset=preset,
        setup=setup,
        verify=verify,
        files=files,
        timeout_s=timeout_s,
        **options,
    )[0]


def rollouts(
    task: Task | None = None,
    *,
    preset: str | None = None,
    setup: Sequence[str] = (),
    verify: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    **options: Unpack[Options],
) -> list[Rollout]:
    """Runs `n` rollouts of a task at once, as `rollout` runs one."""
    table = None if task is None else task_table(task, setup=setup, verify=verify, files=files)
    with shared_client() as client:
        spec = rollout_spec(table, preset=preset, **options)
        return client.run_all([spec], timeout_s=timeout_s)
