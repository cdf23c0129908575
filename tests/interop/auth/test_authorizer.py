"""The authorizer: who joins which recovery, and what stays of a failed one."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.clock import ManualClock
from tests.support.http_behaviours import Modern
from tests.support.http_peer import http_server
from tests.support.opened import fleet_of
from tests.support.protected import AgreeablePrompt, Protected, make_auth, stored_sign_in
from tests.support.servers import STEADY
from tests.support.waiting import until

from indusagi.core.time import now_ms
from indusagi.interop.auth.authorizer import OAuthAuthorizer
from indusagi.interop.auth.contract import AuthFault, AuthSettings, Refusal, SignInRequired
from indusagi.interop.auth.driver import AuthDriver
from indusagi.interop.auth.token_endpoint import ProofKey
from indusagi.interop.protocol_bridge.contract import EndpointPhase, StreamableHttpServerConfig

if TYPE_CHECKING:
    from indusagi.interop.auth.contract import ServerAuth, StoredCredentials

REFUSED = Refusal(401, ("Bearer",))
NOWHERE = "http://127.0.0.1:1/mcp"


def authorizer_of(url: str, auth: ServerAuth, clock: ManualClock | None = None) -> OAuthAuthorizer:
    return OAuthAuthorizer(AuthDriver(url, auth, name="s", clock=clock or ManualClock(now_ms())))


async def test_a_permanent_failure_is_not_tried_again_by_this_connection() -> None:
    issuer = Protected(Modern())
    issuer.token_status, issuer.token_answer = 400, {"error": "invalid_grant"}
    settings = AuthSettings(grant="jwt_bearer", client_id="me", assertion="a.b.c")
    async with http_server(issuer) as server:
        authorizer = authorizer_of(server.url, await make_auth(settings=settings))
        assert await authorizer.build_headers("POST", server.url) == {}
        with pytest.raises(AuthFault, match="invalid_grant"):
            await authorizer.handle_refusal({}, REFUSED)
        with pytest.raises(AuthFault, match="invalid_grant"):
            await authorizer.build_headers("POST", server.url)
        assert len(issuer.forms) == 1


async def test_a_missing_person_is_looked_for_again() -> None:
    authorizer = authorizer_of(NOWHERE, await make_auth())
    for _ in range(2):
        assert await authorizer.build_headers("POST", NOWHERE) == {}
        with pytest.raises(SignInRequired):
            await authorizer.handle_refusal({}, REFUSED)


async def test_a_token_that_ends_soon_is_used_while_the_issuer_is_away() -> None:
    stored = stored_sign_in(NOWHERE, life_s=20)
    authorizer = authorizer_of(NOWHERE, await make_auth(stored))
    assert (await authorizer.build_headers("POST", NOWHERE))["authorization"] == "Bearer access-0"


async def test_a_token_that_has_ended_is_not_used() -> None:
    authorizer = authorizer_of(NOWHERE, await make_auth(stored_sign_in(NOWHERE, life_s=-1)))
    with pytest.raises(AuthFault) as raised:
        await authorizer.build_headers("POST", NOWHERE)
    assert raised.value.is_transient


async def test_a_token_of_another_process_is_taken_instead_of_a_refresh() -> None:
    stored = stored_sign_in(NOWHERE)
    auth = await make_auth(stored)
    authorizer = authorizer_of(NOWHERE, auth)
    sent = await authorizer.build_headers("POST", NOWHERE)
    await auth.store.save(stored_sign_in(NOWHERE, "access-9"))
    assert await authorizer.handle_refusal(sent, REFUSED) is True
    assert (await authorizer.build_headers("POST", NOWHERE))["authorization"] == "Bearer access-9"
    assert await authorizer.handle_refusal(sent, REFUSED) is True, "a late refusal of the old token"


async def test_an_expired_token_of_another_process_is_refreshed() -> None:
    issuer = Protected(Modern())
    async with http_server(issuer) as server:
        auth = await make_auth(stored_sign_in(server.url))
        authorizer = authorizer_of(server.url, auth)
        sent = await authorizer.build_headers("POST", server.url)
        await auth.store.save(stored_sign_in(server.url, "access-9", life_s=-1, refresh="refresh-9"))
        assert await authorizer.handle_refusal(sent, REFUSED) is True
        assert [form["refresh_token"] for form in issuer.forms] == ["refresh-9"]


async def test_a_passing_failure_is_tried_again_by_the_next_request() -> None:
    issuer = Protected(Modern())
    issuer.token_status = 503
    async with http_server(issuer) as server:
        authorizer = authorizer_of(server.url, await make_auth(stored_sign_in(server.url)))
        sent = await authorizer.build_headers("POST", server.url)
        with pytest.raises(AuthFault):
            await authorizer.handle_refusal(sent, REFUSED)
        issuer.token_status = 200
        assert await authorizer.build_headers("POST", server.url) == sent
        assert await authorizer.handle_refusal(sent, REFUSED) is True


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(403, ("Bearer",)),
        Refusal(403, ('Bearer error="insufficient_scope"',)),
        Refusal(403, ('Bearer scope="x"',)),
        Refusal(403),
        Refusal(401, ("Basic realm=x",)),
    ],
)
async def test_a_refusal_that_no_token_would_change_is_left_to_the_caller(refusal: Refusal) -> None:
    authorizer = authorizer_of(NOWHERE, await make_auth(stored_sign_in(NOWHERE)))
    sent = await authorizer.build_headers("POST", NOWHERE)
    assert await authorizer.handle_refusal(sent, refusal) is False


async def test_a_request_without_a_challenge_is_signed_in_for_as_well() -> None:
    issuer = Protected(Modern())
    async with http_server(issuer) as server:
        authorizer = authorizer_of(server.url, await make_auth(prompt=AgreeablePrompt()))
        sent = await authorizer.build_headers("POST", server.url)
        assert await authorizer.handle_refusal(sent, Refusal(401)) is True
        assert (await authorizer.build_headers("POST", server.url))["authorization"] == "Bearer access-1"


class StuckPrompt(AgreeablePrompt):
    """A person who takes the time that the test gives."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def authorize(self, url: str) -> dict[str, str]:
        self.is_asked.set()
        await self.may_answer.wait()
        return dict(await super().authorize(url))


