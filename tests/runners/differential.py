"""Runs every program in several ways and compares them: by the plain entry (/opt/runner/run), by protocol 1 at once, by
protocol 1 after the interpreter said that it is warm, and for Python also while it loads the rest or when it has loaded
it. The same output, status and files are wanted, byte for byte.

The programs are the cases beside this file (README.md) and those in `awkward/`, whose first lines may say what is
different about them (see `Program`). `--time` measures instead: GO to EXIT of a short program, and memory at rest.
"""

import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_SECONDS = 60
# As in sandbox_warm.py, and how long loading takes with the CPU of a program.
LOADS_AFTER_SECONDS, LOADS_FOR_SECONDS = 1.0, 1.2
ENDINGS = {".py": "python", ".js": "javascript", ".ts": "typescript", ".sh": "bash"}
SECCOMP = HERE.parents[1] / "src/adapters/engine/docker/seccomp.json"

# What differs between any two runs of one program, and is not looked at. A program avoids the rest.
NORMAL = [
    (re.compile(rb"0x[0-9a-f]{6,}"), b"0xADDRESS"),  # where an object lies
    (re.compile(rb"figure-\d+\.png: \d+"), b"figure"),
    (re.compile(rb"\(node:\d+\)"), b"(node:PID)"),  # a warning of Node names its process
    (re.compile(rb"/tmp/main\.sh: line (\d+): +\d+ "), rb"/tmp/main.sh: line \1: PID "),  # so does Bash
]

ARCHIVES = {".tgz", ".zip", ".xlsx", ".docx", ".pptx", ".pdf", ".svg", ".html"}  # hold times, or names made anew in every run


def profile(folder):
    words = """--network none --read-only --tmpfs /tmp:rw,nosuid,nodev,noexec,size=64m,mode=1777 --user 1000:1000
        --cap-drop ALL --security-opt no-new-privileges --memory 256m --memory-swap 256m --cpus 0.5 --pids-limit 128
        --shm-size 16m --log-driver none --ulimit fsize=104857600 --ulimit nofile=1024 --ulimit core=0""".split()
    return [*words, "--security-opt", f"seccomp={SECCOMP}", "--mount", f"type=bind,source={folder},target=/data"]


class Program:
    """A program and what lies in /data before it."""

    def __init__(self, path):
        self.name = f"{path.parent.name}/{path.name}"
        if path.suffix == ".case":
            self.language = path.parent.name
            sections = dict(self._sections(path.read_bytes()))
            self.source = sections["program"]
            self.files = {name[5:]: body for name, body in sections.items() if name.startswith("file ")}
        else:
            self.language = ENDINGS[path.suffix]
            self.source, self.files = path.read_bytes(), {}

    @staticmethod
    def _sections(text):
        found = re.split(rb"(?m)^--- (.*)\n", text)[1:]
        for heading, body in zip(found[::2], found[1::2]):
            heading = heading.decode()
            if heading.endswith(" escaped"):
                heading = heading.removesuffix(" escaped")
                body = subprocess.run(["printf", "%b", body.removesuffix(b"\n")], capture_output=True).stdout
            elif heading.endswith(" shell"):
                heading = heading.removesuffix(" shell")
                body = subprocess.run(["sh", "-c", body], capture_output=True).stdout
            yield heading, body


class Outcome:
    def __init__(self, status, stdout, stderr, folder):
        self.parts = {"status": status, "stdout": self._normal(stdout), "stderr": self._normal(stderr)}
        for file in sorted(folder.rglob("*")):
            if file.suffix in ARCHIVES:
                self.parts[f"archive {file.relative_to(folder)}"] = b""
            elif file.is_file():
                self.parts[f"file {file.relative_to(folder)}"] = self._normal(file.read_bytes())
            else:
                self.parts[f"folder {file.relative_to(folder)}"] = b""

    @staticmethod
    def _normal(text):
        for pattern, instead in NORMAL:
            text = pattern.sub(instead, text)
        return text

    def differences(self, other):
        for name in sorted({*self.parts, *other.parts}):
            mine, theirs = self.parts.get(name), other.parts.get(name)
            if mine != theirs:
                yield f"    {name}:\n      plain: {shown(mine)}\n      this:  {shown(theirs)}"


def shown(part):
    return repr(part if not isinstance(part, bytes) or len(part) < 1500 else part[:700] + b" ... " + part[-700:])


