"""A fleet becomes tools of the kernel: the join between the two halves of the bridge.

A mounted tool carries its reference. At every call it asks the fleet for the endpoint that stands
behind that server then, so it works again after the server was brought back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, NoReturn

from indusagi.capabilities.budget import UNLIMITED
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.ports import DirEntry, FileStat, Folder, ShellProcess, ShellResult, WorkT
from indusagi.capabilities.registry import ToolRegistry
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonObject, is_json_object
from indusagi.core.notes import Note
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.supervision import Supervision
from indusagi.interop.protocol_bridge.client.tools import ArgumentSpelling, find_output_mismatch, model_name
from indusagi.interop.protocol_bridge.content import to_tool_result
from indusagi.interop.protocol_bridge.contract import (
    BridgeConfig,
    EndpointPhase,
    MountedBridge,
    ProtocolFault,
    RemoteCallResult,
    RemoteTool,
    RemoteToolRef,
    is_usable_phase,
)
from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl, start_server_fleet
from indusagi.runtime.contract import JsonSchema, ToolBox, ToolResult


def make_inert_context() -> ToolContext:
    """Make the context for remote tools: no doors, and no budget but that of the consumer."""
    return ToolContext(cwd="/", fs=UnavailableFs(), shell=UnavailableShell(), cancel=CancelToken(), budget=UNLIMITED)


def _unavailable() -> NoReturn:
    raise OSError("a remote tool has no files or commands of this machine")


class UnavailableFs:
    """Files that are not there."""

    async def resolve(self, path: str, *, writing: bool = False) -> str:
        """Refuse."""
        _unavailable()

    async def reading(self, path: str, work: Callable[[BinaryIO], WorkT]) -> WorkT:
        """Refuse."""
        _unavailable()

    async def folder(self, path: str) -> Folder:
        """Refuse."""
        _unavailable()

    async def stat(self, path: str, *, follow: bool = True) -> FileStat:
        """Refuse."""
        _unavailable()

    async def exists(self, path: str) -> bool:
        """Refuse."""
        _unavailable()

    async def read_bytes(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Refuse."""
        _unavailable()

    async def read_text(self, path: str) -> str:
        """Refuse."""
        _unavailable()

    async def write_file(self, path: str, data: bytes | str) -> None:
        """Refuse."""
        _unavailable()

    async def mkdir(self, path: str) -> None:
        """Refuse."""
        _unavailable()

    async def readdir(self, path: str) -> tuple[DirEntry, ...]:
        """Refuse."""
        _unavailable()

    async def rm(self, path: str) -> None:
        """Refuse."""
        _unavailable()


class UnavailableShell:
    """Commands that cannot be run."""

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
        cancel: CancelToken | None = None,
    ) -> ShellResult:
        """Refuse."""
        _unavailable()

    async def spawn(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        output_path: str | None = None,
        with_input: bool = False,
    ) -> ShellProcess:
        """Refuse."""
        _unavailable()


@dataclass(frozen=True, slots=True)
class MountedTool:
    """A remote tool that can be called like any other."""

    remote: RemoteTool
    tool: DefinedTool

    @property
    def ref(self) -> RemoteToolRef:
        """Which tool of which server it is."""
        return self.remote.ref


@dataclass(frozen=True, slots=True)
class MountedProtocolBridge:
    """The tools of a fleet as they were when it was mounted, and the fleet that runs them."""

    box: ToolBox
    fleet: ServerFleetImpl
    tools: Sequence[MountedTool]
    notes: Sequence[Note] = ()
    """What was left out, replaced or renamed, of the configuration and of the tools."""

    def to_mounted_bridge(self) -> MountedBridge:
        """Give the mount in the contract's own shape: fleet, box, and the number of tools."""
        return MountedBridge(self.fleet, self.box, len(self.tools))


