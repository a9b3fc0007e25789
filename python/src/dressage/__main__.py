"""`python -m dressage`: becomes the `dressage` program."""

from __future__ import annotations

import os
import sys

from . import program
from .errors import ServeError


def main() -> None:
    """Replaces this process by the program, with the same arguments."""
    try:
        path = str(program.find())
    except ServeError as error:
        sys.exit(f"error: {error}")
    # No shell is involved, and the path is the one that was found.
    os.execv(path, [path, *sys.argv[1:]])  # noqa: S606


if __name__ == "__main__":
    main()
