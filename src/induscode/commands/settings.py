"""`indus settings`: shows the settings and their origins, changes and checks the files."""

from __future__ import annotations

import os
from operator import itemgetter
from typing import Any

import click
from click.shell_completion import CompletionItem

from indusagi.core.json import JsonObject
from induscode.boot.catalog import build_setting_row, format_setting
from induscode.cli.listing import Listing
from induscode.cli.output import as_json, build_unknown_name, print_notes, write_json
from induscode.cli.terminal import print_line, print_status
from induscode.commands.groups import CommandGroup, LazyCommand
from induscode.launch.options import define_command, read_cwd
from induscode.launch.settings import (
    SETTINGS,
    Setting,
    SettingError,
    Settings,
    SettingValue,
    build_settings_schema,
    load_settings,
    project_settings_path,
    read_setting,
    user_settings_path,
)
from induscode.servers.clients.install import remove_member, set_member
from induscode.servers.config.writer import own_config_path
from induscode.servers.edits import edit_setting

_WRONG = 1


def complete_setting(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a setting."""
    return [CompletionItem(key, help=one.describe) for key, one in SETTINGS.items() if key.startswith(incomplete)]


@click.command(
    cls=CommandGroup,
    commands={
        "show": LazyCommand("show every setting with its value and origin", ":show"),
        "set": LazyCommand("set a value in your file or the project's", ":set_"),
        "unset": LazyCommand("remove a value again", ":unset"),
        "path": LazyCommand("print the path of the user's file", ":path"),
        "check": LazyCommand("check the files of the user and the project", ":check"),
        "schema": LazyCommand("print the JSON schema of the files, for an editor", ":schema"),
    },
    default="show",
)
def command() -> None:
    """Show, change and check the settings."""


@define_command("show", "--cwd")
@as_json
def show(context: click.Context, *, as_json: bool) -> int:
    """Show every setting with its value and origin."""
    try:
        settings = load_settings(read_cwd(context), os.environ)
    except SettingError as exc:
        raise click.UsageError(str(exc)) from exc
    print_notes(settings.notes)
    files = _list_files(read_cwd(context))
    Listing(
        "settings",
        [build_setting_row(settings, key) for key in SETTINGS],
        ("SETTING", "VALUE", "ORIGIN"),
        lambda row: (row["key"], format_setting(row["value"]), row["origin"]),
        after={"files": [*files], "notes": [str(note) for note in settings.notes]},
    ).show(as_json=as_json)
    if not as_json:
        print_line("")
        Listing("files", files, ("FILE", "HOLDS", "PATH"), itemgetter("state", "holds", "path")).show(as_json=False)
    return 0


def _list_files(cwd: str) -> list[JsonObject]:
    """List the files that configure indus."""
    paths = {
        "your settings": user_settings_path(os.environ),
        "the project's settings": project_settings_path(cwd),
        "your servers": own_config_path("user", cwd),
        "the project's servers": own_config_path("project", cwd),
    }
    return [
        {"holds": holds, "path": path, "state": "present" if os.path.isfile(path) else "absent"}
        for holds, path in paths.items()
    ]


_project = click.option("--project", is_flag=True, help="In the project's file, which can only be stricter.")


@define_command("set", "--cwd")
@click.argument("name", shell_complete=complete_setting)
@click.argument("values", nargs=-1, required=True, metavar="VALUE…")
@_project
def set_(context: click.Context, name: str, values: tuple[str, ...], *, project: bool) -> int:
    """Set NAME to VALUE in your file, which keeps everything else, comments too. Several VALUES are a list."""
    setting, file = _find_setting(name), _find_file(context, project=project)
    if project and setting.tighten is None:
        raise click.UsageError(f"A project can't set {name}: leave out --project to set it for you")
    try:
        value = read_setting(setting, values, os.path.dirname(file))
    except SettingError as exc:
        raise click.UsageError(str(exc)) from exc
    edit_setting(file, name, lambda text, place: set_member(text, place, value), private=not project)
    row = build_setting_row(Settings({name: SettingValue(value, file)}), name)
    print_line(f"{name} = {format_setting(row['value'])} ({file})")
    return _report_settings(context, name, file)


@define_command("unset", "--cwd")
@click.argument("name", shell_complete=complete_setting)
@_project
def unset(context: click.Context, name: str, *, project: bool) -> int:
    """Remove NAME from your file; its default holds again."""
    _find_setting(name)
    file = _find_file(context, project=project)
    if not edit_setting(file, name, remove_member, private=not project):
        raise click.UsageError(f"{file} doesn't set {name}")
    print_line(f"{name} removed from {file}")
    return _report_settings(context, name, file)


def _find_setting(name: str) -> Setting[Any]:
    if name not in SETTINGS:
        raise build_unknown_name(f"There is no setting {name!r}", name, [*SETTINGS])
    return SETTINGS[name]


def _find_file(context: click.Context, *, project: bool) -> str:
    return project_settings_path(read_cwd(context)) if project else user_settings_path(os.environ)


def _report_settings(context: click.Context, name: str, file: str) -> int:
    """Say which other file decides, and print the notes about all of them."""
    try:
        settings = load_settings(read_cwd(context), os.environ)
    except SettingError as exc:
        print_status(str(exc))
        return _WRONG
    print_notes(settings.notes)
    origin = settings.origin(SETTINGS[name])
    if origin not in {"default", f"user {file}", f"project {file}"}:
        print_status(f"{name} is set by: {origin}")
    return 0


@define_command("path", "--cwd")
@click.option("--project", is_flag=True, help="The project's file instead.")
def path(context: click.Context, *, project: bool) -> int:
    """Print the path of the user's file, existing or not."""
    print_line(project_settings_path(read_cwd(context)) if project else user_settings_path(os.environ))
    return 0


@define_command("check", "--cwd")
def check(context: click.Context) -> int:
    """Check the files of the user and the project; exit code 1 if there is a problem."""
    try:
        settings = load_settings(read_cwd(context), os.environ)
    except SettingError as exc:
        print_status(str(exc))
        return _WRONG
    print_notes(settings.notes)
    if not settings.notes:
        print_line("Settings OK")
    return _WRONG if settings.notes else 0


@click.command("schema")
def schema() -> int:
    """Print the JSON schema of the files, for "$schema" in one of them."""
    write_json(build_settings_schema())
    return 0
