"""A remote tool as a card of the deck, its enrolment key, and its pin."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from typing import ClassVar, Self, TypeAlias, cast

from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.sandbox.behaviour import Behaviour
from indusagi.core.faults import Note
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonLike, JsonObject, JsonValue, compact_json, content_hash
from indusagi.core.records import record
from indusagi.core.text import escape_unseen
from indusagi.interop.protocol_bridge.client.skills import INSTRUCTIONS, read_instructions, read_items
from indusagi.interop.protocol_bridge.client.tools import read_tools
from indusagi.interop.protocol_bridge.contract import (
    QUALIFIER,
    ItemKind,
    RemoteTool,
    RemoteToolRef,
    ServerConfig,
    freeze_definition,
    qualify_tool_name,
)
from indusagi.runtime.contract import (
    JsonSchema,
    TextContentBlock,
    ToolBox,
    ToolCall,
    ToolDescriptor,
    ToolResult,
    ToolRunner,
)
from induscode.deck.contract import BridgeFault, BuildFailed

_KEY = re.compile(r"bk_(?:[0-9a-f]{32}|[0-9A-HJKMNP-TV-Z]{26})")
"""A 128-bit hex digest, or a ULID (https://github.com/ulid/spec)."""


class BridgeKey(str):
    """The identity of an enrolment: `bk_` plus a digest or ULID. Built by the functions below."""

    __slots__ = ()

    def __new__(cls, key: object) -> Self:
        """Validate the key; raises `BridgeFault` if it's malformed."""
        if not isinstance(key, str) or _KEY.fullmatch(key) is None:
            raise BridgeFault(f"{key!r} is not a bridge key: make one with bridge_content_key or bridge_ulid_key")
        return super().__new__(cls, key)


def bridge_content_key(server: str, tool: str, parameters: JsonLike = None) -> BridgeKey:
    """Build a tool's key from its qualified name and schema.

    In a schema, key order doesn't matter but array order does. No schema differs from an empty one.
    """
    return _hash_key({"name": qualify_tool_name(RemoteToolRef(server, tool)), "schema": parameters})


def bridge_identity_key(server: str, tool: str, parameters: JsonLike = None) -> BridgeKey:
    """Build a tool's key from server and name separately.

    For tools of two servers with the same qualified name, where `bridge_content_key` is ambiguous.
    """
    return _hash_key({"server": server, "tool": tool, "schema": parameters})


def bridge_item_key(ref: RemoteToolRef) -> BridgeKey:
    """Build the key of a non-tool item from its identity alone."""
    return _hash_key({"server": ref.server, "kind": ref.kind, "name": ref.name})


def _hash_key(identity: dict[str, JsonLike]) -> BridgeKey:
    return BridgeKey(f"bk_{content_hash(identity, sort_keys=True)}")


def bridge_ulid_key() -> BridgeKey:
    """Build a unique key. Later keys sort later."""
    return BridgeKey(f"bk_{new_ulid()}")


def qualify_bridge_name(server: str, tool: str) -> str:
    """Join the two names of a remote tool."""
    return qualify_tool_name(RemoteToolRef(server, tool))


def server_of_qualified(name: str) -> str:
    """Return the part before the first qualifier, which may be empty."""
    return name[: max(0, name.find(QUALIFIER))]


def unqualified_tool(name: str) -> str:
    """Return the part after the first qualifier, or the whole name if it has no server."""
    server = server_of_qualified(name)
    return name[len(server) + len(QUALIFIER) :] if server else name


RunRemote: TypeAlias = Callable[[JsonValue, ToolContext], Awaitable[ToolResult]]


@record
class BridgeCapability:
    """A tool of an MCP server. Equality ignores runners."""

    foreign: ClassVar[bool] = True
    """Results come from the server."""
    descriptor: ToolDescriptor
    ref: RemoteToolRef
    """Server id and tool name from the listing, never parsed from the qualified name."""
    raw: JsonObject = field(repr=False)
    """The definition as the server sent it."""
    shares_name: bool = field(compare=False, repr=False)
    """Whether its qualified name could also be a tool of a server with a longer id."""
    runner: ToolRunner | RunRemote | None = field(compare=False, repr=False)
    """`None` for a tool from the store, without a server."""
    _pin: str = field(compare=False, repr=False)
    """Empty until it's computed."""

    def __init__(
        self,
        name: str,
        description: str,
        parameters: JsonSchema,
        runner: ToolRunner | RunRemote | None,
        *,
        ref: RemoteToolRef | None = None,
    ) -> None:
        """Build a card. The runner is called with the qualified name, which also yields a missing `ref`.

        Raises `BuildFailed` if an argument is invalid.
        """
        _check(name, description, parameters, runner)
        known = ref or RemoteToolRef(server_of_qualified(name), unqualified_tool(name))
        schema = cast("JsonObject", dict(parameters))
        raw: JsonObject = {"name": known.name, "description": description, "inputSchema": schema}
        _fill(self, ToolDescriptor(name, description, parameters), known, raw, runner)

    @classmethod
    def from_definition(
        cls,
        descriptor: ToolDescriptor,
        ref: RemoteToolRef,
        raw: JsonObject | None = None,
        runner: ToolRunner | RunRemote | None = None,
        *,
        shares_name: bool = False,
    ) -> BridgeCapability:
        """Build a card from a complete tool definition."""
        card = cls.__new__(cls)
        _fill(card, descriptor, ref, {} if raw is None else raw, runner, shares_name)
        return card

    @property
    def name(self) -> str:
        """The name models call it by."""
        return self.descriptor.name

    @property
    def label(self) -> str:
        """The same name: users see exactly what the model calls."""
        return self.descriptor.name

    @property
    def description(self) -> str:
        """The description models see."""
        return self.descriptor.description

    @property
    def parameters(self) -> JsonSchema:
        """The argument schema models see."""
        return self.descriptor.parameters

    @property
    def read_only(self) -> bool:
        """Always `False`: a server's annotations are untrusted and grant no rights.

        https://modelcontextprotocol.io/specification/2025-06-18/server/tools#tool
        """
        return False

    @property
    def pin(self) -> str:
        """The digest of the definition."""
        if not self._pin:
            object.__setattr__(self, "_pin", definition_pin(self.raw))
        return self._pin

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Call the tool on its server."""
        if ctx.cancel.cancelled:
            return ToolResult.stopped(self.descriptor.name, ctx.cancel)
        if self.runner is None:
            message = f"server {self.ref.server!r} is not connected, so {self.name} cannot run"
            return ToolResult.error(message, code="not_connected", server=self.ref.server)
        if not hasattr(self.runner, "run"):
            return await cast("RunRemote", self.runner)(arguments, ctx)
        name = self.descriptor.name
        call = ToolCall(f"bridge_{name}", name, arguments)
        outcome = await cast("ToolRunner", self.runner).run(call, ctx.cancel, on_progress=ctx.on_progress)
        # Our runners return content blocks; others only provide a flat value.
        result: object = getattr(outcome, "result", None)
        if isinstance(result, ToolResult):
            return result
        return project_outcome(outcome.output, is_error=outcome.is_error)


def project_outcome(output: JsonValue, is_error: bool = False) -> ToolResult:
    """Build a result from a flat value: strings as is, null as no content, anything else as JSON text."""
    if output is None:
        return ToolResult((), is_error)
    text = output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)
    return ToolResult((TextContentBlock(text),), is_error)


def _fill(
    card: BridgeCapability,
    descriptor: ToolDescriptor,
    ref: RemoteToolRef,
    raw: JsonObject,
    runner: ToolRunner | RunRemote | None,
    shares_name: bool = False,
) -> None:
    descriptor, raw = freeze_definition(descriptor, raw)
    values = {"descriptor": descriptor, "ref": ref, "raw": raw, "runner": runner, "shares_name": shares_name}
    for name, value in {**values, "_pin": ""}.items():
        object.__setattr__(card, name, value)


def _check(name: object, description: object, parameters: object, runner: object) -> None:
    identity = name if isinstance(name, str) else repr(name)
    if not isinstance(name, str) or not name:
        raise BuildFailed(identity, "its name must be text that is not empty")
    if not isinstance(description, str):
        raise BuildFailed(identity, "its description must be text")
    if not isinstance(parameters, Mapping):
        raise BuildFailed(identity, "its parameters must be a JSON Schema, which is an object")
    if runner is not None and not callable(runner) and not callable(getattr(runner, "run", None)):
        what = type(runner).__name__
        raise BuildFailed(identity, f"its runner ({what}) isn't callable and has no method run")


def name_item(ref: RemoteToolRef) -> str:
    """Name an item in one line: server and tool, and the kind if it isn't a tool.

    Adds an ASCII form to names with possible lookalikes, such as Cyrillic letters.
    """
    if ref.kind == "behaviour":
        return escape_unseen(f"{ref.server}'s behaviour")
    name = escape_unseen(f"{ref.server}/{ref.name}")
    if not name.isascii():
        name += f" [{name.encode('ascii', 'backslashreplace').decode()}]"
    return name if ref.kind == "tool" else f"{name} ({ref.kind})"


def definition_pin(raw: JsonObject) -> str:
    """Digest a definition, ignoring key order."""
    return hashlib.sha256(compact_json(raw, sort_keys=True).encode("utf-8")).hexdigest()


def read_definitions(
    kind: ItemKind, rows: Sequence[JsonObject], config: ServerConfig
) -> tuple[Sequence[RemoteTool], Sequence[Note]]:
    """Turn stored definitions of a kind into items, as a listing would."""
    if kind == "tool":
        return read_tools([*rows], config)
    if kind == "instructions":
        text = rows[0].get(INSTRUCTIONS) if rows else None
        return read_instructions(text if isinstance(text, str) else None, config), ()
    return read_items(kind, [*rows], config)


def build_behaviour(server: str, behaviour: Behaviour = Behaviour()) -> RemoteTool:  # noqa: B008 — frozen
    """Build the item that stands for what a server's process does."""
    raw = behaviour.as_json()
    ref = RemoteToolRef(server, "behaviour", "behaviour")
    return RemoteTool(ref, ToolDescriptor(ref.name, "", {}, definition=raw), raw=raw)


def bridge_box_to_capabilities(box: ToolBox) -> Sequence[BridgeCapability]:
    """Build a card for every tool of a toolbox. Only this parses the server from the name."""
    cards: list[BridgeCapability] = []
    for descriptor in box.descriptors():
        card = BridgeCapability(descriptor.name, descriptor.description, descriptor.parameters, box.runner)
        cards.append(BridgeCapability.from_definition(descriptor, card.ref, card.raw, box.runner))
    return tuple(cards)
