"""The contracts of OpenEnv's harness, for where `openenv` is not installed.

Fields and checks are those of `openenv` 0.10.0 (`openenv.core.harness`); where that is there, its own classes are used.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

Message = dict[str, Any]


@dataclass
class ToolResult:
    """What came of a tool call."""

    data: Any = None
    done: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass
class VerifyResult:
    """The verdict on a rollout; `env_reward` None is no verdict, which is not 0."""

    env_reward: float | None = None
    done: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, Any] = field(default_factory=dict)


class ResourceSession(ABC):
    """One rollout, as harnesses see it."""

    @abstractmethod
    def initial_messages(self) -> list[Message]:
        """Give the messages that it starts with."""

    @abstractmethod
    def list_tools(self) -> list[Any]:
        """Give the tools that it offers."""

    @abstractmethod
    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Call one of them."""

    @abstractmethod
    def verify(self, transcript: list[Message], final_state: Any | None = None) -> VerifyResult:
        """Judge it."""

    @abstractmethod
    def close(self) -> None:
        """Release what it holds."""


class ResourceSessionFactory(ABC):
    """Makes sessions."""

    @abstractmethod
    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> ResourceSession:
        """Make one."""


class TrainingTurn(BaseModel):
    """One model call in tokens; the mask covers prompt and completion."""

    model_config = ConfigDict(strict=True, extra="forbid")

    node_id: str = Field(min_length=1)
    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    per_token_logps: list[float]
    loss_mask: list[int]
    request: dict[str, Any] = Field(default_factory=dict)
    response: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def check(self) -> Self:
        """Holds ids, log-probabilities and mask against each other."""
        prompt, completion = self.prompt_token_ids, self.completion_token_ids
        if not prompt:
            raise ValueError("prompt_token_ids is empty")
        if any(token < 0 for token in (*prompt, *completion)):
            raise ValueError("a token id is negative")
        if len(self.per_token_logps) != len(completion):
            raise ValueError("per_token_logps and completion_token_ids differ in length")
        if any(not math.isfinite(logprob) or logprob > 0 for logprob in self.per_token_logps):
            raise ValueError("a log-probability is not a finite number at or below 0")
        if len(self.loss_mask) != len(prompt) + len(completion):
            raise ValueError("loss_mask does not cover prompt and completion")
        if any(bit not in (0, 1) for bit in self.loss_mask) or any(self.loss_mask[: len(prompt)]):
            raise ValueError("loss_mask is not 0 and 1, or trains the prompt")
        return self


class TrainingTrace(BaseModel):
    """The agent's calls of a rollout, for training."""

    model_config = ConfigDict(strict=True, extra="forbid")

    schema_version: Literal[1] = 1
    turns: list[TrainingTurn]

    @model_validator(mode="after")
    def check(self) -> Self:
        """Each call is there once."""
        ids = [turn.node_id for turn in self.turns]
        if len(set(ids)) != len(ids):
            raise ValueError("a node_id is there twice")
        return self

    def to_trace_entries(self) -> list[dict[str, Any]]:
        """The turns as records for reward functions and viewers."""
        return [
            {**turn.model_dump(exclude={"node_id"}), "metadata": {**turn.metadata, "node_id": turn.node_id}}
            for turn in self.turns
        ]
