#!/usr/bin/env python3
"""What a tool call from a program costs, beside the same call on this machine: by the official SDK, and by requests on
one connection, without any library of MCP.

All call one MCP server of the SDK over HTTP (tests/tools/server.py), in turns of one run; the program is in a sandbox
with the limits of a usual run. Prints medians of one call and what is added. Needs Docker, the runner images
(./build.sh), the SDK that ./test.sh installs, and cargo, or a server's binary as SERVER.

usage: scripts/bench-tools.py [ROUNDS]    5 without an argument
"""

import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = ROOT / "target/test-tools/mcp1/bin/python"
TOKEN = "0123456789abcdef-of-the-bench"
CALLS = 200

# Prints the seconds of each call.
DIRECT = """
import asyncio, json, sys, time
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
async def main(url, count):
    async with streamablehttp_client(url) as (read, write, _):
        async with ClientSession(read, write) as session:
            await session.initialize()
            await session.call_tool("add", {"a": 0})
            took = []
            for number in range(count):
                began = time.perf_counter()
                await session.call_tool("add", {"a": number})
                took.append(time.perf_counter() - began)
            print(json.dumps(took))
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""
BARE = """
import http.client, json, sys, time
port, count = int(sys.argv[1]), int(sys.argv[2])
connection = http.client.HTTPConnection("127.0.0.1", port)
head = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
def ask(message):
    connection.request("POST", "/mcp", json.dumps({"jsonrpc": "2.0", **message}), head)
    answer = connection.getresponse()
    return answer, answer.read().decode()
client = {"name": "bare", "version": "1"}
params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
answer, _ = ask({"id": 0, "method": "initialize", "params": params})
if answer.headers["Mcp-Session-Id"]: head["Mcp-Session-Id"] = answer.headers["Mcp-Session-Id"]
ask({"method": "notifications/initialized"})
def call(number):
    _, text = ask({"id": number + 1, "method": "tools/call", "params": {"name": "add", "arguments": {"a": number}}})
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")] or [text]
    return json.loads(lines[-1])["result"]["structuredContent"]["total"]
call(0)
took = []
for number in range(count):
    began = time.perf_counter()
    call(number)
    took.append(time.perf_counter() - began)
print(json.dumps(took))
"""
PROGRAM = """
import json, time
from mcptools.bench.add import run
run(a=0)
took, total = [], 0
for number in range(%d):
    began = time.perf_counter()
    total += run(a=number).total
    took.append(time.perf_counter() - began)
print(json.dumps(took))
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ask(url, method, body):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request) as answer:
        text = answer.read()
        return json.loads(text) if text else None


def until(answers):
    for _ in range(200):
        try:
            return urllib.request.urlopen(answers).close()
        except urllib.error.HTTPError:
            return None
        except OSError:
            time.sleep(0.1)
    sys.exit(f"{answers} does not answer")


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    server = os.environ.get("SERVER")
    if not server:
        subprocess.run(["cargo", "build", "--release", "--locked"], cwd=ROOT, check=True)
        server = ROOT / "target/release/mcp-sandbox-server"
    upstream, own = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "PATH": os.environ["PATH"], "MCP_API_TOKEN": TOKEN, "FILE_SECRET": TOKEN[::-1],
            "SANDBOX_ROOT": f"{folder}/root", "MCP_HTTP_ADDR": f"127.0.0.1:{own}", "SANDBOX_LOG__LEVEL": "error",
        }  # fmt: skip
        tools = subprocess.Popen(
            [PYTHON, ROOT / "tests/tools/server.py", str(upstream), f"{folder}/deleted"], stderr=subprocess.DEVNULL
        )
        sandbox = subprocess.Popen([server, "serve"], env=environment, cwd=folder)
        try:
            url, base = f"http://127.0.0.1:{upstream}/mcp", f"http://127.0.0.1:{own}"
            until(url)
            until(f"{base}/healthz")
            ask(f"{base}/v1/tool-servers/bench", "PUT", {"server": {"url": url}})
            program = {"language": "python", "code": PROGRAM % CALLS, "conversationId": "bench"}
            # The modules are made before anything is measured.
            ask(f"{base}/v1/runs", "POST", program)
            direct, bare, within = [], [], []
            for _ in range(rounds):
                said = subprocess.run([PYTHON, "-c", DIRECT, url, str(CALLS)], capture_output=True, check=True)
                direct += json.loads(said.stdout)
                said = subprocess.run([PYTHON, "-c", BARE, str(upstream), str(CALLS)], capture_output=True, check=True)
                bare += json.loads(said.stdout)
                within += json.loads(ask(f"{base}/v1/runs", "POST", program)["result"]["stdout"])
        finally:
            for process in (sandbox, tools):
                process.terminate()
                process.wait()
    sdk, bare, other = (statistics.median(took) * 1000 for took in (direct, bare, within))
    print(f"{rounds} rounds of {CALLS} calls, medians of one call")
    print(f"from a program                        {other:6.2f} ms")
    for name, one in [("by the SDK on this machine", sdk), ("by bare requests on this machine", bare)]:
        print(f"{name:36}  {one:6.2f} ms   ratio {other / one:.2f}, added {other - one:+.2f} ms")


if __name__ == "__main__":
    main()
