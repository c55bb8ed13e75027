"""What the kernels of the runner images must do, through the bridge, in a sandbox. scripts/check-kernels.sh runs it."""

import argparse
import concurrent.futures
import functools
import hashlib
import os
import statistics
import struct
import subprocess
import sys
import threading
import time
import traceback

from session import PREFIX, ROOT, Over, Session, label, profile

SETS_X = {"python": "x = 41", "bash": "x=41", "javascript": "let x = 41", "typescript": "let x: number = 41"}
CASES = {}


def case(*languages):
    def keep(function):
        for language in languages:
            CASES.setdefault(language, []).append(function)
        return function

    return keep


def equal(have, want):
    assert have == want, f"{have!r} instead of {want!r}"


def died(session):
    """Waits for the end; returns the words of the bridge before it."""
    words = []
    while True:
        try:
            message = session.next()
        except Over:
            return words
        if message["channel"] == "bridge":
            words.append(message["header"]["msg_type"])


@case("python", "bash", "javascript", "typescript")
def variables_live(session, language):
    equal(session.first["header"]["msg_type"], "ready")
    assert 0 < session.first["content"]["cpuMs"] <= session.figures()["cpuMs"], session.first["content"]
    session.run(SETS_X[language])
    show = "echo $((x + 1))" if language == "bash" else "x + 1"
    cell = session.run(show)
    equal(cell.text if language == "bash" else cell.result, "42\n" if language == "bash" else "42")


@case("python", "bash", "javascript", "typescript")
def error_is_told_and_the_session_goes_on(session, language):
    cell = session.run({"python": "1/0", "bash": "no-such-command"}.get(language, "throw new Error('oh')"))
    equal(cell.reply["status"], "error")
    # People see Python's with colours; from the text for models the server takes them out.
    assert language == "bash" or ("\x1b" in "".join(cell.of("error")[0]["traceback"])) == (language == "python")
    variables_live(session, language)


@case("python", "bash", "javascript", "typescript")
def loop_is_interrupted_and_variables_live(session, language):
    session.run(SETS_X[language])
    begun = {"python": "print('on', flush=True)\nwhile True: pass", "bash": "echo on; while :; do :; done"}
    cell = session.begin(begun.get(language, "console.log('on'); while (true) {}"))
    session.until(lambda message: message["header"]["msg_type"] == "stream")
    session.interrupt()
    assert session.finish(cell).reply["status"] != "ok"
    show = "echo $((x + 1))" if language == "bash" else "x + 1"
    again = session.run(show)
    assert "42" in (again.text if language == "bash" else again.result)


@case("python")
def idle_await_is_interrupted_by_the_next_message(session, _):
    cell = session.begin("import asyncio\nprint('on', flush=True)\nawait asyncio.sleep(600)")
    session.until(lambda message: message["header"]["msg_type"] == "stream")
    time.sleep(0.2)
    session.interrupt()
    # The server's ladder: a kernel that waits without a timer is woken by any message.
    time.sleep(0.3)
    session.send("shell", "kernel_info_request", {})
    equal(session.finish(cell).reply["status"], "error")
    equal(session.run("41 + 1").result, "42")


@case("python")
def command_of_a_cell_is_interrupted(session, _):
    for code in ("import subprocess\nsubprocess.run(['sleep', '600'])", "!echo on; sleep 600"):
        cell = session.begin(code)
        if code.startswith("!"):
            # IPython reads what it prints. Before that Python may be in a hook of fork, which drops an interrupt.
            session.until(lambda message: message["header"]["msg_type"] == "stream")
        # An interrupt between the announcement and the start would not reach the command.
        session.until_runs("sleep")
        session.interrupt()
        session.finish(cell)
        equal(session.run("41 + 1").result, "42")
        # What was signalled ends a moment after the cell's reply. Python collects it with its next command.
        left = "import psutil; [p.pid for p in psutil.process_iter() if p.name() == 'sleep' and p.status() != 'zombie']"
        end = time.monotonic() + 10
        while (have := session.run(left).result) != "[]" and time.monotonic() < end:
            time.sleep(0.1)
        equal(have, "[]")


