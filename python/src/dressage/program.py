"""Where the `dressage` program is."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

from .errors import ServeError

NAME = "dressage"


def find() -> Path:
    """The program: DRESSAGE_BINARY, else the one of this package's wheel, else the one on PATH.

    Raises `ServeError` where there is none.
    """
    if given := os.environ.get("DRESSAGE_BINARY"):
        path = Path(given)
        if not os.access(path, os.X_OK):
            raise ServeError(f"DRESSAGE_BINARY names `{path}`, which is no program")
        return path
    for folder in _folders_of_scripts():
        path = folder / NAME
        if os.access(path, os.X_OK) and _is_program(path):
            return path
    if found := shutil.which(NAME):
        return Path(found)
    raise ServeError("the `dressage` program was not found: install the wheel, put it on PATH, or set DRESSAGE_BINARY")


def _folders_of_scripts() -> list[Path]:
    """Where pip puts scripts: of this environment, of the user, and beside a `--target` folder."""
    here = Path(__file__).resolve().parent.parent
    return [
        Path(sysconfig.get_path("scripts")),
        Path(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))),
        here / "bin",
    ]


def _is_program(path: Path) -> bool:
    """Whether it is a program and not a script, which might start this package again."""
    with path.open("rb") as file:
        return file.read(2) != b"#!"
