"""What a configuration file of one product or another says, in our words: one function each.

Every function takes the document and gives rows of plain fields, under the names that `rows`
reads. None of them opens a file, and none of them expands a variable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from indusagi.core.json import is_json_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.deck.mcp.expansion import Expansion

Draft: TypeAlias = "tuple[str, JsonValue]"
"""The id of a server, and its fields; anything may stand there."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to write a configuration."""

    name: str
    expansion: Expansion
    drafts: Callable[[JsonObject], Iterator[Draft]]
    speaks: Callable[[JsonObject], bool]
    """Whether a document is written in it."""


def _under(document: JsonObject, *keys: str) -> JsonObject | None:
    found: JsonValue = document
    for key in keys:
        found = found.get(key) if is_json_object(found) else None
    return found if is_json_object(found) else None


def _rows(servers: JsonObject | None) -> Iterator[Draft]:
    yield from (servers or {}).items()


# -- ours -------------------------------------------------------------------------------------


def indus(document: JsonObject) -> Iterator[Draft]:
    """Read `servers`: a list of rows with a name each, or an object of rows by name."""
    servers = document.get("servers")
    if isinstance(servers, list):
        for row in servers:
            name = row.get("name") if is_json_object(row) else None
            yield (name if isinstance(name, str) else ""), row
    elif is_json_object(servers):
        yield from servers.items()


# -- others -----------------------------------------------------------------------------------


def claude_desktop(document: JsonObject) -> Iterator[Draft]:
    """Read `mcpServers`: commands only."""
    yield from _rows(_under(document, "mcpServers"))


def claude_code(document: JsonObject) -> Iterator[Draft]:
    """Read `mcpServers`, of the user and of every project that the file speaks about."""
    yield from _rows(_under(document, "mcpServers"))
    for project in (_under(document, "projects") or {}).values():
        if is_json_object(project):
            yield from _rows(_under(project, "mcpServers"))


def vscode(document: JsonObject) -> Iterator[Draft]:
    """Read `servers` beside `inputs`."""
    yield from _rows(_under(document, "servers") or _under(document, "mcp", "servers"))


def cursor(document: JsonObject) -> Iterator[Draft]:
    """Read `mcpServers`."""
    yield from _rows(_under(document, "mcpServers"))


def codex(document: JsonObject) -> Iterator[Draft]:
    """Read `mcp_servers`; secrets are handed on by the names of variables."""
    for name, row in _rows(_under(document, "mcp_servers")):
        yield name, _codex_row(row) if is_json_object(row) else row


def _codex_row(row: JsonObject) -> JsonObject:
    fields = dict(row)
    headers = dict(_under(row, "http_headers") or {})
    token = fields.pop("bearer_token_env_var", None)
    if isinstance(token, str):
        headers["Authorization"] = f"Bearer ${{{token}}}"
    for header, variable in (_under(row, "env_http_headers") or {}).items():
        if isinstance(variable, str):
            headers[header] = f"${{{variable}}}"
    fields.pop("env_http_headers", None)
    if headers:
        fields["http_headers"] = headers
    milliseconds = fields.pop("startup_timeout_ms", None)
    if isinstance(milliseconds, (int, float)):
        fields.setdefault("startup_timeout_sec", milliseconds / 1000)
    names = fields.get("env_vars")
    if isinstance(names, list):
        fields["env_vars"] = [one.get("name") if is_json_object(one) else one for one in names]
    return fields


def gemini(document: JsonObject) -> Iterator[Draft]:
    """Read `mcpServers`, where `url` is the old transport and `httpUrl` the present one."""
    allowed = _names(document, "allowed")
    excluded = _names(document, "excluded") or ()
    for name, row in _rows(_under(document, "mcpServers")):
        if not is_json_object(row):
            yield name, row
            continue
        fields = dict(row)
        newer = fields.pop("httpUrl", None)
        if newer is not None:
            fields.update(url=newer, type="http")
        elif "url" in fields and "type" not in fields:
            fields["type"] = "sse"
        if name in excluded or (allowed is not None and name not in allowed):
            fields["enabled"] = False
        yield name, fields


def _names(document: JsonObject, key: str) -> Sequence[JsonValue] | None:
    found = (_under(document, "mcp") or {}).get(key)
    return found if isinstance(found, list) else None


def opencode(document: JsonObject) -> Iterator[Draft]:
    """Read `mcp` (version 1), where a command is a list."""
    for name, row in _rows(_under(document, "mcp")):
        yield name, _opencode_row(row) if is_json_object(row) else row


def opencode_v2(document: JsonObject) -> Iterator[Draft]:
    """Read `mcp.servers` (version 2)."""
    for name, row in _rows(_under(document, "mcp", "servers")):
        yield name, _opencode_row(row) if is_json_object(row) else row


def _opencode_row(row: JsonObject) -> JsonObject:
    fields = dict(row)
    command = fields.get("command")
    if isinstance(command, list) and command:
        fields.update(command=command[0], args=command[1:])
    return fields


# -- which one it is --------------------------------------------------------------------------


def _has(*keys: str) -> Callable[[JsonObject], bool]:
    return lambda document: _under(document, *keys) is not None


def _is_gemini(document: JsonObject) -> bool:
    servers = _under(document, "mcpServers")
    if servers is None:
        return False
    marks = {"httpUrl", "trust", "includeTools", "excludeTools", "authProviderType"}
    rows = (row for row in servers.values() if is_json_object(row))
    return "mcp" in document or any(marks & row.keys() for row in rows)


DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect("codex", "shell", codex, _has("mcp_servers")),
        Dialect("opencode-v2", "braces", opencode_v2, _has("mcp", "servers")),
        Dialect("gemini", "dollar", gemini, _is_gemini),
        Dialect("claude-code", "shell", claude_code, _has("mcpServers")),
        Dialect("claude-desktop", "none", claude_desktop, _has("mcpServers")),
        Dialect("cursor", "editor", cursor, _has("mcpServers")),
        Dialect("opencode", "braces", opencode, _has("mcp")),
        Dialect("vscode", "editor", vscode, lambda document: "inputs" in document),
        Dialect("indus", "shell", indus, lambda document: "servers" in document),
    )
}
_BY_FILE = (
    ("claude_desktop_config.json", "claude-desktop"),
    (".claude.json", "claude-code"),
    (".mcp.json", "claude-code"),
    (".vscode/mcp.json", "vscode"),
    (".cursor/mcp.json", "cursor"),
    (".codex/config.toml", "codex"),
    (".gemini/settings.json", "gemini"),
    ("opencode.json", "opencode"),
    ("opencode.jsonc", "opencode"),
)


def dialect_of(path: str, document: JsonObject) -> Dialect | None:
    """Find out how a document is written: by the name of its file, else by what stands in it."""
    name = path.replace("\\", "/")
    for ending, dialect in _BY_FILE:
        if name.endswith(f"/{ending}") or name == ending:
            if dialect == "opencode" and DIALECTS["opencode-v2"].speaks(document):
                dialect = "opencode-v2"
            if DIALECTS[dialect].speaks(document):
                return DIALECTS[dialect]
    return next((one for one in DIALECTS.values() if one.speaks(document)), None)
