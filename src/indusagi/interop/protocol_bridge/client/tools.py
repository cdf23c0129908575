"""Tools of a server as models see them: names, cleaned definitions, argument spelling, output checks.

A tool's identity is the server's id plus the server's name for the tool. It's passed along, never parsed from the
model's name. That name is `<server>__<tool>` if it's free and every provider accepts it; otherwise it's cleaned,
shortened and made unique with a digest of the identity, so that it's the same in every run.

Two identities can result in the same name: tool `b__c` of server `a`, and tool `c` of server `a__b`. The server that is
configured first gets the name, and tools of the others get a digest. This depends only on the ids and order of the
servers, not on which of them are running or what they list.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence, Sized
from dataclasses import field
from typing import cast

from indusagi.capabilities.arguments import load_validator
from indusagi.core.faults import CoreError, Note
from indusagi.core.json import JsonObject, JsonValue, NotJson, compact_json, content_hash, is_json_object
from indusagi.core.records import record
from indusagi.core.text import clean_json, clean_names, clean_text, cut_text, escape_invisible, format_count
from indusagi.interop.protocol_bridge.contract import (
    QUALIFIER,
    ItemKind,
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
    """Return a model name that every provider accepts and that isn't in `taken`.

    `servers` are the ids of all configured servers in order, running or not.
    """
    qualified = qualify_tool_name(ref)
    earlier = servers[: servers.index(ref.server)] if ref.server in servers else servers
    is_free = qualified not in taken and not any(qualified.startswith(server + QUALIFIER) for server in earlier)
    if is_free and is_accepted_name(qualified):
        return qualified
    digest = content_hash([ref.server, ref.name])
    length = _DIGEST_LENGTH
    while True:
        stem = _REFUSED.sub("_", qualified)[: NAME_LENGTH - length - 1]
        name = f"{stem}_{digest[:length]}"
        if name not in taken:
            return name
        length += 1


def may_own_tool(server: str, name: str) -> bool:
    """Return whether `model_name` may have created this name for a tool of this server."""
    prefix = f"{server}{QUALIFIER}"
    return name.startswith((prefix, _REFUSED.sub("_", prefix)[: NAME_LENGTH // 2]))


def is_accepted_name(name: str) -> bool:
    """Return whether every provider accepts a name unchanged."""
    return _ACCEPTED.fullmatch(name) is not None


def spells_longer_server(ref: RemoteToolRef, servers: Iterable[str]) -> bool:
    """Return whether the joined name also reads as a tool of a server with a longer id."""
    qualified = qualify_tool_name(ref)
    return any(len(server) > len(ref.server) and qualified.startswith(server + QUALIFIER) for server in servers)


_BRANCHES = ("anyOf", "oneOf", "allOf")
_SHOWN_CHARACTERS = 120


class AmbiguousDefinitionError(CoreError):
    """Two names or values of a definition are equal except for invisible characters."""


def describe_removed(number: int) -> str:
    """Describe the removal of invisible characters from a definition."""
    count = format_count(number, "invisible character")
    return f"{count} {'was' if number == 1 else 'were'} removed from its definition"


def clean_definition(row: JsonObject) -> tuple[JsonObject, int]:
    r"""Remove invisible characters from a definition, and count them.

    Regular expressions keep their meaning: there, each character becomes an escape (`\u200b`), because JSON Schema uses
    ECMA-262 patterns: https://json-schema.org/understanding-json-schema/reference/regular_expressions. Raises
    `AmbiguousDefinitionError` if names or enum values would become equal.
    """
    count = clean_json(row)[1]
    if not count:
        return row, 0
    for level in _iterate_objects(row):
        _refuse_equal(level)
        enum = level.get("enum")
        if isinstance(enum, list):
            _refuse_equal([value for value in enum if isinstance(value, str)])
    escaped = cast("JsonObject", clean_json(row, lambda text: (text, 1))[0])  # a copy
    for level in _iterate_objects(escaped):
        pattern, patterns = level.get("pattern"), level.get("patternProperties")
        if isinstance(pattern, str):
            level["pattern"] = _escape_unseen(pattern)
        if isinstance(patterns, dict):
            level["patternProperties"] = {_escape_unseen(key): value for key, value in patterns.items()}
    return cast("JsonObject", clean_json(escaped)[0]), count


def _refuse_equal(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        shown = clean_text(name)[0]
        other = seen.setdefault(shown, name)
        if other != name or (name and not shown):
            text = cut_text(escape_invisible(name)[0], _SHOWN_CHARACTERS)
            raise AmbiguousDefinitionError(
                f"{text!r} cannot be told from another name or value, or from nothing, without its invisible characters"
            )


def _iterate_objects(value: JsonValue) -> Iterator[JsonObject]:
    pending = [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, dict):
            yield inner
            pending.extend(inner.values())
        elif isinstance(inner, list):
            pending.extend(inner)


def _escape_unseen(pattern: str) -> str:
    def write(letter: str) -> str:
        if not clean_text(f"a{letter}a")[1]:
            return letter
        code = ord(letter)
        return f"\\u{code:04x}" if code < 0x10000 else f"\\u{{{code:x}}}"

    return "".join(map(write, pattern))


class ArgumentSpelling:
    """The server's spelling of names and enum values, with their invisible characters."""

    def __init__(self, schema: JsonValue) -> None:
        is_dirty = clean_json(schema)[1] > 0
        # The view inlines references and has bounded depth.
        self._view = model_view(schema).schema if is_dirty else None

    def restore(self, arguments: JsonObject) -> JsonObject:
        """Restore the server's spelling in arguments; unknown names stay unchanged."""
        if self._view is None:
            return arguments
        return cast("JsonObject", _restore([self._view], arguments))


