"""The rows of a server's tool list → tools for a model.

Row by row: one that cannot be used is left out with a note, and never takes the others with it. The
raw definition is kept as it came; only what a model is shown is cleaned, cut and reshaped.
"""

from __future__ import annotations

from collections.abc import Sequence

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.notes import Note
from indusagi.core.text import clean_text, cut_text
from indusagi.interop.protocol_bridge.contract import RemoteTool, RemoteToolRef, ServerConfig
from indusagi.interop.protocol_bridge.model_schema import model_view
from indusagi.interop.protocol_bridge.names import model_name
from indusagi.runtime.contract import ToolDescriptor

_TITLE_CHARS = 128
_SHOWN_NAME = 80
_TEXTS = frozenset({"title", "description"})


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


def _clean_values(annotations: JsonObject) -> JsonObject:
    return {
        key: clean_text(value)[0] if isinstance(value, str) else value
        for key, value in annotations.items()
    }


class _Reader:
    def __init__(self, config: ServerConfig) -> None:
        self.tools: dict[str, RemoteTool] = {}
        self.notes: list[Note] = []
        self._config = config

    def note(self, subject: str, message: str) -> None:
        self.notes.append(Note(f"server {self._config.id!r}, {subject}", message))

    def read(self, row: JsonValue, number: int) -> None:
        name = row.get("name") if is_json_object(row) else None
        if not is_json_object(row) or not isinstance(name, str) or not name:
            self.note(f"row {number} of its tools", "it has no name, and was left out")
            return
        subject = f"tool {cut_text(clean_text(name)[0], _SHOWN_NAME)!r}"
        if not self._wanted(name):
            return
        schema = row.get("inputSchema")
        if schema is not None and not is_json_object(schema):
            self.note(subject, "its inputSchema is no object, and it was left out")
            return
        if name in self.tools:
            self.note(subject, "listed more than once; the last definition is used")
        self.tools[name] = self._tool(name, subject, row, schema)

    def _wanted(self, name: str) -> bool:
        included = self._config.include_tools
        return name not in self._config.exclude_tools and (included is None or name in included)

    def _tool(
        self, name: str, subject: str, row: JsonObject, schema: JsonObject | None
    ) -> RemoteTool:
        ref = RemoteToolRef(self._config.id, name)
        view = model_view({"type": "object"} if schema is None else schema)
        for place in view.widened:
            self.note(subject, f"its parameters are shown wider than they are: {place}")
        annotations, output = row.get("annotations"), row.get("outputSchema")
        descriptor = ToolDescriptor(
            model_name(ref),
            self._shown(subject, "description", row, self._config.limits.description_chars) or "",
            self._clean_schema(subject, view.schema),
            title=self._shown(subject, "title", row, _TITLE_CHARS),
            annotations=_clean_values(annotations) if is_json_object(annotations) else None,
            output_schema=output if is_json_object(output) else None,
        )
        return RemoteTool(ref, descriptor, raw=row)

    def _clean_schema(self, subject: str, schema: JsonObject) -> JsonObject:
        """Clean the texts inside a view, in place: it is a copy of our own."""
        removed = 0
        pending: list[JsonValue] = [schema]
        while pending:
            level = pending.pop()
            if isinstance(level, list):
                pending.extend(level)
            elif isinstance(level, dict):
                pending.extend(level.values())
                for key in _TEXTS.intersection(level):
                    text = level[key]
                    if isinstance(text, str):
                        level[key], count = clean_text(text)
                        removed += count
        if removed:
            said = f"{removed:,} invisible characters were taken out of its parameters"
            self.note(subject, said)
        return schema

    def _shown(self, subject: str, key: str, row: JsonObject, limit: int) -> str | None:
        text = row.get(key)
        if not isinstance(text, str):
            return None
        cleaned, removed = clean_text(text)
        if removed:
            self.note(subject, f"{removed:,} invisible characters were taken out of its {key}")
        if len(cleaned) > limit:
            self.note(subject, f"its {key} was cut to {limit:,} characters")
        return cut_text(cleaned, limit)
