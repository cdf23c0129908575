"""The web page's site: access, routes, forms, headers, and the stream of changes.

A Content-Security-Policy blocks scripts, styles, images and requests from other sites. Everything works without
JavaScript; the page's script only refetches sections that changed.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias, cast
from urllib.parse import parse_qsl, urlsplit

import anyio
from anyio import to_thread

from indusagi import __version__
from indusagi.core.faults import CoreError
from indusagi.interop.auth.contract import SIGN_IN_WAIT_S, AuthFault
from indusagi.interop.protocol_bridge.host.http.request import STREAM_HEADERS, HttpRefusal, SiteResponse, refuse_method
from indusagi.interop.protocol_bridge.host.identity import PageMode, find_rights
from indusagi.runtime.calls import CallingClient, current_client, current_user
from induscode.calls.database import CallDatabase, UnreadableCallsError, use_calls
from induscode.cli.output import can_ask_user
from induscode.cli.terminal import print_status
from induscode.gateway.page.access import PageAccess, PageRequest, PageUser, digest
from induscode.gateway.page.html import PREFIX, Html, PageError, PageView, Topic, address, render, shorten_path, tag

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host.auth.resource import ProtectedResource
    from indusagi.interop.protocol_bridge.host.auth.verifier import TokenVerifier
    from indusagi.interop.protocol_bridge.host.http.request import Headers, HttpRequest
    from induscode.gateway.gateway import Gateway
    from induscode.gateway.options import ServeOptions
    from induscode.gateway.page.redirects import BrowserSignIns, IssuerLogin
    from induscode.gateway.page.source import GatewayPage

    ShowView: TypeAlias = Callable[[PageRequest], Awaitable[PageView | SiteResponse]]


_VIEWS: Mapping[str, tuple[str, str]] = {
    "": ("home", "show_home"),
    "/servers": ("servers", "show_servers"),
    "/approvals": ("approvals", "show_approvals"),
    "/server": ("servers", "show_server"),
    "/add": ("add", "show_add"),
    "/row": ("row", "show_row"),
    "/connect": ("clients", "show_clients"),
    "/client": ("clients", "show_client"),
    "/settings": ("settings", "show_settings"),
    "/rules": ("settings", "show_rules"),
    "/tokens": ("tokens", "show_tokens"),
    "/tools": ("items", "show_tools"),
    "/tool": ("items", "show_tool"),
    "/resources": ("items", "show_resources"),
    "/prompts": ("items", "show_prompts"),
    "/prompt": ("items", "show_prompt"),
    "/changes": ("changes", "show_changes"),
    "/calls": ("calls", "show_calls"),
    "/call": ("calls", "show_call"),
    "/calls/export": ("calls", "export_calls"),
    "/timeline": ("timeline", "show_timeline"),
    "/deck": ("timeline", "show_deck"),
    "/cluster": ("cluster", "show_cluster"),
    "/sessions": ("sessions", "show_sessions"),
    "/session": ("sessions", "show_session"),
    "/session/rewind": ("sessions", "show_rewind"),
    "/sign-ins": ("sign_ins", "show_sign_ins"),
}
"""Module and function of each view; modules load on first request."""
_FORMS: Mapping[str, str] = {
    **dict.fromkeys(("/server", "/changes", "/approvals"), "can_act"),
    **dict.fromkeys(("/tool", "/resources", "/prompt"), "can_try"),
    **dict.fromkeys(("/add", "/row", "/connect", "/client", "/settings", "/rules", "/tokens"), "can_configure"),
    "/session/rewind": "can_configure",
    "/sign-ins": "can_look",
}
"""The right that a view's forms need. Those of sign-ins change what belongs to their user alone."""
_LOGIN: Final = ("/login", "/callback")
_LOGIN_COOKIE: Final = "_login"
_STATIC: Final = {
    "/style.css": b"text/css; charset=utf-8",
    "/page.js": b"text/javascript; charset=utf-8",
    "/icon.svg": b"image/svg+xml",
}
_POLICY: Final = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""https://www.w3.org/TR/CSP3/"""
_SECURITY: Headers = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    # Not `no-referrer`: browsers would then submit the page's own forms with `Origin: null`.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_HTML: Headers = ((b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"no-store"), *_SECURITY)
_CLIENT: Final = "page"
"""The client name for page actions in permission rules and call records."""
_READ_ONLY: Final = "this page is read-only"
_MAX_SIGN_IN_BYTES: Final = 16 * 1024
_VIEW_S: Final = 120.0
"""Time limit of a view. A tool call has its own, shorter deadline."""


