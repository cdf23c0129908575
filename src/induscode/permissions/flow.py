"""The flow guard: asks before a call sends data out of a conversation that has read private and untrusted data.

Whoever writes untrusted text can tell a model what to do. With private data in the same conversation, a call that sends
something out may carry it to them. The guard compares no values and asks no model: each call has labels, and each
conversation keeps the first call that brought `private` and the first that brought `untrusted`. A call counts from the
moment it's admitted, so calls at the same time can't pass each other. Sub-agents and scripts belong to the conversation
that started them.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, cast

import anyio

from indusagi.core.records import record
from indusagi.core.text import escape_invisible
from indusagi.core.time import iso_utc
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.runtime.calls import current_client, current_conversation, current_wait
from induscode.deck.contract import Capability, CardWrapper, iter_layers
from induscode.servers.labels import LABELS, Label, RowLabels, ToolLabels, find_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ToolResult
    from induscode.deck.mcp.boot import BootedBridge
    from induscode.permissions.call_facts import CallFacts
    from induscode.servers.plan import ServerPlan

FlowMode: TypeAlias = Literal["off", "note", "ask", "deny"]
READ: Final[tuple[Label, Label]] = ("private", "untrusted")
"""The labels a conversation keeps."""
CLIENT_KEY: Final = "client:"
"""Starts the key of a client without sessions, whose conversation ends when it's idle."""
IDLE_S: Final = 8 * 3600.0
_MOST_JOINS: Final = 10_000
_FORGOTTEN_BITS: Final = 1 << 20
_NOTHING_READ: Final = frozenset({"not_connected", "denied", "unknown_tool"})
"""Codes of our errors for calls that never reached a server."""
_NO_LABELS: Final = ToolLabels({}, is_confirmed=True)


@record
class FlowCall:
    """A call with labels."""

    server: str
    """Empty for a native tool."""
    tool: str
    labels: ToolLabels
    at: str = ""
    reads: tuple[Label, ...] = field(init=False, compare=False)
    """Which of the labels that a conversation keeps it has."""
    sends: bool = field(init=False, compare=False)
    """Whether it sends data out."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", tuple(label for label in READ if label in self.labels.labels))
        object.__setattr__(self, "sends", "outward" in self.labels.labels)

    def __str__(self) -> str:
        owner = f" of server {self.server!r}" if self.server else ""
        return escape_invisible(f"{self.tool}{owner}{f' at {self.at}' if self.at else ''}")[0]


FORGOTTEN: Final = FlowCall("", "a call that isn't remembered any more", ToolLabels(dict.fromkeys(READ, "")))


@dataclass(slots=True)
class FlowJoin:
    """What one conversation has read."""

    first: dict[Label, FlowCall] = field(default_factory=dict["Label", "FlowCall"])
    """The first call that brought each label."""
    running: list[FlowCall] = field(default_factory=list["FlowCall"])
    allowed: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Servers and tools that the user allowed for this conversation."""
    used_s: float = 0.0

    def find(self, label: Label) -> FlowCall | None:
        """Find the call that brought a label, or may bring it."""
        known = self.first.get(label)
        return known or next((call for call in self.running if label in call.labels.labels), None)


@record
class FlowObjection:
    """Why a call would complete the combination, and what to do about it."""

    mode: FlowMode
    reason: str


class SharedJoins(Protocol):
    """What conversations of clients without sessions have read at the nodes of a cluster."""

    async def read(self, key: str, /) -> Sequence[JsonObject]:
        """Return the calls of `FlowGuard.dump_calls`, from all nodes."""
        ...

    async def write(self, key: str, calls: Sequence[JsonObject], /) -> None:
        """Share calls with the other nodes."""
        ...


