"""The flags of the table as options of a command, and the way back to one invocation."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import click

from induscode.launch.flags import FlagGroup, FlagKind, flag_specs
from induscode.launch.invocation import Invocation, invocation_of
from induscode.launch.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.core.notes import Note
    from induscode.launch.flags import FlagSpec


def _directory(_ctx: click.Context, _option: click.Parameter, path: str | None) -> str:
    """Accept a directory that can be listed and entered, and give its real path."""
    given = "." if path is None else path
    try:
        os.listdir(given)
        os.stat(os.path.join(given, "."))
        return os.path.realpath(given)
    except OSError as exc:
        raise click.BadParameter(f"{given!r}: {exc.strerror}") from exc


def option_of(spec: FlagSpec) -> click.Option:
    """Make an option of a row of the table."""
    parts = [spec.key, *spec.aliases, spec.name]
    if spec.kind is FlagKind.SWITCH:
        return GroupedOption(parts, is_flag=True, default=False, help=spec.describe, group=spec.group)
    return GroupedOption(
        parts,
        multiple=spec.kind in {FlagKind.LIST, FlagKind.MANY},
        type=click.Choice(spec.choices) if spec.choices else str,
        default=spec.default,
        show_default=spec.default is not None,
        metavar=spec.metavar,
        callback=_directory if spec.name == "--cwd" else None,
        help=spec.describe,
        group=spec.group,
    )


class GroupedOption(click.Option):
    """An option that knows where the help shows it."""

    def __init__(self, *args: Any, group: FlagGroup, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


def flags(*names: str) -> Callable[[click.Command], click.Command]:
    """Give a command some flags of the table; what stands before the command counts as well."""

    def add(command: click.Command) -> click.Command:
        command.params.extend(option_of(spec) for spec in flag_specs() if spec.name in names)
        return command

    return add


def list_given_flags(context: click.Context) -> tuple[str, ...]:
    """List the flags of the table that stand on the command line of one level, in table order."""
    return tuple(
        spec.name
        for spec in flag_specs()
        if context.get_parameter_source(spec.key) is click.core.ParameterSource.COMMANDLINE
    )


def refuse_unused_flags(context: click.Context, command: click.Command) -> None:
    """Refuse a flag that stands before the name of a command and that the command does not take.

    A group is not refused anything: its own commands are checked when one of them is found.

    Raises:
        click.UsageError: There is such a flag; it names the first one.
    """
    if isinstance(command, click.Group) or context.resilient_parsing:
        return
    taken = {option.name for option in command.params if isinstance(option, GroupedOption)}
    keys = {spec.name: spec.key for spec in flag_specs()}
    for name in list_given_flags(context.find_root()):
        if keys[name] not in taken:
            path = f"{context.command_path} {command.name}"
            raise click.UsageError(f"'{path}' does not take {name}", context)


def invocation_from(context: click.Context) -> Invocation:
    """Put together what was given before and after the name of a command.

    Raises:
        click.UsageError: Two flags contradict each other, a number is none, or the settings of the
            user cannot be used.
    """
    values, given = _collect_values(context)
    cwd = str(values["cwd"])
    try:
        settings = load_settings(cwd, os.environ)
        _report_notes(context, settings.notes)
        return invocation_of(values, cwd, settings, given)
    except ValueError as exc:
        raise click.UsageError(str(exc), context) from exc


def cwd_from(context: click.Context) -> str:
    """Give the directory to work in, for a command that needs nothing else of an invocation."""
    return str(_collect_values(context)[0]["cwd"])


def _collect_values(context: click.Context) -> tuple[dict[str, object], set[str]]:
    """Collect the values of all levels, and which of them stood on the command line."""
    root = context.find_root()
    values: dict[str, object] = dict(root.params)
    given: set[str] = set()
    level: click.Context | None = context
    while level is not None:
        for key, value in level.params.items():
            source = level.get_parameter_source(key)
            if source is click.core.ParameterSource.COMMANDLINE and key not in given:
                values[key] = value
                given.add(key)
        level = level.parent
    return values, given


def _report_notes(context: click.Context, notes: Sequence[Note]) -> None:
    """Report notes on the settings, each once in a run; the root's object is who is told."""
    root = context.find_root()
    said = cast("set[str]", root.meta.setdefault("induscode.settings.notes", set()))
    report = cast("Callable[[str], None] | None", root.obj)
    for text in map(str, notes):
        if text not in said and report is not None:
            said.add(text)
            report(text)