class PageSite:
    """Answers browser requests below `/ui`; a `Site` of the HTTP host."""

    prefix = PREFIX

    def __init__(self, access: PageAccess, mode: PageMode = "full") -> None:
        self.access = access
        self.mode: PageMode = mode
        self.open_source: Callable[[], Awaitable[GatewayPage]] | None = None
        """Returns the gateway (always the same one); `None` until it's open."""
        self.url = ""
        """Where browsers reach it, with an issuer of access tokens."""
        self._login: IssuerLogin | None = None
        self.sign_ins: BrowserSignIns | None = None
        """Sign-ins of browsers, with an issuer of access tokens."""

    def attach(self, resource: ProtectedResource, verifier: TokenVerifier) -> None:
        """Let browsers sign in at the issuer of access tokens."""
        from induscode.gateway.page.redirects import BrowserSignIns, IssuerLogin  # noqa: PLC0415 — with access tokens

        self._login, self.url = IssuerLogin(resource, verifier), resource.build_url(PREFIX)
        self.sign_ins = BrowserSignIns(f"{self.url}/callback")
        self.access.is_encrypted = self._login.is_encrypted

    def show_gateway(self, gateway: Gateway, stack: AsyncExitStack) -> None:
        """Show a gateway until `stack` closes, after the last request."""
        page: GatewayPage | None = None

        async def open_source() -> GatewayPage:
            nonlocal page
            if page is None:
                # It imports permissions, sign-ins and conversations (2 MB), which a gateway without a browser can do
                # without.
                await to_thread.run_sync(import_module, "induscode.gateway.page.source")
                from induscode.gateway.page.source import GatewayPage  # noqa: PLC0415 — imported above

                if page is None:  # another request may have won the race
                    page = GatewayPage(gateway)
                    page.browser_sign_ins = self.sign_ins
                    if self.sign_ins is not None:
                        stack.push_async_callback(self.sign_ins.aclose)
                    stack.push_async_callback(page.aclose)
            return page

        self.open_source = open_source

    async def announce(self, url: str, token: str | None, options: ServeOptions) -> None:
        """Print the page's address, with its key if a user is reading or no token is required."""
        self.access.token = token or ""
        self.access.cookie += f"_{urlsplit(url).port}"
        address = f"{url}{PREFIX}"
        is_open = options.settings is not None and options.settings.without_token
        if can_ask_user() or options.is_ui or is_open:
            address += f"?key={self.access.key}"
            print_status(f"page: {address}")
        else:
            print_status(f"page: {address}" + (", sign in with the token" if token else ""))
        if options.opens_browser:
            from induscode.servers.sign_in import open_browser  # noqa: PLC0415 — for `indus ui`

            if not await to_thread.run_sync(open_browser, address):
                print_status("there is no browser here: open the address of the page in one")

    def accept(self, request: HttpRequest) -> bool:
        """Accept signed-in browsers, static files and sign-ins; answer anything else with the sign-in page."""
        path = request.path.removeprefix(PREFIX)
        if path in _STATIC or self.access.find(request) is not None:
            return True
        if self._login is not None and path in _LOGIN:
            return True
        if request.method == "POST" and path == "/sign-in":
            length = request.headers.get("content-length", "")
            if not length.isdecimal() or int(length) > _MAX_SIGN_IN_BYTES:
                raise HttpRefusal(413, "a sign-in is a key, and shorter")
            return True
        key = dict(parse_qsl(request.query)).get("key", "")
        if request.method == "GET" and key and self.access.is_key(key):
            self._sign_in(request, path)
            return False
        message = "This key is not valid any more: the command prints the present address." if key else ""
        request.respond(401, self._build_sign_in(message, f"{path}?{request.query}".rstrip("?")).encode(), _HTML)
        return False

    def _sign_in(self, request: HttpRequest, path: str) -> None:
        """Answer with a cookie and a page that redirects, which drops the key from the address bar.

        After an HTTP redirect from another site's link, the browser wouldn't send the cookie.
        """
        cookie = self.access.open()
        target = f"{PREFIX}{path if path in _VIEWS else ''}"
        body = render(
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="refresh", content=f"0;url={target}"),
            tag("title", "indus"),
            tag("a", "Continue", href=target),
        )
        request.respond(200, f"<!doctype html>{body}".encode(), [*_HTML, (b"set-cookie", cookie.encode())])

    async def respond(self, request: HttpRequest) -> SiteResponse:
        """Answer an accepted request; a refusal becomes a page."""
        try:
            return await self._answer(request)
        except HttpRefusal as exc:
            body = build_refusal(str(exc)).encode("utf-8", "replace")
            return SiteResponse(body, exc.status, [*_HTML, *exc.headers])

    async def _answer(self, request: HttpRequest) -> SiteResponse:
        path = request.path.removeprefix(PREFIX).removesuffix("/")
        if path in _STATIC:
            if request.method not in {"GET", "HEAD"}:
                raise refuse_method("GET")
            headers = [(b"content-type", _STATIC[path]), (b"cache-control", b"max-age=3600"), *_SECURITY]
            return SiteResponse(_read_static(path[1:]), 200, headers)
        form = dict(parse_qsl(request.body.decode("utf-8", "replace"), keep_blank_values=True))
        if path == "/sign-in":
            return self._respond_sign_in(request, form)
        if path in _LOGIN:
            return await self._respond_login(request, path)
        user = self._find_user(request)
        if self.open_source is None:
            return SiteResponse(b"The servers are being opened: try again in a moment.", 503, _HTML)
        if path == "/events":
            return SiteResponse(events=watch_changes(await self.open_source()), headers=[*STREAM_HEADERS, *_SECURITY])
        if path == "/sign-out" and request.method == "POST":
            _check_form(user, form)
            self.access.close(request)
            return SiteResponse(self._build_sign_in("Signed out.").encode(), 200, _HTML)
        self._check_method(user, request.method, path, form)
        show = await to_thread.run_sync(_load_view, path)
        source = await self.open_source()
        return await self._show(source, user, request, show, form if request.method == "POST" else {})

    def _check_method(self, user: PageUser, method: str, path: str, form: Mapping[str, str]) -> None:
        right = _FORMS.get(path)
        if method == "POST" and right is not None:
            _check_form(user, form)
            if not getattr(user.rights, right):
                raise HttpRefusal(403, "your token doesn't allow that" if self.mode == "full" else _READ_ONLY)
        elif method not in {"GET", "HEAD"}:
            raise refuse_method("GET" if right is None else "GET, POST")
        elif right == "can_configure" and not user.rights.is_owner:
            raise HttpRefusal(403, "only the owner of the gateway sees that")

    def _find_user(self, request: HttpRequest) -> PageUser:
        """Return the signed-in browser or token client; `HttpRefusal` if the token doesn't open the page."""
        identity = request.identity
        # Browsers don't send bearer tokens on their own, so no other site can make one submit a form.
        form_key, browser = "", b""
        if identity.credential in {"nobody", "open"}:
            found = self.access.find(request)
            if found is None:  # expired since the request was accepted
                raise HttpRefusal(401, "sign in again")
            identity, form_key, browser = found.identity, found.form_key, self.access.digest_cookie(request)
        rights = find_rights(identity, self.mode)
        if not rights.can_look:
            raise HttpRefusal(403, "this token does not open the page")
        return PageUser(
            rights=rights, form_key=form_key, principal=identity.principal, user=identity.user, browser=browser
        )

    def _respond_sign_in(self, request: HttpRequest, form: Mapping[str, str]) -> SiteResponse:
        if request.method != "POST":
            raise refuse_method("POST")
        if not self.access.is_secret(form.get("key", "").strip()):
            return SiteResponse(self._build_sign_in("This is not the key of this gateway.").encode(), 401, _HTML)
        return _redirect(PREFIX, self.access.open())

    def _build_sign_in(self, message: str, target: str = "") -> str:
        return build_sign_in(message, "" if self._login is None else self._login.issuer, target)

    async def _respond_login(self, request: HttpRequest, path: str) -> SiteResponse:
        """Send a browser to an issuer, or take it back from there."""
        login, sign_ins = self._login, self.sign_ins
        if request.method != "GET" or login is None or sign_ins is None:
            raise refuse_method("GET")
        try:
            if path == "/login":
                view, _, query = dict(parse_qsl(request.query)).get("to", "").partition("?")
                # Only views of this page: anything else would make it an open redirect.
                target = address(view, **dict(parse_qsl(query))) if view in _VIEWS else PREFIX
                secret = secrets.token_urlsafe(32)
                signing = await sign_ins.start(digest(secret), target, login.sign_in)
                cookie = self.access.build_cookie(f"{self.access.cookie}{_LOGIN_COOKIE}", secret, "Lax", SIGN_IN_WAIT_S)
                return _redirect(signing.url, cookie)
            browsers = [self.access.digest_cookie(request, _LOGIN_COOKIE)]
            if self.access.find(request) is not None:
                browsers.append(self.access.digest_cookie(request))
            signing = await sign_ins.finish(request, browsers)
        except AuthFault as fault:
            raise HttpRefusal(403, str(fault)) from fault
        return _redirect(signing.target, "" if signing.identity is None else self.access.open(signing.identity))

    async def _show(
        self, source: GatewayPage, user: PageUser, request: HttpRequest, show: ShowView, form: Mapping[str, str]
    ) -> SiteResponse:
        query = dict(parse_qsl(request.query, keep_blank_values=True))
        page = PageRequest(source=source, user=user, query=query, form=form)
        # A task of this request alone. Behind a proxy, its connection may have carried someone else's before.
        current_user.set(user.user)
        client = current_client.set(CallingClient(_CLIENT, principal=user.principal))
        try:
            with anyio.fail_after(_VIEW_S):
                view = await show(page)
        except PageError as exc:
            view = PageView("Not here", tag("p", str(exc), role="alert"), "", exc.status)
        except CoreError as exc:
            view = PageView("It failed", tag("p", str(exc), role="alert"), "", 500)
        except TimeoutError:
            view = PageView("It failed", tag("p", "It took too long.", role="alert"), "", 504)
        finally:
            current_client.reset(client)
        if isinstance(view, SiteResponse):
            return replace(view, headers=[*view.headers, *_SECURITY])
        if view.target:
            return _redirect(view.target)
        waiting = {"home": len(await source.list_waiting()), "changes": len(await source.list_blocked())}
        cwd = source.session.invocation.cwd
        has_sign_ins = source.user_sign_ins is not None and bool(source.user_sign_ins.list_servers())
        page_text = build_page(view, user, cwd, waiting, has_cluster=source.node is not None, has_sign_ins=has_sign_ins)
        body = page_text.encode("utf-8", "replace")
        return SiteResponse(body, view.status, _HTML)


