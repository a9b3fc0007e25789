from __future__ import annotations

from typing import Any

import pytest

from dressage.models import Turn
from dressage.openenv import RolloutResult, TrainingTrace, TrainingTurn, standalone
from dressage.openenv.training import trace_entries, training_trace

from ..fake import failed_turn, turn


def turns(*members: dict[str, Any]) -> list[Turn]:
    return [Turn.model_validate(member) for member in members]


def test_the_agents_turns_are_trained_and_nothing_else() -> None:
    trace = training_trace(
        turns(
            turn(0, [1, 2], [3, 4]),
            turn(1, [9], [8], role="auxiliary", loss_mask=[0, 0]),
            failed_turn(2),
            turn(3, [1, 2, 3, 4, 5], [6], loss_mask=[0] * 6, flags=["superseded"]),
            turn(4, [1, 2, 3, 4, 5], [7]),
        )
    )
    assert isinstance(trace, TrainingTrace)
    assert [made.node_id for made in trace.turns] == ["r1:0", "r1:3", "r1:4"]
    assert [sum(made.loss_mask) for made in trace.turns] == [2, 0, 1]
    assert trace.turns[0].request["messages"][0]["content"] == "task"
    assert trace.turns[1].metadata["flags"] == ["superseded"]
    entries = trace.to_trace_entries()
    assert entries[2]["metadata"]["node_id"] == "r1:4"
    assert entries[2]["metadata"]["parent_node_id"] == "r1:3"


@pytest.mark.parametrize(
    "broken",
    [
        {"prompt_token_ids": None, "loss_mask": None, "flags": ["prompt_ids_missing"]},
        {"per_token_logps": [], "loss_mask": [0, 0], "flags": ["logprob_invalid"]},
        {"per_token_logps": [0.5], "loss_mask": [0, 0], "flags": ["logprob_invalid"]},
        {"per_token_logps": [-0.5, -0.5], "loss_mask": [0, 0], "flags": ["length_mismatch"]},
    ],
)
def test_a_turn_that_is_not_captured_whole_is_never_guessed_at(broken: dict[str, Any]) -> None:
    whole, part = turn(0, [1], [2]), turn(1, [1], [2], **broken)
    assert [made.node_id for made in training_trace(turns(whole, part)).turns] == ["r1:0"]
    # An endpoint that gives no tokens at all is a mistake that must not pass for a run without turns.
    with pytest.raises(ValueError, match=broken["flags"][0]):
        training_trace(turns(part))


def test_a_rollout_without_a_successful_call_is_a_failure_and_no_contract_violation() -> None:
    for members in ([], [failed_turn(0)], [turn(0, [1], [2], role="auxiliary")]):
        with pytest.raises(RuntimeError, match="no model call"):
            training_trace(turns(*members))


def test_records_for_viewers_have_every_call_in_order() -> None:
    entries = trace_entries(turns(turn(0, [1], [2]), failed_turn(1)))
    assert [entry["turn"] for entry in entries] == [1, 2]
    assert entries[0]["response"]["choices"][0]["message"]["content"] == "ok"
    assert entries[0]["completion_token_ids"] == [2]
    assert entries[1]["response"] == {}
    assert entries[1]["upstream_error"]["message"] == "503"


def test_the_result_of_a_rollout_gives_the_same() -> None:
    result = RolloutResult.model_validate({"proxy_turns": [turn(0, [1, 2], [3])], "reward": None})
    assert result.reward is None
    assert result.training_trace() == training_trace(turns(turn(0, [1, 2], [3])))


def test_a_turn_of_an_upstream_server_has_no_tokens_to_train_on() -> None:
    upstream = {"turn": 1, "finish_reason": "stop", "completion_token_ids": [], "per_token_logps": [-0.1]}
    result = RolloutResult.model_validate({"proxy_turns": [upstream]})
    with pytest.raises(ValueError, match="no turn was captured"):
        result.training_trace()


# --- our own copy of the contract, for where openenv is not installed ---

GOOD: dict[str, Any] = {
    "node_id": "a",
    "prompt_token_ids": [1, 2],
    "completion_token_ids": [3, 4, 5],
    "per_token_logps": [-0.1, -0.2, -0.3],
    "loss_mask": [0, 0, 1, 0, 1],
}


@pytest.mark.parametrize("kind", [TrainingTurn, standalone.TrainingTurn])
@pytest.mark.parametrize(
    "changes",
    [
        {"loss_mask": None},
        {"loss_mask": [0, 0, 1]},
        {"loss_mask": [1, 0, 1, 0, 1]},
        {"loss_mask": [0, 0, True, 0, 1]},
        {"loss_mask": [0, 0, 2, 0, 1]},
        {"completion_token_ids": [3, True, 5]},
        {"completion_token_ids": [3, -1, 5]},
        {"per_token_logps": []},
        {"per_token_logps": [-0.1, float("nan"), -0.3]},
        {"per_token_logps": [-0.1, 0.2, -0.3]},
        {"prompt_token_ids": []},
        {"node_id": ""},
        {"surplus": 1},
    ],
)
def test_both_contracts_refuse_the_same(kind: Any, changes: dict[str, Any]) -> None:
    assert kind(**GOOD).loss_mask == [0, 0, 1, 0, 1]
    with pytest.raises(ValueError, match="validation error"):
        kind(**{**GOOD, **changes})


def test_a_call_is_trained_once() -> None:
    once = standalone.TrainingTurn(**GOOD)
    with pytest.raises(ValueError, match="twice"):
        standalone.TrainingTrace(turns=[once, once])
