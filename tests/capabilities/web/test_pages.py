"""What a response is by its headers and first bytes, and which results of a search are shown."""

from __future__ import annotations

from typing import Any

import pytest

from indusagi.capabilities.ports import SearchHit, SearchQuery
from indusagi.capabilities.web.page import detect_medium, file_extension, is_text, media_type
from indusagi.capabilities.web.results import ResultRow, page_key, select_results
from indusagi.net.address import parse_url


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("text/plain", b"\x89PNG\r\n\x1a\n", ("image", "image/png")),
        ("", b"\xff\xd8\xff", ("image", "image/jpeg")),
        ("", b"GIF87a", ("image", "image/gif")),
        ("", b"GIF89a", ("image", "image/gif")),
        ("", b"RIFF\n\n\n\nWEBPVP8 ", ("image", "image/webp")),
        ("text/html", b"%PDF-1.4", ("binary", "application/pdf")),
        ("text/html", b"\0", ("html", "text/html")),
        ("application/xhtml+xml", b"x", ("html", "application/xhtml+xml")),
        ("", b" <!-- x --> <!DOCTYPE  html>", ("html", "text/html")),
        ("", b"<html>", ("html", "text/html")),
        ("application/octet-stream", b"<head>", ("html", "application/octet-stream")),
        ("binary/octet-stream", b"<body>", ("html", "binary/octet-stream")),
        ("text/plain", b"<html>", ("text", "text/plain")),
        ("image/svg", b"<html>", ("binary", "image/svg")),
        ("", b"a\0b", ("binary", "application/octet-stream")),
        ("text/plain", b"a\0b", ("binary", "text/plain")),
        ("text/plain", b"\xff\xfea\0b\0", ("text", "text/plain")),
        ("text/plain", b"\xfe\xff\0a\0b", ("text", "text/plain")),
        ("text/plain; charset=UTF-16", b"a\0b\0", ("text", "text/plain")),
        ("application/json", b"{}", ("json", "application/json")),
        ("text/json", b"{}", ("json", "text/json")),
        ("application/ld+json", b"{}", ("json", "application/ld+json")),
        ("application/xml", b"<a/>", ("text", "application/xml")),
        ("image/svg+xml", b"<svg/>", ("text", "image/svg+xml")),
        ("application/toml", b"\xff\xff\xff\xff\xff", ("text", "application/toml")),
        ("", b"words", ("text", "text/plain")),
        ("", "é".encode() * 9, ("text", "text/plain")),
        ("", b"words" + "é".encode()[:1], ("text", "text/plain")),
        ("", b"words" + "😀".encode()[:3], ("text", "text/plain")),
        ("", b"w\xffords and more", ("binary", "application/octet-stream")),
        ("", b"words and m\xffo re", ("binary", "application/octet-stream")),
        ("", b"words and m\xff re", ("text", "text/plain")),
        ("application/octet-stream", b"words", ("text", "application/octet-stream")),
        ("application/zip", b"words", ("binary", "application/zip")),
        ("nonsense", b"words", ("text", "text/plain")),
    ],
)
def test_a_response_is_known_by_its_type_and_its_first_bytes(kind: str, body: bytes, expected: Any) -> None:
    assert detect_medium({"content-type": kind} if kind else {}, body) == expected


@pytest.mark.parametrize(
    ("kind", "named", "text"),
    [
        ("", "", True),
        (" Text/HTML ; charset=x", "text/html", True),
        ("image/png", "image/png", False),
        ("a b/c", "", True),
        ("application/x-ndjson", "application/x-ndjson", True),
        ("application/jsonl", "application/jsonl", True),
    ],
)
def test_a_type_is_read_without_its_parameters(kind: str, named: str, *, text: bool) -> None:
    assert (media_type({"content-type": kind}), is_text({"content-type": kind})) == (named, text)


