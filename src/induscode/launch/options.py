"""Turns the flag table into click options and their values into an `Invocation`; also the `--profile` choice."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

import click

from indusagi import DISTRIBUTION
from indusagi.core.faults import CoreError
from induscode.launch.flags import FlagGroup, FlagKind, FlagSpec, find_conflict, flag_specs
from induscode.launch.invocation import Invocation, build_invocation
from induscode.launch.settings import load_settings

if TYPE_CHECKING:
    _TextChoice = click.Choice[str]
else:
    _TextChoice = click.Choice  # generic since click 8.2


def _check_directory(_ctx: click.Context, _option: click.Parameter, path: str | None) -> str:
    """Return the real path of a directory that we can list and enter."""
    directory = "." if path is None else path
    try:
        os.listdir(directory)
        os.stat(os.path.join(directory, "."))
        return os.path.realpath(directory)
    except OSError as exc:
        raise click.BadParameter(f"{directory!r}: {exc.strerror}") from exc


def build_option(spec: FlagSpec) -> click.Option:
    """Build the click option of a flag."""
    short, long = ([name for name in spec.aliases if name.startswith("--") is is_long] for is_long in (False, True))
    parts = [spec.key, *short, spec.name, *long]
    if spec.kind is FlagKind.SWITCH:
        return GroupedOption(parts, is_flag=True, default=False, help=spec.describe, group=spec.group)
    return GroupedOption(
        parts,
        multiple=spec.kind in {FlagKind.LIST, FlagKind.MANY},
        type=_build_type(spec),
        default=spec.default,
        show_default=spec.default is not None,
        metavar=spec.metavar,
        callback=_check_directory if spec.name == "--cwd" else None,
        help=spec.describe,
        group=spec.group,
        **({} if spec.bare is None else {"is_flag": False, "flag_value": spec.bare}),
    )


def _build_type(spec: FlagSpec) -> Any:
    """Build the click type of a flag's values."""
    schema = cast("dict[str, Any]", spec.schema)
    if spec.choices:
        return ProfileChoice() if spec.name == "--profile" else click.Choice(spec.choices)
    if schema.get("type") == "integer":
        return click.IntRange(schema["minimum"], schema.get("maximum"))
    if schema.get("type") == "number":
        return click.FloatRange(schema["exclusiveMinimum"], min_open=True)
    return str


