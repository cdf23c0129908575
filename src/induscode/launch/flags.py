"""The flags of `indus`: one table, from which the parser, the help and the completion are made."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from functools import cache

from indusagi.core.records import record


class FlagKind(StrEnum):
    """What follows a flag."""

    SWITCH = "switch"
    """Nothing: it is on or off."""
    VALUE = "value"
    """One value."""
    MANY = "many"
    """One value, and the flag may stand there several times."""
    LIST = "list"
    """Values with commas between them, and the flag may stand there several times."""


class FlagGroup(StrEnum):
    """Where the help shows a flag."""

    SESSION = "Session"
    MODEL = "Model"
    TOOLS = "Tools"
    PERMISSION = "Permission"
    GENERAL = "General"


@record
class FlagSpec:
    """One flag."""

    name: str
    aliases: tuple[str, ...]
    kind: FlagKind
    group: FlagGroup
    describe: str
    metavar: str | None = field(default=None, kw_only=True)
    choices: tuple[str, ...] = field(default=(), kw_only=True)
    default: str | None = field(default=None, kw_only=True)
    excludes: tuple[str, ...] = field(default=(), kw_only=True)
    """Flags that would have no effect beside this one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", FlagKind(self.kind))
        object.__setattr__(self, "group", FlagGroup(self.group))

    @property
    def key(self) -> str:
        """The name of the field that takes its value."""
        return self.name.lstrip("-").replace("-", "_")


OUTPUT_FORMATS = ("text", "json", "stream-json")
APPROVALS = ("ask", "auto-edit", "all")
SANDBOXES = ("auto", "required", "off")


@cache
def flag_specs() -> tuple[FlagSpec, ...]:
    """Give the table."""
    session, model, tools = FlagGroup.SESSION, FlagGroup.MODEL, FlagGroup.TOOLS
    permission, general = FlagGroup.PERMISSION, FlagGroup.GENERAL
    switch, value, many, list_ = FlagKind.SWITCH, FlagKind.VALUE, FlagKind.MANY, FlagKind.LIST
    return (
        FlagSpec(
            "--print",
            ("-p",),
            value,
            session,
            "Answer this prompt and leave; what is piped in is added to it.",
            metavar="PROMPT",
        ),
        FlagSpec(
            "--output-format", (), value, session, "How the answer is written.", choices=OUTPUT_FORMATS, default="text"
        ),
        FlagSpec("--continue", ("-c",), switch, session, "Go on with the last conversation here."),
        FlagSpec(
            "--resume", ("-r",), value, session, "Go on with that conversation.", metavar="ID", excludes=("--continue",)
        ),
        FlagSpec(
            "--model",
            ("-m",),
            value,
            model,
            "Which model answers: anthropic:NAME, openai:NAME, or NAME at --base-url.",
            metavar="MODEL",
        ),
        FlagSpec(
            "--base-url", (), value, model, "The address of a server that speaks the OpenAI protocol.", metavar="URL"
        ),
        FlagSpec(
            "--context-window",
            (),
            value,
            model,
            "How many tokens the model reads: a small one is shown fewer native tools.",
            metavar="N",
        ),
        FlagSpec(
            "--max-requests", (), value, model, "The most requests to the model in one run.", metavar="N", default="50"
        ),
        FlagSpec(
            "--tools",
            (),
            list_,
            tools,
            "Use only these native tools (comma-separated or repeated).",
            metavar="NAME,…",
            excludes=("--context-window",),
        ),
        FlagSpec(
            "--no-tools",
            (),
            switch,
            tools,
            "Use no tools at all, and attach no servers.",
            excludes=("--tools", "--mcp", "--allow", "--approval", "--sandbox", "--web-allow", "--context-window"),
        ),
        FlagSpec(
            "--mcp",
            (),
            list_,
            tools,
            "Attach the MCP servers of a file, or those configured for a directory (comma-separated or repeated).",
            metavar="FILE|DIR,…",
        ),
        FlagSpec("--no-mcp", (), switch, tools, "Attach no MCP servers.", excludes=("--mcp",)),
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
            "What is done without being asked for.",
            choices=APPROVALS,
            default="ask",
        ),
        FlagSpec(
            "--sandbox", (), value, permission, "Whether commands run in a sandbox.", choices=SANDBOXES, default="auto"
        ),
        FlagSpec(
            "--web-allow",
            (),
            many,
            permission,
            "Let webfetch reach this server of yours though its address is private.",
            metavar="HOST[:PORT]",
        ),
        FlagSpec("--cwd", ("-C",), value, general, "Work there instead of here.", metavar="DIRECTORY"),
    )


def split_list(values: tuple[str, ...]) -> tuple[str, ...]:
    """Read a flag of the kind LIST: every comma parts two values, and empty ones are left out."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())
