"""Servers behind OAuth over a real socket: tokens of each request, refreshes, step-ups, and what nothing waits for."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.http_behaviours import Legacy, Modern, OldSse
from tests.support.http_peer import http_server
from tests.support.protected import AgreeablePrompt, Protected, make_auth, stored_sign_in

from indusagi.interop import (
    ProtocolFault,
    ServerLimits,
    SseServerConfig,
    StreamableHttpServerConfig,
    create_server_endpoint,
)
from indusagi.interop.auth.contract import AuthSettings
from indusagi.interop.auth.driver import AuthDriver

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from tests.support.http_peer import Behaviour, Exchange, HttpServer

    from indusagi.interop import ServerEndpointImpl
    from indusagi.interop.auth.contract import ServerAuth


@asynccontextmanager
async def protected(inner: Behaviour) -> AsyncGenerator[tuple[Protected, HttpServer]]:
    behaviour = Protected(inner)
    async with http_server(behaviour) as server:
        yield behaviour, server
        assert server.errors == []


@asynccontextmanager
async def connected(url: str, auth: ServerAuth | None, **fields: Any) -> AsyncGenerator[ServerEndpointImpl]:
    # The first connection of a process loads the SDK.
    config = StreamableHttpServerConfig("s", url, auth=auth, limits=ServerLimits(connect_s=60), **fields)
    endpoint = create_server_endpoint(config)
    try:
        await endpoint.open()
        yield endpoint
    finally:
        await endpoint.close()


async def call(endpoint: ServerEndpointImpl, text: str) -> str:
    result = await endpoint.invoke("echo", {"text": text})
    block = result.content[0]
    assert isinstance(block, dict)
    return str(block["text"])


def tokens_of(server: HttpServer) -> set[str | None]:
    """List the credentials of the requests to the server itself."""
    return {request.headers.get("authorization") for request in server.requests if request.path == "/mcp"}


# -- signing in ---------------------------------------------------------------------------------


@pytest.mark.parametrize("era", [Modern, Legacy])
async def test_a_person_signs_in_once_and_every_request_has_the_token(era: Callable[[], Behaviour]) -> None:
    prompt = AgreeablePrompt()
    async with protected(era()) as (issuer, server):
        auth = await make_auth(prompt=prompt)
        async with connected(server.url, auth) as endpoint:
            assert len(await endpoint.list_tools()) == 3
            assert await call(endpoint, "hi") == "hi"
        assert [asked["scope"] for asked in prompt.asked] == ["read"]
        assert len(issuer.refused) == 1
        assert tokens_of(server) == {None, "Bearer access-1"}
        assert [form["grant_type"] for form in issuer.forms] == ["authorization_code"]
        async with connected(server.url, auth) as endpoint:
            assert await call(endpoint, "again") == "again"
        assert len(prompt.asked) == 1
        assert len(issuer.refused) == 1, "a new connection begins with the stored token"


async def test_the_old_transport_is_signed_in_to_as_well() -> None:
    prompt = AgreeablePrompt()
    async with protected(OldSse()) as (issuer, server):
        config = SseServerConfig(
            "s", server.url, auth=await make_auth(prompt=prompt), limits=ServerLimits(connect_s=60)
        )
        endpoint = create_server_endpoint(config)
        await endpoint.open()
        assert await call(endpoint, "hi") == "hi"
        await endpoint.close()
        assert len(issuer.forms) == len(prompt.asked) == 1


async def test_without_a_person_the_server_is_idle_and_the_fault_names_the_command() -> None:
    async with protected(Modern()) as (issuer, server):
        endpoint = create_server_endpoint(StreamableHttpServerConfig("my server", server.url, auth=await make_auth()))
        with pytest.raises(ProtocolFault) as raised:
            await endpoint.open()
        assert raised.value.detail.reason == "sign_in"
        assert "indus mcp login 'my server'" in str(raised.value)
        assert endpoint.phase == "idle"
        await endpoint.close()
        assert issuer.forms == []
        assert [request.path for request in server.requests] == ["/mcp"], "nothing is discovered without a person"


async def test_a_sign_in_of_another_process_is_found_without_a_restart() -> None:
    async with protected(Modern()) as (issuer, server):
        issuer.accepted = {"access-0"}
        auth = await make_auth()
        with pytest.raises(ProtocolFault):
            async with connected(server.url, auth):
                pass
        await auth.store.save(stored_sign_in(server.url))
        async with connected(server.url, auth) as endpoint:
            assert await call(endpoint, "hi") == "hi"


async def test_a_header_of_the_configuration_stands_instead_of_a_sign_in() -> None:
    prompt = AgreeablePrompt()
    async with protected(Modern()) as (_, server):
        auth = await make_auth(prompt=prompt)
        with pytest.raises(ProtocolFault) as raised:
            async with connected(server.url, auth, headers={"Authorization": "Bearer mine"}):
                pass
        assert raised.value.detail.reason == "auth"
        assert prompt.asked == []


async def test_another_scheme_than_oauth_is_not_answered_with_a_sign_in() -> None:
    async def basic(exchange: Exchange) -> None:
        await exchange.reply(401, b"", {"WWW-Authenticate": 'Basic realm="x"'})

    prompt = AgreeablePrompt()
    async with http_server(basic) as server:
        with pytest.raises(ProtocolFault) as raised:
            async with connected(server.url, await make_auth(prompt=prompt)):
                pass
    assert raised.value.detail.reason == "auth"
    assert prompt.asked == []


async def test_a_token_is_never_sent_to_another_origin() -> None:
    async with http_server(Modern()) as other:

        async def redirect(exchange: Exchange) -> None:
            await exchange.reply(307, b"", {"Location": other.url})

        async with protected(redirect) as (issuer, server):
            issuer.accepted = {"access-0"}
            with pytest.raises(ProtocolFault) as raised:
                async with connected(server.url, await make_auth(stored_sign_in(server.url))):
                    pass
            assert raised.value.detail.reason == "redirect"
        assert other.requests == []


# -- refreshing ---------------------------------------------------------------------------------


async def test_an_expired_token_is_refreshed_once_without_a_person() -> None:
    async with protected(Modern()) as (issuer, server):
        auth = await make_auth(stored_sign_in(server.url, life_s=-1), prompt=AgreeablePrompt())
        async with connected(server.url, auth) as endpoint:
            assert await call(endpoint, "hi") == "hi"
        assert [form["grant_type"] for form in issuer.forms] == ["refresh_token"]
        assert issuer.refused == [], "an expired token is not even tried"
        stored = await auth.store.load(server.url)
        assert stored is not None
        assert stored.tokens is not None
        assert stored.tokens.access_token == "access-1"


async def test_a_refused_token_is_refreshed_although_it_has_not_expired() -> None:
    async with protected(Modern()) as (issuer, server):
        async with connected(server.url, await make_auth(stored_sign_in(server.url))) as endpoint:
            assert await call(endpoint, "hi") == "hi"
        assert [form["grant_type"] for form in issuer.forms] == ["refresh_token"]


@pytest.mark.parametrize("status", [500, 503])
async def test_a_failing_issuer_keeps_the_sign_in(status: int) -> None:
    async with protected(Modern()) as (issuer, server):
        issuer.token_status = status
        auth = await make_auth(stored_sign_in(server.url, life_s=-1))
        with pytest.raises(ProtocolFault) as raised:
            async with connected(server.url, auth):
                pass
        assert raised.value.detail.reason == "upstream"
        issuer.token_status = 200
        async with connected(server.url, auth) as endpoint:
            assert await call(endpoint, "hi") == "hi"


async def test_invalid_grant_means_signing_in_again_and_is_not_tried_twice() -> None:
    async with protected(Modern()) as (issuer, server):
        issuer.token_status, issuer.token_answer = 400, {"error": "invalid_grant"}
        auth = await make_auth(stored_sign_in(server.url, life_s=-1))
        for _ in range(2):
            with pytest.raises(ProtocolFault) as raised:
                async with connected(server.url, auth):
                    pass
            assert raised.value.detail.reason == "sign_in"
        assert len(issuer.forms) == 1


async def test_a_person_is_asked_after_invalid_grant() -> None:
    async with protected(Modern()) as (issuer, server):
        issuer.token_status, issuer.token_answer = 400, {"error": "invalid_grant"}
        prompt = AgreeablePrompt()

        async def allow(url: str) -> dict[str, str]:
            issuer.token_status, issuer.token_answer = 200, {}
            return dict(await AgreeablePrompt.authorize(prompt, url))

        prompt.authorize = allow
        async with connected(
            server.url, await make_auth(stored_sign_in(server.url, life_s=-1), prompt=prompt)
        ) as endpoint:
            assert await call(endpoint, "hi") == "hi"
        assert [form["grant_type"] for form in issuer.forms] == ["refresh_token", "authorization_code"]


async def test_a_server_that_refuses_every_token_ends_the_tries() -> None:
    async with protected(Modern()) as (issuer, server):
        issuer.check = lambda exchange, origin: Protected.check(_never(issuer), exchange, origin)
        prompt = AgreeablePrompt()
        with pytest.raises(ProtocolFault, match="refuses the access token it was just issued"):
            async with connected(server.url, await make_auth(stored_sign_in(server.url), prompt=prompt)):
                pass
        assert [form["grant_type"] for form in issuer.forms] == ["refresh_token", "authorization_code"]
        assert len(prompt.asked) == 1


def _never(issuer: Protected) -> Protected:
    issuer.accepted = set()
    return issuer


# -- what nothing waits for ---------------------------------------------------------------------


class Gate:
    """Answers calls once so many have arrived."""

    def __init__(self, count: int) -> None:
        self._inner = Modern()
        self._count = count
        self.arrived = 0
        self._all = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.request.is_a("tools/call"):
            self.arrived += 1
            if self.arrived == self._count:
                self._all.set()
            await self._all.wait()
        await self._inner(exchange)


async def call_together(endpoint: ServerEndpointImpl, count: int) -> list[str]:
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(call(endpoint, str(number))) for number in range(count)]
    return [task.result() for task in running]


async def test_five_calls_reach_the_server_before_any_is_answered() -> None:
    async with protected(Gate(5)) as (issuer, server):
        issuer.accepted = {"access-0"}
        async with connected(server.url, await make_auth(stored_sign_in(server.url))) as endpoint:
            # The server answers none of them before all have arrived: calls one by one would never end.
            assert await call_together(endpoint, 5) == [*"01234"]
        assert issuer.forms == []


async def test_five_refused_calls_share_one_refresh_and_then_run_together() -> None:
    async with protected(Gate(5)) as (issuer, server):
        issuer.accepted = {"access-0"}
        async with connected(server.url, await make_auth(stored_sign_in(server.url))) as endpoint:
            issuer.accepted = set()
            assert await call_together(endpoint, 5) == [*"01234"]
        assert [form["grant_type"] for form in issuer.forms] == ["refresh_token"]


async def test_a_call_with_a_valid_token_does_not_wait_for_the_refresh_of_another() -> None:
    async with protected(Modern()) as (issuer, server):
        issuer.accepted = {"access-0"}
        refused = asyncio.Event()
        usual = issuer.check

        async def check(exchange: Exchange, origin: str) -> bool:
            if b'"refused"' in exchange.request.body and not issuer.forms:
                issuer.may_issue.clear()
                refused.set()
                await exchange.reply(401, b"", {"WWW-Authenticate": "Bearer"})
                return False
            return await usual(exchange, origin)

        issuer.check = check
        async with connected(server.url, await make_auth(stored_sign_in(server.url))) as endpoint:
            async with asyncio.TaskGroup() as tasks:
                first = tasks.create_task(call(endpoint, "refused"))
                await refused.wait()
                assert await call(endpoint, "other") == "other"
                assert not first.done()
                issuer.may_issue.set()
            assert first.result() == "refused"


async def test_a_cancelled_call_leaves_the_refresh_to_the_others() -> None:
    async with protected(Modern()) as (issuer, server):
        issuer.accepted = {"access-0"}
        auth = await make_auth(stored_sign_in(server.url))
        async with connected(server.url, auth) as endpoint:
            issuer.accepted = set()
            issuer.may_issue.clear()
            async with asyncio.TaskGroup() as tasks:
                first = tasks.create_task(call(endpoint, "cancelled"))
                second = tasks.create_task(call(endpoint, "kept"))
                await issuer.is_asked.wait()
                first.cancel()
                await asyncio.wait({first})
                issuer.may_issue.set()
            assert second.result() == "kept"
        assert len(issuer.forms) == 1


# -- more scopes --------------------------------------------------------------------------------


class NeedsScope:
    """Refuses calls for want of a scope, until a token with that scope was issued."""

    def __init__(self, scope: str, *, for_ever: bool = False) -> None:
        self.scope = scope
        self.is_granted = False
        self.for_ever = for_ever
        self._inner = Modern()

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.request.is_a("tools/call") and (self.for_ever or not self.is_granted):
            challenge = f'Bearer error="insufficient_scope", scope="{self.scope}"'
            await exchange.reply(403, b"", {"WWW-Authenticate": challenge})
        else:
            await self._inner(exchange)


async def test_a_call_that_needs_another_scope_asks_for_all_scopes() -> None:
    inner, prompt = NeedsScope("write"), AgreeablePrompt()
    async with protected(inner) as (issuer, server):
        issuer.accepted = {"access-0"}

        async def allow(url: str) -> dict[str, str]:
            inner.is_granted = True
            return dict(await AgreeablePrompt.authorize(prompt, url))

        prompt.authorize = allow
        async with connected(server.url, await make_auth(stored_sign_in(server.url), prompt=prompt)) as endpoint:
            assert await call(endpoint, "hi") == "hi"
        assert [asked["scope"] for asked in prompt.asked] == ["read write"]


async def test_a_scope_that_was_granted_and_is_not_enough_is_not_asked_for_again() -> None:
    prompt = AgreeablePrompt()
    async with protected(NeedsScope("write", for_ever=True)) as (issuer, server):
        issuer.accepted = {"access-0"}
        async with connected(server.url, await make_auth(stored_sign_in(server.url), prompt=prompt)) as endpoint:
            for _ in range(3):
                with pytest.raises(ProtocolFault, match="'write'"):
                    await call(endpoint, "hi")
            assert len(await endpoint.list_tools()) == 3, "other requests go on"
        assert len(prompt.asked) == 1


async def test_a_server_that_asks_for_ever_more_scopes_is_stopped() -> None:
    prompt = AgreeablePrompt()
    inner = NeedsScope("a", for_ever=True)
    async with protected(inner) as (issuer, server):
        issuer.accepted = {"access-0"}
        async with connected(server.url, await make_auth(stored_sign_in(server.url), prompt=prompt)) as endpoint:
            for scope in "abcdefgh":
                inner.scope = scope
                with pytest.raises(ProtocolFault):
                    await call(endpoint, "hi")
        assert len(prompt.asked) == 3


async def test_without_a_person_the_next_sign_in_asks_for_the_scope() -> None:
    async with protected(NeedsScope("write")) as (issuer, server):
        issuer.accepted = {"access-0"}
        auth = await make_auth(stored_sign_in(server.url))
        async with connected(server.url, auth) as endpoint:
            for _ in range(2):
                with pytest.raises(ProtocolFault, match="indus mcp login") as raised:
                    await call(endpoint, "hi")
                assert raised.value.detail.reason == "sign_in"
        stored = await auth.store.load(server.url)
        assert stored is not None
        assert stored.wanted_scopes == ("write",)
        prompt = AgreeablePrompt()
        await AuthDriver(server.url, replace(auth, prompt=prompt), name="s").sign_in()
        assert prompt.asked[0]["scope"] == "read write"


async def test_scopes_of_the_settings_are_not_widened() -> None:
    prompt = AgreeablePrompt()
    async with protected(NeedsScope("write")) as (issuer, server):
        issuer.accepted = {"access-0"}
        auth = await make_auth(stored_sign_in(server.url), prompt=prompt, settings=AuthSettings(scopes=("read",)))
        async with connected(server.url, auth) as endpoint:
            with pytest.raises(ProtocolFault, match="add it to `scopes`"):
                await call(endpoint, "hi")
    assert prompt.asked == []


# -- secrets ------------------------------------------------------------------------------------


async def test_no_token_appears_in_a_fault_or_a_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with protected(Modern()) as (issuer, server):
        issuer.token_status, issuer.token_answer = 400, {"error": "nope", "error_description": "refresh-s3cret"}
        auth = await make_auth(stored_sign_in(server.url, "access-s3cret", life_s=-1, refresh="refresh-s3cret"))
        with pytest.raises(ProtocolFault) as raised:
            async with connected(server.url, auth):
                pass
        chain: BaseException | None = raised.value
        while chain is not None:
            assert "s3cret" not in f"{chain} {chain!r}"
            chain = chain.__cause__
    assert "s3cret" not in caplog.text
    assert "s3cret" not in repr(auth)


# -- headers of a command -----------------------------------------------------------------------


def header_command(folder: Path, *lines: str) -> tuple[str, ...]:
    """Write a command that prints one line with each run, the last one for ever."""
    program = (
        "import os,sys; f=sys.argv[1]; n=int(open(f).read()) if os.path.exists(f) else 0; "
        "open(f,'w').write(str(n+1)); a=sys.argv[2:]; print(a[min(n,len(a)-1)])"
    )
    return (sys.executable, "-S", "-c", program, str(folder / "runs"), *lines)


@pytest.mark.process
async def test_a_header_command_runs_once_and_again_after_a_401(tmp_path: Path) -> None:
    lines = [json.dumps({"Authorization": f"Bearer access-{number}"}) for number in (0, 1)]
    settings = AuthSettings(header_command=header_command(tmp_path, *lines))
    async with protected(Gate(5)) as (issuer, server):
        issuer.accepted = {"access-0"}
        async with connected(server.url, await make_auth(settings=settings)) as endpoint:
            assert len(await endpoint.list_tools()) == 3
            assert (tmp_path / "runs").read_text() == "1"
            issuer.accepted = {"access-1"}
            assert await call_together(endpoint, 5) == [*"01234"]
            assert (tmp_path / "runs").read_text() == "2"
            issuer.accepted = set()
            with pytest.raises(ProtocolFault) as raised:
                await call(endpoint, "refused")
            assert raised.value.detail.reason == "auth"
            assert (tmp_path / "runs").read_text() == "3", "headers of a new run are refused for good"


@pytest.mark.process
@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["s3cret"], "printed no JSON object"),
        (['{"Authorization": 7}'], "printed no JSON object"),
        (['{"A b": "s3cret"}'], "printed no JSON object"),
        (['{"A": "s3cret\\nB: x"}'], "printed no JSON object"),
    ],
)
async def test_a_header_command_that_prints_something_else_is_named(
    tmp_path: Path, lines: list[str], problem: str
) -> None:
    settings = AuthSettings(header_command=header_command(tmp_path, *lines))
    async with protected(Modern()) as (_, server):
        with pytest.raises(ProtocolFault, match=problem) as raised:
            async with connected(server.url, await make_auth(settings=settings)):
                pass
    assert "s3cret" not in str(raised.value)


async def test_an_absent_header_command_is_named() -> None:
    settings = AuthSettings(header_command=("/nonexistent/helper",))
    async with protected(Modern()) as (_, server):
        with pytest.raises(ProtocolFault, match="cannot be started"):
            async with connected(server.url, await make_auth(settings=settings)):
                pass
