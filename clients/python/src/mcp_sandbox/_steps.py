"""What an operation asks of a client, step by step. An operation is a generator of steps, written once; the clients
carry the steps out, one with blocking calls, one with awaited ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Generic, Protocol, TypeVar

from .errors import UnexpectedAnswer
from .models import Json

T = TypeVar("T")
Progress = Callable[[int, "int | None"], None]
"""Gets the bytes that were moved, and how many there are in all where that is known."""


ANSWER_BYTES_MAX = 128 << 20
"""Of an answer in memory, if its call says nothing else; above the largest result that a server keeps."""


class Meter:
    """Counts bytes for a progress callback. What a repeated request moves again is counted once."""

    def __init__(self, progress: Progress | None = None, total: int | None = None) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._mark = 0

    def expect(self, total: int | None) -> None:
        self._total = total

    def begin(self) -> None:
        """A request ended well: what follows is another one's."""
        self._mark = self._done

    def again(self) -> None:
        """The request is sent, perhaps not for the first time."""
        self._done = self._mark

    def add(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)


class Body(Protocol):
    """What is sent. It can be read again when a request is repeated."""

    @property
    def length(self) -> int: ...

    def pieces(self) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class Sink:
    """Takes what is received, in place of memory."""

    file: IO[bytes]
    bytes_max: int | None = None

    def restart(self) -> None:
        self.file.seek(0)
        self.file.truncate()


@dataclass(frozen=True)
class Answer:
    """A successful answer. `content` is empty when it went into a sink."""

    status: int
    content: bytes
    request_id: str | None

    def json(self) -> Any:
        try:
            return json.loads(self.content)
        except ValueError as error:
            raise UnexpectedAnswer(
                "The answer is not JSON: is the address that of the server?",
                status=self.status,
                request_id=self.request_id,
            ) from error


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request and how its answer is read."""

    method: str
    path: str
    """Percent-encoded, from `/v1` on."""
    parse: Callable[[Answer], T]
    query: Mapping[str, str | int] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Json | None = None
    body: Body | None = None
    sink: Sink | None = None
    meter: Meter = field(default_factory=Meter)
    repeatable: bool = False
    """Sent twice it does the same as once, so it is repeated when the connection breaks."""
    patient: bool = True
    """When the server refuses it for now, it is sent again later."""
    bytes_max: int = ANSWER_BYTES_MAX
    """Of an answer in memory."""

    def read(self, answer: Answer) -> T:
        try:
            return self.parse(answer)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            message = f"The answer to {self.method} {self.path} cannot be read: is the address that of the server?"
            raise UnexpectedAnswer(message, status=answer.status, request_id=answer.request_id) from error


@dataclass(frozen=True)
class Local(Generic[T]):
    """Work on the local disk, which an asynchronous client does in a thread."""

    work: Callable[[], T]


Step = Call[Any] | Local[Any]
Flow = Generator[Step, Any, T]


def call(step: Call[T] | Local[T]) -> Generator[Step, Any, T]:
    """Asks for one step; `yield from` gives its result with its type."""
    result: T = yield step
    return result


def pages(path: str, member: str, make: Callable[[Json], T], query: Mapping[str, str]) -> Flow[list[T]]:
    """All items of a list, page by page."""

    def parse(answer: Answer) -> tuple[list[T], str | None]:
        page = answer.json()
        return [make(item) for item in page[member]], page.get("after")

    items: list[T] = []
    after: str | None = None
    while True:
        more = {} if after is None else {"after": after}
        before = after
        found, after = yield from call(Call("GET", path, parse, query={**query, **more}, repeatable=True))
        items += found
        if after is None:
            return items
        if after == before:
            raise UnexpectedAnswer("The server sent the same page again.")
