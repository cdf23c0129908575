"""Challenges: the grammar of `WWW-Authenticate`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.interop.auth.requests import Challenge, find_oauth_challenge, parse_challenges

TOKEN = st.text("abcXYZ019-_", min_size=1, max_size=8)
VALUE = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=20)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Bearer", [Challenge("bearer")]),
        ('Bearer realm="a, b", scope="x y"', [Challenge("bearer", {"realm": "a, b", "scope": "x y"})]),
        (r'Bearer realm="a\"b"', [Challenge("bearer", {"realm": 'a"b'})]),
        ("Basic realm=plain, Bearer", [Challenge("basic", {"realm": "plain"}), Challenge("bearer")]),
        ('Negotiate abc==, DPoP algs="ES256"', [Challenge("negotiate"), Challenge("dpop", {"algs": "ES256"})]),
        ('bearer ERROR = "x" , scope=y', [Challenge("bearer", {"error": "x", "scope": "y"})]),
        ('Bearer scope="a", scope="b"', [Challenge("bearer", {"scope": "a"})]),
        ("", []),
        (", ,", []),
        ('"', []),
        ('Bearer realm="open', [Challenge("bearer")]),
    ],
)
def test_challenges_are_parsed(header: str, expected: list[Challenge]) -> None:
    assert parse_challenges([header])[: len(expected)] == expected


@given(st.lists(st.tuples(TOKEN, st.dictionaries(TOKEN.map(str.lower), VALUE, max_size=3)), max_size=3))
def test_what_is_written_by_the_grammar_is_read(challenges: list[tuple[str, dict[str, str]]]) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    written = ", ".join(
        f"{scheme} " + ", ".join(f"{name}={quoted(value)}" for name, value in parameters.items())
        for scheme, parameters in challenges
    )
    assert parse_challenges([written]) == [Challenge(scheme.lower(), values) for scheme, values in challenges]


@given(st.text(max_size=200))
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    parse_challenges([text])


def test_dpop_is_chosen_before_bearer_and_others_never() -> None:
    challenges = parse_challenges(['Bearer scope="a", Basic realm="x"', "DPoP algs=ES256"])
    found = find_oauth_challenge(challenges)
    assert found is not None
    assert found.scheme == "dpop"
    assert find_oauth_challenge(parse_challenges(["Basic realm=x"])) is None
