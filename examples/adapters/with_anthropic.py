"""An agent on the Anthropic Messages API, with the tools of a configuration file."""

import asyncio

from anthropic import AsyncAnthropic

from indusagi.adapters.anthropic import to_anthropic
from induscode import open_deck


def ask(request):
    """Decide about the calls that your rules leave open."""
    return input(f"{request.title}? [y/N] ") == "y"


async def main() -> None:
    messages = [{"role": "user", "content": "Note that we need bread."}]
    async with open_deck("examples/adapters/servers.json", gate=ask) as box, AsyncAnthropic() as client:
        tools = to_anthropic(box)
        while more := await tools.run(
            response := await client.messages.create(
                model="claude-sonnet-4-5", max_tokens=4096, messages=messages, tools=tools.definitions
            )
        ):
            messages += more
        print(response.content[-1].text)


asyncio.run(main())
