"""What a person is asked by a client of revision 2026-07-28, whose call is answered with the question and repeated:
lines for `input()`, and whether a tool may be called. With the Python SDK `mcp` 2.x. Arguments: URL, token, and `input`
or `approvals`. Fails on any unexpected result."""

import asyncio
import sys

import httpx2
from mcp import types
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

ASKS = "name = input('who? ')\nprint('hello', name)"
# Counts how often it is executed.
ONCE = "open('runs', 'a').write('x')\n"
CALLS = """
import mcptools
try: print(mcptools.call("files", "delete_file", {"path": "PATH"}).text)
except mcptools.ToolDenied as error: print("denied:", error)
"""
asked, answers = [], []


async def person(_, question: types.ElicitRequestParams) -> types.ElicitResult:
    asked.append(question.message)
    answer = answers.pop(0)
    if answer is None:
        return types.ElicitResult(action="decline")
    return types.ElicitResult(action="accept", content=answer)


class Session:
    def __init__(self, url: str, token: str, asks=person):
        self.url, self.headers, self.asks = url, {"Authorization": f"Bearer {token}"}, asks

    async def text(self, tool: str, conversation: str, code: str) -> str:
        async with httpx2.AsyncClient(headers=self.headers, timeout=60) as http:
            transport = streamable_http_client(self.url, http_client=http)
            async with Client(transport, mode="auto", elicitation_callback=self.asks) as client:
                arguments = {"conversationId": conversation, "language": "python", "code": code}
                return (await client.call_tool(tool, arguments)).content[0].text


async def lines(url: str, token: str) -> None:
    session = Session(url, token)
    answers.extend([{"line": "Ada"}, {"line": "Ben"}])
    text = await session.text("sandbox_run_cell", "modern", ONCE + ASKS + "\n" + ASKS)
    assert "hello Ada\n" in text and "hello Ben\n" in text, text
    assert asked == ["The program in the sandbox asks: who?"] * 2, asked
    text = await session.text("sandbox_run_cell", "modern", "print(open('runs').read())")
    assert text.startswith("x\n"), f"a repeated call executes nothing again: {text}"
    answers.append(None)
    text = await session.text("sandbox_run_cell", "modern", ASKS)
    assert "EOF" in text and len(asked) == 3, text
    await session.text("sandbox_run_cell", "modern", "import getpass\ngetpass.getpass('secret? ')")
    assert len(asked) == 3, "a password is not asked for in a form"
    text = await Session(url, token, None).text("sandbox_run_cell", "modern", ASKS)
    assert "StdinNotImplementedError" in text, text


async def approvals(url: str, token: str) -> None:
    session = Session(url, token)

    async def program(conversation: str, path: str) -> str:
        return await session.text("sandbox_run_code", conversation, CALLS.replace("PATH", path))

    answers.extend([{"answer": "once"}, None, {"answer": "session"}])
    assert "deleted /a" in await program("three", "/a")
    assert asked == ['A program wants to call the tool files/delete_file with {"path":"/a"}'], asked
    assert "denied: delete_file was not called: a person said no" in await program("three", "/a")
    assert "deleted /b" in await program("three", "/b")
    assert "deleted /b" in await program("three", "/b")
    assert len(asked) == 3, asked
    # Several at once: each has a question of its own, one after the other.
    answers.extend([{"answer": "once"}] * 3)
    many = "\n".join(["import mcptools, concurrent.futures as f", "def one(path):",
                      "    return mcptools.call('files', 'delete_file', {'path': path}).text",
                      "print(sorted(f.ThreadPoolExecutor(3).map(one, ['/c', '/d', '/e'])))"])
    text = await session.text("sandbox_run_code", "four", many)
    assert "['deleted /c', 'deleted /d', 'deleted /e']" in text and len(asked) == 6, (text, asked)


asyncio.run({"input": lines, "approvals": approvals}[sys.argv[3]](*sys.argv[1:3]))
