"""Follows runs with the Python SDK `mcp` 2.x, in either era. Arguments: URL, token. Fails on any unexpected result.

Without sessions this SDK cancels a call by closing its stream, with sessions by a notification."""

import asyncio
import sys

import anyio
import httpx2
import jsonschema
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from watching import all_of_it


async def era(url: str, token: str, mode: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=100) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            schemas = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}

            async def call(name: str, arguments: dict, *, limit: float, progress) -> dict:
                result = await client.call_tool(name, arguments, limit, progress)
                result = result.model_dump(by_alias=True)
                jsonschema.validate(result["structuredContent"], schemas[name])
                return result

            async def give_up(name: str, arguments: dict, ready: str) -> None:
                with anyio.CancelScope() as scope:

                    async def progress(done: float, total: float | None, message: str | None) -> None:
                        if ready in (message or ""):
                            scope.cancel()

                    await client.call_tool(name, arguments, progress_callback=progress)
                assert scope.cancelled_caught

            async def runs(conversation: str) -> list[dict]:
                answer = await http.get(url.split("/mcp")[0] + f"/v1/runs?conversationId={conversation}")
                return answer.json()["runs"]

            await all_of_it(f"mcp2-{mode}", call, give_up, runs)


async def main(url: str, token: str) -> None:
    await asyncio.gather(*(era(url, token, mode) for mode in ["auto", "legacy"]))


asyncio.run(main(*sys.argv[1:3]))
