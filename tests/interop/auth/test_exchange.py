"""Calls in the name of clients: which token a request carries, and what happens when it is refused."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import anyio
import anyio.lowlevel
import pytest
from tests.support.clock import ManualClock

from indusagi.interop.auth.authorizer import TokenExchangeAuthorizer
from indusagi.interop.auth.contract import (
    AuthFault,
    AuthSettings,
    ClientRegistration,
    CredentialKey,
    IssuerEndpoints,
    Refusal,
    ServerAuth,
    StoredCredentials,
    TokenSet,
)
from indusagi.interop.auth.storage import MemoryCredentialStore
from indusagi.runtime.calls import SubjectToken, acting_subject

if TYPE_CHECKING:
    from collections.abc import Generator

    from indusagi.interop.auth.driver import AuthDriver

ISSUER = "https://login.example"
URL = "https://server.example/mcp"
ALICE, BOB = SubjectToken("token of alice", ISSUER), SubjectToken("token of bob", ISSUER)
REFUSED = Refusal(401, ["Bearer"], "")


class Driver:
    """A driver whose issuer numbers its tokens."""

    def __init__(self, issuer: str = ISSUER, life_s: int | None = 600) -> None:
        settings = AuthSettings(grant="token_exchange", issuer=issuer, client_id="gateway", client_secret="s")
        self.auth = ServerAuth(settings=settings, store=MemoryCredentialStore())
        self.clock = ManualClock(1_000_000)
        self.resource = self.server_url = URL
        self.life_s = life_s
        self.exchanged: list[str] = []
        self.sign_ins = 0
        self.found_issuer = issuer

    async def load(self) -> StoredCredentials | None:
        return await self.auth.store.load(URL, "gateway")

    async def sign_in(self, _: object = None) -> StoredCredentials:
        self.sign_ins += 1
        stored = StoredCredentials(
            key=CredentialKey(self.found_issuer, URL, "gateway"),
            registration=ClientRegistration(client_id="gateway"),
            endpoints=IssuerEndpoints(token_endpoint=f"{self.found_issuer}/token"),
            tokens=TokenSet(access_token="own"),
        )
        await self.auth.store.save(stored)
        return stored

    async def exchange(self, stored: StoredCredentials, subject: str) -> TokenSet:
        await anyio.lowlevel.checkpoint()
        self.exchanged.append(subject)
        now_ms = self.clock.now_ms()
        ends_ms = None if self.life_s is None else now_ms + self.life_s * 1000
        return TokenSet(access_token=f"{subject} {len(self.exchanged)}", obtained_at_ms=now_ms, expires_at_ms=ends_ms)


def authorizer_of(driver: Driver) -> TokenExchangeAuthorizer:
    return TokenExchangeAuthorizer(cast("AuthDriver", driver))


@contextmanager
def acting(subject: SubjectToken | None) -> Generator[None]:
    token = acting_subject.set(subject)
    try:
        yield
    finally:
        acting_subject.reset(token)


async def sent_for(authorizer: TokenExchangeAuthorizer, subject: SubjectToken | None) -> dict[str, str]:
    with acting(subject):
        return await authorizer.build_headers("POST", URL)


async def test_each_client_has_its_own_token_and_no_client_has_ours() -> None:
    driver = Driver()
    authorizer = authorizer_of(driver)
    assert await sent_for(authorizer, None) == {}
    sent = [(await sent_for(authorizer, subject))["authorization"] for subject in (ALICE, BOB, ALICE)]
    assert sent == ["Bearer token of alice 1", "Bearer token of bob 2", "Bearer token of alice 1"]
    assert driver.sign_ins == 1
    await authorizer.close()


async def test_requests_of_one_client_at_once_share_one_exchange() -> None:
    driver = Driver()
    authorizer = authorizer_of(driver)
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(sent_for, authorizer, ALICE)
    assert driver.exchanged == [ALICE.token]


@pytest.mark.parametrize(("life_s", "later_s"), [(600, 575), (None, 301)])
async def test_a_token_is_exchanged_again_before_it_ends(life_s: int | None, later_s: int) -> None:
    driver = Driver(life_s=life_s)
    authorizer = authorizer_of(driver)
    await sent_for(authorizer, ALICE)
    driver.clock.advance(1_000)
    await sent_for(authorizer, ALICE)
    driver.clock.advance((later_s - 1) * 1_000)
    assert (await sent_for(authorizer, ALICE))["authorization"] == "Bearer token of alice 2"


async def test_a_refused_token_is_exchanged_again_once_if_it_was_accepted_before() -> None:
    authorizer = authorizer_of(Driver())
    first = await sent_for(authorizer, ALICE)
    with acting(ALICE):
        authorizer.accept(first, "")
        assert await authorizer.handle_refusal(first, REFUSED)
        second = await authorizer.build_headers("POST", URL)
        assert second != first
        assert await authorizer.handle_refusal(first, REFUSED), "a late refusal of the old token"
        assert not await authorizer.handle_refusal(second, Refusal(403, [], ""))
        with pytest.raises(AuthFault, match="refuses the token"):
            await authorizer.handle_refusal(second, REFUSED)


async def test_a_token_is_shown_to_its_own_issuer_alone() -> None:
    driver = Driver(issuer="https://other.example")
    with pytest.raises(AuthFault, match="must name the issuer"):
        await sent_for(authorizer_of(driver), ALICE)
    driver = Driver()
    driver.found_issuer = "https://evil.example"
    with pytest.raises(AuthFault, match="another issuer"):
        await sent_for(authorizer_of(driver), ALICE)
    assert driver.exchanged == []


def test_a_token_is_not_shown_by_its_holder() -> None:
    assert ALICE.token not in repr(ALICE)
