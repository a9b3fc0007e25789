from __future__ import annotations

import json
import logging
import pickle
import threading
import time
from typing import Any

import httpx
import pytest

import dressage
from dressage.openenv import (
    LocalSandboxBackend,
    OpenCodeConfig,
    OpenCodeSession,
    OpenCodeSessionFactory,
    OpenCodeTask,
    RolloutFailedError,
    SandboxHandle,
    SandboxNotReadyError,
    VerifyResult,
)

from ..fake import FakeServer, event, fault, finished, outcome, refusal, reply, row, stream, turn

R = "/api/v1/rollouts"
AGENT = row(stage="agent")
HELD = row(held_until_unix_ms=9)
TAKEN = {"rollouts": [{"id": "r1"}]}


def verifier(sandbox: SandboxHandle, task: OpenCodeTask) -> VerifyResult:
    ran = sandbox.exec("cat answer.txt", envs={"TASK": task.instruction}, cwd="/home/user/workdir", timeout=7)
    return VerifyResult(env_reward=1.0 if ran.stdout == "42" else 0.0, done=True, metrics={"exit": ran.exit_code})


def factory(fake: FakeServer, **options: Any) -> OpenCodeSessionFactory:
    config = options.pop("config", OpenCodeConfig(endpoint="demo", agent_timeout_s=5.0))
    options = {"mode": "transparent_proxy", "create_backoff_s": 0.001, **options}
    made = OpenCodeSessionFactory(config=config, **options)
    made._client = fake.client()
    return made


def started(fake: FakeServer, *states: dict[str, Any], **options: Any) -> OpenCodeSession:
    """A session whose rollout was taken, and goes through these states."""
    fake.on("POST", R, reply(202, **TAKEN))
    fake.on("GET", f"{R}/r1", *(reply(**state) for state in (AGENT, *states)))
    fake.on("POST", f"{R}/r1/cancel", reply(202, **row()))
    fake.on("POST", f"{R}/r1/finish", reply(202, **row()))
    fake.on("POST", f"{R}/r1/exec", reply(command="", exit_code=0, stdout="42", stderr=""))
    return factory(fake, **options).create({"instruction": "answer", "metadata": {"task_id": "t1"}})


# --- what is asked for ---


def test_config_and_task_are_put_into_a_spec(fake: FakeServer) -> None:
    config = OpenCodeConfig(
        base_url="http://vllm/v1",
        api_key="model-key",
        model="openai_compatible/Qwen/Qwen3.5-4B",
        opencode_version="1.2.3",
        enabled_tools=["bash"],
        system_prompt="be brief",
        extra_opencode_json={"theme": "x"},
        extra_env={"A": "1"},
        extra_setup_shell="pip install a",
        proxy_disable_thinking=True,
        proxy_max_tokens_cap=100,
    )
    fake.on("POST", R, reply(202, **TAKEN)).on("GET", f"{R}/r1", reply(**AGENT))
    factory(
        fake,
        config=config,
        sandbox_backend=LocalSandboxBackend(),
        sampling={"temperature": 0.7, "top_p": 1.0, "top_k": -1},
        options={"priority": 2},
    ).create(
        OpenCodeTask(instruction="x", setup_shell="pip install b", upload_files={"/a": "b"}, verify=["true"]),
        seed=3,
        episode_id="e1",
    )
    (sent,) = fake.sent("POST", R)
    task = sent.pop("task")
    assert sent == {
        "hold": True,
        "mode": "transparent_proxy",
        "base_url": "http://vllm/v1",
        "api_key": "model-key",
        "model": "Qwen/Qwen3.5-4B",
        "top_logprobs": 5,
        "disable_thinking": True,
        "backend": "local",
        "priority": 2,
    }
    assert task == {
        "instruction": "x",
        "setup": ["pip install a", "pip install b"],
        "verify": ["true"],
        "files": {"/a": "b"},
        "agent": {
            "name": "opencode",
            "version": "1.2.3",
            "disabled_tools": ["webfetch", "question"],
            "enabled_tools": ["bash"],
            "system_prompt": "be brief",
            "config": {"theme": "x"},
            "env": {"A": "1"},
        },
        "limits": {
            "boot_timeout_s": 240.0,
            "setup_timeout_s": 300.0,
            "agent_timeout_s": 900.0,
            "max_tokens_cap": 100,
        },
        # A trainer's seed chooses the task: were it the sampler's, all rollouts of a group would be one.
        "sampling": {"temperature": 0.7, "top_p": 1.0, "top_k": -1},
        "metadata": {"seed": 3, "episode_id": "e1"},
        "verify_when": "completed",
    }


