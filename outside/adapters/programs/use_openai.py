"""The client of the package `openai`, on the Responses API."""
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from openai import AsyncOpenAI

from indusagi.adapters.openai import to_openai


async def run(box, gate, url):
    """Run a conversation; return the last sentence and whether a result was an error."""
    tools, items, failed = to_openai(box, gate=gate), [{"role": "user", "content": "go"}], False
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        while more := await tools.run(
            response := await client.responses.create(model="scripted", input=items, tools=tools.definitions)
        ):
            failed |= str(more[-1]["output"]).startswith("Error: ")
            items += more
    return response.output_text, failed
