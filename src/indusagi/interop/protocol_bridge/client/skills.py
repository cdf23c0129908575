"""Skills and other listed items of servers: verification of skill files, directories, definitions.

https://modelcontextprotocol.io/seps/2640-skills-extension#integrity-and-verification
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest

from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text
from indusagi.interop.protocol_bridge.client.tools import describe_removed, iterate_rows, model_name
from indusagi.interop.protocol_bridge.contract import ItemKind, RemoteTool, RemoteToolRef, ServerConfig
from indusagi.interop.protocol_bridge.uris import UriMap
from indusagi.runtime.contract import ToolDescriptor

SKILLS = "io.modelcontextprotocol/skills"
"""Identifier of the extension."""
READ_DIRECTORY = "resources/directory/read"
DIRECTORY_READ = "directoryRead"
"""The extension's setting that declares `READ_DIRECTORY`."""
_DIRECTORY = "inode/directory"
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)#")
# Possessive, to scan a long line without a colon only once: https://docs.python.org/3/library/re.html#index-9.
_KEY = re.compile(r"^[\"']?([^\s\"'#:-][^\"':\n]*+)[\"']?[ \t]*+:(?=\s|$)", re.MULTILINE)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_EITHER_QUOTED = re.compile(rf"'(?:[^']|'')*'|{_QUOTED.pattern}")
_WORD = re.compile(r"\d+(?:\.\d+)?|\w+")


def find_mismatch(definition: JsonObject, uri: str, contents: JsonValue) -> str | None:
    """Return how a skill's file differs from the skill's manifest, or `None` if it doesn't.

    Compares digest and size of every file in the manifest, plus the front matter of `SKILL.md`.
    """
    for data in _list_data(contents):
        if data is None:
            return "its content is no base64"
        problem = _find_digest_mismatch(definition, uri, data)
        if problem is None and uri == definition.get("uri"):
            problem = _find_front_matter_mismatch(definition.get("frontmatter"), data.decode("utf-8", "replace"))
        if problem is not None:
            return problem
    return None


def _list_data(contents: JsonValue) -> Iterator[bytes | None]:
    """Decode each content, yielding `None` for invalid base64."""
    for content in filter(is_json_object, contents if isinstance(contents, list) else ()):
        text, blob = content.get("text"), content.get("blob")
        try:
            yield text.encode("utf-8", "surrogatepass") if isinstance(text, str) else b64decode(str(blob or ""))
        except ValueError:
            yield None


def _find_digest_mismatch(definition: JsonObject, uri: str, data: bytes) -> str | None:
    row = next((row for row in _list_files(definition) if row.get("uri") == uri), None)
    if row is None:
        return None
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if digest != row.get("digest"):
        return f"its digest is {digest}, and the skill promises {row.get('digest')}"
    if len(data) != row.get("size"):
        return f"it has {len(data):,} bytes, and the skill promises {row.get('size')}"
    return None


def _find_front_matter_mismatch(promised: JsonValue, text: str) -> str | None:
    """Compare the front matter of a `SKILL.md` with its entry, field by field.

    Values are compared word by word, so differences in YAML notation, such as quotes and indentation, don't matter.
    """
    front = _FRONT_MATTER.match(text)
    if front is None:
        return "it has no front matter"
    keys = [*_KEY.finditer(front[1])]
    ends = [key.start() for key in keys[1:]]
    values = {key[1].strip(): front[1][key.end() : end] for key, end in zip_longest(keys, ends)}
    fields = promised if is_json_object(promised) else {}
    for name in {**fields, **values}:
        expected = _list_words(" ".join(_list_leaves(fields.get(name))))
        if (name in values) != (name in fields) or expected not in _read_words(values[name]):
            return f"the field {name!r} of its front matter is not the one that the skill promises"
    return None


def _read_words(value: str) -> Iterator[list[str]]:
    """Read the words of a YAML value: as written, without comments, and without escapes."""
    yield _list_words(value)
    yield _list_words("\n".join(map(_remove_comment, value.split("\n"))))
    for pattern in (_QUOTED, _EITHER_QUOTED):  # an apostrophe in plain text isn't a quote
        yield _list_words(pattern.sub(_unquote, value))


def _remove_comment(line: str) -> str:
    """Remove a line's comment: everything after the first `#` behind its last quote."""
    comment = _COMMENT.search(line, max(line.rfind('"'), line.rfind("'")) + 1)
    return line if comment is None else line[: comment.start()]


def _unquote(quoted: re.Match[str]) -> str:
    with suppress(ValueError):
        return f" {json.loads(quoted[0])} "
    return quoted[0]


