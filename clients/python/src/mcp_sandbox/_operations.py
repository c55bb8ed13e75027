"""Every operation, written once as a generator of steps. It knows the routes and no connection; those of files are in
`_transfers`."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote

from . import errors
from ._folders import BytesBody
from ._sse import EventReader
from ._steps import Answer, Call, Flow, call, pages
from ._transfers import Sources, conversation_path, nothing, with_files
from .models import (
    CellError,
    CellResult,
    Conversation,
    Event,
    FileT,
    Json,
    MakeFile,
    Run,
    Runner,
    RunResult,
    SessionState,
)

T = TypeVar("T")

FIRST_WAIT_S = 1
"""How long the creation of a run waits for its end: one request for most runs. It is short, since an interrupted
client repeats it to learn which run to cancel."""
WAIT_S = 20
"""How long one request waits for the end of a run; shorter than the patience of proxies."""


def run_members(
    language: str | None,
    code: str,
    conversation: str | None = None,
    stdin: str | None = None,
    args: Sequence[str] | None = None,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The body of a run; what is None is left out."""
    members: dict[str, Any] = {
        "language": language,
        "code": code,
        "conversationId": conversation,
        "stdin": stdin,
        "args": None if args is None else list(args),
        "env": None if env is None else dict(env),
        "limits": None if timeout is None else {"wallMs": max(1, round(timeout * 1000))},
    }
    return {name: value for name, value in members.items() if value is not None}


def create(path: str, members: Json, wait: int) -> Call[Json]:
    """Creates a run or a cell. The key makes it safe to repeat: it begins one run, however often it is sent."""
    key = {"Idempotency-Key": uuid.uuid4().hex}
    return Call("POST", path, _as_status, headers=key, json={**members, "wait": wait}, repeatable=True)


def run(members: Json, files: Sources | None, file: MakeFile[FileT]) -> Flow[RunResult[FileT]]:
    members = yield from with_files(members, files)
    status = yield from to_end(create("/v1/runs", members, FIRST_WAIT_S))
    return RunResult.of(_whole(status), file)


def cell(session: str, members: Json, file: MakeFile[FileT]) -> Flow[CellResult[FileT]]:
    status = yield from to_end(create(cells(session), members, FIRST_WAIT_S))
    result = _whole(status)
    error: CellError | None = None
    # An exception that was only shown has not ended the cell; without a traceback there was none.
    if result["stderr"] and result["outcome"].get("exitCode") != 0:
        # The cell has run and is not executed again, so its result counts more than the name of its exception.
        with contextlib.suppress(errors.SandboxError):
            error = yield from call(_cell_error(status["runId"]))
    return CellResult.of_cell(result, file, error)


def cells(session: str) -> str:
    return f"{session_path(session)}/cells"


def session_path(session: str) -> str:
    return f"/v1/sessions/{quote(session, safe='')}"


def session_members(language: str, conversation: str | None, env: Mapping[str, str] | None) -> Json:
    members = {"language": language, "conversationId": conversation, "env": None if env is None else dict(env)}
    return {name: value for name, value in members.items() if value is not None}


def open_session(members: Json) -> Call[SessionState]:
    return Call("POST", "/v1/sessions", _as_session, json=members)


def interrupt(session: str) -> Call[None]:
    return Call("POST", f"{session_path(session)}/interrupt", nothing)


def restart(session: str) -> Call[SessionState]:
    return Call("POST", f"{session_path(session)}/restart", _as_session)


def ask_kernel(session: str, what: str, code: str, cursor: int | None) -> Call[Json]:
    """Asks for the kernel's `complete` or `inspect`, which run nothing."""
    members = {"code": code, "cursor": len(code) if cursor is None else cursor}
    return Call("POST", f"{session_path(session)}/{what}", Answer.json, json=members, repeatable=True)


def close_session(session: str) -> Flow[None]:
    # One that has ended by itself is as good as closed.
    try:
        yield from call(Call("DELETE", session_path(session), nothing))
    except errors.SandboxError as error:
        if error.code not in ("session_not_found", "session_ended"):
            raise


def to_end(begin: Call[Json], *, wait: bool = True) -> Flow[Json]:
    """Begins a run and waits for its end, however long it takes; without `wait`, until it has begun."""
    status: Json | None = None
    try:
        status = yield from call(begin)
        return (yield from finished(status["runId"], status)) if wait else status
    except GeneratorExit:
        raise
    except BaseException as stop:
        # An interrupted caller does not leave its program running.
        if not isinstance(stop, Exception):
            with contextlib.suppress(errors.SandboxError):
                if status is None and begin.repeatable:
                    # A refusal says that there is none.
                    status = yield from call(replace(begin, patient=False))
                if status is not None:
                    yield from call(cancel(status["runId"]))
        raise


