from __future__ import annotations

import random

import pytest

from dressage.sse import Decoder, ServerSentEvent

STREAM = (
    ": keep-alive\n\n"
    'id: 0\nevent: queued\ndata: {"a":"line\u2028separator \x0b\x0c\x85"}\n\n'
    "id: 1\r\nevent: agent\r\ndata: one\r\ndata: two\r\n\r\n"
    "data:é𝄞\n\n"
    "event: nothing\n\n"
    "retry: 5\nid: 2\n: comment\ndata: last\n\n"
    "data: unfinished\n"
).encode()

EVENTS = [
    ServerSentEvent("queued", '{"a":"line\u2028separator \x0b\x0c\x85"}', "0"),
    ServerSentEvent("agent", "one\ntwo", "1"),
    ServerSentEvent("message", "é𝄞", "1"),
    ServerSentEvent("message", "last", "2"),
]


def decode(pieces: list[bytes]) -> list[ServerSentEvent]:
    decoder = Decoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


def test_lines_end_at_line_feeds_only() -> None:
    assert decode([STREAM]) == EVENTS


@pytest.mark.parametrize("size", range(1, 12))
def test_any_size_of_pieces_gives_the_same(size: int) -> None:
    assert decode([STREAM[at : at + size] for at in range(0, len(STREAM), size)]) == EVENTS


def test_any_two_cuts_give_the_same() -> None:
    chance = random.Random(7)  # noqa: S311 - not for secrets
    for _ in range(500):
        first, second = sorted(chance.choices(range(len(STREAM) + 1), k=2))
        assert decode([STREAM[:first], STREAM[first:second], STREAM[second:]]) == EVENTS
