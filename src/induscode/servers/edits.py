"""Rows and settings of our own files that a command or the page adds, changes or removes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from indusagi.capabilities.sandbox.profile import ENGINES, InvalidProfileError, ServerProfile, parse_profile
from indusagi.core.app_dirs import locked_directory, make_dirs
from indusagi.core.config_file import read_config_file
from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.contract import CLUSTER_PREFIX
from induscode.cli.terminal import print_status
from induscode.servers.config.trust import TrustStore, describe_row
from induscode.servers.config.writer import OwnConfig, edit_own_config, read_own_config, replace_text
from induscode.servers.plan import parse_server_row

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from induscode.servers.config.rows import Scope, ServerRow

RELATIVE = re.compile(r"\.{1,2}(?=[/:]|$)")


def choose_sandbox(
    name: str, fields: JsonObject, chosen: str | None, cwd: str, replaced: str | None
) -> tuple[JsonObject, str]:
    """Add the sandbox to the fields of a new row, and describe it in a line.

    A command without a chosen one keeps that of the row it replaces, in the file `replaced`, or gets `standard` where
    this machine can hold it. Blocks.
    """
    if "url" in fields:
        if chosen is not None:
            raise click.UsageError("--sandbox is for a command; a URL starts no process")
        return fields, ""
    program = str(fields["command"])
    before = read_own_config(replaced).rows().get(name, {}) if replaced is not None else {}
    value = before.get("sandbox") if chosen is None else chosen
    if value is not None:
        try:
            profile = parse_profile(value)
        except InvalidProfileError as exc:
            raise click.UsageError(f"Server {name!r}: {exc}; --sandbox replaces it") from exc
        touches = "off: it may do whatever you may" if profile is None else profile.describe()
        return {**fields, "sandbox": value}, f"Sandbox: {touches}"
    if os.path.basename(program) in ENGINES or program.startswith(CLUSTER_PREFIX):
        why = "it starts nothing here" if program.startswith(CLUSTER_PREFIX) else f"{program} needs its own socket"
        return fields, f"Sandbox: off: {why}"
    from indusagi.capabilities.sandbox.backend import list_server_sandboxes  # noqa: PLC0415 — for a new command

    if "standard" not in list_server_sandboxes(cwd):
        return fields, "Sandbox: off: this machine has neither bubblewrap nor Landlock, so it may do whatever you may"
    return {**fields, "sandbox": "standard"}, f"Sandbox: {ServerProfile().describe()} (--sandbox off: no sandbox)"


def resolve_paths(words: Sequence[str], cwd: str) -> tuple[str, ...]:
    """Make relative paths in a command line absolute, since a client may start it anywhere, and print each change.

    Paths are `.`, `./x`, `../x`, and existing files with a folder or an extension (`src/server.py`), also after
    `--option=` and before `:` (a volume).
    """
    resolved: list[str] = []
    for word in words:
        option, equals, value = word.rpartition("=") if word.startswith("-") else ("", "", word)
        named = RELATIVE.match(value) or (
            not value.startswith("-") and re.search(r"[./]", value) and os.path.isfile(os.path.join(cwd, value))
        )
        if named and not os.path.isabs(value):
            path, colon, rest = value.partition(":")
            word = f"{option}{equals}{os.path.normpath(os.path.join(cwd, path))}{colon}{rest}"
            print_status(f"{value!r} is written as {word.removeprefix(option + equals)!r}: it may be started anywhere")
        resolved.append(word)
    return tuple(resolved)


def find_former(config: OwnConfig, name: str, *, replace: bool) -> JsonObject | None:
    """Return the row that a new one replaces; raises `click.UsageError` if it may not."""
    former = config.rows().get(name)
    if former is not None and not replace:
        raise click.UsageError(f"{config.path} has a server {name!r}: give another name, or --replace")
    return former


def add_row(name: str, fields: JsonObject, path: str, scope: Scope, *, replace: bool = False) -> ServerRow:
    """Write a row into one of our files, which is consent to it. Blocks.

    Raises `click.UsageError` if it's invalid or there already, and like `edit_own_config`.
    """
    row = parse_server_row(name, fields, path, scope)
    with edit_own_config(path, private=scope == "user") as config:
        find_former(config, name, replace=replace)
        config.put(name, fields)
    if scope == "project":
        TrustStore().approve(row, describe_row(row).digest)
    return row


def remove_row(name: str, path: str, scope: Scope) -> None:
    """Remove a row from one of our files, and the consent to it. Blocks; raises like `edit_own_config`."""
    with edit_own_config(path, private=scope == "user") as config:
        config.remove(name)
    if scope == "project":
        TrustStore().revoke(path, name)


def edit_setting(path: str, name: str, edit: Callable[[str, Sequence[str]], str], *, private: bool) -> bool:
    """Edit one member of a settings file, whether its key is dotted or nested; return whether the text changed."""
    make_dirs(os.path.dirname(path), 0o700 if private else 0o777)
    with locked_directory(os.path.dirname(path)):
        content = read_config_file(path) if os.path.lexists(path) else None
        if content is not None and (content.trouble is not None or not is_json_object(content.document)):
            raise click.UsageError(f"{path} isn't valid: correct it first (indus settings check)")
        document = cast("JsonObject", content.document) if content is not None else {}
        group, _, member = name.partition(".")
        nested = member and name not in document and is_json_object(document.get(group))
        text = Path(path).read_text("utf-8") if content is not None else ""
        changed = edit(text, [group, member] if nested else [name])
        if changed != text:
            replace_text(path, changed, 0o600 if private else None)
        return changed != text
