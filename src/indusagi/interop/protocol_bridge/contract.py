"""Types of the MCP bridge: configurations, limits, faults, phases, tools, results, protocols.

The functions at the end convert MCP content blocks
(https://modelcontextprotocol.io/specification/2025-06-18/server/tools#tool-result) into kernel content blocks and back
without loss. A text block becomes a text block that keeps the object's other keys. Every other block, whether its type
is known or not, becomes a JSON block with the object unchanged. Nothing in this module does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, ForwardRef, Literal, Protocol, TypeAlias, TypeGuard

from indusagi.capabilities.sandbox.profile import ServerProfile
from indusagi.core.cancel import CancelToken
from indusagi.core.faults import CoreError, Note, describe_error
from indusagi.core.json import JsonObject, JsonValue, compact_json
from indusagi.core.records import FrozenDict, freeze_json, record
from indusagi.runtime.contract import (
    JsonContentBlock,
    ProgressSink,
    TextContentBlock,
    ToolBox,
    ToolContentBlock,
    ToolDescriptor,
    ToolResult,
)

if TYPE_CHECKING:
    from indusagi.interop.auth.contract import ServerAuth
else:
    # Loaded lazily, by `typing.get_type_hints`: only servers with a sign-in need it.
    ServerAuth = ForwardRef("__import__('indusagi.interop.auth.contract', fromlist=['_']).ServerAuth")

QUALIFIER = "__"
"""Separates server id and tool name: `github__create_issue`."""

FaultKind: TypeAlias = Literal["transport", "protocol", "timeout", "tool_error", "not_connected", "spawn_failed"]
FAULT_KINDS: tuple[FaultKind, ...] = ("transport", "protocol", "timeout", "tool_error", "not_connected", "spawn_failed")
FaultReason: TypeAlias = Literal[
    "auth", "cancelled", "closed", "exited", "frame_too_large", "malformed", "moved", "node_changed", "not_found",
    "outcome_unknown", "rate_limited", "redirect", "refused", "secret", "sign_in", "untrusted", "upstream",
    "version",
]  # fmt: skip
"""Finer cause of a fault; a closed set."""
Recovery: TypeAlias = Literal["wait", "reconnect", "user"]
"""The remedy: time, a new connection or process, or a change by the user."""

RECOVERIES: Mapping[FaultReason, Recovery] = {
    "cancelled": "reconnect",
    "exited": "reconnect",
    "frame_too_large": "reconnect",
    **dict.fromkeys(("auth", "malformed", "not_found", "redirect", "sign_in", "untrusted", "version"), "user"),
    **dict.fromkeys(("closed", "moved", "node_changed", "outcome_unknown", "secret"), "wait"),
    **dict.fromkeys(("rate_limited", "refused", "upstream"), "wait"),
}
"""What a failure calls for, for everything that retries: subscriptions, task polls, lists, restarts. An answer from the
server is final; a failure on the way to it, or an answer that says "later", isn't."""
CLUSTER_PREFIX = "cluster:"
"""The command `cluster:NODE/SERVER` refers to a server on a cluster node, not to a program."""
LATER_START_S = 10.0
"""Start limit of a remote server, or of one that has been up before."""
TransportKind: TypeAlias = Literal["stdio", "sse", "streamable_http"]
TrustState: TypeAlias = Literal["trusted", "untrusted"]


@record(kw_only=True)
class FaultDetail:
    """Details of a fault; every field is optional."""

    server: str | None = None
    reason: FaultReason | None = None
    http_status: int | None = None
    retry_after_s: float | None = None
    rpc_code: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    stderr: tuple[str, ...] = ()
    """Last lines of the process's standard error."""
    stdout: tuple[str, ...] = ()
    """Lines of its standard output that weren't protocol messages."""


FaultCause: TypeAlias = BaseException


class ProtocolFault(CoreError):
    """An error between client and server. Branch on `kind`."""

    def __init__(
        self, kind: FaultKind, message: str, cause: FaultCause | None = None, *, detail: FaultDetail | None = None
    ) -> None:
        if kind not in FAULT_KINDS:
            known = ", ".join(FAULT_KINDS)
            raise ValueError(f"{kind!r} is not a kind of fault; the kinds are: {known}")
        if not message.strip():
            message = f"{kind}, for an unknown reason" if cause is None else describe_error(cause)
        super().__init__(message)
        self.kind: FaultKind = kind
        self.message = message
        self.detail = detail or FaultDetail()
        self.__cause__ = cause

    def __reduce__(self) -> tuple[object, ...]:
        return partial(ProtocolFault, detail=self.detail), (self.kind, self.message, self.__cause__)

    @property
    def cause(self) -> BaseException | None:
        """The exception behind it; same as `__cause__`."""
        return self.__cause__

    def __repr__(self) -> str:
        return f"ProtocolFault({self.kind!r}, {self.message!r})"