async def test_a_refused_token_waits_for_a_step_up_and_uses_its_token() -> None:
    issuer, prompt = Protected(Modern()), StuckPrompt()
    async with http_server(issuer) as server:
        authorizer = authorizer_of(server.url, await make_auth(stored_sign_in(server.url, refresh=None), prompt=prompt))
        sent = await authorizer.build_headers("POST", server.url)
        wider = Refusal(403, ('Bearer error="insufficient_scope", scope="write"',))
        async with asyncio.TaskGroup() as tasks:
            step_up = tasks.create_task(authorizer.handle_refusal(sent, wider))
            await prompt.is_asked.wait()
            renewal = tasks.create_task(authorizer.handle_refusal(sent, REFUSED))
            prompt.may_answer.set()
        assert step_up.result() is renewal.result() is True
        assert len(prompt.asked) == 1


async def test_closing_ends_a_sign_in_that_waits_for_a_person() -> None:
    prompt = StuckPrompt()
    async with http_server(Protected(Modern())) as server:
        authorizer = authorizer_of(server.url, await make_auth(prompt=prompt))

        async def refused() -> None:
            with pytest.raises(AuthFault, match="signing in was stopped"):
                await authorizer.handle_refusal({}, REFUSED)

        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(refused())
            await prompt.is_asked.wait()
            await authorizer.close()
        assert waiting.done()
    assert prompt.asked == []


async def test_a_defect_of_a_store_is_a_fault_of_the_request() -> None:
    auth = await make_auth(stored_sign_in(NOWHERE))
    authorizer = authorizer_of(NOWHERE, auth)
    sent = await authorizer.build_headers("POST", NOWHERE)

    async def fail(resource: str, client: str = "") -> StoredCredentials | None:
        raise RuntimeError("a defect")

    auth.store.load = fail
    with pytest.raises(AuthFault, match="a defect"):
        await authorizer.handle_refusal(sent, REFUSED)


async def test_wanted_scopes_never_replace_the_tokens_of_another_process() -> None:
    stored = stored_sign_in(NOWHERE)
    auth = await make_auth(stored)
    driver = AuthDriver(NOWHERE, auth, name="s")
    newer = stored_sign_in(NOWHERE, "access-9", refresh="refresh-9")
    await auth.store.save(newer)
    await driver.want_scopes(stored, ("write",))
    await driver.want_scopes(stored, ("write",))
    assert await auth.store.find(stored.key) == replace(newer, wanted_scopes=("write",))
    await driver.want_scopes(None, ("write",))


