from __future__ import annotations

import socket
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from tests.support.strategies import json_values

from indusagi.capabilities import arguments
from indusagi.capabilities.arguments import ArgumentChecker, find_similar_name
from indusagi.core.json import NotJson, compact_json

if TYPE_CHECKING:
    from indusagi.core.json import JsonLike, JsonObject, JsonValue

CHECKER = ArgumentChecker(
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1},
            "mode": {"enum": ["content", "files"]},
            "filter": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "kind": {"oneOf": [{"const": "a"}, {"enum": [1, 2]}]},
            "odd": {"anyOf": [{"minLength": 3}, {"pattern": "^x"}]},
            "exact": {"const": {"v": 1}},
            "size": {"type": ["string", "integer"]},
            "edits": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"oldText": {"type": "string"}},
                    "required": ["oldText"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["path"],
        "additionalProperties": False,
    }
)


def test_fitting_arguments_have_no_problems() -> None:
    assert CHECKER.problems({"path": "a", "limit": 3, "edits": [{"oldText": ""}]}) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "'path' is missing and required"),
        ({"file_path": "a"}, "'path' is missing and required; 'file_path' was given, which is not its name"),
        (
            {"path": "a", "LIMIT": 3},
            "'LIMIT' is not accepted; did you mean 'limit'? Accepted: path, limit, mode, filter, "
            "kind, odd, exact, size, edits",
        ),
        (
            {"path": "a", "zzz": 3},
            "'zzz' is not accepted; Accepted: path, limit, mode, filter, kind, odd, exact, size, edits",
        ),
        ({"path": 3}, "'path' must be string, got 3"),
        ({"path": "a", "limit": "3"}, "'limit' must be integer, got \"3\""),
        ({"path": "a", "limit": True}, "'limit' must be integer, got true"),
        ({"path": "a", "limit": 0}, "'limit': 0 is less than the minimum of 1"),
        ({"path": "a", "mode": "x"}, '\'mode\' must be one of ["content","files"], got "x"'),
        ({"path": "a", "filter": 3}, "'filter' must be string or null, got 3"),
        ({"path": "a", "kind": 3}, "'kind' must be \"a\" or one of [1,2], got 3"),
        ({"path": "a", "odd": "ab"}, "'odd' must have at least 3 characters, got 2"),
        ({"path": "a", "exact": 1}, "'exact' must be {\"v\":1}, got 1"),
        ({"path": "a", "size": 1.5}, "'size' must be string or integer, got 1.5"),
        (
            {"path": "a", "edits": [{"oldText": ""}, {"oldtext": "b"}]},
            "'edits[1].oldText' is missing and required; 'oldtext' was given, which is not its name",
        ),
        (["path"], 'the arguments must be an object, got ["path"]'),
        ("path", 'the arguments must be an object, got "path"'),
    ],
)
def test_problem_names_field_value_and_requirement(arguments: JsonValue, problem: str) -> None:
    assert problem in CHECKER.problems(arguments)


def test_every_missing_key_is_reported_once() -> None:
    checker = ArgumentChecker({"type": "object", "required": ["a", "b", "c"]})
    assert checker.problems({"b": 1}) == ["'a' is missing and required", "'c' is missing and required"]


def test_schema_without_properties_accepts_none() -> None:
    checker = ArgumentChecker({"type": "object", "additionalProperties": False})
    assert checker.problems({"x": 1}) == ["'x' is not accepted; Accepted: none"]


def problems_of(schema: JsonLike, value: JsonValue) -> list[str]:
    return ArgumentChecker({"type": "object", "properties": {"a": schema}}).problems({"a": value})


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ({"anyOf": [False]}, 1, "'a': False schema does not allow 1"),
        (
            {"anyOf": [{"type": "object", "required": ["name"]}, {"type": "null"}]},
            {},
            "'a.name' is missing and required",
        ),
        ({"anyOf": [{"type": "string", "minLength": 5}, {"type": "null"}]}, "abc", "at least 5 characters"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 5, "valid under each of"),
        ({"anyOf": [{"type": "string"}, {"pattern": "x", "type": "null"}]}, 5, "string or null"),
    ],
)
def test_closest_branch_of_a_union_is_reported(schema: JsonLike, value: JsonValue, problem: str) -> None:
    (said,) = problems_of(schema, value)
    assert problem in said