class GroupedOption(click.Option):
    """An option that knows its section of the help."""

    def __init__(self, *args: Any, group: FlagGroup, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


def format_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the options of a command's help by section."""
    groups: dict[FlagGroup, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        row = parameter.get_help_record(ctx)
        group = parameter.group if isinstance(parameter, GroupedOption) else FlagGroup.GENERAL
        if row is not None:
            groups.setdefault(group, []).append(row)
    for title in FlagGroup:
        if title in groups:
            with formatter.section(title):
                formatter.write_dl(groups[title])


class GroupedCommand(click.Command):
    """A command whose help has sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section."""
        format_options(self, ctx, formatter)


def add_flags(specs: Sequence[FlagSpec]) -> Callable[[click.Command], click.Command]:
    """Add a command's own flags from its table."""

    def add(command: click.Command) -> click.Command:
        command.params.extend(map(build_option, specs))
        return command

    return add


def flags(*names: str) -> Callable[[click.Command], click.Command]:
    """Add flags of a session to a command. They also work before its name."""
    return add_flags([spec for spec in flag_specs() if spec.name in names])


def define_command(name: str, *flags: str, **facts: Any) -> Callable[[Callable[..., object]], click.Command]:
    """Make a command of a function that gets the context, and takes these flags of a session from `read_invocation`."""
    specs = [spec for spec in flag_specs() if spec.name in flags]
    keys = {spec.key for spec in specs}

    def define(function: Callable[..., object]) -> click.Command:
        @wraps(function)
        def run(context: click.Context, **values: object) -> object:
            return function(context, **{key: value for key, value in values.items() if key not in keys})

        return add_flags(specs)(click.command(name, **facts)(click.pass_context(run)))

    return define


def refuse_combinations(context: click.Context, specs: Sequence[FlagSpec]) -> None:
    """Raise a usage error for given flags that can't be used together, or that require another one."""
    table = {spec.name: spec for spec in specs}
    given = [spec for spec in specs if is_given(context, spec.key)]
    names = {spec.name for spec in given}
    if conflict := find_conflict(specs, names):
        raise click.UsageError(conflict)
    for spec in given:
        chain = [spec.needs] if spec.needs else []
        while chain and table[chain[-1]].needs:
            chain.append(table[chain[-1]].needs)
        for needed in reversed(chain):
            if needed not in names:
                raise click.UsageError(f"{spec.name} requires {needed}")


def is_given(context: click.Context, key: str) -> bool:
    """Return whether an option was given on this level's command line."""
    return context.get_parameter_source(key) is click.core.ParameterSource.COMMANDLINE


def is_given_at_any_level(context: click.Context, key: str) -> bool:
    """Return whether an option was given before or after the command name."""
    return any(is_given(level, key) for level in _iter_levels(context))


def _iter_levels(context: click.Context) -> Iterator[click.Context]:
    """Iterate over the levels of the command line, innermost first."""
    level: click.Context | None = context
    while level is not None:
        yield level
        level = level.parent


def list_given_flags(context: click.Context) -> tuple[str, ...]:
    """List the flags given at this level of the command line, in table order."""
    return tuple(spec.name for spec in flag_specs() if is_given(context, spec.key))


def refuse_unused_flags(context: click.Context, command: click.Command) -> None:
    """Raise a usage error if the command doesn't take a flag given before its name.

    Groups pass: we check their commands, once one is resolved.
    """
    if isinstance(command, click.Group) or context.resilient_parsing:
        return
    taken = {option.name for option in command.params if isinstance(option, GroupedOption)}
    keys = {spec.name: spec.key for spec in flag_specs()}
    for name in list_given_flags(context.find_root()):
        if keys[name] not in taken:
            raise click.UsageError(f"'{context.command_path} {command.name}' does not take {name}")


def read_invocation(context: click.Context, cwd: str | None = None) -> Invocation:
    """Build the invocation from the flags before and after the command's name.

    `cwd` overrides the working directory from the flags, and with it the project whose settings apply.
    """
    values, given = collect_values(context)
    cwd = cwd or str(values["cwd"])
    try:
        settings = load_settings(cwd, os.environ)
        # Report each note once per run, with the function in the root context's `obj`.
        root = context.find_root()
        reported = cast("set[str]", root.meta.setdefault("induscode.settings.notes", set()))
        report = cast("Callable[[str], None] | None", root.obj)
        for text in map(str, settings.notes):
            if text not in reported and report is not None:
                reported.add(text)
                report(text)
        return build_invocation(values, cwd, settings, given)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc


def read_cwd(context: click.Context) -> str:
    """Return the working directory, for commands that need nothing else from the invocation."""
    return str(collect_values(context)[0]["cwd"])


def list_server_words(context: click.Context) -> list[str]:
    """List the arguments that select the servers: `--mcp` and `--cwd` with their values."""
    values, given = collect_values(context)
    files = cast("tuple[str, ...]", values["mcp"]) if "mcp" in given else ()
    words = [word for file in files for word in ("--mcp", file)]
    return [*words, "--cwd", str(values["cwd"])] if "cwd" in given else words


def collect_values(context: click.Context) -> tuple[dict[str, object], set[str]]:
    """Collect the values of all levels, and the keys of those given on the command line."""
    values: dict[str, object] = dict(context.find_root().params)
    given: set[str] = set()
    for level in _iter_levels(context):
        for key, value in level.params.items():
            if is_given(level, key) and key not in given:
                values[key] = value
                given.add(key)
    return values, given


# -- profiles ---------------------------------------------------------------------------------

PROFILES = {"read-only": "authoring", "coding": "survey", "all": "all", "none": None}
"""Profile names on the command line, and the deck's `Profile` values; `None` means no native tools.

The API keeps the names AUTHORING, which only reads, and SURVEY, which may write."""
_OLD_NAMES = {"authoring": "read-only", "survey": "coding"}


class ProfileChoice(_TextChoice):
    """A profile name; also accepts the API's names."""

    def __init__(self) -> None:
        super().__init__(tuple(PROFILES))

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Map an API name to its command-line name, and validate."""
        return super().convert(_OLD_NAMES.get(value, value), param, ctx)


def name_profile(values: Collection[str]) -> str:
    """Return the smallest profile that includes a card, or "" for server tools, which have no profiles."""
    return next((name for name, value in PROFILES.items() if value in values), "")


# -- the extra `agent` ------------------------------------------------------------------------


_AGENT_PACKAGES = ("pydantic_ai", "anthropic", "prompt_toolkit")


class MissingExtraError(CoreError):
    """A command needs an extra that isn't installed."""


def find_missing_agent() -> str | None:
    """Return what the extra `agent` lacks and how to install it, or `None` if it's complete. Imports nothing."""
    missing = [name for name in _AGENT_PACKAGES if find_spec(name) is None]
    if not missing:
        return None
    extra = f"'{DISTRIBUTION}[agent]'"
    return (
        f"the agent is not installed (no {', '.join(missing)}): pip install {extra}, or run it once: "
        f"uvx --from {extra} indus. Everything else works without it: indus serve, mcp, call, tools"
    )


def require_agent() -> None:
    """Raise `MissingExtraError` unless the extra `agent` is installed."""
    if message := find_missing_agent():
        raise MissingExtraError(message)