def test_messages_of_a_trainer_find_their_task(fake: FakeServer) -> None:
    tasks = {"what is 6 x 7?": {"instruction": "what is 6 x 7?", "verify": ["grep -q 42 answer.txt"]}}
    fake.on("POST", R, reply(202, **TAKEN)).on("GET", f"{R}/r1", reply(**AGENT))
    factory(fake, tasks=tasks).create([{"role": "user", "content": "what is 6 x 7?"}])
    assert fake.sent("POST", R)[0]["task"]["verify"] == ["grep -q 42 answer.txt"]


def test_wrong_words_are_refused_before_anything_is_asked_for() -> None:
    config = OpenCodeConfig(endpoint="demo")
    with pytest.raises(ValueError, match="mode"):
        OpenCodeSessionFactory(config=config, mode="interception_gate")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="logit_bias"):
        OpenCodeSessionFactory(config=config, sampling={"logit_bias": 1.0})
    with pytest.raises(ValueError, match="base_url"):
        OpenCodeSessionFactory(config=OpenCodeConfig())
    with pytest.raises(TypeError, match="sandbox_backend"):
        OpenCodeSessionFactory(config=config, sandbox_backend=object())  # type: ignore[arg-type]


def test_a_factory_can_be_pickled_and_shows_no_key(fake: FakeServer) -> None:
    config = OpenCodeConfig(base_url="http://x/v1", api_key="model-key")
    made = factory(fake, config=config, verifier=verifier, server="http://x", api_key="server-key", sampling={})
    copy = pickle.loads(pickle.dumps(made))  # noqa: S301 - made here
    assert copy._config == config
    assert copy._verifier is verifier
    assert copy._connection().base_url == "http://x"
    assert "key" not in repr(made).replace("OpenCodeSessionFactory", "")


# --- making sessions ---


def test_what_may_pass_is_tried_again_with_growing_pauses(fake: FakeServer) -> None:
    full = refusal(429, "queue_full", "10 wait")
    lost = row("r1", "finished", outcome=outcome(agent=None, ended="setup_error"), ended="setup_error")
    lost["outcome"]["fault"] = fault("sandbox_lost", "sandbox", retryable=True)
    fake.on("POST", R, full, reply(202, **TAKEN), reply(202, rollouts=[{"id": "r2"}]))
    fake.on("GET", f"{R}/r1", reply(**lost)).on("POST", f"{R}/r1/cancel", reply(**lost))
    fake.on("GET", f"{R}/r2", reply(**row("r2", stage="boot")), reply(**row("r2", stage="agent")))
    session = factory(fake).create("x")
    assert session.rollout_id == "r2"


def test_what_will_not_pass_is_not_tried_again(fake: FakeServer) -> None:
    bad = row("r1", "finished", outcome=outcome(agent=None, ended="setup_error"), ended="setup_error")
    bad["outcome"]["fault"] = fault("setup_command_failed")
    states = [reply(**row(stage="setup")), reply(**row(stage="collect")), reply(**bad)]
    fake.on("POST", R, reply(202, **TAKEN)).on("GET", f"{R}/r1", *states)
    fake.on("POST", f"{R}/r1/cancel", reply(**bad))
    with pytest.raises(RolloutFailedError, match="setup_command_failed happened") as caught:
        factory(fake).create("x")
    assert caught.value.fault is not None
    assert len(fake.all("POST", R)) == 1
    fake.on("POST", R, refusal(422, "invalid_request", "`task.nam`: unknown key"))
    with pytest.raises(dressage.InvalidRequestError):
        factory(fake).create("x")
    assert len(fake.all("POST", R)) == 2


def test_a_request_whose_answer_was_lost_counts_once(fake: FakeServer) -> None:
    fake.on("POST", R, httpx.ReadError("cut"), reply(202, **TAKEN)).on("GET", f"{R}/r1", reply(**AGENT))
    factory(fake).create("x")
    first, second = (request.headers["idempotency-key"] for request in fake.all("POST", R))
    assert first == second


