"""Following events over connections that break: what was read, and what comes next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from . import errors, models, sse
from .api import PREFIX, parsed, rollout_path

SILENCE_S = 45.0
"""Seconds without a byte after which a connection is taken for dead; the server says something every 15."""

ATTEMPTS = 8
"""Connections in a row that bring nothing new, before following is given up."""

FIRST_PAUSE_S = 0.1
"""Seconds before the first new connection; twice as long before each further one."""

LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True)
class Missed:
    """Events of the stream of all rollouts are gone; what is shown must be read anew."""


class Follow:
    """The state of one listener. Nothing is given twice, and nothing is left out."""

    def __init__(self, rollout: str | None, after: str | None) -> None:
        self.rollout = rollout
        self._last = after or ""
        self._decoder = sse.Decoder()
        self._fruitless = 0
        self.is_over = False
        """Whether the last event of the rollout has come."""

    def arguments(self) -> dict[str, Any]:
        """Those of `httpx.Client.stream` for the next connection."""
        self._decoder = sse.Decoder()
        self._fruitless += 1
        path = "/events" if self.rollout is None else rollout_path(self.rollout, "events")
        headers = {"Accept": "text/event-stream"}
        if self._last:
            headers["Last-Event-ID"] = self._last
        timeout = httpx.Timeout(30.0, read=SILENCE_S)
        return {"method": "GET", "url": PREFIX + path, "headers": headers, "timeout": timeout}

    def feed(self, piece: bytes) -> Iterator[models.RolloutEvent | Missed]:
        """The events that are complete with this piece of the stream."""
        for message in self._decoder.feed(piece):
            if message.id:
                self._last = message.id
            self._fruitless = 0
            if message.event == "position":
                continue
            if message.event == "missed":
                yield Missed()
                continue
            event = parsed(models.RolloutEvent.model_validate_json, message.data)
            self.is_over = self.rollout is not None and event.event.type == "finished"
            yield event
            if self.is_over:
                return

    @property
    def was_fruitless(self) -> bool:
        """Whether the last connection brought nothing."""
        return self._fruitless > 0

    def pause_s(self, error: errors.DressageError | None) -> float:
        """Seconds to wait before the next connection, after one that ended or failed with `error`.

        Raises `error`, or `errors.ConnectionFailedError`, where another will not help.
        """
        if isinstance(error, errors.ApiError) and not isinstance(error, (errors.ServerError, errors.QueueFullError)):
            raise error
        if self._fruitless >= ATTEMPTS:
            raise error or errors.ConnectionFailedError("the events ended again and again")
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * float(1 << self._fruitless))
