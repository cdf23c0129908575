from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import hidden_json, hidden_text

from indusagi.core.text import clean_json, clean_names, clean_text, iter_strings, make_visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.core.json import JsonValue

MODES = st.sampled_from([clean_text, make_visible])


def depth_of(value: object) -> int:
    depth = 0
    while isinstance(value, list):
        value, depth = value[0], depth + 1  # pyright: ignore[reportUnknownVariableType]
    return depth


@given(hidden_json, MODES)
def test_cleaned_value_has_no_invisible_characters(value: JsonValue, clean: Callable[[str], tuple[str, int]]) -> None:
    cleaned, found = clean_json(value, clean)
    for text in iter_strings(cleaned):
        assert clean_text(text.replace("\r", "")) == (text.replace("\r", ""), 0)
    assert found == sum(clean(text)[1] for text in iter_strings(value))


@given(hidden_json, MODES)
def test_cleaned_value_keeps_its_structure(value: JsonValue, clean: Callable[[str], tuple[str, int]]) -> None:
    def shape(inner: Any) -> Any:
        if isinstance(inner, dict):
            return [shape(one) for one in inner.values()]  # pyright: ignore[reportUnknownVariableType]
        return [shape(one) for one in inner] if isinstance(inner, list) else type(inner)  # pyright: ignore[reportUnknownVariableType]

    cleaned, found = clean_json(value, clean)
    assert shape(cleaned) == shape(value)
    if not found:
        assert cleaned is value


@given(st.lists(hidden_text, unique=True))
def test_cleaned_keys_stay_distinct(names: list[str]) -> None:
    shown = clean_names(names)
    assert list(shown) == names
    assert len({*shown.values()}) == len(names)
    assert all(shown[name] == name for name in names if not clean_text(name)[1])
    assert all(not clean_text(name)[1] for name in shown.values())


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["a\u200bb"], ["ab"]),
        (["ab", "a\u200bb"], ["ab", "a<U+200B>b"]),
        (["a\u200bb", "a\u200cb"], ["a<U+200B>b", "a<U+200C>b"]),
        (["\U000e0041"], ["<U+E0041>"]),
        (["<U+E0041>", "\U000e0041"], ["<U+E0041>", "<U+E0041> (2)"]),
    ],
)
def test_key_that_would_collide_or_be_empty_is_escaped(names: list[str], shown: list[str]) -> None:
    assert [*clean_names(names).values()] == shown


def test_deeply_nested_value_is_cleaned() -> None:
    value: JsonValue = "a\u202eb"
    for _ in range(50_000):
        value = [value]
    cleaned, found = clean_json(value)
    assert found == 1
    assert depth_of(cleaned) == 50_000
    assert [*iter_strings(cleaned)] == ["ab"]
    while isinstance(value, list):  # taken apart by hand: the interpreter would recurse
        value = value.pop()
    while isinstance(cleaned, list):
        cleaned = cleaned.pop()


def test_cyclic_value_and_other_keys_are_handled() -> None:
    loop: Any = {"a\u200b": 1, 5: 2}
    loop["self"] = loop
    cleaned, found = clean_json(loop)
    assert found == 1
    assert isinstance(cleaned, dict)
    assert [*cleaned] == ["a", 5, "self"]
    assert cleaned["self"] is cleaned
