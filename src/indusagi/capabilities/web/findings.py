"""Search results as they are shown: cleaned, filtered, each page once. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import unescape
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode

from indusagi.capabilities.ports import FetchError
from indusagi.capabilities.web.layout import laid_open
from indusagi.capabilities.web.target import is_within, parse_target
from indusagi.core.text import cut_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from indusagi.capabilities.ports import SearchHit, SearchQuery
    from indusagi.capabilities.web.target import Target
    from indusagi.core.json import JsonObject

_TITLE: Final = 200
_SNIPPET: Final = 500
_LONGEST: Final = 20_000
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")
_TRACKING = re.compile(r"utm_\w+|gclid|fbclid|msclkid|dclid|yclid|mc_[ce]id|igshid|ref_src", re.I)


@dataclass(frozen=True, slots=True)
class Finding:
    """One result."""

    title: str
    url: str
    snippet: str
    published: str | None = None

    def shown(self) -> str:
        """Write it for a model: three lines, the first of which follows its number."""
        dated = f" ({self.published})" if self.published else ""
        snippet = f"\n   {self.snippet}" if self.snippet else ""
        return f"{self.title}{dated}\n   {self.url}{snippet}"

    def row(self) -> JsonObject:
        """Write it for a program."""
        row: JsonObject = {"title": self.title, "url": self.url, "snippet": self.snippet}
        return {**row, "published": self.published} if self.published else row


def findings(hits: Iterable[SearchHit], query: SearchQuery) -> Sequence[Finding]:
    """Choose the results to show: web pages, within the domains asked for, each once."""
    found: dict[str, Finding] = {}
    for hit in hits:
        try:
            target = parse_target(hit.url)
        except FetchError:
            continue
        if query.domains and not is_within(target.host, query.domains):
            continue
        if is_within(target.host, query.exclude_domains) or same_page(target) in found:
            continue
        title = _line(hit.title, _TITLE) or target.host
        published = _line(hit.published, 40) if hit.published else None
        found[same_page(target)] = Finding(title, target.url, _line(hit.snippet, _SNIPPET), published)
        if len(found) == query.limit:
            break
    return list(found.values())


def same_page(target: Target) -> str:
    """Give what two addresses of one page have in common."""
    path, _, asked = target.path.partition("?")
    kept = [pair for pair in parse_qsl(asked, keep_blank_values=True) if not _tracks(pair[0])]
    host = target.host.removeprefix("www.")
    return f"{host}:{_port(target)}{path.rstrip('/')}?{urlencode(kept)}"


def _tracks(name: str) -> bool:
    return _TRACKING.fullmatch(name) is not None


def _port(target: Target) -> int:
    # The same page with and without encryption is one page.
    return 443 if target.port == 80 else target.port


def _line(text: str, limit: int) -> str:
    """Bring a text to one line without markup, in which everything can be seen."""
    plain = unescape(_TAG.sub("", text[:_LONGEST]))
    return cut_text(" ".join(laid_open(plain)[0].split()), limit)
