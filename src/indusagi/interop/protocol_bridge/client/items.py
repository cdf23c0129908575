"""Items of a server beside its tools: resources, resource templates, prompts, instructions.

The identity of an item is the server's id, its kind, and the server's own name or URI; it is carried along, never
parsed from a name that a client sees. A row keeps its definition; what is shown has no invisible characters. A row that
cannot be shown without a change of its meaning is left out, with a note.

- https://modelcontextprotocol.io/specification/2025-11-25/server/resources
- https://modelcontextprotocol.io/specification/2025-11-25/server/prompts
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text
from indusagi.interop.protocol_bridge.client.skills import SKILLS
from indusagi.interop.protocol_bridge.client.tools import (
    AmbiguousDefinitionError,
    clean_definition,
    describe_removed,
    model_name,
)
from indusagi.interop.protocol_bridge.contract import ItemKind, RemoteTool, RemoteToolRef, ServerConfig
from indusagi.interop.protocol_bridge.uris import UriMap
from indusagi.runtime.contract import ToolDescriptor

INSTRUCTIONS = "instructions"
"""The name of the one item of this kind that a server has."""
INSTRUCTIONS_CHARS = 8_000
_SHOWN_NAME = 80


@record
class ItemList:
    """How the protocol lists the items of one kind."""

    capability: str
    method: str
    key: str
    """Where a page has its rows."""
    identity: str
    """The field of a row that identifies it."""


ITEM_LISTS: Mapping[ItemKind, ItemList] = {
    "tool": ItemList("tools", "tools/list", "tools", "name"),
    "resource": ItemList("resources", "resources/list", "resources", "uri"),
    "template": ItemList("resources", "resources/templates/list", "resourceTemplates", "uriTemplate"),
    "prompt": ItemList("prompts", "prompts/list", "prompts", "name"),
    "skill": ItemList(SKILLS, "skills/list", "skills", "uri"),
}


def read_items(
    kind: ItemKind, rows: Sequence[JsonValue], config: ServerConfig
) -> tuple[tuple[RemoteTool, ...], tuple[Note, ...]]:
    """Turn the rows of a list into items; the notes say what was left out or changed."""
    items: dict[str, RemoteTool] = {}
    notes: list[Note] = []
    owner, identity, uris = f"server {config.id!r}", ITEM_LISTS[kind].identity, UriMap(config.id)
    for number, row in enumerate(rows, start=1):
        if len(items) >= config.limits.tools:
            rest = len(rows) - number + 1
            notes.append(Note(f"{owner}, its {kind}s", f"more than {config.limits.tools:,}; {rest:,} were left out"))
            break
        name = row.get(identity) if is_json_object(row) else None
        if not is_json_object(row) or not isinstance(name, str) or not name:
            notes.append(Note(f"{owner}, row {number} of its {kind}s", f"it has no {identity}, and was left out"))
            continue
        subject = f"{owner}, {kind} {cut_text(clean_text(name)[0], _SHOWN_NAME)!r}"
        try:
            shown, removed = clean_definition(row)
        except AmbiguousDefinitionError as exc:
            notes.append(Note(subject, f"it was left out: {exc}"))
            continue
        if removed and ((kind != "prompt" and clean_text(name)[1]) or _list_arguments(shown) != _list_arguments(row)):
            # They come back in requests, where the server expects them as it wrote them.
            notes.append(Note(subject, "its address or arguments hold invisible characters, and it was left out"))
            continue
        if removed:
            notes.append(Note(subject, describe_removed(removed)))
        if name in items:
            notes.append(Note(subject, "listed more than once; the last definition is used"))
        ref = RemoteToolRef(config.id, name, kind)
        seen = model_name(ref) if kind == "prompt" else uris.to_host(name)
        matter = shown.get("frontmatter")
        about = matter if kind == "skill" and is_json_object(matter) else shown
        texts = [text if isinstance(text := about.get(key), str) else None for key in ("title", "description")]
        descriptor = ToolDescriptor(seen, texts[1] or "", {}, title=texts[0], definition=shown)
        items[name] = RemoteTool(ref, descriptor, raw=_drop_volatile(row))
    return tuple(items.values()), tuple(notes)


def _drop_volatile(row: JsonObject) -> JsonObject:
    """Drop what changes with the content of a resource: its size, and when it was changed."""
    annotations = row.get("annotations")
    if "size" not in row and not (is_json_object(annotations) and "lastModified" in annotations):
        return row
    stable = {key: value for key, value in row.items() if key not in {"size", "annotations"}}
    if is_json_object(annotations):
        kept = {key: value for key, value in annotations.items() if key != "lastModified"}
        stable |= {"annotations": kept} if kept else {}
    return stable


def _list_arguments(row: JsonObject) -> list[JsonValue]:
    arguments = row.get("arguments")
    rows = arguments if isinstance(arguments, list) else []
    return [argument.get("name") for argument in rows if is_json_object(argument)]


def read_content(server: str, uri: str, contents: JsonValue) -> RemoteTool:
    """Describe the content of a resource by digests, so that it can be pinned."""
    digests: list[JsonValue] = []
    for row in contents if isinstance(contents, list) else ():
        data = next((row[key] for key in ("text", "blob") if key in row), None) if is_json_object(row) else None
        digests.append(hashlib.sha256(str(data).encode("utf-8", "backslashreplace")).hexdigest())
    ref = RemoteToolRef(server, uri, "content")
    raw: JsonObject = {"uri": uri, "sha256": digests}
    return RemoteTool(ref, ToolDescriptor(UriMap(server).to_host(uri), "", {}, definition=raw), raw=raw)


def read_instructions(text: str | None, config: ServerConfig) -> tuple[RemoteTool, ...]:
    """Turn the instructions of a server into an item; none if it has none."""
    if text is None:
        return ()
    shown = cut_text(clean_text(text)[0].strip(), INSTRUCTIONS_CHARS)
    ref = RemoteToolRef(config.id, INSTRUCTIONS, "instructions")
    descriptor = ToolDescriptor(config.id, shown, {}, definition={"instructions": shown})
    return (RemoteTool(ref, descriptor, raw={"instructions": text}),)
