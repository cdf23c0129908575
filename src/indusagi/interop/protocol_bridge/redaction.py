"""Redaction: removes the secrets of servers from faults, logs and records.

Secrets are recognized as values in server configurations and by their shape (`core.secrets`), and replaced in texts. A
definition that contains one isn't stored at all: with the value replaced, it wouldn't be the server's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from indusagi.core.secrets import REDACTED, REFERENCE, hide_secrets, holds_secret, is_secret_name, quotes_value
from indusagi.interop.protocol_bridge.contract import ServerConfig, StdioServerConfig

if TYPE_CHECKING:
    from indusagi.interop.auth.contract import ServerAuth

_MIN_CHARS = 4
"""Shorter values occur in any text by chance, and can be guessed."""
_LONG_CHARS = 16
"""Values of this length count as secrets under any name, unless they contain a slash or spaces: servers mention folders
in their definitions."""
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<rest>[^\s'\"<>]+)")


class Redaction:
    """Redacts the values in server configurations."""

    def __init__(self, servers: Iterable[ServerConfig] = ()) -> None:
        self._values: list[str] = []
        self._secrets: set[str] = set()
        self.learn(servers)

    def learn(self, servers: Iterable[ServerConfig]) -> None:
        """Add the values of more servers."""
        values = set(self._values)
        for name, value in (pair for config in servers for pair in _values(config)):
            if len(value) < _MIN_CHARS or re.search(REFERENCE, value):  # a value that's read later is no value yet
                continue
            values.add(value)
            is_random = len(value) >= _LONG_CHARS and "/" not in value and not any(map(str.isspace, value))
            if is_random or is_secret_name(name) or holds_secret(value):
                # Verbatim and JSON-encoded.
                self._secrets |= {value, json.dumps(value, ensure_ascii=False)[1:-1]}
        # Longest first, because one value may be part of another.
        self._values = sorted(values, key=lambda value: (-len(value), value))

    def holds_secret(self, text: str) -> bool:
        """Return whether a text contains a secret value."""
        return any(value in text for value in self._secrets) or quotes_value(text)

    def clean(self, text: str) -> str:
        """Replace every configured value, secrets by shape, and credentials and queries of URLs."""
        for value in self._values:
            text = text.replace(value, REDACTED)
        return hide_secrets(_URL.sub(_strip_url, text))

    def hide(self, text: str) -> str:
        """Replace only secrets; for messages to the user, in which other values should stay readable."""
        for value in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(value, REDACTED)
        return hide_secrets(text)

    def hide_lines(self, lines: Sequence[str]) -> tuple[str, ...]:
        """Hide secrets in lines; a private key spans several."""
        return tuple(self.hide("\n".join(lines)).split("\n")) if lines else ()


def _values(config: ServerConfig) -> Iterator[tuple[str, str]]:
    """Yield the values of a configuration with their names."""
    if isinstance(config, StdioServerConfig):
        yield from config.env.items()
        yield from _list_passwords("\n".join((*config.env.values(), *config.args)))
        # Arguments of options that name a secret: `--token=x` and `--token x`.
        flag = ""
        for arg in config.args:
            name, _, value = arg.partition("=")
            if is_secret_name(name) and name.startswith("-"):
                flag = "" if value else name
                yield name, value
            elif flag:
                yield flag, arg
                flag = ""
        return
    for name, value in config.headers.items():
        yield name, value
        # In "Bearer abc" the second word is the secret, and may occur alone.
        yield name, value.rpartition(" ")[2]
    yield from _list_sign_in_secrets(config.auth)
    for url in filter(None, (config.url, config.proxy)):
        try:
            parts = urlsplit(url)
            pairs = parse_qsl(parts.query)
        except ValueError:  # an invalid URL, so nothing was ever sent to it
            continue
        for piece in parts.netloc.rpartition("@")[0].split(":"):
            yield "password", piece
            yield "password", unquote(piece)
        yield from pairs


def _list_sign_in_secrets(auth: ServerAuth | None) -> Iterator[tuple[str, str]]:
    if auth is None:
        return
    settings, provider = auth.settings, auth.settings.identity_provider
    yield from _name_all("secret", settings.client_secret, settings.private_key, settings.assertion)
    if provider is not None:
        yield from _name_all("secret", provider.client_secret, provider.id_token)


def _name_all(name: str, *values: str | None) -> Iterator[tuple[str, str]]:
    return ((name, value) for value in values if value)


def _list_passwords(text: str) -> Iterator[tuple[str, str]]:
    """Yield the passwords of URLs in a text; not the `postgres` of `postgres://postgres:postgres@localhost`."""
    for match in _URL.finditer(text):
        password = match["rest"].partition("/")[0].rpartition("@")[0].partition(":")[2]
        if password and match[0].count(password) == 1:
            yield "password", password
            yield "password", unquote(password)


def _strip_url(match: re.Match[str]) -> str:
    """Keep a URL's scheme, host and path; replace user info and query (RFC 3986 §3)."""
    rest = match["rest"]
    authority, slash, path = rest.partition("/")
    before, _, query = path.partition("?")
    authority, _, bare_query = authority.partition("?")
    user, at, host = authority.rpartition("@")
    shown = f"{REDACTED}@{host}" if at and user else host
    hidden = f"?{REDACTED}" if query or bare_query else ""
    return f"{match['scheme']}{shown}{slash}{before.partition('#')[0]}{hidden}"
