"""What OpenCode is to do: upstream's `OpenCodeTask`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field


class OpenCodeTask(BaseModel):
    """What OpenCode is to do. `verify` is ours: shell commands whose passed share is the reward without a verifier."""

    instruction: str
    setup_shell: str | None = None
    upload_files: dict[str, str] = Field(default_factory=dict)
    """Path in the sandbox to text."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """For the verifier; stored with the rollout. `task_id` names the task."""
    verify: list[str] = Field(default_factory=list)

    @classmethod
    def coerce(cls, value: object) -> OpenCodeTask:
        """The task that is meant: a task itself, a table of its fields, its instruction, or messages of a chat.

        Of messages, as trainers pass them, the last one of the user is the instruction. Raises `TypeError` otherwise.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(instruction=value)
        if isinstance(value, Mapping):
            return cls.model_validate(dict(value))
        if isinstance(value, list) and (text := _last_of_user(value)) is not None:
            return cls(instruction=text)
        raise TypeError(f"a task is text, a table, messages or an OpenCodeTask, not {type(value).__name__}")


def _last_of_user(messages: list[Any]) -> str | None:
    """The text of the user's last message."""
    for message in reversed(messages):
        if not isinstance(message, Mapping) or message.get("role") != "user":
            continue
        content = message.get("content")
        if isinstance(content, str):
            return content
        if isinstance(content, list):
            return "".join(str(part["text"]) for part in content if isinstance(part, Mapping) and "text" in part)
    return None
