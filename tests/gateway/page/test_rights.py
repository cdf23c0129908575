"""Rights: every route, in every mode, with every kind of credential."""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import combinations
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, cast

import anyio
import httpx2
import pytest
from tests.support.host_tools import Bench
from tests.support.issuer import Issuer, running_issuer
from tests.support.resources import STAMP, ServersBox
from tests.support.waiting import LIMIT_S

from indusagi.interop import HttpSettings, create_provider_host
from indusagi.interop.protocol_bridge.host.auth.resource import ResourceSettings
from indusagi.interop.protocol_bridge.host.identity import (
    NOBODY,
    SCOPES,
    ClientIdentity,
    Credential,
    PageMode,
    Rights,
    find_rights,
)
from induscode.gateway.page import site as site_module
from induscode.gateway.page.access import PageAccess, PageRequest
from induscode.gateway.page.html import PageView, tag
from induscode.gateway.page.site import PageSite

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

USER, VIEW = "u" * 32, "v" * 32
TokenMode = Literal["token", "no-token", "auth"]
MODES: tuple[PageMode, ...] = ("full", "read-only", "off")
ROUTES: Mapping[str, tuple[str, str, str]] = {
    "list tools": ("POST", "/mcp", "list"),
    "call a tool": ("POST", "/mcp", "call"),
    "health": ("GET", "/health", "operate"),
    "metrics": ("GET", "/metrics", "operate"),
    "page": ("GET", "/ui", "look"),
    "view": ("GET", "/ui/tools", "look"),
    "session": ("GET", "/ui/session?id=1", "look"),
    "events": ("GET", "/ui/events", "look"),
    "server form": ("POST", "/ui/server", "act"),
    "changes form": ("POST", "/ui/changes", "act"),
    "settings": ("GET", "/ui/settings", "own"),
    "server to add": ("POST", "/ui/add", "configure"),
    "row form": ("POST", "/ui/row", "configure"),
    "client form": ("POST", "/ui/client", "configure"),
    "rule form": ("POST", "/ui/rules", "configure"),
    "token form": ("POST", "/ui/tokens", "configure"),
    "rewind form": ("POST", "/ui/session/rewind", "configure"),
    "approval form": ("POST", "/ui/approvals", "act"),
    "tool form": ("POST", "/ui/tool", "try"),
    "resource form": ("POST", "/ui/resources", "try"),
    "prompt form": ("POST", "/ui/prompt", "try"),
}
"""Method, path and the right that each route needs."""
MCP, PAGE = {"list", "call"}, {"look", "act", "try", "own", "configure"}
ADMIN, ALL = {"list", "call", "operate", "look", "act", "try"}, {"list", "call", "operate", *PAGE}
CREDENTIALS: dict[TokenMode, dict[str, set[str]]] = {
    "token": {
        "nothing": set(),
        "a wrong token": set(),
        "an empty token": set(),
        "the user's token as Basic": set(),
        "the user's token": ALL,
        "the token of a view": MCP,
        "the cookie": PAGE,
        "a wrong cookie": set(),
        "the cookie and a wrong token": set(),
        "the cookie and the token of a view": MCP,
    },
    "no-token": {
        "nothing": MCP | {"operate"},
        "a wrong token": MCP | {"operate"},
        "an empty token": MCP | {"operate"},
        "the user's token as Basic": MCP | {"operate"},
        "the user's token": MCP | {"operate"},
        "the token of a view": MCP | {"operate"},
        "the cookie": ALL,
        "a wrong cookie": MCP | {"operate"},
        "the cookie and a wrong token": ALL,
        "the cookie and the token of a view": ALL,
    },
    "auth": {
        "nothing": set(),
        "a wrong token": set(),
        "the user's token": set(),
        "the token of a view": set(),
        "the cookie": PAGE,
        "no scope": set(),
        "indus:list": {"list", "look"},
        "indus:call": {"call"},
        "indus:call:alpha": {"call"},
        "indus:call:beta": set(),
        "indus:admin": {"operate"},
        "indus:list indus:call": {"list", "call", "look"},
        "indus:list indus:admin": {"list", "operate", "look", "act"},
        "indus:list indus:admin indus:call:alpha": {"list", "call", "operate", "look", "act"},
        "indus:call indus:admin": {"call", "operate"},
        "indus:list indus:call indus:admin": ADMIN,
    },
}
"""What each credential opens where the page is full. Read-only takes away what changes something, off the page."""