class FlowGuard:
    """The joins of the conversations of one session or gateway.

    Without a `mode`, a session asks; a gateway asks about labels that the user gave, and only notes proposals.
    """

    def __init__(self, mode: FlowMode | None = None, *, is_gateway: bool = False) -> None:
        self._mode: FlowMode | None = mode
        self._is_gateway = is_gateway
        self._joins: OrderedDict[str, FlowJoin] = OrderedDict()
        self._forgotten: bytearray | None = None
        """A Bloom filter of the conversations that had to be dropped: they count as having read everything."""
        self._labels: dict[RemoteToolRef, tuple[JsonObject, ServerPlan | None, ToolLabels]] = {}
        self.shared: SharedJoins | None = None
        """Shares the joins of clients without sessions, in a cluster."""
        self._find_plan: Callable[[], ServerPlan | None] = lambda: None
        self._write_event: Callable[[JsonObject], None] = lambda facts: None

    def connect(self, mcp: BootedBridge) -> None:
        """Read labels from the rows of a bridge, and write to its ledger."""
        self._find_plan, self._write_event = lambda: mcp.plan, partial(mcp.journal.record, "join")

    # -- labels -----------------------------------------------------------------------------

    def describe_call(self, facts: CallFacts) -> FlowCall:
        """Return a call with its labels."""
        if facts.card is not None:
            return self.describe(facts.card)
        return FlowCall("", facts.tool, _find_native_labels(facts))

    def describe(self, card: Capability) -> FlowCall:
        """Return a call of a server's card with the labels of the tool."""
        for layer in iter_layers(card):
            ref = getattr(layer, "ref", None)
            if isinstance(ref, RemoteToolRef):
                return FlowCall(
                    ref.server, ref.name, self._find_labels(ref, cast("JsonObject", getattr(layer, "raw", {})))
                )
        return FlowCall("", card.name, _NO_LABELS)

    def _find_labels(self, ref: RemoteToolRef, raw: JsonObject) -> ToolLabels:
        plan, known = self._find_plan(), self._labels.get(ref)
        if known is not None and known[0] is raw and known[1] is plan:
            return known[2]
        config = None if plan is None else plan.configs.get(ref.server)
        given: RowLabels = {}
        if plan is not None:
            given = plan.find_labels(ref.server)
        found = find_labels(ref.name, raw, config, given, ref.kind)
        self._labels[ref] = raw, plan, found
        return found

    @property
    def plan(self) -> ServerPlan | None:
        """The servers' rows, whose change may change labels."""
        return self._find_plan()

    # -- decisions --------------------------------------------------------------------------

    def is_indifferent(self, call: FlowCall) -> bool:
        """Return whether a call needs no look: it adds nothing to the join, and sends nothing out that's guarded."""
        if not call.reads and not call.sends:
            return True
        key = current_conversation.get()
        join = self._joins.get(key)
        if join is None or key.startswith(CLIENT_KEY):
            return False
        for label in call.reads:
            if label not in join.first:
                return False
        return not call.sends or not (join.find("private") and join.find("untrusted"))

    def find_objection(self, call: FlowCall) -> FlowObjection | None:
        """Return why a call would complete the combination in the current conversation, if it would."""
        if not call.sends:
            return None
        join = self._find_join()
        if join is None or (call.server, call.tool) in join.allowed:
            return None
        private, untrusted = map(join.find, READ)
        if private is None or untrusted is None:
            return None
        calls = (private, untrusted, call)
        mode: FlowMode = "ask" if self._mode is None else self._mode
        if self._mode is None and self._is_gateway and not all(one.labels.is_confirmed for one in calls):
            mode = "note"
        if private == untrusted:
            read = f"{private} read private data and text that anyone may have written"
        else:
            read = f"{private} read private data, {untrusted} returned text that anyone may have written"
        return FlowObjection(
            mode, f"flow guard: {read}, and {FlowCall(call.server, call.tool, call.labels)} sends data out"
        )

    def allow(self, call: FlowCall) -> None:
        """Ask no more about a tool in the current conversation."""
        self._open_join().allowed.add((call.server, call.tool))

    def admit(self, call: FlowCall) -> AdmittedCall | None:
        """Count a call that's about to run; `None` if it reads nothing that's kept."""
        if self._mode == "off" or not call.reads:
            return None
        join = self._open_join()
        if all(label in join.first for label in call.reads):
            return None
        admitted = FlowCall(call.server, call.tool, call.labels, iso_utc())
        join.running.append(admitted)
        return AdmittedCall(self, current_conversation.get(), join, admitted)

    def adopt_task(self, server: str) -> None:
        """Count the result of a task that another conversation started: it has what any tool of the server reads."""
        plan = self.plan
        rows: RowLabels = {}
        if plan is not None:
            rows = plan.find_labels(server)
        given = {label for labels in rows.values() for label in labels}
        labels: dict[Label, str] = {label: "" for label in READ if not rows or label in given}
        admitted = self.admit(FlowCall(server, "a task", ToolLabels(labels, is_confirmed=bool(rows))))
        if admitted is not None:
            admitted.end(None)

    async def refresh(self, call: FlowCall) -> None:
        """Learn what the current conversation has read at other nodes, before a call that sends data out."""
        key = current_conversation.get()
        if self.shared is not None and call.sends and key.startswith(CLIENT_KEY):
            for facts in await self.shared.read(key):
                self.restore_call(facts)

    async def share(self, key: str) -> None:
        """Tell the other nodes what a conversation has read, before its client gets the result."""
        if self.shared is not None and key.startswith(CLIENT_KEY):
            await self.shared.write(key, self.dump_calls())

    def settle(self, key: str, join: FlowJoin, call: FlowCall, *, has_read: bool) -> bool:
        """Keep the labels of a call that may have returned something. Return whether some are new."""
        join.running.remove(call)
        known = len(join.first)
        for label in READ if has_read else ():
            if label in call.labels.labels and label not in join.first:
                join.first[label] = call
                client = current_client.get()
                self._write_event(
                    {
                        "conversation": key,
                        "label": label,
                        "server": call.server,
                        "tool": call.tool,
                        "principal": "" if client is None else client.principal,
                        "client": "" if client is None else client.name,
                    }
                )
        return len(join.first) > known

    # -- joins ------------------------------------------------------------------------------

    def dump_calls(self) -> Sequence[JsonObject]:
        """Return what the current conversation has read, to be stored with it."""
        join = self._find_join()
        return [
            {
                "label": label,
                "server": call.server,
                "tool": call.tool,
                "when": call.at,
                "confirmed": call.labels.is_confirmed,
            }
            for label, call in ({} if join is None else join.first).items()
        ]

    def restore_call(self, facts: JsonObject) -> None:
        """Add a call of `dump_calls` to the current conversation."""
        label: Label | None = next((one for one in READ if one == facts.get("label")), None)
        if label is not None:
            server, tool, at = (str(facts.get(key, "")) for key in ("server", "tool", "when"))
            given: dict[Label, str] = {label: ""}
            labels = ToolLabels(given, is_confirmed=facts.get("confirmed") is True)
            self._open_join().first.setdefault(label, FlowCall(server, tool, labels, at))

    def _find_join(self) -> FlowJoin | None:
        key = current_conversation.get()
        join = self._joins.get(key)
        if join is None:
            return self._open_join() if self._forgotten is not None and self._was_forgotten(key) else None
        if key.startswith(CLIENT_KEY) and not join.running and monotonic() - join.used_s > IDLE_S:
            del self._joins[key]
            return None
        return join

    def _open_join(self) -> FlowJoin:
        key = current_conversation.get()
        join = self._joins.get(key)
        if join is None:
            join = self._joins[key] = FlowJoin()
            if self._forgotten is not None and self._was_forgotten(key):
                join.first = dict.fromkeys(READ, FORGOTTEN)
            self._forget_oldest()
        join.used_s = monotonic()
        self._joins.move_to_end(key)
        return join

    def _forget_oldest(self) -> None:
        if len(self._joins) <= _MOST_JOINS:
            return
        key = next((key for key, join in self._joins.items() if not join.running), None)
        if key is not None and self._joins.pop(key).first:
            self._forgotten = self._forgotten or bytearray(_FORGOTTEN_BITS // 8)
            for byte, bit in _locate_bits(key):
                self._forgotten[byte] |= bit

    def _was_forgotten(self, key: str) -> bool:
        assert self._forgotten is not None
        return all(self._forgotten[byte] & bit for byte, bit in _locate_bits(key))


def _locate_bits(key: str) -> Sequence[tuple[int, int]]:
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=12).digest()
    places = [int.from_bytes(digest[at : at + 4]) % _FORGOTTEN_BITS for at in (0, 4, 8)]
    return [(place >> 3, 1 << (place & 7)) for place in places]


