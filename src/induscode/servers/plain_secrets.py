"""Secrets that rows of configuration files have in plain text: where they are, and moving them into the store."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from indusagi.core.config_file import read_config_file
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import REDACTED, holds_secret, is_plain_secret, is_secret_name
from indusagi.interop.protocol_bridge.redaction import find_option_secrets
from induscode.servers.clients import PROGRAMS, config_places
from induscode.servers.config import list_config_paths
from induscode.servers.config.dialects import PATTERNS, detect_dialect, find_dialect
from induscode.servers.config.rows import VALUE_FIELDS
from induscode.servers.remedies import format_command

if TYPE_CHECKING:
    from indusagi.interop.auth.secrets import SecretFiles
    from induscode.servers.config.dialects import Expansion

_URLS: Final = ("url", "proxy")
_SIGN_IN: Final = frozenset({"client_secret", "private_key", "assertion", "id_token"})
_SCHEME = re.compile(r"(?:basic|bearer|token|api[_-]?key)\s+", re.IGNORECASE)
"""https://www.rfc-editor.org/rfc/rfc9110#section-11.4"""
_PASSWORD = re.compile(r"[A-Za-z][\w+.-]*://[^/?#@:]*:(?P<value>[^/?#@]+)@")
_PARAMETER = re.compile(r"(?<=[?&])(?P<name>[^=&#]+)=(?P<value>[^&#]+)")
_MAX_NAME_CHARS: Final = 60


@record
class PlainSecret:
    """A secret in a row."""

    keys: tuple[str | int, ...]
    """Where its text is in the row."""
    label: str
    """Its variable, header, option or parameter."""
    start: int
    """Where it begins in the text."""
    value: str = field(repr=False)

    @property
    def place(self) -> str:
        """The place for display: `env.TOKEN`, `args[2]`, `url (key)`."""
        first, *rest = self.keys
        if not rest:
            return f"{first} ({self.label})"
        return f"{first}" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in rest)


def find_plain_secrets(fields: JsonObject, rule: Expansion) -> Sequence[PlainSecret]:
    """Find the secrets in a row that it doesn't refer to. A text with a reference has none."""
    return [found for found in _find(fields) if not PATTERNS[rule].search(str(_read(fields, found.keys)))]


def _find(fields: JsonObject) -> Iterator[PlainSecret]:
    for key in VALUE_FIELDS:
        for name, text in _list_texts(fields.get(key)):
            scheme = _SCHEME.match(text)
            start = 0 if scheme is None else scheme.end()
            if is_plain_secret(name, text[start:]) or holds_secret(text):
                yield PlainSecret((key, name), name, start, text[start:])
    for keys, value in _list_sign_ins(fields):
        yield PlainSecret(keys, str(keys[-1]), 0, value)
    args = fields.get("args")
    yield from _find_in_args([arg if isinstance(arg, str) else "" for arg in args] if isinstance(args, list) else [])
    for key in _URLS:
        text = fields.get(key)
        if isinstance(text, str):
            yield from _find_in_url(key, text)


def _find_in_args(words: Sequence[str]) -> Iterator[PlainSecret]:
    options = {index: (name, value) for index, name, value in find_option_secrets(words)}
    for index, word in enumerate(words):
        name, value = options.get(index, ("", ""))
        if is_plain_secret(name, value):
            yield PlainSecret(("args", index), name, len(word) - len(value), value)
        elif holds_secret(word):
            yield PlainSecret(("args", index), f"argument-{index + 1}", 0, word)


def _find_in_url(key: str, text: str) -> Iterator[PlainSecret]:
    if password := _PASSWORD.match(text):
        yield PlainSecret((key,), "password", password.start("value"), password["value"])
    for found in _PARAMETER.finditer(text):
        if is_secret_name(found["name"]) or holds_secret(found["value"]):
            yield PlainSecret((key,), found["name"], found.start("value"), found["value"])


def _list_texts(value: JsonValue) -> Iterator[tuple[str, str]]:
    for name, text in value.items() if is_json_object(value) else ():
        if isinstance(text, str):
            yield name, text


