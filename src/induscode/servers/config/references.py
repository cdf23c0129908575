"""References in a row: the variables and files that expansion replaces with their values.

Wherever users look at or decide about a server, they see references as written: they consent to the variable's name,
not its value. Literal values next to it stay hidden. References are everything `expansion.expand` replaces (both use
the same patterns), plus names in a default, which another program reading the file may replace.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from indusagi.core.json import JsonObject
from indusagi.core.records import record
from indusagi.core.secrets import REDACTED, hide_secrets, looks_secret
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from induscode.servers.config.auth_fields import iter_auth_texts
from induscode.servers.config.expansion import Expansion, parse_reference, reference_pattern
from induscode.servers.config.rows import ServerRow

_NESTED = re.compile(r"\$\{?(?:env:)?([A-Za-z_][A-Za-z0-9_]*)|\{(?:env|file):([^}]*)")
"""A reference inside another one's default."""
_SCHEME_WORD = re.compile(r"\s*(?:(?:Bearer|Basic|Token|ApiKey|Digest|Negotiate)\s+)?", re.I)
_URL_PARTS = re.compile(
    r"(?P<scheme>[^:/?#]*:)?(?://(?P<authority>[^/?#]*))?(?P<path>[^?#]*)"
    r"(?:\?(?P<query>[^#]*))?(?:#(?P<fragment>.*))?",
    re.DOTALL,
)
"""The five parts of a URL: RFC 3986 appendix B (https://www.rfc-editor.org/rfc/rfc3986#appendix-B)."""
_FIRST_MARK = 0xE000
_MARKS = range(_FIRST_MARK, 0xF900)
"""Private-use characters that stand in for references while splitting a URL: a default may hold `?`, `#` or `@`."""


@record
class Reference:
    """A variable or file whose value would be disclosed."""

    written: str
    """As written in the row: `${GITHUB_TOKEN}`."""
    name: str
    """The variable, or the file's path."""
    place: str
    """Where the value goes: `header "Authorization"`."""
    recipient: str
    """Who gets the value: the address's host, or the program."""
    looks_secret: bool
    is_file: bool = False
    """Whether it's a file's content instead of a variable."""

    def as_json(self) -> JsonObject:
        """Return the facts for `--json`."""
        return {
            "written": hide_secrets(self.written),
            "place": self.place,
            "recipient": self.recipient,
            "looksSecret": self.looks_secret,
        }

    @property
    def warning(self) -> str:
        """The secret, its place and its recipient."""
        shown = hide_secrets(self.written)
        return f"{shown} looks like a secret: {self.recipient} gets its value, in {self.place}."


def find_references(row: ServerRow) -> Sequence[Reference]:
    """List the references of a row, in field order."""
    return tuple(dict.fromkeys(_find(row)))


def _find(row: ServerRow) -> Iterator[Reference]:
    config, rule = row.config, row.expansion
    if isinstance(config, StdioServerConfig):
        program = f"the program {quote(os.path.basename(config.command) or config.command)}"
        fields = [
            ("the command", config.command),
            *((f"argument {number}", text) for number, text in enumerate(config.args, 1)),
            ("the directory", config.cwd or ""),
            *((f"variable {quote(name)}", text) for name, text in config.env.items()),
        ]
        for place, text in fields:
            yield from _references(text, rule, place, program)
        for name in row.secrets:
            place = f"variable {quote(name)}"
            yield Reference(f"${{{name}}}", name, place, program, looks_secret(name))
        return
    host = url_host(config.url, rule)
    yield from _url_references(config.url, rule, "the address")
    for name, text in config.headers.items():
        yield from _references(text, rule, f"header {quote(name)}", host)
    if config.proxy:
        yield from _url_references(config.proxy, rule, "the proxy")
    for place, text in iter_auth_texts(row.auth or {}):
        # The server names its own issuer, so these values may reach any address.
        yield from _references(text, rule, f"{quote(place)} of its auth", f"{host}, or an issuer that it names,")


def _references(text: str, rule: Expansion, place: str, recipient: str) -> Iterator[Reference]:
    for match in reference_pattern(rule).finditer(text):
        name, is_file = parse_reference(rule, match)
        yield Reference(match[0], name, place, recipient, is_file or looks_secret(name), is_file)
        for inner in _NESTED.finditer(match[0], 1 + len(name)):
            nested = inner[1] or inner[2]
            written = f"${{{nested}}}" if inner[1] else f"{inner[0]}}}"
            yield Reference(written, nested, place, recipient, looks_secret(nested))


