"""Server-sent events of one run, from bytes. It knows no connection: it is fed, and remembers where to resume."""

from __future__ import annotations

import json
from collections.abc import Iterator

from .errors import UnexpectedAnswer
from .models import Event

EVENT_BYTES_MAX = 32 << 20
"""The longest event that is accepted."""


class EventReader:
    """Reads the events of a run, in order and each once, over as many connections as that takes."""

    def __init__(self, after: int = 0) -> None:
        self.after = after
        self.done = False
        self._rest = bytearray()
        self._searched = 0
        self._data = bytearray()

    def connected(self) -> None:
        """A new connection begins: what a broken one left is dropped."""
        self._rest.clear()
        self._data.clear()
        self._searched = 0

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The events that are complete with this piece."""
        self._rest += piece
        while (end := self._rest.find(b"\n", self._searched)) >= 0:
            line = bytes(self._rest[:end]).removesuffix(b"\r")
            del self._rest[: end + 1]
            self._searched = 0
            event = self._line(line)
            if event is not None:
                yield event
        self._searched = len(self._rest)
        if len(self._rest) + len(self._data) > EVENT_BYTES_MAX:
            raise UnexpectedAnswer(f"An event is longer than {EVENT_BYTES_MAX} bytes.")

    def _line(self, line: bytes) -> Event | None:
        if line.startswith(b"data:"):
            self._data += line.removeprefix(b"data:").removeprefix(b" ") + b"\n"
        elif not line and self._data:
            text = bytes(self._data)
            self._data.clear()
            return self._event(text)
        return None

    def _event(self, text: bytes) -> Event | None:
        try:
            event = Event.of(json.loads(text))
            # A server that ignores where to resume sends what is known.
            if event.number <= self.after:
                return None
        except (KeyError, TypeError, ValueError) as error:
            raise UnexpectedAnswer("The server sent an event that cannot be read.") from error
        self.after = event.number
        self.done = event.last
        return event
