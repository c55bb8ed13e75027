"""An MCP server with the official SDK of either generation: tools that add, repeat, delete, wait, fail, and answer with
a picture or a long text. By standard streams, or over HTTP at the port that is given. What it deletes is written to the
file of the second argument."""

import asyncio
import sys

try:
    from mcp.server.mcpserver import Context, Image, MCPServer
except ImportError:
    from mcp.server.fastmcp import Context, Image
    from mcp.server.fastmcp import FastMCP as MCPServer
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 0
server = MCPServer("test")
READS = ToolAnnotations(**{"readOnlyHint": True})


class Sum(BaseModel):
    total: int
    terms: list[int]


@server.tool(annotations=READS)
def add(a: int, b: int = Field(default=1, description="The second")) -> Sum:
    """Adds two numbers."""
    return Sum(total=a + b, terms=[a, b])


@server.tool(annotations=READS, structured_output=False)
def echo(text: str) -> str:
    """Says it again."""
    return text


@server.tool(structured_output=False)
def delete_file(path: str) -> str:
    """Deletes a file."""
    with open(sys.argv[2], "a") as log:
        log.write(path + "\n")
    return f"deleted {path}"


@server.tool(annotations=READS, structured_output=False)
async def wait(seconds: float, ctx: Context) -> str:
    """Waits, and says how far it is."""
    for step in range(10):
        await asyncio.sleep(seconds / 10)
        await ctx.report_progress(step + 1, 10, f"step {step + 1}")
    return "waited"


@server.tool(annotations=READS, structured_output=False)
def fail(why: str) -> str:
    """Fails."""
    raise ValueError(why)


@server.tool(annotations=READS, structured_output=False)
def large(length: int) -> str:
    """Answers with a long text."""
    return "x" * length


@server.tool(annotations=READS)
def picture() -> Image:
    """Answers with a picture."""
    return Image(data=b"\x89PNG\r\n\x1a\n" + bytes(100), format="png")


if PORT == 0:
    server.run(transport="stdio")
elif MCPServer.__name__ == "FastMCP":
    server.settings.port = PORT
    server.settings.log_level = "ERROR"
    server.run(transport="streamable-http")
else:
    server.run(transport="streamable-http", port=PORT)
