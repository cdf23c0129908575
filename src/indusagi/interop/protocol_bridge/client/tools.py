"""The name a model calls a remote tool by.

Identity is the server's id and the tool's own name, and it is carried, never read back from here.
The model's name is `<server>__<tool>` when every provider accepts that and it is free; otherwise it
is cleaned, cut, and told apart by a digest of the identity, so that it is the same in every run.

Two identities can join to one name: tool `b__c` of server `a`, and tool `c` of server `a__b`. The
name belongs to the server that is configured first among those it can be read as a tool of; tools
of the others that join to it are named with a digest. This depends on the ids of the servers and
their order alone, not on which of them run or what they list.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from indusagi.capabilities.arguments import load_validator
from indusagi.core.faults import CoreError
from indusagi.core.invisible import clean_json, clean_names
from indusagi.core.json import JsonObject, JsonValue, NotJson, compact_json, content_hash, is_json_object
from indusagi.core.notes import Note
from indusagi.core.text import clean_text, cut_text, escape_invisible
from indusagi.interop.protocol_bridge.contract import (
    QUALIFIER,
    RemoteTool,
    RemoteToolRef,
    ServerConfig,
    qualify_tool_name,
)
from indusagi.interop.protocol_bridge.schema.model_view import model_view
from indusagi.runtime.contract import JsonSchema, ToolDescriptor

NAME_LENGTH = 64
_ACCEPTED = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_LENGTH}}}")
_REFUSED = re.compile(r"[^A-Za-z0-9_-]+")
_DIGEST_LENGTH = 8


def model_name(ref: RemoteToolRef, taken: Container[str] = (), servers: Sequence[str] = ()) -> str:
    """Name a tool for a model: accepted by every provider, and none of those taken.

    `servers` are the ids of all servers that are configured, in their order, running or not.
    """
    qualified = qualify_tool_name(ref)
    free = qualified not in taken and not _belongs_to_earlier(ref, servers)
    if free and is_accepted_name(qualified):
        return qualified
    digest = content_hash([ref.server, ref.name])
    length = _DIGEST_LENGTH
    while True:
        stem = _REFUSED.sub("_", qualified)[: NAME_LENGTH - length - 1]
        name = f"{stem}_{digest[:length]}"
        if name not in taken:
            return name
        length += 1


def is_accepted_name(name: str) -> bool:
    """Tell whether every provider accepts a name as it is."""
    return _ACCEPTED.fullmatch(name) is not None


def _belongs_to_earlier(ref: RemoteToolRef, servers: Sequence[str]) -> bool:
    """Tell whether the joined name of a tool is also one of a server before its own."""
    qualified = qualify_tool_name(ref)
    before = servers[: servers.index(ref.server)] if ref.server in servers else servers
    return any(qualified.startswith(server + QUALIFIER) for server in before)


def spells_longer_server(ref: RemoteToolRef, servers: Iterable[str]) -> bool:
    """Tell whether the joined name of a tool is also one of a server with a longer id."""
    qualified = qualify_tool_name(ref)
    return any(len(server) > len(ref.server) and qualified.startswith(server + QUALIFIER) for server in servers)


_BRANCHES = ("anyOf", "oneOf", "allOf")
_SHOWN_CHARACTERS = 120


class AmbiguousDefinitionError(CoreError):
    """Two names or values of a definition are equal once their invisible characters are removed."""


def clean_definition(row: JsonObject) -> tuple[JsonObject, int]:
    r"""Remove the invisible characters of a definition, and count them.

    Regular expressions keep their meaning: there each such character becomes its escape (`\u200b`,
    ECMA-262 22.2.1), since JSON Schema takes ECMA-262 patterns.

    Raises:
        AmbiguousDefinitionError: Names or enum values would become equal.
    """
    found = clean_json(row)[1]
    if not found:
        return row, 0
    for level in _objects_of(row):
        _refuse_equal(level)
        enum = level.get("enum")
        if isinstance(enum, list):
            _refuse_equal([value for value in enum if isinstance(value, str)])
    escaped = _escape_patterns(row)
    return cast("JsonObject", clean_json(escaped)[0]), found


def _refuse_equal(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        shown = clean_text(name)[0]
        other = seen.setdefault(shown, name)
        if other != name or (name and not shown):
            said = cut_text(escape_invisible(name)[0], _SHOWN_CHARACTERS)
            raise AmbiguousDefinitionError(
                f"{said!r} cannot be told from another name or value, or from nothing, without its invisible characters"
            )


def _objects_of(value: JsonValue) -> Iterator[JsonObject]:
    pending = [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, dict):
            yield inner
            pending.extend(inner.values())
        elif isinstance(inner, list):
            pending.extend(inner)


def _escape_patterns(row: JsonObject) -> JsonObject:
    """Copy a definition with the regular expressions in it written in visible characters."""
    copy = cast("JsonObject", clean_json(row, lambda text: (text, 1))[0])
    for level in _objects_of(copy):
        pattern, patterns = level.get("pattern"), level.get("patternProperties")
        if isinstance(pattern, str):
            level["pattern"] = _escape_unseen(pattern)
        if isinstance(patterns, dict):
            level["patternProperties"] = {_escape_unseen(key): value for key, value in patterns.items()}
    return copy


def _escape_unseen(pattern: str) -> str:
    def write(letter: str) -> str:
        if not clean_text(f"a{letter}a")[1]:
            return letter
        code = ord(letter)
        return f"\\u{code:04x}" if code < 0x10000 else f"\\u{{{code:x}}}"

    return "".join(map(write, pattern))


class ArgumentSpelling:
    """How a server spells what a call names: its properties and the values of its enums."""

    def __init__(self, schema: JsonValue) -> None:
        is_dirty = clean_json(schema)[1] > 0
        # References are inlined in the view, and its depth is bounded.
        self._view = model_view(schema).schema if is_dirty else None

    def restore(self, arguments: JsonObject) -> JsonObject:
        """Spell arguments as the server does; what it does not name stays as it is."""
        if self._view is None:
            return arguments
        return cast("JsonObject", _restore([self._view], arguments))


def _restore(schemas: Sequence[JsonObject], value: JsonValue) -> JsonValue:
    if not schemas:  # beyond what the server describes
        return value
    levels = _with_branches(schemas)
    if isinstance(value, str):
        return _restore_text(levels, value)
    if isinstance(value, list):
        return [_restore(_levels_at(levels, at), inner) for at, inner in enumerate(value)]
    if isinstance(value, dict):
        return _restore_object(levels, value)
    return value


def _restore_object(levels: Sequence[JsonObject], value: JsonObject) -> JsonObject:
    spelled: dict[str, str] = {}
    for level in levels:
        properties = level.get("properties")
        if isinstance(properties, dict):
            spelled |= {shown: name for name, shown in clean_names(properties).items()}
    restored: JsonObject = {}
    for name, inner in value.items():
        own = spelled.get(name, name)
        restored[own] = _restore(_levels_of(levels, own), inner)
    return restored


def _restore_text(levels: Sequence[JsonObject], value: str) -> str:
    named: list[str] = []
    for level in levels:
        enum = level.get("enum")
        values = [*enum] if isinstance(enum, list) else []
        named += [one for one in (*values, level.get("const")) if isinstance(one, str)]
    if value in named:
        return value
    return next((one for one in named if clean_text(one)[0] == value), value)


def _with_branches(schemas: Sequence[JsonObject]) -> list[JsonObject]:
    levels = [*schemas]
    for level in levels:  # grows while it is walked
        for keyword in _BRANCHES:
            branches = level.get(keyword)
            if isinstance(branches, list):
                levels.extend(branch for branch in branches if isinstance(branch, dict))
    return levels


def _levels_of(levels: Sequence[JsonObject], name: str) -> list[JsonObject]:
    """Give the schemas that hold for a property."""
    found: list[JsonValue] = []
    for level in levels:
        properties = level.get("properties")
        if isinstance(properties, dict) and name in properties:
            found.append(properties[name])
        else:
            found.append(level.get("additionalProperties"))
    return [one for one in found if isinstance(one, dict)]


def _levels_at(levels: Sequence[JsonObject], at: int) -> list[JsonObject]:
    """Give the schemas that hold for an element of a list."""
    found: list[JsonValue] = []
    for level in levels:
        first = level.get("prefixItems")
        inside = isinstance(first, list) and at < len(first)
        found.append(cast("list[JsonValue]", first)[at] if inside else level.get("items"))
    return [one for one in found if isinstance(one, dict)]


_TITLE_CHARS = 128
_SHOWN_NAME = 80


@dataclass(frozen=True, slots=True)
class DefinitionNote(Note):
    """What was done to the definition of a tool; the same at every listing of that definition."""

    tool: RemoteToolRef = field(kw_only=True)


class ViewNote(DefinitionNote):
    """Where what a model is shown says less than the definition, which clients may get whole."""


def read_tools(rows: Sequence[JsonValue], config: ServerConfig) -> tuple[tuple[RemoteTool, ...], tuple[Note, ...]]:
    """Turn the rows of a listing into tools, and say what was left out or changed."""
    reader = _Reader(config)
    for number, row in enumerate(rows, start=1):
        if len(reader.tools) >= config.limits.tools:
            left = len(rows) - number + 1
            reader.note("its tools", f"more than {config.limits.tools:,}; {left:,} were left out")
            break
        reader.read(row, number)
    return tuple(reader.tools.values()), tuple(reader.notes)


class _Reader:
    def __init__(self, config: ServerConfig) -> None:
        self.tools: dict[str, RemoteTool] = {}
        self.notes: list[Note] = []
        self._config = config

    def note(self, subject: str, message: str) -> None:
        self.notes.append(Note(f"server {self._config.id!r}, {subject}", message))

    def note_definition(
        self, name: str, subject: str, message: str, kind: type[DefinitionNote] = DefinitionNote
    ) -> None:
        owner, ref = f"server {self._config.id!r}, {subject}", RemoteToolRef(self._config.id, name)
        self.notes.append(kind(owner, message, tool=ref))

    def read(self, row: JsonValue, number: int) -> None:
        name = row.get("name") if is_json_object(row) else None
        if not is_json_object(row) or not isinstance(name, str) or not name:
            self.note(f"row {number} of its tools", "it has no name, and was left out")
            return
        subject = f"tool {cut_text(clean_text(name)[0], _SHOWN_NAME)!r}"
        if not self._wanted(name):
            return
        try:
            shown, removed = clean_definition(row)
        except AmbiguousDefinitionError as exc:
            self.note(subject, f"it was left out: {exc}")
            return
        schema = shown.get("inputSchema")
        if schema is not None and not is_json_object(schema):
            self.note(subject, "its inputSchema is no object, and it was left out")
            return
        if removed:
            said = f"{removed:,} invisible characters were removed from its definition"
            self.note_definition(name, subject, said)
        if name in self.tools:
            self.note(subject, "listed more than once; the last definition is used")
        descriptor = self._describe(name, subject, shown, schema)
        self.tools[name] = RemoteTool(RemoteToolRef(self._config.id, name), descriptor, raw=row)

    def _wanted(self, name: str) -> bool:
        included = self._config.include_tools
        return name not in self._config.exclude_tools and (included is None or name in included)

    def _describe(self, name: str, subject: str, shown: JsonObject, schema: JsonObject | None) -> ToolDescriptor:
        view = model_view({"type": "object"} if schema is None else schema)
        for place in view.widened:
            said = f"its parameters are shown wider than they are: {place}"
            self.note_definition(name, subject, said, ViewNote)
        annotations, output = shown.get("annotations"), shown.get("outputSchema")
        limit = self._config.limits.description_chars
        return ToolDescriptor(
            model_name(RemoteToolRef(self._config.id, name)),
            self._cut(name, subject, "description", shown, limit) or "",
            view.schema,
            title=self._cut(name, subject, "title", shown, _TITLE_CHARS),
            annotations=annotations if is_json_object(annotations) else None,
            output_schema=output if is_json_object(output) else None,
            definition=shown,
        )

    def _cut(self, name: str, subject: str, key: str, shown: JsonObject, limit: int) -> str | None:
        """Give a text of a definition, cut to a limit; 0 is none."""
        text = shown.get(key)
        if not isinstance(text, str) or not limit:
            return text if isinstance(text, str) else None
        if len(text) > limit:
            said = f"its {key} was cut to {limit:,} characters"
            self.note_definition(name, subject, said, ViewNote)
        return cut_text(text, limit)


CHECKED_COST = 4_000_000
"""Bytes of the schema times bytes of the answer: beyond, it takes longer than it is worth."""
_SHOWN_CHARACTERS_output_check = 200
_DEAR = frozenset({"pattern", "patternProperties", "uniqueItems"})
"""Regular expressions may take for ever, and comparing each item with each other almost so."""


async def find_output_mismatch(schema: JsonSchema, value: JsonValue) -> str | None:
    """Say how a value does not fit its schema; None when it does, or cannot be checked."""
    if value is None:
        return "it declares an output schema and gave no structured content"
    if not isinstance(value, dict):
        is_wrong = schema.get("type") == "object"
        return "its structured content is no object, as it promised" if is_wrong else None
    # References are inlined in the view, within bounds, and it blames nobody who fits the schema.
    view = model_view(schema).schema
    if _is_dear(view) or not _is_cheap(view, value):
        return None
    await load_validator()
    return _first_problem(view, value)


def _is_cheap(view: JsonObject, value: JsonValue) -> bool:
    try:
        return len(compact_json(view)) * len(compact_json(value)) <= CHECKED_COST
    except NotJson:  # a number beyond what a float holds, say
        return False


def _first_problem(schema: JsonObject, value: JsonValue) -> str | None:
    from jsonschema import Draft202012Validator  # noqa: PLC0415 — loaded by load_validator
    from referencing import Registry  # noqa: PLC0415 — loaded by load_validator

    try:
        checker = Draft202012Validator(schema, registry=Registry())
        problem = next(iter(checker.iter_errors(value)), None)  # pyright: ignore[reportUnknownMemberType] — its stub is half typed
    except Exception as exc:  # noqa: BLE001 — boundary: a schema that the validator chokes on
        return f"its output schema cannot be used: {type(exc).__name__}"
    if problem is None:
        return None
    said = cut_text(clean_text(str(problem.message))[0], _SHOWN_CHARACTERS_output_check)
    return f"its structured content does not fit its output schema: {said}"


def _is_dear(view: JsonObject) -> bool:
    """Tell whether a schema may hold such keywords anywhere; a property's name counts too."""
    pending: list[JsonValue] = [view]
    while pending:
        level = pending.pop()
        if isinstance(level, dict):
            if not _DEAR.isdisjoint(level):
                return True
            pending.extend(level.values())
        elif isinstance(level, list):
            pending.extend(level)
    return False
