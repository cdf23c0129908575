"""The index of tools, prompts, resources and actions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.encoders import TopicEncoder

from indusagi.runtime.contract import ToolDescriptor
from induscode.search.index import (
    LexicalIndex,
    SearchUnavailableError,
    ToolIndex,
    list_query_words,
    normalize_name,
    split_humps,
)
from induscode.search.items import build_content_item, build_item, build_tool_item
from induscode.search.semantic import SemanticIndex

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from induscode.search.index import SearchAnswer
    from induscode.search.items import SearchItem


def make_tool(server: str, name: str, description: str = "", **properties: str) -> SearchItem:
    schema = {
        "type": "object",
        "properties": {key: {"type": "string", "description": text} for key, text in properties.items()},
    }
    return build_tool_item(ToolDescriptor(f"{server}__{name}", description, schema), server, name)


GITHUB = make_tool("github", "create_issue", "Open a new issue in a repository.", title="Its headline")
LIST = make_tool("github", "list_issues", "List the issues of a repository.")
MAIL = make_tool("mail", "sendMessage", "Send an email to recipients.", to="Addresses of the recipients")
FILES = make_tool("files", "read_file", "Read the whole content of a file.", path="Where the file is")
PROMPT = build_content_item(
    "prompt",
    "github",
    "/github:triage",
    {"name": "triage", "description": "Sort new issues.", "arguments": [{"name": "label", "required": True}]},
)
MANUAL = build_content_item(
    "resource",
    "files",
    "@files:file:///manual.md",
    {"uri": "file:///manual.md", "name": "manual", "title": "User manual", "description": "How to begin."},
)
ITEMS = (GITHUB, LIST, MAIL, FILES, PROMPT, MANUAL)


def list_names(answer: SearchAnswer) -> Sequence[str]:
    return [hit.item.qualified_name for hit in answer.hits]


def test_items_are_found_by_words_of_every_field() -> None:
    index = ToolIndex(ITEMS)
    for query, name in (
        ("open issues", "github__create_issue"),
        ("messages", "mail__sendMessage"),
        ("emailing", "mail__sendMessage"),
        ("recipient addresses", "mail__sendMessage"),
        ("sort", "/github:triage"),
        ("user manual", "@files:file:///manual.md"),
    ):
        assert list_names(index.search([query]))[0] == name, query


@pytest.mark.parametrize(
    "query",
    [
        "list_issues",
        "LIST-ISSUES",
        "listIssues",
        "list issues",
        "github__list_issues",
        "github list issues",
        "github/list_issues",
    ],
)
def test_an_item_with_the_name_of_the_query_comes_first(query: str) -> None:
    # Its text says nothing, and that of another tool everything.
    plain = make_tool("github", "list_issues")
    loud = make_tool("other", "everything", "list issues github list issues list_issues github__list_issues")
    answer = ToolIndex([loud, plain]).search([query])
    assert answer.hits[0].item is plain
    assert answer.hits[0].score == 1.0


_NAMES = st.lists(
    st.sampled_from(["create", "Issue", "list", "getIssues", "file", "v2", "café", "ツール"]), min_size=1, max_size=3
)


@given(st.sets(st.builds("_".join, _NAMES), min_size=1, max_size=12), st.data())
def test_any_spelling_of_a_name_finds_its_item_first(names: set[str], data: st.DataObject) -> None:
    # Each tool speaks of all others, so that words alone would find another one.
    about = " ".join(sorted(names)) * 3
    items = [make_tool(server, name, about.replace(name, "")) for name in sorted(names) for server in ("a", "b")]
    index = ToolIndex(items, SemanticIndex(TopicEncoder()) if data.draw(st.booleans()) else None)
    index.prepare()
    wanted = data.draw(st.sampled_from(items))
    name = data.draw(st.sampled_from([wanted.name, wanted.qualified_name, f"{wanted.server} {wanted.name}"]))
    spell = data.draw(
        st.sampled_from([str.upper, str.title, lambda text: text.replace("_", "-"), partial(normalize, "NFD")])
    )
    first = index.search([spell(name)], limit=1).hits[0]
    assert first.score == 1
    spellings = {normalize_name(text) for text in (first.item.name, first.item.qualified_name)}
    assert normalize_name(name) in {*spellings, *(f"{first.item.server}{text}" for text in spellings)}


def test_a_tool_is_found_by_its_name_at_its_server() -> None:
    # The name for a model may be another: shortened, or renamed by a view.
    renamed = build_tool_item(ToolDescriptor("t_1f3a", "", {}), "archive", "store_everything")
    assert list_names(ToolIndex([*ITEMS, renamed]).search(["store everything"])) == ["t_1f3a"]


def test_a_resource_comes_first_by_its_uri() -> None:
    assert list_names(ToolIndex(ITEMS).search(["file:///manual.md"]))[0] == "@files:file:///manual.md"


def test_two_servers_with_one_tool_name_are_both_first() -> None:
    one, two = make_tool("one", "search"), make_tool("two", "search")
    noise = make_tool("three", "search_pages", "search search search")
    assert {hit.item.server for hit in ToolIndex([noise, two, one]).search(["Search"]).hits[:2]} == {"one", "two"}


def test_several_queries_take_turns() -> None:
    index = ToolIndex(ITEMS)
    names = list_names(index.search(["open an issue in a repository", "send email", "send email"]))
    assert names[:2] == ["github__create_issue", "mail__sendMessage"]
    assert len(names) == len(set(names))


def test_an_answer_says_how_many_were_left_out() -> None:
    answer = ToolIndex(ITEMS).search(["issue"], limit=1)
    assert (len(answer.hits), answer.matched, answer.left_out, answer.searched) == (1, 3, 2, len(ITEMS))
    nothing = ToolIndex(ITEMS).search(["zebra"])
    assert (nothing.hits, nothing.matched, nothing.left_out) == ([], 0, 0)
    assert ToolIndex(ITEMS).search([]).hits == ToolIndex(ITEMS).search(["", "?!"]).hits == []


def test_a_search_is_limited_to_a_server_and_to_kinds() -> None:
    index = ToolIndex(ITEMS)
    assert {hit.item.server for hit in index.search(["file issue email"], server="mail").hits} == {"mail"}
    answer = index.search(["triage issues"], kinds=("prompt",))
    assert (list_names(answer), answer.searched) == (["/github:triage"], 1)
    assert index.search(["list_issues"], server="mail").hits == []


def test_only_changed_items_are_indexed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    index = ToolIndex(ITEMS)
    assert index.update(ITEMS) == 0
    changed = make_tool("github", "list_issues", "Enumerate tickets.")
    added: list[int] = []
    add = LexicalIndex.add

    def count(self: LexicalIndex, rows: Collection[tuple[int, SearchItem]]) -> None:
        added.append(len(rows))
        add(self, rows)

    monkeypatch.setattr(LexicalIndex, "add", count)
    assert index.update([item for item in ITEMS if item not in {LIST, MAIL}] + [changed]) == 1
    assert added == [1]
    assert list_names(index.search(["tickets"])) == ["github__list_issues"]
    assert index.search(["email"]).hits == []
    assert index.search(["sendMessage"]).hits == []
    assert len(index.items) == len(ITEMS) - 1


@given(st.permutations(ITEMS), st.lists(st.sampled_from(ITEMS)))
def test_the_order_depends_on_the_items_alone(items: list[SearchItem], earlier: list[SearchItem]) -> None:
    queries = ["new issue of a repository", "content"]
    index = ToolIndex(earlier)
    index.update(items)
    assert index.search(queries) == ToolIndex(ITEMS).search(queries)


@given(st.text())
def test_any_text_is_a_query(query: str) -> None:
    answer = INDEX.search([query, f'{query}" OR name:*'])
    assert all(0 <= hit.score <= 1 for hit in answer.hits)


INDEX = ToolIndex(ITEMS)


def test_scripts_without_spaces_are_found_by_neighbouring_characters() -> None:
    weather = make_tool("maps", "weather", "根据城市名称查询天气预报", city="城市名称")
    route = make_tool("maps", "route", "规划两个地点之间的步行路线")
    issue = make_tool("tracker", "create_issue", "課題を作成する")
    songs = make_tool("music", "songs", "노래를검색합니다")
    index = ToolIndex([*ITEMS, weather, route, issue, songs])
    for query, found in (
        ("天气", [weather]),
        ("查询北京的天气", [weather]),
        ("步行路线", [route]),
        ("課題の作成", [issue]),
        ("검색", [songs]),
        ("雨", []),
        ("線", []),
        ("名", [weather]),
        ("线", [route]),
        ("create 天气", [GITHUB, issue]),
    ):
        assert {hit.item.qualified_name for hit in index.search([query]).hits} == {
            item.qualified_name for item in found
        }, query
    index.update([*ITEMS, issue])
    assert index.search(["天气"]).hits == []
    assert index.search(["作成"]).hits[0].item is issue
    index.update([*ITEMS, weather])
    assert index.search(["天气"]).hits[0].item is weather


def test_a_python_without_fts5_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("induscode.search.index._CREATE", "CREATE VIRTUAL TABLE items USING fts9(name)")
    with pytest.raises(SearchUnavailableError, match="no FTS5"):
        ToolIndex()


def test_words_with_humps_are_searched_whole_and_in_parts() -> None:
    assert split_humps("GitHub createIssue XMLParser plain") == (
        "GitHub createIssue XMLParser plain Git Hub create Issue XML Parser"
    )
    assert list_query_words("How do I create the Issue?") == ["create", "issue"]
    assert list_query_words("what is it") == ["what", "is", "it"]
    assert normalize_name("Create-Issue_V2 ") == "createissuev2"


def test_the_digest_changes_with_every_part_of_a_definition() -> None:
    base = build_item("tool", "s", "n", "s__n", title="t", description="d", keywords="k", schema={"type": "object"})
    items = [
        base,
        build_item("action", "s", "n", "s__n", title="t", description="d", keywords="k", schema={"type": "object"}),
        build_item("tool", "s", "m", "s__n", title="t", description="d", keywords="k", schema={"type": "object"}),
        build_item("tool", "s", "n", "s__n", title="x", description="d", keywords="k", schema={"type": "object"}),
        build_item("tool", "s", "n", "s__n", title="t", description="x", keywords="k", schema={"type": "object"}),
        build_item("tool", "s", "n", "s__n", title="t", description="d", keywords="x", schema={"type": "object"}),
        build_item("tool", "s", "n", "s__n", title="t", description="d", keywords="k", schema={}),
    ]
    assert len({item.digest for item in items}) == len(items)
