"""Consent to servers that a project configures.

A project's file can name any command, so nothing of it is started before a person has agreed to exactly this file,
server, command with arguments and variables, or address. The agreement is stored outside every project. A server that
has changed since needs a new one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from typing import Literal, TypeAlias

from indusagi.core.app_dirs import PrivateJsonFile, state_dir
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.time import iso_utc, now_ms
from indusagi.interop.protocol_bridge.contract import ServerConfig, StdioServerConfig
from induscode.deck.mcp.config.auth_fields import format_auth
from induscode.deck.mcp.config.references import find_references, quote, show_url, show_value
from induscode.deck.mcp.config.rows import ServerRow

Consent: TypeAlias = Literal["trusted", "unknown", "changed"]
_VERSION = 1
_LARGEST_BYTES = 16 * 1024 * 1024
_CODE_PREFIXES = ("LD_", "DYLD_", "PYTHON", "GIT_")
_CODE_VARIABLES = frozenset({"NODE_OPTIONS", "BASH_ENV", "ENV", "PATH"})
_CODE_FLAGS = {
    "npx": ("-c", "--call"),
    "npm": ("-c", "exec"),
    "node": ("-e", "--eval", "-p", "--print", "-r", "--require"),
    "python": ("-c",),
    "python3": ("-c",),
    "uvx": ("--from", "--with"),
    "uv": ("--with",),
    "sh": ("-c",),
    "bash": ("-c",),
    "deno": ("eval",),
}
"""Options with which a harmless-looking launcher runs code from its arguments."""


def server_facts(config: ServerConfig) -> JsonObject:
    """Return the facts of a configuration, including the values of its variables."""
    if isinstance(config, StdioServerConfig):
        return {
            "id": config.id,
            "transport": config.kind,
            "argv": [config.command, *config.args],
            "cwd": config.cwd,
            "env": dict(config.env),
        }
    headers: list[JsonValue] = [*sorted(config.headers)]
    return {"id": config.id, "transport": config.kind, "url": config.url, "headers": headers, "proxy": config.proxy}


def consent_facts(row: ServerRow) -> JsonObject:
    """Return the facts that consent covers: the configuration and its references.

    The literal value of a header may change; a reference in it may not, and a literal text may not become a reference.
    """
    facts = server_facts(row.config)
    if row.auth is not None:
        facts["auth"] = row.auth
    if isinstance(row.config, StdioServerConfig) and row.config.replicas > 1:
        facts["replicas"] = row.config.replicas
    references: list[JsonValue] = [[reference.place, reference.written] for reference in find_references(row)]
    return {**facts, "references": references} if references else facts


def server_identity(config: ServerConfig) -> str:
    """Digest the identity of a server, whichever file configures it: pins belong to this.

    Values of variables are left out: a renewed token leaves the server the same.
    """
    facts = server_facts(config)
    if isinstance(config, StdioServerConfig):
        facts["env"] = [*sorted(config.env)]
    return _digest(facts, "")


def _digest(value: JsonValue, salt: str) -> str:
    text = salt + compact_json(value, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@record
class ConsentQuestion:
    """What a person must see before a server is started for the first time."""

    server: str
    file: str
    lines: tuple[str, ...]
    """Every fact in full, one per line, without terminal control characters."""
    warnings: tuple[str, ...]
    changed: tuple[str, ...]
    """What has changed since the consent; empty for a new server."""

    @property
    def details(self) -> tuple[str, ...]:
        """The facts, then what has changed, then the warnings, one per line."""
        changed = (f"CHANGED since it was consented to: {name}" for name in self.changed)
        return (*self.lines, *changed, *(f"WARNING: {warning}" for warning in self.warnings))


class TrustStore:
    """The consents of this user, in one private file outside every project."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path

    @property
    def path(self) -> str:
        """The path of the file.

        Raises:
            OSError: There is no home directory.
        """
        return self._path or os.path.join(state_dir(), "trust.json")

    def _file(self) -> PrivateJsonFile[_Consents]:
        return PrivateJsonFile(self.path, _LARGEST_BYTES, _parse_consents, _dump_consents)

    def consent(self, row: ServerRow) -> Consent:
        """Look up the consent to this server of this file, as it is now; a damaged store has none."""
        store, _ = self._file().read()
        known = store.rows.get(_row_key(row.origin.file, row.id))
        if known is None:
            return "unknown"
        same = known.get("digest") == _digest(consent_facts(row), store.salt)
        return "trusted" if same else "changed"

    def approve(self, row: ServerRow) -> None:
        """Store the consent to a server as it is now.

        Raises:
            OSError: The file cannot be written.
        """
        file = row.origin.file
        facts = consent_facts(row)
        with self._file().change() as store:
            parts: JsonObject = {name: _digest(value, store.salt) for name, value in facts.items() if name != "id"}
            store.rows[_row_key(file, row.id)] = {
                "file": os.path.realpath(file),
                "server": row.id,
                "digest": _digest(facts, store.salt),
                "parts": parts,
                "at": iso_utc(now_ms()),
            }

    def has_consent(self, file: str, server: str) -> bool:
        """Return whether there is a consent to a server of a file, whatever has changed since."""
        store, _ = self._file().read()
        return _row_key(file, server) in store.rows

    def revoke(self, file: str, server: str) -> bool:
        """Remove a consent, and tell whether there was one.

        Raises:
            OSError: The file cannot be written.
        """
        with self._file().change() as store:
            return store.rows.pop(_row_key(file, server), None) is not None

    def question(self, row: ServerRow) -> ConsentQuestion:
        """Build the question about a server."""
        store, _ = self._file().read()
        facts = consent_facts(row)
        known = store.rows.get(_row_key(row.origin.file, row.id))
        parts = known.get("parts") if known is not None else None
        changed = tuple(
            name
            for name, value in facts.items()
            if is_json_object(parts) and name != "id" and parts.get(name) != _digest(value, store.salt)
        )
        file = os.path.realpath(row.origin.file)
        return ConsentQuestion(row.id, file, tuple(_lines(row)), _warnings(row), changed)


