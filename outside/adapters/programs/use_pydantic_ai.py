"""An agent of pydantic-ai, with a model of the Responses API."""
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from indusagi.adapters.pydantic_ai import to_pydantic_ai


async def run(box, gate, url):
    """Run a conversation; return the last sentence and whether a result was an error."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        model = OpenAIResponsesModel("scripted", provider=OpenAIProvider(openai_client=client))
        result = await Agent(model, toolsets=[to_pydantic_ai(box, gate=gate)]).run("go")
    parts = [part for message in result.all_messages() for part in message.parts]
    return result.output, any(isinstance(part, ToolReturnPart) and part.outcome == "failed" for part in parts)
