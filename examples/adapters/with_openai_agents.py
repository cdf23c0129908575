"""An agent of the OpenAI Agents SDK, with the tools of a configuration file."""

import asyncio

from agents import Agent, Runner

from indusagi.adapters.openai_agents import to_openai_agents
from induscode import open_deck


def ask(request):
    """Decide about the calls that your rules leave open."""
    return input(f"{request.title}? [y/N] ") == "y"


async def main() -> None:
    async with open_deck("examples/adapters/servers.json", gate=ask) as box:
        agent = Agent("Assistant", model="gpt-5.1", tools=to_openai_agents(box))
        print((await Runner.run(agent, "Note that we need bread.")).final_output)


asyncio.run(main())
