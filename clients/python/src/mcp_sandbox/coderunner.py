"""CodeRunner's client, so that its programs need another import only. It uses CodeRunner's routes of the server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from . import _operations as operations
from . import errors
from ._blocking import Connection
from ._steps import Answer, Call, Flow, call
from ._transport import RETRIES_MAX
from .models import Execution, Json

# Of the browser's paths, where the server has no image of a browser.
_NOT_IMPLEMENTED = 501


@dataclass(frozen=True)
class Page:
    """A page that the server's browser opened."""

    url: str
    title: str
    content: str
    """Its visible text."""


class CodeRunner:
    """A server, with CodeRunner's operations."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._connection = Connection(url, token, RETRIES_MAX, transport, time.sleep)

    def __enter__(self) -> CodeRunner:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def execute(self, code: str, language: str = "python", session: str | None = None) -> Execution:
        """Runs code. Executions with one session, an id, share their variables. A failed program is a result."""
        members = {"code": code, "language": language}
        if session is not None:
            members["session_id"] = session
        with _offered("/execute_async", "execute code for CodeRunner"):
            return self._connection.run(_execution(members))

    def browse(self, url: str) -> Page:
        """Opens a page in the server's browser."""
        path = "/v1/browser/navigate"
        with _offered(path, "open web pages"):
            answer = self._connection.call(Call("POST", path, _members, json={"url": url}))
        if answer.get("status") != "success":
            raise errors.ServerFailed(str(answer.get("error", "The page was not opened.")), code="browser_failed")
        return Page(answer["url"], answer["title"], answer["content"])


def _execution(members: Json) -> Flow[Execution]:
    """Executes code, however long it takes. An interrupted caller cancels it."""
    status = yield from operations.to_end(Call("POST", "/execute_async", _begun, json=members))
    path = f"/v1/executions/{quote(status['runId'], safe='')}"
    return (yield from call(Call("GET", path, lambda answer: Execution.of(answer.json()), repeatable=True)))


def _begun(answer: Answer) -> Json:
    return {"runId": str(answer.json()["task_id"]), "state": "running"}


def _members(answer: Answer) -> dict[str, Any]:
    return dict(answer.json())


@contextlib.contextmanager
def _offered(path: str, what: str) -> Iterator[None]:
    """Says what a server cannot do that has not this path, or not what it needs."""
    try:
        yield
    except errors.NotFound as error:
        if isinstance(error, errors.NotSupported):
            why = f"it has no {path}."
        elif error.status == _NOT_IMPLEMENTED:
            why = error.message
        else:
            raise
        message = f"This server cannot {what}: {why}"
        raise errors.NotSupported(
            message, code=error.code, status=error.status, request_id=error.request_id
        ) from error


def execute(code: str, language: str = "python") -> Execution:
    """Runs code on the server of SANDBOX_URL with MCP_API_TOKEN. `print` shows what it printed."""
    with CodeRunner() as runner:
        return runner.execute(code, language)
