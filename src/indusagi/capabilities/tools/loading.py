"""The function of a tool whose implementation is imported by its first call.

A listing needs the definitions of all tools and runs none of them: their implementations take longer to import than
everything else that it loads.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from anyio import to_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject
    from indusagi.runtime.contract import ToolResult

    Run = Callable[[JsonObject, ToolContext], Awaitable[ToolResult]]


def load_run(module: str, function: str = "run") -> Run:
    """Make the function of a tool from the name of its implementation, which is imported in a thread.

    Args:
        module: The module, below `indusagi.capabilities`.
        function: The function in it that runs a call.
    """
    loaded: list[Run] = []

    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        if not loaded:
            home = await to_thread.run_sync(import_module, f"indusagi.capabilities.{module}")
            loaded.append(getattr(home, function))
        return await loaded[0](arguments, ctx)

    return run
