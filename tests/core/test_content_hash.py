"""`content_hash` digests the text that ECMAScript's `JSON.stringify` gives; Node.js is the judge."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import examples, json_values

from indusagi.core.json import NotJson, compact_json, content_hash, exact_hash
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from induscode.deck.mcp.ledger import BridgeCapability, BridgeLedger, EnrollRequest, bridge_content_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonValue

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
STRINGIFY = """
const lines = require("fs").readFileSync(0, "utf8").split("\\n").filter(Boolean)
console.log(JSON.stringify(lines.map(line => JSON.stringify(JSON.parse(line)))))
"""


def digest_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def ask_node(values: Sequence[JsonValue]) -> list[str]:
    lines = "\n".join(json.dumps(value) for value in values)
    done = subprocess.run(["node", "-e", STRINGIFY], input=lines, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (0.0, "0"),
        (-1.0, "-1"),
        (1e16, "10000000000000000"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (-1.5e300, "-1.5e+300"),
        (1e-5, "0.00001"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.25e-9, "1.25e-9"),
        (123456789.125, "123456789.125"),
        (5e-324, "5e-324"),
        (2**53, "9007199254740992"),
        (2**53 + 1, "9007199254740992"),
        (-(2**53) - 1, "-9007199254740992"),
        (2**64, "18446744073709552000"),
        (10**21, "1e+21"),
        (10**400, "1" + 400 * "0"),  # no double comes near
        ([1.0, {"a": 2.0}], '[1,{"a":2}]'),
        (True, "true"),
        ("1.0", '"1.0"'),
        ('":1.0,', '"\\":1.0,"'),  # looks like a number in a text
        ({"1.0": "[2.5]"}, '{"1.0":"[2.5]"}'),
        (["\ud800", "x\udfff1", 1.0], '["\\ud800","x\\udfff1",1]'),
        ("\ud83d\ude00", '"😀"'),  # two halves of one character
        (["\ud83d\ude00", 1.0], '["😀",1]'),
        ("\x7f\u2028\x1f\b", '"\x7f\u2028\\u001f\\b"'),
    ],
)
def test_finding_sc_numbers_and_texts_are_hashed_as_json_stringify_writes_them(value: JsonValue, text: str) -> None:
    assert content_hash(value) == digest_text(text)


def test_finding_sc_integral_floats_give_the_key_of_the_integer() -> None:
    whole = bridge_content_key("s", "t", {"type": "integer", "minimum": 1, "maximum": 100})
    assert bridge_content_key("s", "t", {"maximum": 1e2, "minimum": 1.0, "type": "integer"}) == whole
    assert bridge_content_key("s", "t", {"type": "integer", "minimum": 1.5, "maximum": 100}) != whole


def test_finding_sc_tool_with_a_key_of_an_older_version_is_enrolled_in_its_place() -> None:
    tools = [
        BridgeCapability(f"s__{name}", "", {"type": "object", "maxProperties": 1.0}, None, ref=RemoteToolRef("s", name))
        for name in ("a", "b")
    ]
    ledger = BridgeLedger.empty()
    for tool in tools:
        identity: JsonValue = {"name": tool.name, "schema": dict(tool.parameters)}  # type: ignore[dict-item]
        old = type(bridge_content_key("s", "a"))(f"bk_{exact_hash(identity, sort_keys=True)}")
        ledger = ledger.enroll(EnrollRequest(tool, "s", old), "2026-01-01T00:00:00Z")
    ledger = ledger.enroll(EnrollRequest(tools[0], "s"), "2026-01-02T00:00:00Z")
    assert [tool.name for tool in ledger.live_capabilities()] == ["s__a", "s__b"]
    assert ledger.find(RemoteToolRef("s", "a")) == (bridge_content_key("s", "a", dict(tools[0].parameters)), tools[0])


@pytest.mark.process
@needs_node
@examples(0.1)
@given(st.lists(json_values | st.floats(allow_nan=False, allow_infinity=False), min_size=10, max_size=50))
def test_finding_sc_node_writes_the_same_text(values: list[JsonValue]) -> None:
    def prefix(value: JsonValue) -> JsonValue:
        # Objects of ECMAScript list keys that are array indexes first; the specification keeps the order of insertion.
        if isinstance(value, list):
            return [prefix(one) for one in value]
        return {f"k{key}": prefix(one) for key, one in value.items()} if isinstance(value, dict) else value

    plain = [prefix(value) for value in values]
    assert [content_hash(value) for value in plain] == [digest_text(text) for text in ask_node(plain)]


@pytest.mark.process
@needs_node
def test_finding_sc_node_writes_random_doubles_the_same_way() -> None:
    draw = random.Random(29)
    doubles = [struct.unpack("<d", draw.randbytes(8))[0] for _ in range(20_000)]
    values: list[JsonValue] = [one for one in doubles if one - one == 0]
    values += [draw.choice((1, -1)) * draw.randrange(10**30) // 10 ** draw.randrange(30) for _ in range(5_000)]
    values += [draw.randrange(10**6) / 10 ** draw.randrange(24) for _ in range(5_000)]
    assert [content_hash(value) for value in values] == [digest_text(text) for text in ask_node(values)]


@given(json_values)
def test_decoded_values_keep_their_hash(value: JsonValue) -> None:
    assert content_hash(json.loads(json.dumps(value))) == content_hash(value)


def test_exact_hash_tells_numbers_apart_that_compare_equal() -> None:
    assert exact_hash([1]) != exact_hash([1.0])
    assert exact_hash({"b": 1, "a": 2}, sort_keys=True) == exact_hash({"a": 2, "b": 1}, sort_keys=True)
    assert exact_hash(1.0) == digest_text("1.0")


def test_integer_with_too_many_digits_is_refused() -> None:
    with pytest.raises(NotJson):
        content_hash([10**5000])


def test_halves_of_one_character_are_written_as_the_character() -> None:
    assert compact_json("\ud83d\ude00") == '"😀"'
