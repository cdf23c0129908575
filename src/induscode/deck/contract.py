"""Types of the deck: cards, the handles they're built from, and faults.

Types only: this module does no I/O and imports no other module of the deck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Literal, Protocol, Self, TypeAlias, TypeVar, cast

from indusagi.capabilities.context import ReadStateHandle, ToolContext
from indusagi.capabilities.ports import SearchProvider, WebSettings
from indusagi.core.faults import describe_error
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.protocols import offers
from indusagi.core.records import record
from indusagi.runtime.calls import CallObserver
from indusagi.runtime.contract import JsonSchema, ToolDescriptor, ToolResult
from induscode.core.faults import BackendFault as BackendFault
from induscode.core.faults import BridgeFault as BridgeFault
from induscode.core.faults import BuildFailed as BuildFailed
from induscode.core.faults import DeckFault as DeckFault
from induscode.core.faults import UnknownCapability as UnknownCapability

ValueT = TypeVar("ValueT")

SandboxMode: TypeAlias = Literal["auto", "required", "off"]
EnumT = TypeVar("EnumT", bound=StrEnum)
_MAX_ID_CHARS = 256


class CapabilityId(str):
    """The validated name a model calls a card by. Build it with `capability_id`."""

    __slots__ = ()

    def __new__(cls, name: str) -> Self:
        """Validate the name; raises `DeckFault` if it's empty, too long, or has invisible characters or spaces."""
        is_text = isinstance(cast("object", name), str)  # untyped callers may pass anything
        if not is_text or not 0 < len(name) <= _MAX_ID_CHARS or not name.isprintable() or " " in name:
            raise DeckFault(
                f"{name!r} cannot be the id of a capability: use 1 to {_MAX_ID_CHARS} visible characters without spaces"
            )
        return super().__new__(cls, name)


def capability_id(name: str) -> CapabilityId:
    """Build a card id from its name; raises `DeckFault` if the name is invalid."""
    return CapabilityId(name)


def parse_member(kind: type[EnumT], value: EnumT | str) -> EnumT:
    """Return an enum member from itself or its value; raises `DeckFault` if it doesn't exist."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join((*kind, "read-only", "coding") if issubclass(kind, Profile) else kind)
        raise DeckFault(f"{value!r} is not a {kind.__name__.lower()}; there are: {known}") from None


class Profile(StrEnum):
    """Named selections of cards for a session.

    The names predate the selections: AUTHORING is the read-only one.
    """

    AUTHORING = "authoring"
    """Read-only built-ins."""
    SURVEY = "survey"
    """Every built-in."""
    ALL = "all"
    """Every built-in and every app card."""

    @classmethod
    def _missing_(cls, value: object) -> Profile | None:
        """Accept the command-line names."""
        return {"read-only": cls.AUTHORING, "coding": cls.SURVEY}.get(str(value))


# -- cards ------------------------------------------------------------------------------------


class Card(Protocol):
    """One tool of the deck, from any source."""

    @property
    def name(self) -> str:
        """The name models call it by."""
        ...

    @property
    def label(self) -> str:
        """The display name."""
        ...

    @property
    def description(self) -> str:
        """The description models see."""
        ...

    @property
    def parameters(self) -> JsonSchema:
        """The JSON schema of its arguments."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether it changes nothing and so runs without asking."""
        ...

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Run the tool. Failures are error results."""
        ...


Capability: TypeAlias = Card
"""A built, callable card."""


def describe(card: Capability) -> ToolDescriptor:
    """Return a card's own descriptor, which may have annotations and an output schema, or build one."""
    descriptor = getattr(card, "descriptor", None)
    if isinstance(descriptor, ToolDescriptor):
        return descriptor
    return ToolDescriptor(
        card.name, card.description, card.parameters, title=card.label, annotations={"readOnlyHint": card.read_only}
    )


class LeanCard(Protocol):
    """A card with a variant that has fewer parameters, for small context windows."""

    @property
    def lean(self) -> Capability:
        """The same card with only the parameters every call needs."""
        ...


