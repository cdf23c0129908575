"""Users of `indus serve --auth` sign in to a server one by one; each is called as whoever calls."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import httpx2
import pytest
from anyio import to_thread
from tests.commands.helpers import configured, user_file
from tests.commands.serving import serving
from tests.gateway.test_auth import request, text
from tests.sign_in.test_servers import BrowserPerson, configure
from tests.support.authlib_server import PERSON
from tests.support.broker import broker_process
from tests.support.issuer import Issuer, running_issuer
from tests.support.protected import stored_sign_in
from tests.support.protected_server import Site, protected_site, sign_in_by_http
from tests.support.resources import STAMP
from tests.support.scripts import run
from tests.support.waiting import until

from indusagi.core.app_dirs import state_dir
from indusagi.core.json import compact_json
from indusagi.interop.auth.contract import AuthFault
from indusagi.interop.auth.storage import KEY_VARIABLE
from induscode.gateway.sign_in import UserCredentials, list_stored

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from tests.commands.serving import Gateway

KEY = "a key for the tests of users"
FORM_KEY = re.compile(r'name="form_key" value="([^"]+)"')
OUTSIDE = re.compile(r'<a href="(http[^"]+)" target="_blank"')


class Browser:
    """A person's browser at the page, which the issuer knows under a name."""

    def __init__(self, page: str, issuer: Issuer, person: str) -> None:
        self.page, self.issuer, self.person = page, issuer, person
        self.http = httpx2.AsyncClient(timeout=60, verify=False)

    async def log_in(self, path: str = "/sign-ins") -> httpx2.Response:
        """Sign in to the page at the issuer, and return the page it ends at."""
        start = await self.http.get(f"{self.page}/login", params={"to": path})
        assert start.status_code == 303, start.text
        back = self.issuer.authorize(start.headers["location"], self.person)
        return await self.http.get(back, follow_redirects=True)

    async def start(self, server: str = "crm") -> str:
        """Begin to sign in to a server, and return the address of its issuer."""
        shown = await self.http.get(f"{self.page}/sign-ins")
        answer = await self.send(shown, action="sign-in", server=server)
        found = OUTSIDE.search(answer.text)
        assert found is not None, answer.text
        return found[1].replace("&amp;", "&")

    async def send(self, shown: httpx2.Response, **form: str) -> httpx2.Response:
        found = FORM_KEY.search(shown.text)
        assert found is not None, shown.text
        return await self.http.post(f"{self.page}/sign-ins", data={"form_key": found[1], **form})

    async def sign_in(self, server: str = "crm") -> httpx2.Response:
        """Sign in to a server as this person."""
        back = await sign_in_by_http(await self.start(server), person=self.person)
        return await self.http.get(back, follow_redirects=True)


class World:
    """A gateway, its issuer, and a server that each user signs in to."""

    def __init__(self, url: str, gateway: Gateway, issuer: Issuer, site: Site) -> None:
        self.url, self.gateway, self.issuer, self.site = url, gateway, issuer, site
        self.http = httpx2.AsyncClient(timeout=60, verify=False)
        self.browsers: list[Browser] = []

    def browse(self, person: str) -> Browser:
        self.browsers.append(Browser(self.url.replace("/mcp", "/ui"), self.issuer, person))
        return self.browsers[-1]

    async def aclose(self) -> None:
        for one in (self, *self.browsers):
            await one.http.aclose()

    async def call(self, person: str) -> dict[str, Any]:
        token = self.issuer.mint(self.url, sub=person)
        answer = await request(self.http, self.url, token, "tools/call", name="crm__whoami", arguments={})
        return answer.json()["result"]


@asynccontextmanager
async def opened_world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    async with running_issuer() as issuer, protected_site() as site:
        # The operator's sign-in lists the tools, and calls none.
        await BrowserPerson().sign_in(configure(site.server.url))
        configured(user_file(), {"crm": {"url": site.server.url, "auth": {"per_user": True}}})
        flags = ("--http", "127.0.0.1:0", "--auth", issuer.url, "--profile", "none")
        with serving(*flags, cwd=folder) as gateway:
            await until(lambda: "1 tool from" in gateway.said())
            found = re.search(r"serving at (\S+)", gateway.said())
            assert found is not None
            world = World(found[1], gateway, issuer, site)
            try:
                yield world
            finally:
                await world.aclose()


