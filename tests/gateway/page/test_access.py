"""Sign-ins of browsers: keys, cookies, their end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
from induscode.gateway.page.access import COOKIE, PageAccess

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host.http.request import HttpRequest


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def request(cookie: str) -> HttpRequest:
    return cast("HttpRequest", SimpleNamespace(headers={"cookie": cookie}))


def test_a_cookie_finds_its_user_until_it_is_idle_for_too_long() -> None:
    clock = Clock()
    access = PageAccess(clock=clock)
    cookie = access.open().partition(";")[0]
    found = access.find(request(f"other=1; {cookie}"))
    assert found is not None
    clock.now = 11 * 3600.0
    again = access.find(request(cookie))
    assert again is not None
    assert again.form_key == found.form_key
    clock.now += 13 * 3600.0
    assert access.find(request(cookie)) is None


@pytest.mark.parametrize("cookie", ["", f"{COOKIE}=", f"{COOKIE}=guess", "\x00", "a=b;;;=", f"{COOKIE}"])
def test_another_cookie_finds_no_user(cookie: str) -> None:
    access = PageAccess()
    access.open()
    assert access.find(request(cookie)) is None


def test_signing_out_ends_the_sign_in() -> None:
    access = PageAccess()
    cookie = access.open().partition(";")[0]
    access.close(request(cookie))
    assert access.find(request(cookie)) is None


def test_the_oldest_sign_in_makes_place() -> None:
    access = PageAccess()
    first = access.open().partition(";")[0]
    second = access.open().partition(";")[0]
    access.find(request(first))
    for _ in range(1_023):
        access.open()
    assert access.find(request(first)) is not None
    assert access.find(request(second)) is None


def test_an_absent_token_is_not_the_empty_text() -> None:
    access = PageAccess()
    assert not access.is_secret("")
    access.token = "t" * 32
    assert access.is_secret("t" * 32)
    assert access.is_secret(access.key)
    assert not access.is_key("t" * 32)


def test_a_principal_is_signed_out_after_an_hour_and_when_it_is_locked_out() -> None:
    clock = Clock()
    ended: set[str] = set()
    access = PageAccess(lambda identity: "locked out" if identity.principal in ended else "", clock=clock)
    access.is_encrypted = True
    alice, bob = (ClientIdentity(principal=name, user=name) for name in ("alice", "bob"))
    cookies = [access.open(one) for one in (alice, alice, bob)]
    assert {"HttpOnly", "SameSite=Lax", "Path=/ui", "Secure"} <= set(cookies[0].split("; "))
    requests = [request(cookie.partition(";")[0]) for cookie in cookies]
    ended.add("bob")
    clock.now = 3599.0
    found = [access.find(one) for one in requests]
    assert [None if one is None else one.identity for one in found] == [alice, alice, None]
    clock.now = 3601.0
    assert access.find(requests[0]) is None


def test_cookies_are_kept_from_scripts_and_other_sites() -> None:
    cookie = PageAccess().open()
    assert {"HttpOnly", "SameSite=Strict", "Path=/ui"} <= set(cookie.split("; "))
