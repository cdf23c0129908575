"""The host of scripts in memory: how a result, a failure and a print are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from induscode.code_mode.monty_host import _describe, _holds_unawaited, _to_result, uses_await

CALL = "<coroutine external_future(3)>"


@pytest.mark.parametrize(
    ("value", "holds"),
    [
        (CALL, True), ("<gather(1)>", True), ([1, CALL], True), ((CALL,), True), ({"a": CALL}, True),
        ({CALL: 1}, False), ("text", False), (f"{CALL}!", False), ([1, "x"], False), ([[CALL]], False), (None, False),
        (7, False),
    ],
)  # fmt: skip
def test_a_value_that_is_a_call_without_await_is_recognised(value: Any, *, holds: bool) -> None:
    assert _holds_unawaited(value) is holds


@pytest.mark.parametrize(
    ("code", "uses"),
    [
        ("await ls()", True), ("x = 1", False), ("# await", False), ("'await'", False), ("f'{await ls()}'", True),
        ("awaited = 1", False), ("await (", True),
    ],
)  # fmt: skip
def test_a_script_that_awaits_is_recognised(code: str, *, uses: bool) -> None:
    assert uses_await(code) is uses


def test_an_answer_is_a_value_or_an_exception() -> None:
    assert _to_result({"value": 1}) == {"return_value": 1}
    assert _to_result({"error": "ValueError", "message": "no"}) == {"exc_type": "ValueError", "message": "no"}


def test_a_value_that_is_no_json_is_described() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert _describe({1, 2}) == "{1, 2}"
    assert _describe(deep) == "a list that is too deep to be shown"
    assert _describe(10**5_000).startswith("a value of the type int that cannot be shown: ")
    assert _describe(SimpleNamespace(a=1)) == "namespace(a=1)"
