"""Turns of a rollout in the two forms that TRL reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from pydantic import ValidationError

from .contract import TrainingTrace, TrainingTurn


class CapturedTurn(Protocol):
    """What is read of a turn: that of the REST API and that of `run_rollout` both have it."""

    turn: int
    node_id: str
    parent_node_id: str | None
    role: str
    finish_reason: str | None
    prompt_token_ids: list[int] | None
    completion_token_ids: list[int]
    completion_tokens: list[str]
    per_token_logps: list[float]
    loss_mask: list[int] | None
    request: dict[str, Any] | None
    response: dict[str, Any] | None
    flags: list[str]
    metadata: dict[str, Any]
    latency_s: float
    timestamp: float
    upstream_error: dict[str, Any] | None


def training_trace(turns: Sequence[CapturedTurn]) -> TrainingTrace:
    """The agent's own turns as TRL 1.16 wants them: engine ids, log-probabilities, masks, and nothing made up.

    Titles, summaries, sub-agents and foreign calls are left out, and so are calls that did not succeed. A turn that is
    not to be trained stays, with a mask of zeros. A turn whose capture is not whole (`flags` say why) is left out: in
    the prompts of later turns its tokens are there all the same.

    Raises `ValueError` where not one turn was captured in tokens: training cannot begin so, and TRL stops. Raises
    `RuntimeError` where not one call succeeded: that is a failed rollout, and TRL goes on without it.
    """
    succeeded = [turn for turn in turns if turn.role == "agent" and _has_succeeded(turn)]
    if not succeeded:
        raise RuntimeError("no model call of the agent succeeded")
    trained = [made for turn in succeeded if (made := _training_turn(turn)) is not None]
    if not trained:
        flags = sorted({flag for turn in succeeded for flag in turn.flags})
        levels = sorted({str(turn.metadata.get("level", "text")) for turn in succeeded})
        raise ValueError(
            f"no turn was captured in token ids with log-probabilities: level {', '.join(levels)}"
            f"{', flags ' + ', '.join(flags) if flags else ''}; the endpoint must return both"
        )
    return TrainingTrace(turns=trained)


def trace_entries(turns: Iterable[CapturedTurn]) -> list[dict[str, Any]]:
    """All turns as records with upstream's keys, in the order of recording; failed calls with an empty response."""
    return [
        {
            "turn": turn.turn,
            "request": turn.request or {},
            "response": turn.response if _has_succeeded(turn) and turn.response else {},
            "completion_tokens": turn.completion_tokens,
            "completion_token_ids": turn.completion_token_ids,
            "per_token_logps": turn.per_token_logps,
            "finish_reason": turn.finish_reason,
            "latency_s": turn.latency_s,
            "timestamp": turn.timestamp,
            "prompt_token_ids": turn.prompt_token_ids or [],
            "loss_mask": turn.loss_mask or [],
            "role": turn.role,
            "flags": turn.flags,
            "upstream_error": turn.upstream_error,
            "metadata": _metadata(turn),
        }
        for turn in turns
    ]


def _has_succeeded(turn: CapturedTurn) -> bool:
    return turn.upstream_error is None and turn.metadata.get("end", "complete") == "complete"


def _training_turn(turn: CapturedTurn) -> TrainingTurn | None:
    """The turn, if all of it was captured."""
    if not turn.prompt_token_ids or not turn.completion_token_ids or turn.loss_mask is None:
        return None
    try:
        return TrainingTurn(
            node_id=turn.node_id,
            prompt_token_ids=turn.prompt_token_ids,
            completion_token_ids=turn.completion_token_ids,
            per_token_logps=turn.per_token_logps,
            loss_mask=turn.loss_mask,
            request=turn.request or {},
            response=turn.response or {},
            metadata=_metadata(turn),
        )
    except ValidationError:
        return None


def _metadata(turn: CapturedTurn) -> dict[str, Any]:
    return {
        **turn.metadata,
        "node_id": turn.node_id,
        "parent_node_id": turn.parent_node_id,
        "flags": turn.flags,
        "finish_reason": turn.finish_reason,
    }
