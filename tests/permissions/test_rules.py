"""Rules: parsing, matching, and properties that hold for any set of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.permissions.support import rule, rules

from indusagi.capabilities.ports import SandboxState
from indusagi.core.faults import Note
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from induscode.deck.programs.table import PROGRAMS, STARTING_WORDS
from induscode.permissions.call_facts import CallFacts, CallKind, PathFact
from induscode.permissions.confirm import build_command_pattern
from induscode.permissions.patterns import (
    PatternMatch,
    find_allow_problem,
    is_path,
    match_command,
    may_be_command,
    may_be_path,
)
from induscode.permissions.policy import ApprovalMode, PolicyContext, decide_call
from induscode.permissions.rules import Effect, Rule, RuleOrigin, parse_rule, parse_rules, parse_settings
from induscode.permissions.shell.launchers import find_runner
from induscode.permissions.shell.parse import parse_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from random import Random

    from indusagi.capabilities.ports import Refusal
    from indusagi.core.json import JsonValue
    from induscode.deck.programs.git import Program


@pytest.mark.parametrize(
    ("text", "principal", "applies"),
    [
        ("github__* @alice", "alice", True),
        ("github__* @alice", "bob", False),
        ("github__* @alice", "", False),
        ("github__* @*", "", False),
        ("github__* @*@example.org", "bob@example.org", True),
        ("github__* @*@example.org", "bob@example.org.evil", False),
        ("github__*", "alice", True),
    ],
)
def test_rule_with_a_principal_holds_for_its_calls_alone(text: str, principal: str, applies: bool) -> None:
    remote = RemoteToolRef("github", "push")
    facts = CallFacts(
        tool="github__push",
        kind=CallKind.REMOTE,
        arguments={},
        workspace="/w",
        cwd="/w",
        remote=remote,
        principal=principal,
    )
    for effect, without in ((Effect.DENY, Effect.ASK), (Effect.ALLOW, Effect.ASK)):
        decision = decide_call(facts, [rule(text, effect)], PolicyContext())
        assert decision.effect is (effect if applies else without)


# -- reading ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "bash", "bash(git status *)", "bash(git status:*)", "bash(*)", "read(src/**)", "*",
        "github__*", "webfetch(domain:example.org)", "write(/etc/x (copy).txt)", " ls ",
        "ls @alice", "bash(git status *) @*@example.org", "bash(a) @b(c)",
    ],
)  # fmt: skip
def test_rule_is_formatted_as_it_was_written(text: str) -> None:
    found = parse_rule(text, Effect.ALLOW)
    assert isinstance(found, Rule)
    assert str(found) == text.strip()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a rule"),
        ("bash(", "is not a rule"),
        ("bash(ls", "is not a rule"),
        ("bash()", "nothing in its brackets"),
        ("bash( )", "nothing in its brackets"),
        ("ba sh", "is not a rule"),
        ("bash(ls; rm *)", "one command only"),
        ("bash(ls && x)", "one command only"),
        ("bash(* --force)", "does not name a command"),
        ("read(a\x1b[31m)", "invisible characters"),
        ("read(a\u202eb)", "invisible characters"),
        ("webfetch(example.org)", "not about a domain"),
        ("websearch(x)", "has brackets"),
        ("read(*a*a*a*a*a*a*a*)", "too many stars"),
        ("x" * 5000, "is not a rule"),
    ],
)
def test_invalid_rule_gives_a_note_with_its_text_and_file(text: str, why: str) -> None:
    found = parse_rule(text, Effect.DENY, RuleOrigin.PROJECT, "rules.json")
    assert isinstance(found, Note)
    assert why in str(found)
    assert f"rule {text!r} in rules.json" in str(found)
    assert found.remedy


@pytest.mark.parametrize(("rule", "name"), [("process", "bg-process"), ("todo_set", "todo")])
def test_finding_sg_a_rule_about_a_tool_covers_its_second_name(rule: str, name: str) -> None:
    assert Rule(effect=Effect.DENY, tool=rule).names(name)
    assert not Rule(effect=Effect.DENY, tool=name).names(rule)


def test_invalid_deny_rule_asks_about_everything() -> None:
    for effect in (Effect.DENY, Effect.ASK):
        found, notes = parse_rules(["bash(ls", "read"], effect, RuleOrigin.USER)
        assert [(one.effect, str(one)) for one in found] == [(Effect.ASK, "*"), (effect, "read")]
        assert len(notes) == 1
    assert parse_rules(["bash(ls"], Effect.ALLOW, RuleOrigin.FLAG)[0] == []


def test_project_settings_may_deny_and_ask_but_not_allow() -> None:
    settings: JsonValue = {"allow": ["bash"], "ask": ["read"], "deny": ["bash(rm *)"]}
    found, notes = parse_settings(settings, "p.json", RuleOrigin.PROJECT)
    assert {(one.effect, str(one)) for one in found} == {(Effect.ASK, "read"), (Effect.DENY, "bash(rm *)")}
    assert "a project cannot allow anything" in str(notes[0])
    mine, none = parse_settings(settings, "u.json", RuleOrigin.USER)
    assert len(mine) == 3
    assert none == []
    assert mine[0].reason.endswith("(u.json)")


@pytest.mark.parametrize("settings", [[], "x", {"deny": "bash"}, {"ask": [1]}, {"deny": ["bash("]}])
def test_invalid_settings_ask_about_everything(settings: JsonValue) -> None:
    found, notes = parse_settings(settings, "p.json", RuleOrigin.PROJECT)
    assert [(one.effect, str(one)) for one in found] == [(Effect.ASK, "*")]
    assert notes
    assert all("p.json" in str(note) for note in notes)


def test_invalid_allow_list_and_unknown_keys_give_notes() -> None:
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
        ("git push --force *", "git push $x origin", False, PatternMatch.MAYBE),
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
def test_command_pattern_allows_exactly_and_denies_generously(
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
def test_path_pattern_allows_exactly_and_denies_generously(
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
        ("pipenv run pytest -q", "pipenv run pytest *"),
        ("pdm run pytest", "pdm run pytest *"),
        ("conda run pytest x", "conda run pytest *"),
        ("poetry run python x.py", "poetry run python x.py"),
        ("hatch run mytool a", "hatch run mytool *"),
        ("npm exec prettier .", "npm exec prettier *"),
        ("npm exec mytool .", "npm exec mytool *"),
        ("make test V", "make test *"),
        ("aws s3 ls x", "aws s3 ls *"),
        ("gh pr create x", "gh pr create *"),
        ("stack exec x", "stack exec x"),
        ("git stash drop", "git stash drop *"),
        ("git bisect run x", "git bisect run x"),
        ("git config user.name", "git config user.name *"),
    ],
)
def test_rule_for_always_has_the_words_that_say_what_is_done(command: str, saved: str | None) -> None:
    found = parse_command(command).commands[0]
    assert build_command_pattern(found) == saved
    if saved is not None:
        assert match_command(saved, found) is not None


def list_starters(programs: Mapping[str, Program], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """List the programs and subcommands of the table that start another command."""
    for name, program in programs.items():
        if program.starts:
            yield (*above, name)
        yield from list_starters(program.subcommands, (*above, name))


STARTERS = [" ".join(words) for words in list_starters(PROGRAMS)]


def is_covered(pattern: str, command: str) -> bool:
    found = parse_command(command).commands[-1]
    if match_command(pattern, found) is None or find_runner(found.words) is not None:
        return False
    return find_allow_problem(pattern, found) is None


@pytest.mark.parametrize("starter", STARTERS)
def test_finding_p10_a_started_word_is_a_plain_name(starter: str) -> None:
    for word in ("touch X;", "touch X", "a;b", "$(x)", "a&b", "a\nb", "-c", "x://y", "{a,b}", "!x"):
        for pattern in (f"{starter} *", f"{starter.split()[0]} *"):
            assert not is_covered(pattern, f"{starter} '{word}'"), (pattern, word)
            assert not is_covered(pattern, f"{starter} mytool '{word};'"), (pattern, word)
    assert is_covered(f"{starter} mytool *", f"{starter} mytool a b")


@pytest.mark.parametrize("starter", STARTERS)
def test_finding_p10_always_names_what_is_started(starter: str) -> None:
    def saved(command: str) -> str | None:
        return build_command_pattern(parse_command(command).commands[0])

    assert saved(f"{starter} mytool a") == f"{starter} mytool *"
    for started in ("python x.py", "bash x.sh", "rm x", "xargs x", "sh", "env x", "sudo x", "find ."):
        pattern = saved(f"{starter} {started}")
        assert pattern is None or "*" not in pattern, pattern
    for started in ("pytest -q", "ruff check", "mytool"):
        pattern = saved(f"{starter} {started}")
        assert pattern is None or not pattern.startswith(f"{starter} *"), pattern


@pytest.mark.parametrize("program", ["nvm", "fnm", "foreman", "lerna", "turbo", "honcho", "chamber"])
def test_finding_p10_always_on_an_unknown_program_that_starts_another_is_what_was_written(program: str) -> None:
    for word in ("exec", "run"):
        command = parse_command(f"{program} {word} mytool").commands[0]
        assert build_command_pattern(command) == f"{program} {word} mytool"
        assert not is_covered(f"{program} *", f"{program} {word} mytool")
        assert is_covered(f"{program} {word} *", f"{program} {word} mytool")
    assert is_covered(f"{program} *", f"{program} status")


@pytest.mark.parametrize("word", sorted(STARTING_WORDS))
@pytest.mark.parametrize(
    "program", ["stack", "dotnet", "gh", "flatpak", "terraform", "brew", "cargo", "go", "helm", "git"]
)
def test_finding_p10_always_on_a_starting_subcommand_is_what_was_written(program: str, word: str) -> None:
    known = PROGRAMS.get(program)
    if known is not None and word in known.subcommands:
        return
    pattern = build_command_pattern(parse_command(f"{program} {word} other").commands[0])
    assert pattern in {None, f"{program} {word} other"}


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        *(("git reflog *", f"git reflog {word}") for word in ("expire --all", "delete HEAD@{1}", "drop", "expire x")),
        *(("git stash *", f"git stash {word}") for word in ("drop", "clear", "drop stash@{0}", "store x")),
        *(("git worktree *", f"git worktree {word}") for word in ("remove x", "prune", "move a b", "add ../x")),
        *(("git config *", f"git config {word}") for word in ("alias.x '!touch y'", "--add a.b c", "core.pager x")),
        *(("git *", f"git {word}") for word in ("-c alias.x=!y x", "bisect run x", "submodule foreach x", "gc")),
        *(("git notes *", f"git notes {word}") for word in ("remove x", "prune", "add -m x")),
        *(("git rerere *", f"git rerere {word}") for word in ("clear", "forget x")),
        ("git bundle *", "git bundle create x HEAD"), ("git hook *", "git hook run x"), ("git lfs *", "git lfs prune"),
        *((f"{npm} *", f"{npm} config set script-shell x") for npm in ("npm", "pnpm", "yarn")),
        *(("npm config *", f"npm config {word}") for word in ("set script-shell x", "edit")),
        *(("npm config set *", f"npm config set {word} x") for word in ("script-shell", "ignore-scripts")),
        ("npm set *", "npm set script-shell x"), ("npm explore *", "npm explore x y"),
        ("npm pkg *", "npm pkg set scripts.test=x"), ("pip config *", "pip config set global.index-url x"),
        *(("npm *", f"npm {word}") for word in ("exec x", "x y", "create vite", "init vite", "exec -c x", "exec -- x")),
        *(("yarn *", f"yarn {word}") for word in ("dlx x", "exec x", "create x")),
        *(("pnpm *", f"pnpm {word}") for word in ("dlx x", "exec x", "create x")),
        *(("uv *", f"uv {word}") for word in ("tool run x", "tool install x", "run --with x y", "run 'a;b'")),
        ("make *", "make X=y"), ("make *", "make SHELL=/tmp/x all"), ("make *", "make --eval=x"),
        ("find *", "find . -exec x ;"), ("find *", "find . -fprintf x y"), ("sed *", "sed -i s/a/b/ f"),
        ("sed *", "sed 's/a/b/w f' f"), ("sed *", "sed 's/a/b/e' f"), ("tar *", "tar --to-command=x -xf f"),
        ("tar *", "tar -xf f --checkpoint=1 --checkpoint-action=exec=x"), ("awk *", "awk 'BEGIN{system(\"x\")}'"),
        ("awk *", "awk '{print | \"sh\"}'"), ("sort *", "sort -o f f"), ("sort *", "sort --compress-program=x f"),
        ("less *", "less +!x f"), ("man *", "man -P x ls"), ("man *", "man -Hx ls"), ("xargs *", "xargs rm"),
        ("env *", "env x y"), ("nice *", "nice rm x"), ("timeout *", "timeout 5 rm x"),
        ("docker *", "docker compose run x y"), ("nix *", "nix run x"), ("nix *", "nix shell x"),
        # A variable may hold any subcommand.
        ("git remote *", 'x=add; git remote "$x" a b'), ("git stash *", 'x=drop; git stash "$x"'),
    ],
)  # fmt: skip
def test_finding_p10_no_wide_rule_covers_what_destroys_or_starts(pattern: str, command: str) -> None:
    assert not is_covered(pattern, command)


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
CONTEXTS = st.builds(PolicyContext, approval=st.sampled_from(ApprovalMode), plan=st.booleans())
STRICTNESS = {Effect.ALLOW: 0, Effect.ASK: 1, Effect.DENY: 2}


@given(CALLS, RULES, CONTEXTS, TEXTS)
def test_deny_or_ask_rule_never_makes_a_decision_less_strict(
    call: CallFacts, some: list[Rule], state: PolicyContext, text: str
) -> None:
    before = decide_call(call, some, state).effect
    for effect in (Effect.DENY, Effect.ASK):
        after = decide_call(call, [*some, rule(text, effect)], state).effect
        assert STRICTNESS[after] >= STRICTNESS[before]


@given(CALLS, RULES, CONTEXTS, st.randoms(use_true_random=False))
def test_decision_does_not_depend_on_the_order_of_rules(
    call: CallFacts, some: list[Rule], state: PolicyContext, random: Random
) -> None:
    mixed = list(some)
    random.shuffle(mixed)
    assert decide_call(call, some, state).effect is decide_call(call, mixed, state).effect


@given(CALLS, RULES, CONTEXTS)
def test_allow_rule_never_overrules_a_denial_or_plan_mode(
    call: CallFacts, some: list[Rule], state: PolicyContext
) -> None:
    if decide_call(call, some, state).effect is Effect.DENY:
        wide = rules(allow="*; bash(*); write(/**); read(/**); webfetch(domain:*)")
        assert decide_call(call, [*wide, *some], state).effect is Effect.DENY
