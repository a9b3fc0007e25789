"""Sandboxes: which backend makes them, and what a verifier can do in one.

Upstream's backends make sandboxes in the trainer's process. Here the server makes them, so a backend only says which:
`E2BSandboxBackend()` is the server's `e2b`, with the key that the server has.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol, runtime_checkable

from ..client import Client
from ..errors import ConflictError, DressageError, NotFoundError

LONGEST_S = 86_400.0
"""Seconds that a command can take at most."""


@dataclass
class ExecResult:
    """What came of a command."""

    exit_code: int
    """124 after a timeout."""
    stdout: str
    stderr: str


@runtime_checkable
class BgJob(Protocol):
    """A command that runs in the background of a sandbox."""

    @property
    def pid(self) -> int:
        """Its process, in the sandbox."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its exit code; raises `TimeoutError` after `timeout` seconds."""

    def kill(self) -> None:
        """End it."""


@runtime_checkable
class SandboxHandle(Protocol):
    """A sandbox, as verifiers use it."""

    @property
    def sandbox_id(self) -> str:
        """Its name."""

    def exec(
        self,
        cmd: str,
        *,
        envs: dict[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = 60,
    ) -> ExecResult:
        """Run a shell command; `timeout` in seconds."""

    def start_bg(self, cmd: str, *, envs: dict[str, str] | None = None, cwd: str | None = None) -> BgJob:
        """Start one in the background."""

    def write_text(self, path: str, content: str) -> None:
        """Write a file; folders are made."""

    def read_text(self, path: str) -> str:
        """Read a file."""

    def exists(self, path: str) -> bool:
        """Tell whether something is there."""

    def kill(self) -> None:
        """End the sandbox."""


class SandboxNotReadyError(DressageError, RuntimeError):
    """The sandbox cannot be used now: the agent has not begun, or still works, or the sandbox is gone."""


class SandboxFileNotFoundError(DressageError, FileNotFoundError):
    """There is no such file."""


# --- backends ---


@dataclass(frozen=True)
class SandboxBackend:
    """A backend of the server by its name, with its image or template."""

    name: str
    image: str | None = None
    env: dict[str, str] = field(default_factory=dict, repr=False)
    """Variables that a server needs for it which is started here; never sent to one that runs elsewhere."""


def LocalSandboxBackend() -> SandboxBackend:  # noqa: N802 - it stands beside upstream's names
    """Sandboxes on the server's machine: the default of Dressage."""
    return SandboxBackend("local")


def DockerSandboxBackend(image: str | None = None) -> SandboxBackend:  # noqa: N802
    """Containers on the server's machine."""
    return SandboxBackend("docker", image)


def E2BSandboxBackend(  # noqa: N802
    *, api_key: str | None = None, template: str | None = None, sandbox_kwargs: dict[str, Any] | None = None
) -> SandboxBackend:
    """Sandboxes of E2B. `api_key` is for a server that is started here; others have their own."""
    _refuse(sandbox_kwargs)
    return SandboxBackend("e2b", template, {"E2B_API_KEY": api_key} if api_key else {})


def HFSandboxBackend(  # noqa: N802
    *,
    image: str | None = None,
    flavor: str = "cpu-basic",
    forward_hf_token: bool = False,
    sandbox_kwargs: dict[str, Any] | None = None,
) -> SandboxBackend:
    """Sandboxes of Hugging Face. The server's token never enters them."""
    _refuse(sandbox_kwargs)
    if flavor != "cpu-basic":
        raise ValueError("the flavor is a setting of the server")
    if forward_hf_token:
        raise ValueError("no token is put into a sandbox; put one into `extra_env` if the agent is to have it")
    return SandboxBackend("huggingface", image)


def _refuse(sandbox_kwargs: dict[str, Any] | None) -> None:
    if sandbox_kwargs:
        raise ValueError(f"the server makes the sandbox, and takes no {', '.join(sorted(sandbox_kwargs))}")


# --- handles ---


class StagedSandbox:
    """A sandbox that is not there yet: what is written is put into it before setup."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    @property
    def sandbox_id(self) -> str:
        """Empty: it has no name yet."""
        return ""

    def exec(
        self,
        cmd: str,
        *,
        envs: dict[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = 60,
    ) -> ExecResult:
        """Raise `SandboxNotReadyError`: what is to be run before the agent is the task's `setup_shell`."""
        raise SandboxNotReadyError(
            "the sandbox is made when the agent starts; put commands that come first into the task's `setup_shell`"
        )

    def start_bg(self, cmd: str, *, envs: dict[str, str] | None = None, cwd: str | None = None) -> BgJob:
        """Raise `SandboxNotReadyError`."""
        self.exec(cmd)
        raise AssertionError

    def write_text(self, path: str, content: str) -> None:
        """Keep a file for the sandbox."""
        self.files[path] = content

    def read_text(self, path: str) -> str:
        """Give a file that was written."""
        try:
            return self.files[path]
        except KeyError:
            raise SandboxFileNotFoundError(f"nothing was written to `{path}` yet") from None

    def exists(self, path: str) -> bool:
        """Whether a file was written."""
        return path in self.files

    def kill(self) -> None:
        """Forget the files."""
        self.files.clear()


class HeldSandbox:
    """The sandbox of a rollout after its agent, held for the caller; of one that is over, its collected files."""

    def __init__(self, client: Client, rollout: str, home: str) -> None:
        self._client = client
        self._rollout = rollout
        self._home = home.rstrip("/")

    def __repr__(self) -> str:
        return f"HeldSandbox(rollout={self._rollout!r})"

    @property
    def sandbox_id(self) -> str:
        """The rollout's id, by which the server knows the sandbox."""
        return self._rollout

    def exec(
        self,
        cmd: str,
        *,
        envs: dict[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = 60,
    ) -> ExecResult:
        """Run a shell command, apart from what the agent left; exit code 124 after `timeout` seconds."""
        limit = LONGEST_S if timeout is None else float(timeout)
        with _held():
            result = self._client.exec(self._rollout, cmd, timeout_s=limit, env=envs, cwd=cwd)
        return ExecResult(result.exit_code, result.stdout, result.stderr)

    def start_bg(self, cmd: str, *, envs: dict[str, str] | None = None, cwd: str | None = None) -> BgJob:
        """Start a shell command in the background; it ends with the hold at the latest."""
        return _BackgroundCommand(self, cmd, envs, cwd)

    def write_text(self, path: str, content: str) -> None:
        """Write a file; folders are made. A relative path is below the working directory."""
        with _held():
            self._client.write_file(self._rollout, path, content)

    def read_text(self, path: str) -> str:
        """Read a file; bytes that are no UTF-8 are replaced. Raises `FileNotFoundError`."""
        try:
            with _held():
                content = self._client.read_file(self._rollout, path)
        except NotFoundError as error:
            content = self._collected(path, error)
        return content.decode("utf-8", "replace")

    def exists(self, path: str) -> bool:
        """Whether something is there."""
        if self._client.get(self._rollout).is_held:
            return self.exec('test -e "$DRESSAGE_PATH"', envs={"DRESSAGE_PATH": path}).exit_code == 0
        try:
            self.read_text(path)
        except FileNotFoundError:
            return False
        return True

    def kill(self) -> None:
        """End the hold: what verify said stands. A rollout that still runs is cancelled."""
        release(self._client, self._rollout)

    def _collected(self, path: str, error: NotFoundError) -> bytes:
        """A file by its absolute path, where only collected ones are left, which have relative ones."""
        try:
            relative = PurePosixPath(path).relative_to(f"{self._home}/workdir")
            return self._client.read_file(self._rollout, str(relative))
        except (ValueError, NotFoundError):
            raise SandboxFileNotFoundError(f"there is no file `{path}`: {error.message}") from error


@contextmanager
def _held() -> Iterator[None]:
    """Says of a sandbox that is not held what it is."""
    try:
        yield
    except ConflictError as error:
        raise SandboxNotReadyError(error.message) from error


def release(client: Client, rollout: str, reward: float | None = None, detail: dict[str, Any] | None = None) -> None:
    """Ends a rollout, however far it is: a hold with `reward`, else by cancelling. One that is over stays as it is."""
    if client.get(rollout).is_held:
        client.finish(rollout, reward, detail)
    else:
        client.cancel(rollout)


class _BackgroundCommand:
    """A command whose request waits in a thread."""

    def __init__(self, sandbox: HeldSandbox, cmd: str, envs: dict[str, str] | None, cwd: str | None) -> None:
        self._sandbox = sandbox
        # By this variable the command's processes are found.
        self._mark = uuid.uuid4().hex
        self._envs = {**(envs or {}), "DRESSAGE_JOB": self._mark}
        self._result: ExecResult | None = None
        self._error: DressageError | None = None
        self._thread = threading.Thread(target=self._run, args=(cmd, cwd), daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Its first process in the sandbox; 0 where there is none."""
        found = self._sandbox.exec(_for_each_process(self._mark, "echo ${p#/proc/}"), timeout=10).stdout
        return int(found.split()[0]) if found.split() else 0

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise TimeoutError(f"the command did not end within {timeout} s")
        return self._result.exit_code

    def kill(self) -> None:
        if self._thread.is_alive():
            self._sandbox.exec(_for_each_process(self._mark, "kill -KILL ${p#/proc/}"), timeout=10)

    def _run(self, cmd: str, cwd: str | None) -> None:
        try:
            self._result = self._sandbox.exec(cmd, envs=self._envs, cwd=cwd, timeout=None)
        except DressageError as error:
            self._error = error


def _for_each_process(mark: str, then: str) -> str:
    """Shell text that does something with each process of a background command, as `$p` below /proc."""
    is_one = f"tr '\\0' '\\n' <$p/environ 2>/dev/null | grep -qx DRESSAGE_JOB={mark}"
    return f"for p in /proc/[0-9]*; do {is_one} && {then}; done; true"


__all__ = [
    "BgJob",
    "DockerSandboxBackend",
    "E2BSandboxBackend",
    "ExecResult",
    "HFSandboxBackend",
    "HeldSandbox",
    "LocalSandboxBackend",
    "SandboxBackend",
    "SandboxFileNotFoundError",
    "SandboxHandle",
    "SandboxNotReadyError",
    "StagedSandbox",
]
