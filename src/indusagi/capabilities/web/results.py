"""Implementation of `websearch`: query providers in turn, then clean, filter and deduplicate the results."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import unescape
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlencode

from anyio import fail_after, move_on_after, to_thread

from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.ports import Freshness, SearchError, SearchHit, SearchProvider, SearchQuery, WebSettings
from indusagi.capabilities.web.fetch import fence_text
from indusagi.capabilities.web.page import show_invisible
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text
from indusagi.net.address import FetchError, WebUrl, is_subdomain, parse_host_and_port, parse_url
from indusagi.net.client import CrossSiteRedirect, WebClient
from indusagi.runtime.contract import JsonContentBlock, TextContentBlock, ToolResult

# -- providers --------------------------------------------------------------------------------
#
# The host program can supply more. We never scrape result pages of search engines.


SEARXNG_VARIABLE: Final = "INDUS_SEARXNG_URL"
_ANSWER_BYTES: Final = 2 * 1024 * 1024


def list_providers(settings: WebSettings, given: Sequence[SearchProvider]) -> Sequence[SearchProvider]:
    """List the providers in order: the host program's, SearXNG, ddgs."""
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
        """Query the instance. Raises `SearchError` if the instance is unreachable, or its answer is invalid."""
        asked = {"q": add_site_filters(query), "format": "json"}
        if query.freshness is not None:
            asked["time_range"] = query.freshness
        try:
            base = parse_url(self.address)
            path = base.path.partition("?")[0].rstrip("/").removesuffix("/search")
            url = f"{replace(base, path=path).url}/search?{urlencode(asked)}"
            # The user configured this host, so its private address is allowed.
            own = [*self.settings.allow_private, base.server]
            policy = replace(self.settings, allow_private=own, hard_bytes=_ANSWER_BYTES)
            found = await WebClient(policy).fetch(url, accept="application/json")
        except FetchError as trouble:
            raise SearchError(str(trouble), code=trouble.code) from trouble
        if isinstance(found, CrossSiteRedirect):
            message = f"it redirects to {found.url}: configure that address"
            raise SearchError(message, code="failed")
        if found.status != 200:
            hint = "; its settings.yml must list json under search: formats" if found.status == 403 else ""
            raise SearchError(f"it answered {found.status}{hint}", code="http_status")
        return await to_thread.run_sync(_searxng_hits, found.body)


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
    """The `ddgs` package, if installed; it queries several search engines."""

    timeout_s: float
    name: str = "ddgs"

    async def search(self, query: SearchQuery) -> Sequence[SearchHit]:
        """Query the package in a thread, abandoning it on cancellation.

        Raises `SearchError` if the package raised an exception.
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


# -- results ---------------------------------------------------------------------------------


_MAX_TITLE: Final = 200
_MAX_SNIPPET: Final = 500
_MAX_MARKUP: Final = 20_000
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")
_TRACKING = re.compile(r"utm_\w+|gclid|fbclid|msclkid|dclid|yclid|mc_[ce]id|igshid|ref_src", re.I)


@record
class ResultRow:
    """A search result."""

    title: str
    url: str
    snippet: str
    published: str | None = None

    def format(self) -> str:
        """Format the result for the model: title, URL, snippet."""
        dated = f" ({self.published})" if self.published else ""
        snippet = f"\n   {self.snippet}" if self.snippet else ""
        return f"{self.title}{dated}\n   {self.url}{snippet}"

    def to_json(self) -> JsonObject:
        """Return the result as JSON."""
        fields: JsonObject = {"title": self.title, "url": self.url, "snippet": self.snippet}
        return {**fields, "published": self.published} if self.published else fields


def select_results(hits: Iterable[SearchHit], query: SearchQuery) -> Sequence[ResultRow]:
    """Select the results to show: valid URLs in the requested domains, without duplicates."""
    found: dict[str, ResultRow] = {}
    for hit in hits:
        try:
            target = parse_url(hit.url)
        except FetchError:
            continue
        if query.domains and not is_subdomain(target.host, query.domains):
            continue
        if is_subdomain(target.host, query.exclude_domains) or page_key(target) in found:
            continue
        title = _clean_line(hit.title, _MAX_TITLE) or target.host
        published = _clean_line(hit.published, 40) if hit.published else None
        found[page_key(target)] = ResultRow(title, target.url, _clean_line(hit.snippet, _MAX_SNIPPET), published)
        if len(found) == query.limit:
            break
    return list(found.values())


def page_key(target: WebUrl) -> str:
    """Return a key for deduplication: ignores tracking parameters, `www.` and the scheme."""
    path, _, asked = target.path.partition("?")
    kept = [pair for pair in parse_qsl(asked, keep_blank_values=True) if not _TRACKING.fullmatch(pair[0])]
    # http and https versions are the same page.
    port = 443 if target.port == 80 else target.port
    return f"{target.host.removeprefix('www.')}:{port}{path.rstrip('/')}?{urlencode(kept)}"


def _clean_line(text: str, limit: int) -> str:
    """Reduce a text to one line without markup or invisible characters."""
    plain = unescape(_TAG.sub("", text[:_MAX_MARKUP]))
    return cut_text(" ".join(show_invisible(plain)[0].split()), limit)


_DEFAULT_RESULTS: Final = 5
_NOT_CONFIGURED = (
    "No web search is configured. Its user can put a SearXNG instance with JSON answers into the "
    f"setting `search.searxng_url` or the variable {SEARXNG_VARIABLE}, or install the package "
    "`ddgs`; a program can hand a provider to `Framework.search`."
)


async def search(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    """Run a call of `websearch`."""
    settings = ctx.framework.web or WebSettings()
    try:
        query = _parse_query(arguments)
    except FetchError as trouble:
        return ToolResult.error(f"not a domain: {trouble}", code="invalid_arguments")
    chain = list_providers(settings, ctx.framework.search)
    if not chain:
        return ToolResult.error(_NOT_CONFIGURED, code="unsupported", reason="not_configured")
    state = await _ask_in_turn(chain, query, settings)
    failures: list[JsonValue] = [*state.failures]
    listed = "".join(f"\n- {row['provider']} failed ({row['code']}): {row['message']}" for row in state.failures)
    if state.answered is None:
        late = all(row["code"] == "timeout" for row in state.failures)
        message = f"No search provider answered.{listed}"
        return ToolResult.error(message, code="timeout" if late else "failed", failures=failures)
    rows: list[JsonValue] = [finding.to_json() for finding in state.found]
    facts: JsonObject = {"provider": state.answered, "results": rows, "failures": failures}
    if not rows:
        asked = clean_text(query.text)[0]
        return ToolResult.text(f"{state.answered} found nothing for {asked!r}.{listed}", **facts)
    many = f"{len(rows)} result{'s' if len(rows) > 1 else ''} from {state.answered}"
    shown = "\n".join(f"{number}. {finding.format()}" for number, finding in enumerate(state.found, 1))
    text = f"{many}{listed}\n{fence_text(shown, 'results')}"
    return ToolResult((TextContentBlock(text), JsonContentBlock({"results": rows})), details=facts)


def _parse_query(arguments: JsonObject) -> SearchQuery:
    def domains(key: str) -> Sequence[str]:
        # Models wrap domains in a scheme, a path, `*.` and `www.`.
        named = (
            text.strip().rpartition("://")[2].partition("/")[0] for text in cast("list[str]", arguments.get(key, []))
        )
        return [parse_host_and_port(name.removeprefix("*.").removeprefix("www."))[0] for name in named]

    return SearchQuery(
        text=cast("str", arguments["query"]),
        limit=cast("int", arguments.get("maxResults", _DEFAULT_RESULTS)),
        domains=domains("domains"),
        exclude_domains=domains("excludeDomains"),
        freshness=cast("Freshness | None", arguments.get("freshness")),
    )


@dataclass(slots=True)
class _SearchState:
    """The state of a search over several providers."""

    found: Sequence[ResultRow] = ()
    answered: str | None = None
    """The provider that answered last, even without results."""
    failures: list[JsonObject] = field(default_factory=list["JsonObject"])

    def add_failure(self, provider: SearchProvider, code: str, said: str) -> None:
        message = cut_text(" ".join(clean_text(said)[0].split()), 300)
        self.failures.append({"provider": provider.name, "code": code, "message": message})


async def _ask_in_turn(chain: Sequence[SearchProvider], query: SearchQuery, settings: WebSettings) -> _SearchState:
    """Query the providers in turn until one returns results."""
    state, provider = _SearchState(), chain[0]
    with move_on_after(settings.search_total_s) as whole:
        for provider in chain:
            try:
                with fail_after(settings.search_each_s):
                    hits = await provider.search(query)
                state.found, state.answered = select_results(hits, query), provider.name
            except SearchError as trouble:
                state.add_failure(provider, trouble.code, str(trouble))
            except TimeoutError:
                state.add_failure(provider, "timeout", f"it did not answer within {settings.search_each_s:g} s")
            except Exception as exc:  # noqa: BLE001 — boundary: the host program's provider
                state.add_failure(provider, "failed", f"{type(exc).__name__}: {exc}")
            if state.found:
                break
    if whole.cancelled_caught:
        said = f"the search as a whole ended after {settings.search_total_s:g} s"
        state.add_failure(provider, "timeout", said)
    return state
