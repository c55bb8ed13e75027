"""The awaited client does what the blocking one does, under both event loops, and cleans up when it is cancelled."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from conftest import TOKEN, Script, event, file, finished, problem, status
from mcp_sandbox import AsyncSandbox, ConnectionFailed, Sandbox, aio, client

Test = Callable[[AsyncSandbox], Awaitable[None]]
LOOPS = ("asyncio", "trio")


def twins() -> list[tuple[str, type, type]]:
    names = ("RemoteFile", "EventStream", "Files", "Session", "Sandbox")
    return [(name, getattr(client, name), getattr(aio, f"Async{name}")) for name in names]


@pytest.mark.parametrize(("name", "blocking", "awaited"), twins())
def test_twins_have_the_same_operations(name: str, blocking: type, awaited: type) -> None:
    def operations(of: type) -> dict[str, list[str]]:
        found = {}
        for one, value in vars(of).items():
            if not one.startswith("_"):
                found[one] = list(inspect.signature(value).parameters) if callable(value) else []
        return found

    assert operations(blocking) == operations(awaited)


def test_client_that_blocks_is_made_from_the_awaited_one() -> None:
    root = Path(__file__).resolve().parents[1]
    blocking = runpy.run_path(str(root / "make_blocking.py"))["blocking"]
    awaited, made = ((root / "src/mcp_sandbox" / name).read_text() for name in ("aio.py", "client.py"))
    assert made == blocking(awaited), "run make_blocking.py"


def run(loop: str, script: Script, test: Test) -> None:
    async def sleep(seconds: float) -> None:
        script.pauses.append(seconds)

    async def whole() -> None:
        async with AsyncSandbox("http://server", TOKEN, transport=script, sleep=sleep) as sandbox:
            await test(sandbox)

    anyio.run(whole, backend=loop)
    assert not script.answers


@pytest.mark.parametrize("loop", LOOPS)
def test_run_is_repeated_and_waited_for(loop: str, script: Script) -> None:
    script.add(
        httpx.ReadError("reset"),
        httpx.Response(202, json=status("running")),
        httpx.Response(200, json=status()),
        httpx.Response(200, content=b"x"),
    )

    async def test(sandbox: AsyncSandbox) -> None:
        result = await sandbox.run("python", "x")
        assert (result.stdout, await result.files[0].read()) == ("out", b"x")

    run(loop, script, test)
    assert len(script.pauses) == 1


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("created", [True, False])
def test_cancelled_task_cancels_its_run(loop: str, created: bool) -> None:
    seen: list[str] = []
    waiting = anyio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(f"{request.method} {request.url.path}")
        if seen[-1].endswith("/cancel"):
            return httpx.Response(200, json=status())
        if request.method == "POST" and (created or len(seen) > 1):
            return httpx.Response(202, json=status("running"))
        waiting.set()
        await anyio.sleep_forever()
        raise AssertionError

    async def whole() -> None:
        async with AsyncSandbox("http://server", TOKEN, transport=httpx.MockTransport(answer)) as sandbox:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sandbox.run, "python", "x")
                await waiting.wait()
                tasks.cancel_scope.cancel()

    anyio.run(whole, backend=loop)
    middle = ["GET /v1/runs/run-1"] if created else ["POST /v1/runs"]
    assert seen == ["POST /v1/runs", *middle, "POST /v1/runs/run-1/cancel"]


@pytest.mark.parametrize("loop", LOOPS)
def test_task_that_is_cancelled_as_its_stream_begins_leaves_no_run(loop: str) -> None:
    seen: list[str] = []
    waiting = anyio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(f"{request.method} {request.url.path}")
        if len(seen) > 1:
            return httpx.Response(202, json=status("running"))
        waiting.set()
        await anyio.sleep_forever()
        raise AssertionError

    async def follow(sandbox: AsyncSandbox) -> None:
        async with sandbox.stream("python", "x"):
            raise AssertionError("it has not begun")

    async def whole() -> None:
        async with AsyncSandbox("http://server", TOKEN, transport=httpx.MockTransport(answer)) as sandbox:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow, sandbox)
                await waiting.wait()
                tasks.cancel_scope.cancel()

    anyio.run(whole, backend=loop)
    assert seen == ["POST /v1/runs", "POST /v1/runs", "POST /v1/runs/run-1/cancel"]


@pytest.mark.parametrize("loop", LOOPS)
def test_events_resume_and_a_stream_that_is_left_is_cancelled(loop: str, script: Script) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield event(1, "started")
        raise httpx.ReadError("reset")

    script.add(
        httpx.Response(202, json=status("running")),
        httpx.Response(200, content=breaks()),
        httpx.Response(200, content=event(2, "stdout", text="one") + finished(3)),
        httpx.Response(202, json=status("running")),
        httpx.Response(200, content=event(1, "started") + event(2, "stdout", text="one")),
        httpx.Response(200, json=status()),
    )

    async def test(sandbox: AsyncSandbox) -> None:
        assert [one.number async for one in sandbox.stream("python", "x")] == [1, 2, 3]
        async with sandbox.stream("python", "x") as events:
            async for _ in events:
                break

    run(loop, script, test)
    assert script.requests[2].headers["last-event-id"] == "1"
    assert script.lines()[-1] == "POST /v1/runs/run-1/cancel"


@pytest.mark.parametrize("loop", LOOPS)
def test_files_and_folders_travel_both_ways(loop: str, script: Script, tmp_path: Path) -> None:
    (tmp_path / "from/d").mkdir(parents=True)
    (tmp_path / "from/d/a.txt").write_text("one")
    (tmp_path / "from/big").write_bytes(b"x" * 1_100_000)
    packed: list[bytes] = []

    def keep(request: httpx.Request) -> httpx.Response:
        packed.append(script.bodies[-1])
        return httpx.Response(200, json={"files": 1, "bytes": 3})

    script.add(httpx.Response(201, json=file("big")), keep)
    seen: list[tuple[int, Any]] = []

    async def test(sandbox: AsyncSandbox) -> None:
        files = sandbox.files("demo")
        moved = await files.upload_folder(tmp_path / "from", progress=lambda done, total: seen.append((done, total)))
        assert (moved.files, seen[-1]) == (2, (1_100_003, 1_100_003))
        script.add(httpx.Response(200, content=packed[0]), httpx.Response(200, content=b"whole"))
        assert (await files.download_folder(tmp_path / "to")).files == 1
        assert (tmp_path / "to/d/a.txt").read_text() == "one"
        assert (await files.download("d/a.txt", tmp_path)).read_bytes() == b"whole"

    run(loop, script, test)
    assert script.bodies[0] == b"x" * 1_100_000


@pytest.mark.parametrize("loop", LOOPS)
def test_run_and_session_begin_once_for_tasks_that_begin_them_at_once(loop: str) -> None:
    seen: list[str] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.path)
        # The other tasks get as far as they can.
        await anyio.wait_all_tasks_blocked()
        return httpx.Response(201, json={**status("running"), "sessionId": "s1", "state": "idle"})

    async def whole() -> None:
        async with AsyncSandbox("http://server", TOKEN, transport=httpx.MockTransport(answer)) as sandbox:
            for begin in (sandbox.stream("python", "x").begin, sandbox.session().open):
                async with anyio.create_task_group() as tasks:
                    for _ in range(2):
                        tasks.start_soon(begin)

    anyio.run(whole, backend=loop)
    assert seen == ["/v1/runs", "/v1/sessions"]


def test_error_at_the_end_does_not_hide_the_first(script: Script) -> None:
    refused = [problem("run_not_found", 404) for _ in range(2)]
    script.add(httpx.Response(202, json=status("running")), refused[0])
    with Sandbox("http://server", TOKEN, transport=script) as sandbox:
        with pytest.raises(ZeroDivisionError), sandbox.stream("python", "x"):
            raise ZeroDivisionError

    async def test(sandbox: AsyncSandbox) -> None:
        script.add(httpx.Response(202, json=status("running")), refused[1])
        with pytest.raises(ZeroDivisionError):
            async with sandbox.stream("python", "x"):
                raise ZeroDivisionError

    run("asyncio", script, test)


def test_unreachable_server_is_named() -> None:
    async def whole() -> None:
        async with AsyncSandbox("http://127.0.0.1:1", TOKEN, retries=0) as sandbox:
            with pytest.raises(ConnectionFailed, match="did not answer"):
                await sandbox.runners()

    anyio.run(whole)
