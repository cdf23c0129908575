"""Types of the deck: cards, the handles they are built from, and faults.

Types only: this module opens no file, starts no process and imports no other module of the deck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Literal, Protocol, Self, TypeAlias, TypeVar, cast, runtime_checkable

from indusagi.capabilities.context import ReadStateHandle, ToolContext
from indusagi.capabilities.ports import SearchProvider, WebSettings
from indusagi.core.faults import describe_error
from indusagi.core.json import JsonObject, JsonValue
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
_LONGEST_ID = 256


class CapabilityId(str):
    """The name a model calls a card by, checked. Build it with `capability_id`."""

    __slots__ = ()

    def __new__(cls, name: str) -> Self:
        """Check the name.

        Raises:
            DeckFault: It is empty, too long, or has invisible characters or spaces.
        """
        is_text = isinstance(cast("object", name), str)  # a caller without a type checker may pass anything
        if not is_text or not 0 < len(name) <= _LONGEST_ID or not name.isprintable() or " " in name:
            raise DeckFault(
                f"{name!r} cannot be the id of a capability: use 1 to {_LONGEST_ID} visible characters without spaces"
            )
        return super().__new__(cls, name)


def capability_id(name: str) -> CapabilityId:
    """Build the id of a card from its name.

    Raises:
        DeckFault: The name is invalid.
    """
    return CapabilityId(name)


def parse_member(kind: type[EnumT], value: EnumT | str) -> EnumT:
    """Return the member of an enumeration, given as itself or as its value.

    Raises:
        DeckFault: There is no such member.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join((*kind, "read-only", "coding") if issubclass(kind, Profile) else kind)
        raise DeckFault(f"{value!r} is not a {kind.__name__.lower()}; there are: {known}") from None


class Profile(StrEnum):
    """The named selections a session can be provisioned with.

    The names are older than the selections: AUTHORING is the read-only one.
    """

    AUTHORING = "authoring"
    """Read-only built-ins."""
    SURVEY = "survey"
    """Every built-in."""
    ALL = "all"
    """Every built-in and every app card."""

    @classmethod
    def _missing_(cls, value: object) -> Profile | None:
        """Accept the names of the command line."""
        return {"read-only": cls.AUTHORING, "coding": cls.SURVEY}.get(str(value))


# -- cards ------------------------------------------------------------------------------------


