from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.scripts import unmeasured

from indusagi.interop.protocol_bridge.client.tools import model_name
from indusagi.interop.protocol_bridge.contract import RemoteToolRef, qualify_tool_name

ACCEPTED = re.compile(r"^[A-Za-z0-9_-]{1,64}\Z")
ODD = [
    ("github", "create issue"),
    ("party", "🎉" * 300),
    ("a" * 300, "b" * 300),
    ("a", "\ud800"),
    ("", ""),
    ("é", "dotted.name/part"),
]

parts = (
    st.text(st.characters(), max_size=80)
    | st.text(st.sampled_from("ab_-.🎉"), max_size=8)
    | st.text(st.sampled_from("ab_"), min_size=290, max_size=300)
)
refs = st.builds(RemoteToolRef, parts, parts)


@given(refs)
def test_model_name_is_accepted_by_every_provider(ref: RemoteToolRef) -> None:
    assert ACCEPTED.match(model_name(ref))


@given(refs)
def test_accepted_name_is_unchanged(ref: RemoteToolRef) -> None:
    qualified = qualify_tool_name(ref)
    assert (model_name(ref) == qualified) == bool(ACCEPTED.match(qualified))


@given(st.lists(refs, unique=True, max_size=12))
def test_different_tools_get_different_names(tools: list[RemoteToolRef]) -> None:
    taken: set[str] = set()
    for ref in tools:
        name = model_name(ref, taken)
        assert ACCEPTED.match(name)
        assert name not in taken
        taken.add(name)
    assert len(taken) == len(tools)


def test_identities_that_join_to_one_name_get_different_names() -> None:
    first = model_name(RemoteToolRef("a", "b__c"))
    second = model_name(RemoteToolRef("a__b", "c"), {first})
    assert first == "a__b__c"
    assert re.fullmatch(r"a__b__c_[0-9a-f]{8}", second)


def test_taken_digest_name_gets_a_longer_digest() -> None:
    ref = RemoteToolRef("a", "has some spaces")
    taken: set[str] = set()
    for length in range(8, 33):
        name = model_name(ref, taken)
        assert re.fullmatch(rf"a__has_some_spaces_[0-9a-f]{{{length}}}", name)
        taken.add(name)


def test_long_name_keeps_its_beginning_and_full_length() -> None:
    name = model_name(RemoteToolRef("server", "n" * 70))
    assert re.fullmatch(r"server__n{47}_[0-9a-f]{8}", name)
    assert len(name) == 64


@pytest.mark.process
def test_name_is_the_same_in_every_process() -> None:
    script = """
import json, sys
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.interop.protocol_bridge.client.tools import model_name
refs = [RemoteToolRef(*ref) for ref in json.loads(sys.argv[1])]
print(json.dumps([model_name(ref) for ref in refs]))
"""
    here = [model_name(RemoteToolRef(*ref)) for ref in ODD]
    for seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", script, json.dumps(ODD)],
            capture_output=True,
            text=True,
            check=True,
            env={**unmeasured(), "PYTHONHASHSEED": seed},
        )
        assert json.loads(there.stdout) == here
