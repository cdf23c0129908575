"""Names of the search cards, which no other tool may have where tools are searched."""

from __future__ import annotations

from typing import Final

FIND_TOOLS: Final = "find_tools"
DESCRIBE_TOOLS: Final = "describe_tools"
CALL_TOOL: Final = "call_tool"
SEARCH_CARDS: Final = frozenset({FIND_TOOLS, DESCRIBE_TOOLS, CALL_TOOL})
