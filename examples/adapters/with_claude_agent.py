"""The Claude Agent SDK, with the tools of a configuration file as a server inside of this process."""

import asyncio

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

from indusagi.adapters.mcp import to_mcp
from induscode import open_deck


def ask(request):
    """Decide about the calls that your rules leave open."""
    return input(f"{request.title}? [y/N] ") == "y"


async def main() -> None:
    async with open_deck("examples/adapters/servers.json", gate=ask, profile="none") as box:
        server = {"type": "sdk", "name": "deck", "instance": to_mcp(box)}
        # The gate decides: the SDK itself allows every tool of this server.
        options = ClaudeAgentOptions(mcp_servers={"deck": server}, allowed_tools=["mcp__deck__*"], tools=[])
        async for message in query(prompt="Note that we need bread.", options=options):
            if isinstance(message, ResultMessage):
                print(message.result)


asyncio.run(main())