# -- refusals, one by one ---------------------------------------------------------------------

NONCE = 'DPoP error="use_dpop_nonce"'


def read_claims(proof: str) -> dict[str, object]:
    """Read the claims of a proof."""
    body = proof.split(".")[1]
    claims: dict[str, object] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


async def test_a_nonce_is_taken_once_and_again_before_the_token_was_accepted() -> None:
    key = ProofKey()
    stored = stored_sign_in(NOWHERE)
    assert stored.tokens is not None
    stored = replace(stored, tokens=replace(stored.tokens, token_type="DPoP"), dpop_key=key.to_json())
    authorizer = authorizer_of(NOWHERE, await make_auth(stored))
    sent = await authorizer.build_headers("POST", NOWHERE)
    assert set(sent) == {"authorization", "dpop"}
    assert sent["authorization"] == "DPoP access-0"
    assert await authorizer.handle_refusal(sent, Refusal(401, (NONCE,), "n1")) is True
    assert await authorizer.handle_refusal(sent, Refusal(401, (NONCE,), "n1")) is True, "the token is not yet accepted"
    authorizer.accept({"authorization": "DPoP other"}, "")
    assert await authorizer.handle_refusal(sent, Refusal(401, (NONCE,), "n1")) is True
    authorizer.accept(sent, "n2")
    assert await authorizer.handle_refusal(sent, Refusal(401, (NONCE,), "n2")) is False, "this nonce was sent already"
    assert await authorizer.handle_refusal(sent, Refusal(401, (NONCE,), "n3")) is True
    assert read_claims((await authorizer.build_headers("POST", NOWHERE))["dpop"])["nonce"] == "n3"
    authorizer.accept({}, "")
    assert read_claims((await authorizer.build_headers("POST", NOWHERE))["dpop"])["nonce"] == "n3"


async def test_a_token_without_a_key_has_no_proof() -> None:
    authorizer = authorizer_of(NOWHERE, await make_auth(stored_sign_in(NOWHERE)))
    assert await authorizer.build_headers("POST", NOWHERE) == {"authorization": "Bearer access-0"}
    authorizer.accept({"authorization": "Bearer access-0"}, "n1")


@pytest.mark.parametrize(("life_s", "is_refreshed"), [(29, True), (31, False)])
async def test_a_token_is_refreshed_half_a_minute_before_its_end(life_s: int, *, is_refreshed: bool) -> None:
    issuer = Protected(Modern())
    async with http_server(issuer) as server:
        clock = ManualClock(now_ms())
        stored = stored_sign_in(server.url)
        assert stored.tokens is not None
        stored = replace(stored, tokens=replace(stored.tokens, expires_at_ms=clock.now_ms() + 1_000 * life_s))
        authorizer = authorizer_of(server.url, await make_auth(stored), clock)
        await authorizer.build_headers("POST", server.url)
        assert bool(issuer.forms) is is_refreshed


async def test_finding_f4_a_recovery_that_is_stopped_before_it_begins_leaves_nobody_waiting() -> None:
    authorizer = authorizer_of(NOWHERE, await make_auth())
    await authorizer.build_headers("POST", NOWHERE)

    async def refused() -> AuthFault:
        with pytest.raises(AuthFault) as caught:
            await authorizer.handle_refusal({}, REFUSED)
        return caught.value

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(refused()) for _ in range(2)]
        tasks.create_task(authorizer.close())
    assert all(task.result().is_transient for task in waiting)
    assert isinstance(await refused(), SignInRequired)  # the next one begins again


async def test_a_server_whose_keyring_is_locked_for_a_while_comes_up_by_itself() -> None:
    async with http_server(Protected(Modern())) as server:
        auth = await make_auth(stored_sign_in(server.url))
        load, left = auth.store.load, 3

        async def locked(resource: str, client: str = "") -> StoredCredentials | None:
            nonlocal left
            if left:
                left -= 1
                raise AuthFault("the keyring is locked", is_transient=True)
            return await load(resource, client)

        auth.store.load = locked
        config = StreamableHttpServerConfig("s", server.url, auth=auth, limits=STEADY)
        async with fleet_of(config) as fleet:
            await until(lambda: fleet.status()["s"].phase is EndpointPhase.READY)
    assert left == 0
