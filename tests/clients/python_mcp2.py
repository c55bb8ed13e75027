"""The Python SDK `mcp` 2.x against a server, in either era. Arguments: URL, token. Fails on any unexpected result."""

import asyncio
import base64
import sys

import httpx2
import jsonschema
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from expectations import CODE, CONVERSATION, LARGE_CODE, PNG_CODE, TOOLS
from expectations import check_error, check_large, check_picture, check_plain, check_run


async def era(url: str, token: str, mode: str) -> None:
    conversation = CONVERSATION + mode
    large = {"conversationId": conversation + "large", "language": "python", "code": LARGE_CODE}
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            run = {"conversationId": conversation + "plain", "language": "python", "code": CODE}
            check_plain((await client.call_tool("sandbox_run_code", run)).model_dump(by_alias=True))
            check_large((await client.call_tool("sandbox_run_code", large)).model_dump(by_alias=True))
        async with Client(streamable_http_client(url + "?structured=on", http_client=http), mode=mode) as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == [f"sandbox_{name}" for name in TOOLS], tools
            schemas = {tool.name: tool.output_schema for tool in tools}

            async def call(name: str, arguments: dict) -> dict:
                result = (await client.call_tool(name, arguments)).model_dump(by_alias=True)
                jsonschema.validate(result["structuredContent"], schemas[name])
                return result

            run = {"conversationId": conversation, "language": "python"}
            check_run(await call("sandbox_run_code", run | {"code": CODE}))
            check_picture(await call("sandbox_run_code", run | {"code": PNG_CODE}), base64.b64decode)
            check_large(await call("sandbox_run_code", large))
            check_error(await call("sandbox_run_code", {"language": "python"}))
            await call("sandbox_list_runners", {})
            listed = await call("sandbox_list_files", {"conversationId": conversation})
            assert {file["path"] for file in listed["structuredContent"]["files"]} == {"out.csv", "chart.png"}, listed
            try:
                await client.call_tool("sandbox_nothing", {})
            except MCPError as error:
                assert error.error.code == -32602, error
            else:
                raise AssertionError("an unknown tool is an error of the protocol")


async def main(url: str, token: str) -> None:
    for mode in ["auto", "legacy"]:
        await era(url, token, mode)


asyncio.run(main(*sys.argv[1:3]))
