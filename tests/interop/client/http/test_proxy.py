"""Servers behind a proxy: the rules of the client hold, and secrets reach only their recipients."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import TYPE_CHECKING, Any

import httpcore2
import pytest
from tests.support.http_behaviours import Legacy, Modern, OldSse, large, redirect, sometimes
from tests.support.http_peer import http_server, self_signed
from tests.support.http_proxy import http_proxy
from tests.support.opened import fault_of_opening, opened
from tests.support.servers import SHORT_START, STEADY, remote

from indusagi.interop.protocol_bridge.client.http import client as _http
from indusagi.interop.protocol_bridge.contract import (
    ProtocolFault,
    ServerLimits,
    SseServerConfig,
    StreamableHttpServerConfig,
)
from indusagi.interop.protocol_bridge.endpoint import create_server_endpoint
from indusagi.net.address import parse_url
from indusagi.net.dial import find_proxy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.http_peer import Behaviour

    from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl

HOST = "mcp.corp.test"
"""A name that only the proxy can resolve."""
SECRET = "canary-6f1d2c"
PASSWORD = "canary-proxy-9ab3"
PATIENT = ServerLimits(close_s=0.3)


def config(
    *, url: str = f"http://{HOST}/mcp", proxy: str | None = None, limits: ServerLimits = PATIENT
) -> StreamableHttpServerConfig:
    headers = {"authorization": SECRET}
    return StreamableHttpServerConfig("remote", url, headers, proxy=proxy, limits=limits)


async def works(endpoint: ServerEndpointImpl) -> bool:
    result = await endpoint.invoke("echo", {"text": "again"})
    return result.content == ({"type": "text", "text": "again"},)


# -- through it -----------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", [Modern(), Legacy(events=True), OldSse()])
async def test_server_is_reached_through_the_proxy(behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_server(behaviour) as server, http_proxy({HOST: server}) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url())
        kind = SseServerConfig if isinstance(behaviour, OldSse) else StreamableHttpServerConfig
        async with opened(kind("it", f"http://{HOST}/mcp", limits=PATIENT)) as endpoint:
            assert len(await endpoint.list_tools()) == 3
            assert await works(endpoint)
            told = f"reached through the proxy {proxy.url()}, which can read all of it"
            assert told in str(endpoint.status().notes)
        assert proxy.asked_for == {HOST}
        assert {request.path for request in server.requests} <= {"/mcp", "/messages"}


@pytest.mark.process
async def test_proxy_sees_no_tls_content_and_server_no_proxy_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, certificate = await asyncio.to_thread(self_signed, tmp_path, f"DNS:{HOST}")
    trusting = await asyncio.to_thread(httpcore2.default_ssl_context)
    trusting.load_verify_locations(certificate)
    monkeypatch.setattr(_http, "shared_tls", lambda: trusting)
    async with http_server(Modern(), tls=tls) as server, http_proxy({HOST: server}) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url(f"me:{PASSWORD}"))
        async with opened(config(url=f"https://{HOST}/mcp")) as endpoint:
            assert await works(endpoint)
            await endpoint.list_tools()
            assert "can read" not in str(endpoint.status().notes)
        basic = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()
        for request in proxy.requests:
            assert (request.method, request.path) == ("CONNECT", f"{HOST}:443")
            assert request.headers["proxy-authorization"] == basic
            assert SECRET not in str(request.headers)
        for request in server.requests:
            assert request.headers["authorization"] == SECRET
            assert "proxy-authorization" not in request.headers


@pytest.mark.process
async def test_certificate_behind_a_tunnel_must_match_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, certificate = await asyncio.to_thread(self_signed, tmp_path, "DNS:another.test")
    trusting = await asyncio.to_thread(httpcore2.default_ssl_context)
    trusting.load_verify_locations(certificate)
    monkeypatch.setattr(_http, "shared_tls", lambda: trusting)
    async with http_server(Modern(), tls=tls) as server, http_proxy({HOST: server}) as proxy:
        fault = await fault_of_opening(config(url=f"https://{HOST}/mcp", proxy=proxy.url()))
        assert fault.detail.reason == "refused"
        assert "CERTIFICATE_VERIFY_FAILED" in str(fault)
        assert server.requests == []


@pytest.mark.process
@pytest.mark.parametrize("target", ["http", "https"])
async def test_connection_to_the_proxy_may_use_tls(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, certificate = await asyncio.to_thread(self_signed, tmp_path, f"DNS:{HOST},IP:127.0.0.1")
    trusting = await asyncio.to_thread(httpcore2.default_ssl_context)
    trusting.load_verify_locations(certificate)
    monkeypatch.setattr(_http, "shared_tls", lambda: trusting)
    inner = tls if target == "https" else None
    async with http_server(Modern(), tls=inner) as server, http_proxy({HOST: server}, tls=tls) as proxy:
        given = proxy.url(scheme="https")
        async with opened(config(url=f"{target}://{HOST}/mcp", proxy=given)) as endpoint:
            assert await works(endpoint)


async def test_concurrent_calls_pass_the_proxy() -> None:
    async with http_server(Modern()) as server, http_proxy({HOST: server}) as proxy:
        async with opened(config(proxy=proxy.url())) as endpoint:
            async with asyncio.TaskGroup() as tasks:
                calls = [tasks.create_task(endpoint.invoke("echo", {"text": str(n)})) for n in range(40)]
    texts = [call.result().content[0] for call in calls]
    assert texts == [{"type": "text", "text": str(n)} for n in range(40)]


# -- past it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_local_server_bypasses_the_environment_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_server(Modern()) as server, http_proxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url())
        url = server.url.replace("127.0.0.1", host)
        async with opened(config(url=url)) as endpoint:
            assert await works(endpoint)
            await endpoint.list_tools()
            assert "proxy" not in str(endpoint.status().notes)
        assert proxy.requests == []


@pytest.mark.parametrize(("except_for", "proxy"), [(HOST, None), ("corp.test", None), ("*", None), ("", "")])
async def test_no_proxy_and_empty_proxy_connect_directly(
    except_for: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http_proxy() as unwanted:
        monkeypatch.setenv("HTTP_PROXY", unwanted.url())
        monkeypatch.setenv("NO_PROXY", except_for)
        fault = await fault_of_opening(config(proxy=proxy))
        # Only the proxy can resolve the name: a failure to resolve it proves a direct connection.
        assert "could not be reached: " in str(fault)
        assert "proxy" not in str(fault)
        assert unwanted.requests == []


@pytest.mark.parametrize(
    ("environ", "url", "expected"),
    [
        ({}, "http://a.test/", None),
        ({"HTTP_PROXY": "http://p:1"}, "http://a.test/", "http://p:1"),
        ({"HTTP_PROXY": "p:1"}, "http://a.test/", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, "https://a.test/", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://a.test/", "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1"}, "http://a.test/", None),
        ({"HTTP_PROXY": "http://p:1", "http_proxy": "http://q:2"}, "http://a.test/", "http://q:2"),
        ({"HTTP_PROXY": "http://p:1", "http_proxy": ""}, "http://a.test/", None),
        ({"HTTP_PROXY": "http://p:1", "REQUEST_METHOD": "GET"}, "http://a.test/", None),
        ({"http_proxy": "http://p:1", "REQUEST_METHOD": "GET"}, "http://a.test/", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "b.test, a.test"}, "http://a.test/", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "a.test:81"}, "http://a.test/", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "a.test:81"}, "http://a.test:81/", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "a.test:80"}, "http://a.test/", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": ".test"}, "http://contest/", "http://p:1"),
    ],
)
def test_proxy_variables_mean_what_they_mean_to_urllib(
    environ: dict[str, str], url: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    proxy = find_proxy(parse_url(url))
    assert (None if proxy is None else proxy.origin) == expected


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LocalHost", "localhost.", "a.localhost", "127.0.0.1", "127.9.9.9", "0.0.0.0", "[::1]", "[::]",
        "[::ffff:127.0.0.1]",
    ],
)  # fmt: skip
def test_servers_on_this_machine_bypass_the_environments_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://p:1")
    assert find_proxy(parse_url(f"http://{host}:8000/")) is None


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1"])
async def test_an_address_that_is_not_four_decimal_numbers_is_refused(host: str) -> None:
    fault = await fault_of_opening(config(url=f"http://{host}:8000/mcp"))
    assert "write an IPv4 address as four decimal numbers" in str(fault)


@pytest.mark.parametrize(
    "host", ["localhost.corp.test", "mylocalhost", "128.0.0.1", "[fd00::1]", "127.corp.test", "ümlaut"]
)
def test_other_servers_do_not(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://p:1")
    assert find_proxy(parse_url(f"http://{host}:8000/")) is not None


# -- the rules of the client ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [StreamableHttpServerConfig, SseServerConfig])
@pytest.mark.parametrize("code", [302, 307])
async def test_r27_headers_do_not_follow_a_redirect_through_a_proxy(kind: Any, code: int) -> None:
    async with (
        http_server(OldSse()) as elsewhere,
        http_server(redirect("http://other.corp.test/mcp", code)) as server,
        http_proxy({HOST: server, "other.corp.test": elsewhere}) as proxy,
    ):
        headers = {"authorization": SECRET}
        redirected = kind("it", f"http://{HOST}/mcp", headers, proxy=proxy.url(), limits=PATIENT)
        fault = await fault_of_opening(redirected)
        assert proxy.asked_for == {HOST}
        assert elsewhere.requests == []
    assert fault.detail.reason == "redirect"
    assert "http://other.corp.test" in str(fault)


async def test_r27_the_old_transport_does_not_post_to_another_origin_through_a_proxy() -> None:
    async def lure(exchange: Any) -> None:
        await exchange.open_events()
        await exchange.event(event="endpoint", data="http://other.corp.test/messages")
        await exchange.until_gone()

    async with http_server(lure) as server, http_proxy({HOST: server}) as proxy:
        sse = SseServerConfig("it", f"http://{HOST}/mcp", proxy=proxy.url(), limits=STEADY)
        fault = await fault_of_opening(sse)
        assert proxy.asked_for == {HOST}
    assert fault.detail.reason == "redirect"


@pytest.mark.parametrize("of", ["json", "event"])
async def test_r31_fifty_mib_are_not_read_through_a_proxy(of: Any) -> None:
    behaviour = sometimes(large(50, of=of), on="tools/call", times=1, then=Modern())
    async with http_server(behaviour) as server, http_proxy({HOST: server}) as proxy:
        async with opened(config(proxy=proxy.url())) as endpoint:
            with pytest.raises(ProtocolFault) as caught:
                await endpoint.invoke("echo", {})
            assert caught.value.detail.reason == "frame_too_large"
            assert await works(endpoint)


# -- faults of the proxy --------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_proxy_that_refuses_credentials_is_named_without_them(
    scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with http_proxy(status="407 Proxy Authentication Required") as proxy:
        given = config(url=f"{scheme}://{HOST}/mcp", proxy=proxy.url(f"me:{PASSWORD}"))
        endpoint = create_server_endpoint(given)
        with pytest.raises(ProtocolFault) as caught:
            await endpoint.open()
        shown = f"{given!r} {endpoint.status()!r} {_everything(caught.value)}"
        await endpoint.close()
        assert (caught.value.kind, caught.value.detail.reason) == ("transport", "auth")
        assert f"the proxy {proxy.url()} did not accept our credentials (HTTP 407)" in shown
    for secret in (PASSWORD, SECRET, base64.b64encode(f"me:{PASSWORD}".encode()).decode()):
        assert secret not in shown
        assert secret not in caplog.text


@pytest.mark.parametrize(("status", "reason"), [("403 Forbidden", "refused"), ("502 Bad Gateway", "upstream")])
async def test_proxy_that_refuses_a_tunnel_is_named(status: str, reason: str) -> None:
    async with http_proxy(status=status) as proxy:
        fault = await fault_of_opening(config(url=f"https://{HOST}/mcp", proxy=proxy.url()))
    assert (fault.kind, fault.detail.reason) == ("transport", reason)
    assert f"the proxy {proxy.url()} answered HTTP {status[:3]}" in str(fault)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_unreachable_proxy_is_named(scheme: str) -> None:
    given = f"http://me:{PASSWORD}@127.0.0.1:9"
    fault = await fault_of_opening(config(url=f"{scheme}://{HOST}/mcp", proxy=given))
    assert (fault.kind, fault.detail.reason) == ("transport", "refused")
    assert "could not be reached through the proxy http://127.0.0.1:9: " in str(fault)
    assert PASSWORD not in _everything(fault)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_silent_proxy_times_out(scheme: str) -> None:
    release = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.close()

    async with await asyncio.start_server(mute, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        given = config(url=f"{scheme}://{HOST}/mcp", proxy=f"http://127.0.0.1:{port}", limits=SHORT_START)
        assert (await fault_of_opening(given)).kind == "timeout"
        release.set()


@pytest.mark.parametrize(
    "proxy", ["socks5://p:1080", f"http://me:{PASSWORD}@", "http://p:99999", "ftp://p", "http://p:x"]
)
@pytest.mark.parametrize("configured", [True, False])
async def test_invalid_proxy_is_refused_before_anything_is_sent(
    proxy: str, configured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not configured:
        monkeypatch.setenv("HTTP_PROXY", proxy)
    fault = await fault_of_opening(config(proxy=proxy if configured else None))
    assert (fault.kind, fault.detail.reason) == ("transport", "malformed")
    assert ("its configuration" if configured else "HTTP_PROXY") in str(fault)
    assert PASSWORD not in _everything(fault)


async def test_configured_proxy_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_server(Modern()) as server, http_proxy({"127.0.0.1": server}) as proxy:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("NO_PROXY", "*")
        asked = StreamableHttpServerConfig("it", server.url, proxy=proxy.url(), limits=PATIENT)
        async with opened(asked) as endpoint:
            assert await works(endpoint)
        assert proxy.asked_for == {"127.0.0.1"}
        async with opened(remote(server)) as endpoint:
            assert await works(endpoint)


def _everything(fault: BaseException | None) -> str:
    said = ""
    while fault is not None:
        said += f"{fault!s} {fault!r} {fault.args!r}"
        fault = fault.__cause__ or fault.__context__
    return said
