"""Which addresses are fetched and which redirects followed, without a network: each entry of each table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.support.networks import make_answer

from indusagi.capabilities.ports import WebSettings
from indusagi.net.address import FetchError, is_same_site, parse_url
from indusagi.net.client import CrossSiteRedirect, WebClient, WebRequest, WebResponse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.net.dial import HttpAnswer

pytestmark = pytest.mark.anyio


def open_client(addresses: Sequence[str] | Exception = ("93.184.216.34",), **settings: Any) -> WebClient:
    """A client whose names lead to these addresses."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        if isinstance(addresses, Exception):
            raise addresses
        return addresses

    return WebClient(WebSettings(resolver=resolve, **settings))


async def refuse(client: WebClient, url: str) -> tuple[str, Any]:
    """Return the code and the reason of a refusal."""
    with pytest.raises(FetchError) as caught:
        await client.check_address(url)
    return caught.value.code, caught.value.facts["reason"]


LOCAL = ("localhost", "local", "localdomain", "internal", "intranet", "private", "corp", "home", "lan", "home.arpa")


@pytest.mark.parametrize("name", [*LOCAL, *(f"a.b.{name}" for name in LOCAL), "router"])
async def test_names_of_ones_own_network_are_refused(name: str) -> None:
    assert await refuse(open_client(), f"http://{name}/") == ("denied", "name")
    for allowed in (name, f"{name}:80"):
        await open_client(allow_private=(allowed,)).check_address(f"http://{name}/")
    assert await refuse(open_client(allow_private=(f"{name}:81",)), f"http://{name}/") == ("denied", "name")


@pytest.mark.parametrize("name", ["local.org", "notlocal.example", "home.example", "arpa.example"])
async def test_names_that_only_look_alike_are_fetched(name: str) -> None:
    await open_client().check_address(f"http://{name}/")


@pytest.mark.parametrize(
    ("addresses", "settings", "url", "expected"),
    [
        ((), {}, "http://a.example/", ("not_found", "dns")),
        (OSError("x"), {}, "http://a.example/", ("not_found", "dns")),
        (UnicodeError("x"), {}, "http://a.example/", ("not_found", "dns")),
        (TimeoutError(), {}, "http://a.example/", ("timeout", "dns")),
        (("93.184.216.34", "10.0.0.1"), {}, "http://a.example/", ("denied", "address")),
        (("10.0.0.1",), {}, "http://10.0.0.1/", ("denied", "address")),
        (("93.184.216.34",), {}, "http://a.example:81/", ("denied", "port")),
        (("93.184.216.34",), {"proxy": "http://proxy:3128"}, "http://lan/", ("denied", "name")),
        (("93.184.216.34",), {"proxy": "http://proxy:3128"}, "http://[2606:4700::1]/", ("unsupported", "proxy")),
    ],
)
async def test_an_address_is_refused_for_its_reason(addresses: Any, settings: Any, url: str, expected: Any) -> None:
    assert await refuse(open_client(addresses, **settings), url) == expected


async def test_a_port_is_refused_with_the_remedy_for_it() -> None:
    for url, remedy in (
        ("http://a.example:81/", "`web.ports`"),
        ("http://lan:81/", "--web-allow 'lan:81'"),
        ("http://10.0.0.1:81/", "--web-allow '10.0.0.1:81'"),
        ("http://93.184.216.34:81/", "`web.ports`"),
    ):
        with pytest.raises(FetchError, match="port 81 is not fetched from, only 80, 443") as caught:
            await send({}, WebRequest(url))
        assert remedy in str(caught.value)
    await open_client(allow_private=("a.example:81",)).check_address("http://a.example:81/")


async def test_ones_own_server_is_reached_at_its_own_address_alone() -> None:
    client = open_client(["10.0.0.1"], allow_private=("own.example",))
    await client.check_address("http://own.example/")
    assert await refuse(client, "http://other.example/") == ("denied", "address")
    metadata = open_client(["169.254.169.254"], allow_private=("own.example",))
    assert await refuse(metadata, "http://own.example/") == ("denied", "address")


# -- redirects --------------------------------------------------------------------------------


class Web:
    """Answers by URL with a status and a place to go on, and notes what is asked."""

    def __init__(self, pages: Mapping[str, tuple[int, str | None]]) -> None:
        self.pages, self.asked = pages, list[tuple[str, str, bytes | None]]()

    async def send(self, method: str, target: Any, headers: Any, body: bytes | None) -> HttpAnswer:
        self.asked.append((method, target.url, body))
        status, location = self.pages[target.url]
        headers = {} if location is None else {"location": location}
        return make_answer(httpx2.Response(status, headers=headers, content=b"page"), target.url)

    async def aclose(self) -> None:
        pass


async def send(pages: Mapping[str, tuple[int, str | None]], request: WebRequest) -> tuple[Any, Web]:
    """Send a request into such a web."""
    client, web = open_client(), Web(pages)

    async def open_web(target: Any) -> Any:
        await client._resolve_addresses(target)
        return web

    client._open = open_web
    return await client.send(request), web


