"""The flag table of `indus`, source of the parser, the help, the completion and the reference page.

`flag_specs` has the flags of a session; `induscode.gateway.options` has those of `indus serve`. A flag that overrides a
setting is made from it. A command declares flags that only it takes by itself, in its own module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from functools import cache
from typing import Any, cast

from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from induscode.launch.settings import (
    CODE_ENABLED,
    FLOW_MODE,
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
    """A section of the help, in their order."""

    CLIENTS = "Clients"
    TRANSPORT = "Transport"
    SESSION = "Session"
    MODEL = "Model"
    TOOLS = "Tools"
    PERMISSION = "Permission"
    PAGE = "Page"
    SIGN_IN = "Sign-in"
    LIMITS = "Limits"
    CLUSTER = "Cluster"
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


@record
class FlagSection:
    """Builds the flags of one section of the help."""

    group: FlagGroup
    needs: str = ""
    """The flag without which they have no effect; their descriptions name it."""

    def switch(self, name: str, describe: str, *aliases: str, **facts: Any) -> FlagSpec:
        """Build a flag without a value."""
        return self._build(FlagKind.SWITCH, name, describe, aliases, facts)

    def value(self, name: str, metavar: str | None, describe: str, *aliases: str, **facts: Any) -> FlagSpec:
        """Build a flag with one value."""
        return self._build(FlagKind.VALUE, name, describe, aliases, {"metavar": metavar, **facts})

    def many(self, name: str, metavar: str, describe: str, **facts: Any) -> FlagSpec:
        """Build a repeatable flag."""
        return self._build(FlagKind.MANY, name, describe, (), {"metavar": metavar, **facts})

    def list(self, name: str, metavar: str, describe: str) -> FlagSpec:
        """Build a flag with comma-separated values."""
        return self._build(FlagKind.LIST, name, describe, (), {"metavar": metavar})

    def _build(
        self, kind: FlagKind, name: str, describe: str, aliases: tuple[str, ...], facts: Mapping[str, Any]
    ) -> FlagSpec:
        shown = f"With {self.needs}: {describe}" if self.needs else describe
        given: dict[str, Any] = {"needs": self.needs, **facts}
        return FlagSpec(name, aliases, kind, self.group, shown, **given)

    def of(self, setting: Setting[Any], kind: FlagKind, describe: str = "", **facts: Any) -> FlagSpec:
        """Build the flag of a setting, which has its description and values unless told otherwise."""
        schema = setting.values.schema if "enum" in setting.values.schema else {}
        given: dict[str, Any] = {"name": setting.flag, "aliases": (), "schema": schema, "needs": self.needs, **facts}
        return FlagSpec(kind=kind, group=self.group, describe=describe or setting.describe, **given)


_WITHOUT_TOOLS = (
    "--tools", "--mcp", "--allow", "--approval", "--flow", "--sandbox", "--web-allow", "--context-window", "--code",
)  # fmt: skip

_TOKENS: JsonObject = {"type": "integer", "minimum": 1}
_COST: JsonObject = {"type": "number", "exclusiveMinimum": 0}


@cache
def flag_specs() -> tuple[FlagSpec, ...]:
    """Return the flags of a session, most of which commands take too."""
    session, model, tools = map(FlagSection, (FlagGroup.SESSION, FlagGroup.MODEL, FlagGroup.TOOLS))
    permission, general = FlagSection(FlagGroup.PERMISSION), FlagSection(FlagGroup.GENERAL)
    formats, approvals = choice("text", "json", "stream-json"), choice("ask", "auto-edit", "all")
    value, most = FlagKind.VALUE, str(MODEL_MAX_REQUESTS.default)
    return (
        session.value("--print", "PROMPT", "Answer this prompt and exit; standard input is added to it.", "-p"),
        session.value("--output-format", None, "How the answer is written.", schema=formats, default="text"),
        session.switch("--verbose", "With -p: write all that the model says, as it says it, not only the answer."),
        session.switch("--fail-on-denied", "With -p: exit with 5 if a call was denied."),
        session.switch("--continue", "Continue the last conversation of this directory.", "-c"),
        session.value("--resume", "ID", "Continue the conversation with this id.", "-r", excludes=("--continue",)),
        session.switch("--fork", "With --continue or --resume: continue in a copy."),
        session.switch("--plain", "Show the session as plain lines, for screen readers and simple terminals."),
        model.of(
            MODEL_NAME,
            value,
            "The model: anthropic:NAME, openai:NAME, or NAME at --base-url.",
            aliases=("-m",),
            metavar="MODEL",
        ),
        model.of(MODEL_BASE_URL, value, metavar="URL"),
        model.value(
            "--context-window", "N", "The context window of the model in tokens; a small one gets fewer tools."
        ),
        model.of(MODEL_MAX_REQUESTS, value, metavar="N", default=most),
        model.value("--max-tokens", "N", "End the session at so many tokens, sent and received.", schema=_TOKENS),
        model.value("--max-cost", "USD", "End the session at this cost, where the price is known.", schema=_COST),
        tools.list("--tools", "NAME,…", "Use only these native tools (comma-separated or repeated)."),
        tools.switch("--no-tools", "Use no tools at all, and attach no servers.", excludes=_WITHOUT_TOOLS),
        tools.list(
            "--mcp",
            "FILE|DIR,…",
            "Attach the MCP servers of a file, or those configured for a directory (comma-separated or repeated).",
        ),
        tools.switch("--no-mcp", "Don't use MCP servers.", excludes=("--mcp",)),
        tools.switch("--no-addons", "Load no addons, skills or hooks."),
        tools.of(
            CODE_ENABLED,
            FlagKind.SWITCH,
            "Offer run_code: a script that calls the other tools, in a sandbox of its own.",
        ),
        permission.many("--allow", "RULE", "Allow what a rule names, such as 'bash(git status *)' or 'github__*'."),
        permission.value(
            "--approval",
            None,
            "When to ask: always before changes, not for edits, or never.",
            schema=approvals,
            default="ask",
        ),
        permission.of(
            FLOW_MODE, value, "What to do before a call would send data out after private and untrusted data were read."
        ),
        permission.of(SANDBOX, value, default=SANDBOX.default),
        permission.of(
            WEB_ALLOW_PRIVATE, FlagKind.MANY, "Allow webfetch to reach this private host.", metavar="HOST[:PORT]"
        ),
        general.value("--cwd", "DIRECTORY", "The working directory.", "-C"),
    )


def find_conflict(specs: Sequence[FlagSpec], names: Collection[str]) -> str | None:
    """Describe the first two of the given flags that can't be used together."""
    conflicts = ((other, spec.name) for spec in specs for other in spec.excludes if {other, spec.name} <= {*names})
    return next((f"{other} and {name} can't be used together" for other, name in conflicts), None)


def split_list(values: tuple[str, ...]) -> tuple[str, ...]:
    """Split the values of a LIST flag at commas, dropping empty parts."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())
