import hashlib
import subprocess
import sys
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import json_values

from indusagi.core.hashing import content_hash

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue


def test_the_hash_is_the_start_of_sha256_over_compact_json() -> None:
    expected = hashlib.sha256(b'{"name":"a","n":[1,2.5,"\xc3\xa9"]}').hexdigest()[:32]
    assert content_hash({"name": "a", "n": [1, 2.5, "é"]}) == expected


def test_the_order_of_keys_counts_unless_they_are_sorted() -> None:
    one: JsonValue = {"a": 1, "b": {"c": 2, "d": 3}}
    other: JsonValue = {"b": {"d": 3, "c": 2}, "a": 1}
    assert content_hash(one) != content_hash(other)
    assert content_hash(one, sort_keys=True) == content_hash(other, sort_keys=True)


@given(st.lists(st.integers(), min_size=2, max_size=5, unique=True))
def test_the_order_of_an_array_always_counts(items: list[int]) -> None:
    there: JsonValue = {"items": [*items]}
    back: JsonValue = {"items": [*reversed(items)]}
    assert content_hash(there, sort_keys=True) != content_hash(back, sort_keys=True)


@given(json_values)
def test_the_hash_is_32_hexadecimal_digits(value: "JsonValue") -> None:
    digest = content_hash(value)
    assert len(digest) == 32
    assert set(digest) <= set("0123456789abcdef")


def test_another_process_gets_the_same_hash() -> None:
    code = "from indusagi.core import content_hash; print(content_hash({'b': {'y': 1}, 'a': [None]}))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == content_hash({"b": {"y": 1}, "a": [None]})
