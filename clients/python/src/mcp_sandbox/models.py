"""What the server answers, as immutable values. Members that this version does not know are ignored.

It knows neither HTTP nor which client asks: a file of an answer is made by a function that the client brings, so that
it can be downloaded in the client's way.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Generic, TypeVar

Json = Mapping[str, Any]


@dataclass(frozen=True)
class File:
    """A file of a conversation."""

    conversation_id: str
    path: str
    """Below /data, made safe to show: `path_encoded` is the exact path where that differs."""
    size: int
    media_type: str
    change: str
    """What the run did to it: `created`, `changed` or `unchanged`."""
    modified_at: str
    url: str
    """A signed link that downloads it without a token."""
    url_expires_at: str
    path_encoded: str | None = None


FileT = TypeVar("FileT", bound=File)
T = TypeVar("T")
MakeFile = Callable[[str, Json], FileT]


def members_of(kind: type[Any], data: Json, **made: Any) -> dict[str, Any]:
    """The members of a value from those of the protocol, whose names are in camel case. One that has a default may be
    missing; those that were made already are taken as they are."""
    for member in fields(kind):
        first, *rest = member.name.split("_")
        name = first + "".join(map(str.capitalize, rest))
        if member.name not in made and (name in data or member.default is MISSING):
            made[member.name] = data[name]
    return made


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    ended: str
    """One word: `exited`, `signaled`, `timed_out`, `out_of_memory`, `output_limit`, `disk_limit`, `process_limit` or
    `cancelled`."""
    sentence: str
    exit_code: int | None = None
    signal: str | None = None
    oom_killed: bool = False

    @classmethod
    def of(cls, data: Json) -> Outcome:
        return cls(**members_of(cls, data))


@dataclass(frozen=True)
class Figures:
    """What a run used."""

    wall_ms: int
    stdout_bytes: int
    stderr_bytes: int
    files_changed: int
    cpu_ms: int | None = None
    memory_peak_bytes: int | None = None

    @classmethod
    def of(cls, data: Json) -> Figures:
        return cls(**members_of(cls, data))


@dataclass(frozen=True)
class RunResult(Generic[FileT]):
    """The result of a run or a cell."""

    run_id: str
    conversation_id: str
    language: str
    outcome: Outcome
    stdout: str
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool
    figures: Figures
    files: tuple[FileT, ...]
    """The files in /data: those that it created or changed first."""
    files_truncated: bool

    @property
    def ok(self) -> bool:
        """It ended by itself, with status 0."""
        return self.outcome.ended == "exited" and self.outcome.exit_code == 0

    @classmethod
    def of(cls, data: Json, file: MakeFile[FileT]) -> RunResult[FileT]:
        return cls(**_result_members(data, file))


def _result_members(data: Json, file: MakeFile[FileT]) -> dict[str, Any]:
    files = tuple(file(data["conversationId"], one) for one in data["files"])
    outcome, figures = Outcome.of(data["outcome"]), Figures.of(data["figures"])
    return members_of(RunResult, data, outcome=outcome, figures=figures, files=files)


@dataclass(frozen=True)
class CellError:
    """The exception that ended a cell; its traceback is in the standard error."""

    name: str
    value: str


@dataclass(frozen=True)
class CellResult(RunResult[FileT]):
    """The result of a cell."""

    error: CellError | None = None
    """The exception that ended it; also None where the server did not answer what that was."""

    @classmethod
    def of_cell(cls, data: Json, file: MakeFile[FileT], error: CellError | None) -> CellResult[FileT]:
        return cls(**_result_members(data, file), error=error)


@dataclass(frozen=True)
class Run:
    """A run as it was when it was asked for."""

    run_id: str
    conversation_id: str
    language: str
    state: str
    """`queued`, `running` or `finished`."""
    created_at: str
    wall_ms: int
    stdin_open: bool
    newest_event: int
    position: int | None = None
    outcome: Outcome | None = None
    figures: Figures | None = None
    error_code: str | None = None
    """Why the server could not run it, where that is how it ended."""
    source: str | None = None

    @classmethod
    def of(cls, data: Json) -> Run:
        members = members_of(
            cls,
            data,
            outcome=_optional(Outcome.of, data.get("outcome")),
            figures=_optional(Figures.of, data.get("figures")),
            error_code=_optional(lambda error: str(error["code"]), data.get("error")),
        )
        return cls(**members)


@dataclass(frozen=True)
class Event:
    """One thing that happened to a run: its kind, and the members that this kind has (docs/api.md)."""

    number: int
    kind: str
    """`queued`, `started`, `stdout`, `stderr`, `cut`, `progress`, `file`, `finished`, `failed`; of a cell also
    `display`, `result`, `update`, `error`, `clear`, `input_request`, `input_answered`."""
    at_ms: int
    members: Json
    """All members, with the names of the protocol."""

    @classmethod
    def of(cls, data: Json) -> Event:
        return cls(data["number"], data["kind"], data["atMs"], data)

    @property
    def text(self) -> str:
        """What was printed; bytes that are not UTF-8 are replaced."""
        return self.data.decode("utf-8", "replace")

    @property
    def data(self) -> bytes:
        """What was printed, as bytes."""
        if "base64" in self.members:
            return base64.b64decode(self.members["base64"])
        return str(self.members.get("text", "")).encode("utf-8", "surrogatepass")

    @property
    def last(self) -> bool:
        """Nothing follows it."""
        return self.kind in ("finished", "failed")

    @property
    def outcome(self) -> Outcome | None:
        """How the program ended, of `finished`."""
        return _optional(Outcome.of, self.members.get("outcome"))


@dataclass(frozen=True)
class Runner:
    """A language that can be run."""

    language: str
    aliases: tuple[str, ...]
    image: str
    takes_input: bool
    standing_by: int
    version: str | None = None
    description: str | None = None

    @classmethod
    def of(cls, data: Json) -> Runner:
        return cls(**members_of(cls, data, aliases=tuple(data["aliases"])))


@dataclass(frozen=True)
class Conversation:
    """A conversation: a folder of files that its runs share."""

    conversation_id: str
    used_at: str

    @classmethod
    def of(cls, data: Json) -> Conversation:
        return cls(**members_of(cls, data))


@dataclass(frozen=True)
class Transferred:
    """What an upload or download of a folder moved."""

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()
    """Links, pipes, sockets and devices of the local folder: only plain files are sent."""


@dataclass(frozen=True)
class SessionState:
    """A session as it was when it was asked for."""

    session_id: str
    conversation_id: str
    language: str
    state: str

    @classmethod
    def of(cls, data: Json) -> SessionState:
        return cls(**members_of(cls, data))


@dataclass(frozen=True)
class Execution:
    """The answer of `CodeRunner.execute`. As a string it is what was printed."""

    stdout: str
    stderr: str
    execution_time: float | None = None
    """In seconds."""
    cpu_time: float | None = None

    def __str__(self) -> str:
        return self.stdout + self.stderr

    @classmethod
    def of(cls, data: Json) -> Execution:
        stdout, stderr = data["serialized_stdout"], data["serialized_stderr"]
        return cls(stdout, stderr, data.get("execution_time"), data.get("cpu_time"))


def _optional(make: Callable[[Any], T], data: Any) -> T | None:
    return None if data is None else make(data)