def read_state(folder: Path | None = None) -> bytes:
    """Read every file below the state directory, or another one."""
    paths = (folder or Path(state_dir())).rglob("*")
    return b"".join(path.read_bytes() for path in paths if path.is_file())


def last(response: httpx2.Response) -> dict[str, Any]:
    """Return the result at the end of a stream."""
    return json.loads(response.text.strip().rpartition("data: ")[2])["result"]


def shown(result: dict[str, Any]) -> str:
    return result["content"][0]["text"]


@pytest.mark.process
async def test_each_call_carries_its_own_users_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened_world(tmp_path, monkeypatch) as world:
        page = world.url.replace("/mcp", "/ui")
        refused = await world.call("alice")
        assert refused["isError"]
        assert f"needs a sign-in: open {page}/sign-ins?server=crm" in shown(refused)
        people = {name: world.browse(name) for name in ("alice", "bob", "Alice")}
        for browser in people.values():
            assert "not signed in" in (await browser.log_in()).text
            done = await browser.sign_in()
            assert "signed in" in done.text
            assert done.url.params["server"] == "crm"
        names = [*people] * 40
        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(world.call(name)) for name in names]
        assert [shown(call.result()) for call in calls] == names
        said = world.gateway.said()
    tokens = [value for issued in world.site.issuer.tokens for value in (issued.access, issued.refresh) if value]
    stored = await to_thread.run_sync(read_state)
    assert len(await to_thread.run_sync(list_stored)) == 3
    assert len(tokens) >= 8
    assert not any(token in said or token.encode() in stored for token in tokens)
    ledger = run("ledger", "export", cwd=tmp_path).stdout
    assert "user alice" in ledger
    assert not any(token in ledger for token in tokens)


@pytest.mark.process
async def test_a_leaver_is_signed_out_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened_world(tmp_path, monkeypatch) as world:
        people = {name: world.browse(name) for name in ("alice", "bob", "carol")}
        for browser in people.values():
            await browser.log_in()
            await browser.sign_in()
        token = {"authorization": f"Bearer {world.issuer.mint(world.url, sub='boss')}"}
        listed = await world.http.get(f"{people['bob'].page}/sign-ins", headers=token)
        assert all(f">{name}<" in listed.text for name in people)
        form = {"form_key": "", "server": "crm", "user": compact_json([world.issuer.url, "dave"]), "action": "sign-out"}
        await people["bob"].log_in()
        # The page signs others out for an operator alone.
        bobs = await people["bob"].http.get(f"{people['bob'].page}/sign-ins")
        assert "carol" not in bobs.text
        refused = await people["bob"].send(
            bobs, action="sign-out", server="crm", user=compact_json([world.issuer.url, "alice"])
        )
        assert refused.status_code == 403
        assert shown(await world.call("alice")) == "alice"
        await world.browse("dave").log_in()
        await world.browsers[-1].sign_in()
        assert shown(await world.call("dave")) == "dave"
        done = await world.http.post(f"{people['bob'].page}/sign-ins", data=form, headers=token)
        assert "Signed out of crm" in done.text
        assert "needs a sign-in" in shown(await world.call("dave"))
        # Bob signs out on the page, the operator signs Carol out, and Alice is locked out.
        page = await people["bob"].http.get(f"{people['bob'].page}/sign-ins")
        assert "Signed out of crm" in (await people["bob"].send(page, action="sign-out", server="crm")).text
        assert "needs a sign-in" in shown(await world.call("bob"))
        gone = await to_thread.run_sync(lambda: run("mcp", "logout", "crm", "--principal", "carol", cwd=tmp_path))
        assert "Signed out" in gone.stdout
        gone = await to_thread.run_sync(lambda: run("mcp", "logout", "crm", "--principal", "nobody", cwd=tmp_path))
        assert "no sign-in" in gone.stdout
        with anyio.fail_after(30):
            while "needs a sign-in" not in shown(await world.call("carol")):
                pass
        assert shown(await world.call("alice")) == "alice"
        await to_thread.run_sync(lambda: run("tokens", "lock", "alice", cwd=tmp_path))
        with anyio.fail_after(30):
            while await to_thread.run_sync(list_stored):
                pass
        assert (await people["alice"].http.get(f"{people['alice'].page}/sign-ins")).status_code == 401
        lives = {issued.user for issued in world.site.issuer.tokens if not issued.is_revoked}
        assert lives == {PERSON}