def _list_sign_ins(fields: JsonObject) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the secrets of a sign-in, in any client's spelling."""
    for key in ("auth", "oauth"):
        value = fields.get(key)
        provider = value.get("identity_provider") if is_json_object(value) else None
        for keys, part in (((key,), value), ((key, "identity_provider"), provider)):
            for name, text in _list_texts(part):
                if re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower() in _SIGN_IN:
                    yield (*keys, name), text


def _read(fields: Any, keys: Sequence[str | int]) -> Any:
    for key in keys:
        fields = fields[key]
    return fields


# -- moving them ------------------------------------------------------------------------------


@record
class SecretMove:
    """The secrets of one row, and the names they get in the store."""

    server: str
    fields: JsonObject = field(repr=False)
    """The row as it is."""
    secrets: Sequence[PlainSecret]
    names: Sequence[str]

    def build_row(self) -> JsonObject:
        """Build the row with references instead of the secrets."""
        changed = deepcopy(self.fields)
        # From the end, so that the places in one text stay.
        for secret, name in sorted(zip(self.secrets, self.names, strict=True), key=lambda pair: -pair[0].start):
            holder, key = _read(changed, secret.keys[:-1]), secret.keys[-1]
            text = holder[key]
            holder[key] = f"{text[: secret.start]}${{keyring:{name}}}{text[secret.start + len(secret.value) :]}"
        return changed

    def describe(self) -> Iterator[str]:
        """Describe the change, without values."""
        for secret, name in zip(self.secrets, self.names, strict=True):
            yield f"{self.server}: {secret.place}: {REDACTED} becomes ${{keyring:{name}}}"

    def store(self, store: SecretFiles) -> None:
        """Store the secrets. Raises `SecretFault` if one can't be stored. Blocks."""
        for secret, name in zip(self.secrets, self.names, strict=True):
            store.set(name, secret.value)


def plan_move(
    server: str, fields: JsonObject, taken: Collection[str], former: JsonObject | None = None
) -> SecretMove | None:
    """Plan to move the secrets of a row of ours, or return `None` without any.

    Their names are like `github.GITHUB_TOKEN`. One that's `taken` is used again if the row it replaces (`former`)
    refers to it.
    """
    secrets, names = find_plain_secrets(fields, "shell"), list[str]()
    used = compact_json(former or {})
    for secret in secrets:
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{server}.{secret.label.strip('-')}").lstrip("._-")[:_MAX_NAME_CHARS]
        free = (name for number in count(1) if (name := base if number == 1 else f"{base}-{number}") not in names)
        names.append(next(name for name in free if name not in taken or f"${{keyring:{name}}}" in used))
    return SecretMove(server, fields, secrets, names) if secrets else None


# -- files ------------------------------------------------------------------------------------


@record
class PlainRow:
    """A row with secrets in plain text."""

    file: str
    program: str
    """The client whose file it is; `indus` for ours."""
    server: str
    places: tuple[str, ...]

    @property
    def remedy(self) -> str:
        """The command that repairs it. We don't change files of other clients."""
        if self.program == "indus":
            return f"{format_command('secrets', 'move')} {shlex.quote(self.server)}"
        imported = f"{format_command('mcp', 'import')} --from {self.program} --store-secrets"
        return f"{imported}, then remove the server from that file"

    def to_json(self) -> JsonObject:
        """Return the facts as JSON."""
        facts: JsonObject = {"file": self.file, "program": self.program, "server": self.server}
        return {**facts, "places": [*self.places], "remedy": self.remedy}


def find_plain_rows(cwd: str, environ: Mapping[str, str]) -> Iterator[PlainRow]:
    """Yield the rows with secrets in plain text in our files and those of other clients. Blocks."""
    files = [("indus", path) for path, _ in list_config_paths(cwd)]
    files += [(program, path) for program in PROGRAMS for path, _ in config_places(program, cwd, environ)]
    for program, path in files:
        document = read_config_file(path).document if os.path.isfile(path) else None
        if not is_json_object(document):
            continue
        dialect = detect_dialect(path, document) if program == "indus" else find_dialect(program, document)
        if dialect is None:
            continue
        for row in dialect.read_rows(document):
            found = find_plain_secrets(row.fields, dialect.expansion) if is_json_object(row.fields) else ()
            if found:
                yield PlainRow(path, program, row.name, tuple(dict.fromkeys(secret.place for secret in found)))