def _load_view(path: str) -> ShowView:
    """Load the view of a path. Blocks."""
    if path not in _VIEWS:
        return _refuse_path
    module, function = _VIEWS[path]
    return cast("ShowView", getattr(import_module(f"induscode.gateway.page.views.{module}"), function))


async def _refuse_path(page: PageRequest) -> PageView:
    raise PageError("There is nothing at this address")


def _check_form(user: PageUser, form: Mapping[str, str]) -> None:
    if form.get("form_key", "") != user.form_key:
        raise HttpRefusal(403, "this form belongs to another sign-in: reload the page")


@lru_cache(maxsize=4)
def _read_static(name: str) -> bytes:
    with open(os.path.join(os.path.dirname(__file__), "static", name), "rb") as file:
        return file.read()


# -- layout -----------------------------------------------------------------------------------


_SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Home": {"home": ("", "Home")},
    "Servers": {"servers": ("/servers", "Servers")},
    "Tools": {
        "tools": ("/tools", "Tools"),
        "resources": ("/resources", "Resources"),
        "prompts": ("/prompts", "Prompts"),
    },
    "Calls": {"calls": ("/calls", "Calls"), "timeline": ("/timeline", "Timeline")},
    "Changes": {"changes": ("/changes", "Changes")},
    "Sessions": {"sessions": ("/sessions", "Sessions")},
    "Settings": {
        "settings": ("/settings", "Settings"),
        "rules": ("/rules", "Rules"),
        "tokens": ("/tokens", "Tokens"),
        "sign-ins": ("/sign-ins", "Sign-ins"),
        "cluster": ("/cluster", "Cluster"),
    },
}
"""The navigation: each entry with its views, which are tabs if there are several."""


