"""Mounted bridge: the tools of a server fleet as tools of the kernel.

A mounted tool carries its reference (server, tool). Each call looks up the endpoint that the fleet has for that server
at the moment, so the tool works again after its server was restarted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NoReturn, TypeAlias, cast

from indusagi.capabilities.budget import UNLIMITED
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.ports import Fs, Shell
from indusagi.capabilities.registry import ToolRegistry
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonValue, is_json_object
from indusagi.core.notes import Note
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.supervision import Supervision
from indusagi.interop.protocol_bridge.client.tools import ArgumentSpelling, find_output_mismatch, model_name
from indusagi.interop.protocol_bridge.content import to_tool_result
from indusagi.interop.protocol_bridge.contract import (
    BridgeConfig,
    MountedBridge,
    ProtocolFault,
    RemoteTool,
    RemoteToolRef,
    is_usable_phase,
)
from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl, start_server_fleet
from indusagi.runtime.contract import ToolBox, ToolResult

CallCheck: TypeAlias = Callable[[RemoteToolRef], ToolResult | None]
"""Runs before each call, when its server is up; a result that it returns replaces the call."""


class UnavailableFs:
    """A file system port whose methods raise `OSError`."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        return _refuse


class UnavailableShell(UnavailableFs):
    """A shell port whose methods raise `OSError`."""


async def _refuse(*arguments: object, **options: object) -> NoReturn:
    raise OSError("a remote tool has no files or commands of this machine")


def make_inert_context() -> ToolContext:
    """Make the context of remote tools: no files, no commands, and no output budget but the consumer's."""
    fs, shell = cast("Fs", UnavailableFs()), cast("Shell", UnavailableShell())
    return ToolContext(cwd="/", fs=fs, shell=shell, cancel=CancelToken(), budget=UNLIMITED)


class MountedTool:
    """A remote tool that can be called like any other."""

    def __init__(self, fleet: ServerFleetImpl, remote: RemoteTool, check: CallCheck | None = None) -> None:
        self.remote = remote
        self._fleet = fleet
        self._check = check
        # A definition that models see as it came has no other spelling.
        is_verbatim = remote.descriptor.definition is remote.raw
        self._spelling = ArgumentSpelling(None if is_verbatim else remote.raw.get("inputSchema"))

    @property
    def ref(self) -> RemoteToolRef:
        """The server's id and the tool's own name."""
        return self.remote.ref

    @cached_property
    def tool(self) -> DefinedTool:
        """The tool for a registry."""
        descriptor = self.remote.descriptor
        spec = ToolSpec(
            descriptor.name,
            descriptor.description,
            descriptor.parameters,
            self.run,
            title=descriptor.title,
            annotations=descriptor.annotations or {},
            output_schema=descriptor.output_schema,
            # The server checks them against its own schema; the model has seen a wider view.
            check_arguments=False,
            foreign=True,
            definition=descriptor.definition,
        )
        return define_tool(spec)

    async def run(self, arguments: JsonValue, ctx: ToolContext) -> ToolResult:
        """Call the tool on its server, which is started first if it is asleep; a failure is an error result."""
        prepared = arguments if is_json_object(arguments) else await self.tool.prepare_call(arguments)
        if isinstance(prepared, ToolResult):
            return prepared
        ref, fleet = self.remote.ref, self._fleet
        with ctx.cancel.guard():
            try:
                endpoint = fleet.endpoint(ref.server)
                if endpoint is not None and endpoint.known_tools is None:
                    # The one place that starts a sleeping server for a call, or waits while it starts.
                    await fleet.wake(ref.server)
                    endpoint = fleet.endpoint(ref.server)
                if endpoint is None:
                    return ToolResult.error(f"server {ref.server!r} is not there any more", code="not_connected")
                if self._check is not None and (refusal := self._check(ref)) is not None:
                    return refusal
                result = await endpoint.invoke(ref.name, self._spelling.restore(prepared), on_progress=ctx.on_progress)
            except ProtocolFault as fault:
                return _to_error_result(fault)
            schema = self.remote.raw.get("outputSchema")
            if is_json_object(schema) and not result.is_error:
                problem = await find_output_mismatch(schema, result.structured)
                if problem is not None:
                    note = Note(f"server {ref.server!r}, tool {ref.name!r}", problem)
                    result = replace(result, notes=(*result.notes, note))
            return to_tool_result(result)
        return ToolResult.error(f"{self.remote.descriptor.name} was stopped: {ctx.cancel.reason}", code="cancelled")


@record
class MountedProtocolBridge:
    """The tools of a fleet as they were when it was mounted, and the fleet that runs them."""

    box: ToolBox
    fleet: ServerFleetImpl
    tools: Sequence[MountedTool]
    notes: Sequence[Note] = ()
    """What was left out, replaced or renamed, of the configuration and of the tools."""

    def to_mounted_bridge(self) -> MountedBridge:
        """Return the type of the contract: fleet, tool box, and the number of tools."""
        return MountedBridge(self.fleet, self.box, len(self.tools))


async def mount_protocol_bridge(
    config: BridgeConfig, *, supervision: Supervision | None = None, handlers: Handlers | None = None
) -> MountedProtocolBridge:
    """Connect to the servers of a configuration and make their tools callable.

    Returns when every server is up, has failed, or has passed its deadline; a failed server contributes no tools, and
    `fleet.status()` has its fault. No behaviour of a server makes this raise.
    """
    fleet = await start_server_fleet(config, supervision=supervision, handlers=handlers)
    try:
        remotes, notes = await _list_remote_tools(fleet)
    except BaseException:
        await fleet.tear_down()
        raise
    tools = tuple(MountedTool(fleet, remote) for remote in remotes)
    registry = ToolRegistry()
    registry.register_all(mounted.tool for mounted in tools)
    box = registry.to_tool_box(make_inert_context())
    return MountedProtocolBridge(box, fleet, tools, (*fleet.notes, *notes))


async def _list_remote_tools(fleet: ServerFleetImpl) -> tuple[list[RemoteTool], list[Note]]:
    """List the tools in the order of the configuration, each under a unique name."""
    remotes: list[RemoteTool] = []
    notes: list[Note] = []
    names: set[str] = set()
    for endpoint in fleet.endpoints():
        if not is_usable_phase(endpoint.phase):
            continue
        try:
            listed = await endpoint.list_tools()
        except ProtocolFault:
            continue  # the status has the fault
        for tool in listed:
            remote, name = tool, tool.descriptor.name
            if name in names:
                name = model_name(tool.ref, names)
                owner = f"server {tool.ref.server!r}, tool {tool.ref.name!r}"
                notes.append(Note(owner, f"another tool has its name; it is called {name!r}"))
                remote = replace(tool, descriptor=replace(tool.descriptor, name=name))
            names.add(name)
            remotes.append(remote)
        notes.extend(endpoint.status().notes)
    return remotes, notes


def _to_error_result(fault: ProtocolFault) -> ToolResult:
    detail = fault.detail
    return ToolResult.error(
        str(fault),
        code=fault.kind,
        server=detail.server,
        reason=detail.reason,
        httpStatus=detail.http_status,
        rpcCode=detail.rpc_code,
    )
