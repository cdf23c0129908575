"""Functions of a script: names that Python accepts, parameters, and stubs that are valid Python."""

from __future__ import annotations

import ast
import keyword
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.searched import SearchableTools

from indusagi.interop.protocol_bridge.bridge import make_inert_context
from indusagi.runtime.calls import CallEntry
from indusagi.runtime.contract import ToolDescriptor
from induscode.code_mode.contract import CodeLimits, FunctionCall, ScriptCallError
from induscode.code_mode.opening import ScriptCalls, read_search
from induscode.code_mode.stubs import FunctionTable, format_stub
from induscode.deck.provision import DeckRunner, DeckToolBox
from induscode.search.index import ToolIndex

if TYPE_CHECKING:
    from collections.abc import Iterable

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import JsonSchema
    from induscode.search.items import SearchItem

EMPTY: JsonSchema = {"type": "object", "properties": {}}


def describe(name: str, parameters: JsonSchema = EMPTY, output_schema: JsonSchema | None = None) -> ToolDescriptor:
    return ToolDescriptor(name, "A tool.", parameters, output_schema=output_schema)


def test_names_are_mapped_in_both_directions() -> None:
    names = [
        "github__create_issue",
        "saas-action",
        "saas.action",
        "saas_action",
        "list",
        "class",
        "1st",
        "été",
        "print",
    ]
    table = FunctionTable(map(describe, names))
    mapped = {function.descriptor.name: function.name for function in table.functions}
    assert mapped["github__create_issue"] == "github__create_issue"
    assert mapped["saas_action"] == "saas_action"  # its own name, whatever comes before it
    assert {mapped["saas-action"], mapped["saas.action"]} == {"saas_action_2", "saas_action_3"}
    assert (mapped["list"], mapped["class"], mapped["1st"], mapped["print"]) == ("list_", "class_", "_1st", "print_")
    assert all(table.get(name).name == name for name in mapped.values())


@given(st.sets(st.text(min_size=1, max_size=12), max_size=12))
def test_every_tool_has_a_function_of_its_own(names: set[str]) -> None:
    table = FunctionTable(map(describe, names))
    assert {function.descriptor.name for function in table.functions} == names - {"run_code", "find_tools"}
    assert len(set(table.names)) == len(table.names)
    assert all(name.isidentifier() and name.isascii() and not keyword.iskeyword(name) for name in table.names)


def test_a_script_has_no_function_that_starts_a_script() -> None:
    cards = [describe(name) for name in ("run_code", "call_tool", "describe_tools", "find_tools", "echo")]
    assert FunctionTable(cards).names == ("find_tools", "echo")


def test_an_unknown_function_names_the_nearest_one() -> None:
    with pytest.raises(ScriptCallError, match="Did you mean 'create_issue'") as caught:
        FunctionTable([describe("create_issue")]).get("create_isue")
    assert caught.value.type_name == "NameError"


def test_arguments_are_bound_by_position_and_by_name() -> None:
    schema: JsonSchema = {
        "type": "object",
        "properties": {"body": {}, "owner": {}, "content-type": {}, "from": {}},
        "required": ["owner"],
    }
    function = FunctionTable([describe("send", schema)]).get("send")
    assert function.bind(FunctionCall("send", ["me", "text"], {})) == {"owner": "me", "body": "text"}
    named = FunctionCall("send", [], {"content_type": "a", "from_": "b", "other": "c"})
    assert function.bind(named) == {"content-type": "a", "from": "b", "other": "c"}
    with pytest.raises(ScriptCallError, match="two values for 'owner'"):
        function.bind(FunctionCall("send", ["me"], {"owner": "you"}))
    with pytest.raises(ScriptCallError, match="got 5 arguments; it takes owner, body"):
        function.bind(FunctionCall("send", [1, 2, 3, 4, 5], {}))


@pytest.mark.parametrize(
    ("positional", "named", "expected"),
    [
        (["a"], {}, (["a"], 5)),
        (["a", 2], {}, (["a"], 2)),
        ([["a", "b"]], {"limit": 50}, (["a", "b"], 50)),
        ([], {"queries": ["a"]}, (["a"], 5)),
        ([], {"query": "a", "limit": None}, (["a"], 5)),
    ],
)
def test_a_search_takes_words_or_a_list_of_them(
    positional: list[JsonValue], named: JsonObject, expected: tuple[list[str], int]
) -> None:
    assert read_search(FunctionCall("find_tools", positional, named)) == expected


@pytest.mark.parametrize(
    ("positional", "named", "message"),
    [
        ([], {}, "takes words"),
        (["a"], {"server": "github"}, "and got 'server'"),
        (["a"], {"query": "b"}, "and got 'query' twice"),
        (["a", 1, 2], {}, "and got 3 arguments"),
        ([["a", 1]], {}, "takes words, or a list of such texts"),
        ([" "], {}, "takes words"),
        (["a", 0], {}, "from 1 to 50"),
        (["a"], {"limit": 51}, "from 1 to 50"),
        (["a"], {"limit": "5"}, "from 1 to 50"),
    ],
)
def test_a_search_with_other_arguments_is_refused(positional: list[JsonValue], named: JsonObject, message: str) -> None:
    with pytest.raises(ScriptCallError, match=message):
        read_search(FunctionCall("find_tools", positional, named))


