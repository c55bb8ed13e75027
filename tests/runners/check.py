"""Runs every program here by the plain entrypoint, whose result a case may state, and by protocol 1: at once or after
the interpreter said that it is warm, and for Python also while it loads the rest or when it has loaded it. The same
output, status and files are wanted in all ways, byte for byte.

The programs are the cases beside this file (README.md) and those in `awkward/`, which state no result. `--time`
measures instead: GO to EXIT of a short program, and memory at rest.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zlib

from sandbox import Sandbox, run_frames, run_plain

HERE = pathlib.Path(__file__).resolve().parent
# As in sandbox_warm.py, and how long loading takes with the CPU of a program.
LOADS_AFTER_SECONDS, LOADS_FOR_SECONDS = 1.0, 1.2
ENDINGS = {".py": "python", ".js": "javascript", ".ts": "typescript", ".sh": "bash"}

# What differs between any two runs of one program, and is not compared. A program avoids the rest.
NORMAL = [
    (re.compile(rb"0x[0-9a-f]{6,}"), b"0xADDRESS"),  # where an object lies
    (re.compile(rb"figure-\d+\.png: \d+"), b"figure"),
    (re.compile(rb"\(node:\d+\)"), b"(node:PID)"),  # a warning of Node names its process
    (re.compile(rb"/tmp/main\.sh: line (\d+): +\d+ "), rb"/tmp/main.sh: line \1: PID "),  # so does Bash
]

# They hold times, or names made anew in every run.
ARCHIVES = {".tgz", ".zip", ".xlsx", ".docx", ".pptx", ".pdf", ".svg", ".html"}


class Program:
    """A program, what lies in /data before it, and what a case states of its result, by section."""

    def __init__(self, path):
        self.name = f"{path.parent.name}/{path.name}"
        if path.suffix == ".case":
            self.language = path.parent.name
            self.stated = dict(self._sections(path.read_bytes()))
            self.source = self.stated.pop("program")
            self.files = {name[5:]: body for name, body in self.stated.items() if name.startswith("file ")}
            self.stated.setdefault("status", b"0")
        else:
            self.language = ENDINGS[path.suffix]
            self.source, self.files, self.stated = path.read_bytes(), {}, {}

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
        self.status, self.stdout, self.stderr = status, stdout, stderr
        self.names = sorted(file.name for file in folder.iterdir())
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

    def faults(self, stated):
        """What is not as the case states it."""
        if "status" in stated and str(self.status) != stated["status"].decode().strip():
            yield f"status {self.status} instead of {stated['status'].decode().strip()}"
        if "stdout" in stated and self.stdout != stated["stdout"]:
            yield f"standard output:\n      wanted: {shown(stated['stdout'])}\n      was:    {shown(self.stdout)}"
        if stated.get("stderr") == b"" and self.stderr:
            yield "standard error is not empty"
        for line in filter(None, stated.get("stderr", b"").splitlines()):
            if line not in self.stderr:
                yield f"standard error lacks: {line.decode()}"
        for line in filter(None, stated.get("stderr lacks", b"").splitlines()):
            if line in self.stderr:
                yield f"standard error has: {line.decode()}"
        if "files" in stated and self.names != sorted(stated["files"].decode().splitlines()):
            yield f"files in /data: {self.names}"

    def differences(self, other):
        for name in sorted({*self.parts, *other.parts}):
            mine, theirs = self.parts.get(name), other.parts.get(name)
            if mine != theirs:
                yield f"{name}:\n      plain: {shown(mine)}\n      this:  {shown(theirs)}"


def shown(part):
    return repr(part if not isinstance(part, bytes) or len(part) < 1500 else part[:700] + b" ... " + part[-700:])


def moment_of(program):
    """A number from 0 to 1 that is always the same for a program."""
    return zlib.crc32(program.name.encode()) / 0xFFFFFFFF


def ways_of(program, every_way):
    """Python is warm when it has what most programs import, and loads the rest when no program comes. A program is run
    in one of these ways, since each run starts a container; in every one with LONG=1."""
    ways = ["at once", "warm"] + (["loading", "loaded"] if program.language == "python" else [])
    return ways if every_way else [ways[zlib.crc32(program.name.encode()) % len(ways)]]


def prepare(sandbox, way, program):
    if way != "at once" and program.language != "bash":
        sandbox.until_warm()
    if way == "loaded":
        sandbox.until_warm()
    elif way == "loading":
        time.sleep(LOADS_AFTER_SECONDS + moment_of(program) * LOADS_FOR_SECONDS)


def run(way, image, program, folder):
    if way == "plain":
        return run_plain(image, program.source, folder)
    return run_frames(image, program.source, folder, lambda sandbox: prepare(sandbox, way, program))


def outcome(way, image, program):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="check-runners."))
    try:
        for name, body in program.files.items():
            (folder / name).write_bytes(body)
            (folder / name).chmod(0o666)
        folder.chmod(0o777)
        return Outcome(*run(way, image, program, folder), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check(prefix, program, only_plain):
    every_way = os.environ.get("LONG") == "1"
    image = prefix + program.language
    try:
        plain = outcome("plain", image, program)
        for fault in plain.faults(program.stated):
            yield f"  plain\n    {fault}\n    standard error was {shown(plain.stderr)}"
        for way in [] if only_plain else ways_of(program, every_way):
            for difference in plain.differences(outcome(way, image, program)):
                yield f"  {way}\n    {difference}"
    except Exception as error:
        yield f"  {type(error).__name__}: {error}"


def check_all(prefix, wanted, jobs, only_plain):
    paths = sorted(HERE.glob("*/*.case")) + sorted((HERE / "awkward").iterdir())
    programs = [
        program
        for program in map(Program, paths)
        if not wanted or any(word in program.name or word == program.language for word in wanted)
    ]
    if not programs:
        sys.exit("check-runners: there is no such program.")
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = pool.map(lambda program: list(check(prefix, program, only_plain)), programs)
        for program, found in zip(programs, results):
            if found:
                failed += 1
                print(f"FAILED {program.name}", *found, sep="\n", flush=True)
    print(f"{len(programs) - failed} passed, {failed} failed")
    return failed


HELLO = {
    "python": b"print(1)",
    "javascript": b"console.log(1)",
    "typescript": b"const n: number = 1; console.log(n)",
    "bash": b"echo 1",
}


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
                        ready = sandbox.until_warm(lambda ready: language == "bash" or ready.get("warm"))
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
    # A sandbox has half a processor, and waits for its interpreter to be warm.
    parser.add_argument("--jobs", type=int, default=3 * (os.cpu_count() or 1), help="how many programs at once")
    parser.add_argument("--plain", action="store_true", help="only the plain entrypoint, which is three times as fast")
    parser.add_argument("--time", type=int, metavar="ROUNDS", help="measure instead")
    given = parser.parse_args()
    if given.time:
        return measure(given.prefix, given.time)
    sys.exit(1 if check_all(given.prefix, given.programs, given.jobs, given.plain) else 0)


main()
