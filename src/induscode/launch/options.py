"""The flag table as click options, the way back to an invocation, and the choice of a profile."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import click

from induscode.launch.flags import FlagGroup, FlagKind, flag_specs
from induscode.launch.invocation import Invocation, build_invocation
from induscode.launch.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from induscode.launch.flags import FlagSpec

    _TextChoice = click.Choice[str]
else:
    _TextChoice = click.Choice  # generic since click 8.2


def _check_directory(_ctx: click.Context, _option: click.Parameter, path: str | None) -> str:
    """Accept a directory that can be listed and entered, and return its real path."""
    directory = "." if path is None else path
    try:
        os.listdir(directory)
        os.stat(os.path.join(directory, "."))
        return os.path.realpath(directory)
    except OSError as exc:
        raise click.BadParameter(f"{directory!r}: {exc.strerror}") from exc


def build_option(spec: FlagSpec) -> click.Option:
    """Build the click option of a flag."""
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
        callback=_check_directory if spec.name == "--cwd" else None,
        help=spec.describe,
        group=spec.group,
    )


class GroupedOption(click.Option):
    """An option with its section of the help."""

    def __init__(self, *args: Any, group: FlagGroup, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


def flags(*names: str) -> Callable[[click.Command], click.Command]:
    """Give a command flags of the table; they may also stand before its name."""

    def add(command: click.Command) -> click.Command:
        command.params.extend(build_option(spec) for spec in flag_specs() if spec.name in names)
        return command

    return add


def list_given_flags(context: click.Context) -> tuple[str, ...]:
    """List the flags on the command line of one level, in the order of the table."""
    return tuple(
        spec.name
        for spec in flag_specs()
        if context.get_parameter_source(spec.key) is click.core.ParameterSource.COMMANDLINE
    )


def refuse_unused_flags(context: click.Context, command: click.Command) -> None:
    """Refuse a flag before the name of a command that does not take it.

    A group is not checked: its commands are, when one of them is found.

    Raises:
        click.UsageError: There is such a flag; the message names the first one.
    """
    if isinstance(command, click.Group) or context.resilient_parsing:
        return
    taken = {option.name for option in command.params if isinstance(option, GroupedOption)}
    keys = {spec.name: spec.key for spec in flag_specs()}
    for name in list_given_flags(context.find_root()):
        if keys[name] not in taken:
            path = f"{context.command_path} {command.name}"
            raise click.UsageError(f"'{path}' does not take {name}", context)


def read_invocation(context: click.Context, cwd: str | None = None) -> Invocation:
    """Build the invocation from the flags before and after the name of a command.

    `cwd` replaces the working directory of the flags; the settings are those of its project.

    Raises:
        click.UsageError: Two flags contradict each other, a number is invalid, or the user's settings cannot be used.
    """
    values, given = _collect_values(context)
    cwd = cwd or str(values["cwd"])
    try:
        settings = load_settings(cwd, os.environ)
        # Each note once in a run, by the function in the root context's `obj`.
        root = context.find_root()
        reported = cast("set[str]", root.meta.setdefault("induscode.settings.notes", set()))
        report = cast("Callable[[str], None] | None", root.obj)
        for text in map(str, settings.notes):
            if text not in reported and report is not None:
                reported.add(text)
                report(text)
        return build_invocation(values, cwd, settings, given)
    except ValueError as exc:
        raise click.UsageError(str(exc), context) from exc


def read_cwd(context: click.Context) -> str:
    """Return the working directory, for a command that needs nothing else of an invocation."""
    return str(_collect_values(context)[0]["cwd"])


def list_server_words(context: click.Context) -> list[str]:
    """List the words of the command line that say whose servers are meant: `--mcp` and `--cwd` with their values."""
    values, given = _collect_values(context)
    files = cast("tuple[str, ...]", values["mcp"]) if "mcp" in given else ()
    words = [word for file in files for word in ("--mcp", file)]
    return [*words, "--cwd", str(values["cwd"])] if "cwd" in given else words


def _collect_values(context: click.Context) -> tuple[dict[str, object], set[str]]:
    """Collect the values of all levels, and the keys of the values on the command line."""
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


# -- profiles ---------------------------------------------------------------------------------

PROFILES = {"read-only": "authoring", "coding": "survey", "all": "all", "none": None}
"""The profiles by their names on the command line, with the value of the deck's `Profile`; None: no native tools.

The API keeps the names AUTHORING, which only reads, and SURVEY, which may write."""
_OLD_NAMES = {"authoring": "read-only", "survey": "coding"}


class ProfileChoice(_TextChoice):
    """The choice of a profile; the names of the API are accepted too."""

    def __init__(self) -> None:
        super().__init__(tuple(PROFILES))

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name of a profile."""
        return super().convert(_OLD_NAMES.get(value, value), param, ctx)


def name_profile(values: Collection[str]) -> str:
    """Return the smallest profile with a card of these profile values; "" for the tools of servers, which have none."""
    return next((name for name, value in PROFILES.items() if value in values), "")