def test_key_that_matches_a_pattern_is_accepted() -> None:
    checker = ArgumentChecker({"type": "object", "patternProperties": {"^x-": {}}, "additionalProperties": False})
    assert checker.problems({"x-one": 1, "other": 2}) == ["'other' is not accepted; Accepted: none"]


def test_problems_are_sorted_by_path() -> None:
    problems = CHECKER.problems({"size": 1.5, "limit": "3", "path": 3})
    assert [problem.split()[0] for problem in problems] == ["'limit'", "'path'", "'size'"]


def test_limit_of_problems_is_not_cut() -> None:
    problems = CHECKER.problems({"path": "a", **{f"strange{n}": n for n in range(8)}})
    assert len(problems) == 8
    assert "more" not in problems[-1]


def test_comparison_of_misspelt_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def counted(name: str, names: object) -> None:
        compared.append(name)

    monkeypatch.setattr(arguments, "find_similar_name", counted)
    checker = ArgumentChecker({"type": "object", "required": [f"key{n}" for n in range(500)], "properties": {}})
    problems = checker.problems({f"kye{n}": n for n in range(500)})
    assert problems[-1] == "and 492 more"
    assert len(compared) == 8


def test_long_value_is_clipped_in_a_problem() -> None:
    (problem,) = CHECKER.problems({"path": ["x" * 10_000]})
    assert len(problem) < 200


def test_long_list_of_problems_is_cut_and_counted() -> None:
    problems = CHECKER.problems({"path": "a", **{f"strange{n}": n for n in range(20)}})
    assert len(problems) == 9
    assert problems[-1] == "and 12 more"


def test_remote_reference_is_never_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"
        checker = ArgumentChecker({"type": "object", "properties": {"a": {"$ref": url}}})
        with pytest.raises(Exception, match="Unresolvable"):
            checker.problems({"a": 1})
        with pytest.raises(BlockingIOError):
            listener.accept()


@given(json_values)
def test_any_value_is_accepted_or_explained(value: JsonValue) -> None:
    problems = CHECKER.problems(value)
    assert problems or (isinstance(value, dict) and "path" in value)


@pytest.mark.parametrize(
    ("given_name", "meant"), [("file_path", "filePath"), ("Old-Text", "oldText"), ("pattren", "pattern"), ("xyz", None)]
)
def test_similar_name_is_found(given_name: str, meant: str | None) -> None:
    assert find_similar_name(given_name, ["filePath", "oldText", "pattern"]) == meant


LONG = "x" * 1_000_000


@pytest.mark.parametrize("given_long", [{"path": LONG}, {"edits": [{"oldText": LONG}]}])
async def test_long_string_is_not_encoded_for_its_size(given_long: JsonObject, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def weighing(value: JsonValue) -> str:
        written.append(len(compact_json(value)))
        return compact_json(value)

    monkeypatch.setattr(arguments, "compact_json", weighing)
    checker = ArgumentChecker({"type": "object"})
    assert await checker.check(given_long) == []
    assert max(written) < 100


async def test_invalid_json_is_found_beside_a_long_string() -> None:
    bad = {"text": LONG, "list": [{1: "a"}]}
    with pytest.raises(NotJson):
        await ArgumentChecker({"type": "object"}).check(cast("JsonObject", bad))


def test_a_schema_that_refers_to_itself_is_an_ordinary_error() -> None:
    """Wherever the stack ends: inside the validator's Rust code that isn't even an `Exception`."""
    endless: JsonObject = {"if": {"$ref": "#/$defs/x"}}
    schema: JsonObject = {"type": "object", "properties": {"p": endless}, "$defs": {"x": endless}}

    def check(frames: int) -> list[str]:
        return check(frames - 1) if frames else ArgumentChecker(schema).problems({"p": 1})

    for frames in range(60):
        with pytest.raises(RecursionError):
            check(frames)
