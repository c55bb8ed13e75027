"""Sessions against a scripted server, and the commands of the terminal."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from conftest import Script, event, finished, problem, result, status
from mcp_sandbox import NotSupported, Sandbox, _repl
from mcp_sandbox._sse import EventReader
from mcp_sandbox._terminal import Bar, Output, Tracebacks, has_colours, safe

OPEN = {"sessionId": "s1", "conversationId": "demo", "language": "python", "state": "idle"}


def opened() -> httpx.Response:
    return httpx.Response(201, json=OPEN)


def cell(**more: Any) -> httpx.Response:
    return httpx.Response(200, json=status(result=result(**more)))


def test_session_is_opened_and_closed(script: Script, sandbox: Sandbox) -> None:
    script.add(opened(), cell(stdout="42\n"), httpx.Response(204))
    with sandbox.session("python", "demo", {"K": "v"}) as session:
        answer = session.cell("a + 1", timeout=2)
        assert (answer.stdout, answer.error, answer.ok, session.files.conversation) == ("42\n", None, True, "demo")
    assert script.lines() == ["POST /v1/sessions", "POST /v1/sessions/s1/cells", "DELETE /v1/sessions/s1"]
    assert script.json(0) == {"language": "python", "conversationId": "demo", "env": {"K": "v"}}
    assert script.json(1) == {"code": "a + 1", "limits": {"wallMs": 2000}, "wait": 1}
    assert "idempotency-key" in script.requests[1].headers


def test_exception_of_a_cell_is_told(script: Script, sandbox: Sandbox) -> None:
    shown = event(1, "error", name="ValueError", value="of a script that it started")
    events = shown + event(2, "error", name="KeyError", value="'a'") + finished(3)
    failed = {"ended": "exited", "sentence": "It failed.", "exitCode": 1}
    script.add(opened(), cell(stderr="Traceback", outcome=failed), httpx.Response(200, content=events))
    answer = sandbox.session().cell("{}['a']")
    assert answer.error is not None and not answer.ok
    assert (answer.error.name, answer.error.value) == ("KeyError", "'a'")
    script.add(opened(), cell(stderr="Traceback that was only shown"))
    answer = sandbox.session().cell("%run script.py")
    assert answer.ok and answer.error is None


def test_result_of_a_cell_is_kept_without_its_events(script: Script, sandbox: Sandbox) -> None:
    failed = {"ended": "exited", "sentence": "It failed.", "exitCode": 1}
    script.add(opened(), cell(stderr="Traceback", outcome=failed), problem("run_not_found", 404))
    answer = sandbox.session().cell("{}['a']")
    assert (answer.stderr, answer.error, answer.ok) == ("Traceback", None, False)
    assert script.lines()[1:] == ["POST /v1/sessions/s1/cells", "GET /v1/runs/run-1/events"]


def test_operations_of_a_session(script: Script, sandbox: Sandbox) -> None:
    script.add(
        opened(),
        httpx.Response(204),
        httpx.Response(200, json={"matches": ["json"]}),
        httpx.Response(200, json={"found": False}),
        httpx.Response(200, json={**OPEN, "state": "starting"}),
        problem("session_ended", 410),
    )
    with sandbox.session() as session:
        session.interrupt()
        assert session.complete("import jso")["matches"] == ["json"]
        assert script.json() == {"code": "import jso", "cursor": 10}
        assert session.inspect("a", 0)["found"] is False
        assert session.restart().state == "starting"
    posts = [line.rpartition("/")[2] for line in script.lines()[1:-1]]
    assert posts == ["interrupt", "complete", "inspect", "restart"]


def test_server_without_sessions_is_named(script: Script, sandbox: Sandbox) -> None:
    script.add(problem("not_found", 404))
    with pytest.raises(NotSupported):
        sandbox.session().open()


def typed(*lines: str | type[BaseException]) -> Any:
    rest = iter(lines)

    def read(_: str) -> str:
        line = next(rest, EOFError)
        if isinstance(line, str):
            return line
        raise line

    return read


def test_repl_reads_blocks_and_answers_input(script: Script, sandbox: Sandbox) -> None:
    shown: list[str] = []
    script.add(
        opened(),
        httpx.Response(202, json=status("running")),
        httpx.Response(200, content=event(1, "stdout", text="x") + finished(2)),
        httpx.Response(202, json=status("running")),
        httpx.Response(200, content=event(1, "input_request", prompt="name? ") + finished(2)),
        httpx.Response(202),
    )
    session = sandbox.session()
    session.open()
    read = typed(KeyboardInterrupt, "def f():", "  return 1", "", "  ", "input()", "Ada")
    assert _repl.loop(session, lambda event: shown.append(event.kind), read) == 0
    assert script.json(1) == {"code": "def f():\n  return 1\n", "stdinOpen": True, "wait": 0}
    assert script.bodies[-1] == b"Ada\n"
    assert shown == ["stdout", "finished", "input_request", "finished"]


def test_repl_runs_a_block_that_the_end_of_the_input_ends(script: Script, sandbox: Sandbox) -> None:
    script.add(opened(), httpx.Response(202, json=status("running")), httpx.Response(200, content=finished(1)))
    session = sandbox.session()
    session.open()
    assert _repl.loop(session, lambda _: None, typed("for n in range(2):", "  print(n)")) == 0
    assert script.json(1)["code"] == "for n in range(2):\n  print(n)"


@pytest.mark.parametrize("line", ["1" + "+1" * 20_000, "-" * 200_000 + "1"], ids=["long", "deep"])
def test_repl_sends_a_line_that_this_python_cannot_compile(script: Script, sandbox: Sandbox, line: str) -> None:
    script.add(opened(), httpx.Response(202, json=status("running")), httpx.Response(200, content=finished(1)))
    session = sandbox.session()
    session.open()
    assert _repl.loop(session, lambda _: None, typed(line)) == 0
    assert script.json(1)["code"] == line


def test_repl_keeps_its_session_after_a_late_line_and_a_refusal(
    script: Script, sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = event(1, "input_request", prompt="")
    script.add(
        opened(),
        httpx.Response(202, json=status("running")),
        httpx.Response(200, content=prompt + event(2, "input_request", prompt="") + finished(3)),
        problem("input_closed", 409),
        httpx.Response(202, json=status("running")),
        httpx.Response(200, content=prompt + event(2, "input_request", prompt="") + finished(3)),
        httpx.Response(202),
        problem("invalid_argument", 422),
    )
    session = sandbox.session()
    session.open()
    read = typed("input()", "too late", "input()", EOFError, "refused", EOFError)
    assert _repl.loop(session, lambda _: None, read) == 0
    assert "invalid_argument" in capsys.readouterr().err
    assert sum("/stdin" in line for line in script.lines()) == 2


def test_repl_interrupts_a_cell_and_goes_on(script: Script, sandbox: Sandbox) -> None:
    def interrupted() -> Iterator[bytes]:
        yield event(1, "started")
        raise KeyboardInterrupt

    script.add(
        opened(),
        httpx.Response(202, json=status("running")),
        httpx.Response(200, content=interrupted()),
        httpx.Response(204),
        httpx.Response(200, content=event(2, "error", name="KeyboardInterrupt", value="") + finished(3)),
    )
    session = sandbox.session()
    session.open()
    assert _repl.loop(session, lambda _: None, typed("while True: pass", "", EOFError)) == 0
    assert "POST /v1/sessions/s1/interrupt" in script.lines()


def test_traceback_is_shown_once_and_in_colours_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    errors = Output(stream, terminal=True)
    shown = Tracebacks(errors, colours=True)
    shown.show("\x1b[31mTraceback\x1b[0m\nKeyError: 'a'")
    assert shown.rest(b"Traceback\nKeyEr") + shown.rest(b"ror: 'a'\nlater\n") == b"later\n"
    assert stream.getvalue() == b"\x1b[31mTraceback\x1b[0m\nKeyError: 'a'\n\x1b[0m"
    shown.show("of a cell whose output was cut")
    shown.end()
    assert shown.rest(b"of the next\n") == b"of the next\n"
    plain = Tracebacks(errors, colours=False)
    plain.show("\x1b[31mTraceback\x1b[0m")
    assert plain.rest(b"Traceback\n") == b"Traceback\n"

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert has_colours(Terminal()) and not has_colours(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colours(Terminal())


def test_bar_is_shown_on_a_terminal_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown() -> str:
        with Bar("[red]\x1b]0;title\x07 to demo") as progress:
            progress(500, 1000)
        return capsys.readouterr().err

    for name, value in (("TERM", "xterm"), ("COLUMNS", "100"), ("FORCE_COLOR", "1")):
        monkeypatch.setenv(name, value)
    bar = shown()
    assert "[red]\ufffd]0;title\ufffd to demo" in bar and "0.5/1.0 kB" in bar, bar
    monkeypatch.delenv("FORCE_COLOR")
    assert "\x1b" not in shown()


def test_terminal_is_shown_text_and_colours() -> None:
    assert safe("\x1b[1;31mred\x1b[0m\tb\n") == "\x1b[1;31mred\x1b[0m\tb\n"
    assert safe("\r 50% \x1b[K\x1b[A") == "\r 50% \x1b[K\x1b[A"
    for hostile in ("\x1b]0;title\x07", "\x1b]52;c;ZXZpbA==\x07", "\x1bc", "\x1b[6n", "\x9b6n", "\x07", "a\u202eb"):
        shown = safe(hostile)
        assert "\ufffd" in shown and not set(shown) & set("\x1b\x07\x9b\u202e")


def test_sequences_and_characters_split_between_pieces_are_whole() -> None:
    data = "\x1b[31m\u00fc\x1b[0m\x1b]0;x\x07".encode()
    for cut in range(len(data) + 1):
        stream = io.BytesIO()
        output = Output(stream, terminal=True)
        output.write(data[:cut])
        output.write(data[cut:])
        assert stream.getvalue().decode() == "\x1b[31m\u00fc\x1b[0m\ufffd]0;x\ufffd", cut
    stream = io.BytesIO()
    Output(stream, terminal=False).write(b"\xff\x1b]0;x\x07")
    assert stream.getvalue() == b"\xff\x1b]0;x\x07"


def test_events_are_read_however_they_are_cut() -> None:
    data = event(1, "stdout", text="\u00fc") + b": keep-alive\r\n\r\n" + event(2, "stdout", base64="/w==") + finished(3)
    for step in (1, 2, 3, 7, 1000):
        reader = EventReader()
        pieces = (data[at : at + step] for at in range(0, len(data), step))
        read = [one for piece in pieces for one in reader.feed(piece)]
        assert [one.data for one in read] == ["\u00fc".encode(), b"\xff", b""]
        assert (reader.after, reader.done) == (3, True)


def test_commands_say_what_is_wrong() -> None:
    def command(*arguments: str, token: str = "0123456789abcdef") -> tuple[int, str]:
        environment = {"MCP_API_TOKEN": token, "SANDBOX_URL": "http://127.0.0.1:1", "PYTHONPATH": ":".join(sys.path)}
        call = [sys.executable, "-W", "error", "-m", "mcp_sandbox", *arguments]
        done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    status, said = command("run", "x.py", token="")
    assert (status, said) == (1, "mcp_sandbox: there is no token: give token=..., or set MCP_API_TOKEN\n")
    status, said = command("run", "program.unknown")
    assert status == 1 and "give --language" in said
    status, said = command("run", "missing.py")
    assert status == 1 and "missing.py" in said and "Traceback" not in said
    status, said = command()
    assert status == 2 and "usage" in said
