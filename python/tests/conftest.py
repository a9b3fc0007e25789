"""What tests share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dressage import Server, follow, serve
from dressage import client as client_module

from .fake import FakeServer


@pytest.fixture
def fake() -> FakeServer:
    return FakeServer()


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Tests see no server of the environment and no token, and those of fakes do not wait."""
    for name in ("DRESSAGE_URL", "DRESSAGE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    if request.node.get_closest_marker("binary") is None:
        monkeypatch.setenv("DRESSAGE_DATA_DIR", str(tmp_path))
        monkeypatch.setattr(client_module, "FIRST_PAUSE_S", 0.001)
        monkeypatch.setattr(follow, "FIRST_PAUSE_S", 0.00001)


@pytest.fixture(scope="session")
def data_dir() -> Iterator[Path]:
    """A data directory that other users can enter, as which root's sandboxes run; pytest's folders cannot be."""
    with tempfile.TemporaryDirectory(prefix="dressage-") as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path


@pytest.fixture(scope="session")
def server(data_dir: Path) -> Iterator[Server]:
    """A server of the real program."""
    if not os.environ.get("DRESSAGE_BINARY"):
        pytest.skip("DRESSAGE_BINARY names no program")
    with serve(data_dir=data_dir) as running:
        yield running
