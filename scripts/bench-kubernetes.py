#!/usr/bin/env python3
"""Measures what a sandbox costs on a Kubernetes cluster without any server of ours: a pod is made, watched, attached
to, given a program in frames, and deleted, by plain HTTP. What the server adds is the difference to its own figures.

    eval "$(scripts/kubernetes-cluster.sh env)"; scripts/bench-kubernetes.py [--image I] [--pods N] [--at-once N]

Where scripts/kubernetes-cluster.sh made the cluster, the processor time of its processes is read as well. The pods have
the same isolation as the server's. Needs Python alone.

    cargo build --release; scripts/bench-kubernetes.py --pods 0 --server target/release/mcp-sandbox-server

With --server it also starts that server, with files that travel, and runs the program in a conversation without files
and in one with a file of 10 MB, in turns; then without standbys, in turns with bare pods. It says whether the figures
are at most what they may be.
"""

import argparse
import base64
import concurrent.futures
import http.client
import json
import os
import secrets
import socket
import ssl
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import bench_travelling

STATE = Path(os.environ.get("CLUSTER_STATE", "/var/lib/sandbox-cluster"))
STDOUT, EXIT = 0x82, 0x84


class Cluster:
    """The API server of KUBECONFIG, by a certificate or a token."""

    def __init__(self):
        text = subprocess.run(["kubectl", "config", "view", "--raw", "--minify", "--flatten", "-o", "json"],
                              check=True, capture_output=True).stdout
        view = json.loads(text)
        cluster, user = view["clusters"][0]["cluster"], view["users"][0]["user"]
        host, _, port = cluster["server"].removeprefix("https://").partition(":")
        self.host, self.port, self.token = host, int(port or 443), user.get("token")
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.tls = ssl.create_default_context(cadata=authority)
        if "client-certificate-data" in user:
            with tempfile.NamedTemporaryFile() as both:
                both.write(base64.b64decode(user["client-certificate-data"]))
                both.write(base64.b64decode(user["client-key-data"]))
                both.flush()
                self.tls.load_cert_chain(both.name)
        self.namespace = os.environ.get("CLUSTER_NAMESPACE", "sandbox")
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"

    def headers(self):
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def connect(self):
        return http.client.HTTPSConnection(self.host, self.port, context=self.tls, timeout=120)

    def call(self, connection, method, path, body=None):
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json", **self.headers()})
        answer = connection.getresponse()
        read = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {read[:300]!r}")
        return read

    def attach(self, name):
        """The streams of a pod as a WebSocket."""
        query = "container=sandbox&stdin=true&stdout=true&stderr=true"
        raw = self.tls.wrap_socket(socket.create_connection((self.host, self.port), 60), server_hostname=self.host)
        lines = [f"GET {self.pods}/{name}/attach?{query} HTTP/1.1", f"Host: {self.host}", "Connection: Upgrade",
                 "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: v4.channel.k8s.io",
                 f"Sec-WebSocket-Key: {base64.b64encode(secrets.token_bytes(16)).decode()}"]
        lines += [f"{key}: {value}" for key, value in self.headers().items()]
        raw.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        stream = raw.makefile("rb")
        status = stream.readline()
        if b" 101 " not in status:
            raise RuntimeError(f"attach to {name}: {status!r} {stream.read(500)!r}")
        while stream.readline() not in (b"\r\n", b""):
            pass
        return raw, stream


def send(raw, payload):
    """One message to the pod's standard input."""
    payload, mask = b"\x00" + payload, secrets.token_bytes(4)
    length = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + struct.pack(">H", len(payload))
    raw.sendall(b"\x82" + length + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)))


def messages(stream):
    """What the pod writes, by channel."""
    while head := stream.read(2):
        length = head[1] & 0x7F
        if length == 126:
            length = struct.unpack(">H", stream.read(2))[0]
        elif length == 127:
            length = struct.unpack(">Q", stream.read(8))[0]
        payload = stream.read(length)
        if head[0] & 0x0F == 8:
            return
        if payload:
            yield payload[0], payload[1:]


def frame(kind, payload=b""):
    return struct.pack(">BI", kind, len(payload)) + payload


def run_program(raw, stream, program):
    """Sends a program in frames; its output when its end was reported."""
    send(raw, frame(0x01, b"{}") + frame(0x02, program) + frame(0x03))
    read, output = b"", b""
    for channel, piece in messages(stream):
        if channel != 1:
            continue
        read += piece
        while len(read) >= 5:
            kind, length = struct.unpack(">BI", read[:5])
            if len(read) < 5 + length:
                break
            payload, read = read[5:5 + length], read[5 + length:]
            if kind == STDOUT:
                output += payload
            elif kind == EXIT:
                return output
    raise RuntimeError("the streams ended before the program did")


