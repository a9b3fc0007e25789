"""Upstream's words for a rollout, in those of Dressage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ..spec import RolloutSpec
from .config import OpenCodeConfig
from .sandbox import SandboxBackend
from .task import OpenCodeTask

Mode = Literal["black_box", "transparent_proxy"]

SAMPLING = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
    }
)


def task_table(
    task: OpenCodeTask,
    config: OpenCodeConfig,
    *,
    mode: Mode,
    sampling: Mapping[str, float],
    install_timeout_s: float,
    setup_timeout_s: float,
) -> dict[str, Any]:
    """The task of Dressage that `task` and `config` ask for together."""
    cap = config.proxy_max_tokens_cap if mode == "transparent_proxy" else config.max_tokens_cap
    table: dict[str, Any] = {
        "instruction": task.instruction,
        "setup": [command for command in (config.extra_setup_shell, task.setup_shell) if command],
        "verify": task.verify,
        "files": task.upload_files,
        "agent": _agent(config),
        "limits": {
            "boot_timeout_s": float(install_timeout_s),
            "setup_timeout_s": float(setup_timeout_s),
            "agent_timeout_s": config.agent_timeout_s,
            # 0 is no cap.
            "max_tokens_cap": cap or 0,
        },
        "sampling": checked_sampling(sampling),
        "metadata": task.metadata,
    }
    if task_id := task.metadata.get("task_id"):
        table["id"] = str(task_id)
    return table


def rollout_spec(
    table: Mapping[str, Any], config: OpenCodeConfig, backend: SandboxBackend | None, mode: Mode
) -> RolloutSpec:
    """The spec that runs a task with the endpoint of `config`."""
    spec = RolloutSpec(task=table, mode=mode)
    if config.endpoint:
        spec["endpoint"] = config.endpoint
    else:
        spec["base_url"] = config.base_url
        spec["api_key"] = config.api_key
        spec["model"] = config.model.removeprefix(f"{config.provider}/")
    if mode == "transparent_proxy":
        spec["top_logprobs"] = config.proxy_top_logprobs
    if config.disable_thinking or (mode == "transparent_proxy" and config.proxy_disable_thinking):
        spec["disable_thinking"] = True
    if backend is not None:
        spec["backend"] = backend.name
        if backend.image is not None:
            spec["image"] = backend.image
    return spec


def checked_sampling(sampling: Mapping[str, float]) -> dict[str, float]:
    """The parameters that are set. Raises `ValueError` where one is none that Dressage knows."""
    if unknown := sorted(set(sampling) - SAMPLING):
        raise ValueError(f"sampling has {', '.join(unknown)}; known are {', '.join(sorted(SAMPLING))}")
    return {key: value for key, value in sampling.items() if value is not None}


def _agent(config: OpenCodeConfig) -> dict[str, Any]:
    agent: dict[str, Any] = {
        "name": "opencode",
        "disabled_tools": config.disabled_tools,
        "config": config.extra_opencode_json,
        "env": config.extra_env,
    }
    if config.opencode_version != "latest":
        agent["version"] = config.opencode_version
    if config.system_prompt:
        agent["system_prompt"] = config.system_prompt
    if config.enabled_tools is not None:
        agent["enabled_tools"] = config.enabled_tools
    return agent
