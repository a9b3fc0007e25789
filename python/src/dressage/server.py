"""Local servers: started, waited for, and stopped with nothing left."""

from __future__ import annotations

import atexit
import os
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.util import Finalize
from pathlib import Path

from . import control_token, program
from .client import Client
from .errors import ServeError

# Runs the server until standard input ends, which it does when this process closes it, exits, or is killed. The first
# signal stops taking rollouts, the second cancels those that run, the third hurries.
_GUARDED = """
exec 3<&0
"$@" </dev/null 3<&- &
server=$!
(
    while read -r line <&3; do :; done
    for signal in TERM TERM TERM KILL; do
        kill -$signal $server
        for tenth in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
            sleep 0.1
        done
    done
) >/dev/null 2>&1 &
guard=$!
exec 3<&-
wait $server
code=$?
kill $guard 2>/dev/null
exit $code
"""

_ADDRESS = re.compile(r"http://[^\s\x1b\"]+")

# Said before the address.
_TOKEN = re.compile(r"it asks for the token in (/[^\x1b\"]+)")


class Server:
    """A `dressage serve` of this process, on a free port of the loopback address."""

    def __init__(self, process: subprocess.Popen[bytes], api_key: str | None) -> None:
        self._process = process
        self._api_key = api_key
        self._url: str | None = None
        self._said: deque[str] = deque(maxlen=50)
        self._heard = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="dressage-serve", daemon=True)
        self._listener.start()

    def __repr__(self) -> str:
        return f"Server({self._url!r}, pid={self.pid})"

    @property
    def url(self) -> str:
        """Where it listens."""
        if self._url is None:
            raise ServeError("the server is not ready")
        return self._url

    @property
    def api_key(self) -> str | None:
        """What it asks callers for, if anything: the key that it was started with, else its control token."""
        return self._api_key

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def output(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self._said)

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._process.poll() is None

    def client(self, *, timeout_s: float = 30.0) -> Client:
        """A client of it."""
        return Client(self.url, api_key=self._api_key, timeout_s=timeout_s)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Waits until it answers. Raises `ServeError` where it ends or stays silent instead."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.is_running:
            if self._heard.wait(0.05) and self._url is not None:
                with self.client() as client:
                    if client.is_healthy():
                        return
                    time.sleep(0.02)
        code = self._process.poll()
        what = f"did not answer within {timeout_s:g} s" if code is None else f"ended with {code}"
        self._listener.join(1.0)
        raise ServeError(f"the server {what}; it wrote:\n{self.output}")

    def stop(self) -> None:
        """Cancels what runs, and waits until the process and its sandboxes are gone."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait()
        self._listener.join(1.0)

    def _listen(self) -> None:
        """Reads what it writes, so that it never waits for somebody to do so."""
        stream = self._process.stderr
        if stream is None:
            return
        with stream:
            for raw in stream:
                line = raw.decode("utf-8", "replace").rstrip()
                self._said.append(line)
                if self._api_key is None and (said := _TOKEN.search(line)):
                    self._api_key = control_token.read(Path(said.group(1).rstrip()))
                if self._url is None and (found := _ADDRESS.search(line)):
                    self._url = found.group().rstrip("/.,")
                    self._heard.set()
        self._heard.set()


def start(
    *,
    port: int = 0,
    arguments: Sequence[str] = (),
    data_dir: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    api_key: str | None = None,
    timeout_s: float = 30.0,
) -> Server:
    """Starts `dressage serve` and waits until it answers. Whoever starts it stops it; `serve` does both.

    Port 0 is a free one. `arguments` are further ones of `dressage serve`, `env` goes over the environment. With an
    `api_key`, of at least 16 characters, callers need it. Raises `ServeError`.
    """
    environment = {**os.environ, "NO_COLOR": "1", **(env or {})}
    if api_key is not None:
        environment["DRESSAGE_API_KEYS"] = api_key
    if data_dir is not None:
        environment["DRESSAGE_DATA_DIR"] = str(data_dir)
    command = [str(program.find()), "serve", "--port", str(port), "--grace", "0", *arguments]
    process = subprocess.Popen(  # noqa: S603 - the shell's text is fixed, the rest are its arguments
        ["/bin/sh", "-c", _GUARDED, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        # Ctrl-C is for this process, which then stops the server in an orderly way.
        start_new_session=True,
    )
    server = Server(process, api_key)
    try:
        server.wait_until_ready(timeout_s)
    except BaseException:
        server.stop()
        raise
    return server


@contextmanager
def serve(
    *,
    port: int = 0,
    arguments: Sequence[str] = (),
    data_dir: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    api_key: str | None = None,
    timeout_s: float = 30.0,
) -> Iterator[Server]:
    """A local server for the length of a `with` block; see `start` for the arguments.

    On the way out, what still runs is cancelled and cleaned up.
    """
    server = start(port=port, arguments=arguments, data_dir=data_dir, env=env, api_key=api_key, timeout_s=timeout_s)
    try:
        yield server
    finally:
        server.stop()


_shared: Server | None = None
_shared_lock = threading.Lock()


def shared_client(*, env: Mapping[str, str] | None = None) -> Client:
    """A client of the server of DRESSAGE_URL; without one, of a server that this process starts once, until its end."""
    if os.environ.get("DRESSAGE_URL"):
        return Client()
    global _shared  # noqa: PLW0603 - one for the process
    with _shared_lock:
        if _shared is None or not _shared.is_running:
            _shared = start(env=env)
            atexit.register(_shared.stop)
            # Children of `multiprocessing` do not run what is registered with atexit.
            Finalize(None, _shared.stop, exitpriority=0)
        return _shared.client()
