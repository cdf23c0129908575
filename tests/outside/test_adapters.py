"""The judge of the adapters: it accepts a framework that is installed here, and notices what others do wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from outside.adapters.driver import Judge
from outside.adapters.model import DONE, scripted_model
from outside.adapters.programs import use_anthropic

if TYPE_CHECKING:
    from indusagi.runtime import ToolBox


def test_the_client_of_the_messages_api_passes() -> None:
    with scripted_model() as model:
        problems = asyncio.run(Judge(use_anthropic.run, model).judge())  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] — an untyped program
    assert problems == dict.fromkeys(("list", "call", "error", "picture", "denied", "cancel"), "")


def test_a_framework_that_does_nothing_fails_everything() -> None:
    async def run(box: ToolBox, gate: Any, url: str) -> tuple[str, bool]:
        return DONE, False

    with scripted_model() as model:
        judge = Judge(run, model)
        problems = asyncio.run(judge.judge(wait_s=0.2))
    assert all(problems.values())
