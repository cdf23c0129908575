"""How the judged client signs in: settings from the scenario, and a person who follows every redirect.

The authorization server of the suite asks no question: its page redirects at once. A request without following that
redirect shows where it leads, which is all that a browser would have done.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import httpx2

from indusagi.core.json import is_json_object
from indusagi.interop.auth.contract import AuthFault, AuthSettings, IdentityProvider, ServerAuth
from indusagi.interop.auth.storage import MemoryCredentialStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.auth.contract import DeviceCode

_REDIRECT = "http://127.0.0.1:1/callback"
"""Nothing listens there: the redirect is read, not followed."""
_DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The metadata document that the suite accepts without fetching it."""


def sign_in_for(scenario: str, context: JsonValue) -> ServerAuth:
    """Build what a scenario needs to sign in."""
    told = context if is_json_object(context) else {}
    return ServerAuth(settings=_settings(scenario, told), store=MemoryCredentialStore(), prompt=ObligingPerson())


def _settings(scenario: str, told: JsonObject) -> AuthSettings:
    def text(name: str) -> str:
        value = told.get(name)
        return value if isinstance(value, str) else ""

    base = AuthSettings(client_id=text("client_id"), client_secret=text("client_secret") or None)
    match scenario.removeprefix("auth/"):
        case "basic-cimd":
            return AuthSettings(client_metadata_url=_DOCUMENT)
        case "client-credentials-basic":
            return replace(base, grant="client_credentials")
        case "client-credentials-jwt":
            key, algorithm = text("private_key_pem"), text("signing_algorithm")
            return replace(base, grant="client_credentials", private_key=key, signing_algorithm=algorithm)
        case "wif-jwt-bearer":
            return replace(base, grant="jwt_bearer", assertion=text("valid_jwt"))
        case "enterprise-managed-authorization":
            provider = IdentityProvider(
                token_endpoint=text("idp_token_endpoint"),
                client_id=text("idp_client_id"),
                id_token=text("idp_id_token"),
            )
            return replace(base, grant="id_jag", identity_provider=provider)
        case _:
            return base


class ObligingPerson:
    """A prompt whose person agrees to everything."""

    @property
    def redirect_uri(self) -> str:
        """Where the authorization server sends the browser."""
        return _REDIRECT

    @asynccontextmanager
    async def open_redirect(self, settings: AuthSettings, registered: Sequence[str]) -> AsyncGenerator[ObligingPerson]:
        """Prepare nothing."""
        yield self

    async def authorize(self, url: str) -> Mapping[str, str]:
        """Open a URL, and return what its redirect carries."""
        async with httpx2.AsyncClient(trust_env=False) as client:
            response = await client.get(url)
        target = response.headers.get("location", "")
        if not target.startswith(_REDIRECT):
            raise AuthFault(f"the page redirects to {target!r}")
        return dict(parse_qsl(urlsplit(target).query))

    async def show_device_code(self, code: DeviceCode) -> None:
        """Do nothing: no scenario has a device."""
