"""The client that the conformance suite judges: `python -m outside.conformance.client <url>`.

It does what any host of ours would do: connect, list the tools, call every one of them, and answer
what it is asked on the way. A scenario that wants to see more than that has a function of its own
below. Nothing in here knows the protocol: that is the business of the bridge under test.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object
from indusagi.interop import ProtocolFault, ServerLimits, StreamableHttpServerConfig, create_server_endpoint
from outside.conformance import skills
from outside.conformance.signing_in import sign_in_for
from outside.host import agreeable, fill_command
from outside.say import complain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from indusagi.core.json import JsonValue
    from indusagi.interop import RemoteTool, ServerEndpointImpl

_SIGN_IN_S = 50.0


async def main(url: str, scenario: str, context: JsonValue) -> int:
    """Go through a scenario and return the exit code."""
    if scenario.startswith(skills.SCENARIOS):
        await skills.load_skills(url, scenario)
        return 0
    auth = sign_in_for(scenario, context) if scenario.startswith("auth/") else None
    # A person signs in while the connection is made.
    limits = ServerLimits() if auth is None else ServerLimits(connect_s=_SIGN_IN_S)
    config = StreamableHttpServerConfig("judge", url, auth=auth, limits=limits)
    endpoint = create_server_endpoint(config, handlers=agreeable())
    try:
        await endpoint.open()
        complain(f"speaks {endpoint.facts}")
        tools = await endpoint.list_tools()
        complain(f"has {[tool.ref.name for tool in tools]}, notes {endpoint.status().notes}")
        await _ACTS.get(scenario, _call_each)(endpoint, tools, context)
    except ProtocolFault as fault:
        complain(f"{fault.kind}: {fault}; {fault.detail}")
        return 1
    finally:
        await endpoint.close()
    return 0


async def _call_each(endpoint: ServerEndpointImpl, tools: Sequence[RemoteTool], context: JsonValue) -> None:
    # All at once: what belongs to one call must not turn up in another.
    async with asyncio.TaskGroup() as tasks:
        for tool in tools:
            arguments = fill_command(tool.raw.get("inputSchema"))
            tasks.create_task(_call(endpoint, tool.ref.name, arguments))


async def _call_as_told(endpoint: ServerEndpointImpl, tools: Sequence[RemoteTool], context: JsonValue) -> None:
    """Make the calls that the suite hands over."""
    told = context.get("toolCalls") if is_json_object(context) else None
    for call in told if isinstance(told, list) else []:
        if is_json_object(call):
            await _call(endpoint, str(call["name"]), call["arguments"])


async def _send_schema_back(endpoint: ServerEndpointImpl, tools: Sequence[RemoteTool], context: JsonValue) -> None:
    """Show what has become of a schema on its way through us."""
    for tool in tools:
        if tool.ref.name != "json_schema_echo":
            await _call(endpoint, "json_schema_echo", {"schema": tool.raw.get("inputSchema")})


async def _read_all(endpoint: ServerEndpointImpl, tools: Sequence[RemoteTool], context: JsonValue) -> None:
    """Ask for resources and prompts too."""
    await _call_each(endpoint, tools, context)
    for resource in await endpoint.list_all("resources/list", "resources"):
        if is_json_object(resource):
            await endpoint.request("resources/read", {"uri": resource["uri"]})
    for prompt in await endpoint.list_all("prompts/list", "prompts"):
        if is_json_object(prompt):
            await endpoint.request("prompts/get", {"name": prompt["name"]})


async def _call(endpoint: ServerEndpointImpl, name: str, arguments: JsonValue) -> None:
    try:
        answer = await endpoint.invoke(name, arguments)
    except ProtocolFault as fault:
        # One tool that fails says nothing about the others; the suite knows what it wanted.
        complain(f"{name}: {fault.kind}: {fault}; {fault.detail}")
    else:
        complain(f"{name}: {answer}")


_ACTS: dict[str, Callable[[ServerEndpointImpl, Sequence[RemoteTool], JsonValue], Awaitable[None]]] = {
    "http-custom-headers": _call_as_told,
    "http-standard-headers": _read_all,
    "json-schema-2020-12-preservation": _send_schema_back,
}


if __name__ == "__main__":
    sys.exit(
        asyncio.run(
            main(
                sys.argv[1],
                os.environ.get("MCP_CONFORMANCE_SCENARIO", ""),
                json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "null")),
            )
        )
    )