def _restore(schemas: Sequence[JsonObject], value: JsonValue) -> JsonValue:
    if not schemas:  # the server doesn't describe it
        return value
    levels = [*schemas]
    for level in levels:  # grows during the iteration
        alternatives = [level.get(keyword) for keyword in _BRANCHES]
        branches = [branch for inner in alternatives if isinstance(inner, list) for branch in inner]
        levels.extend(branch for branch in branches if isinstance(branch, dict))
    if isinstance(value, str):
        values: list[JsonValue] = []
        for level in levels:
            enum = level.get("enum")
            values += [*(enum if isinstance(enum, list) else ()), level.get("const")]
        texts = [text for text in values if isinstance(text, str)]
        return value if value in texts else next((text for text in texts if clean_text(text)[0] == value), value)
    if isinstance(value, list):
        return [_restore(_find_inner_schemas(levels, index), inner) for index, inner in enumerate(value)]
    if isinstance(value, dict):
        objects = [names for level in levels if isinstance(names := level.get("properties"), dict)]
        spelled = {shown: name for names in objects for name, shown in clean_names(names).items()}
        own = {name: spelled.get(name, name) for name in value}
        return {own[name]: _restore(_find_inner_schemas(levels, own[name]), inner) for name, inner in value.items()}
    return value


def _find_inner_schemas(levels: Sequence[JsonObject], key: str | int) -> list[JsonObject]:
    """Return the schemas of a property or array element."""
    schemas: list[JsonValue] = []
    for level in levels:
        properties, prefix = level.get("properties"), level.get("prefixItems")
        if isinstance(key, str):
            named = properties if isinstance(properties, dict) else {}
            schemas.append(named.get(key, level.get("additionalProperties")))
        else:
            first = prefix if isinstance(prefix, list) else []
            schemas.append(first[key] if key < len(first) else level.get("items"))
    return [schema for schema in schemas if isinstance(schema, dict)]


_TITLE_CHARS = 128
_SHOWN_NAME = 80


@record
class DefinitionNote(Note):
    """A change of a tool's definition, the same for every listing of that definition."""

    tool: RemoteToolRef = field(kw_only=True)


class ViewNote(DefinitionNote):
    """A part of a definition that the model view lacks, but that clients may get in full."""


def read_tools(rows: Sequence[JsonValue], config: ServerConfig) -> tuple[tuple[RemoteTool, ...], tuple[Note, ...]]:
    """Turn the rows of a `tools/list` result into tools, with notes about omissions and changes."""
    reader = _ToolReader(config)
    for row in iterate_rows("tool", "name", rows, config, reader.tools, reader.notes):
        reader.read(row)
    return tuple(reader.tools.values()), tuple(reader.notes)


@record
class ListedRow:
    """One usable row of a list."""

    name: str
    """The server's name or URI for the item."""
    subject: str
    """The server and the item, for notes."""
    raw: JsonObject
    shown: JsonObject
    """The row without invisible characters."""
    removed: int
    """The number of these."""


def iterate_rows(
    kind: ItemKind, identity: str, rows: Sequence[JsonValue], config: ServerConfig, known: Sized, notes: list[Note]
) -> Iterator[ListedRow]:
    """Yield the usable rows of a list until `known` has too many; add notes about the others and about repetitions."""
    owner = f"server {config.id!r}"
    for number, row in enumerate(rows, start=1):
        if len(known) >= config.limits.tools:
            rest = len(rows) - number + 1
            notes.append(Note(f"{owner}, its {kind}s", f"more than {config.limits.tools:,}; {rest:,} were left out"))
            return
        name = row.get(identity) if is_json_object(row) else None
        if not is_json_object(row) or not isinstance(name, str) or not name:
            notes.append(Note(f"{owner}, row {number} of its {kind}s", f"it has no {identity}, and was left out"))
            continue
        included = config.include_tools
        if kind == "tool" and (name in config.exclude_tools or (included is not None and name not in included)):
            continue
        subject = f"{owner}, {kind} {cut_text(clean_text(name)[0], _SHOWN_NAME)!r}"
        try:
            shown, removed = clean_definition(row)
        except AmbiguousDefinitionError as exc:
            notes.append(Note(subject, f"it was left out: {exc}"))
            continue
        yield ListedRow(name, subject, row, shown, removed)


