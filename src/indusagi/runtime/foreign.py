"""Answers that another party wrote: a result without invisible characters.

The runner of a box applies this to the tools that are foreign (those of MCP servers, of the web).
Answers of native tools are left as they are: the content of a file is never altered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from indusagi.core.invisible import CleanText, clean_json
from indusagi.core.json import JsonObject
from indusagi.runtime.content import JsonContentBlock, TextContentBlock, ToolContentBlock
from indusagi.runtime.contract import ToolResult


def clean_result(result: ToolResult, clean: CleanText) -> ToolResult:
    """Clean every string of a result: blocks, structured content and details.

    Where something was changed, `details["unseen"]` counts the characters.
    """
    found = 0
    blocks: list[ToolContentBlock] = []
    for block in result.content:
        cleaned, count = _clean_block(block, clean)
        blocks.append(cleaned)
        found += count
    structured, count = clean_json(result.structured, clean)
    found += count
    given: JsonObject = dict(result.details)
    details, count = clean_json(given, clean)
    found += count
    if not found:
        return result
    told = {**cast("JsonObject", details), "unseen": found}
    return replace(result, content=blocks, structured=structured, details=told)


def _clean_block(block: ToolContentBlock, clean: CleanText) -> tuple[ToolContentBlock, int]:
    if isinstance(block, TextContentBlock):
        text, count = clean(block.text)
        extra, more = clean_json(block.extra, clean)
        if not count + more:
            return block, 0
        return TextContentBlock(text, cast("JsonObject | None", extra)), count + more
    value, count = clean_json(block.value, clean)
    return JsonContentBlock(value) if count else block, count