@pytest.mark.parametrize(
    ("kind", "extension"),
    [
        ("application/pdf", ".pdf"),
        ("application/zip", ".zip"),
        ("application/gzip", ".gz"),
        ("application/x-tar", ".tar"),
        ("application/epub+zip", ".epub"),
        ("application/wasm", ".wasm"),
        ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", ".docx"),
        ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", ".xlsx"),
        ("application/vnd.openxmlformats-officedocument.presentationml.presentation", ".pptx"),
        ("image/png", ".png"),
        ("image/jpeg", ".jpg"),
        ("image/gif", ".gif"),
        ("image/webp", ".webp"),
        ("audio/mpeg", ".mp3"),
        ("video/mp4", ".mp4"),
        ("text/html", ".bin"),
    ],
)
def test_a_file_is_kept_with_its_extension(kind: str, extension: str) -> None:
    assert file_extension(kind) == extension


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://a.example/x", "https://www.a.example/x/", True),
        ("https://a.example/x?utm_source=1&b=2&gclid=3", "https://a.example/x?b=2", True),
        ("https://a.example/?fbclid=1&msclkid=2&dclid=3&yclid=4", "https://a.example", True),
        ("https://a.example/?mc_cid=1&mc_eid=2&igshid=3&ref_src=4", "https://a.example", True),
        ("https://a.example/?b=", "https://a.example/", False),
        ("https://a.example/?ref=1", "https://a.example/", False),
        ("https://a.example:8443/", "https://a.example/", False),
        ("https://b.a.example/", "https://a.example/", False),
        ("https://a.example/x", "https://a.example/y", False),
    ],
)
def test_one_page_has_one_key(one: str, other: str, *, same: bool) -> None:
    assert (page_key(parse_url(one)) == page_key(parse_url(other))) is same


def hit(url: str, title: str = "T", snippet: str = "S", published: str | None = None) -> SearchHit:
    """A result of a provider."""
    return SearchHit(title=title, url=url, snippet=snippet, published=published)


def select(*hits: SearchHit, limit: int = 9, **query: Any) -> list[str]:
    """Return the addresses of the results that are shown."""
    return [row.url for row in select_results(hits, SearchQuery(text="q", limit=limit, **query))]


def test_results_are_selected_by_domain_and_each_page_is_shown_once() -> None:
    hits = [hit("no address"), hit("http://a.example/"), hit("https://www.a.example/"), hit("http://b.a.example/")]
    hits += [hit("http://c.example/"), hit("ftp://d.example/")]
    assert select(*hits) == ["http://a.example/", "http://b.a.example/", "http://c.example/"]
    assert select(*hits, limit=2) == ["http://a.example/", "http://b.a.example/"]
    assert select(*hits, domains=["a.example"]) == ["http://a.example/", "http://b.a.example/"]
    assert select(*hits, exclude_domains=["a.example"]) == ["http://c.example/"]
    assert select(*hits, domains=["a.example"], exclude_domains=["b.a.example"]) == ["http://a.example/"]


def test_a_result_is_one_line_of_plain_text_for_each_field() -> None:
    (row,) = select_results(
        [hit("http://a.example/x", "<b>A</b>&amp;\n B", "s <i>t</i>\n", " 2025 ")], SearchQuery(text="q", limit=1)
    )
    assert row == ResultRow("A& B", "http://a.example/x", "s t", "2025")
    assert row.format() == "A& B (2025)\n   http://a.example/x\n   s t"
    assert row.to_json() == {"title": "A& B", "url": "http://a.example/x", "snippet": "s t", "published": "2025"}
    (bare,) = select_results([hit("http://a.example/x", "", "")], SearchQuery(text="q", limit=1))
    assert (bare.title, bare.format()) == ("a.example", "a.example\n   http://a.example/x")
    assert bare.to_json() == {"title": "a.example", "url": "http://a.example/x", "snippet": ""}
    (long,) = select_results([hit("http://a.example/", "x" * 300, "y" * 900)], SearchQuery(text="q", limit=1))
    assert (long.title.startswith("x" * 200 + "…"), long.snippet.startswith("y" * 500 + "…")) == (True, True)
