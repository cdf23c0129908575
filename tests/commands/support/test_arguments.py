"""Words of a command line as arguments, by the schema of the tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from induscode.commands.call_data import ArgumentError, read_arguments

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "size": {"type": "number"},
        "deep": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "numbers": {"type": "array", "items": {"type": "integer"}},
        "anything": {"type": "array"},
        "map": {"type": "object"},
        "maybe": {"type": ["null", "integer"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
        "open": {},
        "true": True,
        "odd": {"type": "vector"},
    },
}
STRICT: JsonObject = {**SCHEMA, "additionalProperties": False}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["text=5"], {"text": "5"}),
        (["text=a=b"], {"text": "a=b"}),
        (["text="], {"text": ""}),
        (["text=[1]"], {"text": "[1]"}),
        (["count=5"], {"count": 5}),
        (["count=-5"], {"count": -5}),
        (["size=2"], {"size": 2}),
        (["size=2.5e3"], {"size": 2500.0}),
        (["deep=true"], {"deep": True}),
        (["deep=False"], {"deep": False}),
        (["tags=a"], {"tags": ["a"]}),
        (["tags=a", "tags=b"], {"tags": ["a", "b"]}),
        (['tags=["a","b"]', "tags=c"], {"tags": ["a", "b", "c"]}),
        (["numbers=1", "numbers=2"], {"numbers": [1, 2]}),
        (["anything=1"], {"anything": ["1"]}),
        (['map={"a":1}'], {"map": {"a": 1}}),
        (["maybe=null"], {"maybe": None}),
        (["maybe=7"], {"maybe": 7}),
        (["either=7"], {"either": 7}),
        (["either=true"], {"either": True}),
        (["open=7"], {"open": "7"}),
        (["true=7"], {"true": "7"}),
        (["unheard=7"], {"unheard": "7"}),
        (["count:=[1,2]"], {"count": [1, 2]}),
        (['text:={"a":null}'], {"text": {"a": None}}),
    ],
)
def test_a_value_is_read_by_its_schema(words: list[str], expected: JsonValue) -> None:
    assert read_arguments(words, {}, SCHEMA) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["count=1.5"], "'count' must be integer, not '1.5'"),
        (["size=inf"], "'size' must be number"),
        (["size=nan"], "'size' must be number"),
        (["deep=yes"], "'deep' must be boolean"),
        (["tags=[1"], "'tags' must be array"),
        (["numbers=x"], "'numbers' must be array"),
        (["map=[1]"], "'map' must be object"),
        (["map=x"], "'map' must be object"),
        (["maybe=x"], "'maybe' must be null or integer"),
        (["odd=1"], "'odd' must be vector"),
        (["count=1", "count=2"], "'count' is given twice"),
        (["text:=[1]", "text=b"], "'text' is given twice"),
        (["tags:=1", "tags=b"], "'tags' is given twice"),
        (["nothing"], "'nothing' is not key=value"),
        ([":=1"], "':=1' is not key=value"),
        (["count:=" + "[" * 100_000], "is invalid JSON"),
    ],
)
def test_a_value_that_does_not_fit_is_told(words: list[str], said: str) -> None:
    with pytest.raises(ArgumentError, match=said.replace("[", r"\[")):
        read_arguments(words, {}, SCHEMA)


def test_a_key_that_a_tool_does_not_take_is_told_with_the_nearest_one() -> None:
    with pytest.raises(ArgumentError, match=r"no argument 'cuont' \(did you mean 'count'\?\)$"):
        read_arguments(["cuont=1"], {}, STRICT)
    with pytest.raises(ArgumentError, match=r"no argument 'a'$"):
        read_arguments(["a=1"], {}, {"type": "object", "additionalProperties": False})


@pytest.mark.parametrize("word", ["anyOf", "oneOf"])
def test_branches_of_a_schema_give_the_types_of_a_value(word: str) -> None:
    schema: JsonObject = {"properties": {"n": {word: [True, {"type": "integer"}, {word: [{"type": "null"}]}]}}}
    assert [read_arguments([f"n={text}"], {}, schema)["n"] for text in ("7", "null")] == [7, None]
