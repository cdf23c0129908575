"""Sign-ins to connector services: signing in, signing out, and the stored facts about each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from anyio import to_thread

from indusagi.core.json import JsonObject
from indusagi.interop.auth.authorizer import OAuthAuthorizer
from indusagi.interop.auth.contract import AuthFault, CredentialStore, Refusal, ServerAuth, SignInPrompt
from indusagi.interop.auth.driver import AuthDriver
from indusagi.interop.auth.metadata import canonical_resource
from indusagi.interop.auth.requests import Challenge, find_oauth_challenge, parse_challenges
from indusagi.interop.auth.storage import CredentialFiles
from indusagi.interop.protocol_bridge.contract import ServerConfig, StdioServerConfig
from indusagi.net.client import WebResponse
from induscode.connectors.auth import Credentials, check_values, choose_scheme
from induscode.connectors.openapi import ConnectorFault
from induscode.connectors.operations import OperationSpec, list_operations
from induscode.connectors.store import ConnectorRow, ConnectorStore
from induscode.servers.sign_in import SignInFacts, read_facts, sign_in_again, sign_out


class ConnectorSignIn:
    """The sign-in of one connector. `environ` holds the variable with its client secret."""

    def __init__(
        self, connectors: ConnectorStore, row: ConnectorRow, environ: Mapping[str, str], proxy: str | None = None
    ) -> None:
        self.store: CredentialStore = CredentialFiles()
        self._connectors, self._row, self._environ, self._proxy = connectors, row, environ, proxy

    async def sign_in(self, prompt: SignInPrompt, *, device: bool = False, port: int | None = None) -> None:
        """Sign the user in, for the scopes requested before and those operations have asked for since.

        Raises `ConnectorFault` if the connector has no sign-in or no usable document, or its variable isn't set, and
        `AuthFault` if it failed.
        """
        if self._row.oauth is not None:
            check_values(self._row.oauth.variables, self._environ)
        driver, challenge = await self._open_driver(prompt)
        settings = driver.auth.settings
        if port is not None:
            settings = replace(settings, callback_port=port)
        if device:
            settings = replace(settings, grant="device_code")
        driver.auth = replace(driver.auth, settings=settings)
        await sign_in_again(driver, challenge)

    async def sign_out(self) -> bool | None:
        """Revoke and delete the sign-in. Return whether the issuer confirmed it, None if there was none.

        Raises `ConnectorFault` if the connector has no sign-in, or no usable document, and `AuthFault` if the sign-in
        can't be deleted.
        """
        driver, _ = await self._open_driver(None)
        return await sign_out(driver)

    async def read_facts(self) -> SignInFacts | None:
        """Read the stored facts without sending anything. None if the connector has no sign-in."""
        row = self._row
        if row.oauth is None:
            return None
        return await read_facts(row.name, row.base_url, self.store, row.oauth.client_id)

    async def _open_driver(self, prompt: SignInPrompt | None) -> tuple[AuthDriver, Challenge]:
        row = self._row
        if row.oauth is None:
            raise ConnectorFault(f"connector {row.name!r} has no sign-in: it was not added with --auth oauth")
        scheme = row.oauth.scheme

        def build() -> tuple[AuthDriver, Challenge]:
            # In a thread: it loads the HTTP client and the JWT library.
            from induscode.connectors.sign_in import build_challenge, build_driver, list_first_scopes  # noqa: PLC0415

            document = self._connectors.read_document(row.name)
            operations, _ = list_operations(document, row.name, row.base_url, row.source, row.hidden_parameters, scheme)
            driver = build_driver(row, document, self.store, self._environ, prompt=prompt, proxy=self._proxy)
            return driver, build_challenge(list_first_scopes(row, document, operations))

        return await to_thread.run_sync(build)


async def find_left_over(configs: Iterable[ServerConfig]) -> Sequence[str]:
    """Find the resources with a stored sign-in that neither these servers nor a connector uses."""
    rows = await to_thread.run_sync(CredentialFiles().read_rows)
    connectors, _ = await to_thread.run_sync(ConnectorStore().read)
    used = {canonical_resource(row.base_url) for row in connectors.values() if row.oauth is not None}
    for config in configs:
        with suppress(AuthFault):  # a url that isn't an address
            used |= set() if isinstance(config, StdioServerConfig) else {canonical_resource(config.url)}
    return list(dict.fromkeys(row.key.resource for row in rows if row.key.resource not in used))


# -- access tokens ----------------------------------------------------------------------------
#
# The authorizer of servers adds them: they're refreshed once across all processes, and a rejected request is sent again
# after a refresh. The differences: endpoints and scopes come from the approved document, and a request that needs a
# sign-in isn't sent without one. Tokens only go to the connector's base URL.


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
