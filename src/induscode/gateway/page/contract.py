"""What the page shows, and what it can do: values, and the port that a gateway implements."""

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
"""What a part of a view depends on; a change of it has the part fetched again."""


@record(kw_only=True)
class ServerSummary:
    """One server of the configuration."""

    name: str
    transport: str
    state: str
    """Its phase, or why it is not started: `untrusted`, `changed`, `unresolved`."""
    scope: str
    file: str
    tools: int
    tokens: int
    """Estimated tokens of the definitions of its tools."""
    answer_s: float | None
    restarts: int
    message: str = ""
    """What is wrong with it."""
    remedy: str = ""
    actions: tuple[ServerAction, ...] = ()
    disabled: int = 0


@record
class ActionReply:
    """What an action has done, for the person."""

    message: str
    url: str = ""
    """An address that the person has to open: the sign-in page of an issuer, checked."""


@record
class CallReply:
    """The answer to a call from the page: an outcome, or a question to the person first."""

    outcome: ToolOutcome | None = None
    question: PermissionRequest | None = None
    key: str = ""
    """Names the question: the call runs if it comes again with this key and asks the same."""


class PageSource(Protocol):
    """The running gateway behind the page."""

    @property
    def session(self) -> Session:
        """The deck, the servers and the ledger."""
        ...

    @property
    def plan(self) -> ServerPlan:
        """The configured servers as they are now."""
        ...

    @property
    def node(self) -> ClusterNode | None:
        """The gateway as a node of a cluster; None outside of one."""
        ...

    def find_tools(self, query: str, server: str) -> Sequence[Capability]:
        """Find tools by what they do, the best first, as `indus tools search` does. It blocks."""
        ...

    def find_items(self, query: str, kinds: Sequence[ItemKind]) -> Sequence[BridgeCapability]:
        """Find resources, templates or prompts in the same way. It blocks."""
        ...

    def deck(self) -> ToolDeck:
        """Build the deck that clients are served, without permission checks."""
        ...

    async def list_servers(self) -> Sequence[ServerSummary]:
        """Describe the configured servers."""
        ...

    def ask_consent(self, server: str) -> Consent:
        """Describe a server's row completely, without values of secrets. It blocks."""
        ...

    async def act(self, server: str, action: ServerAction, digest: str = "") -> ActionReply:
        """Start, stop, restart, trust or sign in to a server.

        Args:
            server: The server.
            action: What to do.
            digest: For `trust`: the digest of the consent that the page showed.

        Raises:
            CoreError: It cannot be done; the message says why.
        """
        ...

    def approve(self, ref: RemoteToolRef, digest: str) -> bool:
        """Approve the present definition of a disabled item; clients hear of it."""
        ...

    async def call(self, name: str, arguments: JsonObject, answer: str) -> CallReply:
        """Call a tool as the person at the page; `answer` is the key of the question that the person has approved."""
        ...

    async def read_resource(self, server: str, uri: str) -> JsonObject:
        """Read a resource.

        Raises:
            CoreError: It is refused, or the server failed.
        """
        ...

    async def get_prompt(self, server: str, name: str, arguments: JsonObject) -> JsonObject:
        """Get the messages of a prompt.

        Raises:
            CoreError: It is refused, or the server failed.
        """
        ...


@record(kw_only=True)
class PageRequest:
    """One request for a view, by a signed-in user."""

    source: PageSource
    user: PageUser
    query: Mapping[str, str]
    form: Mapping[str, str]
    """The fields of a POST; empty for a GET."""

    def get(self, name: str) -> str:
        """Return a field of the form or else of the query; empty if there is none."""
        return self.form.get(name, self.query.get(name, ""))


@record
class PageView:
    """A view: its title, its content, and the entry of the navigation that it belongs to."""

    title: str
    content: Html
    section: str
    status: int = 200


class PageError(Exception):
    """A view that cannot be shown; the message is for the person."""

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(message)
        self.status = status
