"""Redirects of issuers to the page: each ends one sign-in, in the browser that started it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, urlsplit

import pytest

from indusagi.interop.auth.contract import AuthFault, AuthSettings
from induscode.gateway.page import redirects
from induscode.gateway.page.redirects import BrowserSignIn, BrowserSignIns

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host.http.request import HttpRequest

pytestmark = pytest.mark.anyio
OURS, THEIRS = b"o" * 32, b"t" * 32


def request(query: str) -> HttpRequest:
    return cast("HttpRequest", SimpleNamespace(path="/ui/callback", query=query))


class Issuer:
    """Receives what its redirects bring."""

    def __init__(self) -> None:
        self.sign_ins = BrowserSignIns("https://tools.example/ui/callback")
        self.received: list[Any] = []
        self.count = 0

    async def run(self, signing: BrowserSignIn) -> None:
        self.count += 1
        async with signing.open_redirect(AuthSettings(), ()) as receiver:
            assert receiver.redirect_uri == "https://tools.example/ui/callback"
            url = f"https://issuer.example/authorize?state=state{self.count}"
            self.received.append(dict(await receiver.authorize(url)))

    async def start(self, browser: bytes = OURS) -> str:
        signing = await self.sign_ins.start(browser, "/ui/sign-ins", self.run)
        return dict(parse_qsl(urlsplit(signing.url).query))["state"]


async def test_a_redirect_counts_once_and_in_its_own_browser() -> None:
    issuer = Issuer()
    state, other = await issuer.start(), await issuer.start(THEIRS)
    with pytest.raises(AuthFault, match="another browser, or by someone else"):
        await issuer.sign_ins.finish(request(f"code=stolen&state={state}"), [THEIRS])
    with pytest.raises(AuthFault, match="another browser, or by someone else"):
        await issuer.sign_ins.finish(request(f"code=stolen&state={state}"), [])
    # Nobody has disturbed the one who started it.
    done = await issuer.sign_ins.finish(request(f"code=ours&state={state}"), [THEIRS, OURS])
    assert (done.target, done.problem, issuer.received) == ("/ui/sign-ins", "", [{"code": "ours", "state": state}])
    with pytest.raises(AuthFault, match="has ended, or was never started"):
        await issuer.sign_ins.finish(request(f"code=ours&state={state}"), [OURS])
    await issuer.sign_ins.aclose()
    with pytest.raises(AuthFault):
        await issuer.sign_ins.finish(request(f"code=late&state={other}"), [THEIRS])


@pytest.mark.parametrize(
    "query", ["", "code=1", "code=1&state=guess", "state={0}", "code=1&state={0}&state={0}", "code=1&state={0}x"]
)
async def test_another_redirect_ends_no_sign_in(query: str) -> None:
    issuer = Issuer()
    state = await issuer.start()
    with pytest.raises(AuthFault, match="has ended, or was never started"):
        await issuer.sign_ins.finish(request(query.format(state)), [OURS])
    await issuer.sign_ins.finish(request(f"error=access_denied&state={state}"), [OURS])
    assert issuer.received == [{"error": "access_denied", "state": state}]


async def test_a_sign_in_ends_at_its_deadline_and_the_oldest_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = Issuer()
    monkeypatch.setattr(redirects, "_MOST", 1)
    first, second = await issuer.start(), await issuer.start()
    with pytest.raises(AuthFault, match="has ended"):
        await issuer.sign_ins.finish(request(f"code=1&state={first}"), [OURS])
    await issuer.sign_ins.finish(request(f"code=1&state={second}"), [OURS])
    monkeypatch.setattr(redirects, "SIGN_IN_WAIT_S", 0.0)
    late = await issuer.sign_ins.start(OURS, "", issuer.run)
    await late.task.wait()
    assert "took too long" in late.problem
    with pytest.raises(AuthFault, match="has ended"):
        await issuer.sign_ins.finish(request(f"code=1&state={late.state}"), [OURS])


async def test_a_sign_in_that_fails_before_its_page_says_why_and_none_has_a_device_code() -> None:
    async def fail(_: BrowserSignIn) -> None:
        raise AuthFault("the issuer has no page")

    async def enter_code(signing: BrowserSignIn) -> None:
        await signing.show_device_code(cast("Any", None))

    sign_ins = BrowserSignIns("https://tools.example/ui/callback")
    for run, problem in ((fail, "the issuer has no page"), (enter_code, "not possible here")):
        with pytest.raises(AuthFault, match=problem):
            await sign_ins.start(OURS, "", run)
    await asyncio.sleep(0)


async def test_a_redirect_counts_once_also_while_its_code_is_exchanged() -> None:
    sign_ins, exchanged = BrowserSignIns("https://tools.example/ui/callback"), asyncio.Event()

    async def run(signing: BrowserSignIn) -> None:
        await signing.authorize("https://issuer.example/authorize?state=one")
        await exchanged.wait()

    await sign_ins.start(OURS, "", run)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(sign_ins.finish(request("code=1&state=one"), [OURS]))
        await asyncio.sleep(0)
        with pytest.raises(AuthFault, match="has ended, or was never started"):
            await sign_ins.finish(request("code=1&state=one"), [OURS])
        exchanged.set()
    assert first.result().problem == ""
