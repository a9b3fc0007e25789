"""What `run_rollout` gives: upstream's models, with what goes beyond them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .contract import TrainingTrace
from .training import training_trace


class _Model(BaseModel):
    model_config = ConfigDict(extra="allow")


class RolloutTurn(_Model):
    """One model call. From `node_id` on, members are ours: an upstream server leaves them out."""

    turn: int
    finish_reason: str | None = None
    completion_tokens: list[str] = Field(default_factory=list)
    completion_token_ids: list[int] = Field(default_factory=list)
    per_token_logps: list[float] = Field(default_factory=list)
    latency_s: float = 0.0
    timestamp: float = 0.0
    upstream_status: int | None = None
    upstream_error: dict[str, Any] | None = None

    node_id: str = ""
    parent_node_id: str | None = None
    role: Literal["agent", "auxiliary"] | str = "agent"
    prompt_token_ids: list[int] | None = None
    loss_mask: list[int] | None = None
    request: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    flags: list[str] = Field(default_factory=list)
    metadata: dict[str, Any] = Field(default_factory=dict)


class CommandResult(_Model):
    """A setup or verify command, and what came of it."""

    cmd: str
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    duration_s: float = 0.0


class RolloutResult(_Model):
    """What came of a rollout. `reward` None is no verdict, which is not 0."""

    task_id: str = ""
    sandbox_id: str = ""
    reward: float | None = None
    agent_exit_code: int | None = None
    wall_s: float = 0.0
    mode: str = "black_box"
    setup_results: list[CommandResult] = Field(default_factory=list)
    verify_results: list[CommandResult] = Field(default_factory=list)
    proxy_turns: list[RolloutTurn] = Field(default_factory=list)
    files: dict[str, str] = Field(default_factory=dict)
    files_extra: list[str] = Field(default_factory=list)
    agent_log_tail: str = ""
    proxy_log_tail: str = ""
    error: str | None = None

    rollout_id: str = ""
    """Its id in the REST API; ours."""
    ended: str | None = None
    """How it ended; ours."""

    def training_trace(self) -> TrainingTrace:
        """Its turns for TRL; see `OpenCodeSession.fetch_training_trace` for what is raised."""
        return training_trace(self.proxy_turns)


class OpenCodeState(_Model):
    """What a session of `OpenCodeEnv` has done so far."""

    episode_id: str | None = None
    step_count: int = 0
    rollouts_completed: int = 0
    last_reward: float | None = None
    last_task_id: str | None = None
    last_sandbox_id: str | None = None
