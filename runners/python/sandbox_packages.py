"""Asks the server, through the sandbox's proxy, to install packages into the conversation (../README.md).

Imported only by the command `pip`."""

import json
import os
import socket
import sys

_PROXY = ("127.0.0.1", 3128)
_REQUEST = b"\x01"


def is_offered():
    return "uv" in os.environ.get("SANDBOX_PACKAGES", "").split(",")


def install(packages):
    """Prints what the server says; returns an exit status."""
    request = json.dumps({"tool": "uv", "packages": packages}).encode()
    try:
        with socket.create_connection(_PROXY) as server:
            server.sendall(_REQUEST + request + b"\n")
            with server.makefile("r", encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    answer = json.loads(line)
                    if "done" in answer:
                        print(answer["text"], file=sys.stdout if answer["done"] else sys.stderr, flush=True)
                        return 0 if answer["done"] else 1
                    print(answer["text"], end="", file=sys.stderr, flush=True)
    except (OSError, ValueError) as error:
        print(f"ERROR: the server did not answer ({error}).", file=sys.stderr)
        return 1
    print("ERROR: the server's answer ended early.", file=sys.stderr)
    return 1
