"""What users of OpenEnv's `opencode_env` know, by the same names: only the import changes.

- In a trainer: `OpenCodeSessionFactory`, `OpenCodeSession`, `OpenCodeConfig`, `OpenCodeTask`.
- Over the network: `OpenCodeEnv`, `RolloutResult` and what is in it.

Sandboxes are made, and agents run, by a server of Dressage: that of DRESSAGE_URL, or one that is started where none is
named.
"""

from .client import (
    CallToolAction,
    ListToolsAction,
    Observation,
    OpenCodeEnv,
    StepResult,
    SyncOpenCodeEnv,
    ToolError,
    extract_text,
)
from .config import OpenCodeConfig, Provider
from .contract import (
    ResourceSession,
    ResourceSessionFactory,
    ToolResult,
    TrainingTrace,
    TrainingTurn,
    VerifyResult,
)
from .harness import OpenCodeSession, OpenCodeSessionFactory, RolloutFailedError, Verifier
from .models import CommandResult, OpenCodeState, RolloutResult, RolloutTurn
from .sandbox import (
    BgJob,
    DockerSandboxBackend,
    E2BSandboxBackend,
    ExecResult,
    HFSandboxBackend,
    LocalSandboxBackend,
    SandboxBackend,
    SandboxHandle,
    SandboxNotReadyError,
)
from .task import OpenCodeTask

__all__ = [
    "BgJob",
    "CallToolAction",
    "CommandResult",
    "DockerSandboxBackend",
    "E2BSandboxBackend",
    "ExecResult",
    "HFSandboxBackend",
    "ListToolsAction",
    "LocalSandboxBackend",
    "Observation",
    "OpenCodeConfig",
    "OpenCodeEnv",
    "OpenCodeSession",
    "OpenCodeSessionFactory",
    "OpenCodeState",
    "OpenCodeTask",
    "Provider",
    "ResourceSession",
    "ResourceSessionFactory",
    "RolloutFailedError",
    "RolloutResult",
    "RolloutTurn",
    "SandboxBackend",
    "SandboxHandle",
    "SandboxNotReadyError",
    "StepResult",
    "SyncOpenCodeEnv",
    "ToolError",
    "ToolResult",
    "TrainingTrace",
    "TrainingTurn",
    "Verifier",
    "VerifyResult",
    "extract_text",
]
