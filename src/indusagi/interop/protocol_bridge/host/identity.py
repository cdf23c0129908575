"""The identity of a client of a host: who it is, and what it may do.

Over stdio and with the one-user token a client may do everything and has no name. With access tokens of an
authorization server (`indus serve --auth`) it has the name of its subject, the principal, and scopes.
"""

from __future__ import annotations

from dataclasses import field

from indusagi.core.records import record

LIST_SCOPE = "indus:list"
"""Lists tools, resources and prompts, and subscribes to changes of the lists."""
CALL_SCOPE = "indus:call"
"""Calls every tool. `indus:call:<server>` calls the tools of one server."""
ADMIN_SCOPE = "indus:admin"
"""Reads `/health` and `/metrics`; it allows neither listing nor calling."""
SCOPES = (LIST_SCOPE, CALL_SCOPE, ADMIN_SCOPE)


@record(kw_only=True)
class ClientIdentity:
    """Who sends a request, and what it may do."""

    owner: bytes = field(default=b"", repr=False)
    """Equal for all requests of one client: its token, or a digest of issuer, subject and client id."""
    principal: str = ""
    """The subject of its access token (`sub`), which rules, records and limits name; empty without access tokens."""
    client_id: str = ""
    """The OAuth client that the token was issued to, if it names one."""
    scopes: frozenset[str] | None = None
    """Of its access token; None: everything is allowed."""

    @property
    def has_any_scope(self) -> bool:
        """Whether the token was issued for this kind of server at all."""
        return self.scopes is None or any(
            scope in SCOPES or scope.startswith(f"{CALL_SCOPE}:") for scope in self.scopes
        )

    def find_missing_scope(self, scope: str, server: str | None = None) -> str | None:
        """Return the scope that a request lacks, or None; `server` is the one whose tool is called."""
        if self.scopes is None or scope in self.scopes:
            return None
        if scope == CALL_SCOPE and server is not None:
            narrow = f"{CALL_SCOPE}:{server}"
            return None if narrow in self.scopes else narrow
        return scope


ANONYMOUS = ClientIdentity()
"""A client without a name that may do everything: the one user's."""
