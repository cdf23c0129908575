"""Every flag of the table, before the name of every command and before none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from induscode import program
from induscode.commands.support.groups import CommandGroup
from induscode.launch.flags import FlagKind, flag_specs
from induscode.launch.options import GroupedOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from induscode.launch.flags import FlagSpec


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
def test_finding_a1_a_command_refuses_every_flag_before_it_that_it_does_not_take(
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
        assert said.err.startswith(f"indus: 'indus {' '.join(path)}' does not take {spec.name}. ")


@pytest.mark.parametrize("spec", [one for one in _SPECS if one.key != "print"], ids=str)
def test_finding_a1_without_a_prompt_no_flag_is_dropped(spec: FlagSpec, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(_words(spec)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"indus: {spec.name} needs a prompt")


@pytest.mark.parametrize("spec", [one for one in _SPECS if one.key != "print"], ids=str)
def test_finding_a1_a_short_name_is_refused_like_the_long_one(
    spec: FlagSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    for alias in spec.aliases:
        assert program.run([alias, *_words(spec)[1:]]) == 2
        assert f"{spec.name} needs a prompt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--transparent", "a", "--allow", "x"], "--transparent and --allow exclude"),
        (["--transparent", "a", "--sandbox", "off"], "--transparent and --sandbox exclude"),
        (["--transparent", "a", "--approval", "all"], "--transparent and --approval exclude"),
        (["--transparent", "a", "--tools", "read"], "--transparent and --tools exclude"),
        (["--transparent", "a", "--no-mcp"], "--transparent and --no-mcp exclude"),
        (["--transparent", "a", "--name", "b"], "--transparent and --name exclude"),
        (["--profile", "none", "--tools", "read"], "--tools means nothing without native"),
        (["--profile", "none", "--sandbox", "off"], "--sandbox means nothing without native"),
    ],
)
def test_finding_a1_serve_refuses_flags_without_an_effect(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.run(["serve", *words]) == 2
    assert said in capsys.readouterr().err
