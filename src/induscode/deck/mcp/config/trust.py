"""Consent to servers that a project brings along.

A project's file can name any command. So nothing of it is started before a person has said yes to
exactly this: this file, this server, this command with these arguments and variables, this address.
What they said yes to is kept outside of every project. A server that was changed since is one that
nobody has consented to.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from indusagi.core.app_dirs import locked_directory, make_private_dir, read_small_file, replace_private_file, state_dir
from indusagi.core.clock import iso_utc, now_ms
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.interop.protocol_bridge.contract import ServerConfig, StdioServerConfig
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
"""With these a harmless-looking launcher runs whatever the arguments say."""


def server_facts(config: ServerConfig) -> JsonObject:
    """Give what a server is made from, the values of its variables included."""
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
    """Give everything about a row that consent is given to: what it is, and what it refers to.

    A literal header that is renewed makes no difference; a reference in one does, and so does a
    change of the file that turns a literal text into a reference.
    """
    facts = server_facts(row.config)
    references: list[JsonValue] = [[one.place, one.written] for one in find_references(row)]
    return {**facts, "references": references} if references else facts


def server_identity(config: ServerConfig) -> str:
    """Digest what a server is, whichever file names it: pins belong to this.

    Values of variables are left out: a token that was renewed makes no other server.
    """
    facts = server_facts(config)
    if isinstance(config, StdioServerConfig):
        facts["env"] = [*sorted(config.env)]
    return _digest(facts, "")


def _digest(value: JsonValue, salt: str) -> str:
    text = salt + compact_json(value, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class ConsentQuestion:
    """What a person is asked before a server is started for the first time."""

    server: str
    file: str
    lines: tuple[str, ...]
    """Every fact, whole, one a line, with nothing in it that a terminal would obey."""
    warnings: tuple[str, ...]
    changed: tuple[str, ...]
    """What is not as it was when somebody consented; empty for a server that is new."""


class TrustStore:
    """What was consented to, in one private file."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path

    @property
    def path(self) -> str:
        """Where it is kept; never inside a project.

        Raises:
            OSError: There is no home directory.
        """
        return self._path or os.path.join(state_dir(), "trust.json")

    def consent(self, row: ServerRow) -> Consent:
        """Tell whether a person has said yes to this server of this file, as it is now.

        A store that cannot be read has no consent in it.
        """
        store = _read(self.path)
        known = store.rows.get(_row_key(row.origin.file, row.id))
        if known is None:
            return "unknown"
        same = known.get("digest") == _digest(consent_facts(row), store.salt)
        return "trusted" if same else "changed"

    def approve(self, row: ServerRow) -> None:
        """Say yes to a server as it is now.

        Raises:
            OSError: It cannot be kept.
        """
        file = row.origin.file
        facts = consent_facts(row)
        with _changing(self.path) as store:
            parts: JsonObject = {name: _digest(value, store.salt) for name, value in facts.items() if name != "id"}
            store.rows[_row_key(file, row.id)] = {
                "file": os.path.realpath(file),
                "server": row.id,
                "digest": _digest(facts, store.salt),
                "parts": parts,
                "at": iso_utc(now_ms()),
            }

    def revoke(self, file: str, server: str) -> bool:
        """Take the consent back, and tell whether there was any.

        Raises:
            OSError: It cannot be kept.
        """
        with _changing(self.path) as store:
            return store.rows.pop(_row_key(file, server), None) is not None

    def question(self, row: ServerRow) -> ConsentQuestion:
        """Put together what a person must see before they say yes."""
        store = _read(self.path)
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
        argv = [f"argument: {quote(one)}" for one in config.args]
        cwd = [f"directory: {quote(config.cwd)}"] if config.cwd else []
        env = [line("variable", name, value) for name, value in config.env.items()]
        env += [f"variable: {quote(one)} (handed on from your environment)" for one in row.secrets]
        return [f"command: {quote(config.command)}", *argv, *cwd, *env]
    headers = [line("header", name, value) for name, value in config.headers.items()]
    proxy = [f"proxy: {quote(show_url(config.proxy, rule))}"] if config.proxy else []
    return [f"address: {quote(show_url(config.url, rule))}", *proxy, *headers]


def _warnings(row: ServerRow) -> tuple[str, ...]:
    config = row.config
    secrets_given = [one.warning for one in find_references(row) if one.looks_secret]
    if not isinstance(config, StdioServerConfig):
        encrypted = config.url.lower().startswith("https://")
        return (*secrets_given, *([] if encrypted else ["The address is not encrypted."]))
    said = [*secrets_given, *_code_warnings(config)]
    if os.sep in config.command and not os.path.isabs(config.command):
        said.append("The command is a file of the project itself.")
    return tuple(said)


def _code_warnings(config: StdioServerConfig) -> list[str]:
    said = [
        f"The variable {name} can change which code runs."
        for name in config.env
        if name.upper().startswith(_CODE_PREFIXES) or name.upper() in _CODE_VARIABLES
    ]
    launcher = os.path.basename(config.command)
    flags = [flag for flag in _CODE_FLAGS.get(launcher, ()) if flag in config.args]
    if flags:
        said.append(f"{launcher} {flags[0]} runs whatever its arguments say.")
    return said


# -- the file ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Store:
    salt: str
    rows: dict[str, JsonObject]
    damaged: bool = False


def _row_key(file: str, server: str) -> str:
    return _digest([os.path.realpath(file), server], "")


def _read(path: str) -> _Store:
    found: JsonValue = None
    there = True
    try:
        found = json.loads(read_small_file(path, _LARGEST_BYTES, follow=False))
    except FileNotFoundError:
        there = False
    except (OSError, ValueError, RecursionError):
        pass  # told as damaged: consent that cannot be read is none
    salt = found.get("salt") if is_json_object(found) else None
    rows = found.get("approved") if is_json_object(found) else None
    if not isinstance(salt, str) or not is_json_object(rows):
        return _Store(secrets.token_hex(16), {}, damaged=there)
    return _Store(salt, {key: row for key, row in rows.items() if is_json_object(row)})


@contextmanager
def _changing(path: str) -> Generator[_Store]:
    """Read, let the caller change, and write in one step; two processes wait for each other."""
    folder = make_private_dir(os.path.dirname(path))
    with locked_directory(folder):
        store = _read(path)
        if store.damaged:
            os.replace(path, f"{path}.corrupt-{new_ulid()}")
        yield store
        _write(path, store)


def _write(path: str, store: _Store) -> None:
    rows: JsonObject = dict(sorted(store.rows.items()))
    text = json.dumps({"version": _VERSION, "salt": store.salt, "approved": rows}, indent=1)
    replace_private_file(path, text.encode("utf-8"))
