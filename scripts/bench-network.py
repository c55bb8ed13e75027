#!/usr/bin/env python3
"""What a connection by permission costs, beside the same connection of a container on a Docker bridge.

Both download from one server on this machine, in turns of one run, into a folder that is mounted at /data, with the
limits of a usual run (0.5 CPU, 256 MiB). Prints medians and ratios. Needs Docker, openssl, the runner images
(./build.sh) and cargo, or a server's binary as SERVER.

usage: scripts/bench-network.py [ROUNDS]    5 without an argument
"""

import functools
import http.server
import json
import os
import pathlib
import shutil
import secrets
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

MEGABYTES = 100
SMALL_REQUESTS = 20
HELLOS = 30
TOKEN = "0123456789abcdef-of-the-bench"
IMAGE = os.environ.get("RUNNER_PREFIX", "runner-") + "python"
BODY = bytes(1 << 20)

# Prints seconds for the first byte of small requests, and for a download of the same kind.
PROGRAM = """
import ssl, time, urllib.request, json, http.client
url, count = "%s", %d
context = ssl._create_unverified_context()
opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
def one(path):
    began = time.perf_counter()
    answer = opener.open(url + path)
    answer.read(1)
    return time.perf_counter() - began, answer
small = [one("/small")[0] for _ in range(count)]
began = time.perf_counter()
answer = opener.open(url + "/large")
with open("/data/large", "wb") as file:
    while piece := answer.read(1 << 18):
        file.write(piece)
print(json.dumps({"small": small, "large": time.perf_counter() - began}))
"""


class Origin(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        pieces = MEGABYTES if self.path == "/large" else 0
        self.send_response(200)
        self.send_header("Content-Length", str(pieces * len(BODY) or 5))
        self.end_headers()
        if not pieces:
            self.wfile.write(b"hello")
        for _ in range(pieces):
            self.wfile.write(BODY)

    def log_message(self, *arguments):
        pass


def serve(address, folder=None):
    """An origin; over TLS with a certificate of the folder's. Its URL."""
    server = http.server.ThreadingHTTPServer((address, 0), Origin)
    if folder:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"{'https' if folder else 'http'}://{address}:{server.server_port}"


def gateway():
    """The address of this machine that containers on the bridge reach."""
    shown = subprocess.run(["docker", "network", "inspect", "bridge"], check=True, capture_output=True, text=True)
    config = json.loads(shown.stdout)[0]["IPAM"]["Config"][0]
    return config.get("Gateway") or config["Subnet"].rsplit(".", 1)[0] + ".1"


def make_certificate(folder, address):
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    names = ["-subj", "/CN=bench", "-addext", f"subjectAltName=IP:{address}"]
    files = ["-keyout", folder / "key.pem", "-out", folder / "certificate.pem"]
    command = ["openssl", "req", "-x509", "-nodes", "-days", "2", *curve, *names, *files]
    subprocess.run(command, check=True, capture_output=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, binary, root, hosts):
        self.url = f"http://127.0.0.1:{free_port()}"
        setting = {
            "MCP_API_TOKEN": TOKEN, "FILE_SECRET": secrets.token_hex(32), "SANDBOX_ROOT": str(root),
            "MCP_HTTP_ADDR": self.url[7:], "PATH": os.environ["PATH"], "SANDBOX_LOG__LEVEL": "error",
        }
        if hosts:
            setting["SANDBOX_NETWORK__BENCH"] = ",".join(hosts)
        self.process = subprocess.Popen([binary, "serve"], env=setting)
        while not self.ready():
            if self.process.poll() is not None:
                sys.exit("the server did not start")
            time.sleep(0.1)

    def ready(self):
        try:
            return urllib.request.urlopen(self.url + "/readyz").status == 200
        except OSError:
            return False

    def run(self, code, conversation):
        body = json.dumps({"conversationId": conversation, "language": "python", "code": code}).encode()
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + "/v1/runs", body, headers)
        answer = json.load(urllib.request.urlopen(request))
        if answer["outcome"].get("exitCode") != 0:
            sys.exit(f"a program failed: {answer}")
        return answer["result"]["stdout"]


def on_bridge(folder, code):
    command = ["docker", "run", "--rm", "-i", "--cpus", "0.5", "-m", "256m", "--read-only", "--tmpfs", "/tmp",
               "-v", f"{folder}:/data", "--user", "1000:1000", "--entrypoint", "python3", IMAGE, "-P", "-"]
    return subprocess.run(command, input=code, check=True, capture_output=True, text=True).stdout


def milliseconds(seconds):
    return statistics.median(seconds) * 1000


def hellos(servers):
    """Median milliseconds of a program that prints, by server, in turns."""
    took = {name: [] for name in servers}
    for number in range(HELLOS + 3):
        for name, server in servers.items():
            began = time.perf_counter()
            server.run("print(1)", f"hello-{name}")
            took[name].append(time.perf_counter() - began)
            time.sleep(0.5)
    return {name: milliseconds(all_of[3:]) for name, all_of in took.items()}


def compare(rounds, urls, server, data):
    measured = {}
    ways = {"bridge": functools.partial(on_bridge, data), "channel": functools.partial(server.run, conversation="c")}
    for _ in range(rounds):
        for kind, url in urls.items():
            for way, run in ways.items():
                one = json.loads(run(code=PROGRAM % (url, SMALL_REQUESTS)))
                speed, first = MEGABYTES / one["large"], milliseconds(one["small"])
                measured.setdefault((kind, way), []).append((speed, first))
    print(f"{rounds} rounds, {MEGABYTES} MiB to /data by urllib, 0.5 CPU; medians")
    print("        bridge, MiB/s   channel, MiB/s   ratio   first byte, ms: bridge   channel   later")
    for kind in urls:
        bridge, channel = ([statistics.median(all_of) for all_of in zip(*measured[kind, way])] for way in ways)
        print(f"{kind:6} {bridge[0]:14.0f} {channel[0]:16.0f} {channel[0] / bridge[0]:7.2f}", end="")
        print(f" {bridge[1]:24.2f} {channel[1]:9.2f} {channel[1] - bridge[1]:7.2f}")


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    os.chdir(pathlib.Path(__file__).parent.parent)
    binary = os.environ.get("SERVER")
    if not binary:
        subprocess.run(["cargo", "build", "--release", "--locked"], check=True)
        binary = "target/release/mcp-sandbox-server"
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bench-network-"))
    address = gateway()
    make_certificate(folder, address)
    urls = {"HTTP": serve(address), "HTTPS": serve(address, folder)}
    data = folder / "data"
    data.mkdir()
    data.chmod(0o777)
    hosts = [url.split("//")[1] for url in urls.values()]
    servers = {}
    try:
        servers["with"] = Server(binary, folder / "with", hosts)
        servers["without"] = Server(binary, folder / "without", [])
        compare(rounds, urls, servers["with"], data)
        hello = hellos(servers)
        print(f"a program that prints: {hello['without']:.2f} ms without a policy, {hello['with']:.2f} ms with one")
    finally:
        for server in servers.values():
            server.process.terminate()
            server.process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
