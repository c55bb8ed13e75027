"""One program in one container of a runner image, with the restrictions that the server sets: by the plain entrypoint
(/opt/runner/run), or by protocol 1 in frames (runners/README.md)."""

import json
import os
import pathlib
import struct
import subprocess
import threading
import time

LIMIT_SECONDS = 60
SECCOMP = pathlib.Path(__file__).resolve().parents[2] / "src/adapters/engine/docker/seccomp.json"


def profile(folder):
    words = """--network none --read-only --tmpfs /tmp:rw,nosuid,nodev,noexec,size=64m,mode=1777 --user 70123:70123
        --cap-drop ALL --security-opt no-new-privileges --memory 256m --memory-swap 256m --cpus 0.5 --pids-limit 128
        --shm-size 16m --log-driver none --ulimit fsize=104857600 --ulimit nofile=1024 --ulimit core=0""".split()
    return [*words, "--security-opt", f"seccomp={SECCOMP}", "--mount", f"type=bind,source={folder},target=/data"]


def container_name():
    return f"check-runners-{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}"


def run_plain(image, source, folder):
    """The status, standard output and standard error of the entrypoint."""
    name = container_name()
    command = ["docker", "run", "-i", "--rm", "--name", name, *profile(folder), "--entrypoint", "/opt/runner/run"]
    try:
        done = subprocess.run([*command, image], input=source, capture_output=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        # Without its client, the program goes on in its container.
        subprocess.run(["docker", "rm", "-f", name], capture_output=True)
        raise
    return done.returncode, done.stdout, done.stderr


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


def run_frames(image, source, folder, prepare):
    """The same by protocol 1. `prepare` waits until the sandbox is in the state in which the program is sent to it."""
    sandbox = Sandbox(image, folder)
    watchdog = threading.Timer(LIMIT_SECONDS, sandbox.process.kill)
    watchdog.start()
    try:
        prepare(sandbox)
        sandbox.ask(source)
        end, stdout, stderr = sandbox.answer()
        status = end["status"] if "status" in end else 128 + end["signal"] if "signal" in end else end
        if sandbox.process.wait(10) != 0:
            status = f"{status}, and the container's own is {sandbox.process.returncode}"
        return status, stdout, stderr
    finally:
        watchdog.cancel()
        sandbox.close()