async def mount_protocol_bridge(
    config: BridgeConfig, *, supervision: Supervision | None = None, handlers: Handlers | None = None
) -> MountedProtocolBridge:
    """Connect to the servers of a configuration and make their tools callable.

    Returns when every server has come up, failed, or met its deadline; one that failed contributes
    no tools and says why in `fleet.status()`. Nothing a server does makes this raise.
    """
    fleet = await start_server_fleet(config, supervision=supervision, handlers=handlers)
    try:
        remotes, notes = await _remote_tools(fleet)
    except BaseException:
        await fleet.tear_down()
        raise
    tools = tuple(mount_tool(fleet, remote) for remote in remotes)
    registry = ToolRegistry()
    registry.register_all(mounted.tool for mounted in tools)
    box = registry.to_tool_box(make_inert_context())
    return MountedProtocolBridge(box, fleet, tools, (*fleet.notes, *notes))


async def _remote_tools(fleet: ServerFleetImpl) -> tuple[list[RemoteTool], list[Note]]:
    """Collect the tools in the order of the configuration, each under a name of its own."""
    remotes: list[RemoteTool] = []
    notes: list[Note] = []
    taken: set[str] = set()
    for endpoint in fleet.endpoints():
        if not is_usable_phase(endpoint.phase):
            continue
        try:
            listed = await endpoint.list_tools()
        except ProtocolFault:
            continue  # the fault stands in the status
        for remote in listed:
            named = _named(remote, taken, notes)
            taken.add(named.descriptor.name)
            remotes.append(named)
        notes.extend(endpoint.status().notes)
    return remotes, notes


def _named(remote: RemoteTool, taken: set[str], notes: list[Note]) -> RemoteTool:
    name = remote.descriptor.name
    if name in taken:
        name = model_name(remote.ref, taken)
        owner = f"server {remote.ref.server!r}, tool {remote.ref.name!r}"
        notes.append(Note(owner, f"another tool has its name; it is called {name!r}"))
        return replace(remote, descriptor=replace(remote.descriptor, name=name))
    return remote


def mount_tool(fleet: ServerFleetImpl, remote: RemoteTool) -> MountedTool:
    """Make one remote tool callable through a fleet."""
    # A definition that was shown as it came has no other spelling.
    is_shown_whole = remote.descriptor.definition is remote.raw
    spelling = ArgumentSpelling(None if is_shown_whole else remote.raw.get("inputSchema"))

    def run(arguments: JsonObject, ctx: ToolContext) -> Awaitable[ToolResult]:
        return _call(fleet, remote, spelling.restore(arguments), ctx)

    descriptor = remote.descriptor
    spec = ToolSpec(
        descriptor.name,
        descriptor.description,
        descriptor.parameters,
        run,
        title=descriptor.title,
        annotations=descriptor.annotations or {},
        output_schema=descriptor.output_schema,
        # The server checks them against the schema it really has; the model saw a wider view.
        check_arguments=False,
        foreign=True,
        definition=descriptor.definition,
    )
    return MountedTool(remote, define_tool(spec))


async def _call(fleet: ServerFleetImpl, remote: RemoteTool, arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    ref = remote.ref
    endpoint = fleet.endpoint(ref.server)
    if endpoint is not None and endpoint.phase is EndpointPhase.IDLE:
        await fleet.wake(ref.server)
        endpoint = fleet.endpoint(ref.server)
    if endpoint is None:
        return ToolResult.error(f"server {ref.server!r} is not there any more", code="not_connected")
    try:
        # Cancellation needs no token here: the tool runs in the scope of the call's token.
        answer = await endpoint.invoke(ref.name, arguments, on_progress=ctx.on_progress)
    except ProtocolFault as fault:
        return _failure(fault)
    promised = remote.raw.get("outputSchema")
    if is_json_object(promised):
        answer = await _checked(answer, remote, promised)
    return to_tool_result(answer)


async def _checked(answer: RemoteCallResult, remote: RemoteTool, schema: JsonSchema) -> RemoteCallResult:
    """Note a structured answer that is not what the tool promised; it is passed on all the same."""
    if answer.is_error:
        return answer
    problem = await find_output_mismatch(schema, answer.structured)
    if problem is None:
        return answer
    owner = f"server {remote.ref.server!r}, tool {remote.ref.name!r}"
    return replace(answer, notes=(*answer.notes, Note(owner, problem)))


def _failure(fault: ProtocolFault) -> ToolResult:
    detail = fault.detail
    return ToolResult.error(
        str(fault),
        code=fault.kind,
        server=detail.server,
        reason=detail.reason,
        httpStatus=detail.http_status,
        rpcCode=detail.rpc_code,
    )