@pytest.mark.process
async def test_nobody_signs_in_for_someone_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened_world(tmp_path, monkeypatch) as world:
        mallory, bob = world.browse("mallory"), world.browse("bob")
        page, issuer = bob.page, world.issuer
        # Mallory's sign-in to the page, ended in Bob's browser, would make Bob act as Mallory.
        start = await mallory.http.get(f"{page}/login")
        back = issuer.authorize(start.headers["location"], "mallory")
        stolen = await bob.http.get(back)
        assert (stolen.status_code, "set-cookie" in stolen.headers) == (403, False)
        assert (await mallory.http.get(back)).status_code == 303
        # A redirect counts once.
        assert (await mallory.http.get(back)).status_code == 403
        await bob.log_in()
        # Mallory's address of the server's issuer, opened by Bob, would store Bob's tokens for Mallory.
        url = await mallory.start()
        answer = await sign_in_by_http(url, person="bob")
        assert (await bob.http.get(answer)).status_code == 403
        async with httpx2.AsyncClient(verify=False) as nobody:
            assert (await nobody.get(answer)).status_code == 403
            assert (await nobody.get(f"{page}/callback?code=1&state=1")).status_code == 403
        # Mallory's own code in Bob's sign-in, and Bob's in Mallory's.
        code = dict(parse_qsl(urlsplit(answer).query))["code"]
        state = dict(parse_qsl(urlsplit(await bob.start()).query))["state"]
        assert (await bob.http.get(f"{page}/callback", params={"code": code, "state": state})).status_code == 403
        assert not await to_thread.run_sync(list_stored)
        # A form of another site has no key; a client with a token has no browser.
        form = {"action": "sign-in", "server": "crm", "form_key": "guess"}
        assert (await bob.http.post(f"{page}/sign-ins", data=form)).status_code == 403
        token = {"authorization": f"Bearer {issuer.mint(world.url, sub='bob')}"}
        refused = await world.http.post(f"{page}/sign-ins", data={**form, "form_key": ""}, headers=token)
        assert refused.status_code == 400
        # The page leads nowhere else, and sends no header of an attacker's choice.
        for target in ("https://evil.example", "//evil.example", "/sign-ins@evil", "/sign-ins?server=x%0d%0aa:b"):
            seen = await world.browse("carol").log_in(target)
            assert (str(seen.url).startswith(page), "a" in seen.headers) == (True, False)
        assert "mallory" not in (await bob.http.get(f"{page}/sign-ins")).text


@pytest.mark.process
async def test_a_client_that_opens_pages_goes_on_after_the_sign_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened_world(tmp_path, monkeypatch) as world:
        alice = world.browse("alice")
        await alice.log_in()
        meta: dict[str, Any] = {**STAMP, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"url": {}}}}
        monkeypatch.setattr("tests.gateway.test_auth.STAMP", meta)
        token = world.issuer.mint(world.url, sub="alice")
        call = partial(request, world.http, world.url, token, "tools/call", name="crm__whoami", arguments={})
        asked = last(await call())
        (key, question) = next(iter(asked["inputRequests"].items()))
        assert question["params"]["url"] == f"{alice.page}/sign-ins?server=crm"
        await alice.sign_in()
        answers = {key: {"action": "accept"}}
        done = last(await call(inputResponses=answers, requestState=asked["requestState"]))
        assert shown(done) == "alice"


