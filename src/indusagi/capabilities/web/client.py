"""HTTP client for the web tools, hardened against SSRF: vets every hop and connects to the vetted address.

We look up a host name once per hop. All its addresses must be public and we connect to one of them, so a later DNS
answer (DNS rebinding) changes nothing. Redirects follow the same rules and stay within one site or one origin.
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, Protocol

from anyio import fail_after, to_thread

from indusagi.capabilities.ports import FetchError
from indusagi.capabilities.web.body import BodyEndedEarly, ResponseBody
from indusagi.capabilities.web.dial import PRIVATE_KINDS, classify_address, system_resolver
from indusagi.capabilities.web.url import is_same_origin, is_same_site, is_subdomain, parse_host_and_port, parse_url
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from indusagi.capabilities.ports import WebSettings
    from indusagi.capabilities.web.body import Truncation
    from indusagi.capabilities.web.dial import HttpAnswer
    from indusagi.capabilities.web.url import WebUrl
    from indusagi.core.json import JsonValue

_LOCAL_NAMES: Final = (
    *("localhost", "local", "localdomain", "internal", "intranet", "private", "corp"),
    *("home", "lan", "home.arpa"),
)
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_SAME_METHOD: Final = frozenset({307, 308})
_SEE_OTHER: Final = 303
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


@record
class WebRequest:
    """A request, and how far to follow redirects."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """In addition to the client's; may contain credentials."""
    body: bytes | None = field(default=None, repr=False)
    follow: Literal["site", "origin"] = "site"
    """Use `origin` for requests with credentials: redirects must keep the scheme, host and port."""


@record
class WebResponse:
    """A response."""

    target: WebUrl
    """The URL after all redirects."""
    status: int
    headers: Mapping[str, str]
    body: bytes
    """Decompressed."""
    received: int
    """Bytes received, before decompression."""
    cut: Truncation | None
    hops: Sequence[str] = ()
    """The URLs that redirected here."""


@record
class CrossSiteRedirect:
    """A redirect to another site, which we report instead of following."""

    status: int
    url: str
    came_from: str
    hops: Sequence[str] = ()


