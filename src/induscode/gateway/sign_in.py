"""Sign-ins started by gateway clients, and those of its users.

For a gateway on its user's machine: a call that fails for lack of a sign-in asks the client to open the sign-in page
(elicitation in URL mode: https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation), then goes on. A
server whose tools are unknown until a sign-in gets a single tool that does the same. The redirect arrives on a loopback
address, so a gateway for other machines offers neither. With access tokens, users sign in on its page
(`UserSignIns`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Self
from urllib.parse import urlencode

import anyio
from anyio import to_thread

from indusagi.core.app_dirs import state_dir
from indusagi.core.ids import new_ulid
from indusagi.core.tasks import BackgroundTask
from indusagi.interop.auth.callback import listen_for_redirect
from indusagi.interop.auth.contract import SIGN_IN_WAIT_S, AuthFault, AuthSettings, DeviceCode, RedirectReceiver
from indusagi.interop.auth.metadata import canonical_resource
from indusagi.interop.auth.storage import CredentialFiles, StoredRow
from indusagi.interop.protocol_bridge.client.handlers import Caller, current_caller
from indusagi.interop.protocol_bridge.contract import (
    EndpointPhase,
    RemoteToolRef,
    ServerConfig,
    StdioServerConfig,
    needs_sign_in,
    qualify_tool_name,
)
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
from indusagi.interop.protocol_bridge.rpc.connection import RpcError
from indusagi.interop.protocol_bridge.users import SessionKey, has_own_credentials, is_per_user
from indusagi.runtime.calls import current_user
from indusagi.runtime.contract import ToolDescriptor, ToolResult
from induscode.cli.terminal import print_status
from induscode.servers.remedies import format_server_command
from induscode.servers.sign_in import SignInFacts, read_sign_in, sign_in_to_server, sign_out_of_server

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.interop.auth.contract import (
        CredentialKey,
        CredentialStore,
        ServerAuth,
        SignInPrompt,
        StoredCredentials,
    )
    from induscode.cluster.shared.table import SharedTable
    from induscode.deck.mcp.boot import BootedBridge
    from induscode.gateway.token_book import TokenBook


_TOOL = "sign_in"


class GatewaySignIns:
    """The sign-ins to a gateway's servers, which has tried those stored before `started_ms`.

    If it `is_personal`, its clients belong to this machine's user, who may sign in through them.
    """

    def __init__(self, bridge: BootedBridge, started_ms: int, users: UserSignIns | None, *, is_personal: bool) -> None:
        self._bridge = bridge
        self._users = users
        self._started_ms = started_ms
        self.is_personal = is_personal
        self._locks: dict[tuple[str, str], anyio.Lock] = {}
        """By server and user."""
        self._saved: dict[str, int] = {}
        """Storage time of the last sign-in tried, by server."""

    def list_tools(self) -> Sequence[ToolDescriptor]:
        """List a sign-in tool for each server that needs a sign-in before its tools are known."""
        return [
            ToolDescriptor(
                name,
                f"Sign in to the server {server!r}, which lists its tools afterwards. Opens a page for the user.",
                {"type": "object", "properties": {}, "additionalProperties": False},
            )
            for name, server in self._servers().items()
        ]

    def find_server(self, name: str) -> str | None:
        """Return the server that a tool from `list_tools` signs in to."""
        return self._servers().get(name)

    def _servers(self) -> dict[str, str]:
        known = {tool.ref.server for tool in self._bridge.capabilities}
        return {
            qualify_tool_name(RemoteToolRef(server, _TOOL)): server
            for server, fault in self._bridge.fleet.list_faults().items()
            if self.is_personal and needs_sign_in(fault) and server not in known
        }

    async def run_tool(self, server: str) -> ToolResult:
        """Sign in through the calling client and report the outcome."""
        problem = await self.sign_in(server)
        if problem is not None:
            return ToolResult.error(problem, code="not_connected", server=server, reason="sign_in")
        return ToolResult.text(f"Signed in to {server!r}; its tools are listed now.")

    async def sign_in(self, server: str) -> str | None:
        """Sign in to a server through the calling client. Return the problem, or `None` if the call may go on."""
        config, caller = self._bridge.plan.configs.get(server), current_caller.get()
        users = self._users if self._users is not None and server in self._users.list_servers() else None
        command = f"server {server!r} needs a sign-in: {format_server_command('login', server)}"
        elicitation = None if caller is None else caller.capabilities.get("elicitation")
        can_open_pages = isinstance(elicitation, dict) and "url" in elicitation
        if config is None or caller is None or not can_open_pages or not (self.is_personal or users):
            return command
        user = "" if users is None else current_user.get()
        lock = self._locks.setdefault((server, user), anyio.Lock())
        if lock.locked():
            async with lock:
                return None  # another call signed in, or the retry will tell why not
        if users is not None:
            async with lock:
                return await self._sign_in_user(users, server, user, caller)
        async with lock:
            try:
                await sign_in_to_server(config, PagePrompt(server, partial(ask_to_open, caller)))
            except (AuthFault, RpcError) as exc:
                return f"not signed in: {exc}; {command}"
            status = self._bridge.fleet.status_of(server)
            if status is not None and status.phase is not EndpointPhase.READY:
                await self._bridge.fleet.wake(server)
        return None

    async def _sign_in_user(self, users: UserSignIns, server: str, user: str, caller: Caller) -> str | None:
        """Have a user open our page, and wait for the sign-in there."""
        link = users.build_link(server)
        try:
            if not link:
                raise AuthFault("the page is off")
            asked = await ask_to_open(caller, link, f"Sign in to the server {server!r}.")
            with anyio.fail_after(SIGN_IN_WAIT_S):
                await users.wait_signed_in(server, user)
        except (AuthFault, RpcError, TimeoutError) as exc:
            return f"not signed in: {exc}"
        caller.notify("notifications/elicitation/complete", {"elicitationId": asked})
        return None

    async def wake_signed_in(self) -> None:
        """Start waiting servers whose sign-in another process stored in the meantime (`indus mcp login`)."""
        rows = await to_thread.run_sync(CredentialFiles().read_rows)
        for server, fault in self._bridge.fleet.list_faults().items():
            config = self._bridge.plan.configs.get(server)
            if config is None or isinstance(config, StdioServerConfig) or not needs_sign_in(fault):
                continue
            resource = canonical_resource(config.url)
            saved = max((row.saved_ms for row in rows if row.key.resource == resource), default=0)
            if saved > self._saved.get(server, self._started_ms):
                self._saved[server] = saved
                await self._bridge.wake([server])


class PagePrompt:
    """Prompts a user by having someone open the sign-in page: `open_page` gets its address and a message."""

    def __init__(self, server: str, open_page: Callable[..., Awaitable[object]]) -> None:
        self._server, self._open_page = server, open_page

    @asynccontextmanager
    async def open_redirect(
        self, settings: AuthSettings, registered: Sequence[str]
    ) -> AsyncGenerator[RedirectReceiver]:
        """Listen for the redirect on this machine."""
        message = f"Sign in to the server {self._server!r}."
        async with listen_for_redirect(settings, registered, partial(self._open_page, message=message)) as listener:
            yield listener

    async def show_device_code(self, code: DeviceCode) -> None:
        """Send the user to the page for a device code."""
        url = code.verification_uri_complete or code.verification_uri
        await self._open_page(url, f"Enter the code {code.user_code} to sign in to the server {self._server!r}.")


async def ask_to_open(caller: Caller, url: str, message: str) -> str:
    """Ask a client to open a page, and return the id of the question; `AuthFault` if its user declines."""
    asked = new_ulid()
    params = {"mode": "url", "elicitationId": asked, "url": url, "message": message}
    result = await caller.ask("elicitation/create", {**params})
    if result.get("action") != "accept":
        raise AuthFault("the sign-in was declined")
    return asked


# -- sign-ins of users ------------------------------------------------------------------------
#
# Each is stored under its user, sealed, and used by that user's sessions alone (`UserSessions`). A user signs in and
# out on the page, as whoever the browser signed in as: the link to it names no user, so following someone else's is
# harmless.


_POLL_S = 0.5


class UserSignIns:
    """The sign-ins of a gateway; `find_page` returns the address of its page, or an empty text without one.

    `book` knows which principals are locked out; with the `table` of a cluster, its nodes share the sign-ins.
    """

    def __init__(
        self,
        bridge: BootedBridge,
        find_page: Callable[[], str],
        book: TokenBook | None = None,
        table: SharedTable | None = None,
    ) -> None:
        self._bridge = bridge
        self._book, self._table = book, table
        self._find_page = find_page
        self._registrations: dict[CredentialKey, StoredCredentials] = {}
        self._following = BackgroundTask("sign-ins of users")
        self.sessions = bridge.fleet.open_users(self._build_auth, self._find_signed_in)

    def list_servers(self) -> Sequence[str]:
        """List the servers that each user signs in to."""
        configs = self._bridge.plan.configs.items()
        return [server for server, config in configs if is_per_user(config) and not has_own_credentials(config)]

    def find_servers(self, key: CredentialKey) -> Sequence[str]:
        """Find the servers that a sign-in is for."""
        configs = self._bridge.plan.configs
        urls = {server: getattr(configs[server], "url", "") for server in self.list_servers()}
        return [server for server, url in urls.items() if canonical_resource(url) == key.resource]

    def build_link(self, server: str) -> str:
        """Build the address where any user signs in to a server; empty without a page."""
        page = self._find_page()
        return f"{page}/sign-ins?{urlencode({'server': server})}" if page else ""

    def _build_auth(self, config: ServerConfig, user: str) -> ServerAuth:
        assert not isinstance(config, StdioServerConfig)
        assert config.auth is not None
        link = self.build_link(config.id)
        remedy = f"open {link} and sign in there" if link else "users sign in on the page, which is off (--page)"
        store = self._open_store(user)
        # Anyone could enter the code of a sign-in on another device.
        settings = replace(config.auth.settings, grant="authorization_code")
        return replace(config.auth, settings=settings, store=store, prompt=None, user=user, remedy=remedy)

    def _open_store(self, user: str) -> CredentialStore:
        if self._table is None:
            return UserCredentials(user, registrations=self._registrations)
        from induscode.cluster.shared.table import SharedCredentials  # noqa: PLC0415 — only with --cluster

        return SharedCredentials(self._table, user, self._registrations)

    async def list_all(self) -> Sequence[tuple[str, CredentialKey, int]]:
        """List all users' sign-ins: the user, the key and when it was saved."""
        if self._table is None:
            return [(user, row.key, row.saved_ms) for user, row in await to_thread.run_sync(list_stored)]
        from induscode.cluster.shared.table import read_sign_ins  # noqa: PLC0415 — only with --cluster

        return [row[:3] for row in read_sign_ins(self._table)]

    def _configure(self, server: str, user: str) -> ServerConfig:
        """Return a server's configuration with the sign-in of a user; raises `AuthFault` if users don't sign in."""
        config = self._bridge.plan.configs.get(server)
        if config is None or isinstance(config, StdioServerConfig) or server not in self.list_servers() or not user:
            raise AuthFault(f"there is no server {server!r} that each user signs in to")
        return replace(config, auth=self._build_auth(config, user))

    async def _find_signed_in(self, sessions: Collection[tuple[ServerConfig, str]]) -> Collection[SessionKey]:
        stored = {(user, key.resource) for user, key, _ in await self.list_all()} if sessions else ()
        return {
            (config.id, user)
            for config, user in sessions
            if not isinstance(config, StdioServerConfig) and (user, canonical_resource(config.url)) in stored
        }

    async def read_facts(self, user: str) -> Sequence[SignInFacts]:
        """Read a user's sign-ins, one per server."""
        facts = [await read_sign_in(self._configure(server, user)) for server in self.list_servers()]
        return [one for one in facts if one is not None]

    async def sign_in(self, server: str, user: str, prompt: SignInPrompt) -> None:
        """Sign a user in to a server; raises `AuthFault` if it failed."""
        if self._table is None:
            await to_thread.run_sync(UserCredentials(user).require_vault)
        config = self._configure(server, user)
        await sign_in_to_server(config, prompt)
        await self._renew(server, user, "signed in")

    async def sign_out(self, server: str, user: str) -> bool | None:
        """Sign a user out; returns and raises like `sign_out_of_server`."""
        try:
            return await sign_out_of_server(self._configure(server, user))
        finally:
            await self._renew(server, user, "signed out")

    def report_vault(self) -> None:
        """Print a line if users can't sign in for lack of a place for their sign-ins. Blocks."""
        try:
            if self._table is None and self.list_servers():
                UserCredentials("any").require_vault()
        except AuthFault as fault:
            print_status(f"users cannot sign in to {', '.join(self.list_servers())}: {fault}")

    async def __aenter__(self) -> Self:
        """Sign principals that are locked out of the gateway out of every server."""
        self._following.start(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        self._following.cancel()
        await self._following.join()

    async def _follow(self) -> None:
        if self._book is None:
            return
        has_ended = anyio.Event()
        stop = self._book.on_ended.add(lambda: has_ended.set())
        try:
            while True:
                has_ended = anyio.Event()
                for user in {user for user, *_ in await self.list_all()}:
                    identity = ClientIdentity(principal=name_user(user)[1], user=user, credential="principal")
                    if self._book.find_end(identity):
                        await self._lock_out(user)
                await has_ended.wait()
        finally:
            stop()

    async def _lock_out(self, user: str) -> None:
        try:
            await self.forget(user)
        except AuthFault as fault:
            print_status(f"{name_user(user)[1]!r} is locked out, and not signed out of every server: {fault}")

    async def forget(self, user: str) -> None:
        """Sign a user out of every server, including those that are gone."""
        await self.sessions.end(user=user)
        for server in self.list_servers():
            with suppress(AuthFault):  # deleted below if it couldn't be revoked
                await self.sign_out(server, user)
        for key in [key for owner, key, _ in await self.list_all() if owner == user]:
            await self._open_store(user).delete(key)

    async def _renew(self, server: str, user: str, what: str) -> None:
        """End the sessions with the former sign-in, and record the change."""
        await self.sessions.end(server=server, user=user)
        self._bridge.journal.record_event("connect", server, f"user {name_user(user)[1]}", what)

    async def wait_signed_in(self, server: str, user: str) -> None:
        """Wait until a user has signed in, maybe through another process; raises `AuthFault` if it can't be read."""
        config = self._configure(server, user)
        while True:
            facts = await read_sign_in(config)
            if facts is not None and facts.state == "signed in":
                return
            if facts is not None and facts.problem:
                raise AuthFault(facts.problem)
            await anyio.sleep(_POLL_S)


# -- store ------------------------------------------------------------------------------------


class UserCredentials(CredentialFiles):
    """The sign-ins of one user, in a folder below the operator's. Without a user: those of any, for reading."""

    items = "users' sign-ins"
    may_be_plain = False

    def __init__(
        self,
        user: str = "",
        folder: str | None = None,
        registrations: dict[CredentialKey, StoredCredentials] | None = None,
    ) -> None:
        super().__init__(folder or (os.path.join(find_users_folder(), _hash(user)) if user else None))
        self.user = user
        self._registrations = {} if registrations is None else registrations

    async def find(self, key: CredentialKey) -> StoredCredentials | None:
        """Return the sign-in with this key, or our registration at its issuer, which all users share."""
        return await super().find(key) or self._registrations.get(key)

    async def save(self, credentials: StoredCredentials) -> None:
        """Store a sign-in; a registration alone is only remembered."""
        self._registrations[credentials.key] = credentials.drop_tokens()
        if credentials.tokens is not None:
            await super().save(credentials)

    def name_owner(self, facts: JsonObject) -> str | None:
        """Return the name for the store and the user: a file opens as its own user's alone."""
        user, name = facts.get("user"), super().name_owner(facts)
        is_known = isinstance(user, str) and user and self.user in {"", user}
        return f"{name} of {_hash(str(user))}" if is_known and name is not None else None

    def build_facts(self, key: CredentialKey) -> JsonObject:
        """Build the facts of a sign-in for its file."""
        return {**super().build_facts(key), "user": self.user}


def find_users_folder() -> str:
    """Return the folder with a folder for each user; `OSError` without a home directory."""
    return os.path.join(state_dir(), "credentials", "users")


def list_stored(principal: str | None = None) -> Sequence[tuple[str, StoredRow]]:
    """List the stored sign-ins of all users, or of those with this subject, with their users. Blocks."""
    try:
        folders = [one.path for one in os.scandir(find_users_folder())]
    except OSError:
        return ()
    rows = [row for folder in sorted(folders) for row in UserCredentials(folder=folder).read_rows()]
    found = [(str(row.file.facts.get("user")), row) for row in rows]
    # A file elsewhere than in its user's folder isn't ours.
    found = [(user, row) for user, row in found if os.path.basename(os.path.dirname(row.file.path)) == _hash(user)]
    return [(user, row) for user, row in found if principal in {None, name_user(user)[1]}]


def _hash(user: str) -> str:
    return hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def name_user(user: str) -> tuple[str, str]:
    """Return the issuer and the subject of a user (`ClientIdentity.user`)."""
    issuer, principal = json.loads(user)
    return str(issuer), str(principal)
