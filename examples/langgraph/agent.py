"""An agent of LangGraph that runs programs in the sandbox. Argument: the task."""

import asyncio
import os
import sys

from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

TOKEN = os.environ["MCP_API_TOKEN"]
MODEL = os.environ.get("OPENAI_MODEL", "gpt-4o")
TASK = "Draw the sine of x from 0 to 10 as a PNG, save the values as a CSV file, and give me the links of both."
INSTRUCTIONS = "Compute with programs, not by yourself. Give the same conversationId in every call."

# LangChain makes an attachment of each link, which its OpenAI chat model refuses: links=off keeps them in the text.
client = MultiServerMCPClient({"sandbox": {
    "transport": "streamable_http",
    "url": "http://localhost:8080/mcp?links=off",
    "headers": {"Authorization": f"Bearer {TOKEN}"},
}})


async def main(task: str) -> None:
    tools = await client.get_tools()
    model = ChatOpenAI(model=MODEL).bind_tools(tools)

    async def ask(state: MessagesState) -> dict:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    done = await graph.compile().ainvoke({"messages": [("system", INSTRUCTIONS), ("user", task)]})
    print(done["messages"][-1].content)


asyncio.run(main(" ".join(sys.argv[1:]) or TASK))
