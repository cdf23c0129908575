"""The work of `websearch`: ask one provider after the other, and clean, filter and deduplicate the results."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import unescape
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import parse_qsl, urlencode

from anyio import fail_after, move_on_after

from indusagi.capabilities.ports import FetchError, SearchError, SearchQuery, WebSettings
from indusagi.capabilities.web.convert import show_invisible
from indusagi.capabilities.web.fetch import fence_text
from indusagi.capabilities.web.providers import SEARXNG_VARIABLE, list_providers
from indusagi.capabilities.web.url import is_subdomain, parse_host_and_port, parse_url
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text
from indusagi.runtime.contract import JsonContentBlock, TextContentBlock, ToolResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.ports import Freshness, SearchHit, SearchProvider
    from indusagi.capabilities.web.url import WebUrl
    from indusagi.core.json import JsonObject, JsonValue


_TITLE: Final = 200
_SNIPPET: Final = 500
_LONGEST: Final = 20_000
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")
_TRACKING = re.compile(r"utm_\w+|gclid|fbclid|msclkid|dclid|yclid|mc_[ce]id|igshid|ref_src", re.I)


@record
class ResultRow:
    """One result."""

    title: str
    url: str
    snippet: str
    published: str | None = None

    def format(self) -> str:
        """Format the result for a model: title, URL, snippet."""
        dated = f" ({self.published})" if self.published else ""
        snippet = f"\n   {self.snippet}" if self.snippet else ""
        return f"{self.title}{dated}\n   {self.url}{snippet}"

    def to_json(self) -> JsonObject:
        """Return the result as JSON."""
        fields: JsonObject = {"title": self.title, "url": self.url, "snippet": self.snippet}
        return {**fields, "published": self.published} if self.published else fields


def select_results(hits: Iterable[SearchHit], query: SearchQuery) -> Sequence[ResultRow]:
    """Select the results to show: valid URLs within the requested domains, each page once."""
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
        title = _clean_line(hit.title, _TITLE) or target.host
        published = _clean_line(hit.published, 40) if hit.published else None
        found[page_key(target)] = ResultRow(title, target.url, _clean_line(hit.snippet, _SNIPPET), published)
        if len(found) == query.limit:
            break
    return list(found.values())


def page_key(target: WebUrl) -> str:
    """Return a key that equal pages share: without tracking parameters, `www.` and scheme."""
    path, _, asked = target.path.partition("?")
    kept = [pair for pair in parse_qsl(asked, keep_blank_values=True) if not _TRACKING.fullmatch(pair[0])]
    # http and https of one page are one page.
    port = 443 if target.port == 80 else target.port
    return f"{target.host.removeprefix('www.')}:{port}{path.rstrip('/')}?{urlencode(kept)}"


def _clean_line(text: str, limit: int) -> str:
    """Reduce a text to one line without markup and invisible characters."""
    plain = unescape(_TAG.sub("", text[:_LONGEST]))
    return cut_text(" ".join(show_invisible(plain)[0].split()), limit)


_USUAL: Final = 5
_NOT_CONFIGURED = (
    "No web search is configured. Its user can put a SearXNG instance with JSON answers into the "
    f"setting `search.searxng_url` or the variable {SEARXNG_VARIABLE}, or install the package "
    "`ddgs`; a program can hand a provider to `Framework.search`."
)


async def search(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    """Answer a call of the tool."""
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
        # Models write a scheme, a path, `*.` and `www.` around a domain.
        named = (
            text.strip().rpartition("://")[2].partition("/")[0] for text in cast("list[str]", arguments.get(key, []))
        )
        return [parse_host_and_port(name.removeprefix("*.").removeprefix("www."))[0] for name in named]

    return SearchQuery(
        text=cast("str", arguments["query"]),
        limit=cast("int", arguments.get("maxResults", _USUAL)),
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
    """Ask the providers in turn until one has results."""
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
            except Exception as exc:  # noqa: BLE001 — boundary: a provider of the host program
                state.add_failure(provider, "failed", f"{type(exc).__name__}: {exc}")
            if state.found:
                break
    if whole.cancelled_caught:
        said = f"the search as a whole ended after {settings.search_total_s:g} s"
        state.add_failure(provider, "timeout", said)
    return state
