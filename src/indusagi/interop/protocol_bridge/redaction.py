"""Redaction: removes secrets of servers from faults, logs and records.

Secrets are known in two ways: as the values that the configuration gives to servers, and by their shape
(`core.secrets`). Both are replaced in texts. A definition that holds such a value isn't stored at all: with the value
replaced it wouldn't be the server's.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from indusagi.core.secrets.names import REDACTED, hide_secrets, holds_secret, is_secret_name
from indusagi.interop.protocol_bridge.contract import StdioServerConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from indusagi.interop.protocol_bridge.contract import ServerConfig

_SHORTEST = 4
"""Shorter values occur in any text by chance, and can be guessed."""
_LONG = 16
"""A value of this length counts as a secret whatever its name, unless it has a slash or spaces: servers name
folders in their definitions."""
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<rest>[^\s'\"<>]+)")


class Redaction:
    """Knows the values in the configurations of servers."""

    def __init__(self, servers: Iterable[ServerConfig] = ()) -> None:
        self._values: list[str] = []
        self._secrets: set[str] = set()
        self.learn(servers)

    def learn(self, servers: Iterable[ServerConfig]) -> None:
        """Add the values of further servers."""
        values = set(self._values)
        for name, value in (pair for config in servers for pair in _values(config)):
            if len(value) < _SHORTEST:
                continue
            values.add(value)
            is_random = len(value) >= _LONG and "/" not in value and not any(map(str.isspace, value))
            if is_random or is_secret_name(name) or holds_secret(value):
                # As it is, and as JSON encodes it.
                self._secrets |= {value, json.dumps(value, ensure_ascii=False)[1:-1]}
        # The longest first: one value may be a part of another.
        self._values = sorted(values, key=lambda value: (-len(value), value))

    def holds_secret(self, text: str) -> bool:
        """Tell whether a text holds a value that counts as a secret."""
        return any(value in text for value in self._secrets)

    def clean(self, text: str) -> str:
        """Replace every value of the rows, secrets of known shapes, and credentials and queries of URLs."""
        for value in self._values:
            text = text.replace(value, REDACTED)
        return hide_secrets(_URL.sub(_strip_url, text))

    def hide(self, text: str) -> str:
        """Replace only secrets: in a message for the user, other values of the row stay readable."""
        for value in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(value, REDACTED)
        return hide_secrets(text)


def _values(config: ServerConfig) -> Iterator[tuple[str, str]]:
    """Yield the values of a configuration, each with its name."""
    if isinstance(config, StdioServerConfig):
        yield from config.env.items()
        # The arguments whose option names a secret: `--token=x` and `--token x`.
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
        # "Bearer abc": the second word is the secret, and may occur alone.
        yield name, value.rpartition(" ")[2]
    for url in filter(None, (config.url, config.proxy)):
        try:
            parts = urlsplit(url)
            pairs = parse_qsl(parts.query)
        except ValueError:  # an invalid URL: nothing was ever sent to it
            continue
        for piece in parts.netloc.rpartition("@")[0].split(":"):
            yield "password", piece
            yield "password", unquote(piece)
        yield from pairs


def _strip_url(match: re.Match[str]) -> str:
    """Keep the scheme, host and path of a URL; replace user information and query (RFC 3986 §3)."""
    rest = match["rest"]
    authority, slash, path = rest.partition("/")
    before, _, query = path.partition("?")
    authority, _, bare_query = authority.partition("?")
    user, at, host = authority.rpartition("@")
    shown = f"{REDACTED}@{host}" if at and user else host
    hidden = f"?{REDACTED}" if query or bare_query else ""
    return f"{match['scheme']}{shown}{slash}{before.partition('#')[0]}{hidden}"