class Card(Protocol):
    """One tool of the deck, whatever its source."""

    @property
    def name(self) -> str:
        """The name a model calls."""
        ...

    @property
    def label(self) -> str:
        """The name for people."""
        ...

    @property
    def description(self) -> str:
        """The description a model is shown."""
        ...

    @property
    def parameters(self) -> JsonSchema:
        """The schema of its arguments."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether it changes nothing, so that it runs without a question."""
        ...

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Run the tool; a failure is an error result."""
        ...


Capability: TypeAlias = Card
"""A card that was built and can be called."""


@runtime_checkable
class DescribedCard(Protocol):
    """A card with a complete descriptor: annotations, an output schema."""

    @property
    def descriptor(self) -> ToolDescriptor:
        """The descriptor for models and clients."""
        ...


def describe(card: Capability) -> ToolDescriptor:
    """Return the descriptor of a card."""
    if isinstance(card, DescribedCard):
        return card.descriptor
    return ToolDescriptor(
        card.name, card.description, card.parameters, title=card.label, annotations={"readOnlyHint": card.read_only}
    )


@runtime_checkable
class ForeignCard(Protocol):
    """A card whose results another party writes: invisible characters in them are made visible."""

    @property
    def foreign(self) -> bool:
        """Whether another party writes the results."""
        ...


@runtime_checkable
class LeanCard(Protocol):
    """A card that has a form with fewer parameters, for a model with a small context window."""

    @property
    def lean(self) -> Capability:
        """The same card with the parameters that every call needs."""
        ...


class CardWrapper:
    """A card around another card, with the same name, label, description and schema; subclasses define `run`."""

    def __init__(self, inner: Capability) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    @property
    def name(self) -> str:
        """The name of the inner card."""
        return self.inner.name

    @property
    def label(self) -> str:
        """The label of the inner card."""
        return self.inner.label

    @property
    def description(self) -> str:
        """The description of the inner card."""
        return self.inner.description

    @property
    def parameters(self) -> JsonSchema:
        """The schema of the inner card."""
        return self.inner.parameters

    @property
    def read_only(self) -> bool:
        """Whether the inner card changes nothing."""
        return self.inner.read_only

    @property
    def foreign(self) -> bool:
        """Whether another party writes the results of the inner card."""
        return is_foreign(self.inner)

    @property
    def descriptor(self) -> ToolDescriptor:
        """The descriptor of the inner card."""
        return describe(self.inner)


@runtime_checkable
class _Wrapper(Protocol):
    @property
    def inner(self) -> Capability: ...


def iter_layers(card: Capability) -> Iterator[Capability]:
    """Yield a card and the cards inside it, the innermost last."""
    yield card
    while isinstance(card, _Wrapper):
        card = card.inner
        yield card


def is_foreign(card: Capability) -> bool:
    """Tell whether another party writes the results of a card, or of a card inside it."""
    return any(isinstance(layer, ForeignCard) and layer.foreign for layer in iter_layers(card))


def only_reads(card: Capability) -> bool:
    """Tell whether calls of a card may run beside others: it is read-only, or its server says so.

    A server's `readOnlyHint` decides about concurrency only; it permits nothing.
    """
    return card.read_only or (describe(card).annotations or {}).get("readOnlyHint") is True


@runtime_checkable
class OverlappingCard(Protocol):
    """A card that decides for each call whether it may run beside others."""

    def can_overlap(self, arguments: JsonValue, /) -> bool:
        """Tell whether a call with these arguments may run beside others."""
        ...


def find_overlapping(card: Capability) -> OverlappingCard | None:
    """Find the layer of a card that decides about each call; None if there is none."""
    return next((layer for layer in iter_layers(card) if isinstance(layer, OverlappingCard)), None)


def can_overlap(card: Capability, arguments: JsonValue) -> bool:
    """Tell whether a call of a card may run beside other calls of the same response."""
    deciding = find_overlapping(card)
    return only_reads(card) if deciding is None else deciding.can_overlap(arguments)


@record(kw_only=True)
class DeckFramework:
    """Handles that a host may inject; cards work without those that are None."""

    read_state: ReadStateHandle | None = None
    checkpoint: CheckpointStore | None = None
    delegate: DelegateRunner | None = None
    saas: SaasGatewayPort | None = None
    memory: MemoryStore | None = None
    web: WebSettings | None = None
    """The addresses that web tools may reach; None: public ones only."""
    search: Sequence[SearchProvider] = ()
    """The providers of `websearch`, in the order they are asked."""
    observer: CallObserver | None = None
    """Watches every call of the deck."""

    def check(self) -> None:
        """Check that every handle has the methods its cards call.

        Raises:
            BackendFault: A handle lacks a method.
        """
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
    """What a card is built from."""

    cwd: str
    framework: DeckFramework = field(default_factory=DeckFramework)
    sandbox: SandboxMode = "auto"
    """Whether commands run in a sandbox."""
    in_deck: bool = False
    """Whether the card is built for a deck: there, cards that do the same use one state, that of the session."""


SECOND_NAMES = {"todo": "todo_set", "bg-process": "process"}
"""Cards that do what another card does, on the same state. Where a deck has both, the first name isn't listed: a call
of it works, a model pays for one definition."""
BuildFn: TypeAlias = Callable[[DeckContext], Capability]


@record
class CapabilityCard:
    """One row of the catalog: the description of a card and its builder."""

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
        """Tell whether a profile selects this row; ALL selects every row that belongs to any profile.

        Raises:
            DeckFault: There is no such profile.
        """
        profile = parse_member(Profile, profile)
        return profile in self.profiles or (profile is Profile.ALL and bool(self.profiles))


def build_card(card: CapabilityCard, ctx: DeckContext) -> Capability:
    """Build the card of a row.

    Raises:
        BuildFailed: Its builder raised, or returned something other than a card.
        DeckFault: The builder's own fault about a handle.
    """
    try:
        built = card.build(ctx)
    except DeckFault:
        raise
    except Exception as exc:
        raise BuildFailed(card.id, describe_error(exc)) from exc
    missing = find_missing_members(built)
    if missing:
        reason = f"its builder gave {type(built).__name__}, which has no {', '.join(missing)}"
        raise BuildFailed(card.id, reason)
    return built


def find_missing_members(card: object) -> list[str]:
    """List what an object lacks to be a card."""
    return [member for member in _CARD_MEMBERS if not hasattr(card, member)]


_CARD_MEMBERS = ("name", "label", "description", "parameters", "read_only", "run")


# -- handles that a host may inject -----------------------------------------------------------


class CheckpointStore(Protocol):
    """Stores the contents of files before the deck changes them."""

    def record(self, path: str, previous: bytes | None) -> None:
        """Store the content of a file; None if there was no file.

        Of several records of one path under the present node the first applies.
        """
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
    """Whether the report is given later, by a notice; the answer holds the id."""


@record(kw_only=True)
class DelegateReport:
    """The result of delegated work; without `ok` it ended early, and the text holds the partial result."""

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
    """Its requests and tokens, those of its own sub-agents included."""
    is_running: bool = False
    """Whether it goes on in the background."""


class DelegateRunner(Protocol):
    """Runs sub-agents."""

    def list_agents(self) -> Sequence[str]:
        """List the names of the agents."""
        ...

    async def run(self, request: DelegateRequest, ctx: ToolContext) -> DelegateReport:
        """Run a sub-agent."""
        ...


@runtime_checkable
class AgentRoster(Protocol):
    """A delegate runner that describes its agents, and says which of them may run at once."""

    @property
    def has_background(self) -> bool:
        """Whether tasks can run in the background."""
        ...

    def describe_agents(self) -> Mapping[str, str]:
        """Map the names of the agents to what each is for."""
        ...

    def is_reading(self, agent: str | None, resume: str | None) -> bool:
        """Tell whether a task only reads, and so may run beside others that do."""
        ...


class SaasGatewayPort(Protocol):
    """Finds and runs actions of services that the host has connected."""

    async def discover(self, query: str | None, toolkits: Sequence[str]) -> Sequence[Mapping[str, JsonValue]]:
        """Find actions by what they do."""
        ...

    async def execute(self, slug: str, arguments: JsonObject) -> JsonValue:
        """Run an action by its vendor's name.

        Raises:
            ActionError: It was not executed, or its service refused it.
        """
        ...


class ActionError(OSError):
    """An action that was not executed, or that its service refused: a message, and a code and facts for programs."""

    def __init__(self, message: str, *, code: str, **facts: JsonValue) -> None:
        super().__init__(message)
        self.code = code
        self.facts: Mapping[str, JsonValue] = facts


@record
class ActionTarget:
    """The request that an action sends, without credentials: what permissions see of it."""

    method: str
    url: str
    pin: str | None = None
    """A digest of what the slug stands for; a rule for the slug holds for this digest only."""


@runtime_checkable
class ActionTargets(Protocol):
    """A gateway that tells the request of an action before it is sent."""

    async def find_target(self, slug: str, arguments: JsonObject) -> ActionTarget | None:
        """Return the request of an action; None if the slug is unknown."""
        ...


@runtime_checkable
class TargetedCard(Protocol):
    """A card that tells the request of a call before it is sent."""

    async def find_target(self, arguments: JsonObject) -> ActionTarget | None:
        """Return the request of a call; None if it sends none, or an unknown one."""
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
"""The result of an operation that returns its fault instead of raising it."""
