"""Runs a model's tool calls and reports them as events.

This module doesn't depend on the library behind the model loop. It counts calls that repeat an earlier call with the
same result, warns the model, and ends the run if that doesn't help.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

import anyio

from indusagi.adapters.calls import ModelContent, to_model_content
from indusagi.capabilities.web.fetch import fence_text
from indusagi.core.cancel import CancelToken
from indusagi.core.faults import CoreError
from indusagi.core.json import JsonValue, NotJson, compact_json
from indusagi.core.tasks import ReadWriteLock
from indusagi.core.text import escape_unseen
from indusagi.runtime.calls import CallEntry, UserWait, current_entry, current_wait
from indusagi.runtime.contract import ToolCall, ToolOutcome, ToolProgress
from induscode.calls.record import find_tool_ref
from induscode.conversations.contract import EventSink, ToolAdvanced, ToolAnswered, ToolCalled
from induscode.conversations.deck_limit import find_denied_tools, resolve_deck_call
from induscode.conversations.transcript import add_session_note
from induscode.deck.provision import DeckToolBox

_PROGRESS_BUFFER = 64
_OWN_CODES = frozenset({"cancelled", "denied", "drift", "unknown_tool"})
"""Codes of failures that quote nothing of a server."""
WARN_AT = 3
STOP_AT = 6
RepeatAction: TypeAlias = Literal["continue", "warn", "stop"]

current_call: ContextVar[str] = ContextVar("current_call", default="")
"""Id of the call running in this task, for questions about it; empty outside a call."""


class RepeatedCallError(CoreError):
    """The model repeats the same call with the same result."""


class RepeatDetector:
    """Counts calls of a run that return the same result for the same arguments.

    A new result resets the count: a test that fails with the same output after another edit is progress, not
    repetition.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._repeats: Counter[str] = Counter()

    def record(self, name: str, arguments: JsonValue, answer: str) -> RepeatAction:
        """Record a call with its answer, and return the action to take."""
        try:
            encoded = compact_json(arguments, sort_keys=True)
        except NotJson:
            encoded = repr(arguments)
        text = "\0".join((name, encoded, answer))
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        if key not in self._seen:
            self._seen.add(key)
            self._repeats.clear()
            return "continue"
        self._repeats[key] += 1
        times = self._repeats[key] + 1
        if times >= STOP_AT:
            return "stop"
        return "warn" if times == WARN_AT else "continue"


class ToolCalls:
    """Runs the calls of a run, reports them as events, and ends the run on repetition."""

    def __init__(self, sink: EventSink, cancel: CancelToken, notices: Callable[[], Sequence[str]]) -> None:
        """Connect the event sink, the token that ends calls, and the notices to send with results."""
        self._sink, self._cancel, self._notices = sink, cancel, notices
        self._repeats = RepeatDetector()
        self._order = ReadWriteLock()

    async def run(self, toolbox: DeckToolBox, call: ToolCall) -> ModelContent:
        """Run a call and report its progress. A call that changes something runs alone.

        Raises:
            RepeatedCallError: The call returned the same result too often.
            OSError: The sink failed because its reader is gone.
        """
        if toolbox.hidden:
            call = resolve_deck_call(toolbox, call)
        traits = toolbox.runner.traits.get(call.name)
        async with self._order.hold(shared=traits is None or traits.can_overlap(call.input)):
            content = await self._run(toolbox, call)
        if notices := self._notices():
            text = add_session_note(content.text, notices)
            return ModelContent(text, content.attachments, content.is_error)
        return content

    async def _run(self, toolbox: DeckToolBox, call: ToolCall) -> ModelContent:
        ref = find_tool_ref(toolbox.runner.cards.get(call.name))
        called = ToolCalled(call.id, call.name, call.input)
        await self._sink(called if ref is None else replace(called, server=ref.server, tool=ref.name))
        send, receive = anyio.create_memory_object_stream["ToolProgress"](_PROGRESS_BUFFER)

        def buffer_progress(progress: ToolProgress) -> None:
            try:
                send.send_nowait(progress)
            except anyio.WouldBlock:
                return  # the sink is slower than the tool; a later report supersedes this one

        outcome: ToolOutcome | None = None
        wait = UserWait(current_wait.get())
        failures: list[OSError] = []
        with send, receive:
            async with anyio.create_task_group() as tasks:

                async def report_progress() -> None:
                    async for progress in receive:
                        event = ToolAdvanced(call.id, call.name, progress.done, progress.total, progress.message)
                        try:
                            await self._sink(event)
                        except OSError as exc:
                            failures.append(exc)
                            tasks.cancel_scope.cancel()

                tasks.start_soon(report_progress)
                current_call.set(call.id)
                find_denied = partial(find_denied_tools, toolbox.runner.cards, toolbox.context)
                current_entry.set(CallEntry(toolbox, call.id, find_denied=find_denied))
                current_wait.set(wait)
                outcome = await toolbox.runner.run(call, self._cancel, on_progress=buffer_progress)
                send.close()
        if failures:
            raise failures[0]
        assert outcome is not None
        content = to_model_content(outcome.result)
        media = tuple(attachment.media_type for attachment in content.attachments)
        details = outcome.result.details
        code = str(details["code"]) if details.get("code") else None
        answered = ToolAnswered(call.id, call.name, content.text, content.is_error, media, code, details, wait.seconds)
        await self._sink(answered)
        if ref is not None and code not in _OWN_CODES and content.text:
            # Other failures may quote the server: the message of an error, or what it wrote before it ended.
            fenced = fence_text(content.text, "answer", f"server {escape_unseen(ref.server)!r}")
            content = replace(content, text=fenced)
        action = self._repeats.record(call.name, call.input, content.text)
        if action == "stop":
            raise RepeatedCallError(call.name)
        if action == "warn":
            warning = (
                f"[{call.name} has given this same answer to this same call {WARN_AT} times. It will not change "
                "by itself: do something else, or say what is in the way.]"
            )
            return ModelContent(f"{content.text}\n\n{warning}", content.attachments, content.is_error)
        return content

    async def report_unknown_tool(self, call_id: str, name: str, message: str) -> None:
        """Report a call of a tool that isn't in the deck; `RepeatedCallError` if the model repeats it too often."""
        await self._sink(ToolAnswered(call_id, name, message, is_error=True, code="unknown_tool"))
        if self._repeats.record(name, None, message) == "stop":
            raise RepeatedCallError(name)
