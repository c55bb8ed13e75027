"""Stands in for the vendors' model APIs: Anthropic Messages, OpenAI chat completions, OpenAI Responses and Gemini
generateContent, each as one answer or as a stream. It asks for one call of run_code under the name that the client
lists, or for the calls of the client's script, ends the conversation when the result is there, and keeps every request.
The first segment of a path is the client, so several clients can be served at once."""

import itertools
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What the model asks for: a text, a picture and a file.
CODE = """from PIL import Image
print("TEXT-OF-THE-PROGRAM")
Image.new("RGB", (64, 48), "teal").save("picture.png")
open("notes.txt", "w").write("FILE-OF-THE-PROGRAM")
"""
SEARCH = ["ToolSearch", "tool_search"]
BRIDGE = "tool_call"
DONE = "The program ran."
NUMBERS = itertools.count(1)


def new_id(kind):
    return f"{kind}_{next(NUMBERS)}"


class Anthropic:
    """POST …/v1/messages"""

    NAME = "Anthropic"

    def tools(body):
        return [tool["name"] for tool in body.get("tools", [])]

    def history(body):
        return body["messages"]

    def called(message):
        blocks = message["content"] if message["role"] == "assistant" else []
        return [block["name"] for block in blocks if isinstance(block, dict) and block["type"] == "tool_use"]

    def answer(body, name, arguments):
        if name:
            block, reason = {"type": "tool_use", "id": new_id("call"), "name": name, "input": arguments}, "tool_use"
            empty, delta = block | {"input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        else:
            block, reason = {"type": "text", "text": DONE}, "end_turn"
            empty, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": DONE}
        end = {"stop_reason": reason, "stop_sequence": None}
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": new_id("msg"), "type": "message", "role": "assistant", "model": body["model"], "usage": usage}
        if not body.get("stream"):
            return message | {"content": [block]} | end
        begun = message | {"content": [], "stop_reason": None, "stop_sequence": None}
        return [
            {"type": "message_start", "message": begun},
            {"type": "content_block_start", "index": 0, "content_block": empty},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": end, "usage": usage},
            {"type": "message_stop"},
        ]


class Chat:
    """POST …/chat/completions"""

    NAME = "chat completions"

    def tools(body):
        return [tool["function"]["name"] for tool in body.get("tools", [])]

    def history(body):
        return body["messages"]

    def called(message):
        return [call["function"]["name"] for call in message.get("tool_calls") or []]

    def answer(body, name, arguments):
        message, reason = {"role": "assistant", "content": DONE}, "stop"
        if name:
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {"index": 0, "id": new_id("call"), "type": "function", "function": function}
            message, reason = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": new_id("chatcmpl"), "created": 1, "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            return head | {"object": "chat.completion", "choices": [choice], "usage": usage}
        head["object"] = "chat.completion.chunk"
        return [
            head | {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            head | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            head | {"choices": [], "usage": usage},
            "[DONE]",
        ]


class Responses:
    """POST …/responses"""

    NAME = "Responses"

    def tools(body):
        tools = body.get("tools", [])
        plain = [tool["name"] for tool in tools if tool["type"] == "function"]
        return plain + [f"{tool['name']}/{inner['name']}" for tool in tools for inner in tool.get("tools", [])]

    def history(body):
        return body["input"] if isinstance(body["input"], list) else [{"type": "message", "content": body["input"]}]

    def called(item):
        space = f"{item['namespace']}/" if "namespace" in item else ""
        return [space + item["name"]] if item.get("type") == "function_call" else []

    def answer(body, name, arguments):
        text = {"type": "output_text", "text": DONE, "annotations": []}
        item = {"type": "message", "id": new_id("msg"), "role": "assistant", "status": "completed", "content": [text]}
        if name:
            text, arguments = None, json.dumps(arguments)
            space, _, name = name.rpartition("/")
            item = {"type": "function_call", "id": new_id("fc"), "call_id": new_id("call"), "name": name,
                    "arguments": arguments} | ({"namespace": space} if space else {})
        tokens = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2} | tokens
        response = {"id": new_id("resp"), "object": "response", "created_at": 1, "model": body["model"],
                    "output": [item], "status": "completed", "usage": usage, "tools": [], "tool_choice": "auto",
                    "parallel_tool_calls": False}
        if not body.get("stream"):
            return response
        at = {"output_index": 0, "item_id": item["id"]}
        part = {"type": "response.output_text", "content_index": 0} | at
        middle = [{"type": "response.function_call_arguments.done", "arguments": arguments} | at]
        if text:
            middle = [
                part | {"type": "response.content_part.added", "part": text | {"text": ""}},
                part | {"type": "response.output_text.delta", "delta": DONE, "logprobs": []},
                part | {"type": "response.output_text.done", "text": DONE, "logprobs": []},
                part | {"type": "response.content_part.done", "part": text},
            ]
        empty = item | ({"content": []} if text else {"arguments": ""})
        events = [
            {"type": "response.created", "response": response | {"output": [], "status": "in_progress", "usage": None}},
            {"type": "response.output_item.added", "output_index": 0, "item": empty | {"status": "in_progress"}},
            *middle,
            {"type": "response.output_item.done", "output_index": 0, "item": item | {"status": "completed"}},
            {"type": "response.completed", "response": response},
        ]
        return [event | {"sequence_number": number} for number, event in enumerate(events)]


class Gemini:
    """POST …/models/NAME:generateContent and …:streamGenerateContent"""

    NAME = "Gemini"

    def tools(body):
        return [one["name"] for tool in body.get("tools", []) for one in tool.get("functionDeclarations", [])]

    def history(body):
        return body["contents"]

    def called(content):
        parts = content["parts"] if content.get("role") == "model" else []
        return [part["functionCall"]["name"] for part in parts if "functionCall" in part]

    def answer(body, name, arguments):
        part = {"functionCall": {"name": name, "args": arguments}} if name else {"text": DONE}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        whole = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "stand-in"}
        return [whole] if body["stream"] else whole


