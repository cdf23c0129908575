"""When to search tools instead of listing them: user settings, a run's flags, and the rule of `auto`.

`auto` searches if a list would be a burden: more tools than some clients accept at all, or definitions that take more
than a given share of the context window.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from indusagi.core.json import estimate_tokens
from indusagi.core.records import record
from induscode.launch.settings import (
    TOOL_SEARCH_ALWAYS_LIST,
    TOOL_SEARCH_COUNT,
    TOOL_SEARCH_MODE,
    TOOL_SEARCH_SHARE,
    Settings,
)

if TYPE_CHECKING:
    from indusagi.runtime.contract import ToolDescriptor

SearchMode: TypeAlias = Literal["auto", "on", "off"]
USUAL_WINDOW: Final = 200_000
"""Assumed context window in tokens: a gateway doesn't know its client's model."""


@record(kw_only=True)
class SearchOptions:
    """Whether to search tools instead of listing them, and which ones stay listed."""

    mode: SearchMode = "auto"
    share: int = TOOL_SEARCH_SHARE.default
    """Percent of the context window that definitions may take before `auto` searches."""
    count: int = TOOL_SEARCH_COUNT.default
    """Maximum tools that `auto` lists."""
    always_list: Sequence[str] = ()
    """Names of tools that stay listed; `*` matches any text."""

    def applies_to(self, descriptors: Sequence[ToolDescriptor], window: int | None = None) -> bool:
        """Return whether to search these tools, for a model with this context window."""
        if self.mode != "auto":
            return self.mode == "on"
        return len(descriptors) > self.count or (
            sum(map(estimate_definition, descriptors)) > (window or USUAL_WINDOW) * self.share // 100
        )

    def lists(self, name: str) -> bool:
        """Return whether a tool stays listed."""
        return any(fnmatchcase(name, pattern) for pattern in self.always_list)

    def find_idle_patterns(self, names: Collection[str]) -> Sequence[str]:
        """Find the `always_list` patterns that match none of these tools."""
        return [one for one in self.always_list if not any(fnmatchcase(name, one) for name in names)]


def read_search_options(
    settings: Settings, mode: SearchMode | None = None, always_list: Sequence[str] = ()
) -> SearchOptions:
    """Read a run's options: its flags, else the user's settings."""
    return SearchOptions(
        mode=mode or cast("SearchMode", settings.get(TOOL_SEARCH_MODE)),
        share=settings.get(TOOL_SEARCH_SHARE),
        count=settings.get(TOOL_SEARCH_COUNT),
        always_list=(*settings.get(TOOL_SEARCH_ALWAYS_LIST), *always_list),
    )


def estimate_definition(descriptor: ToolDescriptor) -> int:
    """Estimate a definition's tokens as a model gets it."""
    definition = {"name": descriptor.name, "description": descriptor.description, "parameters": descriptor.parameters}
    return estimate_tokens(definition)


# -- names ------------------------------------------------------------------------------------


FIND_TOOLS: Final = "find_tools"
DESCRIBE_TOOLS: Final = "describe_tools"
CALL_TOOL: Final = "call_tool"
SEARCH_CARDS: Final = frozenset({FIND_TOOLS, DESCRIBE_TOOLS, CALL_TOOL})
