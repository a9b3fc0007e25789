"""What rollouts are asked for with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from typing_extensions import TypedDict, Unpack

Task = Mapping[str, Any] | str
"""A task as a table (`docs/tasks.md` of Dressage knows its keys), or its instruction alone."""


class Options(TypedDict, total=False):
    """How rollouts of a task are run; what is left out is the server's to choose."""

    n: int
    """Rollouts of the task, 1 to 1024: a group, which starts together when it can."""
    endpoint: str
    """The name of a model endpoint; `demo` needs neither network nor key."""
    base_url: str
    """The URL of an endpoint, up to and with `/v1`."""
    api_key: str
    """The caller's own key for it."""
    model: str
    backend: str
    """The sandbox backend."""
    image: str
    """Image or template, for backends that have such."""
    mode: Literal["transparent_proxy", "black_box"]
    placement: Literal["relay", "in_sandbox"]
    capture: Literal["stream", "buffer"]
    top_logprobs: int
    disable_thinking: bool
    priority: int
    """Higher goes first among those that wait."""
    hold: bool
    """Keep the sandbox after the agent, for the caller's own verifier."""
    hold_timeout_s: float
    """Seconds that it is kept, from the caller's last request on."""
    on_interrupt: Literal["mark", "rerun"]
    """What becomes of a rollout where the server dies over it."""


class RolloutSpec(Options, total=False):
    """A task, or the name of a preset, and how its rollouts are run."""

    task: Mapping[str, Any]
    preset: str


def rollout_spec(task: Task | None = None, *, preset: str | None = None, **options: Unpack[Options]) -> RolloutSpec:
    """The spec of a task or preset with options; an option that is None is left out."""
    spec: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    if preset is not None:
        spec["preset"] = preset
    if task is not None:
        spec["task"] = {"instruction": task} if isinstance(task, str) else dict(task)
    return cast("RolloutSpec", spec)


def task_table(
    task: Task,
    *,
    setup: Sequence[str] = (),
    verify: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The table of a task, with what is given beside it added to what it says itself."""
    table: dict[str, Any] = {"instruction": task} if isinstance(task, str) else dict(task)
    for key, commands in (("setup", setup), ("verify", verify)):
        if commands:
            table[key] = [*table.get(key, ()), *commands]
    if files:
        table["files"] = {**table.get("files", {}), **files}
    return table
