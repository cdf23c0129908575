"""Redaction: removes the secrets of servers from faults, logs and records.

Secrets are recognized as values in server configurations and by their shape (`core.secrets`), and replaced in texts. A
definition that contains one isn't stored at all: with the value replaced, it wouldn't be the server's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from indusagi.core.secrets import (
    REDACTED,
    REFERENCE,
    URL,
    hide_in_urls,
    hide_secrets,
    holds_secret,
    is_distinct,
    is_secret_name,
    list_spellings,
    quotes_value,
)
from indusagi.core.text import clean_json, iter_strings
from indusagi.core.time import TimedLine
from indusagi.interop.protocol_bridge.contract import ServerConfig, StdioServerConfig

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue

_MIN_CHARS = 4
"""Shorter values occur in any text by chance, and can be guessed."""
_LONG_CHARS = 16
"""Values of this length count as secrets under any name, unless they're a path or contain spaces: servers mention
folders in their definitions."""
_MAX_LEARNED = 32
"""Credentials of requests to remember: tokens are renewed all the time."""
_PUBLIC_HEADERS = frozenset({"dpop"})
"""A proof for one request."""


class Redaction:
    """Redacts the values in server configurations."""

    def __init__(self, servers: Iterable[ServerConfig] = ()) -> None:
        self._values: list[str] = []
        self._spellings: list[str] = []
        """Of every secret, the longest first, because one value may be part of another."""
        self._certain: list[str] = []
        """Of secrets that aren't likely to be data."""
        self._learned: dict[str, Sequence[str]] = {}
        """The spellings of credentials of requests, the newest last."""
        self.learn(servers)

    def learn(self, servers: Iterable[ServerConfig]) -> None:
        """Add the values of more servers."""
        pairs = [
            (name, value)
            for config in servers
            for name, value in _values(config)
            if len(value) >= _MIN_CHARS and not re.search(REFERENCE, value)  # a value that's read later is no value yet
        ]
        self._values = _sort({*self._values, *(value for _, value in pairs)})
        self._add(
            [pair for pair in pairs if _looks_random(pair[1]) or is_secret_name(pair[0]) or holds_secret(pair[1])]
        )

    def learn_headers(self, headers: Mapping[str, str]) -> None:
        """Add the credentials in headers of a request."""
        for name, text in headers.items():
            value = text.rpartition(" ")[2]
            if value not in self._learned and is_secret_name(name) and name not in _PUBLIC_HEADERS:
                self._learned[value] = _sort(list_spellings(value))
                if len(self._learned) > _MAX_LEARNED:
                    del self._learned[next(iter(self._learned))]

    def _add(self, secrets: Sequence[tuple[str, str]]) -> None:
        spellings = {value: list_spellings(value) for _, value in secrets}
        certain = {
            value
            for name, value in secrets
            if is_distinct(value) and not _PUBLIC.search(name)
            if is_secret_name(name) or quotes_value(value) or holds_secret(value)
        }
        self._spellings = _sort({*self._spellings, *(text for value in spellings for text in spellings[value])})
        self._certain = _sort({*self._certain, *(text for value in certain for text in spellings[value])})

    def holds_secret(self, text: str) -> bool:
        """Return whether a text contains a secret value."""
        return any(value in text for value in self._spellings) or quotes_value(text)

    def clean(self, text: str) -> str:
        """Replace every configured value, secrets by shape, and credentials and queries of URLs."""
        text = _replace(text, self._spellings)
        return hide_secrets(hide_in_urls(_replace(text, self._values)))

    def hide(self, text: str) -> str:
        """Replace only secrets; for messages to the user, in which other values should stay readable."""
        return hide_secrets(_replace(text, self._spellings))

    def hide_lines(self, lines: Sequence[str]) -> tuple[str, ...]:
        """Hide secrets in lines; a private key spans several."""
        return tuple(self.hide("\n".join(lines)).split("\n")) if lines else ()

    def hide_log(self, lines: Sequence[str], prefix: str = "") -> Iterator[TimedLine]:
        """Hide secrets in lines of a log, which keep their times unless a secret spans several."""
        hidden = self.hide_lines(lines)
        times = [getattr(line, "at_ms", 0) for line in lines]
        for line, at_ms in zip(hidden, times if len(hidden) == len(lines) else [0] * len(hidden), strict=True):
            yield TimedLine(f"{prefix}{line}", at_ms)

    def hide_in_frame(self, frame: JsonValue) -> JsonValue:
        """Replace secrets in the server's messages, except values that may be data."""
        if not self._certain and not self._learned:
            return frame
        text = "\n".join(iter_strings(frame))
        known = [value for values in (self._certain, *self._learned.values()) for value in values if value in text]
        if not known:
            return frame

        def clean(text: str) -> tuple[str, int]:
            cleaned = _replace(text, known)
            return cleaned, cleaned != text

        return clean_json(frame, clean)[0]


