"""The identity and rights of a host's client.

Over stdio and with the one-user token a client has full access and no name. A named token (`indus tokens`) and an
access token of an authorization server (`indus serve --auth`) have scopes, and a principal: the token's
name or subject.
"""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from dataclasses import field
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.records import record
from indusagi.core.text import clean_text
from indusagi.runtime.calls import CallingClient

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue

_MAX_NAME_CHARS = 100
"""Limit for a client's name and version."""

Credential: TypeAlias = Literal["nobody", "open", "user", "view", "token", "principal", "browser"]
"""How a client identifies itself: not at all; not required (`--no-token`); with the user's token, a view's token, a
named token, an access token, or the page's cookie."""
PageMode: TypeAlias = Literal["full", "read-only", "off"]

LIST_SCOPE = "indus:list"
"""List tools, resources and prompts, and subscribe to changes of the lists."""
CALL_SCOPE = "indus:call"
"""Call every tool. `indus:call:<server>` only allows one server's tools."""
ADMIN_SCOPE = "indus:admin"
"""Read `/health` and `/metrics`; doesn't allow listing or calling."""
SCOPES = (LIST_SCOPE, CALL_SCOPE, ADMIN_SCOPE)


@record(kw_only=True)
class ClientIdentity:
    """Who sends a request, and what it may do."""

    owner: bytes = field(default=b"", repr=False)
    """Equal for all requests of one client: its token, or a digest of issuer, subject and client id."""
    principal: str = ""
    """Subject of its access token (`sub`) or name of its token, used in rules, records and limits; else empty."""
    user: str = ""
    """Issuer and subject of its access token as one text, compared byte by byte: a subject is only unique there."""
    client_id: str = ""
    """OAuth client that the token was issued to, if it names one."""
    scopes: frozenset[str] | None = None
    """Scopes of its token; None: full access."""
    credential: Credential = "user"
    view: str = ""
    """The only view it sees, by its token or its request's path; empty: chosen by its principal and client."""
    rate: float = 0.0
    """Average requests per second; 0: the host's default."""

    @property
    def has_any_scope(self) -> bool:
        """Whether the token was issued for this kind of server at all."""
        return self.scopes is None or any(
            scope in SCOPES or scope.startswith(f"{CALL_SCOPE}:") for scope in self.scopes
        )

    def find_missing_scope(self, scope: str, server: str | None = None) -> str | None:
        """Return the scope that a request lacks, or None; `server` is the called tool's."""
        if self.scopes is None or scope in self.scopes:
            return None
        if scope == CALL_SCOPE and server is not None:
            narrow = f"{CALL_SCOPE}:{server}"
            return None if narrow in self.scopes else narrow
        return scope


ANONYMOUS = ClientIdentity()
"""A nameless client with full access: the one user's."""
current_identity: ContextVar[ClientIdentity] = ContextVar("current_identity", default=ANONYMOUS)
"""The identity behind this task's request."""
NOBODY = ClientIdentity(scopes=frozenset(), credential="nobody")
BROWSER = ClientIdentity(credential="browser")


@record(kw_only=True)
class Rights:
    """A client's rights."""

    can_list: bool = False
    can_call: bool = False
    """Call every tool. For single servers' tools, see `find_missing_scope`."""
    can_operate: bool = False
    """Read `/health` and `/metrics`."""
    can_look: bool = False
    """Read the page."""
    can_act: bool = False
    """Start, stop, trust and approve on the page."""
    can_try: bool = False
    """Call tools, read resources and get prompts on the page."""
    is_owner: bool = False
    """See the settings, rules, tokens and clients of the gateway on the page."""
    can_configure: bool = False
    """Change them, and servers, on the page."""


def find_rights(identity: ClientIdentity, page: PageMode = "off") -> Rights:
    """Return a client's rights. Only this function decides what a credential allows.

    The page never relies on the absence of a token: if the host needs none, it only accepts its cookie.
    """
    credential, is_full = identity.credential, page == "full" and not identity.view
    if credential == "nobody":
        return Rights()
    if credential == "browser":
        looks = page != "off"
        return Rights(can_look=looks, can_act=is_full, can_try=is_full, is_owner=looks, can_configure=is_full)
    if credential in {"open", "view"}:
        return Rights(can_list=True, can_call=True, can_operate=credential == "open")
    lists, calls, operates = (identity.find_missing_scope(scope) is None for scope in SCOPES)
    can_look = lists and page != "off" and not identity.view
    is_owner = can_look and credential == "user"
    return Rights(
        can_list=lists,
        can_call=calls,
        can_operate=operates and not identity.view,
        can_look=can_look,
        can_act=can_look and is_full and operates,
        can_try=can_look and is_full and operates and calls,
        is_owner=is_owner,
        can_configure=is_owner and is_full,
    )


def read_client(info: JsonValue, principal: str) -> CallingClient:
    """Read what a client says about itself."""
    texts = (info.get("name"), info.get("version")) if isinstance(info, dict) else ("", "")
    name, version = (clean_text(text[:_MAX_NAME_CHARS])[0] if isinstance(text, str) else "" for text in texts)
    return CallingClient(name, version, principal)


def name_conversation(owner: bytes, client: CallingClient) -> str:
    """Name the conversation of a client without sessions: all its requests belong to one."""
    parts = (owner, client.principal.encode("utf-8", "surrogatepass"), client.name.encode("utf-8", "surrogatepass"))
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts))
    return f"client:{digest.hexdigest()[:32]}"
