"""What can go wrong between a program and the server. A failing user program is a result and never an exception.

There is one class for each family of codes; `code` is the stable word of the server's list (docs/errors.md).
"""

from __future__ import annotations

from collections.abc import Mapping


class SandboxError(Exception):
    """A request failed. `message` says what to do; report `request_id`, which is in the server's log. `run_id` is that
    of a run that was begun and failed: its events have what the program printed."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int | None = None,
        request_id: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        run_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.request_id = request_id
        self.param = param
        self.retry_after = retry_after
        self.run_id = run_id

    def __str__(self) -> str:
        about = f"{self.code}, request {self.request_id}" if self.request_id else self.code
        return f"{self.message} ({about})"


class InvalidRequest(SandboxError):
    """The request breaks a rule; `param` names the argument."""


class AccessDenied(SandboxError):
    """The token is missing, wrong, or does not allow this."""


class NotFound(SandboxError):
    """There is no such thing."""


class NotSupported(NotFound):
    """The server has no such operation."""


class Conflict(SandboxError):
    """Its present state does not allow this."""


class LimitReached(SandboxError):
    """Too many bytes: of the request, the conversation, or the disk."""


class Busy(SandboxError):
    """The server accepts no more now; `retry_after` says in how many seconds to ask again."""


class ServerFailed(SandboxError):
    """The server, its engine or a runner failed."""


class ConnectionFailed(SandboxError):
    """The server was not reached, or the connection ended before the answer did."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message, code="connection_failed")
        self.sent = sent
        """The server may have received the request."""


class UnexpectedAnswer(SandboxError):
    """The answer is not one of this server, or is longer than accepted."""

    def __init__(self, message: str, *, status: int | None = None, request_id: str | None = None) -> None:
        super().__init__(message, code="unexpected_answer", status=status, request_id=request_id)


_BY_CODE: dict[str, type[SandboxError]] = {
    "bad_archive": InvalidRequest,
    "bad_skill": InvalidRequest,
    "body_timeout": InvalidRequest,
    "idempotency_key_reused": InvalidRequest,
    "invalid_argument": InvalidRequest,
    "invalid_request": InvalidRequest,
    "method_not_allowed": NotSupported,
    "packages_off": NotSupported,
    "packages_refused": InvalidRequest,
    "skills_off": NotSupported,
    "unsupported_media_type": InvalidRequest,
    "forbidden": AccessDenied,
    "insufficient_scope": AccessDenied,
    "unauthorized": AccessDenied,
    "conversation_not_found": NotFound,
    "file_not_found": NotFound,
    "not_found": NotSupported,
    "run_not_found": NotFound,
    "runner_not_found": NotFound,
    "session_not_found": NotFound,
    "skill_not_found": NotFound,
    "token_not_found": NotFound,
    "conversation_busy": Conflict,
    "file_busy": Conflict,
    "input_closed": Conflict,
    "not_a_file": Conflict,
    "precondition_failed": Conflict,
    "session_busy": Conflict,
    "session_ended": Conflict,
    "no_space": LimitReached,
    "quota_exceeded": LimitReached,
    "too_large": LimitReached,
    "input_full": Busy,
    "queue_full": Busy,
    "rate_limited": Busy,
    "sessions_full": Busy,
}
_BY_STATUS: dict[int, type[SandboxError]] = {
    401: AccessDenied,
    403: AccessDenied,
    404: NotFound,
    405: NotSupported,
    409: Conflict,
    412: Conflict,
    413: LimitReached,
    423: Conflict,
    429: Busy,
    507: LimitReached,
}
# Of a message that is shown, so that no answer fills a log.
_MESSAGE_CHARS_MAX = 4096


def family(code: str, status: int | None = None) -> type[SandboxError]:
    """The class of a code; that of the status for a code that this version does not know."""
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return InvalidRequest if status is not None and 400 <= status < 500 else ServerFailed


def of_problem(problem: Mapping[str, object], status: int, retry_after: float | None = None) -> SandboxError:
    """The error of a problem document (RFC 9457)."""
    code = str(problem.get("code", "unknown"))
    request, param, run = problem.get("requestId"), problem.get("param"), problem.get("runId")
    return family(code, status)(
        str(problem.get("detail", f"The server answered with status {status}."))[:_MESSAGE_CHARS_MAX],
        code=code,
        status=status,
        request_id=None if request is None else str(request),
        param=None if param is None else str(param),
        retry_after=retry_after,
        run_id=None if run is None else str(run),
    )


def of_run(error: Mapping[str, object], run_id: str) -> SandboxError:
    """Why the server could not run a program."""
    code = str(error.get("code", "internal"))
    message = str(error.get("message", "The server could not run the program."))[:_MESSAGE_CHARS_MAX]
    return family(code)(f"{message} [{run_id}]", code=code, run_id=run_id)