def pod(name, options):
    data = {"name": "data", "emptyDir": {}}
    mount = {"name": "data", "mountPath": "/data"}
    if options.claim:
        # As the server does: the folder is there before the pod, and the user's.
        folder = Path(os.environ["CLUSTER_CLAIM_FOLDER"]) / "bench" / name
        folder.mkdir(parents=True)
        os.chown(folder, 1000, 1000)
        data = {"name": "data", "persistentVolumeClaim": {"claimName": options.claim}}
        mount["subPath"] = f"bench/{name}"
    spec = {
        "restartPolicy": "Never", "automountServiceAccountToken": False, "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0, "dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000,
                            "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{
            "name": "sandbox", "image": options.image, "imagePullPolicy": "IfNotPresent",
            "stdin": True, "stdinOnce": True,
            "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                "capabilities": {"drop": ["ALL"]}},
            "resources": {"requests": {"cpu": "20m", "memory": "256Mi"},
                          "limits": {"cpu": "500m", "memory": "256Mi"}},
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, mount]}],
        "volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
                    data]}
    if options.runtime_class:
        spec["runtimeClassName"] = options.runtime_class
    metadata = {"name": name, "labels": {"bench": "sandbox"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class Watch:
    """The events of one pod, with the bytes that they took."""

    def __init__(self, cluster, name, version):
        self.connection, self.bytes, self.events = cluster.connect(), 0, 0
        query = f"watch=1&fieldSelector=metadata.name%3D{name}&resourceVersion={version}"
        self.connection.request("GET", f"{cluster.pods}?{query}", headers=cluster.headers())
        self.answer = self.connection.getresponse()

    def until(self, wanted):
        while line := self.answer.readline():
            self.bytes, self.events = self.bytes + len(line), self.events + 1
            event = json.loads(line)
            if wanted(event["type"], event["object"]):
                return
        raise RuntimeError("the watch ended")


def is_running(_, seen):
    states = seen.get("status", {}).get("containerStatuses", [])
    return any("running" in one["state"] for one in states)


def one(cluster, options, program, wait=None):
    """Times of one pod, in milliseconds since its creation was asked for. `wait` holds it back while it stands by."""
    name, times, connection = f"bench-{secrets.token_hex(6)}", {}, cluster.connect()
    connection.connect()
    began = time.monotonic()

    def mark(what):
        times[what] = (time.monotonic() - began) * 1000

    body = pod(name, options)
    version = json.loads(cluster.call(connection, "POST", cluster.pods, body))["metadata"]["resourceVersion"]
    mark("created")
    watch = Watch(cluster, name, version)
    try:
        watch.until(is_running)
        mark("running")
        if wait:
            wait()
            began = time.monotonic()
        raw, stream = cluster.attach(name)
        mark("attached")
        output = run_program(raw, stream, program)
        mark("output")
        if b"hello" not in output:
            raise RuntimeError(f"the program printed {output!r}")
        raw.close()
    finally:
        asked = time.monotonic()
        cluster.call(connection, "DELETE", f"{cluster.pods}/{name}?gracePeriodSeconds=0")
        times["delete"] = (time.monotonic() - asked) * 1000
    watch.until(lambda kind, _: kind == "DELETED")
    times["events"], times["bytes"] = watch.events, watch.bytes
    return times


def processor_ms():
    """Processor time of the cluster's processes, by name; nothing where they are not ours."""
    times = {}
    for file in (STATE / "pids").glob("*"):
        try:
            fields = Path(f"/proc/{file.read_text().strip()}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        name = file.name.rstrip("0123456789")
        ticks = int(fields[11]) + int(fields[12])
        times[name] = times.get(name, 0) + ticks * 1000 / os.sysconf("SC_CLK_TCK")
    return times


def resident_mib():
    """Memory of the cluster's processes, by name."""
    held = {}
    for file in (STATE / "pids").glob("*"):
        try:
            status = Path(f"/proc/{file.read_text().strip()}/status").read_text()
        except OSError:
            continue
        name = file.name.rstrip("0123456789")
        held[name] = held.get(name, 0) + int(status.partition("VmRSS:")[2].split()[0]) / 1024
    return held


def standing(cluster, options):
    """What pods cost that wait with their streams attached, as standbys do."""
    def begin(_):
        name, connection = f"bench-{secrets.token_hex(6)}", cluster.connect()
        body = pod(name, options)
        version = json.loads(cluster.call(connection, "POST", cluster.pods, body))["metadata"]["resourceVersion"]
        watch = Watch(cluster, name, version)
        watch.until(is_running)
        watch.connection.close()
        return name

    count, streams = options.standing, []
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        names = list(pool.map(begin, range(count)))
    try:
        time.sleep(5)
        before = resident_mib()
        streams = [cluster.attach(name) for name in names]
        time.sleep(5)
        after, processor = resident_mib(), processor_ms()
        time.sleep(10)
        idle = processor_ms()
    finally:
        for raw, _ in streams:
            raw.close()
        cluster.call(cluster.connect(), "DELETE", f"{cluster.pods}?labelSelector=bench%3Dsandbox&gracePeriodSeconds=0")
    print(f"\n{count} pods that wait, attached\n\nmemory of each stream, in KiB:", ", ".join(
        f"{name} {(after[name] - before[name]) * 1024 / count:.0f}" for name in sorted(after)
        if not name.startswith("holder")))
    print("processor time in 10 s, in ms:", ", ".join(
        f"{name} {idle[name] - processor[name]:.0f}" for name in sorted(idle) if not name.startswith("holder")))


def etcd_calls(cluster):
    text = cluster.call(cluster.connect(), "GET", "/metrics").decode()
    calls = {}
    for line in text.splitlines():
        if line.startswith("etcd_request_duration_seconds_count"):
            name = line.partition('operation="')[2].partition('"')[0]
            calls[name] = calls.get(name, 0) + float(line.rpartition(" ")[2])
    return calls


def row(title, values):
    values = sorted(values)
    tenth = values[min(len(values) - 1, int(len(values) * 0.9))]
    print(f"| {title} | {statistics.median(values):.0f} ms | {tenth:.0f} ms |")


def measure(title, cluster, options, count, at_once, wait=None):
    before, calls, began = processor_ms(), etcd_calls(cluster), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        jobs = [pool.submit(one, cluster, options, options.program.encode(), wait) for _ in range(count)]
        times = [job.result() for job in jobs]
    took, after, later = time.monotonic() - began, processor_ms(), etcd_calls(cluster)
    print(f"\n{title}: {count} pods, {at_once} at once, {count / took:.2f} a second\n")
    print("| | median | 90 % |\n| --- | --- | --- |")
    for what in ("created", "running", "attached", "output", "delete"):
        row(what, [one[what] for one in times])
    names = [name for name in sorted(after) if not name.startswith("holder")]
    used = {name: (after[name] - before.get(name, 0)) / count for name in names}
    print("\nprocessor time for each pod, in ms:", ", ".join(f"{name} {ms:.0f}" for name, ms in used.items()))
    print("calls of etcd for each pod:",
          ", ".join(f"{name} {(later[name] - calls.get(name, 0)) / count:.1f}" for name in sorted(later)))
    print(f"watch events for each pod: {statistics.mean(one['events'] for one in times):.1f},",
          f"{statistics.mean(one['bytes'] for one in times) / 1024:.1f} KiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="runner-javascript:latest", help="a framed runner that the nodes have")
    parser.add_argument("--program", default="console.log('hello')")
    parser.add_argument("--runtime-class", default=os.environ.get("CLUSTER_CLOSED_CLASS", ""))
    parser.add_argument("--claim", default=os.environ.get("CLUSTER_CLAIM", ""), help="empty: a folder of the node")
    parser.add_argument("--pods", type=int, default=20, help="bare pods of each kind; 0 leaves them out")
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--standing", type=int, default=30, help="pods that wait; 0 leaves them out")
    parser.add_argument("--server", type=Path, help="the binary of a server, to measure it too")
    parser.add_argument("--turns", type=int, default=12, help="runs of each kind through the server")
    options = parser.parse_args()
    cluster = Cluster()
    if options.pods:
        one(cluster, options, options.program.encode())
        measure("one after another", cluster, options, options.pods, 1)
        measure("at once", cluster, options, options.pods, options.at_once)
        measure("attach to a pod that waits, one after another", cluster, options, options.pods, 1,
                lambda: time.sleep(1))
    if options.pods and options.standing:
        standing(cluster, options)
    if options.server:
        # As the pods of this server, whose files are not in a claim.
        unclaimed = argparse.Namespace(**{**vars(options), "claim": ""})
        bench_travelling.measure(cluster, options, row,
                                 lambda: one(cluster, unclaimed, options.program.encode())["output"])


if __name__ == "__main__":
    main()
