"""Drift: how a definition differs from the approved one, and how much that matters.

The lock file, the pins, `indus mcp diff` and the decision to disable a tool all use the same grade.
"""

from __future__ import annotations

import re
import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.faults import Note
from indusagi.core.json import compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.text import escape_unseen, format_count
from induscode.core.consent import build_consent
from induscode.deck.mcp.canonical import Form, canonical_definition, canonical_schema
from induscode.deck.mcp.capability import definition_pin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import ItemKind, RemoteToolRef
    from induscode.core.consent import Consent

_MAX_FIELD_CHARS = 40

DisabledCause: TypeAlias = Literal["changed", "added", "unread"]
"""The definition differs from the approved one, the server added it later, or the ledger is unreadable."""


class DriftGrade(StrEnum):
    """How much a change matters, worst first."""

    BREAKING = "breaking"
    """Valid calls may now fail, or return results of a different shape."""
    ROUTING = "routing"
    """The same calls are valid, but a model may make them for different reasons."""
    COSMETIC = "cosmetic"
    """The same words and members in a different order. The approved text stays in use."""


@record
class Drift:
    """A changed, added or removed tool definition."""

    ref: RemoteToolRef
    grade: DriftGrade
    before: JsonObject | None
    """`None`: the tool didn't exist, or its approved definition wasn't stored."""
    after: JsonObject | None
    """`None`: the tool is gone."""
    is_added: bool = False
    """Whether an already known server added it."""

    @property
    def digest(self) -> str:
        """The digest of the current definition, which approvals refer to."""
        return definition_pin(self.after or {})

    @property
    def fields(self) -> Sequence[str]:
        """The parts of the definition that differ."""
        before, after = (canonical_definition(self.before or {}), canonical_definition(self.after or {}))
        names = dict.fromkeys([*before, *after])
        return tuple(name for name in names if not same_json(before.get(name), after.get(name)))

    @property
    def disables(self) -> bool:
        """Whether the tool stays disabled until a user approves the change."""
        return self.grade is not DriftGrade.COSMETIC

    @property
    def summary(self) -> str:
        """Tool, grade and differing parts, in one line."""
        what = "added" if self.is_added else f"{self.grade} ({_list_fields(self.fields)})"
        return f"{name_item(self.ref)}: {what}"

    def diff(self) -> str:
        """Format the change as a unified diff."""
        from difflib import unified_diff  # noqa: PLC0415 — used only to show a change

        name = name_item(self.ref)
        lines = unified_diff(pretty(self.before), pretty(self.after), f"{name} (approved)", f"{name} (now)", n=2)
        return "".join(lines)


@record
class PinVerdict:
    """The pins' verdict on a listed definition. Both fields `None`: the pins are unreadable."""

    drift: Drift | None = None
    """How it differs from the approved ones. `None`: it's approved."""
    served: JsonObject | None = None
    """The approved definition for models and clients. `None`: the item is disabled."""


@record
class DisabledTool:
    """A tool that can't be called until a user approves its changed definition."""

    ref: RemoteToolRef
    name: str
    """The name a model would call it by."""
    grade: DriftGrade
    fields: Sequence[str] = ()
    """The parts of the definition that differ."""
    unsettled: bool = False
    """Whether it keeps switching between approved and other definitions."""
    cause: DisabledCause = "changed"

    @property
    def reason(self) -> str:
        """Why it's disabled."""
        if self.cause == "unread":
            return "disabled: the ledger can't be read, so nobody knows whether its definition is the approved one"
        if self.cause == "added":
            return "disabled: its server has added it since you approved the others"
        changed = f"{self.grade} change of {_list_fields(self.fields)}" if self.fields else self.grade
        if self.unsettled:
            return f"disabled: its definition keeps switching away from what was approved ({changed})"
        return f"disabled: its definition is not the one that was approved ({changed})"

    @property
    def diff_command(self) -> str:
        """The command that shows the change."""
        return command_line("indus", "mcp", "diff", self.ref.server)

    @property
    def approve_command(self) -> str:
        """The command that approves the current definition."""
        return command_line("indus", "mcp", "approve", self.ref.server, self.ref.name)

    @property
    def remedy(self) -> str:
        """The commands that show and approve the change."""
        if self.cause == "unread":
            return "see what's wrong: indus ledger verify"
        return f"look at the change: {self.diff_command}; approve it: {self.approve_command}"

    @property
    def note(self) -> Note:
        """The reason and the remedy as a note."""
        return Note(f"server {self.ref.server!r}, {self.ref.kind} {self.ref.name!r}", self.reason, self.remedy)

    def as_json(self) -> JsonObject:
        """Return the facts for `--json`."""
        return {
            "server": self.ref.server,
            "kind": self.ref.kind,
            "tool": self.ref.name,
            "name": self.name,
            "grade": str(self.grade),
            "fields": [*self.fields],
            "cause": self.cause,
            "reason": self.reason,
            "approve": self.approve_command,
        }


