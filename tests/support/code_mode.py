"""Scripts for tests: a deck with a few tools, one of them denied, and `run_code` over it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.support.tools import tool

from indusagi.capabilities.context import Framework
from indusagi.capabilities.local import make_local_context
from indusagi.runtime.calls import CallEntry, current_entry
from indusagi.runtime.contract import ToolCall
from induscode.code_mode.contract import CodeLimits
from induscode.code_mode.opening import RunCodeCard
from induscode.code_mode.process import MontyEngine
from induscode.deck.provision import ToolDeck
from induscode.permissions.check import Permissions, require_permission
from induscode.permissions.policy import ApprovalMode
from induscode.permissions.rules import Effect, Rule, RuleOrigin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.calls import CallObserver
    from indusagi.runtime.contract import JsonSchema, ProgressSink, ToolOutcome
    from induscode.deck.contract import Capability

CANARY = "canary-5f3c"
"""What no script may see: the content of a file, of a variable, and the result of the denied tool."""
_TEXT: JsonSchema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class ScriptRuns:
    """Runs scripts with `run_code`, and remembers which tools ran."""

    def __init__(
        self, engine: RunCodeCard, folder: Path, more: Sequence[Capability], observer: CallObserver | None
    ) -> None:
        self.ran: list[tuple[str, JsonValue]] = []
        cards: list[Capability] = [
            tool(self._echo, name="echo", parameters=_TEXT, read_only=True),
            tool(self._change, name="change"),
            tool(self._open_vault, name="open-vault"),
            *more,
            engine,
        ]
        denied = Rule(effect=Effect.DENY, tool="open-vault", origin=RuleOrigin.SESSION)
        permissions = Permissions([denied], approval=ApprovalMode.ALL)
        context = make_local_context(str(folder), framework=Framework(observer=observer))
        self.box = (
            ToolDeck(cards, context)
            .map_capabilities(lambda card: require_permission(card, permissions))
            .into_tool_box()
        )

    async def _echo(self, arguments: JsonObject, ctx: ToolContext) -> JsonValue:
        self.ran.append(("echo", arguments))
        return arguments["text"]

    async def _change(self, arguments: JsonObject, ctx: ToolContext) -> JsonValue:
        self.ran.append(("change", arguments))
        return {"changed": arguments}

    async def _open_vault(self, arguments: JsonObject, ctx: ToolContext) -> JsonValue:
        self.ran.append(("open-vault", arguments))
        return CANARY

    async def run(
        self, code: str, cancel: CancelToken | None = None, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run a script as a model would."""
        current_entry.set(CallEntry(self.box, "call_1"))
        return await self.box.runner.run(
            ToolCall("call_1", "run_code", {"code": code}), cancel, on_progress=on_progress
        )


@asynccontextmanager
async def script_runs(
    folder: Path,
    more: Sequence[Capability] = (),
    limits: CodeLimits | None = None,
    observer: CallObserver | None = None,
) -> AsyncGenerator[ScriptRuns]:
    """Open an engine with a deck inside the block."""
    card = RunCodeCard(MontyEngine(), limits)
    try:
        yield ScriptRuns(card, folder, more, observer)
    finally:
        await card.engine.aclose()
