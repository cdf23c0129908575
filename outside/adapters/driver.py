"""`python -m outside.adapters.driver FRAMEWORK`: lets a framework use a toolbox, and reports what happened as JSON.

It runs in the environment of the frameworks. The program of a framework runs one conversation: it gives the toolbox to
an agent whose model is the scripted one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import anyio
from tests.support.adapters import PNG, Shelf

from indusagi.adapters.calls import GateRequest, allow_all
from outside.adapters.model import DONE, scripted_model

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from outside.adapters.model import ScriptedModel

_TOOLS = {"echo", "change", "fail", "picture", "slow"}
_WAIT_S = 60.0


class Judge:
    """Runs a conversation for each question; the answers are problems, and empty if all went well."""

    def __init__(self, run: Callable[..., Awaitable[tuple[str, bool]]], model: ScriptedModel) -> None:
        self._run, self._model = run, model

    async def judge(self, wait_s: float = _WAIT_S) -> dict[str, str]:
        """Answer every question, each within `wait_s`."""
        problems: dict[str, str] = {}
        for name in ("list", "call", "error", "picture", "denied", "cancel"):
            try:
                with anyio.fail_after(wait_s):
                    await getattr(self, f"check_{name}")()
                problems[name] = ""
            except Exception as exc:  # noqa: BLE001 — boundary: whatever a framework raises is reported
                problems[name] = f"{type(exc).__name__}: {exc}"[:400]
        return problems

    async def _converse(self, shelf: Shelf, gate: Any = allow_all) -> tuple[str, bool]:
        return await self._run(shelf.open_box(), gate, self._model.url)

    async def check_list(self) -> None:
        """The model receives every tool."""
        seen = self._model.expect("echo", text="hi")
        await self._converse(Shelf())
        assert {name.rpartition("__")[2] for name in seen.tools} == _TOOLS, seen.tools

    async def check_call(self) -> None:
        """The result reaches the model, and its last sentence the program."""
        seen, shelf = self._model.expect("echo", text="hi"), Shelf()
        said, is_error = await self._converse(shelf)
        assert (said, is_error) == (DONE, False), (said, is_error)
        assert "hi" in seen.text.split("\n"), seen
        assert shelf.events == ["echo hi"], shelf.events

    async def check_error(self) -> None:
        """The framework knows that the tool has failed, and the model reads why."""
        seen = self._model.expect("fail")
        _, is_error = await self._converse(Shelf())
        assert "the shelf is empty" in seen.text, seen
        assert is_error, "the framework does not know that the tool has failed"

    async def check_picture(self) -> None:
        """The picture reaches the model as a picture."""
        seen = self._model.expect("picture")
        await self._converse(Shelf())
        assert ("image/png", PNG) in seen.images, seen
        assert "iVBORw0KGgo" not in seen.text, "the picture is text"

    async def check_denied(self) -> None:
        """The tool does not run, and the model reads why."""
        seen, shelf = self._model.expect("echo", text="hi"), Shelf()
        await self._converse(shelf, deny)
        assert "not today" in seen.text, seen
        assert shelf.events == [], shelf.events

    async def check_cancel(self) -> None:
        """Cancelling the run cancels the tool."""
        self._model.expect("slow")
        shelf = Shelf()
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(self._converse(shelf))
            await shelf.started.wait()
            run.cancel()
        assert run.cancelled(), "the run has not ended by its cancellation"
        await shelf.ended.wait()
        assert shelf.events == ["slow begins", "slow is cancelled"], shelf.events


def deny(_: GateRequest) -> str:
    """Deny every call with a reason."""
    return "not today"


async def main(framework: str) -> None:
    """Judge a framework and print the answers."""
    program = import_module(f"outside.adapters.programs.{framework}")
    with scripted_model() as model:
        problems = await Judge(program.run, model).judge()
    print(json.dumps(problems))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
