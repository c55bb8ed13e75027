"""Cells typed at a terminal. Ctrl-C interrupts a cell and its variables live on; Ctrl-D ends."""

from __future__ import annotations

import codeop
import contextlib
import getpass
from collections.abc import Callable

from ._terminal import safe
from .client import Session
from .models import Event

# Where it is there, `input` has a history and edits lines.
with contextlib.suppress(ImportError):
    import readline  # noqa: F401

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
        if code.strip():
            _run(session, code, show, read)


def _cell(language: str, read: Callable[[str], str]) -> str:
    """One line, or several: those of a Python block, and those that end with a backslash."""
    lines = [read(f"{language}> ")]
    while _goes_on(language, lines):
        lines.append(read(" " * len(language) + ". "))
    return "\n".join(lines)


def _goes_on(language: str, lines: list[str]) -> bool:
    if language != "python" or lines[0].lstrip().startswith(("%", "!")):
        return lines[-1].endswith("\\")
    try:
        return codeop.compile_command("\n".join(lines)) is None
    except (SyntaxError, ValueError, OverflowError):
        # The kernel says what is wrong, and knows what plain Python does not, such as a top-level await.
        return False


def _run(session: Session, code: str, show: Callable[[Event], None], read: Callable[[str], str]) -> None:
    with session.stream(code) as events:
        feed = iter(events)
        while True:
            try:
                event = next(feed, None)
                if event is None:
                    return
                show(event)
                if event.kind == "input_request":
                    ask = getpass.getpass if event.members.get("password") else read
                    events.send_input(ask(safe(str(event.members.get("prompt", "")))) + "\n")
            except KeyboardInterrupt:
                session.interrupt()
                # What follows the interruption is read over a new connection.
                feed = iter(events)
            except EOFError:
                events.send_input("", eof=True)
