"""Server-sent events, read from bytes however they are cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class ServerSentEvent:
    """One event of a stream."""

    event: str
    """Its type; `message` where the stream names none."""
    data: str
    id: str
    """The last id that the stream gave, with which it can be resumed; empty before the first."""


class Decoder:
    """Turns pieces of a stream into events. Any split of the bytes gives the same events.

    Lines end with LF or CRLF. Text such as U+2028, which `str.splitlines` would split at, is content. What the stream
    leaves unfinished at its end is no event.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._event = ""
        self._data: list[str] = []
        self._id = ""

    def feed(self, piece: bytes) -> Iterator[ServerSentEvent]:
        """The events that are complete with this piece."""
        # Looking only from here on for line ends keeps a long line in many pieces from being searched again and again.
        searched = len(self._buffer)
        self._buffer += piece
        while (end := self._buffer.find(b"\n", searched)) >= 0:
            line = bytes(self._buffer[:end]).removesuffix(b"\r").decode("utf-8", "replace")
            del self._buffer[: end + 1]
            searched = 0
            if line:
                self._field(line)
            elif (event := self._finish()) is not None:
                yield event

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value

    def _finish(self) -> ServerSentEvent | None:
        event, data = self._event or "message", self._data
        self._event, self._data = "", []
        return ServerSentEvent(event, "\n".join(data), self._id) if data else None
