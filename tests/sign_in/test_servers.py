"""Signing in to servers: two authorization servers, every way, expiry, refusal and sign-out."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.authlib_server import AuthlibServer
from tests.support.dialogs import ScriptedDialog, scripted
from tests.support.protected_server import follow_redirect, protected_site, sdk_site, sign_in_by_http, skip_pauses
from tests.support.waiting import until

from indusagi.interop.auth.contract import AuthFault, AuthSettings, DeviceCode, ServerAuth
from indusagi.interop.auth.storage import CredentialFiles
from indusagi.interop.protocol_bridge.contract import (
    BridgeConfig,
    EndpointPhase,
    ProtocolFault,
    StdioServerConfig,
    StreamableHttpServerConfig,
)
from indusagi.interop.protocol_bridge.endpoint import create_server_endpoint
from indusagi.interop.protocol_bridge.fleet import start_server_fleet
from induscode.cli.dialog import Question, Reply
from induscode.servers.sign_in import PersonPrompt, get_auth, read_sign_in, sign_in_to_server, sign_out_of_server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl


def configure(url: str, **settings: object) -> StreamableHttpServerConfig:
    """Configure a server with a store in the home directory of the test."""
    auth = ServerAuth(settings=replace(AuthSettings(), **settings), store=CredentialFiles())
    return StreamableHttpServerConfig("demo", url, auth=auth)


class BrowserPerson:
    """A person whose browser is an HTTP client."""

    def __init__(self, *, allow: bool = True) -> None:
        self.allow = allow
        self.pages: list[str] = []

    async def sign_in(self, config: StreamableHttpServerConfig, port: int | None = None) -> None:
        """Sign in to a server."""
        opened = anyio.Event()

        def open_page(url: str) -> bool:
            self.pages.append(url)
            anyio.from_thread.run_sync(opened.set)
            return True

        async def browse() -> None:
            await opened.wait()
            await follow_redirect(await sign_in_by_http(self.pages[-1], allow=self.allow))

        fault: AuthFault | None = None
        async with asyncio.TaskGroup() as tasks:
            browsing = tasks.create_task(browse())
            try:
                await sign_in_to_server(config, PersonPrompt(scripted(), open_page=open_page), port=port)
            except AuthFault as exc:
                fault = exc  # outside of the group, which would wrap it
            finally:
                if not opened.is_set():
                    browsing.cancel()
        if fault is not None:
            raise fault


async def sign_in(config: StreamableHttpServerConfig) -> None:
    await BrowserPerson().sign_in(config)


@asynccontextmanager
async def connected(config: StreamableHttpServerConfig) -> AsyncGenerator[ServerEndpointImpl]:
    endpoint = create_server_endpoint(config)
    try:
        await endpoint.open()
        yield endpoint
    finally:
        await endpoint.close()


async def ask_who(config: StreamableHttpServerConfig) -> object:
    """Call the tool of the server in a connection of its own, as a program that was started again does."""
    async with connected(config) as endpoint:
        result = await endpoint.invoke("whoami", {})
        return result.content


ADA = ({"type": "text", "text": "ada@example.org"},)
GRACE = ({"type": "text", "text": "grace@example.org"},)


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_pauses(monkeypatch)


# -- ways of signing in -----------------------------------------------------------------------


async def test_a_browser_signs_in_and_the_server_answers() -> None:
    async with protected_site() as site:
        config = configure(site.server.url)
        with pytest.raises(ProtocolFault, match="server 'demo': it needs a sign-in: indus mcp login demo"):
            await ask_who(config)
        await sign_in(config)
        assert await ask_who(config) == ADA
        assert site.issuer.requests == [("register", 201), ("authorization_code", 200)]


# The SDK's revocation endpoint refuses a client that sends its secret by Basic authentication.
@pytest.mark.parametrize(("method", "is_confirmed"), [(None, False), ("client_secret_post", True)])
async def test_the_authorization_server_of_the_sdk_signs_in_too(method: str | None, is_confirmed: bool) -> None:
    async with sdk_site() as (issuer, server):
        config = configure(server.url, auth_method=method)
        await sign_in(config)
        assert await ask_who(config) == GRACE
        issuer.access_tokens.clear()
        assert await ask_who(config) == GRACE
        assert issuer.refreshes == 1
        assert await sign_out_of_server(config) is is_confirmed
        assert bool(issuer.refresh_tokens) is not is_confirmed
        with pytest.raises(ProtocolFault, match="needs a sign-in"):
            await ask_who(config)


@pytest.mark.usefixtures("_no_pauses")
async def test_another_device_signs_in() -> None:
    async with protected_site() as site:
        config = configure(site.server.url)

        class Approving(PersonPrompt):
            async def show_device_code(self, code: DeviceCode) -> None:
                await super().show_device_code(code)
                site.issuer.approve(code.user_code)

        dialog = scripted()
        await sign_in_to_server(config, Approving(dialog), device=True)
        assert "enter the code" in dialog.shown[0]
        assert await ask_who(config) == ADA


@pytest.mark.usefixtures("_no_pauses")
async def test_a_device_is_registered_apart_from_a_browser() -> None:
    async with protected_site() as site:
        config = configure(site.server.url)
        await sign_in(config)

        class Approving(PersonPrompt):
            async def show_device_code(self, code: DeviceCode) -> None:
                site.issuer.approve(code.user_code)

        await sign_in_to_server(config, Approving(scripted()), device=True)
        await sign_in(config)
        assert await ask_who(config) == ADA
        assert site.issuer.count("register", 201) == 3


@pytest.mark.usefixtures("_no_pauses")
async def test_a_refused_device_is_told() -> None:
    async with protected_site() as site:

        class Refusing(PersonPrompt):
            async def show_device_code(self, code: DeviceCode) -> None:
                site.issuer.approve(code.user_code, allowed=False)

        with pytest.raises(AuthFault):
            await sign_in_to_server(configure(site.server.url), Refusing(scripted()), device=True)


async def test_a_pasted_address_signs_in() -> None:
    async with protected_site() as site:

        class Pasting(ScriptedDialog):
            async def ask(self, question: Question, /) -> Reply:
                self.script = [Reply(text=await sign_in_by_http(question.lines[0]))]
                return await super().ask(question)

        config = configure(site.server.url)
        await sign_in_to_server(config, PersonPrompt(Pasting(), paste=True))
        assert await ask_who(config) == ADA


async def test_a_refused_sign_in_leaves_nothing_to_use() -> None:
    async with protected_site() as site:
        config = configure(site.server.url)
        with pytest.raises(AuthFault):
            await BrowserPerson(allow=False).sign_in(config)
        facts = await read_sign_in(config)
        assert facts is not None
        assert facts.state == "not signed in"


async def test_a_fixed_port_is_registered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        unused_port = held.getsockname()[1]
    async with protected_site() as site:
        config = configure(site.server.url)
        await BrowserPerson().sign_in(config, port=unused_port)
        (client,) = site.issuer.clients.values()
        assert client.metadata["redirect_uris"] == [f"http://127.0.0.1:{unused_port}/callback"]


async def test_a_second_sign_in_uses_the_registration_of_the_first() -> None:
    async with protected_site() as site:
        config = configure(site.server.url)
        await sign_in(config)
        await sign_in(config)
        assert site.issuer.count("register") == 1
        assert site.issuer.count("authorization_code", 200) == 2


# -- restart, expiry, refusal -----------------------------------------------------------------


async def test_a_restart_with_an_expired_access_token_refreshes_once_without_a_person() -> None:
    async with protected_site(AuthlibServer(lifetime_s=1)) as site:
        config = configure(site.server.url)
        await sign_in(config)
        site.issuer.expire_access()
        site.issuer.lifetime_s = 3600
        assert await ask_who(replace(config)) == ADA
        assert await ask_who(replace(config)) == ADA
        assert site.issuer.count("refresh_token") == 1
        assert site.issuer.count("authorization_code") == 1


async def test_a_revoked_access_token_is_refreshed_in_the_middle_of_a_connection() -> None:
    async with protected_site() as site:
        config = configure(site.server.url)
        await sign_in(config)
        async with connected(config) as endpoint:
            site.issuer.expire_access()
            async with asyncio.TaskGroup() as tasks:
                calls = [tasks.create_task(endpoint.invoke("whoami", {})) for _ in range(5)]
            assert [call.result().content for call in calls] == [ADA] * 5
        assert site.issuer.count("refresh_token") == 1


async def test_two_connections_of_one_process_refresh_once() -> None:
    async with protected_site() as site:
        first, second = configure(site.server.url), configure(site.server.url)
        await sign_in(first)
        async with connected(first) as one, connected(second) as two:
            site.issuer.expire_access()
            async with asyncio.TaskGroup() as tasks:
                calls = [tasks.create_task(endpoint.invoke("whoami", {})) for endpoint in (one, two)]
            assert [call.result().content for call in calls] == [ADA, ADA]
        assert site.issuer.count("refresh_token") == 1
        assert site.issuer.reuses == 0


async def test_a_failing_issuer_keeps_the_sign_in() -> None:
    async with protected_site() as site:
        config = configure(site.server.url)
        await sign_in(config)
        site.issuer.expire_access()
        site.issuer.fail_with = 503
        with pytest.raises(ProtocolFault) as caught:
            await ask_who(config)
        assert caught.value.detail.reason == "upstream"
        site.issuer.fail_with = 0
        assert await ask_who(config) == ADA


async def test_only_an_ended_sign_in_needs_another_one() -> None:
    async with protected_site() as site:
        config = configure(site.server.url)
        await sign_in(config)
        for token in site.issuer.tokens:
            token.is_revoked = True
        for _ in range(2):
            with pytest.raises(ProtocolFault, match="indus mcp login demo") as caught:
                await ask_who(config)
            assert caught.value.detail.reason == "sign_in"
        assert site.issuer.count("refresh_token") == 1
        await sign_in(config)
        assert await ask_who(config) == ADA


async def test_signing_out_revokes_the_tokens_and_forgets_them() -> None:
    async with protected_site() as site:
        config = configure(site.server.url)
        assert await sign_out_of_server(config) is None
        await sign_in(config)
        assert await sign_out_of_server(config)
        assert all(token.is_revoked for token in site.issuer.tokens)
        assert await CredentialFiles().list_credentials() == []


# -- status -----------------------------------------------------------------------------------


async def test_a_server_that_needs_a_sign_in_is_idle_and_holds_nothing_up() -> None:
    async with protected_site() as site:
        fleet = await start_server_fleet(BridgeConfig([configure(site.server.url)]))
        try:
            status = fleet.status()["demo"]
            assert status.phase is EndpointPhase.IDLE
            assert status.fault is not None
            assert status.fault.detail.reason == "sign_in"
            assert status.next_try_s is None
            assert status.restarts == 0
            refused = site.server.refused
            await fleet.wake("demo")  # tried once more, by a call
            assert site.server.refused > refused
            assert fleet.status()["demo"].phase is EndpointPhase.IDLE
            await sign_in(configure(site.server.url))
            await fleet.wake("demo")
            assert fleet.status()["demo"].phase is EndpointPhase.READY
            assert fleet.status()["demo"].fault is None
        finally:
            await fleet.tear_down()
        assert fleet.status()["demo"].phase is EndpointPhase.CLOSED


async def test_a_server_that_refuses_the_list_alone_is_idle_too() -> None:
    async with protected_site() as site:
        site.server.open_methods = {"initialize", "server/discover", "notifications/initialized"}
        fleet = await start_server_fleet(BridgeConfig([configure(site.server.url)]))
        try:
            assert fleet.status()["demo"].phase is EndpointPhase.IDLE
            await sign_in(configure(site.server.url))
            await fleet.wake("demo")
            await until(lambda: fleet.status()["demo"].tool_count == 1)
        finally:
            await fleet.tear_down()


async def test_facts_of_a_sign_in_hold_no_secret() -> None:
    async with protected_site() as site:
        site.server.scopes = "read openid"
        config = configure(site.server.url)
        await sign_in(config)
        facts = await read_sign_in(config)
        assert facts is not None
        document = facts.to_json()
        assert document["account"] == "ada@example.org"
        assert document["scopes"] == ["read", "openid", "offline_access"]
        assert document["refreshes"] is True
        assert facts.format_expiry() == "in 59 min, refreshed"
        assert facts.place.endswith("(plain text)")
        for secret in (site.issuer.tokens[0].access, site.issuer.tokens[0].refresh):
            assert secret is not None
            assert secret not in f"{facts!r} {config!r} {document}"


async def test_servers_without_a_sign_in_say_why() -> None:
    process = StdioServerConfig("p", "run")
    assert await read_sign_in(process) is None
    with pytest.raises(AuthFault, match="is a process, which has no sign-in"):
        get_auth(process)
    header = StreamableHttpServerConfig("h", "https://server.example/mcp", {"authorization": "Bearer x"})
    with pytest.raises(AuthFault, match="has a header Authorization"):
        get_auth(header)
    command = configure("https://server.example/mcp", header_command=("print-headers",))
    with pytest.raises(AuthFault, match="gets its headers from a command"):
        get_auth(command)
    off = StreamableHttpServerConfig("o", "https://server.example/mcp")
    with pytest.raises(AuthFault, match="switched off in its row"):
        get_auth(off)
    for config, state in ((header, "header"), (command, "command"), (off, "off")):
        facts = await read_sign_in(config)
        assert facts is not None
        assert facts.state == state


async def test_a_sign_in_that_cannot_be_opened_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with protected_site() as site:
        monkeypatch.setenv("INDUS_CREDENTIALS_KEY", "correct horse battery staple")
        await sign_in(configure(site.server.url))
        monkeypatch.delenv("INDUS_CREDENTIALS_KEY")
        config = configure(site.server.url)
        facts = await read_sign_in(config)
        assert facts is not None
        assert facts.state == "unreadable"
        assert "set INDUS_CREDENTIALS_KEY" in facts.problem
        with pytest.raises(ProtocolFault, match="set INDUS_CREDENTIALS_KEY"):
            await ask_who(config)
        await sign_in(config)  # replaces it
        assert await ask_who(config) == ADA


async def test_a_sign_in_that_cannot_be_opened_is_deleted_by_signing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with protected_site() as site:
        monkeypatch.setenv("INDUS_CREDENTIALS_KEY", "correct horse battery staple")
        await sign_in(configure(site.server.url))
        monkeypatch.delenv("INDUS_CREDENTIALS_KEY")
        config = configure(site.server.url)
        assert await sign_out_of_server(config) is False
        assert await sign_out_of_server(config) is None
