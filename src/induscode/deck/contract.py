"""The vocabulary of the deck: what a card is, what it is built from, what can go wrong.

Shapes only: nothing here opens a file, starts a process or knows another room of the deck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.ports import SearchProvider, WebSettings
from indusagi.capabilities.read_state import ReadStateHandle
from indusagi.core.faults import CoreError, describe_error
from indusagi.core.json import JsonObject, JsonValue
from indusagi.runtime.contract import JsonSchema, ToolDescriptor, ToolResult

ValueT = TypeVar("ValueT")

SandboxMode: TypeAlias = Literal["auto", "required", "off"]
EnumT = TypeVar("EnumT", bound=StrEnum)
_LONGEST_ID = 256


class CapabilityId(str):
    """The name a model calls a card by: checked text. Made by `capability_id`."""

    __slots__ = ()

    def __new__(cls, name: str) -> Self:
        """Check the name.

        Raises:
            DeckFault: It is empty, too long, or has characters that cannot be in a name.
        """
        if not _is_identifier(name):
            raise DeckFault(
                f"{name!r} cannot be the id of a capability: use 1 to {_LONGEST_ID} visible characters without spaces"
            )
        return super().__new__(cls, name)


def _is_identifier(name: object) -> bool:
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_ID:
        return False
    return name.isprintable() and " " not in name


def capability_id(name: str) -> CapabilityId:
    """Make the id of a card from its name.

    Raises:
        DeckFault: It cannot be one.
    """
    return CapabilityId(name)


def parse_member(kind: type[EnumT], value: EnumT | str) -> EnumT:
    """Give the member of an enumeration, by itself or by its value.

    Raises:
        DeckFault: There is no such member.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise DeckFault(f"{value!r} is not a {kind.__name__.lower()}; there are: {known}") from None


class Profile(StrEnum):
    """The named selections a session can be provisioned with.

    The names are older than the selections: AUTHORING is the one that only looks.
    """

    AUTHORING = "authoring"
    """Built-ins that leave everything as it was."""
    SURVEY = "survey"
    """Every built-in."""
    ALL = "all"
    """Every built-in and every app card."""


# -- cards ------------------------------------------------------------------------------------


class Card(Protocol):
    """One tool of the deck, wherever it comes from."""

    @property
    def name(self) -> str:
        """The name a model calls it by."""
        ...

    @property
    def label(self) -> str:
        """The name for people."""
        ...

    @property
    def description(self) -> str:
        """What a model is told about it."""
        ...

    @property
    def parameters(self) -> JsonSchema:
        """The schema of its arguments."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether it leaves everything as it was, so that it needs nobody's leave."""
        ...

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Do the work; what goes wrong comes back as an error result."""
        ...


Capability: TypeAlias = Card
"""A card that was built and can be called."""


@runtime_checkable
class DescribedCard(Protocol):
    """A card that knows more about itself than every card must: annotations, an output schema."""

    @property
    def descriptor(self) -> ToolDescriptor:
        """What a loop or a client is told about it."""
        ...


def describe(card: Capability) -> ToolDescriptor:
    """Say what a model is told about a card."""
    if isinstance(card, DescribedCard):
        return card.descriptor
    return ToolDescriptor(
        card.name, card.description, card.parameters, title=card.label, annotations={"readOnlyHint": card.read_only}
    )


@runtime_checkable
class ForeignCard(Protocol):
    """A card whose answers a stranger wrote: what cannot be seen in them is made visible."""

    @property
    def foreign(self) -> bool:
        """Whether that is so."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeckFramework:
    """Handles that a host may inject; a card does without those that are None."""

    read_state: ReadStateHandle | None = None
    checkpoint: CheckpointStore | None = None
    delegate: DelegateRunner | None = None
    saas: SaasGatewayPort | None = None
    memory: MemoryStore | None = None
    web: WebSettings | None = None
    """What the web tools may reach; None: public addresses only."""
    search: Sequence[SearchProvider] = ()
    """The providers of `websearch`, in the order they are asked."""

    def check(self) -> None:
        """Make sure that every handle can do what its cards will ask of it.

        Raises:
            BackendFault: One lacks a method.
        """
        for name, handle, methods in (
            ("read_state", self.read_state, ("record", "digest")),
            ("checkpoint", self.checkpoint, ("record",)),
            ("delegate", self.delegate, ("list_agents", "run")),
            ("saas", self.saas, ("discover", "execute")),
            ("memory", self.memory, ("read", "replace", "append")),
            *(("search", one, ("search",)) for one in self.search),
        ):
            missing = [one for one in methods if not callable(getattr(handle, one, None))]
            if handle is not None and missing:
                raise BackendFault(
                    f"the handle {name!r} ({type(handle).__name__}) cannot be used: it has no "
                    f"{' and no '.join(missing)}"
                )


