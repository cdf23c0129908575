"""Redaction: removes secrets from what is stored.

Secrets are known in two ways: as the values that the configuration gives to servers, and by their shape. Both are
replaced in texts; a definition that holds such a value is not stored at all, since a changed definition would not be
the server's.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from indusagi.interop.protocol_bridge.contract import StdioServerConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from indusagi.interop.protocol_bridge.contract import ServerConfig

REDACTED = "…"
"""Replaces a secret."""
_SHORTEST = 4
"""Shorter values occur in any text by chance, and can be guessed."""
_LONG = 16
"""A value of this length counts as a secret whatever its name, unless it has a slash or spaces: servers name
folders in their definitions."""
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|CRED|AUTH|SESSION|COOKIE|PRIVATE", re.I)
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<rest>[^\s'\"<>]+)")
_SHAPES = re.compile(
    r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)"
    r"|\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"
    r"|\bxox[a-z]-[\w-]{10,}|\bAKIA[0-9A-Z]{16}\b|\bAIza[\w-]{30,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|(?i:\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}",
    re.DOTALL,
)


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
            if is_random or _SECRET_NAME.search(name):
                # As it is, and as JSON encodes it.
                self._secrets |= {value, json.dumps(value, ensure_ascii=False)[1:-1]}
        # The longest first: one value may be a part of another.
        self._values = sorted(values, key=lambda value: (-len(value), value))

    def holds_secret(self, text: str) -> bool:
        """Tell whether a text holds a value that counts as a secret."""
        return any(value in text for value in self._secrets)

    def clean(self, text: str) -> str:
        """Replace every known value, secrets of known shapes, and credentials and queries of URLs."""
        for value in self._values:
            text = text.replace(value, REDACTED)
        return hide_shapes(_URL.sub(_strip_url, text))


def hide_shapes(text: str) -> str:
    """Replace secrets of well-known shapes: keys, tokens, credentials."""
    return _SHAPES.sub(REDACTED, text)


def _values(config: ServerConfig) -> Iterator[tuple[str, str]]:
    """Yield the values of a configuration, each with its name."""
    if isinstance(config, StdioServerConfig):
        yield from config.env.items()
        # The arguments whose option names a secret: `--token=x` and `--token x`.
        flag = ""
        for arg in config.args:
            name, _, value = arg.partition("=")
            if _SECRET_NAME.search(name) and name.startswith("-"):
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
