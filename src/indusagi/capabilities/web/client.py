"""The guarded client: every hop is checked, dialled where it was checked, and counted.

A name is looked up once for each hop. All its addresses must be on the open web, and one of those
is connected to: who answers the name otherwise a moment later gains nothing. Redirects are followed
by hand, under the same rules, and only as long as they stay on the same site.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from anyio import fail_after, to_thread

from indusagi.capabilities.ports import FetchError
from indusagi.capabilities.web.addresses import AT_HOME, kind_of
from indusagi.capabilities.web.body import Body, EndedEarly
from indusagi.capabilities.web.resolve import system_resolver
from indusagi.capabilities.web.target import is_within, parse_host_and_port, parse_target, same_site
from indusagi.core.text import clean_text, cut_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from indusagi.capabilities.ports import WebSettings
    from indusagi.capabilities.web.body import Cut
    from indusagi.capabilities.web.dial import Answer
    from indusagi.capabilities.web.target import Target
    from indusagi.core.json import JsonValue

_OWN_NAMES: Final = (
    *("localhost", "local", "localdomain", "internal", "intranet", "private", "corp"),
    *("home", "lan", "home.arpa"),
)
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer."""

    target: Target
    """Where it came from in the end."""
    status: int
    headers: Mapping[str, str]
    body: bytes
    """Unpacked."""
    received: int
    """Bytes that came over the wire."""
    cut: Cut | None
    """Why the body is not whole."""
    hops: Sequence[str] = ()
    """The addresses that led here."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A redirect to another site, which the caller may follow by asking for it."""

    status: int
    url: str
    came_from: str
    hops: Sequence[str] = ()


