"""`indus settings`: shows the settings and their origins, and checks the files."""

from __future__ import annotations

import os
from operator import itemgetter
from typing import cast

import click

from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.secrets import REDACTED, hide_in_urls
from induscode.cli.listing import Listing
from induscode.cli.output import as_json, print_notes, write_json
from induscode.cli.terminal import print_line, print_status
from induscode.cluster.contract import hide_password
from induscode.commands.groups import CommandGroup, LazyCommand
from induscode.launch.options import define_command, read_cwd
from induscode.launch.settings import (
    APPROVALS_NOTIFY,
    CLUSTER_BROKERS,
    SERVE_VIEWS,
    SETTINGS,
    SettingError,
    Settings,
    build_settings_schema,
    load_settings,
    project_settings_path,
    user_settings_path,
)
from induscode.servers.config.writer import own_config_path

_WRONG = 1


@click.command(
    cls=CommandGroup,
    commands={
        "show": LazyCommand("show every setting with its value and origin", ":show"),
        "path": LazyCommand("print the path of the user's file", ":path"),
        "check": LazyCommand("check the files of the user and the project", ":check"),
        "schema": LazyCommand("print the JSON schema of the files, for an editor", ":schema"),
    },
    default="show",
)
def command() -> None:
    """Show, find and check the settings."""


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
        [_build_row(settings, key) for key in SETTINGS],
        ("SETTING", "VALUE", "ORIGIN"),
        lambda row: (row["key"], _format_value(row["value"]), row["origin"]),
        after={"files": [*files], "notes": [str(note) for note in settings.notes]},
    ).show(as_json=as_json)
    if not as_json:
        print_line("")
        Listing("files", files, ("FILE", "HOLDS", "PATH"), itemgetter("state", "holds", "path")).show(as_json=False)
    return 0


def _list_files(cwd: str) -> list[JsonObject]:
    """List the files that configure indus; the user's settings and servers live in different folders."""
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


def _build_row(settings: Settings, key: str) -> JsonObject:
    setting = SETTINGS[key]
    value, origin = settings.get(setting), settings.origin(setting)
    if setting.variable and value is None and os.environ.get(setting.variable):
        value, origin = os.environ[setting.variable], f"variable {setting.variable}"
    if setting is SERVE_VIEWS:
        value = {name: view.to_json() for name, view in settings.get(SERVE_VIEWS).items()}
    if setting is CLUSTER_BROKERS:
        value = [hide_password(address) for address in settings.get(CLUSTER_BROKERS)]
    if setting is APPROVALS_NOTIFY and isinstance(value, str) and "://" in value:
        value = f"{'/'.join(hide_in_urls(value).split('/')[:3])}/{REDACTED}"  # the path of a webhook is its password
    if isinstance(value, str):
        value = hide_in_urls(value)
    if isinstance(value, tuple):
        value = list(cast("tuple[JsonValue, ...]", value))
    return {
        "key": key,
        "value": cast("JsonValue", value),
        "origin": origin,
        "flag": setting.flag,
        "describe": setting.describe,
    }


def _format_value(value: JsonValue) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(value) or "-"
    return "-" if value is None else str(value)


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
