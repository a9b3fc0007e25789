from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import dressage
from dressage import program, serve

SERVER = """
    import http.server, os, signal, sys, threading

    mode = os.environ["MODE"]
    if mode == "dies":
        sys.exit("error: the data directory is taken")
    ignored = 2 if mode == "stubborn" else 0
    stop = threading.Event()

    def asked(*_):
        global ignored
        ignored -= 1
        if ignored < 0:
            stop.set()

    signal.signal(signal.SIGTERM, asked)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            key = os.environ.get("DRESSAGE_API_KEYS") or TOKEN
            is_open = self.headers.get("authorization") == "Bearer " + key
            self.send_response(200 if self.path == "/health" or is_open else 401)
            self.end_headers()
            self.wfile.write(b'{"waiting": 0, "running": 0}')

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    TOKEN = "0123456789abcdef" * 4
    print("PID", os.getpid(), file=sys.stderr)
    if folder := os.environ.get("ASKS_IN"):
        path = folder + "/control-token"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(TOKEN + "\\n")
        print("note: rollouts of `process` could reach this server: it asks for the token in", path, file=sys.stderr)
    if mode != "silent":
        print("\\x1b[1mdressage serves\\x1b[0m on http://127.0.0.1:%d" % server.server_address[1], file=sys.stderr)
    print("x" * 300_000, file=sys.stderr, flush=True)
    stop.wait()
    print("stopped", file=sys.stderr)
"""


@pytest.fixture
def player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that plays `dressage serve`."""
    path = tmp_path / "dressage"
    path.write_text(f"#!{sys.executable}\n" + textwrap.dedent(SERVER))
    path.chmod(0o755)
    monkeypatch.setenv("DRESSAGE_BINARY", str(path))
    monkeypatch.setenv("MODE", "good")
    return path


def is_gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def process_of(output: str) -> int:
    return next(int(line.split()[1]) for line in output.splitlines() if line.startswith("PID"))


@pytest.mark.usefixtures("player")
def test_a_server_is_there_for_a_block_and_gone_behind_it() -> None:
    with serve(api_key="0123456789abcdef") as server:
        pid = process_of(server.output)
        with server.client() as client:
            assert client.queue().running == 0
        assert "0123456789abcdef" not in repr(server)
    assert not server.is_running
    assert is_gone(pid, within_s=0.2)
    assert server.output.endswith("stopped")


@pytest.mark.usefixtures("player")
def test_the_token_of_a_server_is_read_from_where_it_says(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    with serve(env={"ASKS_IN": str(folder)}) as server, server.client() as client:
        assert client.queue().running == 0
        assert server.api_key == "0123456789abcdef" * 4
        assert server.api_key not in repr(server) + server.output


@pytest.mark.usefixtures("player")
def test_a_server_is_stopped_where_the_block_fails() -> None:
    with pytest.raises(RuntimeError, match="mine"), serve() as server:
        raise RuntimeError("mine")
    assert is_gone(process_of(server.output), within_s=0.2)


@pytest.mark.usefixtures("player")
def test_a_server_that_will_not_stop_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE", "stubborn")
    with serve() as server:
        pid = process_of(server.output)
    assert is_gone(pid, within_s=0.2)


@pytest.mark.usefixtures("player")
def test_a_server_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE", "dies")
    with pytest.raises(dressage.ServeError, match=r"ended with 1; it wrote:\nerror: the data directory"), serve():
        pass


@pytest.mark.usefixtures("player")
def test_a_server_that_stays_silent_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODE", "silent")
    with pytest.raises(dressage.ServeError, match=r"did not answer within 1 s") as caught, serve(timeout_s=1.0):
        pass
    assert is_gone(process_of(str(caught.value)), within_s=0.2)


@pytest.mark.usefixtures("player")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None])
def test_a_server_ends_with_the_process_that_started_it(how: signal.Signals | None) -> None:
    script = "import dressage.server as s; c = s.shared_client(); print(s._shared.output, flush=True); input()"
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid = process_of(parent.stdout.readline())
    if how is None:
        parent.stdin.close()
    else:
        parent.send_signal(how)
    parent.stdout.close()
    parent.wait()
    assert is_gone(pid)


def test_the_program_is_found(player: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert program.find() == player
    monkeypatch.setenv("DRESSAGE_BINARY", str(tmp_path / "nothing"))
    with pytest.raises(dressage.ServeError, match="names"):
        program.find()
    monkeypatch.delenv("DRESSAGE_BINARY")
    monkeypatch.setattr(program, "_folders_of_scripts", lambda: [tmp_path / "none"])
    monkeypatch.setenv("PATH", str(player.parent))
    assert program.find() == player
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(dressage.ServeError, match="not found"):
        program.find()


def test_a_script_in_the_folder_of_scripts_is_not_the_program(player: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRESSAGE_BINARY")
    monkeypatch.setattr(program, "_folders_of_scripts", lambda: [player.parent])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(dressage.ServeError):
        program.find()


def test_the_module_becomes_the_program(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_text('#!/bin/sh\necho "$0 $*"\nexit 7\n')
    path.chmod(0o755)
    environment = {**os.environ, "DRESSAGE_BINARY": str(path)}
    ran = subprocess.run(
        [sys.executable, "-m", "dressage", "run", "a b"], env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (7, f"{path} run a b\n")
    environment["DRESSAGE_BINARY"] = str(tmp_path / "nothing")
    ran = subprocess.run(
        [sys.executable, "-m", "dressage"], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: DRESSAGE_BINARY names")
