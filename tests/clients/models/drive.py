#!/usr/bin/env python3
"""Runs the clients of clients.toml against the server with stand_in.py as their model, and checks what reached the
model. Compares the result with docs/clients.md; UPDATE=1 rewrites it.

drive.py [NAME...]   all clients, or these only; the document is compared when all have run
  SERVER=<path>      the server's binary, instead of dist/mcp-sandbox-server
  KEEP=<folder>      keep what the clients printed and sent there"""

import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from install import CLIENTS, FOLDER, ROOT, install, left, programs
from report import compare, faults, judge
from stand_in import StandIn

TOKEN = "0123456789abcdef-of-the-clients"
BINARY = os.environ.get("SERVER", ROOT / "dist/mcp-sandbox-server")
CLIENT_S_MAX, AT_ONCE = 120, 2
# The stand-in is the clients' proxy and refuses every other host.
PROXIES = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"]
ALONE = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "NODE_USE_ENV_PROXY": "1", "DO_NOT_TRACK": "1"}


class Server:
    """The server on a free port, with a folder of its own."""

    def __init__(self, folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % probe.getsockname()[1]
        self.base = f"http://{address}"
        environment = {name: os.environ[name] for name in ["PATH", "DOCKER_HOST"] if name in os.environ} | {
            "MCP_API_TOKEN": TOKEN, "FILE_SECRET": TOKEN[::-1], "SANDBOX_ROOT": str(folder / "root"),
            "PUBLIC_BASE_URL": self.base, "MCP_HTTP_ADDR": address,
            "SANDBOX_ENGINE__RUNNER_UID": str(os.getuid() or 1000)}
        self.log = folder / "server.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen([BINARY, "serve"], env=environment, cwd=folder, stdout=log, stderr=log)

    def __enter__(self):
        for _ in range(300):
            try:
                return urllib.request.urlopen(self.base + "/readyz") and self
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        self.__exit__()
        raise SystemExit(f"the server does not become ready:\n{self.log.read_text()}")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def tools(self):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
        head = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.base + "/mcp", body, head)
        return [tool["name"] for tool in json.load(urllib.request.urlopen(request))["result"]["tools"]]


def run(name, server, model, folder):
    """Runs one client to its end. Returns what it printed, how it ended and the seconds that it took."""
    client, home = CLIENTS[name], folder / name
    home.mkdir()

    def real(text):
        return (text.replace("http://localhost:8080/mcp", server.base + "/mcp").replace("TOKEN", TOKEN)
                .replace("MODEL", f"{model.url}/{name}"))

    files, command = dict(client.get("files", {})), client["run"]
    if "file" in client:
        files[client["file"]] = client["snippet"] + client.get("rest", "")
    else:
        command = client["snippet"] + command
    for path, text in files.items():
        (home / path).parent.mkdir(exist_ok=True)
        (home / path).write_text(real(text))
    return execute(name, real(command), home, model, {key: real(value) for key, value in client.get("env", {}).items()})


def execute(name, command, home, model, variables):
    """Runs a command of a client in a folder, to its end. Returns what `run` returns."""
    began = time.monotonic()
    (home / "node_modules").symlink_to(FOLDER / "npm/node_modules")
    environment = ALONE | dict.fromkeys(PROXIES, model.url) | {"HOME": str(home), "PATH": programs(name)} | variables
    log = home.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(["bash", "-ec", command], cwd=home, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=output, start_new_session=True)
    try:
        ended = f"exit status {process.wait(left(CLIENT_S_MAX))}"
    except subprocess.TimeoutExpired:
        ended = "stopped, its time was over"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # What it has left running ends too.
    process.wait()
    return log.read_text(errors="replace"), ended, time.monotonic() - began


# The server and the stand-in are on this machine, whatever proxy it has.
urllib.request.install_opener(urllib.request.build_opener(urllib.request.ProxyHandler({})))


def main(names):
    install(names or CLIENTS)
    rows, failed, began = {}, [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="clients-") as folder, Server(Path(folder)) as server:
        model, folder = StandIn(), Path(folder)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            jobs = {name: pool.submit(run, name, server, model, folder) for name in names or CLIENTS}
        for name, job in jobs.items():
            printed, ended, took = job.result()
            rows[name] = judge(name, server, model)
            wrong = faults(name, rows[name], ended)
            verdict = "FAILED" if wrong else "ok"
            print(f"{verdict:6}  {name:14} {took:3.0f} s  {'; '.join(wrong) or rows[name]}", flush=True)
            if "KEEP" in os.environ:
                Path(os.environ["KEEP"], name + ".json").write_text(json.dumps(model.requests.get(name), indent=1))
                Path(os.environ["KEEP"], name + ".txt").write_text(printed)
            if wrong:
                failed.append(name)
                print("  it printed:\n" + "\n".join("    " + line for line in printed.splitlines()[-30:]))
    print(f"hosts that were refused: {', '.join(sorted(model.outside)) or 'none'}")
    print(f"{len(rows)} clients in {time.monotonic() - began:.0f} s")
    if failed:
        raise SystemExit(f"wrong: {', '.join(failed)}")
    if not names:
        compare(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