def begin(path: str, members: Json, files: Sources | None) -> Flow[str]:
    """Begins a run or a cell and does not wait for it; its id. When it is interrupted, that id is lost, and the run is
    cancelled."""
    members = yield from with_files(members, files)
    status = yield from to_end(create(path, members, 0), wait=False)
    return str(status["runId"])


def get(run_id: str, wait: int, parse: Callable[[Answer], T]) -> Call[T]:
    return Call("GET", _run_path(run_id), parse, query={"wait": wait}, repeatable=True)


def seen(run_id: str, wait: int) -> Flow[Run]:
    """A run, after at most `wait` seconds when it goes on. No single request waits longer than proxies do."""
    while True:
        part = min(wait, WAIT_S)
        run = yield from call(get(run_id, part, as_run))
        wait -= part
        if wait <= 0 or run.state == "finished":
            return run


def result(run_id: str, file: MakeFile[FileT]) -> Flow[RunResult[FileT]]:
    """Waits for the end of a run that was begun before."""
    return RunResult.of(_whole((yield from finished(run_id))), file)


def finished(run_id: str, status: Json | None = None) -> Flow[Json]:
    """Waits for the end of a run, however long it takes. `status` is what is known of it."""
    while status is None or status["state"] != "finished":
        status = yield from call(get(run_id, WAIT_S, _as_status))
    if "error" in status:
        raise errors.of_run(status["error"], run_id)
    return status


def _whole(status: Json) -> Json:
    """The result of a run that is over. Of one that is no longer in its memory, the server knows only how it ended."""
    if "result" not in status:
        sentence = status.get("outcome", {}).get("sentence", "")
        message = f"The run is over, but the server no longer keeps its output and files. {sentence}"
        raise errors.NotFound(f"{message} [{status['runId']}]", code="run_not_found")
    result: Json = status["result"]
    return result


def _as_status(answer: Answer) -> Json:
    """A run with its result, of which at least its id and its state are there."""
    status: Json = answer.json()
    if not {"runId", "state"} <= status.keys():
        raise ValueError("it is no run")
    return status


def as_run(answer: Answer) -> Run:
    return Run.of(answer.json())


def _as_session(answer: Answer) -> SessionState:
    return SessionState.of(answer.json())


def cancel(run_id: str) -> Call[Run]:
    return Call("POST", f"{_run_path(run_id)}/cancel", as_run, repeatable=True)


def send_input(run_id: str, data: bytes, eof: bool) -> Call[None]:
    query = {"eof": "true"} if eof else {}
    return Call("POST", f"{_run_path(run_id)}/stdin", nothing, query=query, body=BytesBody(data))


def events_call(run_id: str, reader: EventReader) -> Call[None]:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(reader.after)}
    return Call("GET", f"{_run_path(run_id)}/events", nothing, headers=headers, repeatable=True)


def _cell_error(run_id: str) -> Call[CellError | None]:
    """The exception that ended a cell, which is the last one in its events."""

    def parse(answer: Answer) -> CellError | None:
        shown = [event for event in EventReader().feed(answer.content) if event.kind == "error"]
        return cell_error(shown[-1]) if shown else None

    return Call("GET", f"{_run_path(run_id)}/events", parse, repeatable=True)


def cell_error(event: Event) -> CellError:
    return CellError(str(event.members.get("name", "")), str(event.members.get("value", "")))


def runs(conversation: str | None) -> Flow[list[Run]]:
    return pages("/v1/runs", "runs", Run.of, {} if conversation is None else {"conversationId": conversation})


def runners() -> Call[list[Runner]]:
    def parse(answer: Answer) -> list[Runner]:
        return [Runner.of(one) for one in answer.json()["runners"]]

    return Call("GET", "/v1/runners", parse, repeatable=True)


def conversations() -> Flow[list[Conversation]]:
    return pages("/v1/conversations", "conversations", Conversation.of, {})


def delete_conversation(conversation: str) -> Call[None]:
    return Call("DELETE", conversation_path(conversation), nothing)


def _run_path(run_id: str) -> str:
    return f"/v1/runs/{quote(run_id, safe='')}"
