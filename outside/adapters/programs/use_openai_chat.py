"""The client of the package `openai`, on the Chat Completions API."""
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from openai import AsyncOpenAI

from indusagi.adapters.openai import to_openai


async def run(box, gate, url):
    """Run a conversation; return the last sentence and whether a result was an error."""
    tools, messages, failed = to_openai(box, gate=gate, api="chat"), [{"role": "user", "content": "go"}], False
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        while more := await tools.run(
            response := await client.chat.completions.create(
                model="scripted", messages=messages, tools=tools.definitions
            )
        ):
            failed |= any(row["role"] == "tool" and row["content"].startswith("Error: ") for row in more)
            messages += more
    return response.choices[0].message.content, failed
