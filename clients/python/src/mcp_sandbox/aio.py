"""The client with `await`: the twin of `client`, for asyncio and trio."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx

from . import _operations as operations
from . import _transfers as transfers
from ._awaiting import AsyncConnection
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
class AsyncRemoteFile(File):
    """A file of a conversation that can be fetched."""

    _files: AsyncFiles = field(repr=False, compare=False, kw_only=True)

    async def read(self) -> bytes:
        return await self._files.read(self)

    async def download(self, to: str | os.PathLike[str] | None = None, progress: Progress | None = None) -> Path:
        return await self._files.download(self, to, progress)


class AsyncEventStream:
    """The events of one run, as they happen. The run begins with the first use. `async with` cancels a run that is left
    before its end; without it, the run goes on."""

    def __init__(self, connection: AsyncConnection, path: str, members: Json, files: transfers.Sources | None) -> None:
        self._connection = connection
        self._asked = (path, members, files)
        self._beginning = anyio.Lock()
        self._run_id: str | None = None
        self._reader = EventReader()
        self._feed: AsyncGenerator[Event, None] | None = None

    @property
    def run_id(self) -> str:
        if self._run_id is None:
            raise RuntimeError("the run has not begun: use begin() or async with")
        return self._run_id

    async def begin(self) -> str:
        """Begins the run, once; its id."""
        async with self._beginning:
            if self._run_id is None:
                self._run_id = await self._connection.run(operations.begin(*self._asked))
            return self._run_id

    async def __aenter__(self) -> AsyncEventStream:
        await self.begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A loop that was left early has not closed what it read.
        if self._feed is not None:
            await self._feed.aclose()
        if not self._reader.done:
            await self._connection.leave(self.cancel, kind)

    def __aiter__(self) -> AsyncIterator[Event]:
        self._feed = self._events()
        return self._feed

    async def _events(self) -> AsyncGenerator[Event, None]:
        run_id = await self.begin()
        async with aclosing(self._connection.events(run_id, self._reader)) as events:
            async for event in events:
                yield event

    async def send_input(self, data: str | bytes, *, eof: bool = False) -> None:
        """Answers an `input_request` of a cell."""
        content = data.encode() if isinstance(data, str) else data
        await self._connection.call(operations.send_input(self.run_id, content, eof))

    async def cancel(self) -> Run:
        return await self._connection.call(operations.cancel(self.run_id))

    async def result(self) -> RunResult[AsyncRemoteFile]:
        """The whole result; waits for the end."""
        run_id = await self.begin()
        return await self._connection.run(operations.result(run_id, maker(self._connection)))


class AsyncFiles:
    """The files of a conversation. A path is below /data, with slashes."""

    def __init__(self, connection: AsyncConnection, conversation: str) -> None:
        self._connection = connection
        self.conversation = conversation

    async def list(self, folder: str | None = None) -> list[AsyncRemoteFile]:
        """All files, or those of a folder."""
        return await self._connection.run(transfers.list_files(self.conversation, folder, maker(self._connection)))

    async def read(self, path: str | File, *, bytes_max: int = transfers.READ_BYTES_MAX) -> bytes:
        """A file in memory; a longer one is an error."""
        return await self._connection.call(transfers.read_file(self.conversation, path, bytes_max))

    async def write(self, path: str | File, content: str | bytes) -> AsyncRemoteFile:
        body = BytesBody(content.encode() if isinstance(content, str) else content)
        file = maker(self._connection)
        return await self._connection.call(transfers.write_file(self.conversation, path, body, file))

    async def delete(self, path: str | File) -> None:
        """Deletes a file, or a folder with all it holds."""
        await self._connection.call(transfers.delete_file(self.conversation, path))

    async def upload(
        self, local: str | os.PathLike[str], path: str | None = None, progress: Progress | None = None
    ) -> AsyncRemoteFile:
        """Sends a local file of any length; by default under its own name."""
        file = maker(self._connection)
        return await self._connection.run(transfers.upload(self.conversation, Path(local), path, progress, file))

    async def download(
        self, path: str | File, to: str | os.PathLike[str] | None = None, progress: Progress | None = None
    ) -> Path:
        """Fetches a file to a path or into a folder; the answer is where it is. It is complete or not there."""
        return await self._connection.run(transfers.download(self.conversation, path, to, progress))

    async def upload_folder(
        self, local: str | os.PathLike[str], folder: str = "", progress: Progress | None = None
    ) -> Transferred:
        """Sends the plain files below a local folder. Links are skipped and named in the answer."""
        return await self._connection.run(transfers.upload_folder(self.conversation, Path(local), folder, progress))

    async def download_folder(
        self,
        to: str | os.PathLike[str],
        folder: str = "",
        progress: Progress | None = None,
        *,
        bytes_max: int = DOWNLOAD_BYTES_MAX,
    ) -> Transferred:
        """Fetches all plain files, or those of a folder, and writes them below a local folder."""
        flow = transfers.download_folder(self.conversation, Path(to), folder, progress, bytes_max)
        return await self._connection.run(flow)


def maker(connection: AsyncConnection) -> Callable[[str, Json], AsyncRemoteFile]:
    """Makes the files of answers, which fetch themselves over this connection."""

    def make(conversation: str, data: Json) -> AsyncRemoteFile:
        members = members_of(File, data, conversation_id=conversation)
        return AsyncRemoteFile(**members, _files=AsyncFiles(connection, conversation))

    return make


class AsyncSession:
    """Code that remembers: one kernel in one sandbox. It is opened when it is first used, and closed by
    `async with`."""

    def __init__(
        self,
        connection: AsyncConnection,
        language: str,
        conversation: str | None,
        env: Mapping[str, str] | None,
    ) -> None:
        self._connection = connection
        self._asked = operations.session_members(language, conversation, env)
        self._opening = anyio.Lock()
        self._state: SessionState | None = None

    async def open(self) -> str:
        """Opens the session, once; its id."""
        async with self._opening:
            if self._state is None:
                self._state = await self._connection.call(operations.open_session(self._asked))
            return self._state.session_id

    @property
    def state(self) -> SessionState:
        if self._state is None:
            raise RuntimeError("the session is not open: use open() or async with")
        return self._state

    @property
    def session_id(self) -> str:
        return self.state.session_id

    @property
    def conversation_id(self) -> str:
        return self.state.conversation_id

    @property
    def files(self) -> AsyncFiles:
        """The files of its conversation, which are /data of its cells."""
        return AsyncFiles(self._connection, self.conversation_id)

    async def __aenter__(self) -> AsyncSession:
        await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._connection.leave(self.close, kind)

    async def cell(
        self, code: str, stdin: str | None = None, timeout: float | None = None
    ) -> CellResult[AsyncRemoteFile]:
        """Runs a cell and waits for its end. A cell that reaches its time limit is interrupted; variables live on."""
        session_id = await self.open()
        members = operations.run_members(None, code, stdin=stdin, timeout=timeout)
        return await self._connection.run(operations.cell(session_id, members, maker(self._connection)))

    def stream(self, code: str, timeout: float | None = None) -> AsyncEventStream:
        """The events of a cell of an open session. A cell that asks for input waits for `send_input`."""
        members = {**operations.run_members(None, code, timeout=timeout), "stdinOpen": True}
        return AsyncEventStream(self._connection, operations.cells(self.session_id), members, None)

    async def interrupt(self) -> None:
        await self._connection.call(operations.interrupt(self.session_id))

    async def restart(self) -> SessionState:
        """A new kernel without variables; the files stay."""
        self._state = await self._connection.call(operations.restart(self.session_id))
        return self._state

    async def complete(self, code: str, cursor: int | None = None) -> Json:
        """Jupyter's `complete_reply` for a position in code, counted in characters; by default its end."""
        session_id = await self.open()
        return await self._connection.call(operations.ask_kernel(session_id, "complete", code, cursor))

    async def inspect(self, code: str, cursor: int | None = None) -> Json:
        """Jupyter's `inspect_reply`."""
        session_id = await self.open()
        return await self._connection.call(operations.ask_kernel(session_id, "inspect", code, cursor))

    async def close(self) -> None:
        """Ends the kernel, if it was opened and has not ended by itself."""
        if self._state is not None:
            await self._connection.run(operations.close_session(self._state.session_id))
            self._state = None


