"""What a client that starts servers gets, with the Python SDK `mcp` 2.x as the client. Arguments: a configuration in
Claude Desktop's form, and Python programs. Prints as JSON the tools, and for each program the answer of run_code."""

import asyncio
import json
import os
import sys
from pathlib import Path

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

CALL_S_MAX = 60


async def main(configuration: str, programs: list[str]) -> None:
    (server,) = json.loads(Path(configuration).read_text())["mcpServers"].values()
    # Where the tests have their engine and their files; otherwise the server gets what the SDK gives to any server.
    engine = {name: os.environ[name] for name in ["DOCKER_HOST", "SANDBOX_ROOT"] if name in os.environ}
    parameters = StdioServerParameters(**server | {"env": engine | server.get("env", {})})
    async with Client(parameters, read_timeout_seconds=CALL_S_MAX) as client:
        tools = [tool.model_dump(mode="json") for tool in (await client.list_tools()).tools]
        answers = []
        for program in programs:
            arguments = {"conversationId": "stdio", "language": "python", "code": program}
            answers.append((await client.call_tool("sandbox_run_code", arguments)).model_dump(mode="json"))
    print(json.dumps({"tools": tools, "answers": answers}))


asyncio.run(main(sys.argv[1], sys.argv[2:]))
