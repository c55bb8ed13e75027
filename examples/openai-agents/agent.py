"""An agent of the OpenAI Agents SDK that runs programs in the sandbox. Argument: the task."""

import asyncio
import os
import sys

from agents import Agent, Runner
from agents.mcp import MCPServerStreamableHttp

TOKEN = os.environ["MCP_API_TOKEN"]
MODEL = os.environ.get("OPENAI_MODEL", "gpt-4o")
TASK = "Draw the sine of x from 0 to 10 as a PNG, save the values as a CSV file, and give me the links of both."
INSTRUCTIONS = "Compute with programs, not by yourself. Give the same conversationId in every call."

# The default timeout of 5 seconds is too short for a program.
sandbox = MCPServerStreamableHttp(
    params={"url": "http://localhost:8080/mcp", "headers": {"Authorization": f"Bearer {TOKEN}"}},
    client_session_timeout_seconds=120,
)


async def main(task: str) -> None:
    async with sandbox:
        agent = Agent(name="Analyst", instructions=INSTRUCTIONS, model=MODEL, mcp_servers=[sandbox])
        print((await Runner.run(agent, task)).final_output)


asyncio.run(main(" ".join(sys.argv[1:]) or TASK))
