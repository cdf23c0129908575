"""Rules: how they are read, what they match, and the laws that hold for any set of them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.session.permissions.support import Person, context, rule, rules, verdict

from indusagi.capabilities.ports import SandboxState
from indusagi.core.app_dirs import state_dir
from indusagi.core.notes import Note
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from induscode.session.permissions.call_facts import CallFacts, CallKind, PathFact
from induscode.session.permissions.check import Permissions
from induscode.session.permissions.confirm import build_command_pattern
from induscode.session.permissions.patterns import PatternMatch, is_path, match_command, may_be_command, may_be_path
from induscode.session.permissions.policy import ApprovalMode, PolicyContext, decide_call
from induscode.session.permissions.rules import Effect, Rule, RuleOrigin, parse_rule, parse_rules, parse_settings
from induscode.session.permissions.shell.parse import parse_command
from induscode.session.permissions.store import RuleStore

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from indusagi.capabilities.ports import Refusal
    from indusagi.core.json import JsonValue


# -- reading ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "bash", "bash(git status *)", "bash(git status:*)", "bash(*)", "read(src/**)", "*",
        "github__*", "webfetch(domain:example.org)", "write(/etc/x (copy).txt)", " ls ",
    ],
)  # fmt: skip
def test_a_rule_reads_as_it_is_written(text: str) -> None:
    found = parse_rule(text, Effect.ALLOW)
    assert isinstance(found, Rule)
    assert str(found) == text.strip()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no rule"),
        ("bash(", "is no rule"),
        ("bash(ls", "is no rule"),
        ("bash()", "nothing in its brackets"),
        ("bash( )", "nothing in its brackets"),
        ("ba sh", "is no rule"),
        ("bash(ls; rm *)", "one command only"),
        ("bash(ls && x)", "one command only"),
        ("bash(* --force)", "names no command"),
        ("read(a\x1b[31m)", "cannot be seen"),
        ("read(a\u202eb)", "cannot be seen"),
        ("webfetch(example.org)", "not about a domain"),
        ("websearch(x)", "has brackets"),
        ("read(*a*a*a*a*a*a*a*)", "too many stars"),
        ("x" * 5000, "is no rule"),
    ],
)
def test_a_rule_that_cannot_be_read_is_told_with_its_text_and_file(text: str, why: str) -> None:
    found = parse_rule(text, Effect.DENY, RuleOrigin.PROJECT, "rules.json")
    assert isinstance(found, Note)
    assert why in str(found)
    assert f"rule {text!r} in rules.json" in str(found)
    assert found.remedy


def test_a_broken_rule_that_was_to_deny_asks_about_everything() -> None:
    for effect in (Effect.DENY, Effect.ASK):
        found, notes = parse_rules(["bash(ls", "read"], effect, RuleOrigin.USER)
        assert [(one.effect, str(one)) for one in found] == [(Effect.ASK, "*"), (effect, "read")]
        assert len(notes) == 1
    assert parse_rules(["bash(ls"], Effect.ALLOW, RuleOrigin.FLAG)[0] == []


def test_a_project_may_deny_and_ask_and_never_allow() -> None:
    settings: JsonValue = {"allow": ["bash"], "ask": ["read"], "deny": ["bash(rm *)"]}
    found, notes = parse_settings(settings, "p.json", RuleOrigin.PROJECT)
    assert {(one.effect, str(one)) for one in found} == {(Effect.ASK, "read"), (Effect.DENY, "bash(rm *)")}
    assert "a project cannot allow anything" in str(notes[0])
    mine, none = parse_settings(settings, "u.json", RuleOrigin.USER)
    assert len(mine) == 3
    assert none == []
    assert mine[0].reason.endswith("(u.json)")


@pytest.mark.parametrize("settings", [[], "x", {"deny": "bash"}, {"ask": [1]}, {"deny": ["bash("]}])
def test_settings_that_cannot_be_read_ask_about_everything(settings: JsonValue) -> None:
    found, notes = parse_settings(settings, "p.json", RuleOrigin.PROJECT)
    assert [(one.effect, str(one)) for one in found] == [(Effect.ASK, "*")]
    assert notes
    assert all("p.json" in str(note) for note in notes)


def test_settings_that_allow_wrongly_or_say_more_are_told() -> None:
    found, notes = parse_settings({"allow": "bash", "mode": 1}, "u.json", RuleOrigin.USER)
    assert found == []
    assert len(notes) == 2


# -- matching ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "command", "allowed", "denied"),
    [
        ("git status", "git status", True, PatternMatch.YES),
        ("git status", "git status -s", False, PatternMatch.YES),
        ("git status *", "git status", True, PatternMatch.YES),
        ("git status:*", "git status -s", True, PatternMatch.YES),
        ("git status *", "git statusx", False, PatternMatch.NO),
        ("git *", "gitx", False, PatternMatch.NO),
        ("git *", "/usr/bin/git x", False, PatternMatch.YES),
        ("git *", "GIT x", False, PatternMatch.YES),
        ("git clean", "git -C x clean", False, PatternMatch.YES),
        ("git clean", "git commit -m clean", False, PatternMatch.NO),
        ("git clean", "git stash clean", False, PatternMatch.NO),
        ("git clean", "git $x", False, PatternMatch.MAYBE),
        ("git clean", "$x clean", False, PatternMatch.MAYBE),
        ("git clean", "gi? clean", False, PatternMatch.YES),
        ("git clean", "ls *", False, PatternMatch.NO),
        ("rm -rf *", "rm -fr x", False, PatternMatch.YES),
        ("rm -rf *", "rm -r -f x", False, PatternMatch.YES),
        ("rm -rf *", "rm x", False, PatternMatch.NO),
        ("rm -rf *", "rm $x", False, PatternMatch.MAYBE),
        ("git push --force *", "git push origin --force", False, PatternMatch.YES),
        ("git push --force *", "git push origin --force-with", False, PatternMatch.NO),
        ("git push --force *", "git push origin --forc", False, PatternMatch.YES),
        ("git push --force *", "git push origin --force=x", False, PatternMatch.YES),
        ("npm run test:*", "npm run test:unit", False, PatternMatch.NO),
        ("npm run te*t", "npm run test", True, PatternMatch.YES),
        ("npm run t*s*t", "npm run test", True, PatternMatch.YES),
        ("npm run t*x*t", "npm run test", False, PatternMatch.NO),
        ("npm run *x", "npm run test", False, PatternMatch.NO),
        ("npm run a*", "npm run test", False, PatternMatch.NO),
        ("*", "anything at all", True, PatternMatch.YES),
        ("ls a b", "ls a", False, PatternMatch.NO),
        ("find -delete", "find . -name x -delete", False, PatternMatch.YES),
    ],
)
def test_a_pattern_allows_exactly_and_denies_generously(
    pattern: str, command: str, allowed: bool, denied: PatternMatch
) -> None:
    found = parse_command(command).commands[0]
    assert (match_command(pattern, found) is not None) is allowed
    assert may_be_command(pattern, found) is denied


@pytest.mark.parametrize(
    ("pattern", "path", "allowed", "denied"),
    [
        ("src/**", "/w/src/a/b", True, True),
        ("src/**", "/w/src", True, True),
        ("src/**", "/w/srcx", False, False),
        ("src/*", "/w/src/a", True, True),
        ("src/*", "/w/src/a/b", False, True),
        ("src", "/w/src/a", False, True),
        ("*.py", "/w/a.py", True, True),
        ("*.py", "/w/x/a.py", False, True),
        ("**/*.py", "/w/x/a.py", True, True),
        ("**/*.py", "/w/a.py", True, True),
        ("a?c", "/w/abc", True, True),
        ("a?c", "/w/a/c", False, False),
        ("/**", "/etc/passwd", True, True),
        ("/etc/*", "/etc/passwd", True, True),
        ("a.b", "/w/axb", False, False),
        ("../x", "/x", True, True),
        ("SRC/**", "/w/src/a", False, True),
        ("[a]", "/w/[a]", True, True),
        ("[a]", "/w/a", False, False),
    ],
)
def test_a_path_pattern_allows_exactly_and_denies_generously(
    pattern: str, path: str, allowed: bool, denied: bool
) -> None:
    assert is_path(pattern, path, "/w") is allowed
    assert may_be_path(pattern, path, "/w") is denied


@pytest.mark.parametrize(
    ("command", "saved"),
    [
        ("git commit -m 'x y'", "git commit *"),
        ("git", "git"),
        ("git -C x status", "git -C x status"),
        ("git remote add x y", "git remote add *"),
        ("npm run test -- -v", "npm run test *"),
        ("npm install left-pad", "npm install *"),
        ("docker compose up", None),
        ("uv run pytest -q", "uv run pytest *"),
        ("cargo test", "cargo test *"),
        ("ls -la", "ls *"),
        ("pytest tests", "pytest *"),
        ("make", "make"),
        ("rm -rf build", "rm -rf build"),
        ("rm 'a b'", None),
        ("python -m pytest", "python -m pytest"),
        ("./run.sh x", "./run.sh x"),
        ("bash x.sh", None),
        ("sh -c x", None),
        ("eval x", None),
        ("sudo x", None),
        ("xargs rm", None),
        ("python -c x", None),
        ("node -e x", None),
        ("npx x", None),
        ("npx -c x", None),
        ("uvx --from x y", None),
        ("$x", None),
        ("git $x", None),
        ("find . -name x", None),
    ],
)
def test_always_saves_as_many_words_as_say_what_is_done(command: str, saved: str | None) -> None:
    found = parse_command(command).commands[0]
    assert build_command_pattern(found) == saved
    if saved is not None:
        assert match_command(saved, found) is not None


# -- laws -------------------------------------------------------------------------------------

TEXTS = st.sampled_from(
    [
        *("*", "bash", "bash(git *)", "bash(git clean *)", "bash(ls *)", "bash(*)", "read", "write"),
        *("write(**)", "write(src/**)", "read(.env)", "write(/**)", "github__*", "webfetch"),
        *("webfetch(domain:a.org)", "bash(git)", "process", "read(/w/src)", "ls", "b*"),
    ]
)
RULES = st.lists(st.builds(rule, TEXTS, st.sampled_from(Effect)), max_size=8)


def _path(path: str, *, writing: bool, refusal: Refusal | None = None) -> PathFact:
    return PathFact(given=path, spelled=path, resolved=path, writing=writing, refusal=refusal)


def _call(tool: str, kind: CallKind) -> CallFacts:
    return CallFacts(tool=tool, kind=kind, arguments={}, workspace="/w", cwd="/w")


def _command(text: str) -> CallFacts:
    return replace(
        _call("bash", CallKind.COMMAND),
        script=parse_command(text),
        paths=(_path("/w/src/out", writing=True),) if ">" in text else (),
        sandbox=SandboxState(kind="bubblewrap"),
    )


def _file(tool: str, path: PathFact) -> CallFacts:
    return replace(_call(tool, CallKind.FILE), paths=(path,))


CALLS = st.sampled_from(
    [
        _command("git status"),
        _command("git clean -fd"),
        _command("ls && git status > src/out"),
        _command("git $x"),
        _command("sudo ls"),
        _file("read", _path("/w/.env", writing=False)),
        _file("read", _path("/w/a", writing=False)),
        _file("write", _path("/w/src/a", writing=True)),
        _file("write", _path("/x/a", writing=True, refusal="outside")),
        _file("ls", _path("/proc", writing=False, refusal="special")),
        replace(_call("github__x", CallKind.REMOTE), remote=RemoteToolRef("github", "x")),
        replace(_call("webfetch", CallKind.EGRESS), url="https://a.org"),
    ]
)
STANCES = st.builds(PolicyContext, approval=st.sampled_from(ApprovalMode), plan=st.booleans())
STRICTNESS = {Effect.ALLOW: 0, Effect.ASK: 1, Effect.DENY: 2}


@given(CALLS, RULES, STANCES, TEXTS)
def test_a_rule_that_denies_or_asks_never_makes_anything_less_strict(
    call: CallFacts, some: list[Rule], stance: PolicyContext, text: str
) -> None:
    before = decide_call(call, some, stance).effect
    for effect in (Effect.DENY, Effect.ASK):
        after = decide_call(call, [*some, rule(text, effect)], stance).effect
        assert STRICTNESS[after] >= STRICTNESS[before]


@given(CALLS, RULES, STANCES, st.randoms(use_true_random=False))
def test_the_order_of_rules_never_matters(
    call: CallFacts, some: list[Rule], stance: PolicyContext, random: Random
) -> None:
    mixed = list(some)
    random.shuffle(mixed)
    assert decide_call(call, some, stance).effect is decide_call(call, mixed, stance).effect


@given(CALLS, RULES, STANCES)
def test_an_allow_rule_never_overrules_a_denial_or_plan_mode(
    call: CallFacts, some: list[Rule], stance: PolicyContext
) -> None:
    if decide_call(call, some, stance).effect is Effect.DENY:
        wide = rules(allow="*; bash(*); write(/**); read(/**); webfetch(domain:*)")
        assert decide_call(call, [*wide, *some], stance).effect is Effect.DENY


# -- the store --------------------------------------------------------------------------------


def test_the_store_is_private_and_outside_of_every_project(tmp_path: Path) -> None:
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
    assert store.remove("bash(git commit *)", str(tmp_path)) == 1
    assert store.remove("bash(git commit *)", str(tmp_path)) == 0
    assert len(store.load()[0]) == 1


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"rules": {}}', '{"rules": [1]}', '{"rules": [], "unsandboxed": 1}']
)
def test_a_damaged_store_asks_about_everything_and_is_set_aside(content: str) -> None:
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
def test_a_row_that_is_no_rule_asks_about_everything(row: dict[str, JsonValue]) -> None:
    store = RuleStore()
    store.add([])
    with open(store.path, "w", encoding="utf-8") as file:
        json.dump({"rules": [row]}, file)
    found, notes = store.load()
    assert [(one.effect, str(one)) for one in found] == [(Effect.ASK, "*")]
    assert len(notes) == 1


def test_a_link_in_the_place_of_the_store_is_not_followed(tmp_path: Path) -> None:
    store = RuleStore()
    store.add([])
    planted = tmp_path / "planted.json"
    planted.write_text('{"rules": [{"rule": "bash", "effect": "allow"}]}', encoding="utf-8")
    os.unlink(store.path)
    os.symlink(planted, store.path)
    assert [one.effect for one in store.load()[0]] == [Effect.ASK]


def test_a_write_that_fails_leaves_the_store_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    store = RuleStore()
    store.add([rule("read", Effect.DENY)])

    def full(handle: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        store.add([rule("bash", Effect.ALLOW)])
    assert [str(one) for one in store.load()[0]] == ["read"]
    assert [name for name in os.listdir(os.path.dirname(store.path)) if "tmp" in name] == []


def test_several_processes_lose_no_rule() -> None:
    code = (
        "import sys; from induscode.session.permissions.store import RuleStore;"
        "from induscode.session.permissions.rules import Rule, Effect;"
        "add = RuleStore().add; name = sys.argv[1];"
        "[add([Rule(effect=Effect.DENY, tool=f't{name}_{n}')]) for n in range(5)]"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(n)]) for n in range(4)]
    assert [one.wait(30) for one in running] == [0] * 4
    assert len(RuleStore().load()[0]) == 20


def test_without_a_home_there_are_no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "nowhere")
    assert RuleStore().load() == ((), ())
    assert not RuleStore().allows_unsandboxed("/w")


@pytest.mark.anyio
async def test_a_damaged_store_makes_the_gate_ask(tmp_path: Path) -> None:
    store = RuleStore(str(tmp_path / "rules.json"))
    (tmp_path / "rules.json").write_text("{", encoding="utf-8")
    person = Person()
    gate = Permissions(store.load()[0], approver=person, store=store)
    assert not (await verdict(gate, "read", tmp_path, path="a")).allowed
    assert person.questions
    assert context(tmp_path).cwd == str(tmp_path)
