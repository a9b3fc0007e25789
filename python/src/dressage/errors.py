"""What can go wrong, as one hierarchy: everything that this package raises is a `DressageError`.

Failures of *rollouts* are data, not exceptions: see `dressage.Rollout.fault`.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Detail(NamedTuple):
    """A place of a request that is wrong."""

    path: str
    """The key with those above it, such as `rollouts[2].task.agent.nam`."""
    message: str
    """What is wrong there."""


class DressageError(Exception):
    """Something was not done."""


class ServeError(DressageError):
    """A local server could not be started, or its program was not found."""


class ConnectionFailedError(DressageError, ConnectionError):
    """The server could not be reached, or the connection broke off."""


class TimedOutError(DressageError, TimeoutError):
    """An answer or the end of a rollout did not come in time. What was asked for may still happen."""


class ApiError(DressageError):
    """The server said no."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str = "",
        hint: str | None = None,
        details: tuple[Detail, ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        """What failed, on which object."""
        self.status = status
        """HTTP status."""
        self.code = code
        """A stable word for branching on, such as `queue_full`; empty where the server gave none."""
        self.hint = hint
        """What may help."""
        self.details = details
        """The places of the request that are wrong."""
        self.retry_after_s = retry_after_s
        """Seconds after which to try again, where the server said so."""

    def __str__(self) -> str:
        text = f"{self.message} ({self.code or self.status})"
        return f"{text}\nhint: {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles with everything that it says: trainers run rollouts in other processes."""
        return (_rebuilt, (type(self), self.message, self.__dict__))


class InvalidRequestError(ApiError):
    """A key or value of the request is wrong; `details` says where."""


class UnauthorizedError(ApiError):
    """An API key is missing, wrong, or not enough."""


class NotFoundError(ApiError):
    """There is no such rollout, call, file or route."""


class ConflictError(ApiError):
    """The rollout is not in the state for this, or an idempotency key was used for something else."""


class QueueFullError(ApiError):
    """So many rollouts wait already; `retry_after_s` says when to try again."""


class ServerError(ApiError):
    """The server failed, is stopping, or its sandbox did not do what it was asked for."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidRequestError,
    401: UnauthorizedError,
    403: UnauthorizedError,
    404: NotFoundError,
    405: NotFoundError,
    409: ConflictError,
    413: InvalidRequestError,
    415: InvalidRequestError,
    422: InvalidRequestError,
    429: QueueFullError,
}


def from_reply(status: int, body: object, retry_after: str | None = None) -> ApiError:
    """The error that a reply tells of, whatever its body is."""
    error = body.get("error") if isinstance(body, dict) else None
    told: dict[str, Any] = error if isinstance(error, dict) else {}
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    details = tuple(
        Detail(str(detail.get("path", "")), str(detail.get("message", "")))
        for detail in told.get("details") or ()
        if isinstance(detail, dict)
    )
    return kind(
        str(told.get("message") or f"the server answered with status {status}"),
        status=status,
        code=str(told.get("code") or ""),
        hint=told.get("hint"),
        details=details,
        retry_after_s=_seconds(retry_after),
    )


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text is not None else None
    except ValueError:
        return None


def _rebuilt(kind: type[ApiError], message: str, members: dict[str, Any]) -> ApiError:
    error = kind(message, status=members["status"])
    error.__dict__.update(members)
    return error