class WebClient:
    """Fetches URLs within the limits of its settings. Doesn't keep connections open between calls."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._resolve = settings.resolver or system_resolver
        self._proxy = _proxy(settings.proxy)
        self._allowed_private = frozenset(parse_host_and_port(text) for text in settings.allow_private)

    async def fetch(
        self, url: str, *, accept: str, cap: Callable[[Mapping[str, str]], int]
    ) -> WebResponse | CrossSiteRedirect:
        """Fetch a page; `cap` maps the headers to the number of bytes to read.

        Raises:
            FetchError: Fetching isn't allowed, or failed.
        """
        return await self.send(WebRequest(url, headers={"Accept": accept}), cap=cap)

    async def send(
        self, request: WebRequest, *, cap: Callable[[Mapping[str, str]], int]
    ) -> WebResponse | CrossSiteRedirect:
        """Send a request; `cap` maps the headers to the number of bytes to read.

        Status 307 and 308 keep the method and body; 303 turns into a GET. For methods other than GET and HEAD we return
        301 and 302 as is, because clients disagree about the method of the next request (RFC 9110 §15.4).

        Raises:
            FetchError: Sending isn't allowed, or there was no answer. Messages include the URL.
        """
        try:
            with fail_after(self._settings.total_s):
                return await self._follow(parse_url(request.url), request, cap)
        except TimeoutError:
            message = f"{_shorten_url(request.url)} did not arrive within {self._settings.total_s:g} s"
            raise FetchError(message, code="timeout", reason="total") from None

    async def check_address(self, url: str) -> None:
        """Check whether a request to a URL is allowed, without sending one. Looks up the host name.

        Raises:
            FetchError: It isn't allowed, or the host is unknown.
        """
        target = parse_url(url)
        self._refuse_by_name(target)
        await self._resolve_addresses(target)

    async def _follow(
        self, target: WebUrl, request: WebRequest, cap: Callable[[Mapping[str, str]], int]
    ) -> WebResponse | CrossSiteRedirect:
        hops: list[str] = []
        for _ in range(self._settings.redirects + 1):
            try:
                found = await self._hop(target, request, cap, hops)
            except FetchError as trouble:
                if not hops:
                    raise
                message = f"{trouble} (redirected from {_shorten_url(hops[-1])})"
                facts: dict[str, JsonValue] = {**trouble.facts, "redirects": [*hops]}
                raise FetchError(message, code=trouble.code, **facts) from trouble
            if not isinstance(found, _Redirect):
                return found
            hops.append(target.url)
            target, request = found.target, found.request
        message = f"{_shorten_url(target.url)}: {len(hops)} redirects, and no page at the end of them"
        raise FetchError(message, code="failed", reason="redirects", redirects=[*hops])

    async def _hop(
        self, target: WebUrl, request: WebRequest, cap: Callable[[Mapping[str, str]], int], hops: Sequence[str]
    ) -> WebResponse | CrossSiteRedirect | _Redirect:
        addresses = await self._resolve_addresses(target)
        load = partial(self._load, addresses, target.scheme == "https")
        exchange = await to_thread.run_sync(load, abandon_on_cancel=True)
        headers = {"User-Agent": self._settings.user_agent, "Accept-Encoding": "gzip", **request.headers}
        async with exchange(target, headers=headers, method=request.method, body=request.body) as answer:
            location = answer.headers.get("location")
            if location is not None and _is_followed(request.method, answer.status):
                following = target.join(location)
                # Check before reporting the redirect: mentioning a private URL would invite another try.
                self._refuse_by_name(following)
                is_near = is_same_site if request.follow == "site" else is_same_origin
                if not is_near(target, following):
                    return CrossSiteRedirect(answer.status, following.url, target.url, tuple(hops))
                if (target.scheme, following.scheme) == ("https", "http"):
                    message = f"{target.url} leads to {following.url}, which is not encrypted: not followed"
                    raise FetchError(message, code="denied", reason="downgrade")
                if answer.status == _SEE_OTHER and request.method not in _SAFE_METHODS:
                    request = replace(request, method="GET", body=None)
                return _Redirect(following, request)
            body = ResponseBody(
                answer.headers.get("content-encoding", ""),
                min(cap(answer.headers), self._settings.hard_bytes),
                self._settings.ratio,
            )
            early = False
            try:
                async for piece in answer.pieces:
                    if not body.feed(piece):
                        break
            except BodyEndedEarly:
                if not body.packed:
                    raise
                early = True
            body.finish(early=early)
        return WebResponse(target, answer.status, answer.headers, body.data, body.packed, body.cut, tuple(hops))

    def _load(self, addresses: Sequence[str], secure: bool) -> _Exchange:
        """Load the HTTP library and the certificates. Blocks."""
        from indusagi.capabilities.web import dial  # noqa: PLC0415 — the library, on first use

        settings = self._settings
        tls = (settings.tls or dial.shared_tls()) if secure else None
        proxy = None if addresses else self._proxy
        route = dial.Route(addresses, settings.connect_s, tls, proxy, settings.proxy_auth)
        return partial(dial.exchange, route=route)

    async def _resolve_addresses(self, target: WebUrl) -> Sequence[str]:
        """Return the vetted addresses of a URL, or none if the proxy does the lookup."""
        if target.port not in self._settings.ports and not self._is_allowed_private(target):
            allowed = ", ".join(map(str, self._settings.ports))
            message = f"{target.authority}: port {target.port} is not fetched from, only {allowed}; "
            own = _is_local_name(target) or (target.address and classify_address(target.host) in PRIVATE_KINDS)
            message += _allow_hint(target) if own else "the setting `web.ports` can name others"
            raise FetchError(message, code="denied", reason="port", host=target.host)
        if self._proxy is not None and not self._is_allowed_private(target):
            self._refuse_by_name(target)
            if ":" in target.host:  # the library passes it to the proxy without brackets
                message = f"{target.host}: an IPv6 address cannot be fetched through a proxy"
                raise FetchError(message, code="unsupported", reason="proxy")
            return ()
        addresses: Sequence[str] = [target.host]
        if target.address is None:
            try:
                with fail_after(self._settings.connect_s):
                    addresses = await self._resolve(target.host, target.port)
            except TimeoutError:
                message = f"{target.host} could not be looked up in time"
                raise FetchError(message, code="timeout", reason="dns", host=target.host) from None
            except (OSError, UnicodeError) as exc:
                message = f"{target.host} could not be looked up: {_reason(exc)}"
                raise FetchError(message, code="not_found", reason="dns", host=target.host) from exc
            if not addresses:
                message = f"{target.host} has no address"
                raise FetchError(message, code="not_found", reason="dns", host=target.host)
        self._refuse_private(target, addresses)
        return addresses

    def _refuse_by_name(self, target: WebUrl) -> None:
        """Reject private hosts and addresses without a lookup."""
        if target.address is not None:
            self._refuse_private(target, [target.host])
            return
        if _is_local_name(target) and not self._is_allowed_private(target):
            message = f"{target.host}: a name of one's own network, which is not on the open web; "
            message += _allow_hint(target)
            raise FetchError(message, code="denied", reason="name", host=target.host)

    def _refuse_private(self, target: WebUrl, addresses: Sequence[str]) -> None:
        for address in addresses:
            kind = classify_address(address)
            if kind == "public" or (kind in PRIVATE_KINDS and self._is_allowed_private(target)):
                continue
            named = "" if target.address else f" is at {address}"
            message = f"{target.host}{named}: a {kind} address, which is not on the open web"
            if kind in PRIVATE_KINDS:
                message += f"; {_allow_hint(target)}"
            facts = {"host": target.host, "address": address, "kind": kind}
            raise FetchError(message, code="denied", reason="address", **facts)

    def _is_allowed_private(self, target: WebUrl) -> bool:
        return (target.host, target.port) in self._allowed_private or (target.host, None) in self._allowed_private


def _is_local_name(target: WebUrl) -> bool:
    """Return whether a name can only belong to a local network (RFC 6761, RFC 8375)."""
    if target.address is not None:
        return False
    return "." not in target.host or is_subdomain(target.host, _LOCAL_NAMES)


def _allow_hint(target: WebUrl) -> str:
    """Describe how the user can allow a server on the local network."""
    own = f"{target.authority.removesuffix(f':{target.port}')}:{target.port}"
    flag = f"the user can allow it with --web-allow '{own}'"
    return f"if it is a server of the user's, {flag} or in the setting `web.allow_private`"


def _is_followed(method: str, status: int) -> bool:
    if method in _SAFE_METHODS:
        return status in _REDIRECTS
    return status in _SAME_METHOD or status == _SEE_OTHER


class _Exchange(Protocol):
    def __call__(
        self, target: WebUrl, *, headers: Mapping[str, str], method: str, body: bytes | None
    ) -> AbstractAsyncContextManager[HttpAnswer]: ...


@record
class _Redirect:
    target: WebUrl
    request: WebRequest


def _proxy(address: str | None) -> WebUrl | None:
    if address is None:
        return None
    proxy = parse_url(address)
    if proxy.scheme != "http":
        message = f"the proxy {_shorten_url(address)} must be named as http://host:port"
        raise FetchError(message, code="unsupported", reason="proxy")
    return proxy


def _reason(exc: Exception) -> str:
    return exc.strerror or str(exc) if isinstance(exc, OSError) else str(exc)


def _shorten_url(url: str) -> str:
    return cut_text(clean_text(url)[0], 200)