def run_plain(image, program, folder):
    name = container_name()
    command = ["docker", "run", "-i", "--rm", "--name", name, *profile(folder), "--entrypoint", "/opt/runner/run"]
    try:
        done = subprocess.run([*command, image], input=program.source, capture_output=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        # Without its client, the program goes on in its container.
        subprocess.run(["docker", "rm", "-f", name], capture_output=True)
        raise
    return done.returncode, done.stdout, done.stderr


def container_name():
    return f"differential-{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}"


class Sandbox:
    """A container that is spoken to in frames."""

    def __init__(self, image, folder):
        self.name = container_name()
        command = ["docker", "run", "-i", "--rm", "--name", self.name, *profile(folder), image]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def send(self, kind, payload=b""):
        self.process.stdin.write(struct.pack(">BI", kind, len(payload)) + payload)

    def _read(self, count):
        have = b""
        while len(have) < count:
            more = self.process.stdout.read(count - len(have))
            if not more:
                raise EOFError(f"the frames ended after {have!r}")
            have += more
        return have

    def frame(self):
        kind, length = struct.unpack(">BI", self._read(5))
        return kind, self._read(length)

    def until_warm(self, is_warm=lambda ready: ready.get("warm")):
        while True:
            kind, payload = self.frame()
            assert kind == 0x81, (kind, payload)
            if is_warm(json.loads(payload)):
                return json.loads(payload)

    def ask(self, source, args=(), env=None):
        request = {"args": list(args), "env": env or {}, "wallMs": 45_000, "graceMs": 1_000}
        self.send(1, json.dumps(request).encode())
        for start in range(0, len(source), 1 << 20):
            self.send(2, source[start : start + (1 << 20)])
        self.send(5)
        self.send(3)

    def answer(self):
        streams = {0x82: b"", 0x83: b""}
        while True:
            kind, payload = self.frame()
            if kind in streams:
                streams[kind] += payload
            elif kind in (0x84, 0x85):
                return json.loads(payload), streams[0x82], streams[0x83]

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        subprocess.run(["docker", "kill", self.name], capture_output=True)
        self.process.wait()


def run_frames(image, program, folder, state):
    sandbox = Sandbox(image, folder)
    watchdog = threading.Timer(LIMIT_SECONDS, sandbox.process.kill)
    watchdog.start()
    try:
        if state != "at once" and program.language != "bash":
            sandbox.until_warm()
        if state == "loaded":
            sandbox.until_warm()
        elif state == "loading":
            time.sleep(LOADS_AFTER_SECONDS + moment_of(program) * LOADS_FOR_SECONDS)
        sandbox.ask(program.source)
        end, stdout, stderr = sandbox.answer()
        status = end["status"] if "status" in end else 128 + end["signal"] if "signal" in end else end
        if sandbox.process.wait(10) != 0:
            status = f"{status}, and the container's own is {sandbox.process.returncode}"
        return status, stdout, stderr
    finally:
        watchdog.cancel()
        sandbox.close()


def moment_of(program):
    """A number from 0 to 1 that is always the same for a program."""
    return zlib.crc32(program.name.encode()) / 0xFFFFFFFF


WAYS = {"plain": run_plain}
for state in ("at once", "warm", "loading", "loaded"):
    WAYS[state] = functools.partial(run_frames, state=state)


def ways_of(program):
    """Python is warm when it has what most programs import, and loads the rest when no program comes. Each program is
    also run in one of the two later states, and not in both, since each run starts a container."""
    rest = ["loading" if moment_of(program) < 0.5 else "loaded"] if program.language == "python" else []
    return ["at once", "warm", *rest]


def outcome(way, image, program):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="differential."))
    try:
        for name, body in program.files.items():
            (folder / name).write_bytes(body)
            (folder / name).chmod(0o666)
        folder.chmod(0o777)
        return Outcome(*WAYS[way](image, program, folder), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check(prefix, program):
    image = prefix + program.language
    try:
        want = outcome("plain", image, program)
        for way in ways_of(program):
            for difference in want.differences(outcome(way, image, program)):
                yield f"  {way}\n{difference}"
    except Exception as error:
        yield f"  {type(error).__name__}: {error}"


def check_all(prefix, wanted, jobs):
    paths = sorted(HERE.glob("*/*.case")) + sorted((HERE / "awkward").iterdir())
    programs = [program for program in map(Program, paths) if not wanted or any(word in program.name or word == program.language for word in wanted)]
    if not programs:
        sys.exit("check-warm: there is no such program.")
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for program, found in zip(programs, pool.map(lambda program: list(check(prefix, program)), programs)):
            if found:
                failed += 1
                print(f"DIFFERENT {program.name}", *found, sep="\n", flush=True)
    print(f"{len(programs) - failed} the same in all ways, {failed} different")
    return failed


HELLO = {"python": b"print(1)", "javascript": b"console.log(1)", "typescript": b"const n: number = 1; console.log(n)", "bash": b"echo 1"}


def measure(prefix, rounds):
    for language, source in HELLO.items():
        figures = {"warm": [], "at once": []}
        memory = None
        for _ in range(rounds):
            for way, taken in figures.items():
                with tempfile.TemporaryDirectory() as folder:
                    os.chmod(folder, 0o777)
                    sandbox = Sandbox(prefix + language, folder)
                    if way == "warm":
                        ready = sandbox.until_warm((lambda ready: True) if language == "bash" else (lambda ready: ready.get("warm")))
                        memory = ready.get("memoryBytes", memory)
                        time.sleep(0.3)
                    else:
                        sandbox.until_warm(lambda ready: True)
                    begun = time.monotonic()
                    sandbox.ask(source)
                    sandbox.answer()
                    taken.append((time.monotonic() - begun) * 1000)
                    sandbox.close()
        medians = {way: round(sorted(taken)[len(taken) // 2], 1) for way, taken in figures.items()}
        print(language, medians, "memory", memory and round(memory / 2**20, 1), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", help="a language, or part of a name; all when absent")
    parser.add_argument("--prefix", default=os.environ.get("RUNNER_PREFIX", "runner-"), help="of the images' names")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--time", type=int, metavar="ROUNDS", help="measure instead")
    given = parser.parse_args()
    if given.time:
        return measure(given.prefix, given.time)
    sys.exit(1 if check_all(given.prefix, given.programs, given.jobs) else 0)


main()
