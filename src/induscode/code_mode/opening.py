"""Opens code mode for a run: the card of `run_code` with its engine, which the run closes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from induscode.code_mode.card import RunCodeCard
from induscode.code_mode.contract import CodeLimits
from induscode.code_mode.engines import MontyEngine, find_engine_problem
from induscode.deck.contract import BackendFault
from induscode.launch.settings import CODE_CALLS, CODE_MEMORY_MB, CODE_TIMEOUT_S

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from induscode.launch.settings import Settings


async def open_code_card(stack: AsyncExitStack, settings: Settings) -> RunCodeCard:
    """Build the card of `run_code`; `stack` ends the processes of its engine.

    Raises:
        BackendFault: The extra `code` isn't installed.
    """
    if problem := find_engine_problem():
        raise BackendFault(problem)
    engine = MontyEngine()
    stack.push_async_callback(engine.aclose)
    limits = CodeLimits(
        wall_s=settings.get(CODE_TIMEOUT_S),
        calls=settings.get(CODE_CALLS),
        memory_bytes=settings.get(CODE_MEMORY_MB) * 1024 * 1024,
    )
    return RunCodeCard(engine, limits)
