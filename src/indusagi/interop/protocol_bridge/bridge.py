"""Mounted bridge: a fleet's tools in a kernel tool box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn, cast

from indusagi.capabilities.budget import UNLIMITED
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.ports import Fs, Shell
from indusagi.capabilities.registry import ToolRegistry
from indusagi.core.cancel import CancelToken
from indusagi.core.faults import Note
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.start import Supervision
from indusagi.interop.protocol_bridge.client.tools import model_name
from indusagi.interop.protocol_bridge.contract import (
    BridgeConfig,
    MountedBridge,
    ProtocolFault,
    RemoteTool,
    is_usable_phase,
)
from indusagi.interop.protocol_bridge.fleet import MountedTool, ServerFleetImpl, start_server_fleet
from indusagi.runtime.contract import ToolBox


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
    """Create the context of remote tools: no files, no commands, and no output budget but the consumer's."""
    fs, shell = cast("Fs", UnavailableFs()), cast("Shell", UnavailableShell())
    return ToolContext(cwd="/", fs=fs, shell=shell, cancel=CancelToken(), budget=UNLIMITED)


@record
class MountedProtocolBridge:
    """A fleet and a snapshot of its tools, taken when it was mounted."""

    box: ToolBox
    fleet: ServerFleetImpl
    tools: Sequence[MountedTool]
    notes: Sequence[Note] = ()
    """Omissions, replacements and renames in the configuration and the tools."""

    def to_mounted_bridge(self) -> MountedBridge:
        """Convert to the contract's type."""
        return MountedBridge(self.fleet, self.box, len(self.tools))


async def mount_protocol_bridge(
    config: BridgeConfig, *, supervision: Supervision | None = None, handlers: Handlers | None = None
) -> MountedProtocolBridge:
    """Connect to the configured servers and make their tools callable.

    Returns once every server is up, has failed, or has passed its deadline. A failed server contributes no tools;
    `fleet.status()` has its fault. Misbehaving servers don't make this raise.
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
    """List the tools in configuration order, each with a unique name."""
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