@case("python")
def input_is_asked_for_and_answered(session, _):
    cell = session.begin("name = input('who? ')\nprint('hello', name)")
    asked = session.until(lambda message: message["channel"] == "stdin")[-1]
    equal(asked["content"]["prompt"], "who? ")
    session.send("stdin", "input_reply", {"value": "Ada", "status": "ok"}, asked["header"])
    equal(session.finish(cell).text.replace("who? Ada\n", ""), "hello Ada\n")


@case("python")
def rich_output(session, _):
    cell = session.run("import matplotlib.pyplot as plt\nplt.plot([1, 4, 2])\nplt.show()")
    assert cell.of("display_data")[0]["data"]["image/png"].startswith("iVBOR"), cell.messages
    cell = session.run("import pandas as pd\npd.DataFrame({'city': ['Oslo', 'Rome'], 'n': [3, 12]})")
    assert cell.result.splitlines()[1].split() == ["0", "Oslo", "3"], cell.result
    equal(session.run("import asyncio\nawait asyncio.sleep(0, 'awaited')").result, "'awaited'")
    assert "ran" in session.run("!echo ran").text
    assert "Wall time" in session.run("%%time\nsum(range(1000))").text
    assert "100%" in session.run("from tqdm.auto import tqdm\nfor _ in tqdm(range(3)): pass").text
    equal(session.run("%pwd").result, "'/data'")
    (page,) = session.run("zip?").reply["payload"]
    assert "Docstring" in page["data"]["text/plain"] and "\x1b" not in page["data"]["text/plain"], page


@case("python")
def fresh_interpreter_is_the_kernel(session, _):
    equal(session.run("__name__").result, "'__main__'")
    equal(session.run("import sys, os; sys.stdin.__class__.__name__ and os.path.abspath('.')").result, "'/data'")
    equal(session.run("import subprocess; subprocess.run(['true']).returncode").result, "0")
    equal(session.run("import os; os.listdir('/proc/self/task') and os.waitpid is not None").result, "True")
    cell = session.run("import os; os.write(1, b'raw'); os.system('echo shell')")
    assert "raw" in cell.text and "shell" in cell.text, cell.text


@case("python")
def kernel_that_ends_itself_ends_the_session(session, _):
    session.begin("import os; os._exit(7)")
    died(session)
    equal(session.exit.get("status"), 7)


@case("python")
def kernel_ends_with_the_bridge(session, _):
    session.begin("import os, signal\nfor p in os.listdir('/proc'):\n"
                  "    if p.isdigit() and b'bridge' in open(f'/proc/{p}/cmdline', 'rb').read():\n"
                  "        os.kill(int(p), 9)\nwhile True: pass")  # fmt: skip
    died(session)
    equal(session.exit.get("signal"), 9)


@case("python", "bash")
def message_that_is_too_long_is_said_to_end_the_session(session, language):
    session.frame(0x04, struct.pack(">I", (4 << 20) + 1))
    equal(died(session)[-1], "failed")
    # The bridge of a kernel that is started is the program; one that is adopted ends its kernel.
    equal({name: session.exit.get(name) for name in ("status", "signal")},
          {"status": None, "signal": 9} if language == "python" else {"status": 1, "signal": None})  # fmt: skip


@case("python")
def end_of_input_ends_the_session(session, _):
    session.frame(0x05)
    died(session)
    assert session.exit is not None


@case("python")
def enormous_print_fits_into_the_memory(session, _):
    before = session.figures()
    cell = session.run("print('x' * (64 << 20)); 'after'")
    equal(cell.result, "'after'")
    lost = sum(note["bytes"] for note in cell.of("dropped"))
    assert len(cell.text) + lost > 64 << 20 and len(cell.text) >= 8 << 20, (len(cell.text), lost)
    after = session.figures()
    print(f"    64 MiB printed: {len(cell.text) >> 20} MiB arrived, memory {before['memoryBytes'] >> 20} to "
          f"{after['memoryBytes'] >> 20} MiB, peak {after['memoryPeakBytes'] >> 20}")  # fmt: skip