def expect(opened: set[str], page: PageMode) -> set[str]:
    return opened - ({"act", "try", "configure"} if page == "read-only" else PAGE if page == "off" else set())


class Served:
    """A running host with its page."""

    def __init__(self, url: str, site: PageSite | None, issuer: Issuer | None, client: httpx2.AsyncClient) -> None:
        self.url, self.site, self.issuer, self.client = url.removesuffix("/mcp"), site, issuer, client
        self.acted: list[str] = []

    def present(self, credential: str) -> dict[str, str]:
        """Build the headers of a credential."""
        headers: dict[str, str] = {}
        if "cookie" in credential and "wrong cookie" not in credential and self.site is not None:
            headers["cookie"] = self.site.access.open().partition(";")[0]
        elif "cookie" in credential:
            headers["cookie"] = "indus_page=guess"
        if "wrong token" in credential:
            headers["authorization"] = f"Bearer {'x' * 32}"
        elif credential == "an empty token":
            headers["authorization"] = "Bearer"
        elif credential == "the user's token as Basic":
            headers["authorization"] = f"Basic {USER}"
        elif credential == "the user's token":
            headers["authorization"] = f"Bearer {USER}"
        elif "token of a view" in credential:
            headers["authorization"] = f"Bearer {VIEW}"
        elif self.issuer is not None and (credential.startswith("indus:") or credential == "no scope"):
            scope = "other" if credential == "no scope" else credential
            headers["authorization"] = f"Bearer {self.issuer.mint(f'{self.url}/mcp', scope=scope)}"
        return headers

    async def use(self, route: str, credential: str) -> int:
        """Use a route, and return the status."""
        method, path, right = ROUTES[route]
        headers = self.present(credential)
        if path == "/mcp":
            name = "tools/list" if right == "list" else "tools/call"
            params: dict[str, Any] = {"_meta": STAMP}
            headers |= {"accept": "application/json", "mcp-protocol-version": "2026-07-28", "mcp-method": name}
            if right == "call":
                params |= {"name": "echo", "arguments": {}}
                headers["mcp-name"] = "echo"
            body = {"jsonrpc": "2.0", "id": 1, "method": name, "params": params}
            return (await self.client.post(f"{self.url}{path}", json=body, headers=headers)).status_code
        data = None
        if method == "POST":
            data = {"form_key": "", "action": "x"}
            if "cookie" in headers and self.site is not None:
                found = self.site.access.find(cast("Any", SimpleNamespace(headers=headers)))
                data["form_key"] = "" if found is None else found.form_key
        async with self.client.stream(method, f"{self.url}{path}", data=data, headers=headers) as response:
            return response.status_code


@asynccontextmanager
async def served(tokens: TokenMode, page: PageMode, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Served]:
    """Serve tools and a page of which every view is the same."""
    bench = Bench()
    site = None if page == "off" else PageSite(PageAccess(), page)
    acted: list[str] = []

    async def show(request: PageRequest) -> PageView:
        if request.form:
            acted.append(request.get("action"))
        return PageView("view", tag("p", "shown"), "servers")

    def load_view(_: str) -> object:
        return show

    async def open_source() -> Any:
        session = SimpleNamespace(
            mcp=SimpleNamespace(disabled=()), invocation=SimpleNamespace(cwd="/w"), fleet=SimpleNamespace()
        )
        return SimpleNamespace(
            session=session, node=None, list_waiting=list_waiting, user_sign_ins=None, list_blocked=list_waiting
        )

    async def list_waiting() -> list[str]:
        return []

    async def watch(_: object) -> AsyncGenerator[bytes]:
        yield b"retry: 1\n\n"

    monkeypatch.setattr(site_module, "_load_view", load_view)
    monkeypatch.setattr(site_module, "watch_changes", watch)
    if site is not None:
        site.open_source = open_source
    async with running_issuer() as issuer, httpx2.AsyncClient(timeout=LIMIT_S, verify=False) as client:
        settings = HttpSettings(
            tokens=[USER] if tokens == "token" else None,
            view_tokens={VIEW: "phone"},
            views={"phone": lambda _: True},
            without_token=tokens == "no-token",
            auth=ResourceSettings(issuer=issuer.url) if tokens == "auth" else None,
            metrics=lambda: "# none\n",
            site=site,
        )
        host = create_provider_host(lambda: ServersBox(bench.box()))
        async with host.serve_http(settings) as serving:
            result = Served(serving.url, site, issuer if tokens == "auth" else None, client)
            result.acted = acted
            yield result


