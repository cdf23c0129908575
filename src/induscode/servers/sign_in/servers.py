"""Sign-ins to configured servers: signing in with a person, signing out, and what is stored about each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.interop.auth.contract import AuthFault, ServerAuth
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from induscode.servers.sign_in.state import SignInFacts, read_facts, sign_in_again, sign_out

if TYPE_CHECKING:
    from indusagi.interop.auth.contract import SignInPrompt, StoredCredentials
    from indusagi.interop.auth.driver import AuthDriver
    from indusagi.interop.protocol_bridge.contract import ServerConfig


def find_auth_problem(config: ServerConfig) -> tuple[str, str] | None:
    """Return why a server is not signed in to, as a state and as a sentence; None if it may be."""
    if isinstance(config, StdioServerConfig):
        return "process", f"server {config.id!r} is a process, which has no sign-in: its row has its variables"
    if any(name.lower() == "authorization" for name in config.headers):
        return "header", f"server {config.id!r} has a header Authorization in its row: remove it to sign in"
    if config.auth is None:
        return "off", f"server {config.id!r}: signing in is switched off in its row (auth)"
    if config.auth.settings.header_command:
        return "command", f"server {config.id!r} gets its headers from a command: there is nothing to sign in to"
    return None


def get_auth(config: ServerConfig) -> ServerAuth:
    """Return how a server is signed in to.

    Raises:
        AuthFault: It is not.
    """
    problem = find_auth_problem(config)
    if problem is not None:
        raise AuthFault(problem[1])
    assert not isinstance(config, StdioServerConfig)
    assert config.auth is not None
    return config.auth


async def sign_in_to_server(
    config: ServerConfig, prompt: SignInPrompt, *, device: bool = False, port: int | None = None
) -> StoredCredentials:
    """Sign in to a server with a person, and store it.

    Raises:
        AuthFault: It failed, or the server is not signed in to.
    """
    auth = get_auth(config)
    settings = replace(auth.settings, callback_port=port) if port is not None else auth.settings
    if device:
        settings = replace(settings, grant="device_code")
    driver = await _open_driver(config, replace(auth, settings=settings, prompt=prompt))
    return await sign_in_again(driver, await driver.find_challenge())


async def sign_out_of_server(config: ServerConfig) -> bool | None:
    """Revoke and delete the sign-ins to a server; return whether issuers confirmed it, None if there was none.

    Raises:
        AuthFault: A sign-in cannot be deleted, or the server is not signed in to.
    """
    return await sign_out(await _open_driver(config, get_auth(config)))


async def _open_driver(config: ServerConfig, auth: ServerAuth) -> AuthDriver:
    assert not isinstance(config, StdioServerConfig)

    def load() -> AuthDriver:
        # In a thread: it loads the HTTP client and the JWT library.
        from indusagi.interop.auth.driver import AuthDriver  # noqa: PLC0415

        return AuthDriver(config.url, auth, name=config.id, proxy=config.proxy)

    return await to_thread.run_sync(load)


async def read_sign_in(config: ServerConfig) -> SignInFacts | None:
    """Read what is stored about a server; None: it is a process. Nothing is sent."""
    if isinstance(config, StdioServerConfig):
        return None
    problem = find_auth_problem(config)
    if problem is not None:
        return SignInFacts(name=config.id, state=problem[0])
    auth = get_auth(config)
    return await read_facts(config.id, config.url, auth.store, auth.settings.client_id)
