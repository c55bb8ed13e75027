"""Runs, their repetition and their events, against a scripted server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import TOKEN, Script, event, finished, problem, result, status
from mcp_sandbox import (
    AccessDenied,
    Busy,
    Conflict,
    ConnectionFailed,
    InvalidRequest,
    LimitReached,
    NotFound,
    NotSupported,
    Sandbox,
    SandboxError,
    ServerFailed,
    UnexpectedAnswer,
)
from mcp_sandbox.errors import family


def test_run_sends_the_members_of_the_protocol(script: Script, sandbox: Sandbox) -> None:
    script.add(httpx.Response(200, json=status()))
    got = sandbox.run("python", "print(1)", "demo", stdin="in", args=["a"], timeout=1.5, env={"K": "v"})
    assert (got.stdout, got.ok, got.files[0].path, got.figures.cpu_ms) == ("out", True, "a.txt", None)
    request = script.requests[0]
    assert (request.method, request.url.path, request.headers["authorization"]) == (
        "POST",
        "/v1/runs",
        f"Bearer {TOKEN}",
    )
    assert len(request.headers["idempotency-key"]) == 32
    assert script.json() == {
        "language": "python",
        "code": "print(1)",
        "conversationId": "demo",
        "stdin": "in",
        "args": ["a"],
        "env": {"K": "v"},
        "limits": {"wallMs": 1500},
        "wait": 1,
    }


def test_run_waits_for_a_long_program(script: Script, sandbox: Sandbox) -> None:
    running = status("running")
    script.add(httpx.Response(202, json=running), httpx.Response(200, json=running), httpx.Response(200, json=status()))
    assert sandbox.run("python", "x").stdout == "out"
    assert script.lines() == ["POST /v1/runs", "GET /v1/runs/run-1?wait=20", "GET /v1/runs/run-1?wait=20"]


def test_long_wait_for_a_run_is_made_of_short_ones(script: Script, sandbox: Sandbox) -> None:
    running = [httpx.Response(200, json=status("running")) for _ in range(4)]
    script.add(*running)
    assert sandbox.get("run-1", wait=50).state == sandbox.get("run-1").state == "running"
    waited = ["GET /v1/runs/run-1?wait=20", "GET /v1/runs/run-1?wait=20", "GET /v1/runs/run-1?wait=10"]
    assert script.lines() == [*waited, "GET /v1/runs/run-1?wait=0"]
    script.add(httpx.Response(200, json=status()))
    assert sandbox.get("run-1", wait=3600).state == "finished"
    script.add(problem("invalid_argument", 422))
    with pytest.raises(InvalidRequest):
        sandbox.get("run-1", wait=-1)


def test_failing_program_is_a_result(script: Script, sandbox: Sandbox) -> None:
    outcome = {"ended": "exited", "sentence": "It failed.", "exitCode": 3}
    script.add(httpx.Response(200, json=status(result=result(outcome=outcome, stderr="why"))))
    got = sandbox.run("python", "x")
    assert (got.ok, got.outcome.exit_code, got.stderr) == (False, 3, "why")


def test_run_that_the_server_could_not_run_is_an_error(script: Script, sandbox: Sandbox) -> None:
    broken = status(error={"code": "engine_lost", "message": "It is lost."})
    del broken["result"]
    script.add(httpx.Response(202, json=status("running")), httpx.Response(200, json=broken))
    with pytest.raises(ServerFailed, match=r"It is lost. \[run-1\]"):
        sandbox.run("python", "x")


def test_run_whose_output_is_no_longer_kept_is_an_error(script: Script, sandbox: Sandbox) -> None:
    recorded = status(fromHistory=True, outcome=result()["outcome"])
    del recorded["result"]
    over = httpx.Response(200, json=recorded)
    asked: list[Callable[[], object]] = [
        # The server was started again before the answer to the first request arrived.
        lambda: sandbox.run("python", "x"),
        lambda: sandbox.stream("python", "x").result(),
    ]
    script.add(httpx.ReadError("reset"), over, httpx.Response(202, json=status("running")), over)
    for ask in asked:
        with pytest.raises(NotFound, match=r"no longer keeps .* The program ran to its end. \[run-1\]") as caught:
            ask()
        assert caught.value.code == "run_not_found"


def test_interrupted_run_is_cancelled(script: Script, sandbox: Sandbox) -> None:
    def interrupt(_: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    script.add(httpx.Response(202, json=status("running")), interrupt, httpx.Response(200, json=status()))
    with pytest.raises(KeyboardInterrupt):
        sandbox.run("python", "x")
    assert script.lines()[-1] == "POST /v1/runs/run-1/cancel"


def test_run_interrupted_at_its_creation_is_found_by_its_key(script: Script, sandbox: Sandbox) -> None:
    def interrupt(_: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    script.add(interrupt, httpx.Response(202, json=status("running")), httpx.Response(200, json=status()))
    with pytest.raises(KeyboardInterrupt):
        sandbox.run("python", "x")
    assert script.lines() == ["POST /v1/runs", "POST /v1/runs", "POST /v1/runs/run-1/cancel"]
    assert script.requests[0].headers["idempotency-key"] == script.requests[1].headers["idempotency-key"]
    assert script.bodies[0] == script.bodies[1]


def test_stream_interrupted_as_it_begins_leaves_no_run(script: Script, sandbox: Sandbox) -> None:
    def interrupt(_: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    script.add(interrupt, httpx.Response(202, json=status("running")), httpx.Response(200, json=status()))
    with pytest.raises(KeyboardInterrupt), sandbox.stream("python", "x"):
        raise AssertionError("it has not begun")
    assert script.lines() == ["POST /v1/runs", "POST /v1/runs", "POST /v1/runs/run-1/cancel"]
    assert script.requests[0].headers["idempotency-key"] == script.requests[1].headers["idempotency-key"]


@pytest.mark.parametrize("streamed", [True, False])
def test_interrupted_wait_for_a_place_is_not_resumed(script: Script, streamed: bool) -> None:
    def interrupted(_: float) -> None:
        assert len(script.requests) == 1, "it waits again"
        raise KeyboardInterrupt

    script.add(*(problem("queue_full", 429, {"retry-after": "30"}) for _ in range(2)))
    with Sandbox("http://server", TOKEN, transport=script, sleep=interrupted) as sandbox:
        with pytest.raises(KeyboardInterrupt):
            sandbox.stream("python", "x").begin() if streamed else sandbox.run("python", "x")
    assert script.lines() == ["POST /v1/runs"] * 2


def test_creation_is_repeated_with_one_key(script: Script, sandbox: Sandbox) -> None:
    script.add(
        httpx.ReadError("reset"),
        problem("queue_full", 429, {"retry-after": "7"}),
        problem("shutting_down", 503),
        httpx.Response(200, json=status()),
    )
    assert sandbox.run("python", "x").ok
    assert len({request.headers["idempotency-key"] for request in script.requests}) == 1
    assert len(set(script.bodies)) == 1
    assert len(script.pauses) == 3 and script.pauses[1] == 7.0


def test_a_conversation_of_a_server_that_died_is_waited_for(script: Script, sandbox: Sandbox) -> None:
    script.add(problem("held_elsewhere", 503, {"retry-after": "5"}), httpx.Response(204))
    sandbox.delete_conversation("demo")
    assert script.pauses == [5.0]


def test_two_runs_have_two_keys(script: Script, sandbox: Sandbox) -> None:
    script.add(*(httpx.Response(200, json=status()) for _ in range(2)))
    sandbox.run("python", "x")
    sandbox.run("python", "x")
    assert len({request.headers["idempotency-key"] for request in script.requests}) == 2


@pytest.mark.parametrize(
    "refusal",
    [
        problem("engine_lost", 502),
        problem("internal", 500),
        problem("invalid_argument", 422),
        problem("queue_full", 429, {"retry-after": "3600"}),
    ],
)
def test_final_errors_are_not_repeated(script: Script, sandbox: Sandbox, refusal: httpx.Response) -> None:
    script.add(refusal)
    with pytest.raises(SandboxError):
        sandbox.run("python", "x")
    assert script.pauses == []


def test_repetition_is_bounded(script: Script, sandbox: Sandbox) -> None:
    script.add(*(httpx.ConnectError("refused") for _ in range(4)))
    with pytest.raises(ConnectionFailed, match="refused"):
        sandbox.runners()
    assert len(script.pauses) == 3


def test_what_may_have_been_done_is_not_repeated(script: Script, sandbox: Sandbox) -> None:
    script.add(httpx.ReadError("reset"))
    with pytest.raises(ConnectionFailed):
        sandbox.delete_conversation("demo")
    script.add(httpx.ConnectError("refused"), httpx.Response(204))
    sandbox.delete_conversation("demo")


@pytest.mark.parametrize(
    ("code", "status", "family"),
    [
        ("invalid_argument", 422, InvalidRequest),
        ("unauthorized", 401, AccessDenied),
        ("run_not_found", 404, NotFound),
        ("not_found", 404, NotSupported),
        ("conversation_busy", 409, Conflict),
        ("quota_exceeded", 507, LimitReached),
        ("rate_limited", 429, Busy),
        ("engine_failed", 502, ServerFailed),
        ("a_later_code", 409, Conflict),
        ("a_later_code", 418, InvalidRequest),
        ("a_later_code", 500, ServerFailed),
    ],
)
def test_errors_have_their_family(
    script: Script, sandbox: Sandbox, code: str, status: int, family: type[SandboxError]
) -> None:
    script.add(*(problem(code, status, {"retry-after": "99"}, param="code", runId="run-1") for _ in range(1)))
    with pytest.raises(family) as caught:
        sandbox.cancel("run-1")
    error = caught.value
    assert (error.code, error.status, error.request_id, error.param) == (code, status, "req-7", "code")
    assert error.run_id == "run-1"
    assert (error.message, str(error)) == (f"Not so: {code}.", f"Not so: {code}. ({code}, request req-7)")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>another server</html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"runners": [{}]}),
        httpx.Response(200, json={"runners": None}),
    ],
)
def test_answer_of_another_server_is_named(script: Script, sandbox: Sandbox, answer: httpx.Response) -> None:
    asked: list[Callable[[], object]] = [
        sandbox.runners,
        sandbox.runs,
        sandbox.conversations,
        lambda: sandbox.run("python", "x"),
        lambda: sandbox.stream("python", "x").result(),
    ]
    for ask in asked:
        script.add(httpx.Response(200, content=answer.content))
        with pytest.raises(UnexpectedAnswer, match="address"):
            ask()


def test_error_of_a_proxy_has_a_family(script: Script, sandbox: Sandbox) -> None:
    script.add(httpx.Response(404, text="<html>no such page</html>", headers={"x-request-id": "proxy-1"}))
    with pytest.raises(NotFound) as caught:
        sandbox.runners()
    assert (caught.value.code, caught.value.request_id, caught.value.run_id) == ("unknown", "proxy-1", None)


def test_error_that_never_ends_is_bounded(script: Script, sandbox: Sandbox) -> None:
    def flood() -> Iterator[bytes]:
        while True:
            yield b"x" * 100_000

    script.add(httpx.Response(500, content=flood()))
    with pytest.raises(UnexpectedAnswer, match="longer"):
        sandbox.runners()


def test_events_resume_after_a_broken_connection(script: Script, sandbox: Sandbox) -> None:
    def breaks() -> Iterator[bytes]:
        yield event(1, "started") + event(2, "stdout", text="one")[:-5]
        raise httpx.ReadError("reset")

    script.add(
        httpx.Response(202, json=status("running")),
        httpx.Response(200, content=breaks()),
        httpx.ConnectError("refused"),
        httpx.Response(200, content=event(2, "stdout", text="one") + b": keep-alive\n\n"),
        httpx.Response(200, content=event(2, "stdout", text="again") + event(3, "stderr", base64="/w==") + finished(4)),
    )
    events = list(sandbox.stream("python", "x"))
    assert [(one.number, one.kind) for one in events] == [(1, "started"), (2, "stdout"), (3, "stderr"), (4, "finished")]
    assert (events[1].text, events[2].data, events[2].text) == ("one", b"\xff", "\ufffd")
    assert events[3].outcome is not None and events[3].outcome.exit_code == 0
    assert [request.headers["last-event-id"] for request in script.requests[1:]] == ["0", "1", "1", "2"]


def test_events_that_stop_coming_are_an_error(script: Script, sandbox: Sandbox) -> None:
    script.add(httpx.Response(202, json=status("running")), *(httpx.Response(200, content=b"") for _ in range(4)))
    with pytest.raises(ConnectionFailed, match="before the run did"):
        list(sandbox.stream("python", "x"))


def test_events_end_where_nothing_follows(script: Script, sandbox: Sandbox) -> None:
    script.add(httpx.Response(202, json=status("running")), httpx.Response(204))
    assert list(sandbox.stream("python", "x")) == []


@pytest.mark.parametrize("data", [b"nonsense", b"[]", b'{"number": "1"}', b"{}", b'{"number":1,"kind":"x"}'])
def test_broken_event_is_named(script: Script, sandbox: Sandbox, data: bytes) -> None:
    script.add(httpx.Response(202, json=status("running")), httpx.Response(200, content=b"data: " + data + b"\n\n"))
    with pytest.raises(UnexpectedAnswer, match="cannot be read"):
        list(sandbox.stream("python", "x"))


def test_endless_event_is_bounded(
    script: Script, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_sandbox._sse.EVENT_BYTES_MAX", 1000)
    for flood in (b"x" * 1001, b"data: x\n" * 600):
        script.add(httpx.Response(202, json=status("running")), httpx.Response(200, content=flood))
        with pytest.raises(UnexpectedAnswer, match="longer"):
            list(sandbox.stream("python", "x"))


def test_stream_that_is_left_is_cancelled(script: Script, sandbox: Sandbox) -> None:
    script.add(
        httpx.Response(202, json=status("running")),
        httpx.Response(200, content=event(1, "started") + event(2, "stdout", text="a")),
        httpx.Response(200, json=status()),
    )
    with sandbox.stream("python", "x") as events:
        for _ in events:
            break
    assert script.lines()[-1] == "POST /v1/runs/run-1/cancel"
    assert script.json(0)["wait"] == 0


def test_all_pages_are_read(script: Script, sandbox: Sandbox) -> None:
    pages: list[dict[str, Any]] = [
        {"runs": [status("running")], "after": "run-1"},
        {"runs": [status("running", runId="run-2")]},
    ]
    script.add(*(httpx.Response(200, json=page) for page in pages))
    assert [run.run_id for run in sandbox.runs("demo")] == ["run-1", "run-2"]
    assert script.lines() == ["GET /v1/runs?conversationId=demo", "GET /v1/runs?conversationId=demo&after=run-1"]
    script.add(*(httpx.Response(200, json={"conversations": [], "after": "x"}) for _ in range(2)))
    with pytest.raises(UnexpectedAnswer, match="same page"):
        sandbox.conversations()


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    monkeypatch.delenv("MCP_API_TOKEN", raising=False)
    with pytest.raises(ValueError, match="MCP_API_TOKEN"):
        Sandbox()
    for url in ("localhost:8080", "ftp://x", "http://"):
        with pytest.raises(ValueError, match="http://"):
            Sandbox(url, TOKEN)
    for url in ("http://localhost:port", "http://a\x01"):
        with pytest.raises(ValueError, match="not valid"):
            Sandbox(url, TOKEN)
    with pytest.raises(ValueError, match="ASCII") as caught:
        Sandbox(token="secret\nX-Other: header")
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("SANDBOX_URL", "http://named:1/below/")
    monkeypatch.setenv("MCP_API_TOKEN", TOKEN)
    script.add(httpx.Response(200, json={"runners": []}))
    with Sandbox(transport=script) as sandbox:
        assert sandbox.runners() == []
    assert str(script.requests[0].url) == "http://named:1/below/v1/runners"
    assert TOKEN not in repr(vars(sandbox))


def test_every_code_of_the_server_has_a_family() -> None:
    page = Path(__file__).parents[3] / "docs/generated/openapi.json"
    codes = json.loads(page.read_text())["components"]["schemas"]["ErrorCode"]["enum"]
    own = {code for code in codes if family(code) is ServerFailed}
    assert own == {
        "database_unavailable",
        "engine_failed",
        "engine_lost",
        "engine_unavailable",
        "held_elsewhere",
        "internal",
        "issuer_unavailable",
        "queue_timeout",
        "runner_failed",
        "server_lost",
        "shutting_down",
        "tool_unavailable",
    }
