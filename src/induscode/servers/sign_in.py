"""Sign-ins to configured servers: signing in interactively, signing out, and reading stored sign-ins.

With a browser on this machine, the response arrives at a loopback address (RFC 8252). Over ssh, the user opens the page
anywhere and pastes the address the browser ends up at. A device code (RFC 8628) needs no response: the client polls
the issuer until the user is done.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import anyio
from anyio import to_thread

from indusagi.core.records import record
from indusagi.core.time import iso_utc, now_ms
from indusagi.interop.auth.callback import CALLBACK_PATH, listen_for_redirect, read_redirect, read_state
from indusagi.interop.auth.contract import SIGN_IN_WAIT_S, AuthFault, ServerAuth
from indusagi.interop.auth.metadata import canonical_resource
from indusagi.interop.auth.storage import CredentialFiles, StoredRow
from indusagi.interop.protocol_bridge.client.start import reveal_config
from indusagi.interop.protocol_bridge.contract import ProtocolFault, ServerConfig, StdioServerConfig
from induscode.cli.dialog import Dialog, Question, Reply
from induscode.cli.terminal import print_status

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.interop.auth.contract import (
        AuthSettings,
        CredentialKey,
        CredentialStore,
        DeviceCode,
        RedirectReceiver,
        SignInPrompt,
        StoredCredentials,
    )
    from indusagi.interop.auth.driver import AuthDriver
    from indusagi.interop.auth.requests import Challenge


SignInWay: TypeAlias = Literal["browser", "paste", "device"]
_PASTE_PORT: Final = 33_418
"""Port of the redirect address to paste. Nothing listens there."""
_MAX_LINE_BYTES: Final = 64 * 1024
_STDIN: Final = 0


class PersonPrompt:
    """Guides the user through a sign-in with a dialog, which shows lines and asks for the pasted address.

    With `paste`, the user pastes the redirect address instead of us receiving the redirect. `open_page` returns whether
    a browser opened.
    """

    def __init__(
        self,
        dialog: Dialog,
        *,
        paste: bool = False,
        open_page: Callable[[str], bool] | None = None,
        wait_s: float = SIGN_IN_WAIT_S,
    ) -> None:
        self._dialog = dialog
        self._paste = paste
        self._open_page = open_page or open_browser
        self._wait_s = wait_s

    @asynccontextmanager
    async def open_redirect(
        self, settings: AuthSettings, registered: Sequence[str]
    ) -> AsyncGenerator[RedirectReceiver]:
        """Prepare for the issuer's response: a listener on this machine, or a question for the address."""
        if self._paste:
            port = settings.callback_port or _PASTE_PORT
            chosen = settings.redirect_uri or ("" if settings.callback_port else next(iter(registered), ""))
            uri = chosen or f"http://127.0.0.1:{port}{CALLBACK_PATH}"
            yield _PastedRedirect(self._dialog, uri, self._wait_s)
            return
        async with listen_for_redirect(settings, registered, self._show_page, self._wait_s) as listener:
            yield listener

    async def _show_page(self, url: str) -> None:
        self._dialog.show(f"Sign in at: {url}")
        if await to_thread.run_sync(self._open_page, url):
            self._dialog.show("The page opens in your browser. Is that on another machine? Use --paste or --device")
        else:
            self._dialog.show("Open it in a browser on this machine; on another one use --paste or --device")

    async def show_device_code(self, code: DeviceCode) -> None:
        """Show a code and where to enter it."""
        self._dialog.show(f"On any device, open {code.verification_uri} and enter the code {code.user_code}")
        if code.verification_uri_complete:
            self._dialog.show(f"or open {code.verification_uri_complete}")
        self._dialog.show(f"Waiting for the sign-in, at most {max(1, code.expires_s // 60)} minutes")


