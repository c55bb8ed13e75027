"""Checks of following, cancelling and fetching runs, for any client that provides these functions. Results are
dictionaries with the names of the protocol.

`call(name, arguments, *, limit, progress)` calls a tool; the client times out after `limit` seconds.
`give_up(name, arguments, ready)` starts a call and cancels it when its progress contains the text `ready`.
`runs(conversation)` lists the runs of a conversation."""

import asyncio
import os
import time

LONG = os.environ.get("LONG") == "1"
CLOCK = "import time\nfor i in range(5):\n    print(i, time.time(), flush=True)\n    time.sleep(1)"
# Forks twice and ignores signals; it must be killed anyway.
STUBBORN = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    time.sleep(1000)
print("ready", flush=True)
time.sleep(1000)
"""


async def output_comes_while_the_program_runs(name: str, call) -> None:
    received, delays = [], []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        now = time.time()
        for line in (message or "").splitlines():
            number, _, printed = line.partition(" ")
            if number.isdigit():
                received.append(int(number))
                delays.append(now - float(printed))

    arguments = {"conversationId": f"clock-{name}", "language": "python", "code": CLOCK}
    result = await call("sandbox_run_code", arguments, limit=60, progress=progress)
    received_early = list(received)
    printed = [float(line.split()[1]) for line in result["structuredContent"]["stdout"].splitlines()]
    assert received_early[:3] == [0, 1, 2] and len(printed) == 5, (received, result)
    # By the program's own clock: the first line arrived before the last was printed.
    assert printed[0] + delays[0] < printed[-1], (printed, delays)
    shown = ", ".join(f"{1000 * delay:.0f}" for delay in delays)
    print(f"{name}: lines arrived {shown} ms after they were printed")


async def a_run_longer_than_the_clients_limit_is_fetched_whole(name: str, call) -> None:
    seconds, limit, more = (90, 60, {}) if LONG else (12, 10, {"waitSeconds": 1})
    code = f"import time\nfor i in range({seconds}):\n    print(i, flush=True)\n    time.sleep(1)\n"
    code += "open('end.txt', 'w').write('x')"
    arguments = {"conversationId": f"long-{name}", "language": "python", "code": code} | more
    result = await call("sandbox_run_code", arguments, limit=limit, progress=None)
    assert result["structuredContent"]["state"] in ("queued", "running") and not result["isError"], result
    pieces = []
    while result["structuredContent"]["state"] != "finished":
        now = result["structuredContent"]
        text = result["content"][0]["text"]
        assert "sandbox_get_run" in text and now["runId"] in text, result
        pieces.append(now["stdout"])
        asked = {"runId": now["runId"], "afterEvent": now["newestEvent"]} | more
        result = await call("sandbox_get_run", asked, limit=limit, progress=None)
    whole = result["structuredContent"]
    assert whole["stdout"] == "".join(f"{n}\n" for n in range(seconds)), result
    assert whole["stdout"].startswith("".join(pieces)), (pieces, whole)
    assert [block["type"] for block in result["content"]] == ["text", "resource_link"], result
    print(f"{name}: a run of {seconds} s was fetched in {len(pieces) + 1} calls by a client that waits {limit} s")


async def a_call_that_is_given_up_ends_its_program(name: str, give_up, runs) -> None:
    conversation = f"stubborn-{name}"
    arguments = {"conversationId": conversation, "language": "python", "code": STUBBORN}
    await give_up("sandbox_run_code", arguments, "ready")
    given_up = time.monotonic()
    while (run := (await runs(conversation))[0])["state"] != "finished":
        assert time.monotonic() < given_up + 60, run
    took = time.monotonic() - given_up
    assert run["outcome"]["ended"] == "cancelled", run
    print(f"{name}: the program was dead {1000 * took:.0f} ms after its call was given up")


async def all_of_it(name: str, call, give_up, runs) -> None:
    await asyncio.gather(
        output_comes_while_the_program_runs(name, call),
        a_run_longer_than_the_clients_limit_is_fetched_whole(name, call),
        a_call_that_is_given_up_ends_its_program(name, give_up, runs),
    )
