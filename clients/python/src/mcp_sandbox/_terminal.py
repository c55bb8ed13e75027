"""Output of sandboxes on a terminal. A program's bytes go to a file or a pipe as they are; a terminal is shown text and
colours only, because other control sequences can change its title, its clipboard or its keys."""

from __future__ import annotations

import codecs
import os
import re
from typing import BinaryIO, TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from ._steps import Progress

# Colours, clearing the line and moving within it, which progress bars use.
_HARMLESS = re.compile(r"\x1b\[[0-9;:]{0,64}[mK]|\x1b\[[0-9]{0,4}[ABCDG]")
_BEGUN = re.compile(r"\x1b(\[[0-9;:]{0,64})?\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class Output:
    """One of the two streams of a program."""

    def __init__(self, stream: BinaryIO, *, terminal: bool) -> None:
        self._stream = stream
        self._terminal = terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def write(self, data: bytes) -> None:
        if self._terminal:
            data = self._safe(data).encode("utf-8", "replace")
        self._stream.write(data)
        self._stream.flush()

    def _safe(self, data: bytes) -> str:
        text = self._rest + self._decoder.decode(data)
        begun = _BEGUN.search(text)
        self._rest = text[begun.start() :] if begun else ""
        return safe(text[: begun.start()] if begun else text)


class Tracebacks:
    """The exceptions of cells. A traceback comes with its colours, and follows without them as standard error."""

    def __init__(self, errors: Output, *, colours: bool) -> None:
        self._errors = errors
        self._colours = colours
        self._shown_lines = 0

    def show(self, traceback: str) -> None:
        """Shows one where there are colours; elsewhere, what follows is enough."""
        if self._colours and traceback:
            text = traceback if traceback.endswith("\n") else f"{traceback}\n"
            self._errors.write(f"{text}\x1b[0m".encode("utf-8", "replace"))
            self._shown_lines = text.count("\n")

    def rest(self, data: bytes) -> bytes:
        """What is left of a piece of standard error without the lines that were already shown."""
        while self._shown_lines and data:
            _, end, data = data.partition(b"\n")
            self._shown_lines -= len(end)
        return data

    def end(self) -> None:
        """What follows is not the traceback that was shown."""
        self._shown_lines = 0


def has_colours(stream: TextIO) -> bool:
    """Whether it is a terminal whose user wants colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def safe(text: str) -> str:
    """Text for a terminal: control characters are replaced, except those of colours and progress bars."""
    shown = []
    at = 0
    for match in _HARMLESS.finditer(text):
        shown += [_CONTROL.sub("\ufffd", text[at : match.start()]), match.group()]
        at = match.end()
    return "".join([*shown, _CONTROL.sub("\ufffd", text[at:])])


class Bar:
    """A progress bar on the standard error, which `with` shows and ends."""

    def __init__(self, what: str) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bars = Bars(*columns, console=Console(stderr=True))
        self._task = self._bars.add_task(safe(what).replace("[", r"\["), total=None)

    def __enter__(self) -> Progress:
        self._bars.start()
        return self._moved

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def _moved(self, done: int, total: int | None) -> None:
        self._bars.update(self._task, completed=done, total=total)