def describe_causes(tools: Iterable[DisabledTool]) -> str:
    """Summarize why tools are disabled."""
    causes = {tool.cause for tool in tools}
    if "unread" in causes:
        return "the ledger can't be read"
    return f"{' or '.join(sorted(causes, reverse=True))} since approved"


def name_item(ref: RemoteToolRef) -> str:
    """Name an item in one line: server and tool, and the kind if it isn't a tool.

    Adds an ASCII form to names with possible lookalikes, such as Cyrillic letters.
    """
    name = escape_unseen(f"{ref.server}/{ref.name}")
    if not name.isascii():
        name += f" [{name.encode('ascii', 'backslashreplace').decode()}]"
    return name if ref.kind == "tool" else f"{name} ({ref.kind})"


def _list_fields(fields: Sequence[str]) -> str:
    """List parts of a definition in one line, quoting odd names from the server."""
    return ", ".join(
        field if field.isidentifier() and len(field) <= _MAX_FIELD_CHARS else repr(field[:_MAX_FIELD_CHARS])
        for field in fields
    )


def command_line(*words: str) -> str:
    """Format a shell command in one line. A hostile name stays one word and never becomes an option."""
    index = next((index for index, word in enumerate(words) if word.startswith("-")), None)
    return " ".join(map(_quote, words if index is None else (*words[:index], "--", *words[index:])))


def _quote(word: str) -> str:
    """Quote a word, escaping line ends and invisible characters with bash's and zsh's `$'…'`."""
    if word.isprintable():
        return shlex.quote(word)
    shown = (char if char.isprintable() else f"\\U{ord(char):08x}" for char in re.sub(r"[\\']", r"\\\g<0>", word))
    return f"$'{''.join(shown)}'"


def grade_drift(before: JsonObject | None, after: JsonObject | None, kind: ItemKind = "tool") -> DriftGrade:
    """Grade the change from one definition to another.

    A new tool is ROUTING, since a model may choose it. So are other differing fields, even `_meta` and icons: clients
    act on them. A `default` validates nothing
    (https://json-schema.org/draft/2020-12/json-schema-validation#section-9.2), so changing it is ROUTING too.
    """
    if after is None:
        return DriftGrade.BREAKING
    if before is None:
        return DriftGrade.ROUTING
    if kind == "tool":
        is_breaking = _breaks_tool(before, after)
    else:
        is_breaking = not same_json(*map(_list_requirements, (before, after)))
    if is_breaking:
        return DriftGrade.BREAKING
    return DriftGrade.COSMETIC if differ_in_order_alone(before, after) else DriftGrade.ROUTING


def _breaks_tool(before: JsonObject, after: JsonObject) -> bool:
    """Tell whether a tool's accepted calls, results or `execution` changed."""
    if not _accepts_the_same(before.get("inputSchema"), after.get("inputSchema")):
        return True
    results = (canonical_schema(raw.get("outputSchema"), Form.VALIDATION) for raw in (before, after))
    return not same_json(*results) or not same_json(before.get("execution"), after.get("execution"))