# -- what is asked ----------------------------------------------------------------------------


def _lines(row: ServerRow) -> list[str]:
    config, rule = row.config, row.expansion

    def line(kind: str, name: str, value: str) -> str:
        shown = show_value(value, rule)
        return f"{kind}: {quote(name)} " + ("(a value is set)" if shown is None else quote(shown))

    if isinstance(config, StdioServerConfig):
        argv = [f"argument: {quote(argument)}" for argument in config.args]
        cwd = [f"directory: {quote(config.cwd)}"] if config.cwd else []
        env = [line("variable", name, value) for name, value in config.env.items()]
        env += [f"variable: {quote(name)} (handed on from your environment)" for name in row.secrets]
        return [f"command: {quote(config.command)}", *argv, *cwd, *env]
    headers = [line("header", name, value) for name, value in config.headers.items()]
    proxy = [f"proxy: {quote(show_url(config.proxy, rule))}"] if config.proxy else []
    auth = row.auth or {}
    signing_in = [
        f"sign-in, {name}: " + ("(a value is set)" if (shown := format_auth(name, value)) is None else quote(shown))
        for name, value in auth.items()
    ]
    return [f"address: {quote(show_url(config.url, rule))}", *proxy, *headers, *signing_in]


def _warnings(row: ServerRow) -> tuple[str, ...]:
    config = row.config
    disclosed = [reference.warning for reference in find_references(row) if reference.looks_secret]
    if not isinstance(config, StdioServerConfig):
        encrypted = config.url.lower().startswith("https://")
        runs = "It runs a command on this machine, whose output is sent to the server."
        command = [runs] if row.auth is not None and "header_command" in row.auth else []
        return (*disclosed, *command, *([] if encrypted else ["The address is not encrypted."]))
    code = [
        f"The variable {name} can change which code runs."
        for name in config.env
        if name.upper().startswith(_CODE_PREFIXES) or name.upper() in _CODE_VARIABLES
    ]
    warnings = [*disclosed, *code]
    launcher = os.path.basename(config.command)
    flags = [flag for flag in _CODE_FLAGS.get(launcher, ()) if flag in config.args]
    if flags:
        warnings.append(f"{launcher} {flags[0]} runs whatever its arguments say.")
    if os.sep in config.command and not os.path.isabs(config.command):
        warnings.append("The command is a file of the project itself.")
    return tuple(warnings)


# -- the file ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Consents:
    salt: str
    rows: dict[str, JsonObject]


def _parse_consents(document: JsonValue) -> tuple[_Consents, bool]:
    salt = document.get("salt") if is_json_object(document) else None
    rows = document.get("approved") if is_json_object(document) else None
    if not isinstance(salt, str) or not is_json_object(rows):
        return _Consents(secrets.token_hex(16), {}), True
    return _Consents(salt, {key: row for key, row in rows.items() if is_json_object(row)}), False


def _dump_consents(consents: _Consents) -> JsonValue:
    return {"version": _VERSION, "salt": consents.salt, "approved": dict(sorted(consents.rows.items()))}


def _row_key(file: str, server: str) -> str:
    return _digest([os.path.realpath(file), server], "")
