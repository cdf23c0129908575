"""Drift: how a definition differs from the approved one, and how much that matters.

The lock file, the pins, `indus mcp diff` and the decision to disable a tool all use the same grade. Many servers build
parts of a definition from unordered sets, so the order changes with every start. Three canonical forms, from strict to
loose, tell such differences apart:

- `Form.DEFINITION`: the complete definition, ignoring the order of set members (`required`, `enum`, …), list items in
  a text and object keys, and whitespace. Equal forms: no change.
- `Form.READING`: the same, with texts as bags of words. Equal forms: the same words.
- `Form.VALIDATION`: only validation keywords. Equal forms: the same arguments are valid.

Forms are compared and digested, never sent. Unlike RFC 8785 (canonical JSON), they ignore array order. Keywords:
https://json-schema.org/draft/2020-12/json-schema-core and
https://json-schema.org/draft/2020-12/json-schema-validation.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.text import escape_unseen, format_count
from induscode.core.consent import Consent, build_consent
from induscode.deck.mcp.capability import definition_pin, name_item

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from indusagi.interop.protocol_bridge.contract import ItemKind, RemoteToolRef
    from induscode.deck.mcp.review import Finding


_SCHEMA_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_SCHEMAS = frozenset(
    {
        "items", "prefixItems", "additionalItems", "contains", "unevaluatedItems",
        "additionalProperties", "propertyNames", "unevaluatedProperties", "contentSchema",
        "not", "if", "then", "else",
    }
)  # fmt: skip
_SCHEMA_SETS = frozenset({"anyOf", "oneOf", "allOf"})
_VALUE_SETS = frozenset({"required", "enum", "type", "examples"})
_DEPENDENCIES = frozenset({"dependentRequired", "dependencies"})
_TEXTS = frozenset({"description", "title", "$comment"})
_ANNOTATIONS = frozenset({"default", "examples", "deprecated", "readOnly", "writeOnly"})
"""Annotations validate nothing: https://json-schema.org/draft/2020-12/json-schema-validation#section-9."""

STEERING = frozenset(
    {
        "not", "never", "no", "nor", "none", "cannot", "can't", "don't", "doesn't", "won't",
        "isn't", "mustn't", "without", "except", "unless", "only", "always", "instead",
    }
)  # fmt: skip
"""Words that change the meaning of the next word, so their position matters."""
_SEQUENCE = frozenset({"if", "then", "else", "otherwise", "when", "before", "after", "first", "until", "because"})
"""Words of conditions and sequences: commas between such clauses don't separate set members."""
_NEVER_IN_ITEMS = STEERING | _SEQUENCE
_MAX_ITEM_WORDS = 4
"""Maximum words per list item. Longer ones are prose, whose commas don't separate items."""
_CLAUSE_ENDS = re.compile(r"([\n:;()\[\]{}<>]|[.!?](?=\s|$))")
_ITEM_ENDS = re.compile(r"\s*[,|]\s*(?:(and|or)\s+)?|\s+(and|or)\s+")
_WORD_ENDS = re.compile(r"[\s,;|]+")
_EDGES = ".:!?()[]{}<>\"'`"
_MARKS = frozenset(f"{_EDGES},;|")
_MAX_DEPTH = 64
"""Deeper levels stay as they are. Python's recursion limit depends on the caller, and a digest must not."""
_EXACT_FLOATS = 2.0**53


class Form(StrEnum):
    """How much of a definition to keep in a canonical form."""

    DEFINITION = "definition"
    READING = "reading"
    VALIDATION = "validation"


def canonical_definition(raw: JsonObject, form: Form = Form.DEFINITION) -> JsonObject:
    """Return the canonical form of a tool definition."""
    found: JsonObject = {}
    for name, value in raw.items():
        if name in {"inputSchema", "outputSchema"}:
            found[name] = canonical_schema(value, form)
        elif name in _TEXTS and isinstance(value, str):
            found[name] = _text(value, form)
        elif name == "annotations" and is_json_object(value):
            found[name] = {
                key: (_text(one, form) if key == "title" and isinstance(one, str) else _value(one))
                for key, one in value.items()
            }
        else:
            found[name] = _value(value)
    return found


