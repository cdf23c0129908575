"""Access tokens of a connector: one per request, and the handling of rejected ones.

It uses the authorizer of servers: tokens are refreshed once across all processes, and a rejected request is sent again
after a refresh. The differences: endpoints and scopes come from the approved document, and a request that needs a
sign-in isn't sent without one. Tokens only go to the connector's base URL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from indusagi.interop.auth.authorizer import OAuthAuthorizer
from indusagi.interop.auth.contract import CredentialStore, Refusal, ServerAuth, SignInPrompt
from indusagi.interop.auth.driver import AuthDriver
from indusagi.interop.auth.requests import Challenge, find_oauth_challenge, parse_challenges
from induscode.connectors.auth import Credentials, check_values, choose_scheme

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.net.client import WebResponse
    from induscode.connectors.operations import OperationSpec
    from induscode.connectors.store import ConnectorRow

_REFUSALS: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_TOKEN: Final = "access token"


def build_driver(
    row: ConnectorRow,
    document: JsonObject,
    store: CredentialStore,
    environ: Mapping[str, str],
    *,
    prompt: SignInPrompt | None = None,
    proxy: str | None = None,
) -> AuthDriver:
    """Build the driver that signs in to a connector's service.

    Raises `ConnectorFault` if the document doesn't have its scheme.
    """
    reference = row.oauth
    assert reference is not None
    scheme = choose_scheme(document, row.base_url, reference)
    return AuthDriver(
        row.base_url,
        ServerAuth(settings=reference.build_settings(environ, scheme.openid_url), store=store, prompt=prompt),
        name=row.name,
        kind="connector",
        issuer=scheme.issuers.get(reference.grant),
        proxy=proxy,
    )


def list_first_scopes(row: ConnectorRow, document: JsonObject, operations: Iterable[OperationSpec]) -> tuple[str, ...]:
    """List the scopes of a first sign-in: the configured ones, else those the reading operations need.

    Other operations request their scopes when they're executed (RFC 9700 §2.3: as few as possible).
    """
    reference = row.oauth
    assert reference is not None
    if reference.scopes:
        return reference.scopes
    is_openid = bool(choose_scheme(document, row.base_url, reference).openid_url)
    own = ["openid"] if is_openid and reference.grant == "authorization_code" else []
    named = [scope for spec in operations if spec.is_reading for scopes in spec.scopes[:1] for scope in scopes]
    return tuple(dict.fromkeys((*own, *named)))


def build_challenge(scopes: Sequence[str]) -> Challenge:
    """Build a challenge that asks for scopes."""
    return Challenge("bearer", {"scope": " ".join(scopes)} if scopes else {})


class ConnectorTokens:
    """One connector's tokens in this run."""

    def __init__(self, driver: AuthDriver, first_scopes: Sequence[str]) -> None:
        self._driver = driver
        self._authorizer = OAuthAuthorizer(driver)
        self._first_scopes = first_scopes

    async def build_credentials(self, operation: OperationSpec, url: str) -> Credentials:
        """Build one request's credentials. Without a sign-in, they're empty if the operation is public.

        Raises `AuthFault` if the user has to sign in, or the token couldn't be renewed.
        """
        headers = await self._authorizer.build_headers(operation.method, url)
        if not headers and not operation.is_public:
            scopes = dict.fromkeys((*self._first_scopes, *(operation.scopes[0] if operation.scopes else ())))
            refusal = Refusal(HTTPStatus.UNAUTHORIZED, (_format_challenge(scopes),))
            await self._authorizer.handle_refusal({}, refusal)
            headers = await self._authorizer.build_headers(operation.method, url)
        token = headers.get("authorization", "").partition(" ")[2]
        return Credentials(headers, None, {token: _TOKEN} if token else {})

    async def handle_answer(self, operation: OperationSpec, credentials: Credentials, answer: WebResponse) -> bool:
        """Return whether to resend a rejected request: after a refresh, or a sign-in with more scopes.

        Raises `AuthFault` if the user has to sign in, or the token couldn't be renewed.
        """
        sent, nonce = dict(credentials.headers), answer.headers.get("dpop-nonce", "")
        if answer.status not in _REFUSALS:
            self._authorizer.accept(sent, nonce)
            return False
        header = answer.headers.get("www-authenticate", "")
        if answer.status == HTTPStatus.FORBIDDEN:
            challenge = find_oauth_challenge(parse_challenges([header]))
            if challenge is None or not challenge.scopes:
                wanted = await self._find_wanted_scopes(operation, sent)
                if not wanted:
                    return False  # rejected for a reason other than a scope of the document
                header = _format_challenge(wanted, 'error="insufficient_scope"')
        return await self._authorizer.handle_refusal(sent, Refusal(answer.status, (header,) if header else (), nonce))

    async def _find_wanted_scopes(self, operation: OperationSpec, sent: Mapping[str, str]) -> Sequence[str]:
        """Find the operation's scopes that the token lacks according to the document; empty if it has them all."""
        stored = await self._driver.load()
        tokens = None if stored is None else stored.tokens
        known = frozenset(() if stored is None else stored.requested_scopes)
        granted = next((scopes for scopes in operation.scopes if known.issuperset(scopes)), None)
        if granted is None:
            return operation.scopes[0] if operation.scopes else ()
        is_current = tokens is None or sent.get("authorization") == f"{tokens.token_type} {tokens.access_token}"
        return () if is_current else granted  # the user has signed in again since

    async def close(self) -> None:
        """Finish pending work."""
        await self._authorizer.close()


def _format_challenge(scopes: Iterable[str], *parameters: str) -> str:
    """Format a challenge with the scopes of the document. Scopes contain no quotes (RFC 6749 §3.3)."""
    listed = " ".join(scopes)
    named = (*parameters, f'scope="{listed}"') if listed else parameters
    return f"Bearer {', '.join(named)}".strip()


async def open_tokens(
    row: ConnectorRow,
    document: JsonObject,
    operations: Iterable[OperationSpec],
    store: CredentialStore,
    environ: Mapping[str, str],
    proxy: str | None,
) -> ConnectorTokens:
    """Open a connector's tokens; raises `ConnectorFault` if the variable with the client secret isn't set."""

    def build() -> ConnectorTokens:
        if row.oauth is not None:
            check_values(row.oauth.variables, environ)
        driver = build_driver(row, document, store, environ, proxy=proxy)
        return ConnectorTokens(driver, list_first_scopes(row, document, operations))

    return await to_thread.run_sync(build)