def test_a_stub_shows_types_of_arguments_and_result() -> None:
    label: JsonSchema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    parameters: JsonSchema = {
        "type": "object",
        "properties": {
            "labels": {"type": "array", "items": {"$ref": "#/$defs/label"}},
            "state": {"enum": ["open", "closed"]},
            "owner": {"type": "string"},
            "limit": {"type": ["integer", "null"]},
            "extra": {"type": "object", "additionalProperties": {"type": "number"}},
            "either": {"anyOf": [{"type": "string"}, {"type": "boolean"}]},
        },
        "required": ["owner"],
        "$defs": {"label": label},
    }
    result: JsonSchema = {"type": "object", "properties": {"number": {"type": "integer"}, "label": label}}
    function = FunctionTable([describe("make-issue", parameters, output_schema=result)]).get("make_issue")
    assert format_stub(function) == (
        "class Label(TypedDict):\n"
        "    name: str\n"
        "class MakeIssueResult(TypedDict):\n"
        "    number: NotRequired[int]\n"
        "    label: NotRequired[Label]\n"
        "async def make_issue(owner: str, labels: list[Label] = ..., state: Literal['open', 'closed'] = ..., "
        "limit: int | None = ..., extra: dict[str, float] = ..., either: str | bool = ...) -> MakeIssueResult:\n"
        '    "A tool."\n'
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(
    ["type", "enum", "const", "anyOf", "oneOf", "items", "properties", "required", "$ref", "description"]
)
kinds = st.sampled_from(["object", "array", "string", "integer", "odd"])


def nest_schema(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    references = st.sampled_from(["#", "#/properties/a", "#/nowhere", "http://x/y"])
    optional: dict[str, st.SearchStrategy[Any]] = {
        "properties": st.dictionaries(st.text(max_size=6), inner, max_size=3),
        "items": inner,
        "anyOf": st.lists(inner, max_size=3),
        "required": st.lists(st.text(max_size=6), max_size=2),
        "additionalProperties": inner | st.booleans(),
        "$ref": references,
    }
    required: dict[str, st.SearchStrategy[Any]] = {"type": kinds | st.lists(kinds, max_size=3)}
    return st.fixed_dictionaries(required, optional=optional)


schemas: st.SearchStrategy[Any] = st.recursive(
    st.dictionaries(keys, json_values, max_size=3), nest_schema, max_leaves=6
)


@given(st.text(min_size=1, max_size=10), schemas, st.none() | schemas, st.text(max_size=40))
def test_every_stub_is_valid_python(name: str, parameters: JsonSchema, result: JsonSchema | None, text: str) -> None:
    descriptor = ToolDescriptor(name, text, parameters, output_schema=result)
    for function in FunctionTable([descriptor]).functions:
        *classes, definition = ast.parse(format_stub(function)).body
        assert isinstance(definition, ast.AsyncFunctionDef)
        assert definition.name == function.name
        assert [argument.arg for argument in definition.args.args] == [*function.parameters]
        assert all(isinstance(one, ast.ClassDef) for one in classes)


@pytest.mark.anyio
async def test_a_disabled_tool_is_answered_by_its_box_and_no_other_one_is_suggested() -> None:
    box = SearchableTools([describe("tracker__last")])
    calls = ScriptCalls(CallEntry(box, "call_1"), make_inert_context(), CodeLimits())
    await calls.call(FunctionCall("tracker__lost", [], {"id": 1}))
    assert [(call.name, call.input) for call in box.called] == [("tracker__lost", {"id": 1})]

    deck = DeckToolBox(DeckRunner({}, make_inert_context()), disabled={"tracker__lost"})
    calls = ScriptCalls(CallEntry(deck, "call_1"), make_inert_context(), CodeLimits())
    with pytest.raises(ScriptCallError, match=r"tracker__lost is disabled: .* indus mcp diff"):
        await calls.call(FunctionCall("tracker__lost", [], {}))


@pytest.mark.anyio
async def test_the_searches_of_a_script_share_one_index(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[ToolIndex] = []

    class CountedIndex(ToolIndex):
        def __init__(self, items: Iterable[SearchItem]) -> None:
            super().__init__(items)
            built.append(self)

    monkeypatch.setattr("induscode.search.index.ToolIndex", CountedIndex)
    box = SearchableTools([describe("tracker__lost"), describe("tracker__last")])
    entry = CallEntry(box, "call_1", find_denied=lambda _names: {"tracker__last"})
    calls = ScriptCalls(entry, make_inert_context(), CodeLimits())
    for query in ("lost", "last"):
        found = await calls.call(FunctionCall("find_tools", [query], {}))
        assert isinstance(found, list)
        assert len(found) == (query == "lost")
    calls.close()
    assert len(built) == 1


@pytest.mark.anyio
async def test_a_search_that_this_python_cannot_do_raises_in_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("induscode.search.index._CREATE", "CREATE VIRTUAL TABLE items USING fts9(name)")
    calls = ScriptCalls(CallEntry(SearchableTools(), "call_1"), make_inert_context(), CodeLimits())
    with pytest.raises(ScriptCallError, match="no FTS5"):
        await calls.call(FunctionCall("find_tools", ["event"], {}))
    calls.close()
