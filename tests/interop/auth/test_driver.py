"""The driver: which requests leave this machine, one refresh for all, and signing out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey
from tests.support.http_behaviours import Modern
from tests.support.http_peer import http_server
from tests.support.protected import AgreeablePrompt, Protected, make_auth, stored_sign_in

from indusagi.interop.auth import driver as driver_module
from indusagi.interop.auth.authorizer import OAuthAuthorizer
from indusagi.interop.auth.contract import AuthFault, AuthSettings, Refusal, SignInRequired
from indusagi.interop.auth.driver import AuthDriver
from indusagi.interop.auth.token_endpoint import ProofKey

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.http_peer import Exchange

    from indusagi.interop.auth.contract import DeviceCode, ServerAuth


def make_driver(url: str, auth: ServerAuth) -> AuthDriver:
    return AuthDriver(url, auth, name="s")


# -- requests -----------------------------------------------------------------------------------


async def test_a_server_on_the_open_web_cannot_name_a_private_issuer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_public(url: str) -> bool:
        return False

    monkeypatch.setattr(driver_module, "_is_private", is_public)
    async with http_server(Modern()) as inside:
        driver = make_driver("https://mcp.example/mcp", await make_auth())
        for url in (inside.url, inside.url.replace("127.0.0.1", "localhost"), "http://169.254.169.254/latest"):
            with pytest.raises(AuthFault, match="private address"):
                await driver.send(url, {})
        assert inside.requests == []
        named = AuthSettings(issuer=inside.url)
        driver = make_driver("https://mcp.example/mcp", await make_auth(settings=named))
        assert (await driver.send(inside.url, {})).status == 405, "the user has named it"


async def test_a_private_server_may_have_a_private_issuer_but_none_of_a_cloud() -> None:
    async with http_server(Modern()) as inside:
        driver = make_driver("http://127.0.0.1:1/mcp", await make_auth())
        assert (await driver.send(inside.url, {})).status == 405
        with pytest.raises(AuthFault):
            await driver.send("http://169.254.169.254/latest", {})


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_request_with_a_secret_is_never_redirected(status: int) -> None:
    async def redirect(exchange: Exchange) -> None:
        await exchange.reply(status, b"", {"Location": "/elsewhere"})

    async with http_server(redirect) as server:
        driver = make_driver(server.url, await make_auth())
        reply = await driver.send(server.url, {}, b"refresh_token=s")
        assert not reply.is_success
        assert [request.path for request in server.requests] == ["/mcp"]


async def test_metadata_is_redirected_within_its_origin_alone() -> None:
    async with http_server(Modern()) as other:

        async def redirect(exchange: Exchange) -> None:
            if exchange.request.path == "/here":
                await exchange.reply_json({"found": True})
            else:
                target = "/here" if exchange.request.path == "/near" else other.url
                await exchange.reply(302, b"", {"Location": target})

        async with http_server(redirect) as server:
            driver = make_driver(server.url, await make_auth())
            origin = server.url.rpartition("/")[0]
            near, far = [await driver.send(f"{origin}/{path}", {}) for path in ("near", "far")]
            assert near.parse_object() == {"found": True}
            assert far.status == 302
        assert other.requests == []


async def test_an_issuer_that_cannot_be_reached_is_a_passing_failure() -> None:
    driver = make_driver("http://127.0.0.1:1/mcp", await make_auth())
    reply = await driver.send("http://127.0.0.1:1/token", {})
    assert reply.is_transient
    assert reply.problem


async def test_an_endless_document_is_cut() -> None:
    async def flood(exchange: Exchange) -> None:
        await exchange.reply(200, b" " * (2 * 1024 * 1024))

    async with http_server(flood) as server:
        reply = await make_driver(server.url, await make_auth()).send(server.url, {})
        assert len(reply.body) <= 1024 * 1024


# -- one refresh --------------------------------------------------------------------------------


async def test_two_owners_of_one_store_refresh_once() -> None:
    issuer = Protected(Modern())
    async with http_server(issuer) as server:
        stored = stored_sign_in(server.url)
        auth = await make_auth(stored)
        async with asyncio.TaskGroup() as tasks:
            refreshing = [tasks.create_task(make_driver(server.url, auth).refresh(stored)) for _ in range(8)]
        tokens = {task.result().tokens for task in refreshing}
        assert len(tokens) == 1
        assert len(issuer.forms) == 1


async def test_a_newer_token_that_has_expired_is_refreshed_too() -> None:
    issuer = Protected(Modern())
    async with http_server(issuer) as server:
        auth = await make_auth(stored_sign_in(server.url, "access-9", life_s=-1))
        new = await make_driver(server.url, auth).refresh(stored_sign_in(server.url))
        assert new.tokens is not None
        assert new.tokens.access_token == "access-1"


async def test_a_refresh_whose_caller_is_cancelled_is_saved() -> None:
    issuer = Protected(Modern())
    issuer.may_issue.clear()
    async with http_server(issuer) as server:
        stored = stored_sign_in(server.url)
        auth = await make_auth(stored)
        async with asyncio.TaskGroup() as tasks:
            refreshing = tasks.create_task(make_driver(server.url, auth).refresh(stored))
            await issuer.is_asked.wait()
            refreshing.cancel()
            issuer.may_issue.set()
            await asyncio.wait({refreshing})
        assert refreshing.cancelled()
        saved = await auth.store.find(stored.key)
        assert saved is not None
        assert saved.tokens is not None
        assert saved.tokens.access_token == "access-1", "the issuer has replaced the old refresh token"


async def test_a_refresh_after_a_sign_out_elsewhere_needs_a_sign_in() -> None:
    stored = stored_sign_in("http://127.0.0.1:1/mcp")
    with pytest.raises(SignInRequired):
        await make_driver("http://127.0.0.1:1/mcp", await make_auth()).refresh(stored)


async def test_a_registration_that_the_issuer_has_forgotten_needs_a_sign_in() -> None:
    issuer = Protected(Modern())
    issuer.token_status, issuer.token_answer = 401, {"error": "invalid_client"}
    async with http_server(issuer) as server:
        stored = stored_sign_in(server.url)
        with pytest.raises(SignInRequired):
            await make_driver(server.url, await make_auth(stored)).refresh(stored)


async def test_another_refusal_keeps_the_refresh_token() -> None:
    issuer = Protected(Modern())
    issuer.token_status, issuer.token_answer = 400, {"error": "invalid_scope"}
    async with http_server(issuer) as server:
        stored = stored_sign_in(server.url)
        auth = await make_auth(stored)
        with pytest.raises(AuthFault, match="invalid_scope"):
            await make_driver(server.url, auth).refresh(stored)
        assert await auth.store.find(stored.key) == stored


# -- signing out and workloads ------------------------------------------------------------------


async def test_signing_out_revokes_and_deletes() -> None:
    issuer = Protected(Modern())
    revoked: list[str] = []

    async def serve(exchange: Exchange) -> None:
        if exchange.request.path == "/revoke":
            revoked.append(exchange.request.body.decode())
            await exchange.reply(200)
        else:
            await issuer(exchange)

    async with http_server(serve) as server:
        auth = await make_auth(prompt=AgreeablePrompt())
        driver = make_driver(server.url, auth)
        await driver.sign_in()
        assert await driver.sign_out() is True
        assert len(revoked) == 2
        assert await auth.store.list_credentials() == ()


async def test_signing_out_deletes_what_the_issuer_cannot_revoke() -> None:
    stored = stored_sign_in("http://127.0.0.1:1/mcp")
    auth = await make_auth(stored)
    assert await make_driver("http://127.0.0.1:1/mcp", auth).sign_out() is False
    assert await auth.store.list_credentials() == ()


async def test_the_assertion_of_a_workload_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    settings = AuthSettings(grant="jwt_bearer", client_id="me", assertion_file=str(file))
    issuer = Protected(Modern())
    async with http_server(issuer) as server:
        driver = make_driver(server.url, await make_auth(settings=settings))
        with pytest.raises(AuthFault, match="cannot be read"):
            await driver.sign_in()
        for assertion in ("a.b.c", "d.e.f"):
            file.write_text(f"{assertion}\n")
            await driver.sign_in()
        assert [form["assertion"] for form in issuer.forms] == ["a.b.c", "d.e.f"]


async def test_a_device_code_is_shown_and_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    issuer, shown, waits = Protected(Modern()), list[str](), list[float]()

    async def serve(exchange: Exchange) -> None:
        origin = f"http://{exchange.request.headers['host']}"
        if exchange.request.path == "/device":
            code = {
                "device_code": "d",
                "user_code": "AB-CD",
                "verification_uri": f"{origin}/activate",
                "expires_in": 60,
            }
            await exchange.reply_json(code)
        elif exchange.request.path.startswith("/.well-known/oauth-authorization-server"):
            await exchange.reply_json(issuer.describe(origin) | {"device_authorization_endpoint": f"{origin}/device"})
        else:
            await issuer(exchange)

    class Screen(AgreeablePrompt):
        async def show_device_code(self, code: DeviceCode) -> None:
            shown.append(code.user_code)

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(driver_module.anyio, "sleep", wait)
    async with http_server(serve) as server:
        settings = AuthSettings(grant="device_code")
        driver = make_driver(server.url, await make_auth(settings=settings, prompt=Screen()))
        assert (await driver.sign_in()).tokens is not None
        with pytest.raises(SignInRequired):
            await make_driver(server.url, await make_auth(settings=settings)).sign_in()
    assert (shown, waits) == (["AB-CD"], [5])


async def test_the_challenge_of_a_server_is_found_without_credentials() -> None:
    async with http_server(Protected(Modern())) as server:
        challenge = await make_driver(server.url, await make_auth(stored_sign_in(server.url))).find_challenge()
        assert challenge is not None
        assert challenge.scopes == ("read",)
        assert "authorization" not in server.requests[0].headers
    async with http_server(Modern()) as server:
        assert await make_driver(server.url, await make_auth()).find_challenge() is None


# -- DPoP at the server -------------------------------------------------------------------------


async def test_each_request_has_a_proof_for_its_token_and_the_newest_nonce() -> None:
    key = ProofKey()
    url = "http://127.0.0.1:1/mcp"
    stored = stored_sign_in(url, dpop_key=key.to_json())
    assert stored.tokens is not None
    object.__setattr__(stored.tokens, "token_type", "DPoP")
    authorizer = OAuthAuthorizer(make_driver(url, await make_auth(stored)))

    def claims_of(headers: dict[str, str]) -> dict[str, object]:
        public = ECKey.import_key({name: str(value) for name, value in key.to_json().items()})
        return jwt.decode(headers["dpop"], public).claims

    first = await authorizer.build_headers("POST", f"{url}?q=1")
    assert first["authorization"] == "DPoP access-0"
    assert claims_of(first)["htu"] == url
    challenge = Refusal(401, ('DPoP error="use_dpop_nonce"',), "n-1")
    assert await authorizer.handle_refusal(first, challenge) is True
    second = await authorizer.build_headers("POST", url)
    assert claims_of(second)["nonce"] == "n-1"
    assert claims_of(second)["jti"] != claims_of(first)["jti"]
    authorizer.accept(second, "n-2")
    assert claims_of(await authorizer.build_headers("GET", url))["nonce"] == "n-2"
    await authorizer.close()
