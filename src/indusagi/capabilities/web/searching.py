"""What `websearch` does: ask one provider after the other until one finds something."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from anyio import fail_after, move_on_after

from indusagi.capabilities.ports import FetchError, SearchError, SearchQuery, WebSettings
from indusagi.capabilities.web.fence import fenced
from indusagi.capabilities.web.findings import findings
from indusagi.capabilities.web.providers import SEARXNG_VARIABLE, providers
from indusagi.capabilities.web.target import parse_host_and_port
from indusagi.core.text import clean_text, cut_text
from indusagi.runtime.content import JsonContentBlock, TextContentBlock
from indusagi.runtime.contract import ToolResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.ports import Freshness, SearchProvider
    from indusagi.capabilities.web.findings import Finding
    from indusagi.core.json import JsonObject, JsonValue

_USUAL: Final = 5
_NOBODY = (
    "No web search is configured. Its user can put a SearXNG instance with JSON answers into the "
    f"setting `search.searxng_url` or the variable {SEARXNG_VARIABLE}, or install the package "
    "`ddgs`; a program can hand a provider to `Framework.search`."
)


async def search(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    """Answer a call of the tool."""
    settings = ctx.framework.web or WebSettings()
    try:
        query = _query(arguments)
    except FetchError as trouble:
        return ToolResult.error(f"not a domain: {trouble}", code="invalid_arguments")
    chain = providers(settings, ctx.framework.search)
    if not chain:
        return ToolResult.error(_NOBODY, code="unsupported", reason="not_configured")
    return _answer(await _asked(chain, query, settings), query)


def _query(arguments: JsonObject) -> SearchQuery:
    def domains(key: str) -> Sequence[str]:
        given = cast("list[str]", arguments.get(key, []))
        return [parse_host_and_port(_bare(text))[0] for text in given]

    return SearchQuery(
        text=cast("str", arguments["query"]),
        limit=cast("int", arguments.get("maxResults", _USUAL)),
        domains=domains("domains"),
        exclude_domains=domains("excludeDomains"),
        freshness=cast("Freshness | None", arguments.get("freshness")),
    )


def _bare(domain: str) -> str:
    """Take off what models put around a domain."""
    _, _, rest = domain.strip().rpartition("://")
    return rest.partition("/")[0].removeprefix("*.").removeprefix("www.")


@dataclass(slots=True)
class _Search:
    """How far a search has come."""

    found: Sequence[Finding] = ()
    answered: str | None = None
    """Who answered last, be it with nothing."""
    failures: list[JsonObject] = field(default_factory=list["JsonObject"])

    def failed(self, provider: SearchProvider, code: str, said: str) -> None:
        message = cut_text(" ".join(clean_text(said)[0].split()), 300)
        self.failures.append({"provider": provider.name, "code": code, "message": message})


async def _asked(chain: Sequence[SearchProvider], query: SearchQuery, settings: WebSettings) -> _Search:
    """Ask one after the other until one finds something."""
    state, provider = _Search(), chain[0]
    with move_on_after(settings.search_total_s) as whole:
        for provider in chain:
            await _ask(provider, query, settings.search_each_s, state)
            if state.found:
                break
    if whole.cancelled_caught:
        said = f"the search as a whole ended after {settings.search_total_s:g} s"
        state.failed(provider, "timeout", said)
    return state


async def _ask(provider: SearchProvider, query: SearchQuery, patience_s: float, state: _Search) -> None:
    try:
        with fail_after(patience_s):
            hits = await provider.search(query)
        state.found, state.answered = findings(hits, query), provider.name
    except SearchError as trouble:
        state.failed(provider, trouble.code, str(trouble))
    except TimeoutError:
        state.failed(provider, "timeout", f"it did not answer within {patience_s:g} s")
    except Exception as exc:  # noqa: BLE001 — boundary: a provider of the host's
        state.failed(provider, "failed", f"{type(exc).__name__}: {exc}")


def _answer(state: _Search, query: SearchQuery) -> ToolResult:
    failures: list[JsonValue] = [*state.failures]
    listed = "".join(f"\n- {row['provider']} failed ({row['code']}): {row['message']}" for row in state.failures)
    if state.answered is None:
        late = all(row["code"] == "timeout" for row in state.failures)
        message = f"No search provider answered.{listed}"
        return ToolResult.error(message, code="timeout" if late else "failed", failures=failures)
    rows: list[JsonValue] = [finding.row() for finding in state.found]
    facts: JsonObject = {"provider": state.answered, "results": rows, "failures": failures}
    if not rows:
        asked = clean_text(query.text)[0]
        return ToolResult.text(f"{state.answered} found nothing for {asked!r}.{listed}", **facts)
    many = f"{len(rows)} result{'s' if len(rows) > 1 else ''} from {state.answered}"
    shown = "\n".join(f"{number}. {finding.shown()}" for number, finding in enumerate(state.found, 1))
    text = f"{many}{listed}\n{fenced(shown, 'results')}"
    return ToolResult((TextContentBlock(text), JsonContentBlock({"results": rows})), details=facts)
