"""The client of the package `anthropic`."""
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from anthropic import AsyncAnthropic

from indusagi.adapters.anthropic import to_anthropic


async def run(box, gate, url):
    """Run a conversation; return the last sentence and whether a result was an error."""
    tools, messages, failed = to_anthropic(box, gate=gate), [{"role": "user", "content": "go"}], False
    async with AsyncAnthropic(base_url=url, api_key="none") as client:
        while more := await tools.run(
            message := await client.messages.create(
                model="scripted", max_tokens=100, messages=messages, tools=tools.definitions
            )
        ):
            failed |= any(block.get("is_error") for block in more[1]["content"])
            messages += more
    return message.content[0].text, failed