# -- native tools -----------------------------------------------------------------------------

_NETWORK = re.compile(
    r"://|\b(?:aws|az|curl|dig|ftp|gcloud|gh|glab|http|https|kubectl|mail|mutt|nc|ncat|netcat|nslookup|rsync|scp|sendmail"
    r"|sftp|socat|ssh|telnet|wget)\b|\bgit\s+(?:\S+\s+)*?(?:clone|fetch|ls-remote|pull|push)\b|\bpublish\b"
)
"""What names an address or a program of the network in a command."""
_NATIVE: Final[Mapping[str, tuple[Label, ...]]] = {"webfetch": ("untrusted", "outward"), "websearch": ("untrusted",)}


def _find_native_labels(facts: CallFacts) -> ToolLabels:
    """Find the labels of a native call.

    The workspace is what the session is about, so its files have none: otherwise a session that reads code and looks
    something up would ask about every page. Files outside of it are private, as a rule.
    """
    found: set[Label] = {*_NATIVE.get(facts.tool, ())}
    if any(path.refusal in {"outside", "protected"} and not path.writing for path in facts.paths):
        found.add("private")
    if facts.script is not None and _NETWORK.search(facts.script.text):
        found |= {"untrusted", "outward"}
    if facts.slug is not None:  # an action of a service
        found |= {"private", "untrusted"} if facts.method in {"GET", "HEAD"} else {"outward"}
    return ToolLabels({label: "built in" for label in LABELS if label in found}, is_confirmed=True)


