"""The guarded client: checks every hop of a request, connects to the checked address, and reads a limited body.

We look up a host name once per hop. All its addresses must be public or allowed and we connect to one of them, so a
later DNS answer (DNS rebinding) changes nothing. Redirects follow the same rules and stay within one site or one
origin. Bodies are decompressed in small steps within a size limit: a compression bomb costs no more than a body of
maximum size.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from anyio import fail_after, to_thread

from indusagi.core.records import record
from indusagi.net.address import (
    PRIVATE_KINDS,
    FetchError,
    HttpPolicy,
    classify_address,
    is_same_origin,
    is_same_site,
    is_subdomain,
    parse_host_and_port,
    parse_url,
    shorten_url,
)
from indusagi.net.dial import BodyEndedEarly, open_network, parse_proxy, shared_tls, system_resolver

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue
    from indusagi.net.address import WebUrl
    from indusagi.net.dial import HttpAnswer, Network

    Cap: TypeAlias = Callable[[Mapping[str, str]], int]
    """Maps the headers of a response to the number of bytes to read."""

_LOCAL_NAMES: Final = (
    *("localhost", "local", "localdomain", "internal", "intranet", "private", "corp"),
    *("home", "lan", "home.arpa"),
)
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
SAME_METHOD: Final = frozenset({307, 308})
"""Redirects that keep the method and body."""
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
    """Sends requests within the limits of its policy. Doesn't keep connections open between calls."""

    def __init__(self, policy: HttpPolicy) -> None:
        self._policy = policy
        self._resolve = policy.resolver or system_resolver
        self._proxy = parse_proxy(policy.proxy, "its configuration") if policy.proxy else None
        self._allowed_private = frozenset(parse_host_and_port(text) for text in policy.allow_private)

    async def fetch(self, url: str, *, accept: str, cap: Cap | None = None) -> WebResponse | CrossSiteRedirect:
        """Fetch a page; `cap` can read less of it than the policy allows.

        Raises:
            FetchError: Fetching isn't allowed, or failed.
        """
        return await self.send(WebRequest(url, headers={"Accept": accept}), cap=cap)

    async def send(self, request: WebRequest, *, cap: Cap | None = None) -> WebResponse | CrossSiteRedirect:
        """Send a request; `cap` can read less of the response than the policy allows.

        Status 307 and 308 keep the method and body; 303 turns into a GET. For methods other than GET and HEAD we return
        301 and 302 as is, because clients disagree about the method of the next request (RFC 9110 §15.4).

        Raises:
            FetchError: Sending isn't allowed, or there was no answer. Messages include the URL.
        """
        total_s = self._policy.total_s
        try:
            with fail_after(total_s):
                return await self._follow(parse_url(request.url), request, cap)
        except TimeoutError:
            message = f"{shorten_url(request.url)} did not arrive within {total_s:g} s"
            raise FetchError(message, code="timeout", reason="total") from None

    async def check_address(self, url: str) -> None:
        """Check whether a request to a URL is allowed, without sending one. Looks up the host name.

        Raises `FetchError` if it isn't allowed, or the host is unknown.
        """
        target = parse_url(url)
        self._refuse_by_name(target)
        await self._resolve_addresses(target)

    async def _follow(self, target: WebUrl, request: WebRequest, cap: Cap | None) -> WebResponse | CrossSiteRedirect:
        hops: list[str] = []
        for _ in range(self._policy.redirects + 1):
            try:
                found = await self._hop(target, request, cap, hops)
            except FetchError as trouble:
                if not hops:
                    raise
                message = f"{trouble} (redirected from {shorten_url(hops[-1])})"
                facts: dict[str, JsonValue] = {**trouble.facts, "redirects": [*hops]}
                raise FetchError(message, code=trouble.code, **facts) from trouble
            if not isinstance(found, tuple):
                return found
            hops.append(target.url)
            target, request = found
        message = f"{shorten_url(target.url)}: {len(hops)} redirects, and no page at the end of them"
        raise FetchError(message, code="failed", reason="redirects", redirects=[*hops])

    async def _hop(
        self, target: WebUrl, request: WebRequest, cap: Cap | None, hops: Sequence[str]
    ) -> WebResponse | CrossSiteRedirect | tuple[WebUrl, WebRequest]:
        """Send a request to one URL; return the response, or where and how to follow it."""
        network = await self._open(target)
        try:
            headers = {"User-Agent": self._policy.user_agent, "Accept-Encoding": "gzip", "Connection": "close"}
            answer = await network.send(request.method, target, headers | {**request.headers}, request.body)
            try:
                redirect = self._find_redirect(request, answer, hops)
                return await self._read(answer, cap, hops) if redirect is None else redirect
            finally:
                await answer.aclose()
        finally:
            await network.aclose()

    def _find_redirect(
        self, request: WebRequest, answer: HttpAnswer, hops: Sequence[str]
    ) -> CrossSiteRedirect | tuple[WebUrl, WebRequest] | None:
        target, location = answer.target, answer.headers.get("location")
        followed = REDIRECTS if request.method in _SAFE_METHODS else SAME_METHOD | {_SEE_OTHER}
        if location is None or answer.status not in followed:
            return None
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
        return following, request

    async def _read(self, answer: HttpAnswer, cap: Cap | None, hops: Sequence[str]) -> WebResponse:
        limit, headers = self._policy.hard_bytes, answer.headers
        limit = limit if cap is None else min(cap(headers), limit)
        body, early = ResponseBody(headers.get("content-encoding", ""), limit), False
        try:
            async for piece in answer.pieces:
                if not body.feed(piece):
                    break
        except BodyEndedEarly:
            if not body.packed:
                raise
            early = True
        body.finish(early=early)
        return WebResponse(answer.target, answer.status, headers, body.data, body.packed, body.cut, tuple(hops))

    async def _open(self, target: WebUrl) -> Network:
        addresses, policy = await self._resolve_addresses(target), self._policy
        proxy = None if addresses else self._proxy
        tls = policy.tls
        if tls is None and "https" in {target.scheme, "" if proxy is None else proxy.scheme}:
            tls = await to_thread.run_sync(shared_tls, abandon_on_cancel=True)
        return open_network(connect_s=policy.connect_s, tls=tls, addresses=addresses, proxy=proxy)

    async def _resolve_addresses(self, target: WebUrl) -> Sequence[str]:
        """Return the vetted addresses of a URL, or none if the proxy does the lookup."""
        if target.port not in self._policy.ports and not self._is_allowed_private(target):
            allowed = ", ".join(map(str, self._policy.ports))
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
                with fail_after(self._policy.connect_s):
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
    flag = f"the user can allow it with --web-allow '{target.server}'"
    return f"if it is a server of the user's, {flag} or in the setting `web.allow_private`"


