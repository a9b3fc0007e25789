"""TRL's own functions for sessions of agents, for the tests.

`openenv_harness` and `async_rollout_worker` are files of TRL as they were published. Where torch is not installed, the
heavy libraries that these files import are played: what the tests call of them uses none of it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

IS_WHOLE = find_spec("torch") is not None
"""Whether TRL is there with all that it needs."""

# TRL's own `trainer.utils` is among them: it is about tensors, and the harness takes names of callables from it.
_PLAYED = ("accelerate", "datasets", "pyarrow", "torch", "transformers", "triton", "trl.trainer.utils")

# Their `__init__` imports the trainers.
_PACKAGES = ("trl", "trl.experimental", "trl.experimental.async_grpo", "trl.trainer")


class _Played(MetaPathFinder, Loader):
    """Finds what is played, and makes modules whose members are mocks."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        is_played = any(name == played or name.startswith(f"{played}.") for played in _PLAYED)
        return ModuleSpec(name, self, is_package=True) if is_played else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)

        def member(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=f"{spec.name}.{name}")

        module.__dict__.update(__getattr__=member, __version__="5.24.0")
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def _played() -> Iterator[None]:
    """While it lasts, imports find what is played; afterwards nobody else does."""
    found = find_spec("trl")
    if found is None or found.origin is None:
        raise ImportError("trl is not installed")
    finder, root, before = _Played(), Path(found.origin).parent, set(sys.modules)
    sys.meta_path.insert(0, finder)
    for name in _PACKAGES:
        package = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "trl" or isinstance(getattr(sys.modules[name], "__loader__", None), _Played):
                del sys.modules[name]


def _module(name: str) -> Any:
    return importlib.import_module(f"trl.experimental.async_grpo.{name}")


if IS_WHOLE:
    openenv_harness, async_rollout_worker = _module("openenv_harness"), _module("async_rollout_worker")
    # TRL's logger wants it.
    importlib.import_module("accelerate").PartialState()
else:
    with _played():
        openenv_harness, async_rollout_worker = _module("openenv_harness"), _module("async_rollout_worker")