@record
class AdmittedCall:
    """A running call whose labels count already."""

    guard: FlowGuard
    key: str
    join: FlowJoin
    call: FlowCall

    def end(self, result: ToolResult | None) -> bool:
        """Settle the call, and return whether the join has grown.

        Without a result it was cancelled or failed, and may have read something.
        """
        nothing = result is not None and result.is_error and result.details.get("code") in _NOTHING_READ
        return self.guard.settle(self.key, self.join, self.call, has_read=not nothing)


async def run_admitted(
    guard: FlowGuard | None, call: FlowCall | None, card: Capability, arguments: JsonValue, ctx: ToolContext
) -> ToolResult:
    """Run a card, and count what it may read for the current conversation."""
    admitted = None if guard is None or call is None else guard.admit(call)
    if admitted is None:
        return await card.run(arguments, ctx)
    result: ToolResult | None = None
    try:
        result = await card.run(arguments, ctx)
        return result
    finally:
        if admitted.end(result) and admitted.guard.shared is not None:
            with anyio.CancelScope(shield=True):
                await admitted.guard.share(admitted.key)


class _Asks(Protocol):
    """The permissions of a gateway."""

    async def run(self, card: Capability, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult: ...


class FlowCard(CardWrapper):
    """A server's tool without a rule about it. The permissions are loaded for the first question."""

    def __init__(self, inner: Capability, guard: FlowGuard, load: Callable[[], _Asks]) -> None:
        super().__init__(inner)
        self._guard, self._load = guard, load
        self._plan, self._call = guard.plan, guard.describe(inner)

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Run the inner card, after a question if the guard wants one."""
        if self._plan is not self._guard.plan:
            self._plan, self._call = self._guard.plan, self._guard.describe(self.inner)
        call = self._call
        if self._guard.is_indifferent(call):
            return await self.inner.run(arguments, ctx)
        await self._guard.refresh(call)
        objection = self._guard.find_objection(call)
        if objection is not None and objection.mode != "note":
            return await self._load().run(self.inner, arguments, ctx)
        if objection is not None and (wait := current_wait.get()) is not None:
            wait.allowed_by = f"noted by the {objection.reason}"
        return await run_admitted(self._guard, call, self.inner, arguments, ctx)
