"""TRL 1.16's own functions take what sessions give, unchanged.

`scripts/python-tests` runs this with TRL's harness alone, `scripts/trl-tests` with all of TRL.
"""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from dressage import Server
from dressage.openenv import OpenCodeConfig, OpenCodeSessionFactory

from .fake import FakeServer, failed_turn, fault, finished, reply, row, turn
from .openenv.test_harness import verifier

pytest.importorskip("trl", reason="trl is not installed: scripts/python-tests and scripts/trl-tests do so")
pytest.importorskip("openenv.core.harness.training", reason="no openenv 0.10: scripts/python-tests installs it")

from .trl_harness import async_rollout_worker, openenv_harness

R = "/api/v1/rollouts"
HELD = row(held_until_unix_ms=9)


@pytest.fixture
def make_loop() -> Iterator[Callable[..., Any]]:
    """Makes TRL's rollout loop for sessions, without its process and its model."""
    loops = []

    def make(factory_builder: Callable[..., Any]) -> Any:
        loop = openenv_harness._HarnessRolloutLoop(
            harness_session_factory=factory_builder,
            model_name="test",
            dataset=[{"prompt": [{"role": "user", "content": "answer"}]}],
            reward_funcs=[],
            processing_class=MagicMock(eos_token_id=0, pad_token_id=0),
            eos_token_ids=[0],
            rollout_buffer=queue.Queue(),
            model_version_value=SimpleNamespace(value=0),
            heartbeat_value=SimpleNamespace(value=0.0),
            failed_event=threading.Event(),
            exception_info_queue=queue.Queue(),
            metrics_queue=queue.Queue(),
            max_inflight_tasks=4,
            temperature=0.8,
        )
        loops.append(loop)
        return loop

    yield make
    for loop in loops:
        loop._session_pool.shutdown(wait=True)
        loop._loop.close()


def builder(fake: FakeServer) -> Callable[..., Any]:
    """What TRL calls with `sampling=` of its policy."""

    def build(**options: Any) -> OpenCodeSessionFactory:
        made = partial(
            OpenCodeSessionFactory,
            config=OpenCodeConfig(endpoint="demo", agent_timeout_s=5.0),
            mode="transparent_proxy",
            verifier=verifier,
            create_attempts=1,
        )(**options)
        made._client = fake.client()
        return made

    return build


def played(fake: FakeServer, *states: dict[str, Any], turns: list[dict[str, Any]]) -> FakeServer:
    fake.on("POST", R, reply(202, rollouts=[{"id": "r1"}]))
    fake.on("GET", f"{R}/r1", *(reply(**state) for state in (row(stage="agent"), *states)))
    fake.on("GET", f"{R}/r1/trajectory", reply(rollout="r1", turns=turns))
    fake.on("POST", f"{R}/r1/exec", reply(exit_code=0, stdout="42"))
    fake.on("POST", f"{R}/r1/finish", reply(202, **row()))
    fake.on("POST", f"{R}/r1/cancel", reply(202, **row()))
    return fake


TURNS = [
    turn(0, [1, 2], [3, 4]),
    turn(1, [9], [8], role="auxiliary", loss_mask=[0, 0]),
    turn(2, [1, 2, 3, 4, 5], [6]),
    # OpenCode wrote the arguments of its tool call anew: the prompt breaks inside the completion before.
    turn(3, [1, 2, 3, 4, 5, 7, 10], [11, 12]),
]


def test_each_sampled_token_is_trained_once(fake: FakeServer, make_loop: Callable[..., Any]) -> None:
    loop = make_loop(builder(played(fake, HELD, turns=TURNS)))
    assert loop._factory.sampling == {
        "temperature": 0.8,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
    }
    (_, completion_ids, rows, calls, failures, reward), metrics = loop._run_session(
        [{"role": "user", "content": "answer"}], group_id=3
    )
    assert reward == 1.0
    assert completion_ids == [3, 4, 6, 11, 12]
    assert [(made.input_ids, made.completion_mask) for made in rows] == [
        ([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1]),
        ([1, 2, 3, 4, 5, 7, 10, 11, 12], [0, 0, 0, 0, 0, 0, 0, 1, 1]),
    ]
    assert rows[0].old_log_probs == [0.0, 0.0, -0.5, -0.5, 0.0, -0.5]
    assert (calls, failures, metrics["turns"], metrics["tally"]["fork"]) == (0, 0, 3, 1.0)
    sent = fake.sent("POST", R)[0]["task"]
    assert sent["sampling"] == loop._factory.sampling
    assert sent["metadata"]["seed"] == 3
    assert fake.sent("POST", f"{R}/r1/finish")[0]["reward"] == 1.0


def test_turns_and_sequences_are_trls_own(fake: FakeServer) -> None:
    session = builder(played(fake, HELD, turns=TURNS))().create("answer")
    turns = openenv_harness._turns_from_training_trace(session.fetch_training_trace())
    assert [(made.prompt_ids, made.output_ids, made.output_mask) for made in turns] == [
        ([1, 2], [3, 4], [1, 1]),
        ([1, 2, 3, 4, 5], [6], [1]),
        ([1, 2, 3, 4, 5, 7, 10], [11, 12], [1, 1]),
    ]
    rows, _ = async_rollout_worker._chain_to_sequences(turns, "r1", 0)
    assert sum(sum(made.completion_mask) for made in rows) == 5