_PUBLIC = re.compile(r"(?i)key[-_]?id$|user|public|publishable|anon(?![a-z])")
"""Names of values that belong to a secret, and that others may see: `AWS_ACCESS_KEY_ID` is in every presigned URL."""
_PATH = re.compile(r"[.~]?/|.*://|\D*$|[^A-Z]*$|[^a-z]*$")
"""Matches what has slashes and isn't base64: a path, a URL, or a text without a mixture of letters and digits."""


def _looks_random(value: str) -> bool:
    is_path = "/" in value and _PATH.match(value) is not None
    return len(value) >= _LONG_CHARS and not is_path and not any(map(str.isspace, value))


def _sort(texts: Iterable[str]) -> list[str]:
    return sorted(texts, key=lambda text: (-len(text), text))


def _replace(text: str, values: Iterable[str]) -> str:
    for value in values:
        text = text.replace(value, REDACTED)
    return text


def _values(config: ServerConfig) -> Iterator[tuple[str, str]]:
    """Yield the values of a configuration with their names."""
    if isinstance(config, StdioServerConfig):
        yield from config.env.items()
        yield from _list_passwords("\n".join((*config.env.values(), *config.args)))
        for _, name, value in find_option_secrets(config.args):
            yield name, value
        return
    for name, value in config.headers.items():
        yield name, value
        # In "Bearer abc" the second word is the secret, and may occur alone.
        yield name, value.rpartition(" ")[2]
    if config.auth is not None:
        settings, provider = config.auth.settings, config.auth.settings.identity_provider
        secrets = [settings.client_secret, settings.private_key, settings.assertion]
        secrets += [] if provider is None else [provider.client_secret, provider.id_token]
        yield from (("secret", value) for value in secrets if value)
    for url in filter(None, (config.url, config.proxy)):
        try:
            parts = urlsplit(url)
            pairs = parse_qsl(parts.query)
        except ValueError:  # an invalid URL, so nothing was ever sent to it
            continue
        user, colon, password = parts.netloc.rpartition("@")[0].partition(":")
        for name, piece in (("user password" if colon else "password", user), ("password", password)):
            yield name, piece
            yield name, unquote(piece)
        yield from pairs
        # As written, too.
        yield from ((name, value) for name, _, value in (pair.partition("=") for pair in parts.query.split("&")))


def find_option_secrets(args: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Yield the values of options that name a secret, `--token=x` and `--token x`, with their index and option."""
    flag = ""
    for index, arg in enumerate(args):
        name, _, value = arg.partition("=")
        if is_secret_name(name) and name.startswith("-"):
            flag = "" if value else name
            yield index, name, value
        elif flag:
            yield index, flag, arg
            flag = ""


def _list_passwords(text: str) -> Iterator[tuple[str, str]]:
    """Yield the passwords of URLs in a text; not the `postgres` of `postgres://postgres:postgres@localhost`."""
    for match in URL.finditer(text):
        password = match["rest"].partition("/")[0].rpartition("@")[0].partition(":")[2]
        if password and match[0].count(password) == 1:
            yield "password", password
            yield "password", unquote(password)
