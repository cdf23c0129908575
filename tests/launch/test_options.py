"""Every flag of the table, before the name of every command and before none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from induscode.commands import program
from induscode.commands.groups import CommandGroup
from induscode.launch.flags import FlagKind, flag_specs
from induscode.launch.options import GroupedOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from induscode.launch.flags import FlagSpec
    from induscode.launch.invocation import Invocation


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """List the paths of all commands that are not groups."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, CommandGroup):
            yield from _commands(found, (*path, name))
        else:
            yield (*path, name)


def _root() -> click.Group:
    return program.root_command()


def _command(path: tuple[str, ...]) -> click.Command:
    found: click.Command = _root()
    for name in path:
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), name)
        assert inner is not None
        found = inner
    return found


def _words(spec: FlagSpec) -> list[str]:
    if spec.kind is FlagKind.SWITCH:
        return [spec.name]
    return [spec.name, spec.choices[-1] if spec.choices else "1"]


_PATHS = tuple(_commands(_root()))
_SPECS = [spec for spec in flag_specs() if spec.name != "--cwd"]


def test_all_commands_are_looked_at() -> None:
    assert {("serve",), ("call",), ("mcp", "list"), ("ledger", "verify")} <= set(_PATHS)


@pytest.mark.parametrize("path", _PATHS, ids=" ".join)
def test_finding_1a1_a_command_refuses_every_flag_before_it_that_it_does_not_take(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    taken = {one.name for one in _command(path).params if isinstance(one, GroupedOption)}
    refused = [spec for spec in flag_specs() if spec.key not in taken]
    assert refused
    for spec in refused:
        words = ["--cwd", "."] if spec.name == "--cwd" else _words(spec)
        assert program.run([*words, *path]) == 2, spec.name
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err == f"indus: 'indus {' '.join(path)}' does not take {spec.name}.\n"


_OF_A_PROMPT = ("--output-format=json", "--verbose", "--fail-on-denied")
_OF_A_SESSION = [one for one in _SPECS if one.name not in {"--print", "--fork", "--output-format", *_OF_A_PROMPT}]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Invocation]:
    """Collect the invocations of the sessions that `indus` would open on a terminal."""
    sessions: list[Invocation] = []

    def open_session(invocation: Invocation, first: str = "") -> int:
        sessions.append(invocation)
        return 0

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(program, "is_interactive", lambda: True)
    monkeypatch.setattr(program, "_run_agent", open_session)
    return sessions


@pytest.mark.parametrize("spec", _OF_A_SESSION, ids=str)
def test_finding_1a1_every_flag_reaches_the_session_under_each_of_its_names(
    spec: FlagSpec, opened: list[Invocation]
) -> None:
    assert program.run([]) == 0
    for name in (spec.name, *spec.aliases):
        words = ["localhost"] if spec.key == "web_allow" else _words(spec)[1:]
        assert program.run([name, *words]) == 0
    default, *given = opened
    assert all(invocation != default for invocation in given), "the flag was dropped"


@pytest.mark.parametrize("flag", _OF_A_PROMPT)
def test_finding_1a1_a_flag_of_an_answer_without_a_prompt_is_an_error(
    flag: str, opened: list[Invocation], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.run([flag]) == 2
    assert f"{flag.partition('=')[0]} needs a prompt" in capsys.readouterr().err
    assert opened == []


def test_finding_1a1_without_a_terminal_and_a_prompt_nothing_is_opened(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["--no-mcp"]) == 2
    assert "There is no terminal" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--transparent", "a", "--allow", "x"], "--transparent and --allow can't be used"),
        (["--transparent", "a", "--approval", "all"], "--transparent and --approval can't be used"),
        (["--transparent", "a", "--tools", "read"], "--transparent and --tools can't be used"),
        (["--transparent", "a", "--no-mcp"], "--transparent and --no-mcp can't be used"),
        (["--transparent", "a", "--name", "b"], "--transparent and --name can't be used"),
        (["--profile", "none", "--tools", "read"], "--tools requires native"),
    ],
)
def test_finding_1a1_serve_refuses_flags_without_an_effect(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.run(["serve", *words]) == 2
    assert said in capsys.readouterr().err
