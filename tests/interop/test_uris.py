"""URIs of servers' resources in a host with several servers: reversible, distinct, and rewritten everywhere."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.interop.protocol_bridge.uris import (
    UriMap,
    convert_block,
    convert_meta,
    convert_result,
    convert_row,
    matches_template,
    normalize_uri,
)
from induscode.launch.views import matches

SERVERS = st.text(min_size=1, max_size=12)
URIS = st.one_of(
    st.text(min_size=1, max_size=30),
    st.sampled_from(
        ["file:///a/b", "ui://app/x.html", "skill://a/SKILL.md", "https://h/p?q#f", "indus://a/b", "ui://"]
    ),
)
HOST = UriMap("lib").to_host


@given(SERVERS, URIS)
def test_every_uri_comes_back(server: str, uri: str) -> None:
    uris = UriMap(server)
    assert uris.to_server(uris.to_host(uri)) == uri


@given(SERVERS, SERVERS, URIS)
def test_a_uri_belongs_to_one_server(one: str, other: str, uri: str) -> None:
    if one != other:
        assert UriMap(other).to_server(UriMap(one).to_host(uri)) is None


@pytest.mark.parametrize(
    ("uri", "seen"),
    [
        ("repo://a/b", "indus://lib/repo://a/b"),
        ("ui://app/main.html", "ui://lib/app/main.html"),
        ("skill://review/SKILL.md", "skill://lib/review/SKILL.md"),
        ("UI://app", "indus://lib/UI://app"),
        ("book://{id}/text", "indus://lib/book://{id}/text"),
    ],
)
def test_the_scheme_stays_where_clients_know_it(uri: str, seen: str) -> None:
    assert HOST(uri) == seen


def test_the_id_of_a_server_is_escaped() -> None:
    assert UriMap("a/b c").to_host("x:y") == "indus://a%2Fb%20c/x:y"


def test_escapes_that_a_client_adds_make_no_difference() -> None:
    assert normalize_uri("x:/a%20b") == normalize_uri("x:/a b")


def test_the_address_of_an_app_is_converted_and_its_policy_stays() -> None:
    policy: dict[str, Any] = {"csp": {"connectDomains": ["https://x"]}, "permissions": {"camera": {}}}
    meta: Any = {"ui": {"resourceUri": "ui://a", **policy}, "ui/resourceUri": "ui://a", "other": 1}
    assert convert_meta(meta, HOST) == {
        "ui": {"resourceUri": "ui://lib/a", **policy},
        "ui/resourceUri": "ui://lib/a",
        "other": 1,
    }
    untouched: Any = {"ui": policy}
    assert convert_meta(untouched, HOST) is untouched
    assert convert_meta(None, HOST) is None


def test_links_and_embedded_resources_are_converted_at_any_depth() -> None:
    link: Any = {"type": "resource_link", "uri": "a:b", "name": "n"}
    inner: Any = {"type": "resource", "resource": {"uri": "a:b", "text": "a:b"}}
    assert convert_block(link, HOST) == {**link, "uri": "indus://lib/a:b"}
    assert convert_block(inner, HOST) == {**inner, "resource": {"uri": "indus://lib/a:b", "text": "a:b"}}
    nested: Any = {"type": "tool_result", "content": [link, 1]}
    assert convert_block(nested, HOST) == {"type": "tool_result", "content": [{**link, "uri": "indus://lib/a:b"}, 1]}
    text: Any = {"type": "text", "text": "a:b", "uri": "a:b"}
    assert convert_block(text, HOST) is text


def test_results_of_both_requests_are_converted() -> None:
    read: Any = {"contents": [{"uri": "a:b", "text": "t"}, 1], "_meta": {"ui": {"resourceUri": "ui://a"}}}
    assert convert_result(read, HOST) == {
        "contents": [{"uri": "indus://lib/a:b", "text": "t"}, 1],
        "_meta": {"ui": {"resourceUri": "ui://lib/a"}},
    }
    block = {"type": "resource_link", "uri": "a:b"}
    got: Any = {
        "messages": [{"role": "user", "content": [block]}, {"role": "user", "content": block}, {"role": "x"}, 2]
    }
    seen = {**block, "uri": "indus://lib/a:b"}
    assert convert_result(got, HOST) == {
        "messages": [{"role": "user", "content": [seen]}, {"role": "user", "content": seen}, {"role": "x"}, 2]
    }
    nothing: Any = {"completion": {"values": []}}
    assert convert_result(nothing, HOST) is nothing
    assert convert_row({"name": "n"}, HOST) == {"name": "n"}


LITERALS = st.lists(st.text(alphabet="ab/:", max_size=3), min_size=1, max_size=5)


@given(LITERALS, st.text(alphabet="ab/:!", max_size=12))
def test_a_template_matches_what_a_regular_expression_matches(literals: list[str], uri: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, literals)), uri) is not None
    assert matches_template(uri, "{x}".join(literals)) == expected


def test_a_template_of_many_expressions_is_compared_at_once() -> None:
    # A regular expression would try every division of the URI among the expressions.
    assert not matches_template("a" * 1_000, "{x}a" * 400 + "{x}!")
    assert matches_template("a" * 1_000, "{x}a" * 400)
    # The same for the patterns of views, and a URI of a guest.
    assert not matches("/public/" * 100_000, ["*/public/*/public/*.md"])


def shout(uri: str) -> str:
    """Mark a converted URI."""
    return f"!{uri}"


@pytest.mark.parametrize(
    ("meta", "converted"),
    [
        (None, None),
        ({"ui": {"resourceUri": "a", "csp": 1}, "x": 2}, {"ui": {"resourceUri": "!a", "csp": 1}, "x": 2}),
        ({"ui/resourceUri": "a"}, {"ui/resourceUri": "!a"}),
        ({"ui": {"resourceUri": 1}, "ui/resourceUri": 2}, {"ui": {"resourceUri": 1}, "ui/resourceUri": 2}),
        ({"ui": "a", "resourceUri": "a"}, {"ui": "a", "resourceUri": "a"}),
    ],
)
def test_the_addresses_of_apps_are_converted_wherever_a_meta_stands(meta: Any, converted: Any) -> None:
    assert convert_meta(meta, shout) == converted
    assert convert_row({"_meta": meta}, shout) == {"_meta": converted}
    assert convert_result({"_meta": meta}, shout) == {"_meta": converted}


LINK, SEEN_LINK = {"type": "resource_link", "uri": "a"}, {"type": "resource_link", "uri": "!a"}


@pytest.mark.parametrize(
    ("block", "converted"),
    [
        (LINK, SEEN_LINK),
        ({"type": "resource", "resource": {"uri": "a"}}, {"type": "resource", "resource": {"uri": "!a"}}),
        ({"type": "resource", "resource": "a"}, {"type": "resource", "resource": "a"}),
        ({"type": "tool_result", "content": [LINK, 1]}, {"type": "tool_result", "content": [SEEN_LINK, 1]}),
        ({"type": "tool_result", "content": "a"}, {"type": "tool_result", "content": "a"}),
        ({"type": "text", "uri": "a", "content": [LINK]}, {"type": "text", "uri": "a", "content": [LINK]}),
        ({"type": "other", "resource": {"uri": "a"}}, {"type": "other", "resource": {"uri": "a"}}),
        ("a", "a"),
    ],
)
def test_each_kind_of_block_is_converted(block: Any, converted: Any) -> None:
    assert convert_block(block, shout) == converted
    for content, seen in ((block, converted), ([block, LINK], [converted, SEEN_LINK])):
        result: Any = {"messages": [{"role": "user", "content": content}]}
        assert convert_result(result, shout) == {"messages": [{"role": "user", "content": seen}]}


@pytest.mark.parametrize(
    ("result", "converted"),
    [
        ({"a": 1}, {"a": 1}),
        ({"contents": [{"uri": "a"}, 1], "x": 1}, {"contents": [{"uri": "!a"}, 1], "x": 1}),
        ({"resources": [{"uriTemplate": "a"}, 1]}, {"resources": [{"uriTemplate": "!a"}, 1]}),
        (
            {"skill": {"uri": "a", "resources": [{"uri": "b"}, 1]}},
            {"skill": {"uri": "!a", "resources": [{"uri": "!b"}, 1]}},
        ),
        (
            {"skill": "a", "contents": {"uri": "a"}, "messages": {}},
            {"skill": "a", "contents": {"uri": "a"}, "messages": {}},
        ),
        (
            {"messages": [1, {"role": "user"}, {"content": None}]},
            {"messages": [1, {"role": "user"}, {"content": None}]},
        ),
        ({"contents": [{"uri": 1, "uriTemplate": None}]}, {"contents": [{"uri": 1, "uriTemplate": None}]}),
    ],
)
def test_each_kind_of_result_is_converted(result: Any, converted: Any) -> None:
    assert convert_result(result, shout) == converted


@pytest.mark.parametrize("value", [{"a": 1}, {"_meta": {"x": 1}}, {}])
def test_what_has_no_address_stays_the_same_object(value: Any) -> None:
    assert convert_row(value, shout) is value
    assert convert_result(value, shout) is value
