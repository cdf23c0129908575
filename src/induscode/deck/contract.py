"""The vocabulary of the deck: what a card is, what it is built from, what can go wrong.

Shapes only: nothing here opens a file, starts a process or knows another room of the deck.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NewType, Protocol, TypeAlias, TypeVar, runtime_checkable

from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.read_state import ReadStateHandle
from indusagi.core.faults import CoreError
from indusagi.core.json import JsonObject, JsonValue
from indusagi.runtime.contract import JsonSchema, ToolDescriptor, ToolResult

ValueT = TypeVar("ValueT")

SandboxMode: TypeAlias = Literal["auto", "required", "off"]
CapabilityId = NewType("CapabilityId", str)
"""The name a model calls a card by; made by `capability_id` and nowhere else."""


def capability_id(name: str) -> CapabilityId:
    """Make the id of a card from its name."""
    return CapabilityId(name)


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
        card.name,
        card.description,
        card.parameters,
        title=card.label,
        annotations={"readOnlyHint": card.read_only},
    )


@runtime_checkable
class ForeignCard(Protocol):
    """A card whose answers a stranger wrote: what cannot be seen in them is made visible."""

    @property
    def foreign(self) -> bool:
        """Whether that is so."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeckFramework:
    """Handles that a host may inject; a card does without those that are None."""

    read_state: ReadStateHandle | None = None
    checkpoint: CheckpointStore | None = None
    delegate: DelegateRunner | None = None
    saas: SaasGatewayPort | None = None
    memory: MemoryStore | None = None


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

    def in_profile(self, profile: Profile) -> bool:
        """Tell whether a profile selects this row; ALL selects every row that is in any."""
        return profile in self.profiles or (profile is Profile.ALL and bool(self.profiles))


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

    async def discover(
        self, query: str | None, toolkits: Sequence[str]
    ) -> Sequence[Mapping[str, JsonValue]]:
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
