"""An agent of the OpenAI Agents SDK."""
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from agents import Agent, OpenAIResponsesModel, Runner, ToolCallOutputItem, set_tracing_disabled
from openai import AsyncOpenAI

from indusagi.adapters.openai_agents import to_openai_agents


async def run(box, gate, url):
    """Run a conversation; return the last sentence and whether a result was an error."""
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        model = OpenAIResponsesModel("scripted", client)
        agent = Agent("Assistant", model=model, tools=to_openai_agents(box, gate=gate))
        result = await Runner.run(agent, "go")
    outputs = [item.output for item in result.new_items if isinstance(item, ToolCallOutputItem)]
    return result.final_output, any(str(output).startswith("Error: ") for output in outputs)
