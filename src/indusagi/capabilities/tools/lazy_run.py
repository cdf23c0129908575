"""The function of a tool whose implementation is imported by its first call.

A listing needs the definitions of all tools and runs none of them: their implementations take longer to import than
everything else that it loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from anyio import to_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject
    from indusagi.runtime.contract import ToolResult

    RunTool: TypeAlias = Callable[[JsonObject, ToolContext], Awaitable[ToolResult]]


def run_lazily(load: Callable[[], RunTool]) -> RunTool:
    """Make the function of a tool from one that imports it, which the first call runs in a thread."""
    loaded: list[RunTool] = []

    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        if not loaded:
            loaded.append(await to_thread.run_sync(load))
        return await loaded[0](arguments, ctx)

    return run