def _build_document(title: str, *body: Html | None) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} · indus"),
        tag("link", rel="icon", href=address("/icon.svg")),
        tag("link", rel="stylesheet", href=address("/style.css", v=__version__)),
        tag("script", src=address("/page.js", v=__version__), defer=True),
    )
    return "<!doctype html>" + tag("html", head, tag("body", body), lang="en")


def build_page(
    view: PageView,
    user: PageUser,
    cwd: str,
    waiting: Mapping[str, int],
    *,
    has_cluster: bool = False,
    has_sign_ins: bool = False,
) -> str:
    """Build the document of a view; `waiting` has the number of decisions that a section waits for."""
    unseen = {*([] if has_cluster else ["cluster"]), *([] if has_sign_ins else ["sign-ins"])}
    unseen |= set() if user.rights.is_owner else {"settings", "rules", "tokens"}
    links: list[Html] = []
    tabs: list[Html] = []
    for name, views in _SECTIONS.items():
        shown = {key: value for key, value in views.items() if key not in unseen}
        if not shown:
            continue
        is_here = view.section in shown
        # Always present, as the script replaces it.
        badges = [
            tag("span", str(waiting[key] or ""), id=f"waiting-{key}", cls="badge") for key in shown if key in waiting
        ]
        path = next(iter(shown.values()))[0]
        links.append(tag("a", name, badges, href=address(path), aria_current="page" if is_here else None))
        if is_here and len(shown) > 1:
            tabs = [
                tag("a", title, href=address(path), aria_current="page" if key == view.section else None)
                for key, (path, title) in shown.items()
            ]
    sign_out = tag(
        "form",
        tag("input", type_="hidden", name="form_key", value=user.form_key),
        tag("button", "Sign out", type_="submit", cls="plain"),
        method="post",
        action=address("/sign-out"),
    )
    brand = tag("a", "indus", href=PREFIX, cls="brand")
    rights = None if user.rights.can_act else tag("span", "read-only", cls="badge note")
    return _build_document(
        view.title,
        tag("a", "Skip to the content", href="#main", cls="skip"),
        tag("header", brand, rights, tag("nav", links, aria_label="Views"), sign_out if user.form_key else None),
        tag("nav", tabs, aria_label="Tabs", cls="tabs") if tabs else None,
        tag(
            "main",
            tag("h1", view.title),
            view.content,
            id="main",
            tabindex=-1,
        ),
        tag("footer", f"indus {__version__} · ", tag("code", shorten_path(cwd), title=cwd)),
    )  # fmt: skip


