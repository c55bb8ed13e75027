"""The client that blocks: `Sandbox`, its files, its sessions and its streams. `aio` is its twin with `await`.

Made from `aio.py` by `make_blocking.py`: change that file.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from . import _operations as operations
from . import _transfers as transfers
from ._blocking import Connection
from ._folders import DOWNLOAD_BYTES_MAX, BytesBody
from ._sse import EventReader
from ._steps import Progress
from ._transport import RETRIES_MAX
from .models import (
    CellResult,
    Conversation,
    Event,
    File,
    Json,
    Run,
    Runner,
    RunResult,
    SessionState,
    Transferred,
    members_of,
)


@dataclass(frozen=True)
class RemoteFile(File):
    """A file of a conversation that can be fetched."""

    _files: Files = field(repr=False, compare=False, kw_only=True)

    def read(self) -> bytes:
        return self._files.read(self)

    def download(self, to: str | os.PathLike[str] | None = None, progress: Progress | None = None) -> Path:
        return self._files.download(self, to, progress)


class EventStream:
    """The events of one run, as they happen. The run begins with the first use. `with` cancels a run that is left
    before its end; without it, the run goes on."""

    def __init__(self, connection: Connection, path: str, members: Json, files: transfers.Sources | None) -> None:
        self._connection = connection
        self._asked = (path, members, files)
        self._beginning = threading.Lock()
        self._run_id: str | None = None
        self._reader = EventReader()
        self._feed: Generator[Event, None, None] | None = None

    @property
    def run_id(self) -> str:
        if self._run_id is None:
            raise RuntimeError("the run has not begun: use begin() or with")
        return self._run_id

    def begin(self) -> str:
        """Begins the run, once; its id."""
        with self._beginning:
            if self._run_id is None:
                self._run_id = self._connection.run(operations.begin(*self._asked))
            return self._run_id

    def __enter__(self) -> EventStream:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A loop that was left early has not closed what it read.
        if self._feed is not None:
            self._feed.close()
        if not self._reader.done:
            self._connection.leave(self.cancel, kind)

    def __iter__(self) -> Iterator[Event]:
        self._feed = self._events()
        return self._feed

    def _events(self) -> Generator[Event, None, None]:
        run_id = self.begin()
        with closing(self._connection.events(run_id, self._reader)) as events:
            for event in events:
                yield event

    def send_input(self, data: str | bytes, *, eof: bool = False) -> None:
        """Answers an `input_request` of a cell."""
        content = data.encode() if isinstance(data, str) else data
        self._connection.call(operations.send_input(self.run_id, content, eof))

    def cancel(self) -> Run:
        return self._connection.call(operations.cancel(self.run_id))

    def result(self) -> RunResult[RemoteFile]:
        """The whole result; waits for the end."""
        run_id = self.begin()
        return self._connection.run(operations.result(run_id, maker(self._connection)))


class Files:
    """The files of a conversation. A path is below /data, with slashes."""

    def __init__(self, connection: Connection, conversation: str) -> None:
        self._connection = connection
        self.conversation = conversation

    def list(self, folder: str | None = None) -> list[RemoteFile]:
        """All files, or those of a folder."""
        return self._connection.run(transfers.list_files(self.conversation, folder, maker(self._connection)))

    def read(self, path: str | File, *, bytes_max: int = transfers.READ_BYTES_MAX) -> bytes:
        """A file in memory; a longer one is an error."""
        return self._connection.call(transfers.read_file(self.conversation, path, bytes_max))

    def write(self, path: str | File, content: str | bytes) -> RemoteFile:
        body = BytesBody(content.encode() if isinstance(content, str) else content)
        file = maker(self._connection)
        return self._connection.call(transfers.write_file(self.conversation, path, body, file))

    def delete(self, path: str | File) -> None:
        """Deletes a file, or a folder with all it holds."""
        self._connection.call(transfers.delete_file(self.conversation, path))

    def upload(
        self, local: str | os.PathLike[str], path: str | None = None, progress: Progress | None = None
    ) -> RemoteFile:
        """Sends a local file of any length; by default under its own name."""
        file = maker(self._connection)
        return self._connection.run(transfers.upload(self.conversation, Path(local), path, progress, file))

    def download(
        self, path: str | File, to: str | os.PathLike[str] | None = None, progress: Progress | None = None
    ) -> Path:
        """Fetches a file to a path or into a folder; the answer is where it is. It is complete or not there."""
        return self._connection.run(transfers.download(self.conversation, path, to, progress))

    def upload_folder(
        self, local: str | os.PathLike[str], folder: str = "", progress: Progress | None = None
    ) -> Transferred:
        """Sends the plain files below a local folder. Links are skipped and named in the answer."""
        return self._connection.run(transfers.upload_folder(self.conversation, Path(local), folder, progress))

    def download_folder(
        self,
        to: str | os.PathLike[str],
        folder: str = "",
        progress: Progress | None = None,
        *,
        bytes_max: int = DOWNLOAD_BYTES_MAX,
    ) -> Transferred:
        """Fetches all plain files, or those of a folder, and writes them below a local folder."""
        flow = transfers.download_folder(self.conversation, Path(to), folder, progress, bytes_max)
        return self._connection.run(flow)


def maker(connection: Connection) -> Callable[[str, Json], RemoteFile]:
    """Makes the files of answers, which fetch themselves over this connection."""

    def make(conversation: str, data: Json) -> RemoteFile:
        members = members_of(File, data, conversation_id=conversation)
        return RemoteFile(**members, _files=Files(connection, conversation))

    return make


class Session:
    """Code that remembers: one kernel in one sandbox. It is opened when it is first used, and closed by
    `with`."""

    def __init__(
        self,
        connection: Connection,
        language: str,
        conversation: str | None,
        env: Mapping[str, str] | None,
    ) -> None:
        self._connection = connection
        self._asked = operations.session_members(language, conversation, env)
        self._opening = threading.Lock()
        self._state: SessionState | None = None

    def open(self) -> str:
        """Opens the session, once; its id."""
        with self._opening:
            if self._state is None:
                self._state = self._connection.call(operations.open_session(self._asked))
            return self._state.session_id

    @property
    def state(self) -> SessionState:
        if self._state is None:
            raise RuntimeError("the session is not open: use open() or with")
        return self._state

    @property
    def session_id(self) -> str:
        return self.state.session_id

    @property
    def conversation_id(self) -> str:
        return self.state.conversation_id

    @property
    def files(self) -> Files:
        """The files of its conversation, which are /data of its cells."""
        return Files(self._connection, self.conversation_id)

    def __enter__(self) -> Session:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._connection.leave(self.close, kind)

    def cell(
        self, code: str, stdin: str | None = None, timeout: float | None = None
    ) -> CellResult[RemoteFile]:
        """Runs a cell and waits for its end. A cell that reaches its time limit is interrupted; variables live on."""
        session_id = self.open()
        members = operations.run_members(None, code, stdin=stdin, timeout=timeout)
        return self._connection.run(operations.cell(session_id, members, maker(self._connection)))

    def stream(self, code: str, timeout: float | None = None) -> EventStream:
        """The events of a cell of an open session. A cell that asks for input waits for `send_input`."""
        members = {**operations.run_members(None, code, timeout=timeout), "stdinOpen": True}
        return EventStream(self._connection, operations.cells(self.session_id), members, None)

    def interrupt(self) -> None:
        self._connection.call(operations.interrupt(self.session_id))

    def restart(self) -> SessionState:
        """A new kernel without variables; the files stay."""
        self._state = self._connection.call(operations.restart(self.session_id))
        return self._state

    def complete(self, code: str, cursor: int | None = None) -> Json:
        """Jupyter's `complete_reply` for a position in code, counted in characters; by default its end."""
        session_id = self.open()
        return self._connection.call(operations.ask_kernel(session_id, "complete", code, cursor))

    def inspect(self, code: str, cursor: int | None = None) -> Json:
        """Jupyter's `inspect_reply`."""
        session_id = self.open()
        return self._connection.call(operations.ask_kernel(session_id, "inspect", code, cursor))

    def close(self) -> None:
        """Ends the kernel, if it was opened and has not ended by itself."""
        if self._state is not None:
            self._connection.run(operations.close_session(self._state.session_id))
            self._state = None