def test_a_timeout_keeps_its_turns_and_has_no_reward(fake: FakeServer, make_loop: Callable[..., Any]) -> None:
    over = finished(ended="timeout", reward=None, fault=fault("agent_timeout", "agent"))
    loop = make_loop(builder(played(fake, over, turns=TURNS[:1])))
    (_, completion_ids, rows, _, _, reward), metrics = loop._run_session("answer")
    assert (completion_ids, len(rows), reward, metrics["loop_exhausted"]) == ([3, 4], 1, None, True)


def test_a_failed_rollout_is_unscorable_and_the_worker_goes_on(fake: FakeServer, make_loop: Callable[..., Any]) -> None:
    over = finished(ended="agent_error", reward=None, fault=fault("upstream_failed", "upstream"))
    loop = make_loop(builder(played(fake, over, turns=[failed_turn(0)])))
    (*nothing, reward), metrics = loop._run_session("answer")
    assert (nothing, reward, metrics) == ([[], [], [], 0, 0], None, None)


def test_an_endpoint_without_tokens_stops_the_worker(fake: FakeServer, make_loop: Callable[..., Any]) -> None:
    text = turn(0, [], [], prompt_token_ids=None, loss_mask=None, flags=["prompt_ids_missing"])
    loop = make_loop(builder(played(fake, HELD, turns=[text])))
    with pytest.raises(openenv_harness.CaptureContractError, match="prompt_ids_missing"):
        loop._run_session("answer")


@pytest.mark.binary
@pytest.mark.agent
def test_the_real_agent_goes_all_the_way(server: Server, make_loop: Callable[..., Any]) -> None:
    """From TRL's loop through the real program and the real agent to rows that TRL trains on."""
    client = server.client()
    if not any(known.installed for known in client.agents()):
        pytest.skip("opencode is not installed")
    task = next(preset.task for preset in client.presets() if preset.name == "binary_search")
    made = partial(
        OpenCodeSessionFactory,
        config=OpenCodeConfig(endpoint="demo", agent_timeout_s=600.0),
        mode="transparent_proxy",
        tasks={task["instruction"]: {"instruction": task["instruction"], "verify": task["verify"]}},
        server=server.url,
    )
    loop = make_loop(pickle.loads(pickle.dumps(made)))  # noqa: S301
    prompt = [{"role": "user", "content": task["instruction"]}]
    (messages, completion_ids, rows, calls, _, reward), metrics = loop._run_session(prompt, group_id=1)
    rollout = client.get(next(client.rollouts(limit=1)).id)
    assert (reward, rollout.reward) == (1.0, 1.0)
    assert sum(sum(made.completion_mask) for made in rows) == rollout.totals.trainable_tokens == len(completion_ids)
    assert all(len(made.input_ids) == len(made.completion_mask) == len(made.old_log_probs) for made in rows)
    assert calls > 0
    assert metrics["turns"] == rollout.totals.trainable_calls
    assert messages[-1]["role"] == "assistant"


def test_the_factory_goes_to_the_process_of_the_worker() -> None:
    made = partial(
        OpenCodeSessionFactory,
        config=OpenCodeConfig(endpoint="demo"),
        mode="transparent_proxy",
        verifier=verifier,
        server="http://dressage.test",
    )
    sampling = {"temperature": 0.8, "top_k": -1}
    there = pickle.loads(pickle.dumps(made))(sampling=sampling)  # noqa: S301
    # TRL before 1.16 takes the factory itself.
    again = pickle.loads(pickle.dumps(there))  # noqa: S301
    for factory in (there, again):
        assert (factory.sampling, factory._verifier, factory._mode) == (sampling, verifier, "transparent_proxy")


def test_entries_are_what_trl_read_before(fake: FakeServer) -> None:
    """Before 1.16 TRL read messages, tools, ids and log-probabilities of each entry."""
    session = builder(played(fake, HELD, turns=[*TURNS, failed_turn(9)]))().create("answer")
    session.wait_for_completion()
    entries = session.fetch_proxy_trace()
    # It dropped what has no messages or no response.
    kept = [entry for entry in entries if entry["request"].get("messages") and entry["response"]]
    assert [entry["turn"] for entry in kept] == [1, 2, 3, 4]
    assert openenv_harness._messages_from_trace(kept[:1]) == [
        {"role": "user", "content": "task"},
        {"role": "assistant", "content": "ok"},
    ]
    assert openenv_harness._tool_call_counts_by_name(kept) == {}
    agents = [entry for entry in kept if entry["role"] == "agent"]
    turns = [
        async_rollout_worker.TurnRecord(
            entry["prompt_token_ids"], entry["completion_token_ids"], entry["per_token_logps"]
        )
        for entry in agents
    ]
    assert all(len(turn.output_ids) == len(turn.output_log_probs) for turn in turns)
    rows, _ = async_rollout_worker._chain_to_sequences(turns, "r1", 0)
    assert [sum(made.completion_mask) for made in rows] == [3, 2]
    assert session.verify([]).env_reward == 1.0
