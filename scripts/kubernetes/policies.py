#!/usr/bin/env python3
"""Enforces NetworkPolicies on a node of the test cluster, as far as this repository's policies need: a pod is free, or
it is closed and neither sends nor receives a frame, of whatever protocol, to or from anything beyond its interface.
Rules with peers or ports, policies for one direction, and selectors by expressions are refused: pods that such a policy
selects are closed, a new one of them does not start, and the sentence that says so is on standard error.

    policies.py NODE            once, by what the API server says now; fails when a policy is refused
    policies.py NODE CONTAINER  the same; fails when one is refused that selects the pod of this container
    policies.py NODE --watch    again after each change of a policy or of the labels of a pod; does not end

NODE is the node's folder; its network namespace is that of this process. `pods/` has a file for each container that has
a network, with the arguments and the answer of the network plugin, which runs this before the pod's containers start.
Without the file `policies` beside the node's folder, all pods are free. Pods that the API server does not know, such as
those deleted by force, are closed.
"""

import fcntl
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

TABLE = "table bridge policies"
# The bridge sees each frame of a pod, also those to the node and to other pods of it.
RULES = """
table bridge policies {{
  set closed {{ type ifname; {elements} }}
  chain sent {{ type filter hook prerouting priority -300; iifname @closed drop; }}
  chain received {{ type filter hook postrouting priority 300; oifname @closed drop; }}
}}
"""


class Refused(Exception):
    """What a policy asks for is not enforced here."""


def is_closed(pod, policies):
    """Whether the policies close a pod; raises Refused for one that selects it, or may, and is not understood."""
    free = {}
    for policy in policies:
        metadata, spec = policy["metadata"], policy["spec"]
        name = f"the NetworkPolicy {metadata['namespace']}/{metadata['name']}"
        if metadata["namespace"] != pod["metadata"]["namespace"]:
            continue
        selector = {key: value for key, value in spec.get("podSelector", {}).items() if value}
        if set(selector) - {"matchLabels"}:
            raise Refused(f"{name} selects pods by expressions: use matchLabels")
        labels = pod["metadata"].get("labels", {})
        if not selector.get("matchLabels", {}).items() <= labels.items():
            continue
        for kind in spec["policyTypes"]:
            rules = spec.get(kind.lower()) or []
            if any(rules):
                raise Refused(f"{name} has rules with peers or ports: only no rule and the empty rule are enforced")
            free[kind] = free.get(kind, False) or bool(rules)
    ingress, egress = (free.get(kind, True) for kind in ("Ingress", "Egress"))
    if ingress != egress:
        raise Refused(f"the policies of {pod['metadata']['namespace']} close one direction only of the pod "
                      f"{pod['metadata']['name']}: close both")
    return not ingress


def plugged(node):
    """The namespace, name and interface of each pod, by the id of its container."""
    pods = {}
    for file in (node / "pods").iterdir():
        try:
            arguments, answer = file.read_text().split("\n", 1)
        except FileNotFoundError:
            continue
        fields = dict(field.split("=", 1) for field in arguments.split(";"))
        # The bridge has no name of this form, and the interface in the pod is in a namespace.
        ours = [one["name"] for one in json.loads(answer)["interfaces"] if one["name"].startswith("veth")]
        pods[file.name] = (fields["K8S_POD_NAMESPACE"], fields["K8S_POD_NAME"], *ours)
    return pods


def kubectl_get(node, *arguments):
    return ["kubectl", "--kubeconfig", str(node.parent / "admin.kubeconfig"), "get", "--all-namespaces", *arguments]


def enforce(node, container=None):
    """Makes the rules of all pods of the node. Returns what is refused, of the pod of this container or of all."""
    with open(node / "policies.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        closed, refused = [], {}
        if is_on := (node.parent / "policies").exists():
            get = kubectl_get(node, "pods,networkpolicies", "-o", "json", "--request-timeout=10s")
            items = json.loads(subprocess.run(get, check=True, capture_output=True).stdout)["items"]
            pods = {(one["metadata"]["namespace"], one["metadata"]["name"]): one
                    for one in items if one["kind"] == "Pod"}
            policies = [one for one in items if one["kind"] == "NetworkPolicy"]
            for id, (namespace, name, interface) in plugged(node).items():
                try:
                    pod = pods.get((namespace, name))
                    if pod and not is_closed(pod, policies):
                        continue
                except Refused as why:
                    refused[id] = str(why)
                closed.append(interface)
        elements = f"elements = {{ {', '.join(map(json.dumps, closed))} }}" if closed else ""
        # The first line lets the second succeed also where there is none.
        rules = f"{TABLE}\ndelete {TABLE}\n" + (RULES.format(elements=elements) if is_on else "")
        subprocess.run(["nft", "-f", "-"], check=True, input=rules.encode())
    return refused.get(container) if container else "\n".join(sorted(set(refused.values())))


def follow(events, *watched):
    """Puts each line of a watch into the queue, and an empty one where it begins."""
    while True:
        with subprocess.Popen(watched, stdout=subprocess.PIPE, text=True) as process:
            events.put("")
            for line in process.stdout:
                events.put(line)
        time.sleep(1)


def watch(node):
    # Its watches end with it.
    if os.getpgrp() != os.getpid():
        os.setpgrp()
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    events, seen = queue.Queue(), {}
    # The line of a pod changes with its labels alone.
    shown = {"networkpolicies": "{.type} {.object.metadata.resourceVersion}", "pods": "{.object.metadata.labels}"}
    for kind, fields in shown.items():
        template = f'jsonpath={{.object.metadata.uid}} {fields}{{"\\n"}}'
        command = kubectl_get(node, kind, "--watch", "--output-watch-events", "-o", template)
        threading.Thread(target=follow, args=(events, *command), daemon=True).start()
    while True:
        lines, is_news = [events.get()], False
        while not events.empty():
            lines.append(events.get())
        for line in lines:
            uid, _, state = line.partition(" ")
            is_news |= not uid or seen.get(uid) != state
            seen[uid] = state
        try:
            refused = enforce(node) if is_news else ""
        except (OSError, subprocess.CalledProcessError) as error:
            refused = f"{error} {getattr(error, 'stderr', '')}"
            time.sleep(1)
            events.put("")
        if refused:
            print("policies:", refused, file=sys.stderr, flush=True)


def main():
    node, word = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    if word == "--watch":
        watch(node)
    if why := enforce(node, word):
        sys.exit(why)


if __name__ == "__main__":
    main()