class CardWrapper:
    """A card in front of another one, `inner`, with the same facts. Subclasses override `run`."""

    def __init__(self, inner: Capability) -> None:
        self.inner = inner
        self.name, self.label, self.description = inner.name, inner.label, inner.description
        self.parameters: JsonSchema = inner.parameters
        self.read_only = inner.read_only
        self.foreign = is_foreign(inner)
        self.descriptor: ToolDescriptor = describe(inner)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Run the inner card."""
        return await self.inner.run(arguments, ctx)


def iter_layers(card: Capability) -> Iterator[Capability]:
    """Yield a card and the cards it wraps (`inner`), innermost last."""
    layer: Capability | None = card
    while layer is not None:
        yield layer
        layer = getattr(layer, "inner", None)


def is_foreign(card: Capability) -> bool:
    """Tell whether results of a card, or of one it wraps, come from a third party (`foreign`)."""
    return any(getattr(layer, "foreign", False) for layer in iter_layers(card))


def only_reads(card: Capability) -> bool:
    """Tell whether calls may run concurrently: the card is read-only, or its server says so.

    A server's `readOnlyHint` only affects concurrency; it grants no permission.
    """
    return card.read_only or (describe(card).annotations or {}).get("readOnlyHint") is True


class OverlappingCard(Protocol):
    """A card that decides per call whether it may run concurrently."""

    def can_overlap(self, arguments: JsonValue, /) -> bool:
        """Tell whether a call with these arguments may run concurrently."""
        ...


class CardTraits:
    """Facts about a card and the cards it wraps, read once for all its calls."""

    __slots__ = ("_deciding", "_reads", "descriptor", "foreign")

    def __init__(self, card: Capability) -> None:
        self.descriptor = describe(card)
        self.foreign = is_foreign(card)
        self._reads = only_reads(card)
        self._deciding = next((layer for layer in iter_layers(card) if offers(layer, OverlappingCard)), None)

    @property
    def runs_alone(self) -> bool:
        """Whether none of its calls may run alongside others."""
        return self._deciding is None and not self._reads

    def can_overlap(self, arguments: JsonValue) -> bool:
        """Return whether a call may run alongside other calls of the same response."""
        return self._reads if self._deciding is None else self._deciding.can_overlap(arguments)


@record(kw_only=True)
class DeckFramework:
    """Handles a host may inject. Cards work without any of them."""

    read_state: ReadStateHandle | None = None
    checkpoint: CheckpointStore | None = None
    delegate: DelegateRunner | None = None
    saas: SaasGatewayPort | None = None
    memory: MemoryStore | None = None
    web: WebSettings | None = None
    """Addresses web tools may reach. `None`: public ones only."""
    search: Sequence[SearchProvider] = ()
    """The providers of `websearch`, in order of preference."""
    observer: CallObserver | None = None
    """Observes every call of the deck."""

    def check(self) -> None:
        """Raise `BackendFault` if a handle lacks a method its cards call."""
        for name, handle, methods in (
            ("read_state", self.read_state, ("record", "digest")),
            ("checkpoint", self.checkpoint, ("record",)),
            ("delegate", self.delegate, ("list_agents", "run")),
            ("saas", self.saas, ("discover", "execute")),
            ("memory", self.memory, ("read", "replace", "append")),
            *(("search", provider, ("search",)) for provider in self.search),
        ):
            missing = [method for method in methods if not callable(getattr(handle, method, None))]
            if handle is not None and missing:
                raise BackendFault(
                    f"the handle {name!r} ({type(handle).__name__}) cannot be used: it has no "
                    f"{' and no '.join(missing)}"
                )


@record
class DeckContext:
    """The inputs of a card's builder."""

    cwd: str
    framework: DeckFramework = field(default_factory=DeckFramework)
    sandbox: SandboxMode = "auto"
    """Whether to run commands in a sandbox."""
    in_deck: bool = False
    """Whether the card is for a deck, where cards that do the same share the session's state."""


SECOND_NAMES = {"todo": "todo_set", "bg-process": "process"}
"""Aliases of other cards, on the same state. A deck with both lists only the second name, so models pay for one
definition; calls to the first still work."""
BuildFn: TypeAlias = Callable[[DeckContext], Capability]


