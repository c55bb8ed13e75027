"""Programs in pods through a server of ours, with files that travel. A part of bench-kubernetes.py, which has the
cluster."""

import contextlib
import http.client
import json
import os
import secrets
import socket
import statistics
import subprocess
import tempfile
import time

TOKEN = secrets.token_hex(16)
# What a file of this size may add to a run.
FILE_BYTES, ADDED_MS_MAX = 10_000_000, 150
# How long a run may take with a standby, and how many times as long as the same pod bare without one.
WARM_MS_MAX, COLD_TIMES_MAX = 100, 1.3


class Server:
    """A server of ours on the cluster, whose only runner is the image of the pods."""

    def __init__(self, cluster, options, folder, more):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = free.getsockname()
        url = f"http://127.0.0.1:{self.address[1]}"
        settings = {
            "MCP_API_TOKEN": TOKEN, "FILE_SECRET": secrets.token_hex(16), "SANDBOX_ROOT": f"{folder}/root",
            "MCP_HTTP_ADDR": url.removeprefix("http://"), "PUBLIC_BASE_URL": url, "SANDBOX_ENGINE__KIND": "kubernetes",
            "SANDBOX_ENGINE__NAMESPACE": cluster.namespace, "SANDBOX_ENGINE__RUNTIME": options.runtime_class,
            "SANDBOX_ENGINE__FILES": "streamed", **more}
        self.process = subprocess.Popen([options.server.resolve(), "serve"], env={**os.environ, **settings}, cwd=folder)

    def call(self, method, path, body=None):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if isinstance(body, dict):
            body, headers["Content-Type"] = json.dumps(body), "application/json"
        with contextlib.closing(http.client.HTTPConnection(*self.address, timeout=120)) as connection:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def until_ready(self):
        until = time.monotonic() + 120
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.call("GET", "/readyz")[0] == 200:
                    return
            time.sleep(0.2)
        raise RuntimeError("the server is not ready")

    def run_ms(self, conversation, program):
        """How long a program took, from the request to the answer."""
        body = {"conversationId": conversation, "language": "bench", "code": program, "wait": 60}
        began = time.monotonic()
        status, answer = self.call("POST", "/v1/runs", body)
        took = (time.monotonic() - began) * 1000
        if status != 200 or "hello" not in (json.loads(answer).get("result") or {}).get("stdout", ""):
            raise RuntimeError(f"{status} {answer[:300]!r}")
        return took

    def end(self):
        self.process.terminate()
        self.process.wait(60)


@contextlib.contextmanager
def serving(cluster, options, **more):
    """A server that is ready, with some settings of its own."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(cluster, options, folder, more)
        try:
            server.until_ready()
            yield server
        finally:
            server.end()


def held(what, value, most, unit):
    """Says whether a figure is at most what it may be."""
    print(f"{what} {value:.2f} {unit}, at most {most} {unit}:", "ok" if value <= most else "MISSED")


def measure(cluster, options, row, bare):
    """Prints how long runs take with a standby, with one and a file of the conversation, and without one, beside the
    same pod without a server, whose time in ms is what `bare` returns; `row` prints one of a table."""
    name, templates = "bench-travelling", cluster.pods.replace("/pods", "/podtemplates")
    body = {"apiVersion": "v1", "kind": "PodTemplate",
            "metadata": {"name": name, "labels": {"sandbox.runner": "true", "sandbox.language": "bench"},
                         "annotations": {"sandbox.protocol": "2"}},
            "template": {"spec": {"containers": [
                {"name": "sandbox", "image": options.image, "imagePullPolicy": "IfNotPresent"}]}}}
    cluster.call(cluster.connect(), "POST", templates, body)
    warm, cold = {"none": [], "large": []}, {"cold": [], "bare": []}
    try:
        with serving(cluster, options) as server:
            status, answer = server.call("PUT", "/v1/conversations/large/files/file", os.urandom(FILE_BYTES))
            if status >= 300:
                raise RuntimeError(f"{status} {answer[:300]!r}")
            for turn in range(options.turns + 1):
                for conversation, measured in warm.items():
                    # The conversation's standby has come by then.
                    time.sleep(3)
                    took = server.run_ms(conversation, options.program)
                    # The first has none.
                    if turn:
                        measured.append(took)
        with serving(cluster, options, SANDBOX_STANDBY__TOTAL_MAX="0") as server:
            for turn in range(options.turns):
                cold["bare"].append(bare())
                cold["cold"].append(server.run_ms(f"cold-{turn}", options.program))
    finally:
        cluster.call(cluster.connect(), "DELETE", f"{templates}/{name}")
    print(f"\nthrough a server: {options.turns} runs of each in turns, from the request to the answer\n")
    print("| | median | 90 % |\n| --- | --- | --- |")
    row("with a standby, 3 s apart", warm["none"])
    row(f"the same with a file of {FILE_BYTES / 1e6:.0f} MB", warm["large"])
    row("cold, each in a new conversation", cold["cold"])
    row("the same pod bare, until its output", cold["bare"])
    median = {what: statistics.median(times) for what, times in (warm | cold).items()}
    print()
    held("with a standby a run takes", median["none"], WARM_MS_MAX, "ms")
    held("the file adds", median["large"] - median["none"], ADDED_MS_MAX, "ms")
    held("cold, a run takes", median["cold"] / median["bare"], COLD_TIMES_MAX, "times the bare pod")
