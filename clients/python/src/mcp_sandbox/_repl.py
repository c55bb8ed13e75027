"""Cells typed at a terminal. Ctrl-C interrupts a cell and its variables are kept; Ctrl-D ends. A refusal is printed,
and the session stays open unless the server says that it is over."""

from __future__ import annotations

import codeop
import contextlib
import getpass
import sys
from collections.abc import Callable

from . import errors
from ._terminal import safe
from .client import EventStream, Session
from .models import Event

# Where it is there, `input` has a history and edits lines.
with contextlib.suppress(ImportError):
    import readline  # noqa: F401

# After these there is no session any more.
_OVER = ("session_ended", "session_not_found", "shutting_down")


def loop(session: Session, show: Callable[[Event], None], read: Callable[[str], str] = input) -> int:
    language = session.state.language
    while True:
        try:
            code = _cell(language, read)
        except EOFError:
            print()
            return 0
        except KeyboardInterrupt:
            print()
            continue
        if not code.strip():
            continue
        try:
            _run(session, code, show, read)
        except errors.AccessDenied:
            raise
        except errors.SandboxError as error:
            if error.code in _OVER:
                raise
            print(safe(str(error)), file=sys.stderr)


def _cell(language: str, read: Callable[[str], str]) -> str:
    """One line, or several: those of a Python block, and those that end with a backslash."""
    lines = [read(f"{language}> ")]
    # The end of the input ends a block as well.
    with contextlib.suppress(EOFError):
        while _goes_on(language, lines):
            lines.append(read(" " * len(language) + ". "))
    return "\n".join(lines)


def _goes_on(language: str, lines: list[str]) -> bool:
    if language != "python" or lines[0].lstrip().startswith(("%", "!")):
        return lines[-1].endswith("\\")
    try:
        return codeop.compile_command("\n".join(lines)) is None
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        # The kernel says what is wrong, and knows what plain Python does not, such as a top-level await. The last two
        # are of expressions that are nested too deeply.
        return False


def _run(session: Session, code: str, show: Callable[[Event], None], read: Callable[[str], str]) -> None:
    with session.stream(code) as events:
        feed = iter(events)
        takes_input = True
        while True:
            try:
                event = next(feed, None)
                if event is None:
                    return
                show(event)
                if event.kind == "input_request" and takes_input:
                    ask = getpass.getpass if event.members.get("password") else read
                    takes_input = _send(events, ask(safe(str(event.members.get("prompt", "")))) + "\n")
            except KeyboardInterrupt:
                session.interrupt()
                # What follows the interruption is read over a new connection.
                feed = iter(events)
            except EOFError:
                _send(events, "", eof=True)
                takes_input = False


def _send(events: EventStream, text: str, *, eof: bool = False) -> bool:
    """Whether the cell still takes input: it may have reached its limit while the line was typed."""
    try:
        events.send_input(text, eof=eof)
    except errors.Conflict as error:
        if error.code != "input_closed":
            raise
        return False
    return True
