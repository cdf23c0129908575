from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from tests.support.strategies import json_values

from indusagi.capabilities.arguments import ArgumentChecker, near

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue

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


def test_arguments_that_fit_raise_no_problem() -> None:
    assert CHECKER.problems({"path": "a", "limit": 3, "edits": [{"oldText": ""}]}) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "'path' is missing and required"),
        (
            {"file_path": "a"},
            "'path' is missing and required; 'file_path' was given, which is not its name",
        ),
        (
            {"path": "a", "LIMIT": 3},
            "'LIMIT' is not accepted; did you mean 'limit'? Accepted: path, limit, mode, filter, "
            "kind, odd, exact, size, edits",
        ),
        (
            {"path": "a", "zzz": 3},
            "'zzz' is not accepted; Accepted: path, limit, mode, filter, kind, odd, exact, size, "
            "edits",
        ),
        ({"path": 3}, "'path' must be string, got 3"),
        ({"path": "a", "limit": "3"}, "'limit' must be integer, got \"3\""),
        ({"path": "a", "limit": True}, "'limit' must be integer, got true"),
        ({"path": "a", "limit": 0}, "'limit': 0 is less than the minimum of 1"),
        ({"path": "a", "mode": "x"}, '\'mode\' must be one of ["content","files"], got "x"'),
        ({"path": "a", "filter": 3}, "'filter' must be string or null, got 3"),
        ({"path": "a", "kind": 3}, "'kind' must be \"a\" or one of [1,2], got 3"),
        ({"path": "a", "odd": "ab"}, "'odd': 'ab' is not valid under any of the given schemas"),
        ({"path": "a", "exact": 1}, "'exact' must be {\"v\":1}, got 1"),
        ({"path": "a", "size": 1.5}, "'size' must be string or integer, got 1.5"),
        (
            {"path": "a", "edits": [{"oldText": ""}, {"oldtext": "b"}]},
            "'edits[1].oldText' is missing and required; 'oldtext' was given, which is not its "
            "name",
        ),
        (["path"], 'the arguments must be an object, got ["path"]'),
        ("path", 'the arguments must be an object, got "path"'),
    ],
)
def test_a_problem_names_the_field_what_was_given_and_what_is_accepted(
    arguments: JsonValue, problem: str
) -> None:
    assert problem in CHECKER.problems(arguments)


def test_every_missing_key_is_named_once() -> None:
    checker = ArgumentChecker({"type": "object", "required": ["a", "b", "c"]})
    assert checker.problems({"b": 1}) == [
        "'a' is missing and required",
        "'c' is missing and required",
    ]


def test_a_tool_that_accepts_nothing_says_so() -> None:
    checker = ArgumentChecker({"type": "object", "additionalProperties": False})
    assert checker.problems({"x": 1}) == ["'x' is not accepted; Accepted: none"]


def test_a_union_with_a_branch_that_is_no_object_is_told_in_the_validators_words() -> None:
    checker = ArgumentChecker({"type": "object", "properties": {"a": {"anyOf": [False]}}})
    assert checker.problems({"a": 1}) == ["'a': 1 is not valid under any of the given schemas"]


def test_a_long_value_is_not_repeated_in_full() -> None:
    (problem,) = CHECKER.problems({"path": ["x" * 10_000]})
    assert len(problem) < 200


def test_a_long_list_of_problems_is_cut_and_counted() -> None:
    problems = CHECKER.problems({"path": "a", **{f"strange{n}": n for n in range(20)}})
    assert len(problems) == 9
    assert problems[-1] == "and 12 more"


def test_a_remote_reference_is_never_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"
        checker = ArgumentChecker({"type": "object", "properties": {"a": {"$ref": url}}})
        with pytest.raises(Exception, match="Unresolvable"):
            checker.problems({"a": 1})
        with pytest.raises(BlockingIOError):
            listener.accept()


@given(json_values)
def test_any_value_is_either_accepted_or_told_what_is_wrong(value: JsonValue) -> None:
    problems = CHECKER.problems(value)
    assert problems or (isinstance(value, dict) and "path" in value)


@pytest.mark.parametrize(
    ("given_name", "meant"),
    [("file_path", "filePath"), ("Old-Text", "oldText"), ("pattren", "pattern"), ("xyz", None)],
)
def test_the_name_that_was_probably_meant_is_found(given_name: str, meant: str | None) -> None:
    assert near(given_name, ["filePath", "oldText", "pattern"]) == meant
