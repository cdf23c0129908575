"""Sign-ins to connector services: signing in, signing out, and the stored facts about each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.interop.auth.contract import AuthFault
from indusagi.interop.auth.metadata import canonical_resource
from indusagi.interop.auth.storage import CredentialFiles
from indusagi.interop.protocol_bridge.contract import ServerConfig, StdioServerConfig
from induscode.connectors.auth import check_values
from induscode.connectors.openapi import ConnectorFault
from induscode.connectors.operations import list_operations
from induscode.connectors.store import ConnectorRow, ConnectorStore
from induscode.servers.sign_in import SignInFacts, read_facts, sign_in_again, sign_out

if TYPE_CHECKING:
    from indusagi.interop.auth.contract import CredentialStore, SignInPrompt
    from indusagi.interop.auth.driver import AuthDriver
    from indusagi.interop.auth.requests import Challenge


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
            from induscode.connectors.tokens import build_challenge, build_driver, list_first_scopes  # noqa: PLC0415

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
