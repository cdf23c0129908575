"""Sign-ins started by gateway clients.

For a gateway on its user's machine: a call that fails for lack of a sign-in asks the client to open the sign-in page
(elicitation in URL mode: https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation), then goes on. A
server whose tools are unknown until a sign-in gets a single tool that does the same. The redirect arrives on a loopback
address, so a gateway for other machines offers neither. With access tokens, users sign in on its page
(`user_sign_ins`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.ids import new_ulid
from indusagi.interop.auth.callback import listen_for_redirect
from indusagi.interop.auth.contract import SIGN_IN_WAIT_S, AuthFault, AuthSettings, DeviceCode, RedirectReceiver
from indusagi.interop.protocol_bridge.client.handlers import Caller, current_caller
from indusagi.interop.protocol_bridge.contract import (
    EndpointPhase,
    RemoteToolRef,
    StdioServerConfig,
    needs_sign_in,
    qualify_tool_name,
)
from indusagi.interop.protocol_bridge.rpc.connection import RpcError
from indusagi.runtime.calls import current_user
from indusagi.runtime.contract import ToolDescriptor, ToolResult
from induscode.servers.remedies import format_server_command

if TYPE_CHECKING:
    from induscode.deck.mcp.boot import BootedBridge
    from induscode.gateway.user_sign_ins import UserSignIns

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
            for server, status in self._bridge.fleet.status().items()
            if self.is_personal and needs_sign_in(status.fault) and server not in known
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
            from induscode.servers.sign_in import sign_in_to_server  # noqa: PLC0415 — for a sign-in

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
        from indusagi.interop.auth.metadata import canonical_resource  # noqa: PLC0415 — for a server that waits
        from indusagi.interop.auth.storage import CredentialFiles  # noqa: PLC0415 — for a server that waits

        rows = await to_thread.run_sync(CredentialFiles().read_rows)
        for server, status in self._bridge.fleet.status().items():
            config = self._bridge.plan.configs.get(server)
            if config is None or isinstance(config, StdioServerConfig) or not needs_sign_in(status.fault):
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
