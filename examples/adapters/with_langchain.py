"""An agent of LangChain, with the tools of a configuration file."""

import asyncio

from langchain.agents import create_agent

from indusagi.adapters.langchain import to_langchain
from induscode import open_deck


def ask(request):
    """Decide about the calls that your rules leave open."""
    return input(f"{request.title}? [y/N] ") == "y"


async def main() -> None:
    async with open_deck("examples/adapters/servers.json", gate=ask) as box:
        agent = create_agent("openai:gpt-5.1", to_langchain(box))
        result = await agent.ainvoke({"messages": "Note that we need bread."})
        print(result["messages"][-1].text)


asyncio.run(main())
