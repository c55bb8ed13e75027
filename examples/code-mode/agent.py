"""An agent that works with tools by writing programs. Of the sandbox's tools the model gets three: it finds a tool of
another MCP server, reads how it is called, and runs a program that calls it as often as the task needs. The model sees
what the program prints, and none of the answers that the program got. Argument: the question."""

import json
import os
import sys
import urllib.request

from openai import OpenAI

URL = "http://localhost:8080/mcp"
TOKEN = os.environ["MCP_API_TOKEN"]
MODEL = os.environ.get("OPENAI_MODEL", "gpt-4o")
QUESTION = "Which customer owes us most? The orders have the numbers 1 to 200."
OFFERED = ["sandbox_search_tools", "sandbox_get_tool_source", "sandbox_run_code"]
INSTRUCTIONS = """Answer with the help of tools, which only your programs can call. Find them with sandbox_search_tools
and read one with sandbox_get_tool_source. Then write one Python program for sandbox_run_code that makes all calls in a
loop and prints only what the answer needs. Give the same conversationId in every call."""
TURNS_MAX = 12
# A run is waited for 45 seconds by default.
CALL_SECONDS = 120


def sandbox(method: str, **params) -> dict:
    """One request to the sandbox. The server needs no handshake before it."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    head = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "Accept": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(URL, body, head), timeout=CALL_SECONDS) as answer:
        message = json.load(answer)
    if "error" in message:
        # Such as a tool that is not there: the model can make another call.
        return {"content": [{"type": "text", "text": message["error"]["message"]}]}
    return message["result"]


def offered_tools() -> list[dict]:
    tools = {tool["name"]: tool for tool in sandbox("tools/list")["tools"]}
    if missing := [name for name in OFFERED if name not in tools]:
        raise SystemExit(f"the server has no {', '.join(missing)}: is there a [tools.<name>] in its sandbox.toml?")
    return [{"type": "function", "function": {
        "name": name, "description": tools[name]["description"], "parameters": tools[name]["inputSchema"],
    }} for name in OFFERED]


def answer(question: str) -> str:
    model, tools = OpenAI(), offered_tools()
    messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": question}]
    for _ in range(TURNS_MAX):
        reply = model.chat.completions.create(model=MODEL, messages=messages, tools=tools).choices[0].message
        messages.append(reply.model_dump(exclude_none=True))
        if not reply.tool_calls:
            return reply.content
        for call in reply.tool_calls:
            result = sandbox("tools/call", name=call.function.name, arguments=json.loads(call.function.arguments))
            text = "\n".join(block["text"] for block in result["content"] if block["type"] == "text")
            print(f"{call.function.name}: {text}\n", file=sys.stderr)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    return f"There is no answer after {TURNS_MAX} turns."


print(answer(" ".join(sys.argv[1:]) or QUESTION))
