"""A session in a runner image, as the server would hold it: docker run with the server's restrictions, the frames of
protocol 1, and in them the messages of the bridge (runners/README.md, protocol 2)."""

import json
import os
import queue
import struct
import subprocess
import tempfile
import threading
import time
import uuid

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PREFIX = os.environ.get("RUNNER_PREFIX", "runner-")
PATIENCE = 60  # seconds that any answer may take; nothing is measured against it
CHANNELS = ("shell", "control", "stdin", "iopub", "bridge")


class Over(Exception):
    """The session has ended: its EXIT or ERROR."""


def profile(memory, cpus=os.environ.get("CPUS", "0.5")):
    return f"""--network none --read-only --tmpfs /tmp:rw,nosuid,nodev,noexec,size=64m,mode=1777 --user 1000:1000
        --cap-drop ALL --security-opt no-new-privileges
        --security-opt seccomp={ROOT}/src/adapters/engine/docker/seccomp.json --memory {memory} --memory-swap {memory}
        --cpus {cpus} --pids-limit 128 --shm-size 16m --log-driver none
        --ulimit fsize=104857600 --ulimit nofile=1024 --ulimit core=0""".split()


def label(image, name):
    form = '{{index .Config.Labels "%s"}}' % name
    text = subprocess.run(["docker", "image", "inspect", "-f", form, image], capture_output=True, text=True, check=True)
    return text.stdout.strip()


def encode(channel, header, parent, metadata, content, buffers=()):
    parts = [channel.encode(), *(json.dumps(part).encode() for part in (header, parent, metadata, content)), *buffers]
    offsets = [8 * (2 + len(parts))]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    text = struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(parts)
    return struct.pack(">I", len(text)) + text


def decode(text):
    (count,) = struct.unpack_from("<Q", text)
    offsets = struct.unpack_from(f"<{count}Q", text, 8)
    channel, *parts = (text[a:b] for a, b in zip(offsets, offsets[1:]))
    header, parent, metadata, content = (json.loads(part) for part in parts[:4])
    return {"channel": channel.decode(), "header": header, "parent": parent, "metadata": metadata, "content": content,
            "buffers": parts[4:]}  # fmt: skip


class Session:
    def __init__(self, image, warm=1, kernel=None, data=None, paused=False):
        """`warm`: how often the interpreter reports that it is, before the session begins."""
        self.image = PREFIX + image
        kernel = kernel or label(self.image, "sandbox.kernel")
        memory = label(self.image, "sandbox.memory-bytes") or "256m"
        self.name = "kernels-" + uuid.uuid4().hex[:12]
        self.folder = data or tempfile.mkdtemp()
        os.chmod(self.folder, 0o777)
        command = ["docker", "run", "-i", "--rm", "--name", self.name, *profile(memory), "--mount",
                   f"type=bind,source={self.folder},target=/data", self.image]  # fmt: skip
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.messages = queue.Queue()
        self.ready_frames = queue.Queue()
        self.stderr = b""
        self.exit = None
        self.id = uuid.uuid4().hex
        self.reads = threading.Event()
        self.reads.set()
        threading.Thread(target=self._read, daemon=True).start()
        self.loaded = None
        for _ in range(warm):
            self.loaded = self._until_warm()
        self.began = time.monotonic()
        self.frame(0x01, json.dumps({"kernel": kernel, "wallMs": 600_000}).encode())
        self.frame(0x03)
        self.first = self.next()
        self.took_ms = (time.monotonic() - self.began) * 1000

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.exit is None:
            subprocess.run(["docker", "kill", self.name], capture_output=True)
        self.process.wait()

    def _until_warm(self):
        while True:
            frame = self.ready_frames.get(timeout=PATIENCE)
            if frame.get("warm"):
                return frame

    def frame(self, kind, payload=b""):
        for at in range(0, len(payload) or 1, 1 << 20):
            piece = payload[at : at + (1 << 20)]
            self.process.stdin.write(struct.pack(">BI", kind, len(piece)) + piece)
        self.process.stdin.flush()

    def _read(self):
        pipe, text = self.process.stdout, b""
        while len(head := pipe.read(5)) == 5:
            self.reads.wait()
            kind, length = struct.unpack(">BI", head)
            payload = pipe.read(length)
            if kind == 0x81:
                self.ready_frames.put(json.loads(payload))
            elif kind == 0x82:
                text += payload
                while len(text) >= 4 and len(text) >= 4 + (size := struct.unpack(">I", text[:4])[0]):
                    self.messages.put(decode(text[4 : 4 + size]))
                    text = text[4 + size :]
            elif kind == 0x83:
                self.stderr += payload
            else:
                self.exit = json.loads(payload)
                self.messages.put(None)
        self.messages.put(None)

    def next(self, timeout=PATIENCE):
        message = self.messages.get(timeout=timeout)
        if message is None:
            raise Over(self.exit)
        return message

    def until(self, wanted, timeout=PATIENCE):
        """The messages up to the first that is wanted."""
        seen = []
        while True:
            seen.append(self.next(timeout))
            if wanted(seen[-1]):
                return seen

    def until_runs(self, command):
        """Waits until a process of this name is in the sandbox."""
        top, end = ["docker", "top", self.name, "-o", "pid,comm"], time.monotonic() + PATIENCE
        while command not in subprocess.run(top, capture_output=True, text=True, check=True).stdout.split():
            assert time.monotonic() < end, f"{command} did not start"
            time.sleep(0.05)

    def send(self, channel, kind, content, parent=None):
        header = {"msg_id": uuid.uuid4().hex, "session": self.id, "username": "test", "msg_type": kind,
                  "date": "2026-01-01T00:00:00Z", "version": "5.3"}  # fmt: skip
        if channel == "bridge":
            header = {"msg_type": kind}
        self.frame(0x04, encode(channel, header, parent or {}, {}, content))
        return header.get("msg_id")

    def begin(self, code, **more):
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": True,
                   "stop_on_error": False, **more}  # fmt: skip
        return self.send("shell", "execute_request", content)

    def finish(self, cell):
        """What a cell caused, up to its reply and the idle status."""
        seen, replied, idle = [], False, False
        while not (replied and idle):
            message = self.next()
            if message["parent"].get("msg_id") == cell or message["channel"] == "bridge":
                seen.append(message)
                replied |= message["header"]["msg_type"] == "execute_reply"
                idle |= message["content"].get("execution_state") == "idle"
        return Cell(seen)

    def run(self, code, **more):
        return self.finish(self.begin(code, **more))

    def interrupt(self):
        self.send("bridge", "interrupt", {})

    def figures(self):
        self.send("bridge", "figures", {})
        return self.until(lambda message: message["header"]["msg_type"] == "figures")[-1]["content"]


class Cell:
    def __init__(self, messages):
        self.messages = messages

    def of(self, kind):
        return [message["content"] for message in self.messages if message["header"]["msg_type"] == kind]

    @property
    def reply(self):
        return self.of("execute_reply")[0]

    @property
    def text(self):
        return "".join(part["text"] for part in self.of("stream"))

    @property
    def result(self):
        return self.of("execute_result")[0]["data"]["text/plain"]