def test_attempts_without_an_answer_are_one_and_others_are_not(fake: FakeServer) -> None:
    lost = finished(ended="setup_error", agent=None, fault=fault("sandbox_lost", "sandbox", retryable=True))
    cut = httpx.ReadError("cut")
    fake.on("POST", R, cut, cut, reply(202, **TAKEN), reply(202, rollouts=[{"id": "r2"}]))
    fake.on("GET", f"{R}/r1", reply(**lost)).on("POST", f"{R}/r1/cancel", reply(**lost))
    fake.on("GET", f"{R}/r2", reply(**row("r2", stage="agent")))
    assert factory(fake).create("x").rollout_id == "r2"
    keys = [request.headers["idempotency-key"] for request in fake.all("POST", R)]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_a_session_that_is_closed_while_it_starts_leaves_nothing(fake: FakeServer) -> None:
    session = factory(fake).create("x", start_agent=False)
    fake.on("POST", R, reply(202, **TAKEN)).on("GET", f"{R}/r1", reply(**AGENT))
    fake.on("POST", f"{R}/r1/cancel", reply(202, **row()))
    session.close()
    with pytest.raises(RolloutFailedError):
        session.start_agent()
    assert len(fake.all("POST", f"{R}/r1/cancel")) == 1


def test_attempts_end(fake: FakeServer) -> None:
    fake.on("POST", R, refusal(503, "draining", "the server is stopping"))
    with pytest.raises(dressage.ServerError, match="stopping"):
        factory(fake, create_attempts=2).create("x")
    assert len(fake.all("POST", R)) == 2


def test_an_agent_can_be_started_later_with_files_that_were_written(fake: FakeServer) -> None:
    session = factory(fake).create({"instruction": "x", "upload_files": {"/a": "1"}}, start_agent=False)
    assert not fake.requests
    with pytest.raises(SandboxNotReadyError):
        session.wait_for_completion()
    with pytest.raises(SandboxNotReadyError, match="setup_shell"):
        session.sandbox.exec("true")
    session.sandbox.write_text("/b", "2")
    assert session.sandbox.exists("/b")
    assert session.sandbox.read_text("/b") == "2"
    fake.on("POST", R, reply(202, **TAKEN)).on("GET", f"{R}/r1", reply(**AGENT))
    session.start_agent()
    session.start_agent()
    (sent,) = fake.sent("POST", R)
    assert sent["task"]["files"] == {"/a": "1", "/b": "2"}


def test_a_session_that_was_never_started_closes(fake: FakeServer) -> None:
    factory(fake).create("x", start_agent=False).close()
    assert not fake.requests


# --- the end of the agent ---


def test_an_agent_that_is_done_is_verified_in_its_sandbox(fake: FakeServer) -> None:
    session = started(fake, HELD, verifier=verifier)
    assert session.wait_for_completion() == 0
    result = session.verify([])
    assert (result.env_reward, result.metrics) == (1.0, {"exit": 0})
    assert fake.sent("POST", f"{R}/r1/exec") == [
        {"command": "cat answer.txt", "timeout_s": 7.0, "env": {"TASK": "answer"}, "cwd": "/home/user/workdir"}
    ]
    session.close()
    assert fake.sent("POST", f"{R}/r1/finish") == [{"reward": 1.0, "detail": {"metrics": {"exit": 0}}}]


def test_without_a_verifier_the_tasks_own_commands_judge(fake: FakeServer) -> None:
    session = started(fake, HELD, HELD, finished(reward=0.5))
    assert session.wait_for_completion() == 0
    result = session.verify([])
    assert (result.env_reward, result.metrics) == (0.5, {"ended": "completed"})
    assert fake.sent("POST", f"{R}/r1/finish") == [{"reward": None}]


def test_a_timeout_is_a_timeout_error_and_its_turns_are_there(fake: FakeServer) -> None:
    over = finished(ended="timeout", reward=None, fault=fault("agent_timeout", "agent"))
    session = started(fake, over, verifier=verifier)
    with pytest.raises(TimeoutError, match="agent_timeout happened"):
        session.wait_for_completion()
    fake.on("GET", f"{R}/r1/trajectory", reply(rollout="r1", turns=[turn(0, [1], [2])]))
    assert session.fetch_training_trace().turns[0].completion_token_ids == [2]
    result = session.verify([])
    assert result.env_reward is None, "a verdict there is none of is not 0"
    assert "agent_timeout" in result.artifacts["error"]


