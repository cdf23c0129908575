"""An agent of LangChain, whose graph LangGraph runs, with a model of the Responses API."""
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

from indusagi.adapters.langchain import to_langchain


async def run(box, gate, url):
    """Run a conversation; return the last sentence and whether a result was an error."""
    model = ChatOpenAI(model="scripted", base_url=f"{url}/v1", api_key="none", use_responses_api=True)
    agent = create_agent(model, to_langchain(box, gate=gate))
    messages = (await agent.ainvoke({"messages": "go"}))["messages"]
    return messages[-1].text, any(getattr(message, "status", "") == "error" for message in messages)
