"""The Python SDK `mcp` 1.x (handshake era) against a server. Arguments: URL, token. Fails on any unexpected result."""

import asyncio
import base64
import logging
import sys

import jsonschema
from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamablehttp_client

from expectations import CODE, CONVERSATION, PNG_CODE, TOOLS, check_error, check_picture, check_plain, check_run


class Failing(logging.Handler):
    """The SDK logs what it does not expect, such as an event that it cannot read."""

    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(record.getMessage())


logging.getLogger("mcp").addHandler(Failing(logging.WARNING))


async def main(url: str, token: str) -> None:
    async with streamablehttp_client(url, headers={"Authorization": f"Bearer {token}"}) as (read, write, _):
        async with ClientSession(read, write) as session:
            await session.initialize()
            assert all(tool.outputSchema is None for tool in (await session.list_tools()).tools)
            run = {"conversationId": CONVERSATION + "plain", "language": "python", "code": CODE}
            check_plain((await session.call_tool("sandbox_run_code", run)).model_dump(by_alias=True))
    await structured(url + "?structured=on", token)


async def structured(url: str, token: str) -> None:
    async with streamablehttp_client(url, headers={"Authorization": f"Bearer {token}"}) as (read, write, _):
        async with ClientSession(read, write) as session:
            opened = await session.initialize()
            assert opened.serverInfo.name == "mcp-sandbox-server", opened
            tools = (await session.list_tools()).tools
            assert [tool.name for tool in tools] == [f"sandbox_{name}" for name in TOOLS], tools
            schemas = {tool.name: tool.outputSchema for tool in tools}
            async def call(name: str, arguments: dict) -> dict:
                result = (await session.call_tool(name, arguments)).model_dump(by_alias=True)
                # The SDK does this for results without error; other clients do it for all.
                jsonschema.validate(result["structuredContent"], schemas[name])
                return result

            run = {"conversationId": CONVERSATION + "1", "language": "python"}
            check_run(await call("sandbox_run_code", run | {"code": CODE}))
            check_picture(await call("sandbox_run_code", run | {"code": PNG_CODE}), base64.b64decode)
            failed = await call("sandbox_run_code", run | {"code": "raise SystemExit(3)"})
            assert failed["isError"] and failed["structuredContent"]["outcome"]["exitCode"] == 3, failed
            check_error(await call("sandbox_run_code", {"language": "python"}))
            await call("sandbox_list_runners", {})
            at = {"conversationId": CONVERSATION + "1", "path": "notes/a.txt"}
            await call("sandbox_write_file", at | {"content": "ä"})
            read_back = await call("sandbox_read_file", at)
            assert read_back["structuredContent"]["content"] == "ä", read_back
            await call("sandbox_list_files", {"conversationId": CONVERSATION + "1"})
            await call("sandbox_delete_file", at)
            try:
                await session.call_tool("sandbox_nothing", {})
            except McpError as error:
                assert error.error.code == -32602, error
            else:
                raise AssertionError("an unknown tool is an error of the protocol")
            await session.send_ping()


asyncio.run(main(*sys.argv[1:3]))
