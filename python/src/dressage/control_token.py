"""The control token, which a server asks for where its sandboxes could reach it.

Such a server makes it at its start, and writes it into its data directory, for its own user's eyes only.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

NAME = "control-token"

_DIGITS = re.compile(r"[0-9a-f]{64}")


def read(path: Path) -> str | None:
    """The token in a file; None where there is none, or where others than this user could have put it there."""
    try:
        with path.open() as file:
            state = os.fstat(file.fileno())
            text = file.read(128).strip()
    except (OSError, UnicodeDecodeError):
        return None
    is_private = state.st_uid == os.geteuid() and not stat.S_IMODE(state.st_mode) & 0o077
    return text if is_private and _DIGITS.fullmatch(text) else None


def of_this_machine() -> str | None:
    """That of the server of this user on its usual data directory, if it asks for one."""
    return read(data_dir() / NAME)


def data_dir() -> Path:
    """Where a server keeps its data unless it is told otherwise, as docs/configuration.md says."""
    if given := os.environ.get("DRESSAGE_DATA_DIR"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/lib/dressage")
    share = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (share if share.is_absolute() else Path.home() / ".local/share") / "dressage"