@record
class CapabilityCard:
    """One row of the catalog: a card's metadata and builder."""

    id: CapabilityId
    title: str
    summary: str
    profiles: tuple[Profile, ...]
    build: BuildFn = field(compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", CapabilityId(self.id))
        members = tuple(parse_member(Profile, profile) for profile in self.profiles)
        object.__setattr__(self, "profiles", members)

    def in_profile(self, profile: Profile | str) -> bool:
        """Tell whether a profile selects this row; raises `DeckFault` if the profile is unknown.

        ALL selects every row that belongs to any profile.
        """
        profile = parse_member(Profile, profile)
        return profile in self.profiles or (profile is Profile.ALL and bool(self.profiles))


def build_card(card: CapabilityCard, ctx: DeckContext) -> Capability:
    """Build the card of a row.

    Raises:
        BuildFailed: The builder raised, or didn't return a card.
        DeckFault: Raised by the builder itself, about a handle.
    """
    try:
        built = card.build(ctx)
    except DeckFault:
        raise
    except Exception as exc:
        raise BuildFailed(card.id, describe_error(exc)) from exc
    missing = find_missing_members(built)
    if missing:
        raise BuildFailed(card.id, f"its builder gave {type(built).__name__}, which has no {', '.join(missing)}")
    return built


def find_missing_members(card: object) -> list[str]:
    """List the members an object would need to be a card."""
    members = ("name", "label", "description", "parameters", "read_only", "run")
    return [member for member in members if not hasattr(card, member)]


# -- handles ----------------------------------------------------------------------------------


class CheckpointStore(Protocol):
    """Stores file contents before the deck changes them."""

    def record(self, path: str, previous: bytes | None) -> None:
        """Store a file's content (`None`: no file). The first record of a path per node wins."""
        ...


@record(kw_only=True)
class DelegateRequest:
    """Work for a sub-agent."""

    objective: str
    agent: str | None = None
    context: str | None = None
    resume: str | None = None
    max_turns: int | None = None
    timeout_ms: int | None = None
    background: bool = False
    """Whether to answer with an id now and deliver the report later, as a notice."""


@record(kw_only=True)
class DelegateReport:
    """The result of delegated work. Without `ok`, it ended early and the text is partial."""

    ok: bool
    text: str
    id: str | None = None
    """The id for `resume`."""
    reason: str | None = None
    """Why it ended early: `turns`, `time`, `error`, `cancelled`."""
    files: tuple[str, ...] = ()
    """The files it wrote or edited."""
    calls: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often it called each tool."""
    usage: JsonObject = field(default_factory=dict[str, JsonValue])
    """Its requests and tokens, including its sub-agents'."""
    is_running: bool = False
    """Whether it continues in the background."""


class DelegateRunner(Protocol):
    """Runs sub-agents."""

    def list_agents(self) -> Sequence[str]:
        """List the agents' names."""
        ...

    async def run(self, request: DelegateRequest, ctx: ToolContext) -> DelegateReport:
        """Run a sub-agent."""
        ...


class AgentRoster(Protocol):
    """A delegate runner that describes its agents and knows which may run concurrently."""

    @property
    def has_background(self) -> bool:
        """Whether tasks can run in the background."""
        ...

    def describe_agents(self) -> Mapping[str, str]:
        """Map the agents' names to their purposes."""
        ...

    def is_reading(self, agent: str | None, resume: str | None) -> bool:
        """Tell whether a task only reads, and so may run alongside others that do."""
        ...


class SaasGatewayPort(Protocol):
    """Finds and runs actions of services the host has connected."""

    async def discover(self, query: str | None, toolkits: Sequence[str]) -> Sequence[Mapping[str, JsonValue]]:
        """Find actions by what they do."""
        ...

    async def execute(self, slug: str, arguments: JsonObject) -> JsonValue:
        """Run an action by its vendor's name; raises `ActionError` if it didn't run or the service refused it."""
        ...


class ActionError(OSError):
    """An action didn't run or its service refused it. Carries a code and facts for programs."""

    def __init__(self, message: str, *, code: str, **facts: JsonValue) -> None:
        super().__init__(message)
        self.code = code
        self.facts: Mapping[str, JsonValue] = facts


@record
class ActionTarget:
    """The request an action sends, without credentials, as permissions see it."""

    method: str
    url: str
    pin: str | None = None
    """A digest of the action behind the slug. Rules for the slug apply to this digest only."""
    parameters: tuple[str, ...] = ()
    """The names of its arguments."""


class ActionTargets(Protocol):
    """A gateway that can preview the request of an action."""

    async def find_target(self, slug: str, arguments: JsonObject) -> ActionTarget | None:
        """Return the request of an action, or `None` if the slug is unknown."""
        ...


class TargetedCard(Protocol):
    """A card that can preview the request of a call."""

    async def find_target(self, arguments: JsonObject) -> ActionTarget | None:
        """Return the request of a call, or `None` if it sends none or can't tell."""
        ...


class MemoryStore(Protocol):
    """Stores the notes of a project or a session."""

    async def read(self) -> str:
        """Return the notes."""
        ...

    async def replace(self, content: str) -> None:
        """Replace the notes."""
        ...

    async def append(self, content: str) -> None:
        """Append to the notes."""
        ...


DeckResult: TypeAlias = ValueT | DeckFault
"""The result of an operation that returns faults instead of raising them."""