@case("python")
def enormous_message_is_cut(session, _):
    code = "{'name': 'stdout', 'text': 'x' * (8 << 20)}"
    text = session.run(f"k = get_ipython().kernel; k.send_response(k.iopub_socket, 'stream', {code})").text
    assert 1 << 20 <= len(text) < (1 << 20) + 100 and "bytes of output were left out" in text, len(text)


@case("python")
def enormous_display_loses_its_largest_form(session, _):
    cell = session.run("from IPython.display import display\n"
                       "display({'text/plain': 'small', 'text/html': 'h' * (9 << 20)}, raw=True)")  # fmt: skip
    equal(cell.of("display_data")[0]["data"], {"text/plain": "small"})
    assert cell.of("dropped")[0]["bytes"] > 9 << 20


@case("python")
def paused_reader_loses_output_but_not_the_end(session, _):
    session.reads.clear()
    code = "import sys\nfor n in range(400):\n    print('y' * 100_000)\n    sys.stdout.flush()\n'after'"
    cell = session.begin(code)
    time.sleep(8)
    session.reads.set()
    cell = session.finish(cell)
    equal(cell.reply["status"], "ok")
    lost = sum(note["messages"] for note in cell.of("dropped"))
    print(f"    paused: {lost} messages dropped, {len(cell.text) >> 20} MiB arrived")
    assert lost > 0


@case("python")
def wrong_signature_is_dropped(session, _):
    code = """
import json, zmq
from ipykernel.kernelapp import IPKernelApp
app = IPKernelApp.instance()
key, app.session.key = app.session.key, b'wrong'
print('never seen', flush=True)
app.session.key = key
"""
    equal(session.run(code).text, "")
    equal(session.run("print('seen')").text, "seen\n")


@case("javascript", "typescript")
def output_comes_before_the_end_of_its_cell(session, _):
    for number in range(1000):
        equal(session.run(f"console.log({number})").text, f"{number}\n")


@case("bash")
def exit_in_a_cell_restarts_bash(session, _):
    session.run("exit 3")
    equal(session.run("echo alive").text, "alive\n")


@case("bash")
def command_prints_the_prompt(session, _):
    session.run('echo "$PS1"')
    equal(session.run("echo alive").text, "alive\n")


@case("python")
def ten_thousand_cells(session, _):
    for _ in range(200):
        session.run("x = 1")
    before, times = session.figures()["memoryBytes"], []
    for number in range(10_000 if FULL else 500):
        began = time.monotonic()
        session.run(f"x = {number}")
        times.append((time.monotonic() - began) * 1000)
    after = session.figures()["memoryBytes"]
    median = statistics.median(times)
    print(f"    {len(times)} cells: median {median:.1f} ms, memory {before >> 20} to {after >> 20} MiB")
    # IPython's history has each cell, in memory.
    assert after - before < (8 << 20) + len(times) * 1024


@case("python")
def idle_kernel_uses_little_more_than_its_standby(_, language):
    # Python reports a second time when it has loaded everything.
    with Session(language, warm=2) as session:
        standby, ready = session.loaded["memoryBytes"], session.first["content"]["memoryBytes"]
    print(f"    standby {standby >> 20} MiB, ready kernel {ready >> 20} MiB")
    assert session.first["content"]["adopted"] and ready - standby <= 40 << 20


FULL = False
SUITE = "jupyter_kernel_test"
# The start of its images' names, which another checkout on this engine does not have.
SUITE_IMAGES = "kernel-suite-" + hashlib.sha256(f"{os.path.realpath(ROOT)} {PREFIX}".encode()).hexdigest()[:8]
ONE_SUITE = threading.Lock()


