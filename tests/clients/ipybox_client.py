"""ipybox's documented flow with an unmodified MCP client, the Python SDK `mcp` 1.x: register a server, read what it
offers, call it from cells that keep variables. Arguments: URL of /mcp, token, URL of an MCP server. Fails on any
unexpected result."""

import asyncio
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

FIRST = """
from mcptools.numbers.add import Params, run
totals = [run(Params(a=number, b=1)).total for number in range(50)]
"""
SECOND = "print(sum(totals), type(run(a=1, b=2)).__name__)"


async def main(url: str, token: str, server: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    async with streamablehttp_client(url + "?tools=ipybox", headers=headers) as (read, write, _):
        async with ClientSession(read, write) as session:
            await session.initialize()
            names = [tool.name for tool in (await session.list_tools()).tools]
            assert {"register_mcp_server", "execute_ipython_cell", "install_package", "reset"} <= set(names), names

            async def call(tool: str, **arguments) -> list[str]:
                result = await session.call_tool(tool, arguments)
                texts = [block.text for block in result.content if block.type == "text"]
                assert not result.isError, texts
                return texts

            found = await call("register_mcp_server", server_name="numbers", server_params={"url": server})
            assert "add" in found and "echo" in found, found
            source = await call("execute_ipython_cell", code="import mcptools.numbers; print(mcptools.numbers.__doc__)")
            assert "add(a: int" in source[0], source
            await call("execute_ipython_cell", code=FIRST)
            printed = await call("execute_ipython_cell", code=SECOND)
            assert printed[0] == "1275 Result\n", printed
            await call("reset")
            result = await session.call_tool("execute_ipython_cell", {"code": "totals"})
            assert "NameError" in result.content[0].text, result


asyncio.run(main(*sys.argv[1:4]))
