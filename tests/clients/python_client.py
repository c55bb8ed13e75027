"""Checks of our Python client against a server, which SANDBOX_URL and MCP_API_TOKEN name. Argument: the part.

`examples` and `sessions` run the examples of the client's README, each as a program of its own in one folder for all,
and compare what they print with the text that follows them."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from mcp_sandbox import CodeRunner, AccessDenied, Sandbox

README = Path(__file__).resolve().parents[2] / "clients/python/README.md"
EXAMPLE = re.compile(r"(<!-- sessions -->\n)?```(python|sh)\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)
EXAMPLE_TIME_MAX_S = 60


def examples(sessions: bool) -> None:
    found = EXAMPLE.findall(README.read_text())
    chosen = [example for example in found if bool(example[0]) == sessions and "pip install" not in example[2]]
    assert len(chosen) == (3 if sessions else 7), len(chosen)
    with tempfile.TemporaryDirectory() as folder:
        for _, language, code, expected in chosen:
            program = [sys.executable, "-W", "error", "-c", code] if language == "python" else ["bash", "-ec", code]
            done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=EXAMPLE_TIME_MAX_S)
            assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
            # Which of two streams comes first is not certain; such an example has no text.
            assert not expected or done.stdout == expected, f"{code}\n{done.stdout}\nis not\n{expected}"


def folders() -> None:
    """Names, sizes and contents survive; what is no plain file is told."""
    with tempfile.TemporaryDirectory() as folder, Sandbox() as sandbox:
        source, target = Path(folder, "source"), Path(folder, "target")
        content = {
            "a b.txt": b"text",
            "d/\u00fc/#?%.bin": bytes(range(256)),
            f"{'d' * 120}/{'e' * 120}/long.txt": b"",
            "big.bin": os.urandom(20_000_000),
            **{f"many/{number}": os.urandom(5000) for number in range(1500)},
        }
        for name, data in content.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(data)
        raw = os.fsencode(source) + b"/\xff"
        Path(os.fsdecode(raw)).write_bytes(b"raw")
        (source / "link").symlink_to("/etc/passwd")
        files = sandbox.files("round-trip")
        seen: list[tuple[int, int | None]] = []
        sent = files.upload_folder(source, progress=lambda done, total: seen.append((done, total)))
        total = sum(map(len, content.values())) + 3
        assert (sent.files, sent.bytes, sent.skipped) == (len(content) + 1, total, ("link",)), sent
        assert seen[-1] == (total, total) and seen == sorted(seen)
        listed = files.list()
        assert len(listed) == len(content) + 1
        (strange,) = (file for file in listed if file.path_encoded == "%FF")
        assert strange.read() == b"raw"
        hostile = "import os; os.symlink('/etc/passwd', 'evil'); os.mkfifo('pipe')"
        assert sandbox.run("python", hostile, "round-trip").ok
        got = files.download_folder(target)
        assert (got.files, got.bytes) == (sent.files, sent.bytes), got
        for name, data in {**content, "\udcff": b"raw"}.items():
            assert (target / name).read_bytes() == data, name
        assert not (target / "evil").exists() and not (target / "pipe").exists()
        assert files.download_folder(Path(folder, "part"), "d").files == 1
        assert files.download("big.bin", folder).read_bytes() == content["big.bin"]
        sandbox.delete_conversation("round-trip")
        assert files.list() == []
        with CodeRunner() as runner:
            try:
                runner.browse("http://example.org")
                raise AssertionError("no policy allows the browser a host")
            except AccessDenied as error:
                assert "network policy" in str(error), error


def interruption() -> None:
    """A program that is ended by Ctrl-C cancels its run; a command has the exit status of its program."""
    command = [sys.executable, "-m", "mcp_sandbox", "run"]
    with tempfile.TemporaryDirectory() as folder, Sandbox() as sandbox:
        program = Path(folder, "program.py")
        program.write_text("import time\nprint('ready', flush=True)\ntime.sleep(1000)")
        waiting = subprocess.Popen([*command, str(program), "--conversation", "left"], stdout=subprocess.PIPE)
        assert waiting.stdout is not None and waiting.stdout.readline() == b"ready\n"
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(EXAMPLE_TIME_MAX_S) == 130
        (run,) = sandbox.runs("left")
        ended = sandbox.get(run.run_id, wait=20).outcome
        assert ended is not None and ended.ended == "cancelled", run
        program.write_text("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
        done = subprocess.run([*command, str(program)], capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n"), done
        program.write_text("while True: pass")
        done = subprocess.run([*command, "--timeout", "0.5", str(program)], capture_output=True, text=True)
        assert done.returncode == 124 and "time limit" in done.stderr, done


def repl() -> None:
    """Cells that are typed share their variables; one that fails is shown with its error."""
    command = [sys.executable, "-m", "mcp_sandbox", "repl", "python"]
    typed = "a = 41\na + 1\n1 / 0\nfor n in range(2):\n  print(n, n + 1)\n"
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=EXAMPLE_TIME_MAX_S)
    assert done.returncode == 0 and "ZeroDivisionError" in done.stderr, done
    assert "42\n" in done.stdout and "1 2\n" in done.stdout, done


PARTS = {
    "examples": lambda: examples(sessions=False),
    "sessions": lambda: examples(sessions=True),
    "folders": folders,
    "interruption": interruption,
    "repl": repl,
}
PARTS[sys.argv[1]]()
