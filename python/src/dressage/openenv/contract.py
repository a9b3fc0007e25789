"""The contracts of OpenEnv's harness: its own classes where `openenv` is installed, ours otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .standalone import (
        Message,
        ResourceSession,
        ResourceSessionFactory,
        ToolResult,
        TrainingTrace,
        TrainingTurn,
        VerifyResult,
    )
else:
    from .standalone import Message

    try:
        from openenv.core.harness import ResourceSession, ResourceSessionFactory, ToolResult, VerifyResult
    except ImportError:
        from .standalone import ResourceSession, ResourceSessionFactory, ToolResult, VerifyResult
    try:
        # Since openenv 0.7.
        from openenv.core.harness import TrainingTrace, TrainingTurn
    except ImportError:
        from .standalone import TrainingTrace, TrainingTurn

__all__ = [
    "Message",
    "ResourceSession",
    "ResourceSessionFactory",
    "ToolResult",
    "TrainingTrace",
    "TrainingTurn",
    "VerifyResult",
]