class WebClient:
    """Fetches pages within the bounds of its settings. It holds nothing open between two calls."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._resolve = settings.resolver or system_resolver
        self._proxy = _proxy(settings.proxy)
        self._at_home = frozenset(parse_host_and_port(text) for text in settings.allow_private)

    async def fetch(self, url: str, *, accept: str, cap: Callable[[Mapping[str, str]], int]) -> Fetched | Elsewhere:
        """Fetch a page; `cap` tells from the headers how many bytes of it are wanted.

        Raises:
            FetchError: It may not be fetched, or could not be.
        """
        try:
            with fail_after(self._settings.total_s):
                return await self._follow(parse_target(url), accept, cap)
        except TimeoutError:
            message = f"{_shown(url)} did not arrive within {self._settings.total_s:g} s"
            raise FetchError(message, code="timeout", reason="total") from None

    async def _follow(
        self, target: Target, accept: str, cap: Callable[[Mapping[str, str]], int]
    ) -> Fetched | Elsewhere:
        hops: list[str] = []
        for _ in range(self._settings.redirects + 1):
            try:
                found = await self._hop(target, accept, cap, hops)
            except FetchError as trouble:
                raise _on_the_way(trouble, hops) from trouble
            if not isinstance(found, _Onward):
                return found
            hops.append(target.url)
            target = found.target
        message = f"{_shown(target.url)}: {len(hops)} redirects, and no page at the end of them"
        raise FetchError(message, code="failed", reason="redirects", redirects=[*hops])

    async def _hop(
        self, target: Target, accept: str, cap: Callable[[Mapping[str, str]], int], hops: Sequence[str]
    ) -> Fetched | Elsewhere | _Onward:
        addresses = await self._checked(target)
        load = partial(self._loaded, addresses, target.scheme == "https")
        exchange = await to_thread.run_sync(load, abandon_on_cancel=True)
        headers = {"User-Agent": self._settings.user_agent, "Accept": accept, "Accept-Encoding": "gzip"}
        async with exchange(target, headers=headers) as answer:
            location = answer.headers.get("location")
            if answer.status in _REDIRECTS and location is not None:
                return self._onward(target, answer.status, location, hops)
            body = Body(
                answer.headers.get("content-encoding", ""),
                min(cap(answer.headers), self._settings.hard_bytes),
                self._settings.ratio,
            )
            early = False
            try:
                async for piece in answer.pieces:
                    if not body.feed(piece):
                        break
            except EndedEarly:
                if not body.packed:
                    raise
                early = True
            body.finish(early=early)
        return Fetched(target, answer.status, answer.headers, body.data, body.packed, body.cut, tuple(hops))

    def _loaded(self, addresses: Sequence[str], secure: bool) -> _Exchange:
        """Load the HTTP library and, where it is needed, the certificates: not for the loop."""
        from indusagi.capabilities.web import dial  # noqa: PLC0415 — the library, on first use

        settings = self._settings
        tls = (settings.tls or dial.shared_tls()) if secure else None
        proxy = None if addresses else self._proxy
        route = dial.Route(addresses, settings.connect_s, tls, proxy, settings.proxy_auth)
        return partial(dial.exchange, route=route)

    def _onward(self, target: Target, status: int, location: str, hops: Sequence[str]) -> Elsewhere | _Onward:
        following = target.joined(location)
        # Told at once: a notice that names such a place would only invite another try.
        self._refuse_by_name(following)
        if not same_site(target, following):
            return Elsewhere(status, following.url, target.url, tuple(hops))
        if (target.scheme, following.scheme) == ("https", "http"):
            message = f"{target.url} leads to {following.url}, which is not encrypted: not followed"
            raise FetchError(message, code="denied", reason="downgrade")
        return _Onward(following)

    # -- what may be dialled ----------------------------------------------------------------

    async def _checked(self, target: Target) -> Sequence[str]:
        """Give the addresses of a target, all of them allowed; none: the proxy finds them."""
        if target.port not in self._settings.ports and not self._is_at_home(target):
            allowed = ", ".join(map(str, self._settings.ports))
            message = f"{target.authority}: port {target.port} is not fetched from, only {allowed}; "
            own = _is_own_name(target) or (target.address and kind_of(target.host) in AT_HOME)
            message += _allow_hint(target) if own else "the setting `web.ports` can name others"
            raise FetchError(message, code="denied", reason="port", host=target.host)
        if self._proxy is not None and not self._is_at_home(target):
            self._refuse_by_name(target)
            if ":" in target.host:  # the library writes it to a proxy without brackets
                message = f"{target.host}: an IPv6 address cannot be fetched through a proxy"
                raise FetchError(message, code="unsupported", reason="proxy")
            return ()
        found = [target.host] if target.address else await self._looked_up(target)
        self._refuse_unless_open(target, found)
        return found

    def _refuse_by_name(self, target: Target) -> None:
        """Refuse what is not on the open web, as far as can be told without a look-up."""
        if target.address is not None:
            self._refuse_unless_open(target, [target.host])
            return
        if _is_own_name(target) and not self._is_at_home(target):
            message = f"{target.host}: a name of one's own network, which is not on the open web; "
            message += _allow_hint(target)
            raise FetchError(message, code="denied", reason="name", host=target.host)

    async def _looked_up(self, target: Target) -> Sequence[str]:
        try:
            with fail_after(self._settings.connect_s):
                found = await self._resolve(target.host, target.port)
        except TimeoutError:
            message = f"{target.host} could not be looked up in time"
            raise FetchError(message, code="timeout", reason="dns", host=target.host) from None
        except (OSError, UnicodeError) as exc:
            message = f"{target.host} could not be looked up: {_reason(exc)}"
            raise FetchError(message, code="not_found", reason="dns", host=target.host) from exc
        if not found:
            message = f"{target.host} has no address"
            raise FetchError(message, code="not_found", reason="dns", host=target.host)
        return found

    def _refuse_unless_open(self, target: Target, addresses: Sequence[str]) -> None:
        for address in addresses:
            kind = kind_of(address)
            if kind == "public" or (kind in AT_HOME and self._is_at_home(target)):
                continue
            named = "" if target.address else f" is at {address}"
            message = f"{target.host}{named}: a {kind} address, which is not on the open web"
            if kind in AT_HOME:
                message += f"; {_allow_hint(target)}"
            facts = {"host": target.host, "address": address, "kind": kind}
            raise FetchError(message, code="denied", reason="address", **facts)

    def _is_at_home(self, target: Target) -> bool:
        return (target.host, target.port) in self._at_home or (target.host, None) in self._at_home


def _is_own_name(target: Target) -> bool:
    """Tell whether a name can only be one of somebody's own network."""
    if target.address is not None:
        return False
    return "." not in target.host or is_within(target.host, _OWN_NAMES)


def _allow_hint(target: Target) -> str:
    """Say how the user can allow a server of their own network."""
    own = f"{target.authority.removesuffix(f':{target.port}')}:{target.port}"
    flag = f"the user can allow it with --web-allow '{own}'"
    return f"if it is a server of the user's, {flag} or in the setting `web.allow_private`"


class _Exchange(Protocol):
    def __call__(self, target: Target, *, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Answer]: ...


@dataclass(frozen=True, slots=True)
class _Onward:
    target: Target


def _proxy(address: str | None) -> Target | None:
    if address is None:
        return None
    proxy = parse_target(address)
    if proxy.scheme != "http":
        message = f"the proxy {_shown(address)} must be named as http://host:port"
        raise FetchError(message, code="unsupported", reason="proxy")
    return proxy


def _on_the_way(trouble: FetchError, hops: Sequence[str]) -> FetchError:
    """Say which redirects led to the trouble."""
    if not hops:
        return trouble
    message = f"{trouble} (redirected from {_shown(hops[-1])})"
    facts: dict[str, JsonValue] = {**trouble.facts, "redirects": [*hops]}
    return FetchError(message, code=trouble.code, **facts)


def _reason(exc: Exception) -> str:
    return exc.strerror or str(exc) if isinstance(exc, OSError) else str(exc)


def _shown(url: str) -> str:
    return cut_text(clean_text(url)[0], 200)
