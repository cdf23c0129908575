"""Dialects: one function for each program whose configuration files we can read, and the program's variable syntax.

Each function takes a document and yields rows of plain fields, under the names `rows` parses. It opens no files and
expands no variables. An unset variable never becomes an empty string: the row is skipped, and a note names the
variable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Literal, NamedTuple, TypeAlias, cast

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import (
    REFERENCE,
    SecretReference,
    SecretText,
    hide_value,
    is_distinct,
    is_secret_name,
    parse_secret,
)

Expansion: TypeAlias = Literal["none", "secrets", "shell", "dollar", "editor", "braces"]
"""`shell`: `${X}` and `${X:-y}`; `dollar`: also `$X`; `editor`: `${env:X}`, `${userHome}`, …;
`braces`: `{env:X}` and `{file:path}`. All but `none` have references to secrets: `${keyring:X}`, `${file:path}`,
`${cmd:line}`; `secrets` has nothing else."""

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLES: dict[Expansion, str] = {
    "secrets": r"(?!)",
    "shell": rf"\$\{{({_NAME})(?::-([^}}]*))?\}}",
    "dollar": rf"\$\{{({_NAME})(?::-([^}}]*))?\}}|\$({_NAME})",
    "editor": r"\$\{([A-Za-z]+)(?::([^}]*))?\}",
    "braces": r"\{(env|file):([^}]*)\}",
}
PATTERNS: dict[Expansion, re.Pattern[str]] = {
    "none": re.compile(r"(?!)"),
    **{rule: re.compile(f"{REFERENCE}|{text}") for rule, text in _VARIABLES.items()},
}
"""The references `expand` replaces."""
_MAX_FILE_BYTES = 64 * 1024


class UnresolvedVariableError(Exception):
    """A variable or file without a value."""


@record
class ExpansionContext:
    """The lookup context for variables and files."""

    environ: Mapping[str, str]
    folder: str
    """The project directory, or the directory of the file."""
    contents: dict[str, str] = field(default_factory=dict[str, str])
    """File contents by path. Each file is read once, so the content used is the content consented to."""

    def variable(self, name: str, default: str | None = None) -> str:
        """Return a variable's value, or the default if it's empty or unset.

        Raises `UnresolvedVariableError` if it's unset and has no default.
        """
        value = self.environ.get(name)
        if value:
            if is_secret_name(name) and is_distinct(value):
                hide_value(value)  # under whatever name the row hands it on
            return value
        if default is not None:
            return default
        if value is None:
            raise UnresolvedVariableError(f"the variable {name} is not set")
        return value

    def file(self, path: str) -> str:
        """Return the content of a small file, without its final newline.

        Raises `UnresolvedVariableError` if it can't be read.
        """
        whole = os.path.join(self.folder, os.path.expanduser(path))
        if whole in self.contents:
            return self.contents[whole]
        try:
            if not os.path.isfile(whole) or os.path.getsize(whole) > _MAX_FILE_BYTES:
                raise UnresolvedVariableError(f"the file {path} is absent, or not a small file")
            with open(whole, encoding="utf-8") as file:
                return self.contents.setdefault(whole, file.read().removesuffix("\n"))
        except (OSError, UnicodeDecodeError) as exc:
            raise UnresolvedVariableError(f"the file {path} cannot be read: {exc}") from exc


def expand(text: str, rule: Expansion, context: ExpansionContext) -> str:
    """Replace variables with their values; raises `UnresolvedVariableError` if one has none.

    References to secrets stay, in a `SecretText`.
    """
    parts, end = list[str | SecretReference](), 0
    for match in PATTERNS[rule].finditer(text):
        secret = parse_secret(match[0], context.folder)
        parts += [text[end : match.start()], secret or _find_value(rule, match, context)]
        end = match.end()
    parts.append(text[end:])
    plain = [part for part in parts if isinstance(part, str)]
    return "".join(plain) if len(plain) == len(parts) else SecretText(parts)


ReferenceKind: TypeAlias = Literal["variable", "file", "keyring", "cmd"]


def parse_reference(rule: Expansion, match: re.Match[str]) -> tuple[ReferenceKind, str]:
    """Return the kind and the name of a reference."""
    secret = parse_secret(match[0])
    if secret is not None:
        return secret.kind, secret.name
    if rule == "dollar":
        return "variable", match[1] or match[3]
    if rule == "editor":
        return "variable", match[2] or match[1]
    if rule == "braces":
        return "file" if match[1] == "file" else "variable", match[2].strip()
    return "variable", match[1]


def _find_value(rule: Expansion, match: re.Match[str], context: ExpansionContext) -> str:
    if rule == "braces":
        return context.variable(match[2]) if match[1] == "env" else context.file(match[2].strip())
    if rule != "editor":
        return context.variable(parse_reference(rule, match)[1], match[2])
    # VS Code variables: https://code.visualstudio.com/docs/reference/variables-reference
    kind, name = match[1], match[2]
    if kind == "env" and name:
        return context.variable(name)
    if kind == "input" and name:
        raise UnresolvedVariableError(f"the input {name!r} is asked for by an editor")
    values = {
        "userHome": context.environ.get("HOME", ""),
        "workspaceFolder": context.folder,
        "workspaceRoot": context.folder,
        "workspaceFolderBasename": os.path.basename(context.folder),
        "pathSeparator": os.sep,
    }
    known = values.get(kind)
    if known:
        return known
    raise UnresolvedVariableError(f"${{{kind}}} has no value here")


# -- dialects ---------------------------------------------------------------------------------


class RawRow(NamedTuple):
    """One server as written in a file, with unchecked fields."""

    name: str
    fields: JsonValue
    project: str | None = None
    """Its directory, if one file has servers for several."""
    written: JsonValue = None
    """The fields before conversion. Consent covers these too."""


Reader: TypeAlias = Callable[[JsonObject], Iterator[RawRow]]


@record
class Dialect:
    """The configuration format of one program."""

    name: str
    expansion: Expansion
    read_rows: Reader
    matches: Callable[[JsonObject], bool] | None
    """Whether a document of unknown origin uses this dialect. `None`: only the file name identifies it."""
    holds: Callable[[JsonObject], bool] | None = None
    """Whether a document of this program has servers. `None`: same as `matches`."""

    def has_servers(self, document: JsonObject) -> bool:
        """Tell whether a document known to belong to this program has servers."""
        holds = self.holds or self.matches
        return holds is not None and holds(document)


def _under(document: JsonObject, *keys: str) -> JsonObject | None:
    value: JsonValue = document
    for key in keys:
        value = value.get(key) if is_json_object(value) else None
    return value if is_json_object(value) else None


def _rows(servers: JsonObject | None) -> Iterator[RawRow]:
    """Yield the servers in an object, each with a copy of its fields."""
    for name, fields in (servers or {}).items():
        yield RawRow(name, dict(fields) if is_json_object(fields) else fields, written=fields)


# -- readers ----------------------------------------------------------------------------------


def _read(*keys: str, convert: Callable[[JsonObject], JsonObject | None] = lambda _: None) -> Reader:
    """Build a reader of the servers at a path of keys. `convert` changes a copy of a row, or returns another one."""

    def read(document: JsonObject) -> Iterator[RawRow]:
        for row in _rows(_under(document, *keys)):
            yield row._replace(fields=convert(row.fields) or row.fields) if is_json_object(row.fields) else row

    return read


def indus(document: JsonObject) -> Iterator[RawRow]:
    """Read `servers`: a list of named rows, or an object of rows by name."""
    servers = document.get("servers")
    if isinstance(servers, list):
        for row in servers:
            name = row.get("name") if is_json_object(row) else None
            yield RawRow(name if isinstance(name, str) else "", row, written=row)
    elif is_json_object(servers):
        yield from _rows(servers)


def claude_code(document: JsonObject) -> Iterator[RawRow]:
    """Read `mcpServers` of the user and of every directory in `projects` (scope `local`)."""
    yield from _rows(_under(document, "mcpServers"))
    for folder, project in (_under(document, "projects") or {}).items():
        if is_json_object(project):
            for row in _rows(_under(project, "mcpServers")):
                yield row._replace(project=folder)


def _has_claude_servers(document: JsonObject) -> bool:
    projects = (_under(document, "projects") or {}).values()
    return any(_under(scope, "mcpServers") for scope in (document, *projects) if is_json_object(scope))


def vscode(document: JsonObject) -> Iterator[RawRow]:
    """Read `servers`, next to `inputs` and the `sandbox` of rows that have `sandboxEnabled`."""
    root = document if "servers" in document else _under(document, "mcp") or {}
    for row in _rows(_under(root, "servers")):
        if is_json_object(row.fields) and row.fields.pop("sandboxEnabled", None) is True:
            rules = _under(row.fields, "sandbox") or _under(root, "sandbox") or {}
            row.fields["sandbox"] = _convert_vscode_sandbox(rules)
            yield row._replace(written={**cast("JsonObject", row.written), "sandbox": rules})
        else:
            yield row


def _convert_vscode_sandbox(rules: JsonObject) -> JsonObject:
    """Convert a sandbox of VS Code. What ours can't hold stays in it, so that the server doesn't start without it."""
    profile: JsonObject = {"profile": "standard"}
    files, network = dict(_under(rules, "filesystem") or {}), dict(_under(rules, "network") or {})
    write, domains, hidden = files.pop("allowWrite", []), network.pop("allowedDomains", []), files.pop("denyRead", [])
    if isinstance(write, list):
        profile["write"] = [path for path in write if path not in (".", "${workspaceFolder}")]
    if isinstance(domains, list):
        profile["hosts"] = ["*.npmjs.org", *domains]  # as VS Code does, for npx
    if isinstance(hidden, list) and any(not str(path).startswith("~") for path in hidden):
        files["denyRead"] = hidden  # a home is never shown
    return {**profile, **{key: value for key, value in {**files, **network}.items() if value}}


def _convert_codex_row(row: JsonObject) -> JsonObject:
    # Secrets are names of variables.
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
        fields["env_vars"] = [name.get("name") if is_json_object(name) else name for name in names]
    return fields


def gemini(document: JsonObject) -> Iterator[RawRow]:
    """Read `mcpServers`, where `url` is SSE and `httpUrl` Streamable HTTP."""
    allowed, excluded = _names(document, "allowed"), _names(document, "excluded") or ()
    for row in _rows(_under(document, "mcpServers")):
        name, fields = row.name, row.fields
        if is_json_object(fields):
            newer = fields.pop("httpUrl", None)
            if newer is not None:
                fields.update(url=newer, type="http")
            elif "url" in fields and "type" not in fields:
                fields["type"] = "sse"
            if name in excluded or (allowed is not None and name not in allowed):
                fields["enabled"] = False
        yield row


def _names(document: JsonObject, key: str) -> Sequence[JsonValue] | None:
    names = (_under(document, "mcp") or {}).get(key)
    return names if isinstance(names, list) else None


def _convert_opencode_row(row: JsonObject) -> None:
    command = row.get("command")
    if isinstance(command, list) and command:
        row.update(command=command[0], args=command[1:])


def _is_opencode_v2(document: JsonObject) -> bool:
    """Tell whether `mcp.servers` holds servers, rather than being a server named `servers`."""
    servers = _under(document, "mcp", "servers")
    return servers is not None and not {"command", "url"} & servers.keys()


def _convert_windsurf_row(row: JsonObject) -> None:
    address = row.pop("serverUrl", None)
    if address is not None:
        row.setdefault("url", address)


def _convert_zed_row(row: JsonObject) -> JsonObject:
    fields = {key: value for key, value in row.items() if key != "source"}
    command = fields.get("command")
    if is_json_object(command):  # in older files
        older = {key: command[key] for key in ("args", "env") if command.get(key) is not None}
        fields.update({"command": command.get("path"), **older})
    return fields


def _convert_copilot_row(row: JsonObject) -> None:
    tools = row.pop("tools", None)
    if isinstance(tools, list) and "*" not in tools:
        row["includeTools"] = tools


def _convert_cline_row(row: JsonObject) -> None:
    transport = row.get("transport")
    if is_json_object(transport):  # it may hold the fields
        del row["transport"]
        row.update(transport)
    seconds = row.pop("timeout", None)
    if seconds is not None:
        row["tool_timeout_sec"] = seconds


# -- detection --------------------------------------------------------------------------------


def _has(*keys: str) -> Callable[[JsonObject], bool]:
    return lambda document: _under(document, *keys) is not None


def _is_gemini(document: JsonObject) -> bool:
    servers = _under(document, "mcpServers")
    if servers is None:
        return False
    marks = {"httpUrl", "trust", "includeTools", "excludeTools", "authProviderType"}
    rows = (row for row in servers.values() if is_json_object(row))
    return "mcp" in document or any(marks & row.keys() for row in rows)


_HAS_MCP_SERVERS = _has("mcpServers")


DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect("codex", "shell", _read("mcp_servers", convert=_convert_codex_row), _has("mcp_servers")),
        Dialect("opencode-v2", "braces", _read("mcp", "servers", convert=_convert_opencode_row), _is_opencode_v2),
        Dialect("zed", "secrets", _read("context_servers", convert=_convert_zed_row), _has("context_servers")),
        Dialect("amp", "shell", _read("amp.mcpServers"), _has("amp.mcpServers")),
        Dialect("gemini", "dollar", gemini, _is_gemini, _HAS_MCP_SERVERS),
        Dialect("qwen", "dollar", gemini, None, _HAS_MCP_SERVERS),
        Dialect("windsurf", "editor", _read("mcpServers", convert=_convert_windsurf_row), None, _HAS_MCP_SERVERS),
        Dialect("copilot", "shell", _read("mcpServers", convert=_convert_copilot_row), None, _HAS_MCP_SERVERS),
        Dialect("cline", "secrets", _read("mcpServers", convert=_convert_cline_row), None, _HAS_MCP_SERVERS),
        Dialect(
            "claude-code",
            "shell",
            claude_code,
            lambda document: _HAS_MCP_SERVERS(document) or _has_claude_servers(document),
        ),
        Dialect("claude-desktop", "secrets", _read("mcpServers"), _HAS_MCP_SERVERS),
        Dialect("cursor", "editor", _read("mcpServers"), _HAS_MCP_SERVERS),
        Dialect("opencode", "braces", _read("mcp", convert=_convert_opencode_row), _has("mcp")),
        Dialect(
            "vscode",
            "editor",
            vscode,
            lambda document: "inputs" in document,
            lambda document: "servers" in document or _has("mcp", "servers")(document),
        ),
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
    (".qwen/settings.json", "qwen"),
    (".codeium/windsurf/mcp_config.json", "windsurf"),
    ("zed/settings.json", "zed"),
    (".zed/settings.json", "zed"),
    ("amp/settings.json", "amp"),
    (".amp/settings.json", "amp"),
    (".copilot/mcp-config.json", "copilot"),
    ("cline_mcp_settings.json", "cline"),
)


def detect_dialect(path: str, document: JsonObject) -> Dialect | None:
    """Detect a document's dialect by file name, or else by its keys."""
    name = path.replace("\\", "/")
    for ending, program in _BY_FILE:
        if name.endswith(f"/{ending}") or name == ending:
            dialect = find_dialect(program, document)
            if dialect is not None:
                return dialect
    return next((one for one in DIALECTS.values() if one.matches is not None and one.matches(document)), None)


def find_dialect(program: str, document: JsonObject) -> Dialect | None:
    """Return the dialect of a program's file, or `None` if it has no servers."""
    if program == "opencode" and _is_opencode_v2(document):
        return DIALECTS["opencode-v2"]
    return DIALECTS[program] if DIALECTS[program].has_servers(document) else None