def test_a_timeout_can_be_verified_where_that_is_asked_for(fake: FakeServer) -> None:
    session = started(fake, HELD, verifier=verifier, verify_when="always")
    fake.on("GET", f"{R}/r1/events", stream(event(0, "stage_ended", stage="agent", duration_ms=5000)))
    with pytest.raises(TimeoutError):
        session.wait_for_completion()
    assert session.verify([]).env_reward == 1.0
    fake.on("GET", f"{R}/r1/events", stream(event(0, "stage_ended", stage="agent", duration_ms=4000)))
    assert session.wait_for_completion() == 0


def test_the_verifier_judges_in_a_fresh_sandbox_where_that_is_asked_for(fake: FakeServer) -> None:
    fake.on("POST", R, reply(202, **TAKEN)).on("GET", f"{R}/r1", reply(**AGENT))
    factory(fake, verify_in="fresh", network=["index.example", "*.example.org"]).create("x")
    assert fake.sent("POST", R)[0]["task"]["verify_in"] == "fresh"
    assert fake.sent("POST", R)[0]["task"]["network"] == {"allow": ["index.example", "*.example.org"]}


def test_a_hold_after_a_failed_setup_is_no_success(fake: FakeServer) -> None:
    session = started(fake, HELD, verify_when="always")
    told = [event(0, "stage_ended", stage="setup", duration_ms=1), event(1, "held", until_unix_ms=9)]
    fake.on("GET", f"{R}/r1/events", stream(*told))
    with pytest.raises(RolloutFailedError, match="not started"):
        session.wait_for_completion()


def test_a_wait_of_the_caller_leaves_the_rollout_until_it_is_judged(fake: FakeServer) -> None:
    session = started(fake, *[AGENT] * 3, verifier=verifier)
    with pytest.raises(TimeoutError):
        session.wait_for_completion(timeout_s=0.0)
    assert not fake.all("POST", f"{R}/r1/cancel")
    fake.on("GET", f"{R}/r1", reply(**AGENT), reply(**finished(ended="cancelled", reward=None)))
    assert session.verify([]).env_reward is None
    assert len(fake.all("POST", f"{R}/r1/cancel")) == 1


def test_an_agent_that_fails_has_an_exit_code_and_no_reward(fake: FakeServer) -> None:
    over = finished(ended="agent_error", reward=None, fault=fault("agent_failed", "agent"))
    over["outcome"]["agent"]["exit_code"] = 3
    session = started(fake, over, verifier=verifier)
    assert session.wait_for_completion() == 3
    assert session.verify([]).env_reward is None
    session.close()
    assert not fake.all("POST", f"{R}/r1/finish")


def test_a_hold_that_ran_out_leaves_no_verdict(fake: FakeServer) -> None:
    session = started(fake, HELD, finished(reward=0.5), verifier=verifier)
    assert session.wait_for_completion() == 0
    result = session.verify([])
    assert (result.env_reward, result.artifacts) == (None, {"error": "it is completed"})


def test_a_rollout_whose_server_died_is_an_error(fake: FakeServer) -> None:
    session = started(fake, row(state="interrupted"))
    with pytest.raises(RolloutFailedError, match="interrupted"):
        session.wait_for_completion()
    assert session.verify([]).env_reward is None


def test_closing_from_another_thread_ends_a_wait(fake: FakeServer) -> None:
    session = started(fake, AGENT)
    ended: list[Exception] = []

    def wait() -> None:
        try:
            session.wait_for_completion()
        except RuntimeError as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    assert thread.is_alive()

    def cancelled(_: httpx.Request) -> httpx.Response:
        fake.on("GET", f"{R}/r1", reply(**finished(ended="cancelled", reward=None)))
        return reply(202, **row())

    fake.on("POST", f"{R}/r1/cancel", cancelled)
    session.close()
    thread.join(5.0)
    assert isinstance(ended[0], RolloutFailedError)
    session.close()


