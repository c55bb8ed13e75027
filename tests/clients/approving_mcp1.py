"""A person who is asked whether a tool may be called, with the Python SDK `mcp` 1.x. Arguments: URL, token. Fails on
any unexpected result."""

import asyncio
import sys

from mcp import ClientSession, types
from mcp.client.streamable_http import streamablehttp_client

CODE = """
import mcptools
try: print(mcptools.call("files", "delete_file", {"path": "PATH"}).text)
except mcptools.ToolDenied as error: print("denied:", error)
"""


async def program(session: ClientSession, conversation: str, path: str) -> str:
    arguments = {"conversationId": conversation, "language": "python", "code": CODE.replace("PATH", path)}
    result = await session.call_tool("sandbox_run_code", arguments)
    return result.content[0].text


async def main(url: str, token: str) -> None:
    asked, answers = [], []

    async def person(_, question: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(question.message)
        answer = answers.pop(0)
        if answer is None:
            return types.ElicitResult(action="decline")
        return types.ElicitResult(action="accept", content={"answer": answer})

    headers = {"Authorization": f"Bearer {token}"}
    async with streamablehttp_client(url, headers=headers) as (read, write, _):
        async with ClientSession(read, write, elicitation_callback=person) as session:
            await session.initialize()
            answers += ["once", None, "session"]
            assert "deleted /a" in await program(session, "one", "/a")
            assert asked == ['A program wants to call the tool files/delete_file with {"path":"/a"}'], asked
            assert "denied: delete_file was not called: a person said no" in await program(session, "one", "/a")
            assert "deleted /b" in await program(session, "one", "/b")
            assert "deleted /b" in await program(session, "one", "/b")
            assert len(asked) == 3, asked
            answers += ["always"]
            assert "deleted /b" in await program(session, "two", "/b")
            assert len(asked) == 4, asked


asyncio.run(main(*sys.argv[1:3]))
