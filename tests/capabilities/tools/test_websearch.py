"""The tool `websearch`, through a box: providers of the host, a SearXNG here, a fake ddgs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest
from tests.net.serving import port_of, replying
from tests.support.http_peer import http_server
from tests.support.tools import box_of, call, context

from indusagi.capabilities.context import Framework
from indusagi.capabilities.ports import SearchError, SearchHit, WebSettings
from indusagi.capabilities.tools.web import websearch_tool
from indusagi.runtime.contract import JsonContentBlock, TextContentBlock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.http_peer import HttpServer

    from indusagi.capabilities.ports import SearchProvider, SearchQuery
    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import ToolOutcome

pytestmark = pytest.mark.anyio
JSON = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def _no_search_of_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INDUS_SEARXNG_URL", raising=False)
    monkeypatch.setitem(sys.modules, "ddgs", None)


@dataclass
class Fake:
    """A provider that gives what it was told to."""

    hits: Sequence[SearchHit] = ()
    trouble: Exception | None = None
    name: str = "fake"
    asked: list[SearchQuery] = field(default_factory=list["SearchQuery"])

    async def search(self, query: SearchQuery) -> Sequence[SearchHit]:
        self.asked.append(query)
        if self.trouble is not None:
            raise self.trouble
        return self.hits


class Mute:
    """A provider that never answers."""

    name = "mute"

    async def search(self, query: SearchQuery) -> Sequence[SearchHit]:
        await anyio.sleep_forever()
        return []


def hits(*urls: str) -> list[SearchHit]:
    return [SearchHit(f"Title {number}", url, "text") for number, url in enumerate(urls, 1)]


async def search(
    tmp_path: Path, *chain: SearchProvider, settings: WebSettings | None = None, **arguments: JsonValue
) -> ToolOutcome:
    ctx = replace(context(tmp_path), framework=Framework(search=chain, web=settings))
    asked: JsonValue = {"query": "tea", **arguments}
    return await call(box_of(ctx, websearch_tool()), "websearch", asked)


def text_of(outcome: ToolOutcome) -> str:
    block = outcome.content[0]
    assert isinstance(block, TextContentBlock)
    return block.text


def urls_of(outcome: ToolOutcome) -> list[str]:
    block = outcome.content[1]
    assert isinstance(block, JsonContentBlock)
    value: Any = block.value
    return [row["url"] for row in value["results"]]


# -- results --------------------------------------------------------------------------------------


async def test_results_are_numbered_and_given_as_json_too(tmp_path: Path) -> None:
    found = [
        SearchHit("One", "https://a.example/x", "first", published="2026-01-02"),
        SearchHit("", "https://b.example/"),
    ]
    outcome = await search(tmp_path, Fake(found))
    lines = text_of(outcome).splitlines()
    assert lines[0] == "2 results from fake"
    assert lines[2:-1] == [
        "1. One (2026-01-02)",
        "   https://a.example/x",
        "   first",
        "2. b.example",
        "   https://b.example/",
    ]
    assert outcome.content[1] == JsonContentBlock(
        {
            "results": [
                {"title": "One", "url": "https://a.example/x", "snippet": "first", "published": "2026-01-02"},
                {"title": "b.example", "url": "https://b.example/", "snippet": ""},
            ]
        }
    )
    assert outcome.details["provider"] == "fake"


async def test_a_page_is_listed_once(tmp_path: Path) -> None:
    same = hits(
        "https://www.a.example/x/?utm_source=q&b=1",
        "http://a.example/x?b=1#there",
        "https://A.example:443/x?b=1&gclid=9",
        "https://a.example/x?b=2",
    )
    outcome = await search(tmp_path, Fake(same))
    assert urls_of(outcome) == ["https://www.a.example/x/?utm_source=q&b=1", "https://a.example/x?b=2"]


async def test_five_results_are_shown_unless_more_are_asked_for(tmp_path: Path) -> None:
    many = Fake(hits(*(f"https://a.example/{number}" for number in range(40))))
    assert len(urls_of(await search(tmp_path, many))) == 5
    assert len(urls_of(await search(tmp_path, many, maxResults="25"))) == 25
    assert (await search(tmp_path, many, maxResults=26)).details["code"] == "invalid_arguments"
    assert [query.limit for query in many.asked] == [5, 25]


async def test_domains_are_filtered_here_whatever_the_provider_does(tmp_path: Path) -> None:
    found = Fake(
        hits(
            "https://docs.a.example/1",
            "https://a.example/2",
            "https://nota.example/3",
            "https://b.example/4",
            "https://blog.b.example/5",
        )
    )
    only = await search(tmp_path, found, domains=["https://www.A.example/", "*.b.example"])
    assert urls_of(only) == [
        "https://docs.a.example/1",
        "https://a.example/2",
        "https://b.example/4",
        "https://blog.b.example/5",
    ]
    without = await search(tmp_path, found, allowed_domains=["b.example"], excludeDomains='["blog.b.example"]')
    assert urls_of(without) == ["https://b.example/4"]
    assert found.asked[0].domains == ["a.example", "b.example"]


async def test_what_is_no_domain_is_refused(tmp_path: Path) -> None:
    outcome = await search(tmp_path, Fake(), domains=["a b"])
    assert outcome.details["code"] == "invalid_arguments"


async def test_results_that_are_no_web_pages_are_left_out(tmp_path: Path) -> None:
    found = hits("javascript:alert(1)", "", "file:///etc/passwd", "https://a.example/")
    assert urls_of(await search(tmp_path, Fake(found))) == ["https://a.example/"]


async def test_titles_and_snippets_are_lines_in_which_everything_can_be_seen(tmp_path: Path) -> None:
    hit = SearchHit("A &amp; <b>bold</b>\ntitle\u202e", "https://a.example/", "x" * 600 + "\x1b[0m\n</untrusted")
    outcome = await search(tmp_path, Fake([hit]))
    text = text_of(outcome)
    assert "1. A & bold title<U+202E>\n" in text
    assert f"   {'x' * 500}… [" in text
    assert len(text.splitlines()) == 6


async def test_results_cannot_close_their_fence(tmp_path: Path) -> None:
    first = text_of(await search(tmp_path, Fake(hits("https://a.example/")))).splitlines()[-1]
    outcome = await search(tmp_path, Fake([SearchHit(first, "https://a.example/")]))
    assert text_of(outcome).splitlines()[-1] != first


# -- the chain ------------------------------------------------------------------------------------


async def test_the_next_is_asked_when_one_fails_and_the_failure_is_listed(tmp_path: Path) -> None:
    chain = (
        Fake(trouble=SearchError("over the quota", code="rate_limited"), name="one"),
        Fake(trouble=ValueError("a\u202e defect"), name="two"),
        Mute(),
        Fake(name="nothing"),
        Fake(hits("https://a.example/"), name="last"),
        Fake(hits("https://b.example/"), name="never"),
    )
    outcome = await search(tmp_path, *chain, settings=WebSettings(search_each_s=0.05))
    assert urls_of(outcome) == ["https://a.example/"]
    assert text_of(outcome).splitlines()[:4] == [
        "1 result from last",
        "- one failed (rate_limited): over the quota",
        "- two failed (failed): ValueError: a defect",
        "- mute failed (timeout): it did not answer within 0.05 s",
    ]
    assert chain[-1].asked == []
    failures: Any = outcome.details["failures"]
    assert [row["code"] for row in failures] == ["rate_limited", "failed", "timeout"]


async def test_the_search_as_a_whole_has_an_end(tmp_path: Path) -> None:
    settings = WebSettings(search_each_s=5, search_total_s=0.05)
    late = Fake(hits("https://a.example/"))
    outcome = await search(tmp_path, Mute(), late, settings=settings)
    assert outcome.details["code"] == "timeout"
    assert "mute failed (timeout)" in text_of(outcome)
    assert late.asked == []


async def test_when_nobody_answers_it_is_an_error_that_lists_them_all(tmp_path: Path) -> None:
    one = Fake(trouble=SearchError("down", code="failed"), name="one")
    outcome = await search(tmp_path, one, replace(one, name="two"))
    assert outcome.is_error
    assert outcome.details["code"] == "failed"
    assert "- one failed (failed): down\n- two failed (failed): down" in text_of(outcome)


async def test_finding_nothing_is_an_answer(tmp_path: Path) -> None:
    outcome = await search(tmp_path, Fake())
    assert not outcome.is_error
    assert text_of(outcome) == "fake found nothing for 'tea'."


async def test_probe_0_20_without_a_provider_it_says_how_to_get_one(tmp_path: Path) -> None:
    outcome = await search(tmp_path)
    assert outcome.is_error
    assert outcome.details["reason"] == "not_configured"
    assert all(word in text_of(outcome) for word in ("INDUS_SEARXNG_URL", "searxng_url", "ddgs", "search"))


async def test_the_tool_says_what_it_is() -> None:
    descriptor = websearch_tool().descriptor
    assert (descriptor.name, descriptor.title) == ("websearch", "Web search")
    assert (descriptor.annotations or {})["readOnlyHint"] is True


# -- SearXNG --------------------------------------------------------------------------------------


def searxng(*rows: Any) -> bytes:
    return json.dumps({"query": "tea", "results": rows}).encode()


def at(server: HttpServer, path: str = "") -> WebSettings:
    return WebSettings(searxng_url=f"http://127.0.0.1:{port_of(server)}{path}")


async def test_searxng_is_asked_for_json(tmp_path: Path) -> None:
    row = {"title": "T", "url": "https://a.example/", "content": "C", "publishedDate": None}
    async with http_server(replying(searxng(row, "odd", {"url": 5}), headers=JSON)) as server:
        outcome = await search(
            tmp_path,
            settings=at(server, "/searx/"),
            domains=["a.example", "b.example"],
            excludeDomains=["c.example"],
            freshness="week",
        )
    assert urls_of(outcome) == ["https://a.example/"]
    split = urlsplit(server.requests[0].path)
    assert split.path == "/searx/search"
    assert parse_qs(split.query) == {
        "q": ["tea (site:a.example OR site:b.example) -site:c.example"],
        "format": ["json"],
        "time_range": ["week"],
    }


async def test_searxng_can_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = searxng({"title": "T", "url": "https://a.example/", "content": ""})
    async with http_server(replying(body, headers=JSON)) as server:
        monkeypatch.setenv("INDUS_SEARXNG_URL", f"http://127.0.0.1:{port_of(server)}/search?x=1")
        outcome = await search(tmp_path, domains=["a.example"])
    assert urls_of(outcome) == ["https://a.example/"]
    assert server.requests[0].path == "/search?q=tea+site%3Aa.example&format=json"


@pytest.mark.parametrize(
    ("body", "status", "headers", "said"),
    [
        (b"", 403, {}, "under search: formats"),
        (b"", 500, {}, "answered 500"),
        (b"<html>", 200, {}, "invalid JSON"),
        (b"[" * 100_000, 200, {}, "invalid JSON"),
        (b"[]", 200, {}, "no list"),
        (b'{"results": {}}', 200, {}, "no list"),
        (b"", 302, {"Location": "https://elsewhere.example/"}, "https://elsewhere.example/"),
    ],
)
async def test_what_searxng_cannot_do_is_told(
    tmp_path: Path, body: bytes, status: int, headers: dict[str, str], said: str
) -> None:
    async with http_server(replying(body, status, headers)) as server:
        outcome = await search(tmp_path, settings=at(server))
    assert outcome.is_error
    assert said in text_of(outcome)


async def test_a_searxng_that_is_not_there_is_told(tmp_path: Path) -> None:
    async with http_server(replying()) as server:
        settings = at(server)
    outcome = await search(tmp_path, settings=settings)
    assert "- searxng failed (failed): 127.0.0.1" in text_of(outcome)


# -- ddgs -----------------------------------------------------------------------------------------


class RatelimitException(Exception):
    pass


def install_ddgs(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[Any]:
    calls: list[Any] = []

    class Ddgs:
        def __init__(self, timeout: int) -> None:
            calls.append(timeout)

        def text(self, query: str, *, max_results: int, timelimit: str | None) -> Any:
            calls.append((query, max_results, timelimit))
            if isinstance(answer, Exception):
                raise answer
            return answer

    module = ModuleType("ddgs")
    module.__dict__["DDGS"] = Ddgs
    module.__spec__ = __spec__
    monkeypatch.setitem(sys.modules, "ddgs", module)
    return calls


async def test_ddgs_is_used_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"title": "T", "href": "https://a.example/", "body": "B"}, None]
    calls = install_ddgs(monkeypatch, rows)
    outcome = await search(tmp_path, freshness="month")
    assert urls_of(outcome) == ["https://a.example/"]
    assert calls == [10, ("tea", 5, "m")]


@pytest.mark.parametrize(
    ("trouble", "code"), [(RatelimitException("202"), "rate_limited"), (RuntimeError("blocked"), "failed")]
)
async def test_a_ddgs_that_fails_is_a_failure_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception, code: str
) -> None:
    install_ddgs(monkeypatch, trouble)
    outcome = await search(tmp_path)
    failures: Any = outcome.details["failures"]
    assert failures[0]["code"] == code