def _url_references(url: str, rule: Expansion, place: str) -> Iterator[Reference]:
    """Yield the references of a URL. In place of a password, they count as secrets."""
    marked, references = _mark_references(url, rule)
    user, _, _ = (_split_url(marked)["authority"] or "").rpartition("@")
    first, colon, password = user.partition(":")
    credentials = {
        references[ord(char) - _FIRST_MARK] for char in (password if colon else first) if ord(char) in _MARKS
    }
    for reference in _references(url, rule, place, url_host(url, rule)):
        is_credential = hide_secrets(reference.written) in credentials
        yield replace(reference, looks_secret=True) if is_credential else reference


def quote(text: str) -> str:
    """Quote a text in ASCII, making every character visible."""
    return json.dumps(text, ensure_ascii=True)


# -- display ----------------------------------------------------------------------------------


def show_value(text: str, rule: Expansion) -> str | None:
    """Show a value with references as written and literal parts hidden, or return `None` without references.

    Keeps the scheme before a credential (`Bearer`, RFC 9110 §11.1).
    """
    shown, end, has_reference = "", 0, False
    for match in reference_pattern(rule).finditer(text):
        shown += _hide_literal(text[end : match.start()]) + hide_secrets(match[0])
        end, has_reference = match.end(), True
    return shown + _hide_literal(text[end:]) if has_reference else None


def _hide_literal(text: str) -> str:
    return text if _SCHEME_WORD.fullmatch(text) else REDACTED


def show_url(url: str, rule: Expansion = "none") -> str:
    """Show a URL with references as written, hiding credentials and query."""
    marked, references = _mark_references(url, rule)
    parts = _split_url(marked)
    if parts["authority"] is None:
        return REDACTED if not references else "".join(references)
    user, _, host = parts["authority"].rpartition("@")
    userinfo = ""
    if user:
        hidden = ":".join(map(_keep_marks, user.split(":"))) if _has_mark(user) else REDACTED
        userinfo = f"{hidden}@"
    shown = f"{parts['scheme'] or ''}//{userinfo}{host}"
    shown += hide_secrets(parts["path"] or "")
    if parts["query"]:
        shown += f"?{_show_query(parts['query'])}"
    if parts["fragment"] and _has_mark(parts["fragment"]):
        shown += f"#{_keep_marks(parts['fragment'])}"
    return _unmark(shown, references)


def url_host(url: str, rule: Expansion) -> str:
    """Return the host of a URL as written, with its port."""
    marked, references = _mark_references(url, rule)
    authority = _split_url(marked)["authority"]
    host = (authority or "").rpartition("@")[2]
    return _unmark(host, references) if host else "an address that cannot be read"


def _split_url(text: str) -> dict[str, str | None]:
    match = _URL_PARTS.fullmatch(text)
    assert match is not None, "every part is optional"
    return match.groupdict()


def _mark_references(text: str, rule: Expansion) -> tuple[str, list[str]]:
    marked, references, end = "", list[str](), 0
    for match in reference_pattern(rule).finditer(text):
        marked += _drop_marks(text[end : match.start()]) + chr(_FIRST_MARK + len(references))
        references.append(hide_secrets(match[0]))
        end = match.end()
        if len(references) == len(_MARKS):
            break
    return marked + _drop_marks(text[end:]), references


def _drop_marks(text: str) -> str:
    return "".join(REDACTED if ord(char) in _MARKS else char for char in text)


def _has_mark(text: str) -> bool:
    return any(ord(char) in _MARKS for char in text)


def _unmark(text: str, references: Sequence[str]) -> str:
    return "".join(references[ord(char) - _FIRST_MARK] if ord(char) in _MARKS else char for char in text)


def _keep_marks(text: str) -> str:
    """Hide the literal parts of a text with marked references."""
    kept = "".join(char if ord(char) in _MARKS else "\0" for char in text)
    return re.sub("\0+", REDACTED, kept)


def _show_query(query: str) -> str:
    """Show parameters with a reference by name; hide the others."""
    if not _has_mark(query):
        return REDACTED
    shown: list[str] = []
    for pair in query.split("&"):
        name, sign, value = pair.partition("=")
        if not _has_mark(pair):
            shown.append(REDACTED)
        else:
            shown.append(f"{name}{sign}{_keep_marks(value)}" if sign else _keep_marks(name))
    return "&".join(shown)
