"""A small MCP server over standard input and output, which needs nothing but Python: the orders of a shop, one for each
call. A server made with an SDK is shorter; this one runs in the sandbox's image as it is."""

import json
import sys

ORDERS = 200
FIELDS = {"number": "integer", "customer": "string", "cents": "integer", "paid": "boolean", "note": "string"}
TOOL = {
    "name": "get_order",
    "description": f"One order of the shop by its number, 1 to {ORDERS}.",
    "inputSchema": {
        "type": "object",
        "properties": {"number": {"type": "integer", "minimum": 1, "maximum": ORDERS}},
        "required": ["number"],
    },
    "outputSchema": {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in FIELDS.items()},
        "required": list(FIELDS),
    },
    # A tool that only reads is called without a question to a person.
    "annotations": {"readOnlyHint": True},
}


def order(number: int) -> dict:
    customer = ["Ada", "Ben", "Cleo", "Dan"][number % 4]
    note = f"Reference {number:06}: ring twice, and leave the parcel with the neighbours when no one opens the door."
    cents, paid = number * 137 % 10_000, number % 3 != 0
    return {"number": number, "customer": customer, "cents": cents, "paid": paid, "note": note}


def result(method: str, params: dict) -> dict:
    if method == "initialize":
        about = {"name": "orders", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        found = order(params["arguments"]["number"])
        return {"content": [{"type": "text", "text": json.dumps(found)}], "structuredContent": found}
    raise LookupError(method)


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    try:
        answer = {"result": result(message["method"], message.get("params", {}))}
    except LookupError as error:
        answer = {"error": {"code": -32601, "message": f"there is no method {error}"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