def canonical_schema(schema: JsonValue, form: Form = Form.DEFINITION) -> JsonValue:
    """Return the canonical form of a JSON Schema."""
    return _schema(schema, form, 0)


def canonical_digest(raw: JsonObject) -> str:
    """Digest a definition, ignoring order; raises `NotJson` if it holds a value JSON can't represent."""
    text = compact_json(canonical_definition(raw), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


# -- schemas ----------------------------------------------------------------------------------


def _schema(schema: JsonValue, form: Form, depth: int) -> JsonValue:
    if depth > _MAX_DEPTH:
        return schema
    if isinstance(schema, list):  # `prefixItems`, or `items` of an older draft: a tuple
        return [_schema(one, form, depth + 1) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found: JsonObject = {}
    for name, value in schema.items():
        if form is Form.VALIDATION and (name in _ANNOTATIONS or (name in _TEXTS and (not is_json_object(value)))):
            continue
        if form is Form.READING and name == "default" and value is None:
            continue  # same as no default
        found[name] = _keyword(name, value, form, depth)
    return found


def _keyword(name: str, value: JsonValue, form: Form, depth: int) -> JsonValue:
    if name in _TEXTS and isinstance(value, str):
        return _text(value, form)
    if name in _SCHEMA_MAPS and isinstance(value, dict):
        return {key: _schema(one, form, depth + 1) for key, one in value.items()}
    if name in _SCHEMAS:
        return _schema(value, form, depth + 1)
    if name in _SCHEMA_SETS and isinstance(value, list):
        return _sort(_schema(one, form, depth + 1) for one in value)
    if name in _VALUE_SETS and isinstance(value, list):
        return _sort(value)
    if name in _DEPENDENCIES and isinstance(value, dict):
        return {
            key: _sort(one) if isinstance(one, list) else _schema(one, form, depth + 1) for key, one in value.items()
        }
    if name == "default" and isinstance(value, str):
        # Sort a comma-separated list of names; leave other values alone.
        items = [item.strip() for item in value.split(",")]
        is_list = len(items) > 1 and all(len(item.split()) == 1 for item in items)
        return ",".join(sorted(items)) if is_list else value
    return value if name == "const" else _value(value)


def _sort(members: Iterable[JsonValue]) -> JsonValue:
    return sorted(members, key=lambda one: compact_json(one, sort_keys=True))


def _value(value: JsonValue, depth: int = 0) -> JsonValue:
    """Return a value with lists of distinct scalars sorted, and `1.0` as `1`."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOATS:
        return int(value)
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, dict):
        return {name: _value(one, depth + 1) for name, one in value.items()}
    if not isinstance(value, list):
        return value
    found = [_value(one, depth + 1) for one in value]
    if any(isinstance(one, list | dict) for one in found):
        return found
    return _sort(found) if len({compact_json(one) for one in found}) == len(found) else found


# -- texts ------------------------------------------------------------------------------------


def _text(text: str, form: Form) -> str:
    """Sort the items of every list that is a complete clause, and collapse whitespace.

    For `READING`, sort all words and punctuation, and list steering words with their next word.
    """
    if form is not Form.READING:
        parts = _CLAUSE_ENDS.split(text)
        parts[::2] = [_sort_clause(part) for part in parts[::2]]
        return " ".join(" ".join(parts).split())
    stripped = (word.strip(_EDGES) for word in _WORD_ENDS.split(text))
    words = [word for word in stripped if word]
    steered = [
        f"{word} {after}"
        for word, after in zip(words, [*words[1:], ""], strict=False)
        if word.lower().replace("\u2019", "'") in STEERING
    ]
    marks = "".join(sorted(mark for mark in text if mark in _MARKS))
    return "\n".join([*sorted(words), marks, *sorted(steered)])


def _sort_clause(clause: str) -> str:
    pieces = _ITEM_ENDS.split(clause.strip())
    items = [" ".join(item.split()) for item in pieces[::3]]
    for item in items:
        words = [word.strip(_EDGES).lower() for word in item.split()]
        if not 0 < len(words) <= _MAX_ITEM_WORDS or not _NEVER_IN_ITEMS.isdisjoint(words):
            return clause
    joints = sorted(joint for joint in (*pieces[1::3], *pieces[2::3]) if joint)
    return " ".join([", ".join(sorted(items)), *joints]) if len(items) > 1 else clause


# -- drift ------------------------------------------------------------------------------------


_MAX_FIELD_CHARS = 40

DisabledCause: TypeAlias = Literal["changed", "added", "review", "unread"]
"""The definition differs from the approved one, the server added it later, the review of a new one found something
serious, or the ledger is unreadable."""


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
    cause: DisabledCause = "changed"
    findings: Sequence[Finding] = ()
    """What the review found in the current definition."""

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
    def label(self) -> str:
        """The kind of change in a few words."""
        return {"added": "added", "review": "new"}.get(self.cause, f"{self.grade} change")

    @property
    def checks(self) -> Sequence[str]:
        """The ids of the checks with a serious finding."""
        return tuple(dict.fromkeys(one.check for one in self.findings if one.severity == "serious"))

    @property
    def summary(self) -> str:
        """Tool, grade and differing parts, in one line."""
        what = f"{self.grade} ({_list_fields(self.fields)})" if self.cause == "changed" else self.label
        return f"{name_item(self.ref)}: {what}"

    @property
    def headlines(self) -> Sequence[str]:
        """The summary and the findings."""
        return (self.summary, *(f"  {one.brief}" for one in self.findings))

    @property
    def lines(self) -> Sequence[str]:
        """The whole change: the summary, the findings, and the diff."""
        return (*self.headlines, *self.diff().splitlines())

    @property
    def facts(self) -> JsonValue:
        """Everything an approval of it covers: exactly this definition, with these findings."""
        facts: list[JsonValue] = [self.ref.kind, self.ref.name, self.digest]
        return [*facts, [str(one) for one in self.findings]] if self.findings else facts

    def disable(self, name: str, *, unsettled: bool = False) -> DisabledTool:
        """Build the item that this change disables, under the name a model would call it by."""
        return DisabledTool(self.ref, name, self.grade, self.fields, unsettled, self.cause, self.checks)

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
    checks: Sequence[str] = ()
    """The ids of the checks with a serious finding. A model reads them, so there's no quote."""

    @property
    def reason(self) -> str:
        """Why it's disabled."""
        if self.ref.kind == "behaviour":
            fields = _list_fields(self.fields)
            return f"blocked: it asked for something it didn't use when its behaviour was learned ({fields})"
        if self.cause == "unread":
            return "disabled: the ledger can't be read, so nobody knows whether its definition is the approved one"
        found = f"the review found something serious in it ({', '.join(self.checks)})" if self.checks else ""
        if self.cause == "review":
            return f"disabled: it's new, and {found or 'the review found something serious in it before'}"
        if self.cause == "added":
            added = "disabled: its server has added it since you approved the others"
            return f"{added}, and {found}" if found else added
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
        item = "" if self.ref.kind == "behaviour" else f", {self.ref.kind} {self.ref.name!r}"
        return Note(f"server {self.ref.server!r}{item}", self.reason, self.remedy)

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
            "checks": [*self.checks],
            "reason": self.reason,
            "approve": self.approve_command,
        }


def describe_causes(tools: Iterable[DisabledTool]) -> str:
    """Summarize why tools are disabled."""
    causes = {tool.cause for tool in tools}
    if "unread" in causes:
        return "the ledger can't be read"
    since = " or ".join(cause for cause in ("changed", "added") if cause in causes)
    parts = [f"{since} since approved" if since else "", "held by the review" if "review" in causes else ""]
    return " or ".join(filter(None, parts))


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
    lines = [line for drift in shown for line in drift.lines]
    facts: list[JsonValue] = [drift.facts for drift in shown]
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
