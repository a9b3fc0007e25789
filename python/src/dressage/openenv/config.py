"""How OpenCode is run: upstream's `OpenCodeConfig`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

Provider = Literal["openai_compatible", "openai", "anthropic"]
"""Who makes the endpoint. All are asked in the dialect of chat completions."""


class OpenCodeConfig(BaseModel):
    """How OpenCode is run in one rollout. Fields and defaults are upstream's, `endpoint` is ours.

    Times with `_s` are in seconds, with `_ms` in milliseconds. The key is never shown.
    """

    endpoint: str = ""
    """The name of an endpoint of the server, such as `demo` or `vllm`, instead of `base_url`, `api_key` and `model`."""

    provider: Provider = "openai_compatible"
    base_url: str = ""
    """Up to and with `/v1`. This or `endpoint` is needed."""
    api_key: str = Field(default="intercepted", repr=False)
    model: str = "intercepted/model"
    """As the endpoint calls it; a leading `<provider>/` is taken off."""
    request_timeout_ms: int = 600_000

    opencode_version: str = "latest"
    """`latest` is the version that Dressage pins."""
    disabled_tools: list[str] = Field(default_factory=lambda: ["webfetch", "question"])
    enabled_tools: list[str] | None = None
    system_prompt: str | None = None
    extra_opencode_json: dict[str, Any] = Field(default_factory=dict)

    run_format: Literal["default", "json"] = "json"
    """Taken for upstream's sake: Dressage always reads JSON lines."""
    agent_timeout_s: float = 900.0
    extra_env: dict[str, str] = Field(default_factory=dict)
    extra_setup_shell: str | None = None

    disable_thinking: bool = False
    max_tokens_cap: int | None = None

    proxy_max_tokens_cap: int | None = 16384
    proxy_top_logprobs: int = 5
    proxy_disable_thinking: bool = False

    sandbox_home: str = "/home/user"
    """Where the home is in paths that callers write; `/home/user` leads to it in every sandbox."""
