"""Rules that hold before a session begins: the user's and the project's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from induscode.session.permissions.rules import Effect, Rule, RuleOrigin, parse_rule
from induscode.session.permissions.store import RuleStore, load_startup_rules

if TYPE_CHECKING:
    from pathlib import Path


def project(root: Path, text: str) -> Path:
    path = root / ".indusvx" / "permissions.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_project_without_a_file_has_no_rules(tmp_path: Path) -> None:
    assert load_startup_rules(RuleStore(), str(tmp_path)) == ((), ())
    (tmp_path / ".indusvx").touch()
    assert load_startup_rules(RuleStore(), str(tmp_path)) == ((), ())


def test_rules_of_user_and_project_hold_together(tmp_path: Path) -> None:
    mine = parse_rule("bash(git status *)", Effect.ALLOW)
    assert isinstance(mine, Rule)
    RuleStore().add([mine])
    path = project(tmp_path, '{"deny": ["bash(git push *)"], "ask": ["write(migrations/**)"]}')
    rules, notes = load_startup_rules(RuleStore(), str(tmp_path))
    assert notes == ()
    assert [(str(rule), rule.effect, rule.origin) for rule in rules] == [
        ("bash(git status *)", Effect.ALLOW, RuleOrigin.USER),
        ("bash(git push *)", Effect.DENY, RuleOrigin.PROJECT),
        ("write(migrations/**)", Effect.ASK, RuleOrigin.PROJECT),
    ]
    assert rules[-1].file == str(path)


def test_a_project_allows_nothing_and_that_is_told(tmp_path: Path) -> None:
    project(tmp_path, '{"allow": ["bash"]}')
    rules, notes = load_startup_rules(RuleStore(), str(tmp_path))
    assert rules == ()
    assert "a project cannot allow anything" in str(notes[0])


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_of_a_file_that_cannot_be_read_everything_is_asked_about(tmp_path: Path, text: str) -> None:
    path = project(tmp_path, text)
    (rule,), (note,) = load_startup_rules(RuleStore(), str(tmp_path))
    assert (rule.effect, rule.tool, rule.origin) == (Effect.ASK, "*", RuleOrigin.PROJECT)
    assert str(path) in str(note)


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}", encoding="utf-8")
    path = project(tmp_path, "{}")
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    (rule,), (note,) = load_startup_rules(RuleStore(), str(tmp_path))
    assert rule.effect is Effect.ASK
    assert "cannot be read" in str(note)
