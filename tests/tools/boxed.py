"""A tool server over standard input and output that needs nothing but Python: what a command in an image may be."""

import json
import os
import sys
import urllib.error
import urllib.request

CALLS = []


def fetch(url):
    try:
        return urllib.request.urlopen(url, timeout=10).read().decode()
    except (OSError, urllib.error.URLError) as error:
        return f"failed: {error}"


def fill(mib):
    with open("/data/full", "wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))
    return "written"


def note(text):
    with open("/data/notes", "a") as file:
        file.write(text)
    return f"{len(CALLS)} of {os.getuid()}"


TOOLS = {
    "note": note,
    "fetch": fetch,
    "fill": fill,
    "key": lambda: os.environ.get("KEY", "none"),
    "refuse": lambda: sys.exit(f"the key {os.environ['KEY']} does not open it"),
    "large": lambda length: "x" * length,
}
KIND = {"url": "string", "text": "string", "mib": "integer", "length": "integer"}


def tool(name, function):
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    schema = {"type": "object", "properties": {one: {"type": KIND[one]} for one in names}}
    return {"name": name, "inputSchema": schema, "annotations": {"readOnlyHint": True}}


def answer(method, params):
    if method == "initialize":
        about = {"name": "boxed", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [tool(*one) for one in TOOLS.items()]}
    CALLS.append(params["name"])
    text = TOOLS[params["name"]](**params.get("arguments", {}))
    return {"content": [{"type": "text", "text": text}]}


print("starts", file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] in ("initialize", "tools/list", "tools/call"):
        reply["result"] = answer(message["method"], message.get("params", {}))
    else:
        reply["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(reply), flush=True)