def build_refusal(message: str) -> str:
    """Build the page that explains a refused request."""
    said = tag("p", f"{message[:1].upper()}{message[1:]}.", role="alert", cls="said")
    back = tag("p", tag("a", "To the page", href=PREFIX))
    return _build_document("Refused", tag("main", tag("h1", "Refused"), said, back, id="main"))


def _redirect(url: str, cookie: str = "") -> SiteResponse:
    cookies = [(b"set-cookie", cookie.encode())] if cookie else []
    return SiteResponse(b"", 303, [(b"location", url.encode()), (b"cache-control", b"no-store"), *cookies, *_SECURITY])


def build_sign_in(message: str, issuer: str = "", target: str = "") -> str:
    """Build the page for signing in at an issuer of access tokens, or with the key the command printed."""
    form = tag(
        "form",
        tag("label", "Key", for_="key"),
        tag("input", id="key", name="key", type_="password", autocomplete="off", required=True, autofocus=True),
        tag("button", "Sign in", type_="submit", cls="main"),
        method="post",
        action=address("/sign-in"),
        cls="entry",
    )
    said = tag("p", message, role="alert", cls="said") if message else None
    about = tag("p", "Open the address that the command has printed, or enter its key or the token of the gateway.")
    login = None
    if issuer:
        name = urlsplit(issuer).hostname or issuer
        login = tag("p", tag("a", f"Sign in with {name}", href=address("/login", to=target), cls="button main"))
    return _build_document("Sign in", tag("main", tag("h1", "Sign in"), said, login, about, form, id="main"))