def _list_requirements(raw: JsonObject) -> JsonValue:
    """List the parts of a resource, template, prompt, skill or content its clients rely on.

    These are a prompt's arguments, a resource's type and pinned content, and an app's permissions (`_meta.ui`:
    https://modelcontextprotocol.io/specification/2026-07-28/extensions/apps).
    """
    arguments, meta = raw.get("arguments"), raw.get("_meta")
    rows = filter(is_json_object, arguments if isinstance(arguments, list) else ())
    named: list[JsonValue] = [[row.get("name"), row.get("required") is True] for row in rows]
    fields = [raw.get(key) for key in ("uri", "uriTemplate", "mimeType", "sha256", "resources")]
    return [*fields, named, meta.get("ui") if is_json_object(meta) else None]


def closest_drift(ref: RemoteToolRef, approved: Iterable[JsonObject], raw: JsonObject) -> Drift:
    """Compare a definition with every approved one and return the mildest difference."""
    worst_first = [*DriftGrade]
    drifts = [Drift(ref, grade_drift(before, raw, ref.kind), before, raw) for before in approved]
    if not drifts:
        return Drift(ref, DriftGrade.ROUTING, None, raw)
    # Prefer the last one among equals: users remember their latest approval.
    return max(reversed(drifts), key=lambda drift: worst_first.index(drift.grade))


def build_approval(server: str, drifts: Iterable[Drift]) -> Consent:
    """Build the prompt to approve a server's current definitions, showing every change in full."""
    shown = sorted(drifts, key=lambda drift: (drift.ref.kind, drift.ref.name))
    lines = [line for drift in shown for line in (drift.summary, *drift.diff().splitlines())]
    facts: list[JsonValue] = [[drift.ref.kind, drift.ref.name, drift.digest] for drift in shown]
    return build_consent(f"{format_count(len(shown), 'definition')} of server {server!r}", facts, lines)


def is_same_definition(one: JsonObject, other: JsonObject) -> bool:
    """Tell whether two definitions are equal, ignoring order."""
    return same_json(canonical_definition(one), canonical_definition(other))


def differ_in_order_alone(one: JsonObject, other: JsonObject) -> bool:
    """Tell whether two definitions have the same words and members in any order."""
    return same_json(canonical_definition(one, Form.READING), canonical_definition(other, Form.READING))


def compare_definitions(
    before: Mapping[RemoteToolRef, JsonObject], after: Mapping[RemoteToolRef, JsonObject]
) -> Sequence[Drift]:
    """List every differing tool, removed ones last."""
    drifts: list[Drift] = []
    for ref, raw in after.items():
        known = before.get(ref)
        if known is None or not is_same_definition(known, raw):
            drifts.append(Drift(ref, grade_drift(known, raw, ref.kind), known, raw))
    removed = (ref for ref in before if ref not in after)
    drifts.extend(Drift(ref, DriftGrade.BREAKING, before[ref], None) for ref in removed)
    return tuple(drifts)


def same_json(one: JsonValue, other: JsonValue) -> bool:
    """Compare two values as JSON, ignoring key order. `1` differs from `true`."""
    return compact_json(one, sort_keys=True) == compact_json(other, sort_keys=True)


def pretty(value: JsonObject | None) -> list[str]:
    """Format a definition over several lines with sorted keys, for line diffs.

    All characters are visible, and no server text starts a line.
    """
    import json  # noqa: PLC0415 — used only to show or write definitions

    if value is None:
        return []
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    return [f"{escape_unseen(line)}\n" for line in text.split("\n")]


def _accepts_the_same(before: JsonValue, after: JsonValue) -> bool:
    """Tell whether two schemas accept the same calls, except for new optional properties.

    Any other difference counts as breaking, since its effect on callers is unknown.
    """
    old, new = (canonical_schema(schema, Form.VALIDATION) for schema in (before, after))
    if same_json(old, new):
        return True
    if not is_json_object(old) or not is_json_object(new):
        return False
    old_properties, new_properties = old.pop("properties", {}), new.pop("properties", {})
    if not is_json_object(old_properties) or not is_json_object(new_properties):
        return False
    if not old_properties.keys() <= new_properties.keys():
        return False
    kept = {name: new_properties[name] for name in old_properties}
    return same_json(old, new) and same_json(old_properties, kept)
