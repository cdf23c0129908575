"""The store of the user's rules, and the rules of a project."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.permissions.support import Person, check_call, context, rule

from indusagi.core.app_dirs import state_dir
from induscode.permissions.check import Permissions
from induscode.permissions.rules import Effect, Rule, RuleOrigin, RuleStore, load_startup_rules, parse_rule

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonValue


def project(root: Path, text: str) -> Path:
    path = root / ".indusvx" / "permissions.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_project_without_a_file_has_no_rules(tmp_path: Path) -> None:
    assert load_startup_rules(RuleStore(), str(tmp_path)) == ((), ())
    (tmp_path / ".indusvx").touch()
    assert load_startup_rules(RuleStore(), str(tmp_path)) == ((), ())


def test_rules_of_user_and_project_are_combined(tmp_path: Path) -> None:
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


def test_allow_rules_of_a_project_are_ignored_with_a_note(tmp_path: Path) -> None:
    project(tmp_path, '{"allow": ["bash"]}')
    rules, notes = load_startup_rules(RuleStore(), str(tmp_path))
    assert rules == ()
    assert "a project cannot allow anything" in str(notes[0])


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_unreadable_project_file_asks_about_everything(tmp_path: Path, text: str) -> None:
    path = project(tmp_path, text)
    (rule,), (note,) = load_startup_rules(RuleStore(), str(tmp_path))
    assert (rule.effect, rule.tool, rule.origin) == (Effect.ASK, "*", RuleOrigin.PROJECT)
    assert str(path) in str(note)


def test_symbolic_link_as_project_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}", encoding="utf-8")
    path = project(tmp_path, "{}")
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    (rule,), (note,) = load_startup_rules(RuleStore(), str(tmp_path))
    assert rule.effect is Effect.ASK
    assert "cannot be read" in str(note)


# -- the store --------------------------------------------------------------------------------


def test_store_is_private_and_outside_of_every_project(tmp_path: Path) -> None:
    store = RuleStore()
    assert store.load() == ((), ())
    kept = rule("bash(git commit *)", Effect.ALLOW, workspace=str(tmp_path))
    store.add([kept, kept, rule("read", Effect.DENY)])
    store.add([kept])
    found, notes = store.load()
    assert [str(one) for one in found] == ["bash(git commit *)", "read"]
    assert found[0].workspace == str(tmp_path)
    assert found[0].file == store.path
    assert not notes
    assert store.path.startswith(state_dir())
    assert stat.S_IMODE(os.stat(store.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(store.path)).st_mode) == 0o700
    assert store.remove(replace(kept, server="other")) == 0
    assert store.remove(kept) == 1
    assert store.remove(kept) == 0
    assert len(store.load()[0]) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"rules": {}}', '{"rules": [1]}'])
def test_damaged_store_asks_about_everything_and_is_set_aside(content: str) -> None:
    store = RuleStore()
    store.add([rule("bash", Effect.ALLOW)])
    with open(store.path, "w", encoding="utf-8") as file:
        file.write(content)
    found, notes = store.load()
    assert [(one.effect, str(one)) for one in found] == [(Effect.ASK, "*")]
    assert "cannot be read" in str(notes[0])
    store.add([rule("read", Effect.DENY)])
    assert [str(one) for one in store.load()[0]] == ["read"]
    aside = [name for name in os.listdir(os.path.dirname(store.path)) if ".corrupt-" in name]
    assert len(aside) == 1


@pytest.mark.parametrize(
    "row",
    [
        {"rule": "bash(", "effect": "deny"},
        {"rule": 1, "effect": "deny"},
        {"rule": "bash", "effect": "maybe"},
        {"rule": "bash", "effect": "allow", "workspace": 1},
    ],
)
def test_invalid_row_asks_about_everything(row: dict[str, JsonValue]) -> None:
    store = RuleStore()
    store.add([])
    with open(store.path, "w", encoding="utf-8") as file:
        json.dump({"rules": [row]}, file)
    found, notes = store.load()
    assert [(one.effect, str(one)) for one in found] == [(Effect.ASK, "*")]
    assert len(notes) == 1


def test_symbolic_link_as_store_is_not_followed(tmp_path: Path) -> None:
    store = RuleStore()
    store.add([])
    planted = tmp_path / "planted.json"
    planted.write_text('{"rules": [{"rule": "bash", "effect": "allow"}]}', encoding="utf-8")
    os.unlink(store.path)
    os.symlink(planted, store.path)
    assert [one.effect for one in store.load()[0]] == [Effect.ASK]


def test_failed_write_leaves_the_store_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    store = RuleStore()
    store.add([rule("read", Effect.DENY)])

    def full(handle: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        store.add([rule("bash", Effect.ALLOW)])
    assert [str(one) for one in store.load()[0]] == ["read"]
    assert [name for name in os.listdir(os.path.dirname(store.path)) if "tmp" in name] == []


@pytest.mark.process
def test_concurrent_processes_lose_no_rule() -> None:
    code = (
        "import sys; from induscode.permissions.rules import RuleStore;"
        "from induscode.permissions.rules import Rule, Effect;"
        "add = RuleStore().add; name = sys.argv[1];"
        "[add([Rule(effect=Effect.DENY, tool=f't{name}_{n}')]) for n in range(5)]"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(n)]) for n in range(4)]
    assert [one.wait(30) for one in running] == [0] * 4
    assert len(RuleStore().load()[0]) == 20


def test_without_a_home_directory_there_are_no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "nowhere")
    assert RuleStore().load() == ((), ())


@pytest.mark.anyio
async def test_damaged_store_makes_permissions_ask(tmp_path: Path) -> None:
    store = RuleStore(str(tmp_path / "rules.json"))
    (tmp_path / "rules.json").write_text("{", encoding="utf-8")
    person = Person()
    permissions = Permissions(store.load()[0], approver=person, store=store)
    assert not (await check_call(permissions, "read", tmp_path, path="a")).allowed
    assert person.questions
    assert context(tmp_path).cwd == str(tmp_path)
