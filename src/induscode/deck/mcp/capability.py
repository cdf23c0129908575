"""A remote tool as a card of the deck."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias, cast

from indusagi.capabilities.context import ToolContext
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonLike, JsonObject, JsonValue, compact_json, content_hash
from indusagi.interop.protocol_bridge.contract import QUALIFIER, RemoteToolRef, qualify_tool_name
from indusagi.runtime.content import TextContentBlock
from indusagi.runtime.contract import JsonSchema, ToolBox, ToolCall, ToolDescriptor, ToolResult, ToolRunner
from induscode.deck.contract import BridgeFault, BuildFailed

_KEY = re.compile(r"bk_(?:[0-9a-f]{32}|[0-9A-HJKMNP-TV-Z]{26})")
"""A digest of 128 bits in hexadecimal digits, or a ULID (https://github.com/ulid/spec)."""


class BridgeKey(str):
    """What makes an enrolment the same one as before: checked text. See the functions below."""

    __slots__ = ()

    def __new__(cls, key: object) -> Self:
        """Check the form of the key.

        Raises:
            BridgeFault: It is not `bk_` and a digest or a ULID.
        """
        if not isinstance(key, str) or _KEY.fullmatch(key) is None:
            makers = "bridge_content_key or bridge_ulid_key"
            raise BridgeFault(f"{key!r} is not a bridge key: make one with {makers}")
        return super().__new__(cls, key)


def bridge_content_key(server: str, tool: str, parameters: JsonLike = None) -> BridgeKey:
    """Make the key of a tool from what it is: its qualified name and its schema.

    The order of the keys in a schema makes no difference, that of its arrays does; no schema is
    not the same as an empty one.
    """
    identity: dict[str, JsonLike] = {"name": qualify_bridge_name(server, tool), "schema": parameters}
    return BridgeKey(f"bk_{content_hash(identity, sort_keys=True)}")


def bridge_identity_key(server: str, tool: str, parameters: JsonLike = None) -> BridgeKey:
    """Make the key of a tool from both parts of its identity, where `bridge_content_key` cannot.

    That one joins the two names, and tools of two servers can join to one name.
    """
    identity: dict[str, JsonLike] = {"server": server, "tool": tool, "schema": parameters}
    return BridgeKey(f"bk_{content_hash(identity, sort_keys=True)}")


def bridge_ulid_key() -> BridgeKey:
    """Make a key that no other enrolment has; keys made later sort later."""
    return BridgeKey(f"bk_{new_ulid()}")


def qualify_bridge_name(server: str, tool: str) -> str:
    """Join the two names of a remote tool."""
    return qualify_tool_name(RemoteToolRef(server, tool))


def server_of_qualified(name: str) -> str:
    """Give what stands before the first qualifier; nothing if there is none, or it leads."""
    at = name.find(QUALIFIER)
    return name[:at] if at > 0 else ""


def unqualified_tool(name: str) -> str:
    """Give what stands after the first qualifier; the name itself if it has no server."""
    server = server_of_qualified(name)
    return name[len(server) + len(QUALIFIER) :] if server else name


RunRemote: TypeAlias = Callable[[JsonValue, ToolContext], Awaitable[ToolResult]]


@dataclass(frozen=True, slots=True, init=False)
class BridgeCapability:
    """A tool of an MCP server. Two are equal when they are the same tool, whoever runs them."""

    descriptor: ToolDescriptor
    ref: RemoteToolRef
    """Which tool of which server it is: carried from the listing, never read off the name."""
    raw: JsonObject = field(repr=False)
    """The definition as the server gave it."""
    shares_name: bool = field(compare=False, repr=False)
    """Whether its joined name can be read as that of a tool of a server with a longer id."""
    runner: ToolRunner | RunRemote | None = field(compare=False, repr=False)
    """None for one that was read from the store and whose server is not there yet."""

    def __init__(
        self,
        name: str,
        description: str,
        parameters: JsonSchema,
        runner: ToolRunner | RunRemote | None,
        *,
        ref: RemoteToolRef | None = None,
    ) -> None:
        """Make the card of a tool of which no more is known than a box says of it.

        The runner is called under the qualified name. Without a `ref` the server and the tool are
        read off that name.

        Raises:
            BuildFailed: One of the arguments cannot be used.
        """
        _check(name, description, parameters, runner)
        known = ref or RemoteToolRef(server_of_qualified(name), unqualified_tool(name))
        raw: JsonObject = {
            "name": known.name,
            "description": description,
            "inputSchema": cast("JsonObject", dict(parameters)),
        }
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
        """Make the card of a tool with everything its server says of it."""
        made = cls.__new__(cls)
        _fill(made, descriptor, ref, {} if raw is None else raw, runner)
        object.__setattr__(made, "shares_name", shares_name)
        return made

    @property
    def name(self) -> str:
        """The name a model calls it by."""
        return self.descriptor.name

    @property
    def label(self) -> str:
        """The same name: what people see is what the model calls."""
        return self.descriptor.name

    @property
    def description(self) -> str:
        """What a model is told about it."""
        return self.descriptor.description

    @property
    def parameters(self) -> JsonSchema:
        """The schema of its arguments, as a model is shown it."""
        return self.descriptor.parameters

    @property
    def read_only(self) -> bool:
        """Never: what a server says of its tools gives them no rights."""
        return False

    @property
    def foreign(self) -> bool:
        """Always: a stranger wrote what it answers."""
        return True

    @property
    def pin(self) -> str:
        """The digest of everything the server says about the tool."""
        return definition_pin(self.raw)

    def with_runner(self, runner: ToolRunner | RunRemote | None) -> BridgeCapability:
        """Give the same tool with another runner."""
        return BridgeCapability.from_definition(
            self.descriptor, self.ref, self.raw, runner, shares_name=self.shares_name
        )

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Call the tool on its server."""
        if self.runner is None:
            message = f"server {self.ref.server!r} is not connected, so {self.name} cannot run"
            return ToolResult.error(message, code="not_connected", server=self.ref.server)
        run = getattr(self.runner, "run", None)
        if run is None:
            return await cast("RunRemote", self.runner)(arguments, ctx)
        return await _run_call(cast("ToolRunner", self.runner), self.name, arguments, ctx)


async def _run_call(runner: ToolRunner, name: str, arguments: JsonValue, ctx: ToolContext) -> ToolResult:
    call = ToolCall(f"bridge_{name}", name, arguments)
    outcome = await runner.run(call, ctx.cancel, on_progress=ctx.on_progress)
    # One of ours keeps its content blocks; of another kind only the flat value is known.
    result: object = getattr(outcome, "result", None)
    if isinstance(result, ToolResult):
        return result
    return project_outcome(outcome.output, is_error=outcome.is_error)


def project_outcome(output: JsonValue, is_error: bool = False) -> ToolResult:
    """Make a result of a flat value: a string as it is, null as nothing, the rest as JSON text."""
    if output is None:
        return ToolResult((), is_error)
    text = output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)
    return ToolResult((TextContentBlock(text),), is_error)


def _fill(
    made: BridgeCapability,
    descriptor: ToolDescriptor,
    ref: RemoteToolRef,
    raw: JsonObject,
    runner: ToolRunner | RunRemote | None,
) -> None:
    fields: dict[str, object] = {
        "descriptor": descriptor,
        "ref": ref,
        "raw": raw,
        "runner": runner,
        "shares_name": False,
    }
    for name, value in fields.items():
        object.__setattr__(made, name, value)


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
        raise BuildFailed(identity, f"its runner ({what}) can neither be called nor has it a run")


def definition_pin(raw: JsonObject) -> str:
    """Digest a whole definition; the order of its keys makes no difference."""
    text = compact_json(raw, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def bridge_box_to_capabilities(box: ToolBox) -> Sequence[BridgeCapability]:
    """Make a card of every tool in a box of which nothing else is known.

    Only here is the server read off the name, since a bare box says nothing else of it.
    """
    return tuple(_boxed(box, descriptor) for descriptor in box.descriptors())


def _boxed(box: ToolBox, descriptor: ToolDescriptor) -> BridgeCapability:
    known = BridgeCapability(descriptor.name, descriptor.description, descriptor.parameters, box.runner)
    return BridgeCapability.from_definition(descriptor, known.ref, known.raw, box.runner)
