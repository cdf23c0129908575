"""Toolboxes in front of toolboxes: a layer forwards everything that it doesn't change."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from indusagi.core.cancel import CancelToken
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef
    from indusagi.runtime.contract import ProgressSink, ToolCall, ToolDescriptor, ToolOutcome
    from induscode.deck.mcp.drift import DisabledTool


class ToolSource(Protocol):
    """Tools that a finder can search."""

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List every callable tool, by the caller's names."""
        ...

    def find_ref(self, name: str) -> RemoteToolRef | None:
        """Find a tool's server and its own name there; `None` for a native tool."""
        ...

    def find_denied(self, names: Collection[str]) -> Collection[str]:
        """Return the tools that a rule denies to this task's caller."""
        ...

    def list_disabled(self) -> Sequence[DisabledTool]:
        """List the tools that can't be called until their definitions are approved."""
        ...


class ServedBox(ToolSource, Protocol):
    """A toolbox that runs its calls itself and knows the servers of its tools."""

    @property
    def runner(self) -> ServedBox:
        """This object."""
        ...

    @property
    def context(self) -> ToolContext:
        """The context of native cards."""
        ...

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run one call."""
        ...

    def answers_unlisted(self, name: str) -> bool:
        """Return whether calls of an unlisted tool get an answer, such as the reason it's disabled."""
        ...

    def find_server(self, name: str) -> str | None:
        """Return the server of a tool, even of a disabled one; `None` for native and unknown tools."""
        ...

    def forwards_input(self, name: str) -> bool:
        """Return whether a tool belongs to a server, which may request input itself."""
        ...


class ToolBoxLayer:
    """A toolbox in front of another one, `box`. Subclasses override what they change."""

    def __init__(self, box: ServedBox) -> None:
        self.box = box

    @property
    def runner(self) -> Self:
        """This object: it runs its own calls."""
        return self

    @property
    def context(self) -> ToolContext:
        """The context of native cards."""
        return self.box.context

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the tools."""
        return self.box.descriptors()

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run one call."""
        return await self.box.run(call, cancel, on_progress=on_progress)

    def answers_unlisted(self, name: str) -> bool:
        """Return whether calls of an unlisted tool get an answer."""
        return self.box.answers_unlisted(name)

    def find_server(self, name: str) -> str | None:
        """Return the server of a tool."""
        return self.box.find_server(name)

    def forwards_input(self, name: str) -> bool:
        """Return whether a tool belongs to a server."""
        return self.box.forwards_input(name)

    def find_ref(self, name: str) -> RemoteToolRef | None:
        """Return the server of a tool and the tool's name there."""
        return self.box.find_ref(name)

    def find_denied(self, names: Collection[str]) -> Collection[str]:
        """Return the tools that a rule denies."""
        return self.box.find_denied(names)

    def list_disabled(self) -> Sequence[DisabledTool]:
        """List the disabled tools."""
        return self.box.list_disabled()
