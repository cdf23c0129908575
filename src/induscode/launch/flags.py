"""The flag table of `indus`, source of the parser, the help, the completion and the reference page.

`flag_specs` has the flags of a session; `induscode.gateway.flags` has those of `indus serve`. A flag that overrides a
setting is made from it. A command declares flags that only it takes by itself, in its own module.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field
from enum import StrEnum
from functools import cache
from typing import Any, cast

from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from induscode.launch.settings import (
    CODE_ENABLED,
    MODEL_BASE_URL,
    MODEL_MAX_REQUESTS,
    MODEL_NAME,
    SANDBOX,
    WEB_ALLOW_PRIVATE,
    Setting,
)


class FlagKind(StrEnum):
    """How many values a flag takes."""

    SWITCH = "switch"
    """On or off, without a value."""
    VALUE = "value"
    """One value."""
    MANY = "many"
    """One value; repeatable."""
    LIST = "list"
    """Comma-separated values; repeatable."""


class FlagGroup(StrEnum):
    """A section of the help."""

    SESSION = "Session"
    MODEL = "Model"
    TOOLS = "Tools"
    PERMISSION = "Permission"
    GENERAL = "General"
    SERVING = "Serving"


@record
class FlagSpec:
    """One flag."""

    name: str
    aliases: tuple[str, ...]
    kind: FlagKind
    group: FlagGroup
    describe: str
    metavar: str | None = field(default=None, kw_only=True)
    schema: JsonObject = field(default_factory=dict[str, "JsonValue"], kw_only=True)
    """JSON schema of a value that's more than text: `enum`, or a number with its limits."""
    default: str | None = field(default=None, kw_only=True)
    bare: str | None = field(default=None, kw_only=True)
    """The value of the flag if it's written without one."""
    excludes: tuple[str, ...] = field(default=(), kw_only=True)
    """Flags that have no effect together with this one."""
    needs: str = field(default="", kw_only=True)
    """The flag without which this one has no effect."""
    variable: str = field(default="", kw_only=True)
    """An environment variable that belongs to it."""
    hidden: bool = field(default=False, kw_only=True)
    key: str = field(default="", kw_only=True)
    """The parameter name; by default `--no-mcp` becomes `no_mcp`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", FlagKind(self.kind))
        object.__setattr__(self, "group", FlagGroup(self.group))
        object.__setattr__(self, "key", self.key or self.name.lstrip("-").replace("-", "_"))

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it accepts; empty for any."""
        return tuple(map(str, cast("list[JsonValue]", self.schema.get("enum", []))))


def choice(*names: str) -> JsonObject:
    """Build the schema of a choice."""
    return {"enum": [*names]}


def flag_of(setting: Setting[Any], kind: FlagKind, group: FlagGroup, describe: str = "", **facts: Any) -> FlagSpec:
    """Build the flag of a setting, which has its description and values unless told otherwise."""
    schema = setting.values.schema if "enum" in setting.values.schema else {}
    named = {"name": setting.flag, "aliases": (), "describe": describe or setting.describe, "schema": schema}
    given: dict[str, Any] = {**named, **facts}
    return FlagSpec(kind=kind, group=group, **given)


_WITHOUT_TOOLS = (
    "--tools", "--mcp", "--allow", "--approval", "--sandbox", "--web-allow", "--context-window", "--code",
)  # fmt: skip


@cache
def flag_specs() -> tuple[FlagSpec, ...]:
    """Return the flags of a session, most of which commands take too."""
    session, model, tools = FlagGroup.SESSION, FlagGroup.MODEL, FlagGroup.TOOLS
    permission, general = FlagGroup.PERMISSION, FlagGroup.GENERAL
    switch, value, many, list_ = FlagKind.SWITCH, FlagKind.VALUE, FlagKind.MANY, FlagKind.LIST
    return (
        FlagSpec(
            "--print",
            ("-p",),
            value,
            session,
            "Answer this prompt and exit; standard input is added to it.",
            metavar="PROMPT",
        ),
        FlagSpec(
            "--output-format",
            (),
            value,
            session,
            "How the answer is written.",
            schema=choice("text", "json", "stream-json"),
            default="text",
        ),
        FlagSpec("--continue", ("-c",), switch, session, "Continue the last conversation of this directory."),
        FlagSpec(
            "--resume",
            ("-r",),
            value,
            session,
            "Continue the conversation with this id.",
            metavar="ID",
            excludes=("--continue",),
        ),
        FlagSpec("--fork", (), switch, session, "With --continue or --resume: continue in a copy."),
        flag_of(
            MODEL_NAME,
            value,
            model,
            "The model: anthropic:NAME, openai:NAME, or NAME at --base-url.",
            aliases=("-m",),
            metavar="MODEL",
        ),
        flag_of(MODEL_BASE_URL, value, model, metavar="URL"),
        FlagSpec(
            "--context-window",
            (),
            value,
            model,
            "The context window of the model in tokens; a small one gets fewer tools.",
            metavar="N",
        ),
        flag_of(MODEL_MAX_REQUESTS, value, model, metavar="N", default=str(MODEL_MAX_REQUESTS.default)),
        FlagSpec(
            "--tools", (), list_, tools, "Use only these native tools (comma-separated or repeated).", metavar="NAME,…"
        ),
        FlagSpec(
            "--no-tools", (), switch, tools, "Use no tools at all, and attach no servers.", excludes=_WITHOUT_TOOLS
        ),
        FlagSpec(
            "--mcp",
            (),
            list_,
            tools,
            "Attach the MCP servers of a file, or those configured for a directory (comma-separated or repeated).",
            metavar="FILE|DIR,…",
        ),
        FlagSpec("--no-mcp", (), switch, tools, "Don't use MCP servers.", excludes=("--mcp",)),
        FlagSpec("--no-addons", (), switch, tools, "Load no addons."),
        flag_of(
            CODE_ENABLED, switch, tools, "Offer run_code: a script that calls the other tools, in a sandbox of its own."
        ),
        FlagSpec(
            "--allow",
            (),
            many,
            permission,
            "Allow what a rule names, such as 'bash(git status *)' or 'github__*'.",
            metavar="RULE",
        ),
        FlagSpec(
            "--approval",
            (),
            value,
            permission,
            "When to ask: always before changes, not for edits, or never.",
            schema=choice("ask", "auto-edit", "all"),
            default="ask",
        ),
        flag_of(SANDBOX, value, permission, default=SANDBOX.default),
        flag_of(
            WEB_ALLOW_PRIVATE, many, permission, "Allow webfetch to reach this private host.", metavar="HOST[:PORT]"
        ),
        FlagSpec("--cwd", ("-C",), value, general, "The working directory.", metavar="DIRECTORY"),
    )


def find_conflict(specs: Sequence[FlagSpec], names: Collection[str]) -> str | None:
    """Describe the first two of the given flags that can't be used together."""
    conflicts = ((other, spec.name) for spec in specs for other in spec.excludes if {other, spec.name} <= {*names})
    return next((f"{other} and {name} can't be used together" for other, name in conflicts), None)


def split_list(values: tuple[str, ...]) -> tuple[str, ...]:
    """Split the values of a LIST flag at commas, dropping empty parts."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())
