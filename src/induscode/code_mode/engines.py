"""The engine of code mode: pydantic-monty, in processes that are kept for the next script."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio

from induscode.code_mode import monty_host
from induscode.code_mode.contract import EngineUnavailable
from induscode.code_mode.process import ScriptProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.code_mode.contract import CallFunction, CodeLimits, ScriptResult

MISSING_EXTRA = "code mode needs the extra `code`: pip install 'indus-deck[code]'"
MOST_PROCESSES = 4
"""Scripts that run at once; further ones wait."""
_MOST_IDLE = 1
"""Processes that are kept for the next script."""


def find_engine_problem() -> str:
    """Say why the interpreter can't run here, with the remedy; "" if it can."""
    return "" if find_spec("pydantic_monty") else MISSING_EXTRA


class MontyEngine:
    """Runs scripts with pydantic-monty. Processes are kept for the next script; its workers are not."""

    name = "monty"

    def __init__(self) -> None:
        self._idle: list[ScriptProcess] = []
        self._limiter = anyio.CapacityLimiter(MOST_PROCESSES)

    async def run(self, code: str, names: Sequence[str], call: CallFunction, limits: CodeLimits) -> ScriptResult:
        """Run a script in a fresh interpreter. Whatever the script does is a result.

        Raises:
            EngineUnavailable: The interpreter can't run here.
        """
        if problem := find_engine_problem():
            raise EngineUnavailable(problem)
        async with self._limiter:
            is_known = bool(self._idle)
            command = [sys.executable, "-I", monty_host.__file__]
            process = self._idle.pop() if is_known else ScriptProcess(command)
            try:
                if not is_known:
                    await process.start()
                return await process.run(code, names, call, limits)
            finally:
                if process.is_idle and len(self._idle) < _MOST_IDLE:
                    self._idle.append(process)
                else:
                    await process.end()

    async def aclose(self) -> None:
        """End the processes that wait for a script."""
        while self._idle:
            await self._idle.pop().end()
