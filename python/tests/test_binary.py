"""The whole package against the real program. Runs where DRESSAGE_BINARY names it."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import dressage
from dressage import AsyncClient, Client, Server, models
from dressage.openenv import (
    OpenCodeConfig,
    OpenCodeEnv,
    OpenCodeSessionFactory,
    OpenCodeTask,
    RolloutFailedError,
    SandboxHandle,
    VerifyResult,
)

from . import test_operations

pytestmark = [
    pytest.mark.binary,
    pytest.mark.skipif(not os.environ.get("DRESSAGE_BINARY"), reason="DRESSAGE_BINARY names no program"),
]

agent = pytest.mark.agent

PATIENCE_S = 600
"""How long a rollout may take on a machine that has much else to do."""

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def client(server: Server) -> Client:
    return server.client()


@pytest.fixture
def needs_agent(client: Client) -> None:
    if not any(known.installed for known in client.agents() if known.name == "opencode"):
        pytest.skip("opencode is not installed")


# --- without an agent ---


def test_the_catalogue_is_read(client: Client) -> None:
    assert any(endpoint.name == "demo" and endpoint.usable for endpoint in client.endpoints())
    assert any(known.name == "opencode" for known in client.agents())
    assert any(backend.name == "local" for backend in client.backends())
    assert any(preset.name == "binary_search" for preset in client.presets())
    assert client.queue().limits["running"] >= 1
    assert client.is_healthy()
    version = client.version()
    assert (version.name, version.api, version.schemas["training"]) == ("dressage", "v1", 1)
    command = [os.environ["DRESSAGE_BINARY"], "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.strip() == f"dressage {version.version}"


def test_an_endpoint_is_paused_and_resumed(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("VLLM_MODEL", "m")
    with dressage.serve(data_dir=data_dir / "endpoint") as server, server.client() as client:
        endpoint = client.endpoint("vllm")
        assert (endpoint.base_url, endpoint.model, endpoint.paused) == ("http://127.0.0.1:9/v1", "m", False)
        paused = client.pause_endpoint("vllm", wait=True, timeout_s=5)
        assert (paused.paused, paused.in_flight) == (True, 0)
        resumed = client.resume_endpoint("vllm", "step-2")
        assert (resumed.paused, resumed.policy_version) == (False, "step-2")
        with pytest.raises(dressage.InvalidRequestError):
            client.probe_endpoint("vllm")
        with pytest.raises(dressage.NotFoundError):
            client.endpoint("none")


def test_the_document_under_test_is_that_of_the_program(server: Server) -> None:
    assert httpx.get(f"{server.url}/openapi.json", trust_env=False).json() == test_operations.document()


def test_what_is_wrong_is_said(client: Client) -> None:
    with pytest.raises(dressage.InvalidRequestError) as caught:
        client.submit({"instruction": "x", "agent": {"nam": "y"}}, endpoint="demo")
    assert caught.value.code == "invalid_request"
    assert caught.value.details[0].path == "task.agent.nam"
    assert caught.value.hint == "did you mean `agent.name`?"
    for id_ in ("nothing", "../queue", "0199d5a0-0000-7000-8000-000000000000"):
        with pytest.raises(dressage.NotFoundError):
            client.get(id_)
    with pytest.raises(dressage.InvalidRequestError):
        client.page(limit=0)
    with pytest.raises(dressage.InvalidRequestError):
        client.submit("x", endpoint="no-such-endpoint")


def test_a_server_can_want_a_key(data_dir: Path) -> None:
    key = "0123456789abcdef0123"
    with dressage.serve(data_dir=data_dir / "keyed", api_key=key) as server:
        with server.client() as client:
            assert client.queue().waiting == 0
        with pytest.raises(dressage.UnauthorizedError), Client(server.url) as client:
            client.queue()
        with pytest.raises(dressage.UnauthorizedError), Client(server.url, api_key="x" * 20) as client:
            client.queue()


# --- with the real agent ---


def failing(setup: str = "exit 3") -> dict[str, Any]:
    """A task that ends before its agent."""
    return {"instruction": "x", "setup": [setup]}


@agent
@pytest.mark.usefixtures("needs_agent")
def test_a_rollout_is_run_and_everything_of_it_is_read(client: Client) -> None:
    (submitted,) = client.submit(preset="binary_search", endpoint="demo", idempotency_key="once")
    (again,) = client.submit(preset="binary_search", endpoint="demo", idempotency_key="once")
    assert again.id == submitted.id
    with pytest.raises(dressage.ConflictError):
        client.submit(preset="fizzbuzz", endpoint="demo", idempotency_key="once")

    events = list(client.events(submitted.id))
    assert [told.sequence for told in events] == list(range(len(events)))
    assert isinstance(events[0].event, models.Queued)
    assert isinstance(events[-1].event, models.Finished)
    stages = [told.event.stage for told in events if isinstance(told.event, models.StageStarted)]
    assert stages == ["boot", "setup", "agent", "verify", "collect"]
    assert not [told for told in events if isinstance(told.event, models.OtherEvent)]
    middle = str(events[len(events) // 2].sequence)
    assert [told.sequence for told in client.events(submitted.id, after=middle)] == list(
        range(int(middle) + 1, len(events))
    )

    rollout = client.wait(submitted.id, timeout_s=PATIENCE_S)
    assert (rollout.reward, rollout.ended, rollout.fault, rollout.group) == (1.0, "completed", None, submitted.group)
    assert "binary_search.py" in rollout.files
    assert client.read_file(rollout.id, "binary_search.py").decode() == rollout.files["binary_search.py"]
    assert rollout.start is not None
    assert rollout.start.endpoint == "demo"
    assert client.logs(rollout.id).agent

    calls = client.calls(rollout.id)
    turns = client.trajectory(rollout.id).turns
    assert len(calls) == len(turns) == rollout.totals.calls
    assert sum(sum(turn.loss_mask or ()) for turn in turns) == rollout.totals.trainable_tokens > 0
    assert client.call(rollout.id, calls[0].index).node_id == turns[0].node_id
    assert client.native_trajectory(rollout.id)
    assert rollout.id in [listed.id for listed in client.rollouts(state="finished", group=submitted.group)]
    with pytest.raises(dressage.NotFoundError):
        client.read_file(rollout.id, "nothing.py")
    with pytest.raises(dressage.ConflictError):
        client.exec(rollout.id, "true")
    assert client.cancel(rollout.id).ended == "completed"


@agent
@pytest.mark.usefixtures("needs_agent")
def test_a_held_sandbox_takes_commands_files_and_a_verdict(client: Client) -> None:
    (submitted,) = client.submit(preset="binary_search", endpoint="demo", hold=True)
    held = client.wait(submitted.id, or_held=True, timeout_s=PATIENCE_S)
    assert held.is_held
    client.write_file(held.id, "sub dir/é.txt", "fünf")
    assert client.read_file(held.id, "/home/user/workdir/sub dir/é.txt").decode() == "fünf"
    ran = client.exec(held.id, 'cat "sub dir/é.txt"; echo $A; exit 4', env={"A": "b"})
    assert (ran.exit_code, ran.stdout) == (4, "fünfb\n")
    assert client.exec(held.id, "sleep 5", timeout_s=0.2).timed_out
    with pytest.raises(dressage.NotFoundError):
        client.read_file(held.id, "nothing")
    with pytest.raises(dressage.InvalidRequestError):
        client.finish(held.id, 7.0)
    client.finish(held.id, 0.25, {"why": "half"})
    with pytest.raises(dressage.ConflictError):
        client.finish(held.id, 0.5)
    over = client.wait(held.id, timeout_s=PATIENCE_S)
    assert over.reward == 0.25
    assert over.outcome is not None
    assert over.outcome.reward is not None
    assert (over.outcome.reward.source, over.outcome.reward.detail) == ("caller", {"why": "half"})


@agent
@pytest.mark.usefixtures("needs_agent")
def test_a_group_runs_and_a_task_can_be_cancelled(client: Client, server: Server) -> None:
    rollouts = client.run_all([{"preset": "binary_search", "endpoint": "demo", "n": 3}], timeout_s=PATIENCE_S)
    assert [(rollout.reward, rollout.sample) for rollout in rollouts] == [(1.0, 0), (1.0, 1), (1.0, 2)]
    assert len({rollout.group for rollout in rollouts}) == 1

    async def cancelled() -> None:
        async with AsyncClient(server.url) as asynchronous:
            task = {"instruction": "x", "setup": ["sleep 30"]}
            await asyncio.wait_for(asynchronous.run(task, endpoint="demo"), 1.0)

    with pytest.raises((TimeoutError, asyncio.TimeoutError)):
        asyncio.run(cancelled())
    latest = next(client.rollouts(limit=1))
    over = client.wait(latest.id, timeout_s=PATIENCE_S)
    assert (over.ended, over.reward) == ("cancelled", None)


@agent
@pytest.mark.usefixtures("needs_agent")
def test_setup_that_fails_is_data(client: Client) -> None:
    rollout = client.run(failing(), endpoint="demo", timeout_s=PATIENCE_S)
    assert (rollout.ended, rollout.reward) == ("setup_error", None)
    assert rollout.fault is not None
    assert (rollout.fault.code, rollout.fault.owner) == ("setup_command_failed", "task")


@agent
@pytest.mark.usefixtures("needs_agent")
def test_a_listener_outlives_a_server_that_is_killed(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = data_dir / "killed"
    with dressage.serve(port=port, data_dir=folder) as first, first.client() as client:
        (submitted,) = client.submit(failing("sleep 60"), endpoint="demo")
        told = client.events(submitted.id)
        seen = [next(told)]
        while not isinstance(seen[-1].event, models.CommandStarted):
            seen.append(next(told))
        os.killpg(first.pid, signal.SIGKILL)
        with dressage.serve(port=port, data_dir=folder):
            seen += told
            assert client.get(submitted.id).state == "interrupted"
            assert client.wait(submitted.id).reward is None
    assert [event.sequence for event in seen] == list(range(len(seen)))


def verifier(sandbox: SandboxHandle, task: OpenCodeTask) -> VerifyResult:
    ran = sandbox.exec(
        'python -c "import binary_search as b; print(b.binary_search([1, 2, 3], 2))"', cwd="/home/user/workdir"
    )
    return VerifyResult(env_reward=float(ran.stdout.strip() == "1"), done=True, metrics={"task": task.metadata})


def session_factory(server: Server, **options: Any) -> OpenCodeSessionFactory:
    options = {"mode": "transparent_proxy", "verifier": verifier, "server": server.url, **options}
    return OpenCodeSessionFactory(config=OpenCodeConfig(endpoint="demo", agent_timeout_s=600.0), **options)


def binary_search(client: Client) -> dict[str, Any]:
    task = next(preset.task for preset in client.presets() if preset.name == "binary_search")
    return {"instruction": task["instruction"], "metadata": {"task_id": "b1"}}


@agent
@pytest.mark.usefixtures("needs_agent")
def test_a_session_goes_from_task_to_trace_and_reward(client: Client, server: Server) -> None:
    factory = pickle.loads(pickle.dumps(session_factory(server, sampling={"temperature": 0.5})))  # noqa: S301
    session = factory.create(binary_search(client), seed=3, episode_id="e")
    assert session.wait_for_completion() == 0
    trace = session.fetch_training_trace()
    assert trace.turns
    assert all(turn.metadata["sampling_params"]["temperature"] == 0.5 for turn in trace.turns)
    entries = session.fetch_proxy_trace()
    assert len(entries) >= len(trace.turns)
    assert entries[0]["request"]["messages"]
    assert session.verify([]).env_reward == 1.0
    assert "def binary_search" in session.sandbox.read_text("/home/user/workdir/binary_search.py")
    assert session.sandbox.exists("/home/user/workdir/binary_search.py")
    assert not session.sandbox.exists("/home/user/workdir/nothing")
    job = session.sandbox.start_bg("sleep 60")
    with pytest.raises(TimeoutError):
        job.wait(0.3)
    assert job.pid > 0
    job.kill()
    assert job.wait(10.0) != 0
    session.close()
    session.close()
    assert session.rollout_id is not None
    over = client.wait(session.rollout_id, timeout_s=PATIENCE_S)
    assert (over.reward, over.task_id) == (1.0, "b1")
    assert over.start is not None
    assert over.start.task["metadata"] == {"task_id": "b1", "seed": 3, "episode_id": "e"}
    assert session.fetch_trace()
    # The same when it is over: late marks change nothing of a clean run.
    assert session.fetch_training_trace() == trace


@agent
@pytest.mark.usefixtures("needs_agent")
def test_a_session_whose_agent_runs_out_of_time(client: Client, server: Server) -> None:
    factory = OpenCodeSessionFactory(
        config=OpenCodeConfig(endpoint="demo", agent_timeout_s=0.5),
        mode="transparent_proxy",
        verifier=verifier,
        server=server.url,
    )
    session = factory.create(binary_search(client))
    with pytest.raises(TimeoutError):
        session.wait_for_completion()
    assert session.verify([]).env_reward is None
    session.close()
    assert session.rollout_id is not None
    assert client.wait(session.rollout_id, timeout_s=PATIENCE_S).reward is None


@agent
@pytest.mark.usefixtures("needs_agent")
def test_sessions_that_do_not_get_far_leave_nothing(client: Client, server: Server) -> None:
    with pytest.raises(RolloutFailedError, match="setup_command_failed"):
        session_factory(server).create({"instruction": "x", "setup_shell": "exit 3"})
    session = session_factory(server).create(binary_search(client))
    session.close()
    assert session.rollout_id is not None
    over = client.wait(session.rollout_id, timeout_s=PATIENCE_S)
    assert over.reward is None or over.ended == "completed"
    queue = client.queue()
    assert (queue.held, queue.waiting) == (0, 0)


@agent
@pytest.mark.usefixtures("needs_agent")
def test_the_environment_over_the_network(client: Client, server: Server) -> None:
    task = next(preset.task for preset in client.presets() if preset.name == "binary_search")
    with OpenCodeEnv(server.url) as env:
        env.reset()
        assert [tool["name"] for tool in env.list_tools()] == ["run_rollout"]
        result = env.run_rollout(
            endpoint="demo", instruction=task["instruction"], verify=["test -f binary_search.py"], task_id="t"
        )
        assert (result.reward, result.error, result.task_id) == (1.0, None, "t")
        assert result.training_trace().turns
        assert env.state().rollouts_completed == 1


@agent
@pytest.mark.usefixtures("needs_agent")
@pytest.mark.parametrize("name", ["quickstart", "dressage_client", "openenv_client"])
def test_an_example_prints_a_reward(name: str, data_dir: Path) -> None:
    if name == "openenv_client":
        pytest.importorskip("openenv")
    environment = {**os.environ, "DRESSAGE_DATA_DIR": str(data_dir / "example")}
    environment.pop("DRESSAGE_URL", None)
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "reward" in ran.stdout
    assert "1.0" in ran.stdout


def test_the_token_of_a_server_without_isolation_is_read(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = data_dir / "shared"
    with dressage.serve(data_dir=folder, arguments=["--allow-backend", "process"]) as server:
        with dressage.Client(server.url) as stranger, pytest.raises(dressage.UnauthorizedError):
            stranger.queue()
        with server.client() as client:
            assert client.queue().running == 0
        # So does a client in another process, of the server that the environment names.
        monkeypatch.setenv("DRESSAGE_URL", server.url)
        monkeypatch.setenv("DRESSAGE_DATA_DIR", str(folder))
        with dressage.Client() as client:
            assert client.queue().running == 0
    assert not (folder / "control-token").exists()


def test_the_module_is_the_program() -> None:
    ran = subprocess.run([sys.executable, "-m", "dressage", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("dressage ")