def _list_leaves(value: JsonValue) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _list_leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _list_leaves(inner)
    else:
        yield str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def _list_words(text: str) -> list[str]:
    words = _WORD.findall(text)
    return [f"{float(word):g}" if word[0].isdecimal() and word.isascii() else word for word in words if word != "null"]


def _list_files(definition: JsonObject) -> Iterable[JsonObject]:
    files = definition.get("resources")
    return filter(is_json_object, files if isinstance(files, list) else ())


def list_directory(skills: Iterable[JsonObject], uri: str) -> JsonObject | None:
    """List a directory from the manifests of skills; `None` if no skill has files in it.

    https://modelcontextprotocol.io/seps/2640-skills-extension#directory-reads
    """
    prefix = f"{uri.rstrip('/')}/"
    children: dict[str, JsonValue] = {}
    for file in (file for skill in skills for file in _list_files(skill)):
        address = file.get("uri")
        if not isinstance(address, str) or not address.startswith(prefix) or address == prefix:
            continue
        name, slash, _ = address[len(prefix) :].partition("/")
        child: JsonObject = {"uri": f"{prefix}{name}", "name": name}
        if slash:
            child["mimeType"] = _DIRECTORY
        else:
            child |= {key: file[key] for key in ("size", "mimeType") if key in file}
        children[name] = child
    return {"resources": [*children.values()]} if children else None


# -- items ------------------------------------------------------------------------------------
#
# An item's identity is the server's id, the kind, and the server's name or URI. It's passed along, never parsed from a
# name that a client sees. An item keeps its raw definition, but is shown without invisible characters. A row that can't
# be shown without changing its meaning is left out, with a note.
#
# - https://modelcontextprotocol.io/specification/2025-11-25/server/resources
# - https://modelcontextprotocol.io/specification/2025-11-25/server/prompts


INSTRUCTIONS = "instructions"
"""Name of a server's only item of this kind."""
INSTRUCTIONS_CHARS = 8_000


@record
class ItemList:
    """How the protocol lists the items of one kind."""

    capability: str
    method: str
    key: str
    """Key of the rows in a page."""
    identity: str
    """Field that identifies a row."""


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
    """Turn the rows of a list into items, with notes about omissions and changes."""
    items: dict[str, RemoteTool] = {}
    notes: list[Note] = []
    uris = UriMap(config.id)
    for row in iterate_rows(kind, ITEM_LISTS[kind].identity, rows, config, items, notes):
        name, shown = row.name, row.shown
        if row.removed:
            has_unseen = kind != "prompt" and clean_text(name)[1]
            if has_unseen or _list_arguments(shown) != _list_arguments(row.raw):
                # Requests send them back, and the server expects its own spelling.
                message = "its address or arguments hold invisible characters, and it was left out"
                notes.append(Note(row.subject, message))
                continue
            notes.append(Note(row.subject, describe_removed(row.removed)))
        if name in items:
            notes.append(Note(row.subject, "listed more than once; the last definition is used"))
        ref = RemoteToolRef(config.id, name, kind)
        seen = model_name(ref) if kind == "prompt" else uris.to_host(name)
        matter = shown.get("frontmatter")
        about = matter if kind == "skill" and is_json_object(matter) else shown
        texts = [text if isinstance(text := about.get(key), str) else None for key in ("title", "description")]
        descriptor = ToolDescriptor(seen, texts[1] or "", {}, title=texts[0], definition=shown)
        items[name] = RemoteTool(ref, descriptor, raw=_drop_volatile(row.raw))
    return tuple(items.values()), tuple(notes)


def _drop_volatile(row: JsonObject) -> JsonObject:
    """Drop fields that change with a resource's content: size and modification time."""
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
    """Describe a resource's content by digests, for pinning."""
    digests: list[JsonValue] = []
    for row in contents if isinstance(contents, list) else ():
        data = next((row[key] for key in ("text", "blob") if key in row), None) if is_json_object(row) else None
        digests.append(hashlib.sha256(str(data).encode("utf-8", "backslashreplace")).hexdigest())
    ref = RemoteToolRef(server, uri, "content")
    raw: JsonObject = {"uri": uri, "sha256": digests}
    return RemoteTool(ref, ToolDescriptor(UriMap(server).to_host(uri), "", {}, definition=raw), raw=raw)


def read_instructions(text: str | None, config: ServerConfig) -> tuple[RemoteTool, ...]:
    """Turn a server's instructions, if any, into an item."""
    if text is None:
        return ()
    shown = cut_text(clean_text(text)[0].strip(), INSTRUCTIONS_CHARS)
    ref = RemoteToolRef(config.id, INSTRUCTIONS, "instructions")
    descriptor = ToolDescriptor(config.id, shown, {}, definition={"instructions": shown})
    return (RemoteTool(ref, descriptor, raw={"instructions": text}),)
