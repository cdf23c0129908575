"""Data types of the page, and the port a gateway implements for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.contract import ItemKind, RemoteToolRef
    from indusagi.runtime.contract import ToolOutcome
    from induscode.boot.session import Session
    from induscode.cluster.node import ClusterNode
    from induscode.core.consent import Consent
    from induscode.deck.contract import Capability
    from induscode.deck.mcp.capability import BridgeCapability
    from induscode.deck.provision import ToolDeck
    from induscode.gateway.page.access import PageUser
    from induscode.gateway.page.html import Html
    from induscode.permissions.confirm import PermissionRequest
    from induscode.servers.plan import ServerPlan

ServerAction: TypeAlias = Literal["start", "stop", "restart", "sign-in", "trust"]
Topic: TypeAlias = Literal["servers", "items", "calls", "cluster"]
"""A section's dependency; the section is refetched when it changes."""


@record(kw_only=True)
class ServerSummary:
    """A configured server."""

    name: str
    transport: str
    state: str
    """Its phase, or the reason it isn't started: `untrusted`, `changed`, `unresolved`."""
    scope: str
    file: str
    tools: int
    tokens: int
    """Estimated tokens of its tool definitions."""
    answer_s: float | None
    restarts: int
    message: str = ""
    """Its problem, if any."""
    remedy: str = ""
    actions: tuple[ServerAction, ...] = ()
    disabled: int = 0


@record
class ActionReply:
    """Result of an action, for the user."""

    message: str
    url: str = ""
    """An address for the user to open: an issuer's sign-in page, checked."""


@record
class CallReply:
    """Answer to a call from the page: an outcome, or a question for the user."""

    outcome: ToolOutcome | None = None
    question: PermissionRequest | None = None
    key: str = ""
    """Identifies the question: a repeated call with this key runs if it raises the same question."""


class PageSource(Protocol):
    """The running gateway behind the page."""

    @property
    def session(self) -> Session:
        """The deck, servers and ledger."""
        ...

    @property
    def plan(self) -> ServerPlan:
        """The servers as currently configured."""
        ...

    @property
    def node(self) -> ClusterNode | None:
        """The gateway as a cluster node, if it is one."""
        ...

    def find_tools(self, query: str, server: str) -> Sequence[Capability]:
        """Find tools by purpose, best match first, like `indus tools search`. Blocks."""
        ...

    def find_items(self, query: str, kinds: Sequence[ItemKind]) -> Sequence[BridgeCapability]:
        """Find resources, templates or prompts the same way. Blocks."""
        ...

    def deck(self) -> ToolDeck:
        """Build the deck clients see, without permission checks."""
        ...

    async def list_servers(self) -> Sequence[ServerSummary]:
        """Describe the configured servers."""
        ...

    def ask_consent(self, server: str) -> Consent:
        """Describe a server's row in full, without secret values. Blocks."""
        ...

    async def act(self, server: str, action: ServerAction, digest: str = "") -> ActionReply:
        """Start, stop, restart, trust or sign in to a server.

        For `trust`, `digest` is the digest of the consent shown on the page.

        Raises:
            CoreError: The action failed; the message says why.
        """
        ...

    def approve(self, ref: RemoteToolRef, digest: str) -> bool:
        """Approve the current definition of a disabled item and notify clients."""
        ...

    async def call(self, name: str, arguments: JsonObject, answer: str) -> CallReply:
        """Call a tool on behalf of the page's user; `answer` is the key of the question the user approved."""
        ...

    async def read_resource(self, server: str, uri: str) -> JsonObject:
        """Read a resource; `CoreError` if that's denied or fails."""
        ...

    async def get_prompt(self, server: str, name: str, arguments: JsonObject) -> JsonObject:
        """Get a prompt's messages; `CoreError` if that's denied or fails."""
        ...


@record(kw_only=True)
class PageRequest:
    """A request for a view by a signed-in user."""

    source: PageSource
    user: PageUser
    query: Mapping[str, str]
    form: Mapping[str, str]
    """Fields of a POST; empty for a GET."""

    def get(self, name: str) -> str:
        """Return a form field, else a query parameter, else an empty string."""
        return self.form.get(name, self.query.get(name, ""))


@record
class PageView:
    """A view: title, content and navigation entry."""

    title: str
    content: Html
    section: str
    status: int = 200


class PageError(Exception):
    """A view that can't be shown; the message is for the user."""

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(message)
        self.status = status