def _reason(exc: Exception) -> str:
    return exc.strerror or str(exc) if isinstance(exc, OSError) else str(exc)


# -- bodies -----------------------------------------------------------------------------------


def get_media_type(headers: Mapping[str, str]) -> str:
    """Return a body's media type without parameters (RFC 9110 §8.3)."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


Truncation: TypeAlias = Literal["size", "ended early"]
"""Why a body is incomplete."""
_STEP: Final = 64 * 1024
_GZIP: Final = zlib.MAX_WBITS | 16
_PLAIN: Final = frozenset({"", "identity"})
_PACKED: Final = frozenset({"gzip", "x-gzip"})


class ResponseBody:
    """Collects a body up to a size limit."""

    def __init__(self, coding: str, cap: int) -> None:
        coding = coding.strip().lower()
        if coding not in _PLAIN | _PACKED:
            message = f"the server packed its answer as {coding[:40]!r}, which was not asked for"
            raise FetchError(message, code="unsupported", reason="coding")
        self._decompressor = zlib.decompressobj(_GZIP) if coding in _PACKED else None
        self._gzip_members = 0
        self._is_padding = False
        self._cap = cap
        self._data = bytearray()
        self.packed = 0
        """Bytes received, before decompression."""
        self.cut: Truncation | None = None

    @property
    def data(self) -> bytes:
        """The decompressed bytes so far."""
        return bytes(self._data)

    def feed(self, piece: bytes) -> bool:
        """Add a chunk; return whether we want more.

        Raises `FetchError` if the body isn't compressed the way the server claims.
        """
        left = self._cap - self.packed
        self.packed += len(piece)
        if self._decompressor is None:
            self._data += piece[:left]
        else:
            self._unpack(piece[:left])
        if len(piece) > left:
            self.cut = self.cut or "size"
        return self.cut is None

    def finish(self, *, early: bool) -> None:
        """Mark the end of the body; `early` means the connection closed first."""
        unfinished = self._decompressor is not None and self.packed > 0 and not self._decompressor.eof
        if early or (unfinished and not self._is_padding):
            self.cut = self.cut or "ended early"

    def _unpack(self, piece: bytes) -> None:
        while piece and self.cut is None and self._decompressor is not None and not self._is_padding:
            try:
                grown = self._decompressor.decompress(piece, _STEP)
            except zlib.error as exc:
                # Padding may follow the last member of a gzip file; readers ignore it (RFC 1952).
                self._is_padding = self._gzip_members > 0
                if self._is_padding:
                    return
                message = f"the server said that its answer is packed, but it is not: {exc}"
                raise FetchError(message, code="failed", reason="coding") from None
            piece = self._decompressor.unconsumed_tail
            self._data += grown[: self._cap - len(self._data)]
            if len(self._data) >= self._cap:
                self.cut = "size"
            if self._decompressor.eof:
                piece = self._decompressor.unused_data
                self._gzip_members += 1
                self._decompressor = zlib.decompressobj(_GZIP) if piece else self._decompressor


# -- event streams ----------------------------------------------------------------------------
#
# `text/event-stream`: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream


_BLANK_LINE = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_FIELD = re.compile(rb"(?:\A|(?<=[\r\n]))(data|event|id|retry)(?:: ?([^\r\n]*))?(?![^\r\n])")
_BOM = b"\xef\xbb\xbf"
_OVERLAP = 3
"""How many bytes of a blank line (CR LF CR LF) may have come with the previous chunk."""
_MAX_RETRY_DIGITS = 7
"""A server may ask for a pause of up to three hours."""


class EventTooLargeError(Exception):
    """An event is over the size limit."""


@record
class ServerEvent:
    """One event of a stream."""

    name: str
    data: bytes


class EventParser:
    """Parses the streams of one conversation, chunk by chunk; `reset` begins the next stream.

    Args:
        limit: Largest event in bytes.
    """

    def __init__(self, limit: int) -> None:
        self.last_id: str | None = None
        """Id of the last event that had one, with which the stream can be resumed."""
        self.retry_s: float | None = None
        """Pause before reconnecting, if the server asked for one."""
        self._limit = limit
        self._rest = bytearray()
        self._is_first = True

    def reset(self) -> None:
        """Begin another stream; drop an event that was cut off."""
        self._rest.clear()
        self._is_first = True

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """Add a chunk and yield the events that are complete and have data.

        Raises `EventTooLargeError` if an event is over the limit.
        """
        # A blank line may start in the previous chunk: search its last bytes again.
        searched_from = max(len(self._rest) - _OVERLAP, 0)
        self._rest += piece
        while (end := _BLANK_LINE.search(self._rest, searched_from)) is not None:
            size = end.end()
            self._check_size(size)
            with memoryview(self._rest) as view:
                block = bytes(view[:size])
            del self._rest[:size]
            searched_from = 0
            event = self._parse(block)
            del block
            if event is not None:
                yield event
        self._check_size(len(self._rest))

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            self.reset()
            raise EventTooLargeError

    def _parse(self, block: bytes) -> ServerEvent | None:
        if self._is_first:
            self._is_first = False
            block = block.removeprefix(_BOM)
        name, lines = "", list[bytes]()
        for match in _FIELD.finditer(block):
            field, value = match[1], match[2] or b""
            if field == b"data":
                lines.append(value)
            elif field == b"event":
                name = value.decode("utf-8", "replace")
            elif field == b"id" and b"\0" not in value:
                self.last_id = value.decode("utf-8", "replace") or None
            elif field == b"retry" and value.isdigit():
                self.retry_s = int(value[:_MAX_RETRY_DIGITS]) / 1000
        return ServerEvent(name or "message", b"\n".join(lines)) if lines else None
