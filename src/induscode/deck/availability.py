"""Which cards of the catalog can do nothing in a run, because what they work through is missing.

The catalog keeps every row. A run shows a model only what it can use: a card that would answer
"there is nothing here" to every call costs tokens in every request and misleads whoever reads it.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from indusagi.capabilities.ports import WebSettings
from induscode.deck.contract import DeckFramework

SEARXNG_VARIABLE = "INDUS_SEARXNG_URL"
_PLAN_CARDS = frozenset({"enter_plan_mode", "exit_plan_mode"})


def find_missing_backend(name: str, framework: DeckFramework, *, plan_mode: bool = False) -> str | None:
    """Say what a card would need to do anything in this run; None if it has it.

    Args:
        name: The card.
        framework: The handles of the run.
        plan_mode: Whether the run acts upon the marks of the plan cards.
    """
    if name == "saas-action" and framework.saas is None:
        return "no gateway to services is connected"
    if name == "task" and framework.delegate is None:
        return "there is no model in this run that could do the work; use it in a session"
    if name in _PLAN_CARDS and not plan_mode:
        return "this run has no plan mode; use it in a session"
    if name == "websearch" and not _can_search(framework):
        return (
            "no search provider is configured; name a SearXNG server in the setting "
            f"search.searxng_url or in {SEARXNG_VARIABLE}, or install 'indus-deck[search]'"
        )
    return None


def _can_search(framework: DeckFramework) -> bool:
    settings = framework.web or WebSettings()
    address = settings.searxng_url or os.environ.get(SEARXNG_VARIABLE)
    return bool(framework.search) or bool(address) or find_spec("ddgs") is not None
