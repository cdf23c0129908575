"""One table of flags, and one value that they become."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from induscode.gateway.options import SERVE_FLAGS
from induscode.launch.flags import FlagGroup, FlagKind, flag_specs, split_list
from induscode.launch.invocation import Invocation, build_invocation
from induscode.launch.settings import SANDBOX, SETTINGS, Settings


def test_the_table_has_every_flag_once() -> None:
    names = [name for spec in flag_specs() for name in (spec.name, *spec.aliases)]
    assert len(set(names)) == len(names)
    assert flag_specs() is flag_specs()
    assert all(spec.describe.endswith(".") or spec.describe.endswith(").") for spec in flag_specs())


def test_flags_that_a_row_names_exist() -> None:
    rows = (*flag_specs(), *SERVE_FLAGS)
    named = {setting.flag for setting in SETTINGS.values()} | {spec.needs for spec in rows}
    named |= {name for spec in rows for name in spec.excludes}
    assert named - {None, ""} <= {spec.name for spec in rows}


def test_a_flag_of_a_setting_has_its_text_and_values() -> None:
    sandbox = next(spec for spec in flag_specs() if spec.name == SANDBOX.flag)
    assert (sandbox.describe, sandbox.default) == (SANDBOX.describe, SANDBOX.default)
    assert sandbox.choices == ("auto", "required", "off")


def test_exactly_two_flags_are_lists() -> None:
    lists = [spec for spec in flag_specs() if spec.kind is FlagKind.LIST]
    assert [(spec.name, spec.group) for spec in lists] == [("--tools", FlagGroup.TOOLS), ("--mcp", FlagGroup.TOOLS)]


@pytest.mark.parametrize(
    ("given", "read"),
    [(("a", "b"), ("a", "b")), (("a,b",), ("a", "b")), ((" a , ,b,",), ("a", "b")), (("",), ()), ((), ())],
)
def test_a_list_repeats_and_splits(given: tuple[str, ...], read: tuple[str, ...]) -> None:
    assert split_list(given) == read


@given(st.lists(st.text(alphabet="ab ,", max_size=6)))
def test_repeating_and_joining_mean_the_same(parts: list[str]) -> None:
    assert split_list(tuple(parts)) == split_list((",".join(parts),))


def test_nothing_given_is_the_default() -> None:
    assert build_invocation({}, "/w") == Invocation(cwd="/w")
    assert Invocation(cwd="/w").mcp is None


def test_what_is_given_is_there() -> None:
    values: dict[str, object] = {
        "print": "hi",
        "output_format": "json",
        "continue": True,
        "model": "openai:x",
        "base_url": "http://h",
        "max_requests": "7",
        "tools": ("read,ls",),
        "mcp": ("a.json", "b.json,c.json"),
        "allow": ("bash(git log, *)",),
        "approval": "all",
        "sandbox": "off",
    }
    found = build_invocation(values, "/w")
    assert set(found.settings.given) == {*("sandbox", "model.name", "model.base_url", "model.max_requests")}
    assert replace(found, settings=Settings()) == Invocation(
        cwd="/w",
        prompt="hi",
        output_format="json",
        continue_last=True,
        model="openai:x",
        base_url="http://h",
        max_requests=7,
        tools=("read", "ls"),
        mcp=("a.json", "b.json", "c.json"),
        allow=("bash(git log, *)",),
        approval="all",
        sandbox="off",
    )


@pytest.mark.parametrize("number", ["0", "-1", "x", "", "1.5", "٣"])
def test_a_number_that_is_none_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match="--max-requests takes a number"):
        build_invocation({"max_requests": number}, "/w")


def test_switches_are_there() -> None:
    found = build_invocation({"no_tools": True, "no_mcp": True}, "/w")
    assert found == Invocation(cwd="/w", no_tools=True, no_mcp=True)


_GIVEN: dict[str, object] = {
    "continue": True,
    "resume": "x",
    "tools": ("read",),
    "no_tools": True,
    "flow": "deny",
    "mcp": ("a.json",),
    "no_mcp": True,
    "allow": ("ls",),
    "approval": "all",
    "sandbox": "off",
    "web_allow": ("a:1",),
    "context_window": "8192",
    "code": True,
}
_EXCLUDED = [(spec.key, other) for spec in flag_specs() for other in spec.excludes]


@pytest.mark.parametrize(("key", "other"), _EXCLUDED)
def test_finding_1a1_of_two_flags_none_is_dropped_for_the_other(key: str, other: str) -> None:
    other_key = other.lstrip("-").replace("-", "_")
    with pytest.raises(ValueError, match=f"{other} and .* can't be used together"):
        build_invocation({key: _GIVEN[key], other_key: _GIVEN[other_key]}, "/w")


@pytest.mark.parametrize("key", ["tools", "mcp"])
def test_finding_1a1_a_list_that_names_nothing_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=f"--{key} names nothing"):
        build_invocation({key: (",", " ")}, "/w")
