"""Writes the reference pages of the command from its tables: commands and flags, settings, exit codes, JSON.

`make reference` runs it, and `tests/docs/test_reference.py` fails if a page differs from the tables.
"""

from __future__ import annotations

import ast
import inspect
import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import click

from induscode.commands.groups import CommandGroup
from induscode.commands.program import root_command
from induscode.conversations.contract import (
    ExitCode,
    RunResult,
    TextDelta,
    ToolAdvanced,
    ToolAnswered,
    ToolCalled,
    Usage,
)
from induscode.conversations.run import Run, event_to_json
from induscode.launch.flags import FlagGroup
from induscode.launch.options import GroupedOption
from induscode.launch.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from indusagi.core.json import JsonObject
    from induscode.launch.settings import Setting

FOLDER = Path(__file__).resolve().parents[1] / "docs/reference"
NOTICE = "<!-- Written by scripts/reference.py: run make reference instead of editing this page. -->"
JSON_FORMATS = {
    "addons list": ("addons", "notes"),
    "approvals list": ("approvals",),
    "calls": ("calls", "dropped"),
    "calls --by tool": ("by", "groups", "dropped"),
    "connect": ("clients",),
    "connectors list": ("connectors",),
    "ledger timeline": ("rows",),
    "ledger verify": ("file", "rows", "damage"),
    "mcp auth": ("servers",),
    "mcp doctor": ("servers", "leftovers", "plainSecrets"),
    "mcp import --dry-run": ("file", "servers"),
    "mcp list --no-check": ("servers",),
    "models list": ("providers", "used", "problem"),
    "prompts list --no-check": ("prompts",),
    "resources list --no-check": ("resources",),
    "search status": ("semantic", "missing", "file"),
    "secrets check": ("references",),
    "secrets list": ("secrets",),
    "settings show": ("settings", "files", "notes"),
    "tokens audit": ("events", "calls"),
    "tokens list": ("tokens",),
    "tools list --no-check": ("tools", "sources", "total", "notes", "disabled"),
    "tools search --no-check read": ("tools", "leftOut", "searched", "semantic"),
    "top": ("servers", "calls", "errors", "declined"),
    "try http://localhost:1": (
        *("target", "row", "server", "startMs", "tokens", "items", "notes", "digest"),
        *("findings", "former", "drifts", "calls", "kept", "fault"),
    ),
}
"""The members of the object that a command prints with `--json`, for commands that run in an empty directory."""


OTHER_EXIT_CODES = (
    ("`indus call`", "1", "The tool returned an error."),
    ("`indus call`", "3", "The server is missing, or the tool is disabled."),
    (
        "`indus serve`",
        "3",
        "A required server isn't ready, or the server of `--transparent` isn't there or may not start.",
    ),
    ("`indus mcp add`", "1", "The server was added, and its check failed."),
    ("`indus tools search`", "1", "Nothing matches."),
    ("`indus try`", "1", "A tool returned an error, or a finding of the review is serious."),
    ("`indus try`", "3", "The server failed, or there's no such package."),
    (
        "`indus mcp lock --check`",
        "1",
        "There are more than cosmetic differences, or something waits for your approval.",
    ),
    ("`indus mcp lock --check`", "3", "A server is missing."),
    ("`indus rewind`", "1", "It left a file alone, because another program has changed it."),
    ("`indus rewind`", "2", "It printed the preview: there's no terminal to ask on, and no `--yes`."),
    ("`indus connectors`", "3", "The document can't be read or used."),
    ("`indus secrets check`", "1", "A secret can't be read."),
    ("`indus connectors doctor`", "1", "There's a problem."),
    ("`indus addons doctor`", "1", "An addon has a fault."),
    ("`indus ledger verify`", "1", "A row isn't as it was written."),
    ("`indus cluster status`", "1", "There's no key, or the brokers don't answer or are out of storage."),
    ("`indus cluster verify`", "1", "A ledger isn't as it was published."),
)
"""What single commands mean by a code, in addition to the codes of a session."""


def build_pages() -> dict[str, str]:
    """Build every page by its file name."""
    return {
        "commands.md": _build_commands(),
        "settings.md": _build_settings(),
        "exit-codes.md": _build_exit_codes(),
        "json.md": _build_json(),
    }


