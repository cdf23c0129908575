"""Users of `indus serve --auth` sign in to a server one by one; oidc-provider knows them for the gateway and there."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
import socket
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import anyio
import httpx2
from anyio import to_thread

from indusagi.interop.auth.contract import AuthSettings, ServerAuth
from indusagi.interop.auth.driver import AuthDriver
from indusagi.interop.auth.storage import MemoryCredentialStore
from induscode.cli.dialog import Reply
from induscode.servers.sign_in import PersonPrompt
from outside.sign_in.program import Program
from outside.sign_in.sites import oidc_provider, oidc_provider_site

if TYPE_CHECKING:
    from collections.abc import Callable

    from induscode.cli.dialog import Question
    from outside.install import Node

PEOPLE = ("alice", "bob", "a/b", "a%2Fb", "Alice")
"""Names that some normalisation would confuse."""
_SCOPES = "indus:list indus:call"
_LINKS = re.compile(r'<a href="(http[^"]+)" target="_blank"')
_FORM_KEY = re.compile(r'name="form_key" value="([^"]+)"')
_AT_ONCE = 64
_LIMIT_S = 30
_REDIRECT = "http://127.0.0.1:33418"
"""Where a pasted address leads."""


class Person:
    """A person with a browser and an MCP client."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.http = httpx2.AsyncClient(timeout=60)
        self.token = ""

    async def browse(self, url: str, until: str = "\0") -> httpx2.Response:
        """Follow redirects and sign in wherever a form asks for it; stop at an address that begins with `until`."""
        answer = await self.http.get(url)
        for _ in range(20):
            if answer.is_redirect:
                target = urljoin(str(answer.url), answer.headers["location"])
                if target.startswith(until):
                    return answer
                answer = await self.http.get(target)
            elif "/interaction/" in str(answer.url):
                prompt = "login" if 'value="login"' in answer.text else "consent"
                form = {"prompt": prompt, "login": self.name, "password": "x"}
                answer = await self.http.post(str(answer.url), data=form)
            else:
                return answer
        raise RuntimeError(f"{url}: too many redirects")

    def show(self, text: str, /) -> None:
        """Show nothing."""

    async def ask(self, question: Question, /) -> Reply:
        """Sign in, and answer with the address where the browser ends."""
        async with httpx2.AsyncClient(timeout=60) as fresh:  # the client of the machine, not the browser of the page
            self.http, kept = fresh, self.http
            try:
                return Reply(text=(await self.browse(question.lines[0], _REDIRECT)).headers["location"])
            finally:
                self.http = kept

    async def get_token(self, url: str, issuer: str) -> None:
        """Get an access token for the gateway, as an MCP client would."""
        settings = AuthSettings(issuer=issuer, scopes=tuple(_SCOPES.split()))
        auth = ServerAuth(settings=settings, store=MemoryCredentialStore(), prompt=PersonPrompt(self, paste=True))
        stored = await AuthDriver(url, auth, name="gateway").sign_in()
        assert stored.tokens is not None
        self.token = stored.tokens.access_token

    async def sign_in(self, page: str, server: str) -> str:
        """Sign in to the page and there to the server, and return the page's text."""
        shown = await self.browse(f"{page}/login?to=/sign-ins")
        found = _FORM_KEY.search(shown.text)
        assert found is not None, shown.text
        form = {"form_key": found[1], "action": "sign-in", "server": server}
        link = _LINKS.search((await self.http.post(f"{page}/sign-ins", data=form)).text)
        assert link is not None
        return (await self.browse(link[1].replace("&amp;", "&"))).text

    async def call(self, url: str, name: str) -> tuple[int, str]:
        """Call a tool, and return the status and the text."""
        meta: dict[str, object] = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params: dict[str, object] = {"name": name, "arguments": {}, "_meta": meta}
        headers = {
            "accept": "application/json, text/event-stream",
            "authorization": f"Bearer {self.token}",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": name,
        }
        body: dict[str, object] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = await self.http.post(url, json=body, headers=headers)
        if answer.status_code != 200:
            return answer.status_code, answer.text
        result = answer.json().get("result")
        return (200, result["content"][0]["text"]) if result else (0, answer.text)


async def check_users(node: Node, packages: Path, count: int, add: Callable[[str, str, str | None], None]) -> None:
    """Sign users in, call concurrently, then lock one out."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    url, page = f"http://{address}/mcp", f"http://{address}/ui"
    people = [Person(name) for name in PEOPLE]
    with tempfile.TemporaryDirectory() as home:
        indus = Program(home, INDUS_CREDENTIALS_KEY="a key of the check of users")
        async with (
            oidc_provider_site(node, packages) as upstream,
            oidc_provider(node, packages, url, _SCOPES) as issuer,
        ):
            row = json.dumps({"url": upstream.url, "auth": {"per_user": True}, "startup_timeout": 60})
            await to_thread.run_sync(indus.run, "mcp", "add-json", "crm", row)
            operator = Person("operator")

            def open_page(address: str) -> str:
                ended = anyio.from_thread.run(operator.browse, address, _REDIRECT)
                return str(ended.headers["location"])

            await to_thread.run_sync(indus.sign_in_by, "crm", open_page)
            async with indus.serving(
                "--http", address, "--auth", issuer, "--profile", "none", "--max-rate-per-principal", "10000"
            ) as process:
                for person in people:
                    await person.get_token(url, issuer)
                _, text = await people[0].call(url, "crm__whoami")
                add("users", "a call without a sign-in", None if f"{page}/sign-ins?server=crm" in text else text)
                for person in people:
                    shown = await person.sign_in(page, "crm")
                    assert "signed in" in shown, shown
                await _call_all(people, url, count, add)
                await _lock_out(people, url, indus, add)
                process.send_signal(signal.SIGTERM)


async def _call_all(people: list[Person], url: str, count: int, add: Callable[[str, str, str | None], None]) -> None:
    outcomes: Counter[str] = Counter()
    queue = itertools.islice(itertools.cycle(people), count)
    began = time.monotonic()

    async def work() -> None:
        for person in queue:
            status, text = await person.call(url, "crm__whoami")
            outcome = "own" if (status, text) == (200, person.name) else "crossed" if text in PEOPLE else text[:200]
            outcomes[outcome] += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_AT_ONCE):
            tasks.create_task(work())
    rate = count / (time.monotonic() - began)
    how = f"{count:,} mixed calls, {_AT_ONCE} at once: {outcomes['own']:,} own, {outcomes['crossed']} crossed"
    add("users", how, None if outcomes["own"] == count else str(dict(outcomes)))
    add("users", f"{len(people)} users, about {rate:,.0f} calls per second", None)


async def _lock_out(
    people: list[Person], url: str, indus: Program, add: Callable[[str, str, str | None], None]
) -> None:
    folder = Path(indus.home, ".local/state/indus/credentials/users")
    await to_thread.run_sync(indus.run, "tokens", "lock", people[0].name)
    began = time.monotonic()
    while (await people[0].call(url, "crm__whoami"))[0] == 200 and time.monotonic() - began < _LIMIT_S:
        pass
    refused_s = time.monotonic() - began

    def count() -> int:
        return len([*folder.glob("*/*.json")])

    while await to_thread.run_sync(count) == len(people) and time.monotonic() - began < _LIMIT_S:
        pass
    gone_s = time.monotonic() - began
    status, text = await people[1].call(url, "crm__whoami")
    problem = None if gone_s <= 2.0 and (status, text) == (200, people[1].name) else "too late"
    add("users", f"a locked user: refused after {refused_s:.1f} s, signed out after {gone_s:.1f} s", problem)
