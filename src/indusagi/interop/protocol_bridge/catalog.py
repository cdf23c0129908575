"""The rows of a server's tool list → tools for a model.

Row by row: one that cannot be used is left out with a note, and never takes the others with it. The
raw definition is kept as it came; only what a model is shown is cleaned, cut and reshaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.notes import Note
from indusagi.core.text import clean_text, cut_text
from indusagi.interop.protocol_bridge.contract import RemoteTool, RemoteToolRef, ServerConfig
from indusagi.interop.protocol_bridge.definition import AmbiguousDefinition, clean_definition
from indusagi.interop.protocol_bridge.model_schema import model_view
from indusagi.interop.protocol_bridge.names import model_name
from indusagi.runtime.contract import ToolDescriptor

_TITLE_CHARS = 128
_SHOWN_NAME = 80


@dataclass(frozen=True, slots=True)
class DefinitionNote(Note):
    """What was done to the definition of a tool; the same at every listing of that definition."""

    tool: RemoteToolRef = field(kw_only=True)


class ViewNote(DefinitionNote):
    """Where what a model is shown says less than the definition, which clients may get whole."""


def read_tools(
    rows: Sequence[JsonValue], config: ServerConfig
) -> tuple[tuple[RemoteTool, ...], tuple[Note, ...]]:
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
        self,
        name: str,
        subject: str,
        message: str,
        kind: type[DefinitionNote] = DefinitionNote,
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
        except AmbiguousDefinition as exc:
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

    def _describe(
        self, name: str, subject: str, shown: JsonObject, schema: JsonObject | None
    ) -> ToolDescriptor:
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
