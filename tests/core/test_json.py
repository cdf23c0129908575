from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import json_values

from indusagi.core.json import NotJson, _write, compact_json, content_hash, is_json_object

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue

DEEP = 20_000


def deep_list(depth: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(depth):
        value = [value]
    return value


def deep_object(depth: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(depth):
        value = {"b": value, "a": 0}
    return value


@given(json_values)
def test_compact_json_decodes_to_the_same_value(value: JsonValue) -> None:
    assert json.loads(compact_json(value)) == value


@given(json_values)
def test_sort_keys_changes_only_the_order(value: JsonValue) -> None:
    text = compact_json(value, sort_keys=True)
    assert json.loads(text) == value
    assert text == compact_json(json.loads(text), sort_keys=True)


@given(json_values)
def test_iterative_encoder_agrees_with_the_standard_library(value: JsonValue) -> None:
    for sort_keys in (False, True):
        expected = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys)
        assert _write(value, sort_keys=sort_keys) == expected


def test_keys_keep_insertion_order() -> None:
    assert compact_json({"b": 1, "a": [True, None, "é"]}) == '{"b":1,"a":[true,null,"é"]}'


def test_deeply_nested_values_are_encoded() -> None:
    assert compact_json(deep_list(DEEP)) == "[" * DEEP + "1" + "]" * DEEP
    assert compact_json(deep_object(DEEP), sort_keys=True).startswith('{"a":0,"b":{"a":0,"b":')


def test_lone_surrogates_are_escaped() -> None:
    text = compact_json({"\ud800": "x\udfff"})
    assert text == '{"\\ud800":"x\\udfff"}'
    assert json.loads(text) == {"\ud800": "x\udfff"}


def cyclic() -> Any:
    value: list[Any] = []
    value.append({"again": value})
    return value


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [0, math.nan]}, "$.a[1] is nan"),
        (math.inf, "$ is inf"),
        ({"a": {1: 2}}, "$.a has the key 1"),
        ({None: 1}, "$ has the key None"),
        ({"a": {"b": {1, 2}}}, "$.a.b is of type set"),
        ([b"x"], "$[0] is of type bytes"),
        ((1, 2), "$ is of type tuple"),
        ([10**5000], "$[0] cannot be written"),
        (cyclic(), "$[0].again is a container that holds itself"),
    ],
)
def test_invalid_values_are_refused_with_their_path(value: Any, place: str) -> None:
    with pytest.raises(NotJson) as caught:
        compact_json(value)
    assert place in str(caught.value)


def test_long_paths_are_shortened() -> None:
    value: Any = math.nan
    for _ in range(DEEP):
        value = {"a": value}
    with pytest.raises(NotJson) as caught:
        compact_json(value)
    assert str(caught.value) == "not JSON: $" + ".a" * 8 + "… is nan, a number that JSON does not have"


def test_shared_values_are_not_cycles() -> None:
    shared: JsonValue = deep_list(DEEP)
    assert compact_json([shared, shared]).count("1") == 2


@pytest.mark.parametrize("value", [{}, {"a": 1}])
def test_dict_with_string_keys_is_a_json_object(value: object) -> None:
    assert is_json_object(value)


@pytest.mark.parametrize("value", [{1: 2}, [], "x", None])
def test_other_values_are_not_json_objects(value: object) -> None:
    assert not is_json_object(value)


# -- content_hash ---------------------------------------------------------------------------------


def test_hash_is_the_start_of_sha256_over_compact_json() -> None:
    expected = hashlib.sha256(b'{"name":"a","n":[1,2.5,"\xc3\xa9"]}').hexdigest()[:32]
    assert content_hash({"name": "a", "n": [1, 2.5, "é"]}) == expected


def test_order_of_keys_matters_unless_sorted() -> None:
    one: JsonValue = {"a": 1, "b": {"c": 2, "d": 3}}
    other: JsonValue = {"b": {"d": 3, "c": 2}, "a": 1}
    assert content_hash(one) != content_hash(other)
    assert content_hash(one, sort_keys=True) == content_hash(other, sort_keys=True)


@given(st.lists(st.integers(), min_size=2, max_size=5, unique=True))
def test_order_of_an_array_matters(items: list[int]) -> None:
    there: JsonValue = {"items": [*items]}
    back: JsonValue = {"items": [*reversed(items)]}
    assert content_hash(there, sort_keys=True) != content_hash(back, sort_keys=True)


@given(json_values)
def test_hash_has_32_hexadecimal_digits(value: JsonValue) -> None:
    digest = content_hash(value)
    assert len(digest) == 32
    assert set(digest) <= set("0123456789abcdef")


def test_hash_is_the_same_in_another_process() -> None:
    code = "from indusagi.core import content_hash; print(content_hash({'b': {'y': 1}, 'a': [None]}))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == content_hash({"b": {"y": 1}, "a": [None]})


def test_the_path_to_an_invalid_value_leaves_out_containers_before_it() -> None:
    with pytest.raises(NotJson) as caught:
        compact_json({"a": [[1]], "b": {"c": math.nan}})
    assert "$.b.c is nan" in str(caught.value)
