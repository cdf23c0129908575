"""Records and recorders for tests of calls."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import sleep_forever, to_thread

from indusagi.capabilities.context import Framework
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.registry import ToolRegistry
from indusagi.capabilities.tool import ToolSpec, define_tool
from indusagi.runtime.contract import ToolProgress, ToolResult
from induscode.calls.database import CallDatabase, CallFilter
from induscode.calls.record import CallRecord

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.registry import RegistryToolBox
    from indusagi.core.json import JsonObject
    from indusagi.runtime.calls import CallObserver


def calls_file() -> Path:
    """Name the database of this test's user."""
    return Path(os.environ["HOME"]) / ".local" / "state" / "indus" / "calls.db"


def make_record(**values: Any) -> CallRecord:
    """Make the record of a call."""
    given: dict[str, Any] = {
        "at_ms": 1_000,
        "duration_us": 500,
        "tool": "echo",
        "server": "s",
        "outcome": "ok",
        "attempt": 1,
        **values,
    }
    blank: dict[str, Any] = {one.name: 0 if one.type == "int" else "" for one in fields(CallRecord)}
    return CallRecord(**{**blank, **given})


def read_calls(path: Path | None = None, **wanted: Any) -> list[CallRecord]:
    """Read the stored records in their order."""
    with closing(CallDatabase(str(path or calls_file()), write=False)) as database:
        return database.latest(CallFilter(**wanted), 1_000)


async def load_calls(path: Path | None = None, **wanted: Any) -> list[CallRecord]:
    """Read the stored records in their order, outside of the event loop."""
    return await to_thread.run_sync(lambda: read_calls(path, **wanted))


def observed_box(observer: CallObserver) -> RegistryToolBox:
    """Make a toolbox whose calls are observed.

    `echo` answers, `fail` answers with an error, `boom` raises, `hang` reports progress and never answers.
    """

    async def run_echo(arguments: JsonObject, _: ToolContext) -> ToolResult:
        return ToolResult.text(str(arguments.get("text", "")))

    async def run_fail(_: JsonObject, __: ToolContext) -> ToolResult:
        return ToolResult.error("no", code="not_found")

    async def run_boom(_: JsonObject, __: ToolContext) -> ToolResult:
        raise RuntimeError("boom")

    async def run_hang(_: JsonObject, ctx: ToolContext) -> ToolResult:
        ctx.report(ToolProgress(1))
        await sleep_forever()
        raise AssertionError

    registry = ToolRegistry()
    for name, run in (("echo", run_echo), ("fail", run_fail), ("boom", run_boom), ("hang", run_hang)):
        registry.register(define_tool(ToolSpec(name, "", {"type": "object"}, run)))
    return registry.to_tool_box(make_local_context("/", None, None, Framework(observer=observer)))