START = "http://a.example/"


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_a_redirect_is_followed_by_its_status_and_method(status: int, method: str) -> None:
    followed = {"GET": {301, 302, 303, 307, 308}, "POST": {303, 307, 308}}
    pages = {START: (status, "/b"), "http://a.example/b": (200, None)}
    found, web = await send(pages, WebRequest(START, method, body=b"x"))
    assert isinstance(found, WebResponse)
    is_followed = status in followed.get(method, followed["GET"])
    assert found.status == (200 if is_followed else status)
    assert list(found.hops) == ([START] if is_followed else [])
    becomes_get = method == "POST" and status == 303
    second = ("GET", "http://a.example/b", None) if becomes_get else (method, "http://a.example/b", b"x")
    assert web.asked == [(method, START, b"x"), *([second] if is_followed else [])]


@pytest.mark.parametrize(
    ("follow", "location", "is_near"),
    [
        ("site", "http://www.a.example/", True),
        ("site", "http://b.example/", False),
        ("origin", "http://a.example/x", True),
        ("origin", "https://a.example/", True),
        ("origin", "http://www.a.example/", False),
    ],
)
async def test_a_redirect_stays_within_a_site_or_an_origin(follow: Any, location: str, *, is_near: bool) -> None:
    url = parse_url(location).url
    found, _ = await send({START: (302, location), url: (200, None)}, WebRequest(START, follow=follow))
    if is_near:
        assert isinstance(found, WebResponse)
        assert (found.target.url, found.body, found.received, found.cut) == (url, b"page", 4, None)
    else:
        assert found == CrossSiteRedirect(302, url, START, ())


async def test_a_refused_redirect_names_where_it_came_from() -> None:
    middle = "http://a.example/m"
    for location, reason in (("http://lan/", "name"), ("http://10.0.0.1/", "address"), ("ftp://a.example/", "scheme")):
        with pytest.raises(FetchError, match=r"\(redirected from http://a\.example/\)") as caught:
            await send({START: (301, middle), middle: (301, location)}, WebRequest(START))
        assert (caught.value.facts["reason"], caught.value.facts["redirects"]) == (reason, [START])
    secure = "https://a.example/"
    with pytest.raises(FetchError, match="not encrypted") as caught:
        await send({secure: (301, START)}, WebRequest(secure))
    assert (caught.value.code, caught.value.facts["reason"]) == ("denied", "downgrade")


async def test_redirects_end_after_their_number() -> None:
    with pytest.raises(FetchError, match="6 redirects") as caught:
        await send({START: (302, "/")}, WebRequest(START))
    assert (caught.value.code, caught.value.facts["redirects"]) == ("failed", [START] * 6)


# -- tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "registry", [*("ac", "co", "com", "edu", "go", "gob", "gov", "ltd", "me", "mil", "ne", "net", "or", "org")]
)
def test_names_below_a_registry_are_no_common_site(registry: str) -> None:
    assert not is_same_site(parse_url(f"http://{registry}.xy/"), parse_url(f"http://a.{registry}.xy/"))
    assert is_same_site(parse_url(f"http://{registry}.xyz/"), parse_url(f"http://a.{registry}.xyz/"))


@pytest.mark.parametrize(
    "shared",
    [
        *("amazonaws.com", "appspot.com", "azurewebsites.net", "blogspot.com", "cloudfront.net"),
        *("firebaseapp.com", "fly.dev", "github.io", "gitlab.io", "herokuapp.com", "netlify.app"),
        *("pages.dev", "readthedocs.io", "vercel.app", "web.app", "windows.net", "workers.dev"),
    ],
)
def test_names_below_a_shared_host_are_no_common_site(shared: str) -> None:
    assert not is_same_site(parse_url(f"http://{shared}/"), parse_url(f"http://a.{shared}/"))
    assert is_same_site(parse_url(f"http://a.{shared}/"), parse_url(f"http://b.a.{shared}/"))


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("é." * 200, "its host is too long"),
        ("a" * 64, "its host is not a valid host name"),
        (".".join(["a" * 60] * 5), "its host is not a valid host name"),
        ("a..b", "its host is not a valid host name"),
        ("-a", "its host is not a valid host name"),
        ("[fe80::1%25eth0]", "the text in brackets is not an IPv6 address|an address with a zone cannot be fetched"),
        ("[x]", "the text in brackets is not an IPv6 address"),
        ("0x7f.1", "write an IPv4 address as four decimal numbers"),
        ("1", "write an IPv4 address as four decimal numbers"),
        ("a:0", "0 is not a valid port"),
        ("a:65536", "65536 is not a valid port"),
        ("a:b", "its host and port are ambiguous"),
    ],
)
def test_a_host_is_refused_with_its_reason(host: str, why: str) -> None:
    with pytest.raises(FetchError, match=why) as caught:
        parse_url(f"http://{host}/")
    assert (caught.value.code, caught.value.facts["reason"]) == ("denied", "host")


def test_the_last_port_and_the_longest_name_are_fetched() -> None:
    assert parse_url("http://a:65535/").port == 65_535
    name = ".".join(["a" * 49] * 5) + ".abc"
    assert parse_url(f"http://{name}/").host == name
    assert len(name) == 253
