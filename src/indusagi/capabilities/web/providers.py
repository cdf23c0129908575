"""Search providers without an API key: a SearXNG instance of the user, and the package `ddgs`.

The host program passes in others. Result pages of search engines are never scraped here.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from anyio import to_thread

from indusagi.capabilities.ports import FetchError, SearchError, SearchHit
from indusagi.capabilities.web.client import CrossSiteRedirect, WebClient
from indusagi.capabilities.web.url import parse_url
from indusagi.core.json import is_json_object
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.capabilities.ports import SearchProvider, SearchQuery, WebSettings
    from indusagi.core.json import JsonValue

SEARXNG_VARIABLE: Final = "INDUS_SEARXNG_URL"
_ANSWER_BYTES: Final = 2 * 1024 * 1024


def list_providers(settings: WebSettings, given: Sequence[SearchProvider]) -> Sequence[SearchProvider]:
    """List the providers in their order: those of the host program, SearXNG, ddgs."""
    found = list(given)
    address = settings.searxng_url or os.environ.get(SEARXNG_VARIABLE)
    if address:
        found.append(SearxngProvider(address, settings))
    if find_spec("ddgs") is not None:
        found.append(DdgsProvider(settings.search_each_s))
    return found


def add_site_filters(query: SearchQuery) -> str:
    """Append the domains of a query as `site:` filters."""
    wanted = " OR ".join(f"site:{domain}" for domain in query.domains)
    several = f"({wanted})" if len(query.domains) > 1 else wanted
    unwanted = " ".join(f"-site:{domain}" for domain in query.exclude_domains)
    return " ".join(part for part in (query.text, several, unwanted) if part)


@record
class SearxngProvider:
    """A SearXNG instance with the JSON format enabled (https://docs.searxng.org/dev/search_api.html)."""

    address: str
    settings: WebSettings
    name: str = "searxng"

    async def search(self, query: SearchQuery) -> Sequence[SearchHit]:
        """Query the instance.

        Raises:
            SearchError: The instance cannot be reached, or its answer is invalid.
        """
        asked = {"q": add_site_filters(query), "format": "json"}
        if query.freshness is not None:
            asked["time_range"] = query.freshness
        try:
            base = parse_url(self.address)
            path = base.path.partition("?")[0].rstrip("/").removesuffix("/search")
            url = f"{replace(base, path=path).url}/search?{urlencode(asked)}"
            # The user configured this host, so its private address is allowed.
            own = f"{base.authority.removesuffix(f':{base.port}')}:{base.port}"
            allowed = replace(self.settings, allow_private=[*self.settings.allow_private, own])
            found = await WebClient(allowed).fetch(url, accept="application/json", cap=_cap)
        except FetchError as trouble:
            raise SearchError(str(trouble), code=trouble.code) from trouble
        if isinstance(found, CrossSiteRedirect):
            message = f"it redirects to {found.url}: configure that address"
            raise SearchError(message, code="failed")
        if found.status != 200:
            hint = "; its settings.yml must list json under search: formats" if found.status == 403 else ""
            raise SearchError(f"it answered {found.status}{hint}", code="http_status")
        return await to_thread.run_sync(_searxng_hits, found.body)


def _cap(headers: Mapping[str, str]) -> int:
    return _ANSWER_BYTES


def _searxng_hits(body: bytes) -> Sequence[SearchHit]:
    try:
        answer: JsonValue = json.loads(body)
    except (ValueError, RecursionError):
        raise SearchError("its answer is invalid JSON", code="failed") from None
    rows = answer.get("results") if is_json_object(answer) else None
    if not isinstance(rows, list):
        raise SearchError("its answer has no list of results", code="failed")
    return [
        SearchHit(
            _text(row, "title"), _text(row, "url"), _text(row, "content"), published=_text(row, "publishedDate") or None
        )
        for row in rows
        if is_json_object(row)
    ]


@record
class DdgsProvider:
    """The package `ddgs`, if it is installed; it queries several search engines."""

    timeout_s: float
    name: str = "ddgs"

    async def search(self, query: SearchQuery) -> Sequence[SearchHit]:
        """Query the package in a thread, which a cancelled caller abandons.

        Raises:
            SearchError: The package raised any exception.
        """

        def ask() -> Sequence[SearchHit]:
            try:
                engine: Any = import_module("ddgs").DDGS(timeout=max(1, int(self.timeout_s)))
                period = query.freshness[0] if query.freshness else None
                rows: list[Any] = engine.text(add_site_filters(query), max_results=query.limit, timelimit=period)
            except Exception as exc:
                code = "rate_limited" if "ratelimit" in type(exc).__name__.lower() else "failed"
                raise SearchError(f"{type(exc).__name__}: {exc}", code=code) from exc

            return [
                SearchHit(_text(row, "title"), _text(row, "href"), _text(row, "body"))
                for row in rows
                if is_json_object(row)
            ]

        return await to_thread.run_sync(ask, abandon_on_cancel=True)


def _text(row: Mapping[str, JsonValue], key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else ""
