"""The flag table of `indus`, source of the parser, the help and the completion."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from functools import cache

from indusagi.core.records import record


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
    """Flags that have no effect together with this one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", FlagKind(self.kind))
        object.__setattr__(self, "group", FlagGroup(self.group))

    @property
    def key(self) -> str:
        """The parameter name: `--no-mcp` becomes `no_mcp`."""
        return self.name.lstrip("-").replace("-", "_")


OUTPUT_FORMATS = ("text", "json", "stream-json")
APPROVALS = ("ask", "auto-edit", "all")
SANDBOXES = ("auto", "required", "off")


@cache
def flag_specs() -> tuple[FlagSpec, ...]:
    """Return the table."""
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
            "--output-format", (), value, session, "How the answer is written.", choices=OUTPUT_FORMATS, default="text"
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
        FlagSpec(
            "--fork", (), switch, session, "With --continue or --resume: go on in a copy, the original stays as it is."
        ),
        FlagSpec(
            "--model",
            ("-m",),
            value,
            model,
            "The model: anthropic:NAME, openai:NAME, local, or NAME at --base-url.",
            metavar="MODEL",
        ),
        FlagSpec("--base-url", (), value, model, "The address of a server with the OpenAI API.", metavar="URL"),
        FlagSpec(
            "--context-window",
            (),
            value,
            model,
            "The context window of the model in tokens; a small one gets fewer tools.",
            metavar="N",
        ),
        FlagSpec(
            "--max-requests", (), value, model, "The most requests to the model in one run.", metavar="N", default="50"
        ),
        FlagSpec(
            "--tools", (), list_, tools, "Use only these native tools (comma-separated or repeated).", metavar="NAME,…"
        ),
        FlagSpec(
            "--no-tools",
            (),
            switch,
            tools,
            "Use no tools at all, and attach no servers.",
            excludes=(
                "--tools",
                "--mcp",
                "--allow",
                "--approval",
                "--sandbox",
                "--web-allow",
                "--context-window",
                "--code",
            ),
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
        FlagSpec("--no-addons", (), switch, tools, "Load no addons."),
        FlagSpec(
            "--code", (), switch, tools, "Offer run_code: a script that calls the other tools, in a sandbox of its own."
        ),
        FlagSpec(
            "--allow",
            (),
            many,
            permission,
            "Allow what a rule names, such as 'bash(git status *)' or 'github__*'.",
            metavar="RULE",
        ),
        FlagSpec("--approval", (), value, permission, "What is done without asking.", choices=APPROVALS, default="ask"),
        FlagSpec(
            "--sandbox", (), value, permission, "Whether commands run in a sandbox.", choices=SANDBOXES, default="auto"
        ),
        FlagSpec(
            "--web-allow",
            (),
            many,
            permission,
            "Let webfetch reach this host although its address is private.",
            metavar="HOST[:PORT]",
        ),
        FlagSpec("--cwd", ("-C",), value, general, "The working directory.", metavar="DIRECTORY"),
    )


def split_list(values: tuple[str, ...]) -> tuple[str, ...]:
    """Split the values of a LIST flag at commas, dropping empty parts."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())