def api_of(path):
    ends = {"/messages": Anthropic, "/chat/completions": Chat, "/responses": Responses,
            ":generateContent": Gemini, ":streamGenerateContent": Gemini}
    return next((api for end, api in ends.items() if path.endswith(end)), None)


def next_call(tools, calls, text, arguments):
    """The name and arguments of the model's next call, or None when it is done. Some clients tell the model only the
    names of the tools; the model then has to ask for one before it calls it, directly or through a bridge."""
    hidden = re.search(r"mcp__\w+run_code\b", text)
    search = next((name for name in tools if name in SEARCH), None)
    direct = next((name for name in tools if name.endswith("run_code")), None)
    if calls and calls[-1] not in SEARCH:
        return None, {}
    if direct or not (hidden and search):
        return direct, arguments
    if not calls:
        return search, {"query": f"select:{hidden[0]}", "max_results": 1}
    return (BRIDGE, {"name": hidden[0], "arguments": arguments}) if BRIDGE in tools else (hidden[0], arguments)


class StandIn(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        # For each client the requests in order: API, body, names of the tools, the last call and what followed it; and
        # the name that the model called run_code by.
        self.requests, self.asked, self.outside, self.lock = {}, {}, set(), threading.Lock()
        # For a client that is to call other tools, the calls in order: name, arguments.
        self.scripts = {}
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        models = [{"id": "stand-in", "object": "model", "type": "model", "display_name": "stand-in"}]
        self.send({"object": "list", "data": models, "has_more": False})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        path = self.path.partition("?")[0]
        api, client = api_of(path), path.split("/")[1]
        if api is None:
            return self.send({"input_tokens": 1, "totalTokens": 1})
        if api is Gemini:
            body["stream"] = ":stream" in path
        tools, history = api.tools(body), api.history(body)
        calls = [(number, name) for number, message in enumerate(history) for name in api.called(message)]
        # What the model is sent after its last call.
        result = history[calls[-1][0] + 1 :] if calls else []
        script = self.server.scripts.get(client)
        if script is None:
            arguments = {"conversationId": f"client-{client}", "language": "python", "code": CODE}
            name, given = next_call(tools, [name for _, name in calls], json.dumps(body), arguments)
        else:
            name, given = [*script, (None, {})][min(len(calls), len(script))]
        last = calls[-1][1] if calls else None
        with self.server.lock:
            self.server.requests.setdefault(client, []).append(
                {"api": api.NAME, "body": body, "tools": tools, "last": last, "result": result})
            if name and name not in SEARCH:
                self.server.asked[client] = given.get("name", name)
        self.send(api.answer(body, name, given))

    def do_CONNECT(self):
        """The clients have this server as their proxy: what they want to reach outside is noted and refused."""
        self.server.outside.add(self.path)
        self.send_error(403)

    def send(self, answer):
        stream = isinstance(answer, list)
        content = json.dumps(answer)
        if stream:
            content = "".join(self.event(one) for one in answer)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if stream else "application/json")
        self.send_header("Content-Length", str(len(content.encode())))
        self.end_headers()
        self.wfile.write(content.encode())

    def event(self, one):
        name = f"event: {one['type']}\n" if "type" in one else ""
        return f"{name}data: {one if isinstance(one, str) else json.dumps(one)}\n\n"