# -- commands -----------------------------------------------------------------------------------


def _build_commands() -> str:
    root = root_command()
    parts = [
        f"# Commands and flags\n\n{NOTICE}",
        "Every flag of every command. See also [settings](settings.md), [exit codes](exit-codes.md), [JSON](json.md)\n"
        "and [files](files.md). Commands that print lists accept `--json`. `indusr` and `indusagir` are other names\n"
        "for the same program.",
        _format_overview(root),
        "## indus",
        "These flags also work before the name of a command that takes them.",
        _format_root(root),
    ]
    for path, command in _walk(root):
        parts.append(_format_command(path, command))
    return "\n\n".join(parts) + "\n"


def _format_overview(root: click.Group) -> str:
    rows = [
        (f"[`{' '.join(path)}`](#{'-'.join(path)})", _escape(command.get_short_help_str(limit=200)))
        for path, command in _walk(root)
        if len(path) == 2
    ]
    return _format_table(("Command", "Meaning"), rows)


def _walk(group: click.Group, path: tuple[str, ...] = ("indus",)) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """List all commands below a group, in the order of the help."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, CommandGroup):
            yield from _walk(command, (*path, name))


def _format_root(root: click.Group) -> str:
    sections: dict[FlagGroup, list[click.Option]] = {}
    for option in root.params:
        if isinstance(option, GroupedOption):
            sections.setdefault(option.group, []).append(option)
    return "\n\n".join(f"### {group}\n\n{_format_options(options)}" for group, options in sections.items())


def _format_command(path: Sequence[str], command: click.Command) -> str:
    words = " ".join(path)
    parts = [f"{'#' * len(path)} {words}", *_format_text(command.help or "")]
    if isinstance(command, CommandGroup):
        return "\n\n".join([*parts, f"Without a command: `{words} {command.default}`."])
    arguments = [_format_argument(one) for one in command.params if isinstance(one, click.Argument)]
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    usage = " ".join([words, *["[OPTIONS]"][: len(options)], *arguments])
    return "\n\n".join([*parts, f"```text\n{usage}\n```", *([_format_options(options)] if options else [])])


def _format_text(text: str) -> Iterator[str]:
    """Format the paragraphs of a help text; one that begins with the mark of click keeps its lines."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b\n"):
            yield f"```text\n{paragraph[2:]}\n```"
        else:
            yield _escape(paragraph)


def _format_argument(argument: click.Argument) -> str:
    choices = f"{{{'|'.join(map(str, argument.type.choices))}}}" if isinstance(argument.type, click.Choice) else ""
    name = argument.metavar or choices or str(argument.name).upper()
    if argument.metavar is None and argument.nargs == -1:
        name += "…"
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _format_options(options: Sequence[click.Option]) -> str:
    return _format_table(("Flag", "Meaning"), [(_format_names(one), _describe_option(one)) for one in options])


def _format_names(option: click.Option) -> str:
    names = ", ".join(sorted(option.opts, key=lambda name: name.startswith("--")))
    if option.is_flag:
        return f"`{names}`"
    choices = "|".join(map(str, option.type.choices)) if isinstance(option.type, click.Choice) else ""
    return f"`{names} {option.metavar or choices or option.type.name.upper()}`"


def _describe_option(option: click.Option) -> str:
    parts = [_escape(option.help or "")]
    if isinstance(option.type, click.IntRange) and option.type.max is not None:
        parts.append(f"From {option.type.min or 0:,} to {option.type.max:,}.")
    if option.show_default:
        parts.append(f"Default: `{option.default}`.")
    return " ".join(parts)


def _escape(text: str) -> str:
    """Escape the marks of Markdown in a text."""
    return text.replace("*", "\\*").replace("__", "\\_\\_").replace("<", "&lt;")


# -- settings -----------------------------------------------------------------------------------


def _build_settings() -> str:
    rows = [
        (
            f"`{key}`",
            _format_values(setting),
            f"`{json.dumps(setting.default)}`",
            f"`{setting.flag}`" if setting.flag else f"`{setting.variable}`" if setting.variable else "",
            "yes" if setting.tighten else "",
            setting.describe,
        )
        for key, setting in SETTINGS.items()
    ]
    heads = ("Key", "Values", "Default", "Flag or variable", "Project", "Meaning")
    return (
        f"# Settings\n\n{NOTICE}\n\n"
        "The keys of `settings.json`, dotted or nested. A project can make the settings marked *project* stricter.\n"
        "[Change your settings](../guides/settings.md) says where the files are. `indus settings` shows the values in\n"
        "use.\n\n"
        f"{_format_table(heads, rows)}\n"
    )