class Sandbox:
    """A server. `url` is by default SANDBOX_URL or http://localhost:8080, `token` MCP_API_TOKEN."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        retries: int = RETRIES_MAX,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._connection = Connection(url, token, retries, transport, sleep)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def run(
        self,
        language: str,
        code: str,
        conversation: str | None = None,
        stdin: str | None = None,
        args: Sequence[str] | None = None,
        timeout: float | None = None,
        files: transfers.Sources | None = None,
        env: Mapping[str, str] | None = None,
    ) -> RunResult[RemoteFile]:
        """Runs a program and waits for its end; when the wait is interrupted, the run is cancelled.

        `timeout` is the program's, in seconds. `files` are written before: content, or a `Path`, by name in /data.
        `env` adds variables whose names the operator allows.
        """
        members = operations.run_members(language, code, conversation, stdin, args, timeout, env)
        return self._connection.run(operations.run(members, files, maker(self._connection)))

    def stream(
        self,
        language: str,
        code: str,
        conversation: str | None = None,
        stdin: str | None = None,
        args: Sequence[str] | None = None,
        timeout: float | None = None,
        files: transfers.Sources | None = None,
        env: Mapping[str, str] | None = None,
    ) -> EventStream:
        """The events of a run while it goes on. After a broken connection it resumes where it was."""
        members = operations.run_members(language, code, conversation, stdin, args, timeout, env)
        return EventStream(self._connection, "/v1/runs", members, files)

    def session(
        self,
        language: str = "python",
        conversation: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Session:
        return Session(self._connection, language, conversation, env)

    def runners(self) -> list[Runner]:
        return self._connection.call(operations.runners())

    def runs(self, conversation: str | None = None) -> list[Run]:
        """The runs that the server still knows, newest first."""
        return self._connection.run(operations.runs(conversation))

    def get(self, run_id: str, wait: int = 0) -> Run:
        """A run, after at most `wait` seconds when it goes on."""
        return self._connection.run(operations.seen(run_id, wait))

    def cancel(self, run_id: str) -> Run:
        return self._connection.call(operations.cancel(run_id))

    def conversations(self) -> list[Conversation]:
        return self._connection.run(operations.conversations())

    def delete_conversation(self, conversation: str) -> None:
        """Deletes a conversation with its files."""
        self._connection.call(operations.delete_conversation(conversation))

    def files(self, conversation: str) -> Files:
        return Files(self._connection, conversation)
