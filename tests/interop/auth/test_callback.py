from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import pytest

from indusagi.interop.auth.callback import (
    RedirectListener,
    choose_redirect_uri,
    listen_for_redirect,
    read_redirect,
    read_state,
)
from indusagi.interop.auth.contract import AuthFault, AuthSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

STATE = "state-1"
URL = f"https://login.example/authorize?state={STATE}"


async def show(url: str) -> None:
    assert url == URL


def listening(
    settings: AuthSettings | None = None, registered: Sequence[str] = (), wait_s: float = 20
) -> AbstractAsyncContextManager[RedirectListener]:
    return listen_for_redirect(settings or AuthSettings(), registered, show, wait_s)


async def send(uri: str, request: str) -> bytes:
    """Send bytes to a listener, and read until it closes the connection."""
    parts = urlsplit(uri)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(request.encode("latin-1"))
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def get(listener: RedirectListener, target: str, method: str = "GET") -> bytes:
    return await send(listener.redirect_uri, f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n")


async def receive(listener: RedirectListener, *targets: str) -> tuple[list[bytes], Mapping[str, str]]:
    """Wait for the redirect, and send requests one after the other meanwhile."""
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(listener.authorize(URL))
        await asyncio.sleep(0)
        answers = [await get(listener, target) for target in targets]
    return answers, waiting.result()


async def test_the_redirect_of_the_request_is_received() -> None:
    async with listening() as listener:
        (answer,), values = await receive(listener, f"/callback?code=c%20d&state={STATE}&iss=https%3A%2F%2Fi")
    assert values == {"code": "c d", "state": STATE, "iss": "https://i"}
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"You may close this page" in answer
    assert b"Referrer-Policy: no-referrer" in answer
    assert b"c d" not in answer


async def test_the_error_of_the_request_is_received_and_not_shown() -> None:
    async with listening() as listener:
        (answer,), values = await receive(listener, f"/callback?error=access_denied&state={STATE}")
    assert values["error"] == "access_denied"
    assert b"denied" not in answer


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/callback?code=c&state=another", 400),
        ("/callback?code=c", 400),
        (f"/callback?state={STATE}", 400),
        (f"/callback?code=c&code=d&state={STATE}", 400),
        (f"/callback?code=%ff&state={STATE}", 400),
        (f"/other?code=c&state={STATE}", 404),
        ("/favicon.ico", 404),
    ],
)
async def test_other_requests_are_refused_and_the_sign_in_goes_on(target: str, status: int) -> None:
    async with listening() as listener:
        (answer, _), values = await receive(listener, target, f"/callback?code=right&state={STATE}")
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert values["code"] == "right"
        assert listener.refused == 1


async def test_other_methods_and_bad_requests_are_refused() -> None:
    async with listening() as listener:
        assert (await get(listener, f"/callback?code=c&state={STATE}", "POST")).startswith(b"HTTP/1.1 405 ")
        assert (await send(listener.redirect_uri, "nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        assert await send(listener.redirect_uri, "GET /" + "a" * 70_000) == b""
        assert listener.refused == 3


async def test_a_redirect_before_the_request_is_refused() -> None:
    async with listening() as listener:
        assert (await get(listener, "/callback?code=c&state=")).startswith(b"HTTP/1.1 400 ")


async def test_a_second_redirect_is_refused() -> None:
    async with listening() as listener:
        target = f"/callback?code=c&state={STATE}"
        (_, second), values = await receive(listener, target, target.replace("=c", "=d"))
        assert second.startswith(b"HTTP/1.1 400 ")
        assert values["code"] == "c"


async def test_a_sign_in_has_a_deadline() -> None:
    async with listening(wait_s=0) as listener:
        with pytest.raises(AuthFault, match="no one has signed in within 0 minutes"):
            await listener.authorize(URL)


async def test_open_connections_end_with_the_listener() -> None:
    async with listening() as listener:
        parts = urlsplit(listener.redirect_uri)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(b"GET /callback")
        # The answer to another connection: the first one has been accepted by then.
        await get(listener, "/")
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


class Written(bytearray):
    """The writer of a connection."""

    is_closed = False

    def write(self, data: bytes) -> None:
        self.extend(data)

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


async def test_connections_past_the_limit_are_closed_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indusagi.interop.auth.callback._CONNECTIONS", 2)
    listener = RedirectListener("http://127.0.0.1:1/callback", show)
    readers, writers = [asyncio.StreamReader() for _ in range(3)], [Written() for _ in range(3)]
    async with asyncio.TaskGroup() as tasks:
        for reader, writer in zip(readers, writers, strict=True):
            tasks.create_task(listener.serve(reader, cast("asyncio.StreamWriter", writer)))
        await asyncio.sleep(0)
        assert [writer.is_closed for writer in writers] == [False, False, True]
        for reader in readers:
            reader.feed_data(b"GET / HTTP/1.1\r\n\r\n")
    assert [bytes(writer[:12]) for writer in writers] == [b"HTTP/1.1 404", b"HTTP/1.1 404", b""]


# -- the address ------------------------------------------------------------------------------


async def test_a_registered_port_is_used_again() -> None:
    async with listening() as listener:
        uri = listener.redirect_uri
        (_,), _ = await receive(listener, f"/callback?code=c&state={STATE}")
        async with listening(registered=[uri]) as other:  # it is in use
            assert other.redirect_uri != uri
    async with listening(registered=["https://elsewhere.example/cb", uri]) as listener:
        assert listener.redirect_uri == uri


async def test_a_fixed_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AuthFault, match=rf"port {port} of the redirect cannot be used: .*: --port N"):
            async with listening(AuthSettings(callback_port=port)):
                pass


async def test_localhost_listens_at_one_port_of_both_families() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    settings = AuthSettings(redirect_uri=f"http://localhost:{port}/cb")
    async with listening(settings) as listener:
        assert listener.redirect_uri == settings.redirect_uri
        answers, values = await receive(listener, f"/cb?code=c&state={STATE}")
    assert values["code"] == "c"
    assert answers[0].startswith(b"HTTP/1.1 200 ")


def test_a_redirect_to_another_machine_is_for_paste() -> None:
    with pytest.raises(AuthFault, match="sign in with --paste"):
        choose_redirect_uri(AuthSettings(redirect_uri="https://app.example/cb"), ())
    assert choose_redirect_uri(AuthSettings(callback_port=7), ["http://127.0.0.1:9/callback"]).endswith(":7/callback")
    assert choose_redirect_uri(AuthSettings(), ["http://127.0.0.1:bad/callback"]) == "http://127.0.0.1:0/callback"


def test_a_request_is_known_by_its_state() -> None:
    assert read_state("https://login.example/authorize?x=1&state=1") == "1"
    with pytest.raises(AuthFault, match="has no state"):
        read_state("https://login.example/authorize")
    assert read_redirect("http://[/callback", "/callback", STATE) is None