@pytest.mark.parametrize("page", MODES)
@pytest.mark.parametrize("tokens", ["token", "no-token", "auth"])
async def test_every_route_opens_for_exactly_the_credentials_with_its_right(
    tokens: TokenMode, page: PageMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: list[str] = []
    with anyio.fail_after(5 * LIMIT_S):
        async with served(tokens, page, monkeypatch) as host:
            for credential, opened in CREDENTIALS[tokens].items():
                for route, (_, path, right) in ROUTES.items():
                    host.acted.clear()
                    status = await host.use(route, credential)
                    is_open = right in expect(opened, page)
                    refusals = {404} if page == "off" and path.startswith("/ui") else {401, 403}
                    if status not in ({200} if is_open else refusals) or (host.acted and not is_open):
                        wrong.append(f"{route} with {credential}: {status}")
    assert wrong == []


@pytest.mark.parametrize("authorization", ["Bearer x", "Bearer", "Basic eDp4", "x", f"Bearer {USER}"])
async def test_finding_p2_without_a_token_the_page_knows_its_cookie_alone(
    authorization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served("no-token", "full", monkeypatch) as host:
        headers = {"authorization": authorization}
        assert (await host.client.get(f"{host.url}/ui", headers=headers)).status_code == 401
        form = {"name": "one", "action": "trust"}
        assert (await host.client.post(f"{host.url}/ui/server", headers=headers, data=form)).status_code == 401
        assert host.acted == []


@pytest.mark.parametrize(
    "path", ["/ui/server", "/ui/tool", "/ui/changes", "/ui/resources", "/ui/prompt", "/ui/add", "/ui/row"]
)
async def test_finding_p3_a_read_only_page_acts_for_nobody(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served("token", "read-only", monkeypatch) as host:
        headers = {"authorization": f"Bearer {USER}"}
        assert "read-only" in (await host.client.get(f"{host.url}/ui", headers=headers)).text
        refused = await host.client.post(f"{host.url}{path}", headers=headers, data={"action": "trust"})
        assert (refused.status_code, "this page is read-only" in refused.text.lower()) == (403, True)
        assert host.acted == []


@pytest.mark.parametrize("page", MODES)
@pytest.mark.parametrize("count", range(len(SCOPES) + 1))
def test_a_token_tries_tools_on_the_page_only_with_every_scope(page: PageMode, count: int) -> None:
    for scopes in combinations(SCOPES, count):
        rights = find_rights(ClientIdentity(scopes=frozenset(scopes), credential="principal"), page)
        is_full = page == "full"
        assert (rights.can_list, rights.can_call, rights.can_operate) == tuple(scope in scopes for scope in SCOPES)
        assert rights.can_look == (rights.can_list and page != "off")
        assert rights.can_act == (is_full and rights.can_list and rights.can_operate)
        assert rights.can_try == (is_full and count == len(SCOPES))


@pytest.mark.parametrize("page", MODES)
def test_nobody_has_rights_and_the_page_never_follows_from_an_open_door(page: PageMode) -> None:
    assert find_rights(NOBODY, page) == Rights()
    for credential in cast("tuple[Credential, ...]", ("open", "view", "nobody")):
        rights = find_rights(ClientIdentity(credential=credential), page)
        assert not (rights.can_look)
        assert not (rights.can_act)
        assert not (rights.can_try)
