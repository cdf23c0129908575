"""The framework's native tools as cards, in one table.

The framework defines a tool's behaviour; the deck adds title, summary and profiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import TypeAlias, cast

from indusagi.capabilities.arguments import find_similar_name
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.tool import DefinedTool
from indusagi.core.json import JsonObject, JsonValue
from indusagi.runtime.contract import JsonSchema, ToolCall, ToolDescriptor, ToolResult
from induscode.deck.contract import (
    BuildFn,
    Capability,
    CapabilityCard,
    CapabilityId,
    DeckContext,
    Profile,
    UnknownCapability,
    build_card,
    capability_id,
)

READ_ONLY: tuple[Profile, ...] = (Profile.AUTHORING, Profile.SURVEY)
MUTATING: tuple[Profile, ...] = (Profile.SURVEY,)

BridgeBuilder: TypeAlias = BuildFn
BuiltinDescriptor: TypeAlias = CapabilityCard
"""One row of the table, and of the catalog."""


class BuiltinCard:
    """A native tool with the deck's title."""

    def __init__(self, tool: DefinedTool, title: str, *, read_only: bool) -> None:
        self._tool, self.preview = tool, tool.preview
        annotations = {**(tool.descriptor.annotations or {}), "readOnlyHint": read_only}
        self.descriptor: ToolDescriptor = replace(tool.descriptor, title=title, annotations=annotations)
        self.name, self.label, self.description = tool.name, title or tool.name, tool.description
        self.parameters: JsonSchema = tool.parameters
        self.read_only = read_only

    def __repr__(self) -> str:
        return f"BuiltinCard({self.name!r})"

    async def prepare_call(self, arguments: JsonValue) -> JsonObject | ToolResult:
        """Return the arguments the tool will run with, or an error result."""
        return await self._tool.prepare_call(arguments)

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Run the tool."""
        call = ToolCall(f"{self.name}-builtin", self.name, arguments)
        return (await self._tool.invoke(call, ctx)).result


def _row(name: str, title: str, summary: str, profiles: tuple[Profile, ...]) -> BuiltinDescriptor:
    def build(_: DeckContext) -> Capability:
        from indusagi.capabilities.tools import native_tool  # noqa: PLC0415 — a listing loads no tools

        # AUTHORING is the read-only profile, so it doubles as the list of read-only tools.
        return BuiltinCard(native_tool(name), title, read_only=Profile.AUTHORING in profiles)

    return BuiltinDescriptor(capability_id(name), title, summary, profiles, build)


@cache
def builtin_descriptors() -> tuple[BuiltinDescriptor, ...]:
    """Return the twelve rows in catalog order."""
    return (
        _row("read", "Read file", "Read a file, page by page", READ_ONLY),
        _row("ls", "List directory", "List what is in a directory", READ_ONLY),
        _row("grep", "Search file contents", "Search files by a pattern", READ_ONLY),
        _row("find", "Find files by name", "Find files by name or glob", READ_ONLY),
        _row("websearch", "Web search", "Search the web", READ_ONLY),
        _row("webfetch", "Fetch URL", "Fetch a page as Markdown", READ_ONLY),
        _row("todo_read", "Read checklist", "Show the checklist", READ_ONLY),
        _row("write", "Write file", "Create or replace a file", MUTATING),
        _row("edit", "Edit file", "Change parts of a file", MUTATING),
        _row("bash", "Run shell command", "Run a command in the workspace", MUTATING),
        _row("process", "Manage background processes", "Start, follow and stop commands in the background", MUTATING),
        _row("todo_set", "Update checklist", "Replace the checklist", MUTATING),
    )


@cache
def builtin_bridge() -> Mapping[CapabilityId, BuiltinDescriptor]:
    """Return the rows by id."""
    return MappingProxyType({row.id: row for row in builtin_descriptors()})


def builtin_ids() -> Sequence[CapabilityId]:
    """List the ids, in order."""
    return tuple(row.id for row in builtin_descriptors())


def builtin_profiles() -> Mapping[CapabilityId, tuple[Profile, ...]]:
    """Return the profiles of every row."""
    return {row.id: row.profiles for row in builtin_descriptors()}


def builtin_cards() -> Sequence[CapabilityCard]:
    """Return the rows of the catalog."""
    return builtin_descriptors()


def build_builtin(identity: str, ctx: DeckContext) -> Capability:
    """Build one built-in; raises `UnknownCapability` if the id is unknown."""
    row = builtin_bridge().get(cast("CapabilityId", identity))
    if row is None:
        raise UnknownCapability(identity, find_similar_name(identity, builtin_ids()))
    return build_card(row, ctx)


def build_builtins_for_profile(profile: Profile | str, ctx: DeckContext) -> Sequence[Capability]:
    """Build every built-in of a profile; raises `DeckFault` if the profile is unknown or a tool can't be built."""
    return tuple(build_card(card, ctx) for card in builtin_cards() if card.in_profile(profile))