class _ToolReader:
    def __init__(self, config: ServerConfig) -> None:
        self.tools: dict[str, RemoteTool] = {}
        self.notes: list[Note] = []
        self._config = config

    def note_definition(self, row: ListedRow, message: str, kind: type[DefinitionNote] = DefinitionNote) -> None:
        self.notes.append(kind(row.subject, message, tool=RemoteToolRef(self._config.id, row.name)))

    def read(self, row: ListedRow) -> None:
        shown, schema = row.shown, row.shown.get("inputSchema")
        if schema is not None and not is_json_object(schema):
            self.notes.append(Note(row.subject, "its inputSchema is not an object, and it was left out"))
            return
        if row.removed:
            self.note_definition(row, describe_removed(row.removed))
        if row.name in self.tools:
            self.notes.append(Note(row.subject, "listed more than once; the last definition is used"))
        view = model_view({"type": "object"} if schema is None else schema)
        for place in view.widened:
            self.note_definition(row, f"its parameters are shown wider than they are: {place}", ViewNote)
        annotations, output = shown.get("annotations"), shown.get("outputSchema")
        ref, limit = RemoteToolRef(self._config.id, row.name), self._config.limits.description_chars
        descriptor = ToolDescriptor(
            model_name(ref),
            self._cut(row, "description", limit) or "",
            view.schema,
            title=self._cut(row, "title", _TITLE_CHARS),
            annotations=annotations if is_json_object(annotations) else None,
            output_schema=output if is_json_object(output) else None,
            definition=shown,
        )
        self.tools[row.name] = RemoteTool(ref, descriptor, raw=row.raw)

    def _cut(self, row: ListedRow, key: str, limit: int) -> str | None:
        """Return a text of the definition, shortened to `limit`; 0 for no limit."""
        text = row.shown.get(key)
        if not isinstance(text, str) or not limit:
            return text if isinstance(text, str) else None
        if len(text) > limit:
            message = f"indus shows models the first {limit:,} of the {len(text):,} characters of its {key}"
            self.note_definition(row, message, ViewNote)
        return cut_text(text, limit)


CHECKED_COST = 4_000_000
"""Maximum of schema bytes times result bytes; above it, a check takes too long."""
_SHOWN_PROBLEM = 200
_EXPENSIVE = frozenset({"pattern", "patternProperties", "uniqueItems"})
"""Regular expressions may backtrack endlessly, and comparing all pairs of items is quadratic."""


async def find_output_mismatch(schema: JsonSchema, value: JsonValue) -> str | None:
    """Return how a structured result violates its output schema; `None` if it fits or can't be checked.

    https://modelcontextprotocol.io/specification/2025-06-18/server/tools#output-schema
    """
    if value is None:
        return "it declares an output schema and gave no structured content"
    if not isinstance(value, dict):
        is_wrong = schema.get("type") == "object"
        return "its structured content is not an object, as it promised" if is_wrong else None
    # The view inlines references within bounds, and accepts every value that the schema accepts.
    view = model_view(schema).schema
    try:
        cost = len(compact_json(view)) * len(compact_json(value))
    except NotJson:  # such as a number beyond the range of a float
        return None
    # Property names count as keywords, too.
    if cost > CHECKED_COST or any(not _EXPENSIVE.isdisjoint(level) for level in _iterate_objects(view)):
        return None
    await load_validator()
    from jsonschema import Draft202012Validator  # noqa: PLC0415 — loaded by load_validator
    from referencing import Registry  # noqa: PLC0415 — loaded by load_validator

    try:
        checker = Draft202012Validator(view, registry=Registry())
        problem = next(iter(checker.iter_errors(value)), None)  # pyright: ignore[reportUnknownMemberType] — its stub is half typed
    except Exception as exc:  # noqa: BLE001 — boundary: a schema the validator can't use
        return f"its output schema cannot be used: {type(exc).__name__}"
    if problem is None:
        return None
    text = cut_text(clean_text(str(problem.message))[0], _SHOWN_PROBLEM)
    return f"its structured content does not fit its output schema: {text}"
