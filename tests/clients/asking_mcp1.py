"""What a cell asks with `input()`, with the Python SDK `mcp` 1.x. Arguments: URL, token.
Fails on any unexpected result."""

import asyncio
import sys

from mcp import ClientSession, types
from mcp.client.streamable_http import streamablehttp_client

CODE = "name = input('who? ')\nprint('hello', name)"


async def cell(url: str, token: str, conversation: str, code: str, person) -> str:
    """The text of the answer. `person` answers what is asked; None: the client cannot be asked."""
    async with streamablehttp_client(url, headers={"Authorization": f"Bearer {token}"}) as (read, write, _):
        async with ClientSession(read, write, elicitation_callback=person) as session:
            await session.initialize()
            arguments = {"conversationId": conversation, "language": "python", "code": code}
            result = await session.call_tool("sandbox_run_cell", arguments)
            return result.content[0].text


async def main(url: str, token: str) -> None:
    asked = []

    async def accepts(_, question: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(question.message)
        return types.ElicitResult(action="accept", content={"line": f"Ada {len(asked)}"})

    async def declines(_, question: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(question.message)
        return types.ElicitResult(action="decline")

    text = await cell(url, token, "asks", CODE + "\n" + CODE, accepts)
    assert "hello Ada 1\n" in text and "hello Ada 2\n" in text, text
    assert asked == ["The program in the sandbox asks: who?"] * 2, asked
    text = await cell(url, token, "asks", CODE, declines)
    assert "EOF" in text and len(asked) == 3, text
    text = await cell(url, token, "asks", "import getpass\ngetpass.getpass('secret? ')", accepts)
    assert len(asked) == 3, "a password is not asked for in a form"
    text = await cell(url, token, "asks", CODE, None)
    assert "StdinNotImplementedError" in text, text


asyncio.run(main(*sys.argv[1:3]))
