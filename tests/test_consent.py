"""Consent: the digest covers every fact, and a yes to another digest is refused."""

from __future__ import annotations

import pytest

from indusagi.core.json import JsonObject
from induscode.core.consent import ConsentChangedError, build_consent

_FACTS: JsonObject = {"argv": ["npx", "-y", "x"], "env": {"A": "1"}, "cwd": None}


def test_yes_to_the_same_digest_is_accepted() -> None:
    shown = build_consent("server 'x'", _FACTS, ["command: npx"])
    build_consent("server 'x'", dict(reversed(_FACTS.items())), ["command: npx"]).check_digest(shown.digest)


@pytest.mark.parametrize(
    "facts",
    [
        {**_FACTS, "argv": ["npx", "-y x"]},
        {**_FACTS, "env": {"A": 1}},
        {**_FACTS, "env": {"A": "1", "B": ""}},
        {**_FACTS, "cwd": ""},
        {"argv": _FACTS["argv"], "env": _FACTS["env"]},
    ],
)
def test_yes_to_other_facts_is_refused(facts: JsonObject) -> None:
    shown = build_consent("server 'x'", _FACTS, ["command: npx"])
    with pytest.raises(ConsentChangedError, match="server 'x': it has changed since you looked"):
        build_consent("server 'x'", facts, ["command: npx"]).check_digest(shown.digest)


@pytest.mark.parametrize("digest", ["", "0" * 64])
def test_yes_to_another_subject_or_to_nothing_is_refused(digest: str) -> None:
    present = build_consent("server 'x'", _FACTS, ["command: npx"])
    other = build_consent("server 'y'", _FACTS, ["command: npx"])
    for carried in (digest, other.digest, present.digest[:12], present.digest.upper()):
        with pytest.raises(ConsentChangedError):
            present.check_digest(carried)


def test_question_shows_facts_then_warnings() -> None:
    question = build_consent("addon", {}, ["file: a.py"], ["It runs code."])
    assert question.details == ("file: a.py", "WARNING: It runs code.")


@pytest.mark.parametrize("char", ["\u2028", "\x85", "\r", "\x1b", "\u202e", "\u3164", "\ufe01", "\u200b", "\U000e0041"])
def test_finding_x4_every_character_of_a_question_is_visible_and_none_begins_a_line(char: str) -> None:
    question = build_consent(f"server 'a{char}b'", {}, [f"command: a{char}b"], [f"a{char}b"])
    plain = build_consent("server 'ab'", {}, ["command: ab"], ["ab"])
    for shown, other in zip((question.heading, *question.details), (plain.heading, *plain.details), strict=True):
        assert shown.isprintable()
        assert char not in shown
        assert shown != other
