"""CodeRunner's client against a scripted server."""

from __future__ import annotations

import httpx
import pytest
from conftest import TOKEN, Script, problem, status
from mcp_sandbox import CodeRunner, NotFound, NotSupported, ServerFailed


def test_coderunner_executes_and_browses(script: Script) -> None:
    executed = {"serialized_stdout": "4\n", "serialized_stderr": "", "execution_time": 0.1, "cpu_time": None}
    script.add(
        httpx.Response(200, json={"task_id": "run-1"}),
        httpx.Response(200, json=status()),
        httpx.Response(200, json=executed),
        httpx.Response(200, json={"status": "success", "url": "http://x/", "title": "T", "content": "text"}),
        httpx.Response(200, json={"status": "error", "error": "no such host"}),
        problem("not_found", 404),
    )
    with CodeRunner("http://server", TOKEN, transport=script) as runner:
        assert str(runner.execute("2 + 2", session="s")) == "4\n"
        assert script.json(0) == {"code": "2 + 2", "language": "python", "session_id": "s"}
        assert runner.browse("http://x").title == "T"
        with pytest.raises(ServerFailed, match="no such host"):
            runner.browse("http://x")
        with pytest.raises(NotSupported, match="This server cannot open web pages: it has no /v1/browser/navigate"):
            runner.browse("http://x")


def test_server_without_a_browser_is_told_from_a_missing_session(script: Script) -> None:
    refused = {"code": "runner_not_found", "detail": "There is no runner for `browser`.", "requestId": "req-7"}
    script.add(httpx.Response(501, json=refused), problem("session_not_found", 404))
    with CodeRunner("http://server", TOKEN, transport=script) as runner:
        with pytest.raises(NotSupported, match="cannot open web pages: There is no runner") as caught:
            runner.browse("http://x")
        assert (caught.value.code, caught.value.status, caught.value.request_id) == ("runner_not_found", 501, "req-7")
        with pytest.raises(NotFound) as missing:
            runner.execute("x", session="s")
        assert not isinstance(missing.value, NotSupported)


def test_coderunner_waits_for_as_long_as_an_execution_lasts(script: Script) -> None:
    running = httpx.Response(200, json=status("running"))
    executed = {"serialized_stdout": "", "serialized_stderr": "late\n"}
    script.add(httpx.Response(200, json={"task_id": "run-1"}), running, running, running)
    script.add(httpx.Response(200, json=status()), httpx.Response(200, json=executed))
    with CodeRunner("http://server", TOKEN, transport=script) as runner:
        assert str(runner.execute("slow")) == "late\n"
    waited = ["GET /v1/runs/run-1?wait=20"] * 4
    assert script.lines() == ["POST /execute_async", *waited, "GET /v1/executions/run-1"]


def test_coderunner_cancels_what_is_interrupted_and_raises_what_failed(script: Script) -> None:
    failed = status(error={"code": "engine_lost", "message": "It was lost."})
    script.add(httpx.Response(200, json={"task_id": "run-1"}), httpx.Response(200, json=failed))

    def interrupted(_: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    script.add(httpx.Response(200, json={"task_id": "run-2"}), interrupted, httpx.Response(200, json=status()))
    script.add(problem("not_found", 404))
    with CodeRunner("http://server", TOKEN, transport=script) as runner:
        with pytest.raises(ServerFailed, match="It was lost") as lost:
            runner.execute("first")
        assert lost.value.run_id == "run-1"
        with pytest.raises(KeyboardInterrupt):
            runner.execute("second")
        assert script.lines()[-1] == "POST /v1/runs/run-2/cancel"
        with pytest.raises(NotSupported, match="cannot execute code for CodeRunner: it has no /execute_async"):
            runner.execute("third")
