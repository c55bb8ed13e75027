"""A scripted server. Requests that no script expects fail the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from mcp_sandbox import Sandbox

Handler = Callable[[httpx.Request], httpx.Response]
TOKEN = "0123456789abcdef-of-the-tests"


class Script(httpx.MockTransport):
    """Answers requests in order; remembers them and the pauses between them."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.bodies: list[bytes] = []
        self.pauses: list[float] = []
        self.answers: list[httpx.Response | Exception | Handler] = []
        super().__init__(self._answer)

    def add(self, *answers: httpx.Response | Exception | Handler) -> Script:
        self.answers += answers
        return self

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.bodies.append(request.content)
        assert self.answers, f"no answer is left for {request.method} {request.url}"
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else answer(request)

    def json(self, index: int = -1) -> Any:
        return json.loads(self.bodies[index])

    def lines(self) -> list[str]:
        return [f"{request.method} {request.url.raw_path.decode()}" for request in self.requests]


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def sandbox(script: Script) -> Iterator[Sandbox]:
    with Sandbox("http://server", TOKEN, transport=script, sleep=script.pauses.append) as sandbox:
        yield sandbox
    assert not script.answers, "an expected request was not sent"


def status(state: str = "finished", **more: Any) -> dict[str, Any]:
    """A run as the server describes it."""
    run: dict[str, Any] = {
        "runId": "run-1",
        "conversationId": "demo",
        "language": "python",
        "state": state,
        "createdAt": "2026-01-01T00:00:00Z",
        "wallMs": 5,
        "stdinOpen": False,
        "newestEvent": 3,
    }
    if state == "finished":
        run["result"] = result()
    return {**run, **more}


def result(**more: Any) -> dict[str, Any]:
    return {
        "runId": "run-1",
        "conversationId": "demo",
        "language": "python",
        "outcome": {"ended": "exited", "sentence": "The program ran to its end.", "exitCode": 0},
        "stdout": "out",
        "stderr": "",
        "stdoutTruncated": False,
        "stderrTruncated": False,
        "figures": {"wallMs": 5, "stdoutBytes": 3, "stderrBytes": 0, "filesChanged": 1},
        "files": [file("a.txt")],
        "filesTruncated": False,
        **more,
    }


def file(path: str, **more: Any) -> dict[str, Any]:
    return {
        "path": path,
        "size": 1,
        "mediaType": "text/plain",
        "change": "created",
        "modifiedAt": "2026-01-01T00:00:00Z",
        "url": f"http://server/files/demo/{path}?sig=x",
        "urlExpiresAt": "2026-01-02T00:00:00Z",
        **more,
    }


def problem(code: str, status: int, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    body = {"type": "about:blank", "title": "x", "status": status, "detail": f"Not so: {code}.", "code": code}
    return httpx.Response(status, json={**body, "requestId": "req-7", **more}, headers=headers)


def event(number: int, kind: str, **more: Any) -> bytes:
    data = json.dumps({"number": number, "kind": kind, "atMs": number, **more})
    return f"id: {number}\nevent: {kind}\ndata: {data}\n\n".encode()


def finished(number: int) -> bytes:
    return event(number, "finished", outcome=result()["outcome"])