def test_a_reward_out_of_range_is_the_trainers_and_not_stored(
    fake: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    session = started(fake, HELD, verifier=lambda *_: VerifyResult(env_reward=-5.0))
    session.wait_for_completion()
    assert session.verify([]).env_reward == -5.0
    fake.on("POST", f"{R}/r1/finish", refusal(422, "invalid_request", "-5 is not between 0 and 1"), reply(202, **row()))
    with caplog.at_level(logging.WARNING):
        session.close()
    assert "not between" in caplog.text
    assert fake.sent("POST", f"{R}/r1/finish")[1] == {"reward": None, "detail": {"refused_reward": "-5.0"}}


def test_a_verifier_that_fails_fails_and_close_still_releases(fake: FakeServer) -> None:
    def broken(sandbox: SandboxHandle, task: OpenCodeTask) -> VerifyResult:
        raise ZeroDivisionError

    session = started(fake, HELD, verifier=broken)
    session.wait_for_completion()
    with pytest.raises(ZeroDivisionError):
        session.verify([])
    session.close()
    assert fake.sent("POST", f"{R}/r1/finish") == [{"reward": None}]


def test_closing_never_fails(fake: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    session = started(fake, HELD)
    fake.on("GET", f"{R}/r1", httpx.ConnectError("refused"))
    with caplog.at_level(logging.WARNING):
        session.close()
    assert "could not be closed" in caplog.text


# --- what is captured ---


def test_one_trajectory_serves_both_contracts(fake: FakeServer) -> None:
    session = started(fake, HELD)
    title = turn(1, [9], [8], role="auxiliary", loss_mask=[0, 0])
    fake.on("GET", f"{R}/r1/trajectory", reply(rollout="r1", turns=[turn(0, [1], [2]), title]))
    assert [made.node_id for made in session.fetch_training_trace().turns] == ["r1:0"]
    entries = session.fetch_proxy_trace()
    assert [entry["role"] for entry in entries] == ["agent", "auxiliary"]
    assert json.loads(json.dumps(entries)) == entries
    assert fake.requests[-1].url.params["format"] == "training"


def test_a_black_box_has_nothing_to_train_on(fake: FakeServer) -> None:
    session = started(fake, HELD, mode="black_box")
    assert session.fetch_proxy_trace() == []
    with pytest.raises(ValueError, match="black_box"):
        session.fetch_training_trace()


def test_the_agents_log_is_what_it_wrote(fake: FakeServer) -> None:
    session = started(fake, HELD)
    fake.on("GET", f"{R}/r1/logs", reply(agent=None), reply(agent='{"type":"text"}\n'))
    assert session.fetch_trace() == ""
    assert session.fetch_trace() == '{"type":"text"}\n'


def test_opencode_has_its_own_tools(fake: FakeServer) -> None:
    session = factory(fake).create("do it", start_agent=False)
    assert session.initial_messages() == [{"role": "user", "content": "do it"}]
    assert session.list_tools() == []
    assert session.call_tool("bash", {}).error


# --- the sandbox ---


def test_while_the_agent_works_its_sandbox_is_closed(fake: FakeServer) -> None:
    session = started(fake, AGENT)
    busy = refusal(409, "not_held", "rollout r1 is not held")
    fake.on("POST", f"{R}/r1/exec", busy).on("GET", f"{R}/r1/files/a", busy).on("PUT", f"{R}/r1/files/a", busy)
    for attempt in (
        lambda: session.sandbox.exec("true"),
        lambda: session.sandbox.read_text("a"),
        lambda: session.sandbox.write_text("a", "b"),
    ):
        with pytest.raises(SandboxNotReadyError, match="not held"):
            attempt()


def test_files_of_a_rollout_that_is_over_are_found_by_their_absolute_path(fake: FakeServer) -> None:
    session = started(fake, finished())
    fake.on("GET", f"{R}/r1/files/sub%2Fa.txt", httpx.Response(200, content=b"text"))
    fake.on("GET", f"{R}/r1", reply(**finished()))
    assert session.sandbox.read_text("/home/user/workdir/sub/a.txt") == "text"
    assert session.sandbox.exists("sub/a.txt")
    assert not session.sandbox.exists("/home/user/workdir/none")
    with pytest.raises(FileNotFoundError, match="/etc/passwd"):
        session.sandbox.read_text("/etc/passwd")


def test_a_background_command_is_waited_for_and_ended(fake: FakeServer) -> None:
    session = started(fake, HELD)
    released = threading.Event()

    def execute(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if body["command"] == "serve":
            released.wait(5.0)
            return reply(exit_code=137)
        if "kill -KILL" in body["command"]:
            released.set()
        return reply(exit_code=0, stdout="77\n78\n")

    fake.on("POST", f"{R}/r1/exec", execute)
    job = session.sandbox.start_bg("serve", envs={"A": "1"}, cwd="/tmp")
    with pytest.raises(TimeoutError):
        job.wait(timeout=0.01)
    assert job.pid == 77
    job.kill()
    assert job.wait(timeout=5.0) == 137
    sent = fake.sent("POST", f"{R}/r1/exec")
    assert sent[0]["timeout_s"] == 86400.0
    assert sent[0]["env"]["DRESSAGE_JOB"] in sent[1]["command"]
