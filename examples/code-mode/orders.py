"""A small MCP server over standard input and output: the orders of a shop, one for each call."""

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

ORDERS = 200
server = MCPServer("orders")


class Order(BaseModel):
    number: int
    customer: str
    cents: int
    paid: bool
    note: str


# A tool that only reads is called without a question to a person.
@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def get_order(number: int = Field(ge=1, le=ORDERS)) -> Order:
    """One order of the shop by its number, 1 to 200."""
    customer = ["Ada", "Ben", "Cleo", "Dan"][number % 4]
    note = f"Reference {number:06}: ring twice, and leave the parcel with the neighbours when nobody opens the door."
    return Order(number=number, customer=customer, cents=number * 137 % 10_000, paid=number % 3 != 0, note=note)


server.run(transport="stdio")