def _format_values(setting: Setting[object]) -> str:
    schema = setting.values.schema
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in cast("list[str]", schema["enum"]))
    if schema.get("type") == "integer":
        return f"{schema['minimum']:,} to {schema['maximum']:,}"
    if schema.get("type") == "array":
        return "list"
    return {"boolean": "`true`, `false`", "object": "object", "string": "text"}.get(str(schema.get("type")), "list")


# -- exit codes ---------------------------------------------------------------------------------


def _build_exit_codes() -> str:
    """Build the page of the members of `ExitCode` with their docstrings, and of the other commands' codes."""
    tree = ast.parse(inspect.getsource(ExitCode))
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
    rows: list[tuple[str, str]] = []
    for member, about in pairwise(body):
        if isinstance(member, ast.Assign) and isinstance(about, ast.Expr) and isinstance(about.value, ast.Constant):
            code = ExitCode[ast.unparse(member.targets[0])]
            rows.append((str(code.value), " ".join(str(about.value.value).split())))
    rows.append(("128 + n", "Signal n ended it. A reader that closes the pipe early counts as one (141)."))
    return (
        f"# Exit codes\n\n{NOTICE}\n\n"
        "A session and `indus serve` exit with these. `indus serve` exits with 0 after SIGTERM.\n\n"
        f"{_format_table(('Code', 'Meaning'), rows)}\n\n"
        "Other commands use 0, 1, 2 and 128 + n the same way: success, failure, invalid input, a signal. Invalid\n"
        "input gives you one line on standard error, with the remedy. These add a meaning:\n\n"
        f"{_format_table(('Command', 'Code', 'Meaning'), OTHER_EXIT_CODES)}\n"
    )


# -- JSON ---------------------------------------------------------------------------------------


def _build_json() -> str:
    rows = [(f"`indus {words} --json`", _format_keys(keys)) for words, keys in JSON_FORMATS.items()]
    events = [(f"`{event['type']}`", _format_keys(key for key in event if key != "type")) for event in _list_events()]
    return (
        f"# JSON\n\n{NOTICE}\n\n"
        "New members can come with any version. Nothing is removed or renamed without a\n"
        "[deprecation](../internals/versioning.md#deprecation).\n\n"
        "## Lists\n\n"
        "A command with `--json` prints one object:\n\n"
        f"{_format_table(('Command', 'Members'), rows)}\n\n"
        "[Call records](calls.md) has the members of a call.\n\n"
        "## Runs\n\n"
        "`indus -p --output-format stream-json` prints one event per line. `type` names it:\n\n"
        f"{_format_table(('Event', 'Members'), events)}\n\n"
        "`--output-format json` prints only the last one, `result`:\n\n"
        "```sh\n"
        "indus -p \"summarise the open TODOs\" --output-format json | jq '{result, cost_usd, denied}'\n"
        "```\n"
    )


def _list_events() -> Iterator[JsonObject]:
    """Make one event of each kind, in the order of a run."""
    session = SimpleNamespace(mcp=SimpleNamespace(status=dict), deck=lambda: SimpleNamespace(shown=list))
    facts = {"transcript": SimpleNamespace(id=""), "choice": SimpleNamespace(label=""), "session": session}
    facts |= {"invocation": SimpleNamespace(cwd=""), "notes": [], "list_notes": list, "usage": Usage()}
    run = cast("Run", SimpleNamespace(conversation=SimpleNamespace(**facts), denied=[]))
    yield Run.describe_start(run)
    yield event_to_json(TextDelta(""))
    yield event_to_json(ToolCalled("", "", None))
    yield event_to_json(ToolAdvanced("", "", 0, None, ""))
    yield event_to_json(ToolAnswered("", "", "", is_error=False))
    yield event_to_json(Usage())
    yield Run.describe_end(run, RunResult(reason="done"), 0)


def _format_keys(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


def _format_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    for name, text in build_pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