class AsyncSandbox:
    """A server. `url` is by default SANDBOX_URL or http://localhost:8080, `token` MCP_API_TOKEN."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        retries: int = RETRIES_MAX,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._connection = AsyncConnection(url, token, retries, transport, sleep)

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connection.close()

    async def run(
        self,
        language: str,
        code: str,
        conversation: str | None = None,
        stdin: str | None = None,
        args: Sequence[str] | None = None,
        timeout: float | None = None,
        files: transfers.Sources | None = None,
        env: Mapping[str, str] | None = None,
    ) -> RunResult[AsyncRemoteFile]:
        """Runs a program and waits for its end; when the wait is interrupted, the run is cancelled.

        `timeout` is the program's, in seconds. `files` are written before: content, or a `Path`, by name in /data.
        `env` adds variables whose names the operator allows.
        """
        members = operations.run_members(language, code, conversation, stdin, args, timeout, env)
        return await self._connection.run(operations.run(members, files, maker(self._connection)))

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
    ) -> AsyncEventStream:
        """The events of a run while it goes on. After a broken connection it resumes where it was."""
        members = operations.run_members(language, code, conversation, stdin, args, timeout, env)
        return AsyncEventStream(self._connection, "/v1/runs", members, files)

    def session(
        self,
        language: str = "python",
        conversation: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> AsyncSession:
        return AsyncSession(self._connection, language, conversation, env)

    async def runners(self) -> list[Runner]:
        return await self._connection.call(operations.runners())

    async def runs(self, conversation: str | None = None) -> list[Run]:
        """The runs that the server still knows, newest first."""
        return await self._connection.run(operations.runs(conversation))

    async def get(self, run_id: str, wait: int = 0) -> Run:
        """A run, after at most `wait` seconds when it goes on."""
        return await self._connection.run(operations.seen(run_id, wait))

    async def cancel(self, run_id: str) -> Run:
        return await self._connection.call(operations.cancel(run_id))

    async def conversations(self) -> list[Conversation]:
        return await self._connection.run(operations.conversations())

    async def delete_conversation(self, conversation: str) -> None:
        """Deletes a conversation with its files."""
        await self._connection.call(operations.delete_conversation(conversation))

    def files(self, conversation: str) -> AsyncFiles:
        return AsyncFiles(self._connection, conversation)
