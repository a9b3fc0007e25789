"""Starts `dressage serve` in place of this process: OpenEnv's way of naming a server.

usage: server [--host HOST] [--port PORT] [further options of `dressage serve`]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys


def command(arguments: list[str]) -> list[str]:
    """The command line of the program. A Space is reached under a name of its own, which the server must know."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", default=os.environ.get("PORT", "8000"))
    given, further = parser.parse_known_args(arguments)
    program = os.environ.get("DRESSAGE_BINARY") or shutil.which("dressage")
    if program is None:
        sys.exit("error: the `dressage` program was not found\nhint: put it on PATH, or set DRESSAGE_BINARY")
    made = [program, "serve", "--host", given.host, "--port", given.port]
    if space := os.environ.get("SPACE_HOST"):
        made += ["--allow-host", space]
    return [*made, *further]


def app(*_: object) -> None:
    """There is no ASGI application: `openenv.yaml` has to name one, and the server is a program."""
    raise RuntimeError("start the server with `server`, or with `dressage serve`")


def main() -> None:
    """Becomes the program."""
    made = command(sys.argv[1:])
    os.execv(made[0], made)


if __name__ == "__main__":
    main()