def protocol_fault(kind: FaultKind, message: str, cause: FaultCause | None = None) -> ProtocolFault:
    """Create a fault without details; raise `ValueError` if `kind` isn't one of `FAULT_KINDS`."""
    return ProtocolFault(kind, message, cause)


def is_protocol_fault(value: object) -> TypeGuard[ProtocolFault]:
    """Return whether a value is a `ProtocolFault`."""
    return isinstance(value, ProtocolFault)


def needs_sign_in(fault: ProtocolFault | None) -> bool:
    """Return whether a server is down (and its phase idle) because the user has to sign in first."""
    return fault is not None and fault.detail.reason == "sign_in"


def waits_for_user(fault: ProtocolFault | None) -> bool:
    """Return whether a server is down because the user has to sign in, or to provide a secret."""
    return fault is not None and fault.detail.reason in {"sign_in", "secret"}


class EndpointPhase(StrEnum):
    """The state of an endpoint: idle → connecting → ready → closing → closed, or faulted."""

    IDLE = "idle"
    CONNECTING = "connecting"
    READY = "ready"
    CLOSING = "closing"
    CLOSED = "closed"
    FAULTED = "faulted"


def is_usable_phase(phase: EndpointPhase | str) -> bool:
    """Return whether tools can be called in a phase (a member or its value); raise `ValueError` if it's unknown."""
    return EndpointPhase(phase) is EndpointPhase.READY


def is_terminal_phase(phase: EndpointPhase | str) -> bool:
    """Return whether a phase is final; raise `ValueError` if it's unknown."""
    return EndpointPhase(phase) in {EndpointPhase.CLOSED, EndpointPhase.FAULTED}


@record(kw_only=True)
class ServerLimits:
    """Deadlines and limits of one server."""

    connect_s: float | None = None
    """From process start (or first request) to the end of the handshake. `None` lets `StartPolicy` decide, which gives
    a first start more time."""
    probe_s: float = 2.0
    """How long to wait for the response to `server/discover` before also sending `initialize`."""
    list_s: float = 10.0
    call_idle_s: float = 60.0
    """Longest silence during a call; progress resets it."""
    call_hard_s: float = 600.0
    close_s: float = 2.0
    """Applies twice: to exit after end of input, then after SIGTERM."""
    frame_bytes: int = 16 * 1024 * 1024
    in_flight: int = 64
    inbound: int = 8
    pages: int = 50
    tools: int = 1_000
    description_chars: int = 2_048
    """Maximum length of a description in the model view; 0 for no limit."""
    stderr_lines: int = 200
    stderr_line_bytes: int = 500
    relist_gap_s: float = 1.0
    """Minimum time between two listings triggered by the server."""

    @property
    def start_s(self) -> float:
        """The limit for every start but the first."""
        return LATER_START_S if self.connect_s is None else self.connect_s


def _freeze(mapping: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(mapping))


def _freeze_filters(config: StdioServerConfig | _RemoteServerConfig) -> None:
    if config.include_tools is not None:
        object.__setattr__(config, "include_tools", tuple(config.include_tools))
    object.__setattr__(config, "exclude_tools", tuple(config.exclude_tools))


@record
class StdioServerConfig:
    """A server that runs as a child process and talks over standard input and output."""

    kind: ClassVar[Literal["stdio"]] = "stdio"
    id: str
    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Added to the variables every server inherits (see `client.stdio`)."""
    cwd: str | None = field(default=None, kw_only=True)
    limits: ServerLimits = field(default_factory=ServerLimits, kw_only=True)
    include_tools: Sequence[str] | None = field(default=None, kw_only=True)
    """`None` for all."""
    exclude_tools: Sequence[str] = field(default=(), kw_only=True)
    replicas: int = field(default=1, kw_only=True)
    """How many cluster nodes run it at once; only stateless servers may have more than one."""
    sandbox: ServerProfile | None = field(default=None, kw_only=True)
    """What it may touch. `None`: everything you may."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "env", _freeze(self.env))
        _freeze_filters(self)


@record
class _RemoteServerConfig:
    id: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    proxy: str | None = field(default=None, kw_only=True, repr=False)
    """Proxy URL; empty for none, `None` to use `HTTPS_PROXY` and friends."""
    auth: ServerAuth | None = field(default=None, kw_only=True)
    """How to sign in if the server asks for it. Never, if `None` or if `headers` has `Authorization`."""
    limits: ServerLimits = field(default_factory=ServerLimits, kw_only=True)
    include_tools: Sequence[str] | None = field(default=None, kw_only=True)
    """`None` for all."""
    exclude_tools: Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", _freeze(self.headers))
        _freeze_filters(self)


