"""An agent of pydantic-ai, with the tools of a configuration file."""

import asyncio

from pydantic_ai import Agent

from indusagi.adapters.pydantic_ai import to_pydantic_ai
from induscode import open_deck


def ask(request):
    """Decide about the calls that your rules leave open."""
    return input(f"{request.title}? [y/N] ") == "y"


async def main() -> None:
    async with open_deck("examples/adapters/servers.json", gate=ask) as box:
        agent = Agent("anthropic:claude-sonnet-4-5", toolsets=[to_pydantic_ai(box)])
        print((await agent.run("Note that we need bread.")).output)


asyncio.run(main())
