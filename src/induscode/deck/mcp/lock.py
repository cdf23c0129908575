"""The lock file: a project's approved tool definitions, for committing and comparing.

It holds complete definitions instead of digests, so reviews show the actual changes. An empty entry means a server has
nothing of a kind; in memory, that's a definition without a name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from indusagi.core.app_dirs import locked_directory, read_small_file, replace_file
from indusagi.core.faults import describe_error
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.interop.protocol_bridge.contract import ItemKind, RemoteToolRef
from induscode.deck.contract import BridgeFault
from induscode.deck.mcp.capability import BridgeCapability, build_behaviour, definition_pin
from induscode.deck.mcp.drift import Drift, compare_definitions, is_same_definition
from induscode.servers.config.rows import ServerRow, find_project_dir
from induscode.servers.labels import InvalidLabelsError, RowLabels, format_labels, parse_labels

LOCK_NAME = os.path.join(".indusvx", "mcp.lock.json")
_VERSION = 1
_SECTIONS: dict[ItemKind, str] = {
    "tool": "servers",
    "resource": "resources",
    "template": "templates",
    "prompt": "prompts",
    "skill": "skills",
    "instructions": "instructions",
    "content": "contents",
    "behaviour": "behaviours",
}
"""The sections of the file, each keyed by server. "servers" predates the other kinds."""
_LABELS = "labels"
"""The section with the labels of servers, which adds to their rows."""
_UNLISTED = frozenset({"content", "behaviour"})
"""Kinds without an empty entry: the resource of an app's content has one, and a behaviour may not be known yet."""
_EMPTY = ""
"""The name of the definition that represents an empty entry."""
_MAX_BYTES = 64 * 1024 * 1024


def lock_text(
    capabilities: Iterable[BridgeCapability],
    before: Mapping[RemoteToolRef, JsonObject] | None = None,
    servers: Iterable[str] = (),
    labels: Mapping[str, RowLabels] = MappingProxyType({}),
) -> str:
    """Format the lock of these tools and the labels of servers, deterministically.

    A tool that differs from `before` only in order keeps its text. Items of other kinds have separate sections. Each of
    `servers` gets an entry in every section, so anything it adds later shows up as not locked.
    """
    names = sorted(servers)
    sections: dict[ItemKind, dict[str, JsonValue]] = {"tool": {name: {} for name in names}}
    sections |= {kind: {name: {} for name in names} for kind in _SECTIONS if names and kind not in _UNLISTED}
    for capability in sorted(capabilities, key=lambda capability: (capability.ref.server, capability.ref.name)):
        tools = sections.setdefault(capability.ref.kind, {}).setdefault(capability.ref.server, {})
        assert isinstance(tools, dict)
        known = (before or {}).get(capability.ref)
        raw = known if known is not None and is_same_definition(known, capability.raw) else capability.raw
        tools[capability.ref.name] = {"pin": definition_pin(raw), "definition": raw}
    given: JsonObject = {server: format_labels(rows) for server, rows in labels.items() if rows}
    lock: JsonObject = {"version": _VERSION, **{_SECTIONS[kind]: servers for kind, servers in sections.items()}}
    return _format_lock({**lock, _LABELS: given} if given else lock)