@record
class SseServerConfig(_RemoteServerConfig):
    """A server with the HTTP+SSE transport, which MCP has deprecated."""

    kind: ClassVar[Literal["sse"]] = "sse"


@record
class StreamableHttpServerConfig(_RemoteServerConfig):
    """A server with the Streamable HTTP transport."""

    kind: ClassVar[Literal["streamable_http"]] = "streamable_http"


ServerConfig: TypeAlias = StdioServerConfig | SseServerConfig | StreamableHttpServerConfig


def find_config_problem(server: object) -> str | None:
    """Return why a value isn't a usable server configuration, or `None` if it is."""
    if not isinstance(server, (StdioServerConfig, SseServerConfig, StreamableHttpServerConfig)):
        return f"{type(server).__name__} is not the description of a server"
    if not (_is_text(server.id) and server.id):
        return f"its id must be text that is not empty, not {server.id!r}"
    if isinstance(server, StdioServerConfig):
        if not (_is_text(server.command) and server.command and all(map(_is_text, server.args))):
            return "its command must be text that is not empty, and its arguments text"
    elif not _is_text(server.url) or not server.url.lower().startswith(("http://", "https://")):
        return f"its url must begin with http:// or https://, not {server.url!r}"
    return None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


@record
class BridgeConfig:
    """The configured servers."""

    servers: Sequence[ServerConfig] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "servers", tuple(self.servers))


ItemKind: TypeAlias = Literal["tool", "resource", "template", "prompt", "skill", "instructions", "content", "behaviour"]
"""Kind of a server's item: something it lists, its instructions, the content of a listed resource, or what its process
does."""
LISTED_KINDS: tuple[ItemKind, ...] = ("resource", "template", "prompt", "skill")
"""Kinds that servers list in addition to tools."""
ITEM_KINDS: tuple[ItemKind, ...] = ("tool", *LISTED_KINDS, "instructions", "content", "behaviour")


@record
class RemoteToolRef:
    """One tool or other item of one server: the configured server id, and the server's name or URI for the item."""

    server: str
    name: str
    kind: ItemKind = "tool"


def qualify_tool_name(ref: RemoteToolRef) -> str:
    """Join server and tool into one name, which is never split again."""
    return f"{ref.server}{QUALIFIER}{ref.name}"


@record
class RemoteTool:
    """A tool or another item of a server."""

    ref: RemoteToolRef
    descriptor: ToolDescriptor
    raw: JsonObject = field(default_factory=dict[str, "JsonValue"], kw_only=True)
    """The server's definition verbatim: key order, nulls and vendor keys included."""

    def __post_init__(self) -> None:
        descriptor, raw = freeze_definition(self.descriptor, self.raw)
        object.__setattr__(self, "descriptor", descriptor)
        object.__setattr__(self, "raw", raw)


def freeze_definition(descriptor: ToolDescriptor, raw: JsonObject) -> tuple[ToolDescriptor, JsonObject]:
    """Freeze a remote tool's JSON, so that it can't change after being listed, pinned and recorded."""
    frozen: JsonObject = freeze_json(raw)
    if isinstance(descriptor.parameters, FrozenDict):
        return descriptor, frozen
    definition = descriptor.definition
    return replace(
        descriptor,
        parameters=freeze_json(dict(descriptor.parameters)),
        annotations=freeze_json(descriptor.annotations),
        output_schema=freeze_json(descriptor.output_schema),
        definition=frozen if definition is raw else freeze_json(definition),
    ), frozen


@record
class RemoteCallResult:
    """The result of a remote call, with its content blocks unchanged."""

    content: Sequence[JsonValue]
    is_error: bool = False
    structured: JsonValue = field(default=None, kw_only=True)
    meta: JsonObject | None = field(default=None, kw_only=True)
    notes: Sequence[Note] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "content", tuple(self.content))


@record
class SlowStart:
    """Why a server starts slowly, as far as its configuration shows."""

    first: bool
    """It has never been up with this configuration."""
    package_manager: str | None = None
    """The command that may be downloading its program."""


