"""Learns what a server needs: starts it in an observing sandbox, calls what only reads, and proposes a profile.

It starts with `strict`, and takes `standard` only if the server fails in it. Whatever a start may use without a
question is granted to it: public hosts, through the proxy, and what `standard` shows. Your own files are only proposed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.sandbox.behaviour import Behaviour, RefusedUse
from indusagi.capabilities.sandbox.profile import ServerProfile, format_profile
from indusagi.capabilities.sandbox.trace import SandboxObserver
from indusagi.core.json import is_json_object
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.contract import LISTED_KINDS, ProtocolFault
from indusagi.interop.protocol_bridge.endpoint import create_server_endpoint
from induscode.servers.plan import write_fields

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.contract import RemoteTool, StdioServerConfig
    from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl
    from induscode.servers.config.rows import ServerRow

_MAX_CALLS = 20
"""How many tools to call that nobody named."""
_MAX_MESSAGE_CHARS = 200


@record
class TriedCall:
    """One call of a learning run."""

    tool: str
    arguments: JsonObject
    failure: str | None = None
    """What it answered, if that was an error."""


@record(kw_only=True)
class LearnedRun:
    """What one server did in an observing sandbox."""

    profile: ServerProfile
    """The smallest profile that allows it."""
    widest: ServerProfile
    """The same with whatever else it looked for, which it may not need."""
    behaviour: Behaviour
    tools: Sequence[str] = ()
    calls: Sequence[TriedCall] = ()
    fault: ProtocolFault | None = None
    """Why it didn't start, or list its tools."""
    refusals: Sequence[RefusedUse] = ()
    """What the profile doesn't allow, and the server asked for."""
    is_blocked: bool = False
    """Whether the profile has something that the run refused: with it, the server may go further."""
    note: str = ""
    """What couldn't be observed."""

    @property
    def failures(self) -> int:
        """How many calls failed; more than there can be if it didn't start."""
        return sum(call.failure is not None for call in self.calls) if self.fault is None else sys.maxsize


async def learn_behaviour(
    config: StdioServerConfig, calls: Sequence[tuple[str, JsonObject]] = (), *, seconds: float = 0.0
) -> LearnedRun:
    """Start a server in an observing sandbox and propose the smallest profile that works.

    It lists everything, calls the tools that only read and need no arguments, makes the given `calls`, and stays up for
    `seconds`. Paths of the row's own profile are available to it. Raises nothing: a run has the fault.
    """
    own = config.sandbox or ServerProfile()
    hosts = tuple(host for host in own.hosts or () if host != "*") or None
    strict = replace(own, name="strict", hosts=hosts)
    runs = [await observe_server(config, strict, calls, seconds)]
    shown = _limit_to_standard(runs[0].widest, strict)
    for profile in (*([shown] if shown != strict else []), replace(strict, name="standard")):
        if runs[-1].failures:
            runs.append(await observe_server(config, profile, calls, seconds))
    return min(runs, key=lambda run: run.failures)


def _limit_to_standard(profile: ServerProfile, own: ServerProfile) -> ServerProfile:
    """Return the profile without the paths that `standard` wouldn't show either."""
    read = tuple(path for path in profile.read if path in own.read or not path.startswith("~"))
    write = tuple(path for path in profile.write if path in own.write or not path.startswith(("~", "/", "..")))
    return replace(profile, read=read, write=write, hosts=own.hosts)


async def observe_server(
    config: StdioServerConfig,
    profile: ServerProfile,
    calls: Sequence[tuple[str, JsonObject]] = (),
    seconds: float = 0.0,
) -> LearnedRun:
    """Start a server once in an observing sandbox of this profile, and call it as `learn_behaviour` does."""
    observer = SandboxObserver()
    endpoint = create_server_endpoint(replace(config, sandbox=replace(profile, observer=observer)))
    tools: Sequence[RemoteTool] = ()
    tried: list[TriedCall] = []
    fault = None
    try:
        await endpoint.open()
        tools = await endpoint.list_tools()
        for kind in LISTED_KINDS:
            with suppress(ProtocolFault):  # the tools are what it's for
                await endpoint.list_items(kind)
        chosen: list[tuple[str, JsonObject]] = [
            *calls,
            *((name, {}) for name in _list_harmless(tools) if name not in dict(calls)),
        ]
        tried = [await _call(endpoint, name, arguments) for name, arguments in chosen]
        await asyncio.sleep(seconds)
    except ProtocolFault as exc:
        fault = exc
    finally:
        await endpoint.close()
    # In a thread: it looks at your files.
    return await to_thread.run_sync(partial(_conclude, observer, profile, tools, tried, fault))


def _conclude(
    observer: SandboxObserver,
    profile: ServerProfile,
    tools: Sequence[RemoteTool],
    tried: Sequence[TriedCall],
    fault: ProtocolFault | None,
) -> LearnedRun:
    failed = fault is not None or any(call.failure for call in tried)
    behaviour = observer.find_behaviour(with_asked="~" if failed else None)
    proposed = profile.allow(behaviour)
    allowed = {*proposed.read, *proposed.write}
    return LearnedRun(
        profile=proposed,
        widest=profile.allow(observer.find_behaviour(with_asked="")),
        behaviour=behaviour,
        tools=tuple(tool.ref.name for tool in tools),
        calls=tuple(tried),
        fault=fault,
        refusals=tuple(one for one in observer.find_refusals() if one.target not in allowed),
        is_blocked=(proposed.read, proposed.write) != (profile.read, profile.write),
        note=observer.note,
    )


def _list_harmless(tools: Sequence[RemoteTool]) -> list[str]:
    """List the tools that only read, as they say themselves, and need no arguments."""

    def is_harmless(raw: JsonObject) -> bool:
        annotations, schema = raw.get("annotations"), raw.get("inputSchema")
        says_so = is_json_object(annotations) and annotations.get("readOnlyHint") is True
        return says_so and not (is_json_object(schema) and schema.get("required"))

    return [tool.ref.name for tool in tools if is_harmless(tool.raw)][:_MAX_CALLS]


async def _call(endpoint: ServerEndpointImpl, name: str, arguments: JsonObject) -> TriedCall:
    try:
        result = await endpoint.invoke(name, arguments)
    except ProtocolFault as fault:
        return TriedCall(name, arguments, str(fault))
    if not result.is_error:
        return TriedCall(name, arguments)
    texts = [str(block.get("text", "")) for block in result.content if is_json_object(block)]
    return TriedCall(name, arguments, " ".join(" ".join(texts).split())[:_MAX_MESSAGE_CHARS] or "an error")


# -- the row ----------------------------------------------------------------------------------


def write_profile(row: ServerRow, profile: ServerProfile) -> None:
    """Write a profile into a row of a file of ours. Blocks; raises like `write_fields`."""
    write_fields(row, {"sandbox": format_profile(profile)})


def allow_behaviour(row: ServerRow, behaviour: Behaviour) -> None:
    """Add what a behaviour uses to the profile of a row. Blocks; raises like `write_profile`."""
    profile = getattr(row.config, "sandbox", None)
    if isinstance(profile, ServerProfile) and profile.allow(behaviour) != profile:
        write_profile(row, profile.allow(behaviour))
