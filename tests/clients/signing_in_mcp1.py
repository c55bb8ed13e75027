"""The Python SDK `mcp` 1.x signs in and refreshes. Arguments: URL, token. Fails on any unexpected result."""

import asyncio
import sys

import httpx
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

from person import Storage, allow


async def main(url: str, token: str) -> None:
    storage, answers = Storage(), []

    async def opened(address: str) -> None:
        answers.append(await asyncio.to_thread(allow, address, token))

    async def answered() -> tuple[str, str | None]:
        return answers[-1]["code"], answers[-1].get("state")

    metadata = OAuthClientMetadata(client_name="Python 1", redirect_uris=["http://localhost:3030/callback"])
    provider = OAuthClientProvider(url, metadata, storage, opened, answered)
    for times in range(2):
        async with httpx.AsyncClient(auth=provider, timeout=60) as http:
            async with streamable_http_client(url, http_client=http) as (read, write, _):
                async with ClientSession(read, write) as session:
                    await session.initialize()
                    run = {"conversationId": "signed-in", "language": "python", "code": "print Hello!"}
                    result = await session.call_tool("sandbox_run_code", run)
                    assert not result.isError and "Hello!" in result.content[0].text, result
        if times == 0:
            first = storage.tokens.access_token
            # As if it had expired.
            provider.context.token_expiry_time = 1
    assert len(answers) == 1, "the second time it refreshed"
    assert storage.tokens.access_token != first, "and got another token"


asyncio.run(main(*sys.argv[1:3]))
