"""Signatures: one line for each found item, short enough that five of them cost a model 300 tokens at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.text import make_visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.search.items import SearchItem, SearchParameter

LONGEST_SIGNATURE = 230
"""Characters: five lines of this length, and their line ends, are fewer than 300 tokens of four bytes."""
_LEAST_DESCRIPTION = 60
"""What optional parameters leave to the description."""


def format_signature(item: SearchItem, limit: int = LONGEST_SIGNATURE) -> str:
    """Format an item as one line: `server__tool(owner: str, body?: str) — Create an issue`.

    The name is complete. Required parameters come before optional ones, and have room before the description: types
    are left out first, then parameters, of which the number is shown.
    """
    head = _clean(item.qualified_name)
    if item.kind != "tool":
        head = f"{item.kind} {head}"
    about = _clean(item.description or item.title).partition(". ")[0]
    required = [parameter for parameter in item.parameters if parameter.required]
    optional = [parameter for parameter in item.parameters if not parameter.required]
    room = limit - len(head) - min(len(about), _LEAST_DESCRIPTION) - 3
    text = head
    if item.parameters or item.kind in {"tool", "prompt", "action"}:
        text = f"{head}({_format_parameters(required, optional, item.more_parameters, room)})"
    left = limit - len(text) - 3
    if not about or left < _LEAST_DESCRIPTION // 4:
        return text
    return f"{text} — {about if len(about) <= left else about[: left - 1].rstrip() + '…'}"


def _format_parameters(
    required: Sequence[SearchParameter], optional: Sequence[SearchParameter], more: int, room: int
) -> str:
    """Format as many parameters as there is room for; what is left out is counted at the end, with `more` others."""
    typed = [f"{_clean(parameter.name)}: {_clean(parameter.type)}" for parameter in required]
    shown = typed if len(", ".join(typed)) <= room else [_clean(parameter.name) for parameter in required]
    shown += [f"{_clean(parameter.name)}?: {_clean(parameter.type)}" for parameter in optional]
    kept: list[str] = []
    for number, text in enumerate(shown, 1):
        rest = len(shown) - number + more
        mark = len(f", … +{rest}") if rest else 0
        if len(", ".join([*kept, text])) + mark > room:
            break
        kept.append(text)
    missing = len(shown) - len(kept) + more
    return ", ".join([*kept, *([f"… +{missing}"] if missing else [])])


def _clean(text: str) -> str:
    """Put a foreign text into one line without invisible characters."""
    return make_visible(" ".join(text.split()))[0]