class _PastedRedirect:
    """Asks the user for the address the browser ended up at."""

    def __init__(self, dialog: Dialog, redirect_uri: str, wait_s: float) -> None:
        self._dialog = dialog
        self.redirect_uri = redirect_uri
        self._wait_s = wait_s

    async def authorize(self, url: str) -> Mapping[str, str]:
        state, path = read_state(url), urlsplit(self.redirect_uri).path

        def parse(text: str) -> Mapping[str, str] | None:
            # Some browsers omit the scheme, and users may copy just the part after the question mark.
            query = text.strip().rpartition("?")[2].partition("#")[0]
            return read_redirect(f"{path}?{query}", path, state)

        def check(text: str) -> str | None:
            problem = "This is not the address of this sign-in: copy all of it, from http to the end"
            return None if parse(text) is not None else problem

        question = Question(
            title="Sign in, in any browser, at:",
            lines=(
                url,
                f"The browser ends at a page that it cannot load, {self.redirect_uri.partition('?')[0]}?code=…",
                "Paste the address of that page here:",
            ),
            check=check,
        )
        reply = Reply(cancelled=True)
        with anyio.move_on_after(self._wait_s):
            reply = await self._dialog.ask(question)
        values = None if reply.cancelled else parse(reply.text)
        if values is None:
            raise AuthFault("the sign-in was given up: no address was pasted")
        return values


def open_browser(url: str) -> bool:
    """Open a page in a graphical browser and return whether that worked. A text browser would take the terminal."""
    has_display = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    if not has_display:
        return False
    import webbrowser  # noqa: PLC0415 — looks for browsers on import

    return webbrowser.open(url)


class StandardInputDialog:
    """The dialog of a process without a terminal: prints status lines and reads answers from standard input."""

    def show(self, text: str, /) -> None:
        """Print one line."""
        print_status(text)

    async def ask(self, question: Question, /) -> Reply:
        """Print a question and read one line. Invalid or missing input counts as cancelled."""
        for line in (question.title, *question.lines):
            print_status(line)
        data = bytearray()
        while b"\n" not in data and len(data) < _MAX_LINE_BYTES:
            try:
                await anyio.wait_readable(_STDIN)
            except OSError:
                pass  # files are always readable, but epoll(7) rejects them
            chunk = await to_thread.run_sync(os.read, _STDIN, 4096)
            if not chunk:
                break
            data += chunk
        text = data.partition(b"\n")[0].decode("utf-8", "replace").strip()
        problem = None if question.check is None else question.check(text)
        if problem is not None:
            print_status(problem)
        return Reply(text=text, cancelled=not text or problem is not None)


# -- servers ----------------------------------------------------------------------------------


def find_auth_problem(config: ServerConfig) -> tuple[str, str] | None:
    """Return why users can't sign in to a server, as a state and a sentence, or `None` if they can."""
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
    """Return a server's sign-in settings; raises `AuthFault` if it has no sign-in."""
    problem = find_auth_problem(config)
    if problem is not None:
        raise AuthFault(problem[1])
    assert not isinstance(config, StdioServerConfig)
    assert config.auth is not None
    return config.auth


async def sign_in_to_server(
    config: ServerConfig, prompt: SignInPrompt, *, device: bool = False, port: int | None = None
) -> StoredCredentials:
    """Sign in to a server interactively and store the credentials.

    Raises `AuthFault` if it failed, or the server has no sign-in.
    """
    auth = get_auth(config)
    settings = replace(auth.settings, callback_port=port) if port is not None else auth.settings
    if device:
        settings = replace(settings, grant="device_code")
    driver = await _open_driver(config, replace(auth, settings=settings, prompt=prompt))
    return await sign_in_again(driver, await driver.find_challenge())


async def sign_out_of_server(config: ServerConfig) -> bool | None:
    """Revoke and delete the sign-ins to a server. Returns whether issuers confirmed, or `None` without sign-ins.

    Raises `AuthFault` if a sign-in can't be deleted, or the server has no sign-in.
    """
    return await sign_out(await _open_driver(config, get_auth(config)))


async def _open_driver(config: ServerConfig, auth: ServerAuth) -> AuthDriver:
    try:
        config = await reveal_config(config)
    except ProtocolFault as fault:
        raise AuthFault(fault.message) from fault
    assert not isinstance(config, StdioServerConfig)

    def load() -> AuthDriver:
        # In a thread: it loads the HTTP client and the JWT library.
        from indusagi.interop.auth.driver import AuthDriver  # noqa: PLC0415

        return AuthDriver(config.url, auth, name=config.id, proxy=config.proxy)

    return await to_thread.run_sync(load)


async def read_sign_in(config: ServerConfig) -> SignInFacts | None:
    """Read the stored sign-in to a server without any requests. `None`: it's a process."""
    if isinstance(config, StdioServerConfig):
        return None
    problem = find_auth_problem(config)
    if problem is not None:
        return SignInFacts(name=config.id, state=problem[0])
    auth = get_auth(config)
    return await read_facts(config.id, config.url, auth.store, auth.settings.client_id)


