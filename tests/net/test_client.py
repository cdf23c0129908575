"""The guarded client against real servers on the loopback interface."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.net.serving import listener, names, open_to, port_of, replying, writing
from tests.support.http_peer import http_server, self_signed
from tests.support.ssrf import LOCATIONS, NAMES, URLS
from tests.support.waiting import until

from indusagi.capabilities.ports import WebSettings
from indusagi.net import dial as resolve
from indusagi.net.address import FetchError
from indusagi.net.client import CrossSiteRedirect, WebClient, WebResponse

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.support.http_peer import Behaviour, Exchange, HttpServer

pytestmark = pytest.mark.anyio
KIB = 1024


async def fetched(url: str, settings: WebSettings, cap: int = 64 * KIB) -> WebResponse | CrossSiteRedirect:
    def whatever(headers: Mapping[str, str]) -> int:
        return cap

    return await WebClient(settings).fetch(url, accept="*/*", cap=whatever)


async def page(server: HttpServer, settings: WebSettings | None = None, cap: int = 64 * KIB) -> WebResponse:
    """Fetch the page of a server under a name that is allowed to lead there."""
    found = await fetched(f"http://open.example:{port_of(server)}/a?b", open_to(server, settings=settings), cap)
    assert isinstance(found, WebResponse)
    return found


# -- what is fetched ------------------------------------------------------------------------------


async def test_a_page_is_fetched_with_an_honest_request() -> None:
    async with http_server(replying(headers={"Content-Type": "text/plain"})) as server:
        found = await page(server)
    assert (found.status, found.body, found.cut, found.received) == (200, b"hello", None, 5)
    assert found.headers["content-type"] == "text/plain"
    (request,) = server.requests
    assert (request.method, request.path) == ("GET", "/a?b")
    assert request.headers["host"] == f"open.example:{port_of(server)}"
    assert request.headers["user-agent"].startswith("indus/")
    assert request.headers["accept-encoding"] == "gzip"
    assert not {"cookie", "authorization", "referer"} & set(request.headers)


async def test_no_cookie_goes_back_and_no_proxy_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listener() as (port, connected):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        async with http_server(replying(headers={"Set-Cookie": "a=b"})) as server:
            await page(server)
            await page(server)
        assert connected == []
    assert all("cookie" not in request.headers for request in server.requests)


@pytest.mark.process
async def test_the_name_is_in_the_handshake_and_in_the_certificate(tmp_path: Path) -> None:
    theirs, certificate = self_signed(tmp_path)
    ours = _trusting(certificate)
    async with http_server(replying(), tls=theirs) as server:
        port = port_of(server)
        settings = replace(open_to(server, "127.0.0.1", "open.example"), tls=ours)
        found = await fetched(f"https://127.0.0.1:{port}/", settings)
        assert isinstance(found, WebResponse)
        with pytest.raises(FetchError, match=r"not valid for 'open\.example'") as caught:
            await fetched(f"https://open.example:{port}/", settings)
        assert caught.value.facts["reason"] == "tls"
        with pytest.raises(FetchError) as caught:
            await fetched(f"https://127.0.0.1:{port}/", replace(settings, tls=None))
        assert caught.value.facts["reason"] == "tls"


def _trusting(certificate: Path) -> ssl.SSLContext:
    import ssl  # noqa: PLC0415 — only here

    return ssl.create_default_context(cafile=str(certificate))


async def test_an_ipv6_server_is_reached_and_named_in_brackets() -> None:
    heard: list[bytes] = []

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            heard.append(await stream.receive())
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nsix")

    try:
        server = await anyio.create_tcp_listener(local_host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    async with server, anyio.create_task_group() as group:
        port: int = server.extra(anyio.abc.SocketAttribute.local_port)
        group.start_soon(server.serve, handle)
        settings = WebSettings(allow_private=[f"[::1]:{port}"])
        found = await fetched(f"http://[0:0::1]:{port}/", settings)
        group.cancel_scope.cancel()
        assert isinstance(found, WebResponse)
        assert found.body == b"six"
        assert f"Host: [::1]:{port}\r\n".encode() in heard[0]


@pytest.mark.parametrize("status", [204, 304, 404, 500])
async def test_a_status_is_handed_on_as_it_is(status: int) -> None:
    async with http_server(replying(b"", status)) as server:
        assert (await page(server)).status == status


async def test_letters_of_other_scripts_in_a_header_do_no_harm() -> None:
    own = b"X-One: \xc3\xa9\r\nX-Two: \xe9\r\nX-One: no\r\n"
    raw = b"HTTP/1.1 200 OK\r\n" + own + b"Content-Length: 0\r\n\r\n"
    async with http_server(writing(raw)) as server:
        found = await page(server)
    assert (found.headers["x-one"], found.headers["x-two"]) == ("é", "é")


# -- R48: where it does not go --------------------------------------------------------------------


@pytest.mark.parametrize("url", URLS)
async def test_r48_a_form_that_leads_astray_is_refused_and_nobody_is_dialled(url: str) -> None:
    async def system_like(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"] if "localhost" in host else ["93.184.215.14"]

    async with listener() as (port, connected):
        settings = WebSettings(resolver=system_like, ports=(80, 443, port))
        with pytest.raises(FetchError) as caught:
            await fetched(url.format(port=port), settings)
        assert caught.value.code in {"denied", "unsupported"}
        assert connected == []


@pytest.mark.parametrize(("host", "addresses"), NAMES.items())
async def test_r48_a_name_that_leads_astray_is_refused_whatever_else_it_leads_to(
    host: str, addresses: tuple[str, ...]
) -> None:
    async with listener() as (port, connected):
        settings = WebSettings(resolver=names(*addresses), ports=(port,))
        with pytest.raises(FetchError) as caught:
            await fetched(f"http://{host}:{port}/", settings)
        assert caught.value.code == "denied"
        assert caught.value.facts["address"] in addresses
        assert connected == []


@pytest.mark.parametrize("location", LOCATIONS)
async def test_r48_a_redirect_that_leads_astray_is_refused(location: str) -> None:
    async with listener() as (port, connected):
        headers = {"Location": location.format(port=port)}
        if not headers["Location"].isascii():
            headers["Location"] = headers["Location"].encode().decode("latin-1")
        async with http_server(replying(b"", 302, headers)) as server:
            with pytest.raises(FetchError) as caught:
                await page(server)
        assert caught.value.code in {"denied", "unsupported"}
        assert connected == []
        assert len(server.requests) == 1


async def test_r48_a_name_that_changes_its_address_is_dialled_where_it_was_checked() -> None:
    answers = [["127.0.0.2"], ["127.0.0.1"]]

    async def rebinding(host: str, port: int) -> Sequence[str]:
        return answers.pop(0)

    async with listener() as (port, connected):
        settings = WebSettings(resolver=rebinding, allow_private=[f"rebind.example:{port}"])
        with pytest.raises(FetchError) as caught:
            await fetched(f"http://rebind.example:{port}/", settings)
        assert caught.value.facts["reason"] == "refused"
        assert connected == []
    assert answers == [["127.0.0.1"]]


async def test_r48_a_redirect_to_the_same_name_is_looked_up_and_checked_again() -> None:
    async with http_server(replying(b"", 302, {"Location": "/again"})) as server:
        answers = [["127.0.0.1"], ["169.254.169.254"]]

        async def rebinding(host: str, port: int) -> Sequence[str]:
            return answers.pop(0)

        settings = replace(open_to(server), resolver=rebinding)
        with pytest.raises(FetchError, match="redirected from") as caught:
            await fetched(f"http://open.example:{port_of(server)}/", settings)
    assert caught.value.facts["kind"] == "metadata"
    assert len(server.requests) == 1


async def test_a_refusal_names_the_host_the_address_and_the_remedy() -> None:
    settings = WebSettings(resolver=names("10.0.0.5"), ports=(80, 3000))
    with pytest.raises(FetchError) as caught:
        await fetched("http://dev.example:3000/", settings)
    said = str(caught.value)
    assert "dev.example is at 10.0.0.5" in said
    assert "'dev.example:3000'" in said
    assert "allow_private" in said
    with pytest.raises(FetchError) as caught:
        await fetched("http://[::1]/", settings)
    assert "'[::1]:80'" in str(caught.value)


@pytest.mark.parametrize("address", ["169.254.169.254", "224.0.0.1", "0.0.0.0", "fe80::1"])
async def test_what_is_nobodys_own_server_stays_shut_whatever_is_allowed(address: str) -> None:
    settings = WebSettings(resolver=names(address), allow_private=["dev.example"])
    with pytest.raises(FetchError) as caught:
        await fetched("http://dev.example/", settings)
    assert caught.value.code == "denied"
    assert "allow_private" not in str(caught.value)


async def test_a_server_of_ones_own_is_reached_on_its_port_alone() -> None:
    async with http_server(replying()) as server:
        port = port_of(server)
        settings = WebSettings(allow_private=[f"127.0.0.1:{port}"])
        assert isinstance(await fetched(f"http://127.0.0.1:{port}/", settings), WebResponse)
        with pytest.raises(FetchError):
            await fetched("http://127.0.0.1:8080/", settings)
        with pytest.raises(FetchError, match="port") as caught:
            await fetched(f"http://open.example:{port}/", settings)
        assert caught.value.facts["reason"] == "port"


# -- redirects ------------------------------------------------------------------------------------


async def test_redirects_are_followed_within_a_site() -> None:
    async with http_server(_steps(5)) as server:
        found = await page(server)
    assert found.body == b"there"
    assert len(found.hops) == 5
    assert found.target.path == "/5"


async def test_a_sixth_redirect_is_one_too_many() -> None:
    async with http_server(_steps(6)) as server:
        with pytest.raises(FetchError, match="redirects") as caught:
            await page(server)
    assert caught.value.facts["reason"] == "redirects"
    assert len(server.requests) == 6


def _steps(count: int) -> Behaviour:
    async def behave(exchange: Exchange) -> None:
        at = int("".join(filter(str.isdigit, exchange.request.path)) or "0")
        if at == count:
            await exchange.reply(200, b"there")
        else:
            await exchange.reply(302, b"", {"Location": f"/{at + 1}"})

    return behave


async def test_a_redirect_to_another_site_is_told_not_followed() -> None:
    async with http_server(replying(b"", 301, {"Location": "https://other.example/x"})) as server:
        found = await fetched(f"http://open.example:{port_of(server)}/", open_to(server))
    assert isinstance(found, CrossSiteRedirect)
    assert (found.status, found.url) == (301, "https://other.example/x")


async def test_a_redirect_to_a_subdomain_is_followed() -> None:
    async def behave(exchange: Exchange) -> None:
        port = exchange.request.headers["host"].partition(":")[2]
        if exchange.request.headers["host"].startswith("www."):
            await exchange.reply(200, b"www")
        else:
            await exchange.reply(308, b"", {"Location": f"http://www.open.example:{port}/"})

    async with http_server(behave) as server:
        settings = open_to(server, "open.example", "www.open.example")
        found = await fetched(f"http://open.example:{port_of(server)}/", settings)
    assert isinstance(found, WebResponse)
    assert found.body == b"www"


@pytest.mark.process
async def test_a_redirect_never_leaves_encryption(tmp_path: Path) -> None:
    theirs, certificate = self_signed(tmp_path)
    behave = replying(b"", 302, {"Location": "http://127.0.0.1:8080/"})
    async with http_server(behave, tls=theirs) as server:
        allowed = [f"127.0.0.1:{port_of(server)}", "127.0.0.1:8080"]
        settings = WebSettings(allow_private=allowed, tls=_trusting(certificate))
        with pytest.raises(FetchError, match="not encrypted") as caught:
            await fetched(f"https://127.0.0.1:{port_of(server)}/", settings)
    assert caught.value.facts["reason"] == "downgrade"


async def test_a_redirect_without_a_place_to_go_is_an_answer() -> None:
    async with http_server(replying(b"nowhere", 302)) as server:
        assert (await page(server)).body == b"nowhere"


# -- R49: bodies ----------------------------------------------------------------------------------


async def test_r49_an_endless_body_is_cut_at_the_cap() -> None:
    async with http_server(_endless) as server:
        found = await page(server, cap=100_000)
        assert (len(found.body), found.cut) == (100_000, "size")
        await until(lambda: bool(server.hangups))


async def _endless(exchange: Exchange) -> None:
    await exchange.head(200, {"Content-Length": str(5 * 1024**3)})
    try:
        while True:
            await exchange.write(b"x" * 65_536)
    except ConnectionError:
        exchange.server.hangups.append(exchange.request)
        raise


async def test_r49_a_slow_drip_ends_at_the_deadline() -> None:
    async def drip(exchange: Exchange) -> None:
        await exchange.head(200, {"Content-Length": "1000"})
        while True:
            await exchange.write(b"x")
            await anyio.sleep(0.01)

    async with http_server(drip) as server:
        with pytest.raises(FetchError, match=r"within 0\.2 s") as caught:
            await page(server, WebSettings(total_s=0.2))
    assert caught.value.code == "timeout"


async def test_r49_a_server_that_says_nothing_ends_at_the_deadline() -> None:
    async def mute(exchange: Exchange) -> None:
        await exchange.until_gone()

    async with http_server(mute) as server:
        with pytest.raises(FetchError) as caught:
            await page(server, WebSettings(total_s=0.2))
    assert caught.value.code == "timeout"


@pytest.mark.parametrize("size", [10 * KIB * KIB, 100 * KIB * KIB])
async def test_r49_a_bomb_of_gzip_costs_no_more_than_a_page(size: int) -> None:
    async with http_server(replying(_bomb(size), 200, {"Content-Encoding": "gzip"})) as server:
        found = await page(server, cap=1024 * KIB)
        assert found.cut == "size"
        assert len(found.body) <= 1024 * KIB


def _bomb(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [packer.compress(bytes(KIB * KIB)) for _ in range(size // (KIB * KIB))]
    return b"".join([*pieces, packer.flush()])


async def test_a_packed_page_is_unpacked() -> None:
    text = b"".join(b"line %d of a page\n" % number for number in range(2_000))
    packed = gzip.compress(text[:9_000]) + gzip.compress(text[9_000:]) + b"\x00" * 20
    async with http_server(replying(packed, 200, {"Content-Encoding": "X-GZIP"})) as server:
        found = await page(server)
    assert (found.body, found.cut, found.received) == (text, None, len(packed))


async def test_a_packed_page_is_cut_at_the_cap_too() -> None:
    text = b"".join(b"%x" % (number * 7_919_731) for number in range(20_000))
    async with http_server(replying(gzip.compress(text), 200, {"Content-Encoding": "gzip"})) as server:
        found = await page(server, cap=70_000)
    assert (found.body, found.cut) == (text[:70_000], "size")


async def test_a_page_that_is_not_packed_as_it_says_fails() -> None:
    async with http_server(replying(b"plain", 200, {"Content-Encoding": "gzip"})) as server:
        with pytest.raises(FetchError, match="packed") as caught:
            await page(server)
    assert (caught.value.code, caught.value.facts["reason"]) == ("failed", "coding")


@pytest.mark.parametrize("coding", ["br", "zstd", "deflate", "gzip, gzip"])
async def test_a_packing_that_nobody_asked_for_is_refused(coding: str) -> None:
    async with http_server(replying(b"x", 200, {"Content-Encoding": coding})) as server:
        with pytest.raises(FetchError) as caught:
            await page(server)
    assert caught.value.code == "unsupported"


async def test_a_body_that_breaks_off_is_kept_as_far_as_it_came() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
    async with http_server(writing(head + b"half")) as server:
        found = await page(server)
    assert (found.body, found.cut) == (b"half", "ended early")


async def test_a_packed_body_that_breaks_off_is_known_to_be_half() -> None:
    packed = gzip.compress(bytes(range(256)) * 40)[:-30]
    async with http_server(replying(packed, 200, {"Content-Encoding": "gzip"})) as server:
        found = await page(server)
    assert found.cut == "ended early"


async def test_a_body_that_never_began_is_a_failure() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
    async with http_server(writing(head)) as server:
        with pytest.raises(FetchError, match="before it was complete") as caught:
            await page(server)
    assert caught.value.facts["reason"] == "ended early"


# -- what else goes wrong -------------------------------------------------------------------------


async def test_a_server_that_speaks_no_http_is_told_as_such() -> None:
    async with http_server(writing(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")) as server:
        with pytest.raises(FetchError) as caught:
            await page(server)
    assert caught.value.facts["reason"] == "protocol"


async def test_a_connection_that_is_refused_is_told_as_such() -> None:
    async with listener() as (port, _):
        pass
    settings = WebSettings(allow_private=[f"127.0.0.1:{port}"])
    with pytest.raises(FetchError, match="refused") as caught:
        await fetched(f"http://127.0.0.1:{port}/", settings)
    assert (caught.value.code, caught.value.facts["reason"]) == ("failed", "refused")


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    async with http_server(replying()) as server:
        settings = replace(open_to(server), resolver=names("127.0.0.2", "127.0.0.1"))
        found = await fetched(f"http://open.example:{port_of(server)}/", settings)
    assert isinstance(found, WebResponse)


async def test_a_name_without_addresses_is_not_found() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError(-2, "Name or service not known")

    for resolver, said in ((unknown, "Name or service not known"), (names(), "has no address")):
        with pytest.raises(FetchError, match=said) as caught:
            await fetched("http://nowhere.example/", WebSettings(resolver=resolver))
        assert (caught.value.code, caught.value.facts["reason"]) == ("not_found", "dns")


async def test_a_look_up_that_hangs_ends_at_its_deadline() -> None:
    async def hangs(host: str, port: int) -> Sequence[str]:
        await anyio.sleep_forever()
        return []

    with pytest.raises(FetchError) as caught:
        await fetched("http://slow.example/", WebSettings(resolver=hangs, connect_s=0.05))
    assert (caught.value.code, caught.value.facts["reason"]) == ("timeout", "dns")


async def test_the_systems_look_up_finds_this_machine_and_its_address_is_refused() -> None:
    with pytest.raises(FetchError) as caught:
        await fetched("http://localhost/", WebSettings())
    assert caught.value.facts["kind"] == "loopback"


async def test_look_ups_that_are_stuck_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [resolve._free.acquire(blocking=False) for _ in range(16)]
    try:
        with pytest.raises(FetchError, match="try again later"):
            await fetched("http://localhost/", WebSettings())
    finally:
        for _ in taken:
            resolve._free.release()


async def test_a_fetch_that_is_cancelled_hangs_up() -> None:
    async def mute(exchange: Exchange) -> None:
        await exchange.until_gone()

    async with http_server(mute) as server:
        async with anyio.create_task_group() as group:
            group.start_soon(page, server)
            await until(lambda: bool(server.requests))
            group.cancel_scope.cancel()
        await until(lambda: bool(server.hangups))


@pytest.mark.parametrize(("failure", "reason"), [("ConnectTimeout", "connect"), ("ConnectError", "unreachable")])
async def test_an_address_that_does_not_answer_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch, failure: str, reason: str
) -> None:
    import httpcore2  # noqa: PLC0415 — as late as the code under test

    async def connect_tcp(*_: object) -> None:
        raise getattr(httpcore2, failure)() from OSError("no route")

    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect_tcp)
    settings = WebSettings(resolver=names("93.184.215.14", "93.184.215.15"))
    with pytest.raises(FetchError) as caught:
        await fetched("http://far.example/", settings)
    assert caught.value.facts["reason"] == reason


async def test_headers_without_end_are_no_answer() -> None:
    async def behave(exchange: Exchange) -> None:
        await exchange.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            await exchange.write(b"X-Filler: " + b"x" * 60_000 + b"\r\n")

    async with http_server(behave) as server:
        with pytest.raises(FetchError) as caught:
            await page(server)
    assert caught.value.facts["reason"] == "protocol"


async def test_interim_answers_without_end_end_at_the_deadline() -> None:
    async def behave(exchange: Exchange) -> None:
        while True:
            await exchange.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await anyio.sleep(0.001)

    async with http_server(behave) as server:
        with pytest.raises(FetchError) as caught:
            await page(server, WebSettings(total_s=0.2))
    assert caught.value.code == "timeout"


# -- through a proxy ------------------------------------------------------------------------------


async def nobody_asks(host: str, port: int) -> Sequence[str]:
    raise AssertionError(f"{host} was looked up")


async def test_a_proxy_that_was_named_is_asked_in_place_of_the_server() -> None:
    async with http_server(replying(b"by proxy")) as server:
        settings = WebSettings(proxy=f"http://me:geheimniß@127.0.0.1:{port_of(server)}", resolver=nobody_asks)
        found = await fetched("http://open.example/a?b", settings)
    assert isinstance(found, WebResponse)
    assert found.body == b"by proxy"
    (request,) = server.requests
    assert request.path == "http://open.example:80/a?b"
    assert request.headers["host"] == "open.example"
    assert request.headers["proxy-authorization"].startswith("Basic ")


async def test_a_proxy_that_refuses_is_told_as_such() -> None:
    async with http_server(replying(b"", 407)) as server:
        settings = WebSettings(proxy=f"http://127.0.0.1:{port_of(server)}")
        with pytest.raises(FetchError, match="the proxy refused") as caught:
            await fetched("https://open.example/", settings)
    assert caught.value.facts["reason"] == "proxy"
    assert server.requests[0].method == "CONNECT"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.0.0.1", "[::1]", "localhost", "intranet", "a.internal", "printer.local"]
)
async def test_r48_a_proxy_is_not_sent_into_ones_own_network(host: str) -> None:
    async with http_server(replying()) as server:
        settings = WebSettings(proxy=f"http://127.0.0.1:{port_of(server)}")
        with pytest.raises(FetchError) as caught:
            await fetched(f"http://{host}/", settings)
    assert caught.value.code == "denied"
    assert server.requests == []


async def test_a_server_of_ones_own_is_reached_past_the_proxy() -> None:
    async with listener() as (port, connected):
        async with http_server(replying()) as server:
            proxy = replace(open_to(server), proxy=f"http://127.0.0.1:{port}")
            assert (await page(server, proxy)).body == b"hello"
        assert connected == []


async def test_a_proxy_of_another_kind_is_refused() -> None:
    with pytest.raises(FetchError, match="proxy"):
        await fetched("http://open.example/", WebSettings(proxy="socks5://proxy.example"))


async def test_an_ipv6_address_is_not_named_to_a_proxy() -> None:
    settings = WebSettings(proxy="http://127.0.0.1:9")
    with pytest.raises(FetchError, match="through a proxy"):
        await fetched("http://[2606:4700::1111]/", settings)
