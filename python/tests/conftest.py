"""What tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dressage import Server, follow, serve
from dressage import client as client_module

from .fake import FakeServer


@pytest.fixture
def fake() -> FakeServer:
    return FakeServer()


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Tests see no server of the environment, and those of fakes do not wait."""
    for name in ("DRESSAGE_URL", "DRESSAGE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    if request.node.get_closest_marker("binary") is None:
        monkeypatch.setattr(client_module, "FIRST_PAUSE_S", 0.001)
        monkeypatch.setattr(follow, "FIRST_PAUSE_S", 0.00001)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the real program."""
    if not os.environ.get("DRESSAGE_BINARY"):
        pytest.skip("DRESSAGE_BINARY names no program")
    with serve(data_dir=tmp_path_factory.mktemp("data")) as running:
        yield running
