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
from urllib.parse import urlsplit, urlunsplit

from indusagi.core.clock import iso_utc, now_ms
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.places import (
    make_private_dir,
    read_small_file,
    replace_private_file,
    state_dir,
)
from indusagi.core.turns import turn_at
from indusagi.interop.protocol_bridge.contract import ServerConfig, StdioServerConfig

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
    """Give everything about a server that consent is given to, its secrets included."""
    if isinstance(config, StdioServerConfig):
        return {
            "id": config.id,
            "transport": config.kind,
            "argv": [config.command, *config.args],
            "cwd": config.cwd,
            "env": dict(config.env),
        }
    headers: list[JsonValue] = [*sorted(config.headers)]
    return {
        "id": config.id,
        "transport": config.kind,
        "url": config.url,
        "headers": headers,
        "proxy": config.proxy,
    }


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
class Question:
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

    def consent(self, file: str, config: ServerConfig) -> Consent:
        """Tell whether somebody has said yes to this server of this file, as it is now.

        A store that cannot be read has no consent in it.
        """
        store = _read(self.path)
        known = store.rows.get(_row_key(file, config.id))
        if known is None:
            return "unknown"
        same = known.get("digest") == _digest(server_facts(config), store.salt)
        return "trusted" if same else "changed"

    def approve(self, file: str, config: ServerConfig) -> None:
        """Say yes to a server as it is now.

        Raises:
            OSError: It cannot be kept.
        """
        facts = server_facts(config)
        with _changing(self.path) as store:
            parts: JsonObject = {
                name: _digest(value, store.salt) for name, value in facts.items() if name != "id"
            }
            store.rows[_row_key(file, config.id)] = {
                "file": os.path.realpath(file),
                "server": config.id,
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

    def question(self, file: str, config: ServerConfig) -> Question:
        """Put together what a person must see before they say yes."""
        store = _read(self.path)
        facts = server_facts(config)
        known = store.rows.get(_row_key(file, config.id))
        parts = known.get("parts") if known is not None else None
        changed = tuple(
            name
            for name, value in facts.items()
            if is_json_object(parts)
            and name != "id"
            and parts.get(name) != _digest(value, store.salt)
        )
        return Question(
            config.id, os.path.realpath(file), tuple(_shown(config)), _warnings(config), changed
        )


# -- what is asked ----------------------------------------------------------------------------


def _shown(config: ServerConfig) -> list[str]:
    if isinstance(config, StdioServerConfig):
        argv = [f"argument: {_escaped(one)}" for one in config.args]
        cwd = [f"directory: {_escaped(config.cwd)}"] if config.cwd else []
        env = [f"variable: {_escaped(name)} (a value is set)" for name in config.env]
        return [f"command: {_escaped(config.command)}", *argv, *cwd, *env]
    headers = [f"header: {_escaped(name)} (a value is set)" for name in config.headers]
    proxy = [f"proxy: {_escaped(_without_secrets(config.proxy))}"] if config.proxy else []
    return [f"address: {_escaped(_without_secrets(config.url))}", *proxy, *headers]


def _escaped(text: str) -> str:
    """Write a text so that every character can be seen, and the whole of it."""
    return json.dumps(text, ensure_ascii=True)


def _without_secrets(url: str) -> str:
    """Leave out of an address what may be a password or a token."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    user = "…@" if parts.username or parts.password else ""
    return urlunsplit(
        (parts.scheme, f"{user}{host}{port}", parts.path, "…" * bool(parts.query), "")
    )


def _warnings(config: ServerConfig) -> tuple[str, ...]:
    if not isinstance(config, StdioServerConfig):
        plain = config.url.startswith("http://")
        return ("The address is not encrypted.",) if plain else ()
    said = [
        f"The variable {name} can change which code runs."
        for name in config.env
        if name.upper().startswith(_CODE_PREFIXES) or name.upper() in _CODE_VARIABLES
    ]
    launcher = os.path.basename(config.command)
    flags = [flag for flag in _CODE_FLAGS.get(launcher, ()) if flag in config.args]
    if flags:
        said.append(f"{launcher} {flags[0]} runs whatever its arguments say.")
    if os.sep in config.command and not os.path.isabs(config.command):
        said.append("The command is a file of the project itself.")
    return tuple(said)


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
    with turn_at(folder):
        store = _read(path)
        if store.damaged:
            os.replace(path, f"{path}.corrupt-{new_ulid()}")
        yield store
        _write(path, store)


def _write(path: str, store: _Store) -> None:
    rows: JsonObject = dict(sorted(store.rows.items()))
    text = json.dumps({"version": _VERSION, "salt": store.salt, "approved": rows}, indent=1)
    replace_private_file(path, text.encode("utf-8"))