def suite(language, plain=False):
    """Runs jupyter_kernel_test in an image derived from the runner's, with the restrictions of a session; or `plain`
    what it leaves out, without them. Some of its limits are fractions of a second, so it gets whole processors."""
    runner, image = PREFIX + language, f"{SUITE_IMAGES}-{language}"
    base = subprocess.run(["./build.sh", "base"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    build = ["docker", "build", "--quiet", "--tag", image]
    for argument in (f"BASE={base}", f"RUNNER={runner}", "http_proxy", "https_proxy", "no_proxy"):
        build += ["--build-arg", argument]
    subprocess.run([*build, f"{ROOT}/tests/kernels/suite"], capture_output=True, check=True)
    memory = label(runner, "sandbox.memory-bytes") or "256m"
    name = f"{image}-{os.getpid()}"
    command = ["docker", "run", "--rm", "--name", name]
    restrictions = [] if plain else [*profile(memory, cpus="2"), "--tmpfs", "/data:rw,mode=1777"]
    given = [language, "--plain"] if plain else [language]
    try:
        done = subprocess.run([*command, *restrictions, image, *given], capture_output=True, text=True,
                              timeout=1800 if plain else 600)  # fmt: skip
    except subprocess.TimeoutExpired:
        # Without its client, the suite goes on in its container.
        subprocess.run(["docker", "rm", "-f", name], capture_output=True)
        raise
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout if plain else "", end="")


def measure(language, count):
    starts, cells, standby, sessions = [], [], [], []
    for _ in range(count):
        with Session(language) as session:
            starts.append(session.took_ms)
            standby.append(session.loaded["memoryBytes"] / 2**20)
            sessions.append(session.first["content"]["memoryBytes"] / 2**20)
            for _ in range(20):
                began = time.monotonic()
                session.run(SETS_X[language].replace("let x", "var x"))
                cells.append((time.monotonic() - began) * 1000)
    median = statistics.median
    print(f"{language}: ready {median(starts):.0f} ms after GO, cell {median(cells):.1f} ms, standby "
          f"{median(standby):.0f} MiB, ready {median(sessions):.0f} MiB")  # fmt: skip


def check(language, one):
    """Runs one case in a session of its own; returns whether it failed."""
    session = None
    try:
        with Session(language) as session:
            one(session, language)
        print(f"ok {language}/{one.__name__}", flush=True)
        return False
    except Exception:
        print(f"FAILED {language}/{one.__name__}", flush=True)
        traceback.print_exc()
        print(session.stderr.decode(errors="replace")[-2000:] if session else "", file=sys.stderr)
        return True


def check_suite(language, plain=False):
    """Runs the suite, or tries what it leaves out; returns whether it failed."""
    try:
        with ONE_SUITE:
            suite(language, plain)
        print(f"ok {language}/{SUITE}", flush=True)
        return False
    except (AssertionError, subprocess.SubprocessError) as error:
        print(f"FAILED {language}/{SUITE}\n{error}", getattr(error, "stderr", ""), flush=True)
        return True


def jobs(languages, part, plain):
    """The cases and suites whose name has the part, as calls; or `plain` what the suites leave out."""
    for language in languages:
        if plain:
            yield functools.partial(check_suite, language, plain)
            continue
        for one in CASES[language]:
            if part in one.__name__:
                yield functools.partial(check, language, one)
        if part in SUITE:
            yield functools.partial(check_suite, language)


def main():
    global FULL
    parser = argparse.ArgumentParser(prog="scripts/check-kernels.sh", description="Checks the kernels of the runners.")
    parser.add_argument("language", nargs="?", choices=[*CASES])
    parser.add_argument("part", nargs="?", default="", help="part of a case's name")
    parser.add_argument("--plain", action="store_true",
                        help="show instead that what the suite leaves out fails without a sandbox too")  # fmt: skip
    parser.add_argument("--full", action="store_true", help="10,000 cells instead of 500")
    parser.add_argument("--measure", type=int, metavar="SESSIONS", help="measure start, cell and memory instead")
    given = parser.parse_args()
    FULL = given.full or os.environ.get("LONG") == "1"
    languages = [given.language] if given.language else [*CASES]
    if given.measure:
        for language in languages:
            measure(language, given.measure)
        return
    chosen = list(jobs(languages, given.part, given.plain))
    if not chosen:
        parser.error(f"no case has {given.part} in its name")
    # A session has half a processor and waits most of the time.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        failed = sum(pool.map(lambda job: job(), chosen))
    sys.exit(failed > 0)


main()