@record
class EndpointStatus:
    """The state of one server."""

    server: str
    phase: EndpointPhase
    tool_count: int
    fault: ProtocolFault | None = None
    restarts: int = field(default=0, kw_only=True)
    next_try_s: float | None = field(default=None, kw_only=True)
    """Seconds until the next start, if one is planned."""
    trust: TrustState = field(default="trusted", kw_only=True)
    notes: Sequence[Note] = field(default=(), kw_only=True)
    slow_start: SlowStart | None = field(default=None, kw_only=True)
    """Set one second into a start."""
    answer_s: float | None = field(default=None, kw_only=True)
    """Response time of the last tool listing or call, if any."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "phase", EndpointPhase(self.phase))


FleetStatus: TypeAlias = Mapping[str, EndpointStatus]


class ServerEndpoint(Protocol):
    """A connection to one server. It opens once; a retry needs a new endpoint."""

    @property
    def config(self) -> ServerConfig:
        """The server's configuration."""
        ...

    @property
    def phase(self) -> EndpointPhase:
        """The current phase."""
        ...

    async def open(self) -> None:
        """Connect; concurrent callers share one attempt. Raises `ProtocolFault` if it can't be opened or was closed."""
        ...

    async def list_tools(self) -> Sequence[RemoteTool]:
        """List the tools, cached until the server reports a change, or raise `ProtocolFault`."""
        ...

    async def invoke(
        self, name: str, args: JsonValue, *, cancel: CancelToken | None = None, on_progress: ProgressSink | None = None
    ) -> RemoteCallResult:
        """Call a tool by its name on the server.

        Raises `ProtocolFault` if it isn't ready, refuses, times out or is cancelled, or the connection is lost.
        """
        ...

    def status(self) -> EndpointStatus:
        """Return the current state."""
        ...

    async def close(self) -> None:
        """Close the connection and everything that belongs to it; never raises."""
        ...


class ServerFleet(Protocol):
    """Endpoints by server id, in configuration order. Servers fail independently."""

    async def spin_up(self) -> None:
        """Start the last configuration again; raise `ProtocolFault` if there was none."""
        ...

    async def tear_down(self) -> None:
        """Close every endpoint; never raises."""
        ...

    def endpoint(self, server: str) -> ServerEndpoint | None:
        """Return a server's endpoint."""
        ...

    def endpoints(self) -> Sequence[ServerEndpoint]:
        """Return the current endpoints."""
        ...

    def status(self) -> FleetStatus:
        """Return the state of every server."""
        ...


@record
class MountedBridge:
    """A fleet, its tool box, and the number of tools."""

    fleet: ServerFleet
    tool_box: ToolBox
    tool_count: int


MountedProtocolBridge: TypeAlias = MountedBridge
"""The contract's name for a mount's result; `bridge` has a richer type of this name."""


BLOCK_TYPES = frozenset({"text", "image", "audio", "resource", "resource_link"})


def parse_call_result(result: JsonObject, owner: str) -> RemoteCallResult:
    """Parse the result of `tools/call`; notes about oddities name `owner`."""
    content = result.get("content")
    notes: list[Note] = []
    if not isinstance(content, list):
        shown = "no content" if content is None else f"content of type {type(content).__name__}"
        notes.append(Note(owner, f"the answer has {shown} instead of a list of blocks"))
        content = []
    meta = result.get("_meta")
    return RemoteCallResult(
        content,
        result.get("isError") is True,
        structured=result.get("structuredContent"),
        meta=meta if isinstance(meta, dict) else None,
        notes=tuple(notes),
    )


def to_tool_result(result: RemoteCallResult) -> ToolResult:
    """Convert a remote call's result into a tool result."""
    details: dict[str, JsonValue] = {}
    if result.meta is not None:
        details["_meta"] = result.meta
    if result.notes:
        details["notes"] = [str(note) for note in result.notes]
    blocks = [from_block(block) for block in result.content]
    return ToolResult(blocks, result.is_error, structured=result.structured, details=details)


def from_block(block: JsonValue) -> ToolContentBlock:
    """Convert an MCP block into a kernel block."""
    if isinstance(block, dict) and block.get("type") == "text":
        text = block.get("text")
        if isinstance(text, str):
            if len(block) == 2:  # `type` and `text`
                return TextContentBlock(text)
            extra = {key: value for key, value in block.items() if key not in {"type", "text"}}
            return TextContentBlock(text, extra)
    return JsonContentBlock(block)


def to_block(block: ToolContentBlock) -> JsonObject:
    """Convert a kernel block into an MCP block; JSON that isn't a block becomes text."""
    if isinstance(block, TextContentBlock):
        return {"type": "text", "text": block.text, **(block.extra or {})}
    if isinstance(block.value, dict):
        kind = block.value.get("type")
        if isinstance(kind, str) and kind in BLOCK_TYPES:
            return block.value
    return {"type": "text", "text": compact_json(block.value)}