@pytest.mark.parametrize("other", [["i", "Alice"], ["i/alice", ""], ["j", "alice"], ["i", "alice "], ["i,alice"]])
def test_a_file_opens_as_its_own_users_alone(other: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    first, second = UserCredentials(compact_json(["i", "alice"])), UserCredentials(compact_json([*other]))
    credentials = stored_sign_in("http://127.0.0.1:1/mcp")
    key = credentials.key
    asyncio.run(first.save(credentials))
    assert asyncio.run(UserCredentials(first.user).find(key)) == credentials
    (row,) = first.read_rows()
    text = Path(row.file.path).read_text("utf-8")
    moved = Path(second.find_folder(), Path(row.file.path).name)
    assert moved != Path(row.file.path)
    moved.parent.mkdir(parents=True)
    moved.write_text(text, "utf-8")
    assert asyncio.run(second.find(key)) is None
    moved.write_text(text.replace(compact_json(first.user), compact_json(second.user)), "utf-8")
    assert second.read_rows() != ()
    with pytest.raises(AuthFault, match="cannot be opened") as caught:
        asyncio.run(second.find(key))
    assert "access-0" not in str(caught.value)


def test_a_sign_in_of_a_user_is_never_stored_as_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    store = UserCredentials(compact_json(["i", "alice"]))
    with pytest.raises(AuthFault, match="stored sealed only"):
        store.require_vault()
    with pytest.raises(AuthFault, match="stored sealed only"):
        asyncio.run(store.save(stored_sign_in("http://127.0.0.1:1/mcp")))
    assert not list_stored()


@pytest.mark.process
async def test_a_user_signs_in_once_for_all_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with broker_process(tmp_path / "broker") as broker, socket.create_server(("127.0.0.1", 0)) as held:
        public = f"http://127.0.0.1:{held.getsockname()[1]}/mcp"
        held.close()
        made = await to_thread.run_sync(lambda: run("cluster", "init", "--cluster", broker.url, cwd=tmp_path))
        assert made.returncode == 0, made.stderr
        async with AsyncExitStack() as stack:
            issuer = await stack.enter_async_context(running_issuer())
            site = await stack.enter_async_context(protected_site())
            await BrowserPerson().sign_in(configure(site.server.url))
            configured(user_file(), {"crm": {"url": site.server.url, "auth": {"per_user": True}}})
            home, urls = Path(state_dir()), dict[str, str]()
            for name in ("a", "b"):
                state = await to_thread.run_sync(partial(shutil.copytree, home, tmp_path / name / "indus"))
                address = public.removeprefix("http://").removesuffix("/mcp") if name == "a" else "127.0.0.1:0"
                words = ("--http", address, "--auth", issuer.url, "--public-url", public, "--profile", "none")
                node = ("--cluster", broker.url, "--node", name)
                started = serving(*words, *node, cwd=tmp_path, XDG_STATE_HOME=str(state.parent))
                gateway = stack.enter_context(started)
                await until(partial(_has_tools, gateway))
                urls[name] = re.findall(r"serving at (\S+)", gateway.said())[0]
            world = World(public, gateway, issuer, site)
            stack.push_async_callback(world.aclose)
            alice = world.browse("alice")
            await alice.log_in()
            await alice.sign_in()
            token = issuer.mint(public, sub="alice")
            call = partial(request, world.http, method="tools/call", token=token, name="crm__whoami", arguments={})
            await until_says(partial(call, url=urls["b"]), "alice")
            page = await alice.http.get(f"{alice.page}/sign-ins")
            assert "Signed out of crm" in (await alice.send(page, action="sign-out", server="crm")).text
            await until_says(partial(call, url=urls["b"]), "needs a sign-in")
            stored = await to_thread.run_sync(read_state, tmp_path)
            tokens = [issued.access.encode() for issued in site.issuer.tokens if issued.user == "alice"]
            assert tokens
            assert not any(token in stored for token in tokens)


def _has_tools(gateway: Gateway) -> bool:
    return "1 tool from" in gateway.said()


async def until_says(call: Callable[[], Awaitable[httpx2.Response]], wanted: str) -> None:
    """Call until the answer has a text: nodes learn of changes within moments."""
    with anyio.fail_after(30):
        while wanted not in text(await call()):
            pass