@dataclass(frozen=True, slots=True)
class DeckContext:
    """What a card is built from."""

    cwd: str
    framework: DeckFramework = field(default_factory=DeckFramework)
    sandbox: SandboxMode = "auto"
    """Whether commands run in a sandbox."""


BuildFn: TypeAlias = Callable[[DeckContext], Capability]


@dataclass(frozen=True, slots=True)
class CapabilityCard:
    """One row of the catalog: what a card is, and how it is made."""

    id: CapabilityId
    title: str
    summary: str
    profiles: tuple[Profile, ...]
    build: BuildFn = field(compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", CapabilityId(self.id))
        members = tuple(parse_member(Profile, one) for one in self.profiles)
        object.__setattr__(self, "profiles", members)

    def in_profile(self, profile: Profile | str) -> bool:
        """Tell whether a profile selects this row; ALL selects every row that is in any.

        Raises:
            DeckFault: There is no such profile.
        """
        profile = parse_member(Profile, profile)
        return profile in self.profiles or (profile is Profile.ALL and bool(self.profiles))


def build_card(card: CapabilityCard, ctx: DeckContext) -> Capability:
    """Build the card of a row.

    Raises:
        BuildFailed: Its builder raised, or gave something that is not a card.
        DeckFault: What the builder itself says about a handle.
    """
    try:
        built = card.build(ctx)
    except DeckFault:
        raise
    except Exception as exc:
        raise BuildFailed(card.id, describe_error(exc)) from exc
    lacking = [one for one in _CARD_MEMBERS if not hasattr(built, one)]
    if lacking:
        what = f"its builder gave {type(built).__name__}, which has no {', '.join(lacking)}"
        raise BuildFailed(card.id, what)
    return built


_CARD_MEMBERS = ("name", "label", "description", "parameters", "read_only", "run")


# -- handles that a host may inject -----------------------------------------------------------


class CheckpointStore(Protocol):
    """Keeps what files held before the deck changed them."""

    def record(self, path: str, previous: bytes | None) -> None:
        """Keep the bytes that stood at an absolute path; None if there was no such file.

        Of several records of one path under the present node the first counts.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegateRequest:
    """A piece of work for somebody else."""

    objective: str
    agent: str | None = None
    context: str | None = None
    resume: str | None = None
    max_turns: int | None = None
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegateReport:
    """What came of it; not `ok` means that it ended early, and the text holds what there is."""

    ok: bool
    text: str
    id: str | None = None
    """Under which it can be resumed."""
    reason: str | None = None
    """Why it ended early: `turns`, `time`, `error`, `cancelled`."""
    files: tuple[str, ...] = ()


class DelegateRunner(Protocol):
    """Runs sub-agents."""

    def list_agents(self) -> Sequence[str]:
        """Name the agents there are."""
        ...

    async def run(self, request: DelegateRequest, ctx: ToolContext) -> DelegateReport:
        """Have a piece of work done."""
        ...


class SaasGatewayPort(Protocol):
    """Reaches actions of services that somebody else has connected."""

    async def discover(self, query: str | None, toolkits: Sequence[str]) -> Sequence[Mapping[str, JsonValue]]:
        """Find actions by what they do."""
        ...

    async def execute(self, slug: str, arguments: JsonObject) -> JsonValue:
        """Run an action under the name its vendor gave it."""
        ...


class MemoryStore(Protocol):
    """Holds the notes of a project or a session."""

    async def read(self) -> str:
        """Give the notes."""
        ...

    async def replace(self, content: str) -> None:
        """Write the notes anew."""
        ...

    async def append(self, content: str) -> None:
        """Add to the notes."""
        ...


# -- faults -----------------------------------------------------------------------------------


class DeckFault(CoreError):
    """Something the deck cannot do."""


class UnknownCapability(DeckFault):
    """No card has this id."""

    def __init__(self, identity: str, hint: str | None = None) -> None:
        meant = f"; did you mean {hint!r}?" if hint else ""
        super().__init__(f"there is no capability {identity!r}{meant}")
        self.id = identity


class BuildFailed(DeckFault):
    """A card could not be built."""

    def __init__(self, identity: str, message: str) -> None:
        super().__init__(f"capability {identity!r} could not be built: {message}")
        self.id = identity
        self.message = message


class BridgeFault(DeckFault):
    """An MCP configuration cannot be used."""


class BackendFault(DeckFault):
    """A handle that was injected cannot be used."""


DeckResult: TypeAlias = ValueT | DeckFault
"""What an operation of the deck comes to, where a fault is carried instead of raised."""