def _format_lock(lock: JsonObject) -> str:
    return json.dumps(lock, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_lock(
    path: str,
    capabilities: Iterable[BridgeCapability],
    servers: Iterable[str] = (),
    labels: Mapping[str, RowLabels] = MappingProxyType({}),
) -> None:
    """Atomically replace the lock file with one of these tools of `servers`; raises `OSError` if it can't."""
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    with locked_directory(folder):
        before: Mapping[RemoteToolRef, JsonObject] = {}
        with suppress(BridgeFault):  # missing or invalid: replace it
            before = read_lock(path)
        replace_file(path, lock_text(capabilities, before, servers, labels).encode("utf-8"), mode=None)


def lock_behaviour(row: ServerRow, raw: JsonObject) -> None:
    """Replace the behaviour of a project's server in its lock file, if that has the server. Blocks.

    Raises `BridgeFault` if the file is damaged, and `OSError` if it can't be written.
    """
    path = os.path.join(find_project_dir(row.origin), LOCK_NAME)
    if row.origin.scope == "user" or not os.path.lexists(path):
        return
    with locked_directory(os.path.dirname(path)):
        if not any(ref.server == row.id for ref in read_lock(path)):
            return
        lock = json.loads(read_small_file(path, _MAX_BYTES))
        item = build_behaviour(row.id).ref
        lock.setdefault(_SECTIONS[item.kind], {})[row.id] = {item.name: {"pin": definition_pin(raw), "definition": raw}}
        replace_file(path, _format_lock(lock).encode("utf-8"), mode=None)


def read_lock(path: str) -> Mapping[RemoteToolRef, JsonObject]:
    """Read the definitions and empty entries of a lock file.

    Raises `BridgeFault` if it's missing, unreadable, or was edited by hand.
    """
    try:
        lock: JsonValue = json.loads(read_small_file(path, _MAX_BYTES))
    except (OSError, ValueError, RecursionError) as exc:
        raise BridgeFault(f"{path} cannot be read: {describe_error(exc)}") from exc
    servers = lock.get("servers") if is_json_object(lock) else None
    if not is_json_object(lock) or lock.get("version") != _VERSION or not is_json_object(servers):
        raise BridgeFault(f"{path} is not a lock file of version {_VERSION}: write it again")
    definitions: dict[RemoteToolRef, JsonObject] = {}
    for kind, section in _SECTIONS.items():
        rows = lock.get(section)
        definitions |= _definitions(path, kind, rows) if is_json_object(rows) else ()
    # Every lock file covers the tools of all its servers, even if it predates empty entries.
    with_tools = {ref.server for ref in definitions if ref.kind == "tool"}
    return definitions | build_empty_entries({ref.server for ref in definitions} - with_tools, ["tool"])


def read_locked_labels(path: str) -> Mapping[str, RowLabels]:
    """Read the labels in a lock file that `read_lock` has read, by server. Raises `BridgeFault` if they're invalid."""
    rows = json.loads(read_small_file(path, _MAX_BYTES)).get(_LABELS, {})
    try:
        return {server: parse_labels(given) for server, given in rows.items()} if is_json_object(rows) else {}
    except InvalidLabelsError as exc:
        raise BridgeFault(f"{path}: {_LABELS!r} {exc}") from exc


def build_empty_entries(
    servers: Iterable[str], kinds: Iterable[ItemKind] = tuple(_SECTIONS)
) -> dict[RemoteToolRef, JsonObject]:
    """Build the entries for servers that have nothing of these kinds."""
    names = [*servers]
    return {RemoteToolRef(server, _EMPTY, kind): {} for kind in kinds for server in names}


def _definitions(path: str, kind: ItemKind, servers: JsonObject) -> Iterable[tuple[RemoteToolRef, JsonObject]]:
    for server, tools in servers.items():
        if not tools:
            yield RemoteToolRef(server, _EMPTY, kind), {}
        for name, row in tools.items() if is_json_object(tools) else ():
            raw = row.get("definition") if is_json_object(row) else None
            if not is_json_object(row) or not is_json_object(raw):
                raise BridgeFault(f"{path}: the {kind} {name!r} of {server!r} has no definition")
            if row.get("pin") != definition_pin(raw):
                raise BridgeFault(f"{path}: the {kind} {name!r} of {server!r} does not fit its pin")
            yield RemoteToolRef(server, name, kind), raw


def compare_lock(
    locked: Mapping[RemoteToolRef, JsonObject], present: Mapping[RemoteToolRef, JsonObject]
) -> Sequence[Drift]:
    """Compare current definitions with a lock file's, for the servers and kinds it covers."""
    # A lock file that predates the other kinds has no entries for them.
    covered = {(ref.server, ref.kind) for ref in locked}
    known = {ref: raw for ref, raw in locked.items() if ref.name != _EMPTY}
    shown = {ref: raw for ref, raw in present.items() if ref.kind == "tool" or (ref.server, ref.kind) in covered}
    return compare_definitions(known, shown)
