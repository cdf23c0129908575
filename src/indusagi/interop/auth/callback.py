"""Loopback redirect: receives an authorization server's answer on this machine (RFC 8252 §7.3).

The listener accepts one GET with the redirect URI's path and the request's `state`, and refuses everything else, so
that neither another user of the machine nor a web page can end a sign-in. The sign-in itself judges the values, so the
page in the browser can't tell the result.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import html
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast
from urllib.parse import parse_qsl, urlsplit

from indusagi.interop.auth.contract import SIGN_IN_WAIT_S, AuthFault, AuthSettings
from indusagi.interop.auth.metadata import check_endpoint, split_address

CALLBACK_PATH: Final = "/callback"
_MAX_HEAD_BYTES: Final = 32 * 1024
_HEAD_WAIT_S: Final = 10.0
_CONNECTIONS: Final = 32
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_REQUEST_LINE = re.compile(rb"([A-Z]{1,10}) ([\x21-\x7e]{1,16384}) HTTP/1\.[01]")
_PARAMETERS: Final = 32


def read_redirect(target: str, path: str, state: str) -> Mapping[str, str] | None:
    """Return the query parameters of a redirect, or None if it doesn't answer the request with this `state`.

    A parameter must not be repeated (RFC 6749 §3.1).
    """
    try:
        parts = urlsplit(target)
        pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=_PARAMETERS, errors="strict")
    except ValueError:
        return None
    values = dict(pairs)
    if parts.path != path or len(values) != len(pairs) or not ("code" in values or "error" in values):
        return None
    is_ours = hmac.compare_digest(values.get("state", "").encode("utf-8", "surrogatepass"), state.encode("utf-8"))
    return values if is_ours else None


def read_state(url: str) -> str:
    """Return the `state` of an authorization request, which we're about to send the user to.

    Raises `AuthFault` if the URL isn't safe to open, or has no state to tell its answer from another.
    """
    check_endpoint(url, "sign-in page", "the authorization request")
    state = dict(parse_qsl(split_address(url).query)).get("state", "")
    if not state:
        raise AuthFault("the authorization request has no state")
    return state


class RedirectListener:
    """A listener for the redirect of one authorization request; a `RedirectReceiver`.

    Args:
        redirect_uri: Where the authorization server sends the browser.
        show: Has the user open the sign-in page.
        wait_s: How long the user has.
    """

    def __init__(
        self, redirect_uri: str, show: Callable[[str], Awaitable[object]], wait_s: float = SIGN_IN_WAIT_S
    ) -> None:
        self.redirect_uri = redirect_uri
        self._show = show
        self._wait_s = wait_s
        self._path = urlsplit(redirect_uri).path or "/"
        self._state = ""
        self._received: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self._connections: set[asyncio.Task[object]] = set()
        self.refused = 0
        """Number of refused requests."""

    async def authorize(self, url: str) -> Mapping[str, str]:
        """Have the user open a page, and return the query parameters of its redirect.

        Raises `AuthFault` if the deadline passed.
        """
        self._state = read_state(url)
        await self._show(url)
        try:
            async with asyncio.timeout(self._wait_s):
                return await self._received
        except TimeoutError:
            message = f"no one has signed in within {self._wait_s / 60:g} minutes: try again, or sign in with --paste"
            raise AuthFault(message) from None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection with one response and close it."""
        task = cast("asyncio.Task[object]", asyncio.current_task())
        self._connections.add(task)
        try:
            if len(self._connections) > _CONNECTIONS:
                return
            async with asyncio.timeout(_HEAD_WAIT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            self.refused += 1
        finally:
            self._connections.discard(task)
            writer.close()

    async def close(self) -> None:
        """Close open connections."""
        tasks = [*self._connections]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _answer(self, head: bytes) -> bytes:
        line = _REQUEST_LINE.fullmatch(head.partition(b"\r\n")[0])
        if line is None:
            return self._refuse(400, "Bad Request")
        method, target = line[1].decode(), line[2].decode()
        if target.partition("?")[0] != self._path:
            return self._refuse(404, "Not Found")
        if method != "GET":
            return self._refuse(405, "Method Not Allowed")
        values = read_redirect(target, self._path, self._state) if self._state else None
        if values is None or self._received.done():
            return self._refuse(400, "Bad Request")
        self._received.set_result(values)
        text = "indus has received the answer. You may close this page; the program shows how the sign-in ended."
        return _build_response(200, "OK", text)

    def _refuse(self, status: int, phrase: str) -> bytes:
        self.refused += 1
        return _build_response(status, phrase, "This request does not belong to a sign-in of indus.")


def _build_response(status: int, phrase: str, text: str) -> bytes:
    body = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>indus</title><p>{html.escape(text)}</p></html>\n'
    ).encode()
    head = (
        f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n"
        "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


@asynccontextmanager
async def listen_for_redirect(
    settings: AuthSettings,
    registered: Sequence[str],
    show: Callable[[str], Awaitable[object]],
    wait_s: float = SIGN_IN_WAIT_S,
) -> AsyncGenerator[RedirectListener]:
    """Listen for one redirect: at the configured address or port, else where the client is registered, else anywhere.

    Raises `AuthFault` if the configured port is in use, or the configured redirect URI isn't on this machine.
    """
    sockets: list[socket.socket] = []
    redirect_uri = choose_redirect_uri(settings, registered)
    fixed = bool(settings.redirect_uri or settings.callback_port)
    try:
        sockets = _bind(redirect_uri)
    except OSError as exc:
        if fixed:
            port = urlsplit(redirect_uri).port
            message = f"port {port} of the redirect cannot be used: {exc.strerror or exc}; give another one: --port N"
            raise AuthFault(message) from exc
        redirect_uri = choose_redirect_uri(settings, ())
        sockets = _bind(redirect_uri)
    parts = urlsplit(redirect_uri)
    if parts.port == 0:
        redirect_uri = f"http://{parts.hostname}:{sockets[0].getsockname()[1]}{parts.path}"
    listener = RedirectListener(redirect_uri, show, wait_s)
    servers: list[asyncio.Server] = []
    try:
        for bound in [*sockets]:
            servers.append(await asyncio.start_server(listener.serve, sock=bound, limit=_MAX_HEAD_BYTES))
            sockets.remove(bound)
        yield listener
    finally:
        for bound in sockets:
            bound.close()
        for server in servers:
            server.close()
        await listener.close()


def choose_redirect_uri(settings: AuthSettings, registered: Sequence[str]) -> str:
    """Choose a request's redirect URI; port 0 stands for any free port.

    Raises `AuthFault` if the configured one isn't on this machine.
    """
    if settings.redirect_uri:
        if not _is_loopback(settings.redirect_uri):
            message = f"the redirect URI {settings.redirect_uri!r} is not on this machine: sign in with --paste"
            raise AuthFault(message)
        return settings.redirect_uri
    if settings.callback_port:
        return f"http://127.0.0.1:{settings.callback_port}{CALLBACK_PATH}"
    return next((uri for uri in registered if _is_loopback(uri)), f"http://127.0.0.1:0{CALLBACK_PATH}")


def _is_loopback(uri: str) -> bool:
    try:
        parts = urlsplit(uri)
        return parts.scheme == "http" and parts.hostname in _LOOPBACK and parts.port is not None
    except ValueError:
        return False


def _bind(redirect_uri: str) -> list[socket.socket]:
    """Bind the loopback addresses of a redirect URI, in both families for `localhost`."""
    parts = urlsplit(redirect_uri)
    hosts = ["127.0.0.1", "::1"] if parts.hostname == "localhost" else [parts.hostname or ""]
    port, bound = parts.port or 0, list[socket.socket]()
    try:
        for host in hosts:
            one = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            try:
                # A connection of an earlier sign-in may linger on a fixed port (TIME_WAIT).
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind((host, port))
            except OSError as exc:
                one.close()
                if host == "::1" and bound and exc.errno in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                    continue  # a machine without IPv6
                raise
            bound.append(one)
            port = one.getsockname()[1]
    except OSError:
        for one in bound:
            one.close()
        raise
    return bound