# -- changes ----------------------------------------------------------------------------------


_POLL_S: Final = 0.5
"""Poll interval: changes, including ones by other processes, show up within a second."""
_PING_S: Final = 15.0
_BROKERS_S: Final = 5.0
"""Refetch interval of the cluster view: brokers this node isn't connected to announce nothing."""


async def watch_changes(source: GatewayPage) -> AsyncGenerator[bytes]:
    """Yield server-sent `change` events listing the changed topics, and a comment now and then.

    `ready` comes first: earlier changes aren't announced, so the browser fetches its sections once.

    https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
    """
    known = await _take_signatures(source)
    yield b"retry: 2000\r\nevent: ready\r\ndata: []\r\n\r\n"
    quiet_s = 0.0
    while True:
        await anyio.sleep(_POLL_S)
        present = await _take_signatures(source)
        changed = sorted(topic for topic, signature in present.items() if known[topic] != signature)
        known = present
        quiet_s = 0.0 if changed else quiet_s + _POLL_S
        if changed:
            yield f"event: change\r\ndata: {json.dumps(changed)}\r\n\r\n".encode()
        elif quiet_s >= _PING_S:
            quiet_s = 0.0
            yield b": \r\n\r\n"


async def _take_signatures(source: GatewayPage) -> Mapping[Topic, object]:
    """Return a value per topic that differs after a change."""
    mcp = source.session.mcp
    servers = tuple(
        (name, status.phase, status.tool_count, status.restarts, str(status.fault or ""))
        for name, status in mcp.status().items()
    )
    # The ledger is immutable: a change makes a new object, and this reference keeps the old id from being reused.
    node = source.node
    nodes = ()
    if node is not None:
        nodes = (*node.membership.list_nodes(), node.broker.state, anyio.current_time() // _BROKERS_S)
    return {
        "cluster": (nodes, servers),
        "servers": (servers, tuple(row.id for row in source.plan.rows)),
        "items": (_Same(mcp.ledger), tuple(tool.ref for tool in mcp.disabled)),
        "log": tuple(mcp.fleet.measure_log(name) for name in mcp.status()),
        "calls": await to_thread.run_sync(_find_newest),
        "approvals": tuple(await source.list_waiting()),
    }


class _Same:
    """Compares an object by identity."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _find_newest() -> int:
    with suppress(UnreadableCallsError):
        return use_calls(CallDatabase.newest) or 0
    return 0