# -- state ------------------------------------------------------------------------------------


_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS


@record(kw_only=True)
class SignInFacts:
    """Facts about a stored sign-in to a server or connector, without secrets."""

    name: str
    state: str
    """`signed in`, `expired`, `not signed in`, `unreadable`; or why it needs none: `header`, `command`, `off`."""
    account: str = ""
    scopes: tuple[str, ...] = ()
    expires_at_ms: int | None = None
    has_refresh_token: bool = False
    issuer: str = ""
    place: str = ""
    """Where it's stored, for display."""
    problem: str = ""

    def to_json(self) -> JsonObject:
        """Return the facts as JSON."""
        return {
            "name": self.name,
            "state": self.state,
            "account": self.account or None,
            "scopes": [*self.scopes],
            "expiresAt": None if self.expires_at_ms is None else iso_utc(self.expires_at_ms),
            "refreshes": self.has_refresh_token,
            "issuer": self.issuer or None,
            "stored": self.place or None,
            "problem": self.problem or None,
        }

    def format_expiry(self) -> str:
        """Format how long the access token lasts and whether it gets refreshed."""
        if self.expires_at_ms is None:
            return "" if self.state != "signed in" else "unknown"
        left_ms = self.expires_at_ms - now_ms()
        text = "expired"
        if left_ms > 0:
            unit_ms, unit = (_HOUR_MS, "h") if left_ms >= 2 * _HOUR_MS else (_MINUTE_MS, "min")
            text = f"in {max(1, left_ms // unit_ms)} {unit}"
        return f"{text}, refreshed" if self.has_refresh_token else text


async def read_facts(name: str, url: str, store: CredentialStore, client: str) -> SignInFacts:
    """Read a client's stored sign-in to a URL without any requests."""
    place = ""
    try:
        rows = await _read_rows(store, canonical_resource(url), client)
        place = rows[-1].place if rows else ""
        stored = await store.load(canonical_resource(url), client)
    except AuthFault as fault:
        return SignInFacts(name=name, state="unreadable", place=place, problem=str(fault))
    tokens = None if stored is None else stored.tokens
    if stored is None or tokens is None:
        return SignInFacts(name=name, state="not signed in")
    is_over = tokens.refresh_token is None and tokens.is_expired(now_ms())
    return SignInFacts(
        name=name,
        state="expired" if is_over else "signed in",
        account=stored.account,
        scopes=stored.requested_scopes if tokens.scope is None else tokens.scope,
        expires_at_ms=tokens.expires_at_ms,
        has_refresh_token=tokens.refresh_token is not None,
        issuer=stored.key.issuer,
        place=place,
    )


async def sign_in_again(driver: AuthDriver, challenge: Challenge | None) -> StoredCredentials:
    """Sign in, replacing any stored sign-in, even an unreadable one; raises `AuthFault` if it failed."""
    store = driver.auth.store
    try:
        if isinstance(store, CredentialFiles):
            store.skips_unreadable = True
        return await driver.sign_in(challenge)
    finally:
        if isinstance(store, CredentialFiles):
            store.skips_unreadable = False


async def sign_out(driver: AuthDriver) -> bool | None:
    """Revoke and delete a client's sign-ins. Returns whether issuers confirmed, or `None` without sign-ins.

    Deletes unreadable sign-ins without revoking them. Raises `AuthFault` if a sign-in can't be deleted.
    """
    store = driver.auth.store
    unreadable: list[CredentialKey] = []
    try:
        is_known = await driver.load() is not None
    except AuthFault:
        rows = await _read_rows(store, driver.resource, driver.auth.settings.client_id)
        unreadable = [row.key for row in rows]
        is_known = True
    if not is_known:
        return None
    confirmed = await driver.sign_out()
    for key in unreadable:
        await store.delete(key)
    return confirmed and not unreadable


async def _read_rows(store: CredentialStore, resource: str, client: str) -> Sequence[StoredRow]:
    """Read the stored files of a resource, newest last."""
    if not isinstance(store, CredentialFiles):
        return ()
    rows = await to_thread.run_sync(store.read_rows)
    ours = [row for row in rows if (row.key.resource, row.key.client) == (resource, client)]
    return sorted(ours, key=lambda row: row.saved_ms)
