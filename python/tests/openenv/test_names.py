"""Upstream's README snippets find every name where upstream has it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dressage.openenv as package
from dressage.openenv import OpenCodeConfig, OpenCodeTask
from dressage.openenv.client import OpenCodeEnv, _extract_text, extract_text
from dressage.openenv.models import RolloutResult
from dressage.openenv.sandbox import E2BSandboxBackend, HFSandboxBackend


def test_upstream_names_are_there() -> None:
    upstream = {
        "OpenCodeEnv",
        "CallToolAction",
        "ListToolsAction",
        "CommandResult",
        "OpenCodeState",
        "RolloutResult",
        "RolloutTurn",
        "OpenCodeConfig",
        "OpenCodeSession",
        "OpenCodeSessionFactory",
        "OpenCodeTask",
        "Provider",
        "E2BSandboxBackend",
        "SandboxBackend",
        "SandboxHandle",
    }
    assert upstream <= set(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)
    assert package.OpenCodeEnv is OpenCodeEnv
    assert _extract_text is extract_text


def test_upstream_config_is_taken_with_its_defaults() -> None:
    config = OpenCodeConfig(base_url="https://api.openai.com/v1", api_key="sk-secret", model="gpt-4o-mini")
    assert (config.provider, config.agent_timeout_s, config.proxy_top_logprobs) == ("openai_compatible", 900.0, 5)
    assert config.disabled_tools == ["webfetch", "question"]
    assert (config.proxy_max_tokens_cap, config.sandbox_home) == (16384, "/home/user")
    assert "sk-secret" not in repr(config)
    assert "sk-secret" not in str(config)


def test_backends_say_which_and_keep_their_keys_to_themselves() -> None:
    backend = E2BSandboxBackend(api_key="e2b_secret", template="opencode-rl")
    assert (backend.name, backend.image) == ("e2b", "opencode-rl")
    assert "e2b_secret" not in repr(backend)
    assert HFSandboxBackend(image="python:3.12").image == "python:3.12"
    with pytest.raises(ValueError, match="allow_internet_access"):
        E2BSandboxBackend(sandbox_kwargs={"allow_internet_access": True})


class TestTask:
    def test_text_tables_and_tasks_are_tasks(self) -> None:
        task = OpenCodeTask.coerce({"instruction": "x", "setup_shell": "pip install y", "metadata": {"task_id": "t"}})
        assert (task.setup_shell, task.upload_files, task.metadata) == ("pip install y", {}, {"task_id": "t"})
        assert OpenCodeTask.coerce("write fizzbuzz").instruction == "write fizzbuzz"
        assert OpenCodeTask.coerce(task) is task

    def test_of_messages_the_last_one_of_the_user_counts(self) -> None:
        messages = [
            {"role": "system", "content": "be good"},
            {"role": "user", "content": "first"},
            {"role": "user", "content": [{"type": "text", "text": "se"}, {"type": "text", "text": "cond"}]},
        ]
        assert OpenCodeTask.coerce(messages).instruction == "second"
        assert OpenCodeTask.coerce(messages[:2]).instruction == "first"

    @pytest.mark.parametrize("value", [42, None, [], [{"role": "system", "content": "x"}]])
    def test_other_things_are_not(self, value: object) -> None:
        with pytest.raises(TypeError):
            OpenCodeTask.coerce(value)


class _Holder:
    def __init__(self, **members: object) -> None:
        self.__dict__.update(members)


@pytest.mark.parametrize(
    "result",
    [
        '{"reward":1.0}',
        {"content": [{"type": "text", "text": '{"reward":1.0}'}], "data": None},
        {"result": {"content": [{"text": '{"reward":1.0}'}]}},
        _Holder(result=_Holder(content=[_Holder(text='{"reward":1.0}')])),
        _Holder(content=[{"text": '{"reward":1.0}'}]),
        _Holder(result={"content": [{"text": '{"reward":1.0}'}]}, content=None),
    ],
)
def test_the_text_is_found_in_each_form(result: object) -> None:
    assert RolloutResult.model_validate_json(extract_text(result)).reward == 1.0


def test_what_has_no_text_is_given_as_json() -> None:
    assert extract_text({"reward": None}) == '{"reward": null}'


def test_nothing_heavy_is_imported_with_the_package() -> None:
    script = "import sys, dressage; print([name for name in ('openenv', 'torch', 'trl') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
