"""Sign-ins for tests, and a keyring in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.interop.auth.contract import (
    ClientRegistration,
    CredentialKey,
    IssuerEndpoints,
    StoredCredentials,
    TokenSet,
)

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = CredentialKey("https://issuer.example", "https://server.example/mcp")
ACCESS, REFRESH = "access-SECRET-1", "refresh-SECRET-1"


def make_credentials(
    key: CredentialKey = KEY, access: str = ACCESS, refresh: str | None = REFRESH
) -> StoredCredentials:
    """Make a sign-in whose access token has expired."""
    return StoredCredentials(
        key=key,
        registration=ClientRegistration(client_id="client-1", source="dynamic"),
        endpoints=IssuerEndpoints(token_endpoint=f"{key.issuer}/token"),
        tokens=TokenSet(access_token=access, refresh_token=refresh, scope=("read",), obtained_at_ms=1, expires_at_ms=2),
        account="ada@example.org",
    )


def with_access(credentials: StoredCredentials, access: str) -> StoredCredentials:
    """Replace the access token."""
    assert credentials.tokens is not None
    return replace(credentials, tokens=replace(credentials.tokens, access_token=access))


class MemoryKeyring:
    """A backend of the package `keyring`, as far as it is used."""

    name = "memory"
    priority = 5

    def __init__(self) -> None:
        self.passwords: dict[tuple[str, str], str] = {}
        self.before: Callable[[], object] = lambda: None
        """Runs before each operation."""

    def get_password(self, service: str, username: str) -> str | None:
        self.before()
        return self.passwords.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.before()
        self.passwords[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self.before()
        del self.passwords[service, username]
