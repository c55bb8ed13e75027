"""Follows runs with the Python SDK `mcp` 1.x (handshake era). Arguments: URL, token. Fails on any unexpected result."""

import asyncio
import logging
import sys
from datetime import timedelta

import httpx
import jsonschema
from mcp import ClientSession, types
from mcp.client.streamable_http import streamablehttp_client

from watching import all_of_it

# The SDK logs a warning about a 202 to its DELETE, which the specification allows.
logging.getLogger("mcp.client.streamable_http").setLevel(logging.ERROR)


async def main(url: str, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    rest = httpx.AsyncClient(base_url=url.split("/mcp")[0], headers=headers, timeout=60)
    async with rest, streamablehttp_client(url, headers=headers) as (read, write, _):
        async with ClientSession(read, write) as session:
            await session.initialize()
            schemas = {tool.name: tool.outputSchema for tool in (await session.list_tools()).tools}

            async def call(name: str, arguments: dict, *, limit: float, progress) -> dict:
                limit = timedelta(seconds=limit)
                result = await session.call_tool(name, arguments, limit, progress_callback=progress)
                result = result.model_dump(by_alias=True)
                jsonschema.validate(result["structuredContent"], schemas[name])
                return result

            async def give_up(name: str, arguments: dict, ready: str) -> None:
                said, requests = asyncio.Event(), []

                async def progress(done: float, total: float | None, message: str | None) -> None:
                    if ready in (message or ""):
                        said.set()

                # This SDK does not notify the server of a cancelled call: the test does, with the number of the next
                # request.
                requests.append(session._request_id)
                begun = asyncio.create_task(session.call_tool(name, arguments, progress_callback=progress))
                await said.wait()
                told = types.CancelledNotification(params=types.CancelledNotificationParams(requestId=requests[0]))
                await session.send_notification(types.ClientNotification(told))
                begun.cancel()

            async def runs(conversation: str) -> list[dict]:
                return (await rest.get("/v1/runs", params={"conversationId": conversation})).json()["runs"]

            await all_of_it("mcp1", call, give_up, runs)


asyncio.run(main(*sys.argv[1:3]))
