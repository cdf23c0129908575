"""What a script costs beside the calls that it makes."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bench.measure import awaits, compare
from bench.row import CannotMeasure, Row
from indusagi.capabilities.local import make_local_context
from indusagi.runtime import ToolCall
from indusagi.runtime.calls import CallEntry, current_entry
from induscode.code_mode.opening import RunCodeCard
from induscode.code_mode.process import MontyEngine, find_engine_problem
from induscode.deck.builtin import build_builtin
from induscode.deck.contract import DeckContext
from induscode.deck.provision import ToolDeck

if TYPE_CHECKING:
    from bench.measure import Pair
    from induscode.deck.provision import DeckToolBox

_CALLS = 4
_SCRIPT = f"for i in range({_CALLS}): read(path='a.txt')"


async def _call_directly(box: DeckToolBox) -> None:
    for number in range(_CALLS):
        await box.runner.run(ToolCall(f"call-{number}", "read", {"path": "a.txt"}))


async def _run_script(box: DeckToolBox) -> None:
    current_entry.set(CallEntry(box, "call-1"))
    outcome = await box.runner.run(ToolCall("call-1", "run_code", {"code": _SCRIPT}))
    if outcome.is_error:
        raise CannotMeasure(str(outcome.output))


def _script() -> Pair:
    if problem := find_engine_problem():
        raise CannotMeasure(problem)
    with TemporaryDirectory() as folder, asyncio.Runner() as runner:
        with open(os.path.join(folder, "a.txt"), "w", encoding="utf-8") as file:
            file.write("a line\n" * 200)
        card = RunCodeCard(MontyEngine())
        box = ToolDeck([build_builtin("read", DeckContext(folder)), card], make_local_context(folder)).into_tool_box()
        try:
            runner.run(_run_script(box))  # starts the process
            return compare(awaits(runner, partial(_run_script, box)), awaits(runner, partial(_call_directly, box)))
        finally:
            runner.run(card.engine.aclose())


ROWS = (
    Row(
        "code-mode",
        f"a script with {_CALLS} calls of read",
        f"the {_CALLS} calls",
        _script,
        # Twice what is measured. The price is a new interpreter and two pipes; a turn of a model takes seconds.
        budget=10,
    ),
)
