"""What both clients share of HTTP: the settings, the form of a request, reading an answer within its bounds, and when a
request is repeated. It sends nothing itself."""

from __future__ import annotations

import json
import os
import random
from typing import Any
from urllib.parse import quote

import httpx

from . import errors
from ._steps import Answer, Call

ADDRESS = "http://localhost:8080"
RETRIES_MAX = 3
RETRY_AFTER_MAX_S = 30.0
_PROBLEM_BYTES_MAX = 1 << 20
# The server sends something every 15 s into a stream, and an answer that waits after at most 20 s.
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
# The server refused before it did anything.
_REFUSED = ("queue_full", "rate_limited", "input_full", "shutting_down", "held_elsewhere")
_GATEWAY_STATUSES = (502, 503, 504)


class Settings:
    """Where the server is and who asks."""

    def __init__(self, url: str | None, token: str | None) -> None:
        self.url = (url or os.environ.get("SANDBOX_URL") or ADDRESS).rstrip("/")
        try:
            parts = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise ValueError(f"the address of the server is not valid: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.host:
            raise ValueError(f"the address of the server must begin with http:// or https://, not {self.url!r}")
        found = token or os.environ.get("MCP_API_TOKEN")
        if not found:
            raise ValueError("there is no token: give token=..., or set MCP_API_TOKEN")
        if not found.isascii() or not found.isprintable():
            raise ValueError("the token must be printable ASCII")
        self._token = found

    def headers(self) -> dict[str, str]:
        # Bytes are counted as they are, so no encoding is accepted that would change their number.
        return {"Authorization": f"Bearer {self._token}", "Accept-Encoding": "identity"}


def request_parts(call: Call[Any]) -> dict[str, Any]:
    """What httpx's `build_request` is given, without the body that is streamed."""
    headers = dict(call.headers)
    parts: dict[str, Any] = {"method": call.method, "url": call.path, "headers": headers}
    if call.query:
        query = "&".join(f"{quote(name)}={quote(str(value), safe='')}" for name, value in call.query.items())
        parts["url"] = f"{call.path}?{query}"
    if call.json is not None:
        headers["Content-Type"] = "application/json"
        # A lone surrogate in a program stays an escape, which the server refuses with a sentence.
        parts["content"] = json.dumps(call.json).encode()
    if call.body is not None:
        headers.setdefault("Content-Type", "application/octet-stream")
        headers["Content-Length"] = str(call.body.length)
    return parts


class Receiver:
    """Takes an answer piece by piece: into memory, or into the call's sink."""

    def __init__(self, call: Call[Any], response: httpx.Response) -> None:
        self._call = call
        self._status = response.status_code
        self._headers = response.headers
        self._content = bytearray()
        self._received = 0
        self.sink = call.sink if response.is_success else None
        if self.sink is not None:
            self.sink.restart()
            length = response.headers.get("content-length", "")
            call.meter.expect(int(length) if length.isdecimal() else None)
            call.meter.again()

    def take(self, piece: bytes) -> None:
        self._received += len(piece)
        most = self._call.bytes_max if 200 <= self._status < 300 else _PROBLEM_BYTES_MAX
        if self.sink is not None:
            most = self.sink.bytes_max or self._received
        if self._received > most:
            raise errors.UnexpectedAnswer(
                f"The answer is longer than the {most} bytes that are accepted.", status=self._status
            )
        if self.sink is not None:
            self.sink.file.write(piece)
        else:
            self._content += piece

    def answer(self) -> Answer:
        if not 200 <= self._status < 300:
            raise self._error()
        return Answer(self._status, bytes(self._content), self._headers.get("x-request-id"))

    def _error(self) -> errors.SandboxError:
        after = self._headers.get("retry-after", "")
        retry_after = float(after) if after.isdecimal() else None
        try:
            problem = json.loads(self._content)
        except ValueError:
            problem = None
        if not isinstance(problem, dict):
            problem = {"requestId": self._headers.get("x-request-id")}
        return errors.of_problem(problem, self._status, retry_after)


def broken(error: httpx.HTTPError | httpx.StreamError | httpx.InvalidURL) -> errors.ConnectionFailed:
    """The error of a connection that failed."""
    unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol, httpx.InvalidURL)
    what = str(error) or type(error).__name__
    return errors.ConnectionFailed(f"The server did not answer: {what}.", sent=not isinstance(error, unsent))


def ended_early() -> errors.ConnectionFailed:
    """The error of a stream of events that ends before the run does."""
    return errors.ConnectionFailed("The stream of events ended before the run did.", sent=True)


class Retry:
    """When a request is repeated, and after how many seconds."""

    def __init__(self, retries: int) -> None:
        self._retries = retries

    def pause(
        self, error: errors.SandboxError, attempt: int, *, repeatable: bool, patient: bool = True
    ) -> float | None:
        """None if the error is final."""
        if attempt >= self._retries or not self._is_safe(error, repeatable, patient):
            return None
        asked = error.retry_after or 0.0
        if asked > RETRY_AFTER_MAX_S:
            return None
        backoff = 0.25 * 2.0**attempt * (1.0 + random.random())
        return max(asked, min(backoff, RETRY_AFTER_MAX_S))

    @staticmethod
    def _is_safe(error: errors.SandboxError, repeatable: bool, patient: bool) -> bool:
        if isinstance(error, errors.ConnectionFailed):
            return repeatable or not error.sent
        if error.code in _REFUSED:
            return patient
        return repeatable and error.code == "unknown" and error.status in _GATEWAY_STATUSES
