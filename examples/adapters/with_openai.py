"""An agent on the OpenAI Responses API, with the tools of a configuration file."""

import asyncio

from openai import AsyncOpenAI

from indusagi.adapters.openai import to_openai
from induscode import open_deck


def ask(request):
    """Decide about the calls that your rules leave open."""
    return input(f"{request.title}? [y/N] ") == "y"


async def main() -> None:
    items = [{"role": "user", "content": "Note that we need bread."}]
    async with open_deck("examples/adapters/servers.json", gate=ask) as box, AsyncOpenAI() as client:
        tools = to_openai(box)
        while more := await tools.run(
            response := await client.responses.create(model="gpt-5.1", input=items, tools=tools.definitions)
        ):
            items += more
        print(response.output_text)


asyncio.run(main())
