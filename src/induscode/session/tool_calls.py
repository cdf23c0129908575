"""A call of the model on its way to a card and back, whatever loop the model runs in."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import anyio

from indusagi.core.faults import CoreError
from induscode.session.content import ForModel, for_model
from induscode.session.events import ToolAdvanced, ToolAnswered, ToolCalled
from induscode.session.repeats import RepeatGuard, repeat_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import ToolCall, ToolOutcome, ToolProgress
    from induscode.deck.toolbox import DeckToolBox
    from induscode.session.content import Attachment
    from induscode.session.events import Sink


class Circles(CoreError):
    """The model does the same thing over and over."""


class _Unread(dict[str, Any]):
    """Arguments that are no object, on their way to the kernel, which says what is wrong."""

    def __init__(self, value: JsonValue) -> None:
        super().__init__()
        self.value = value


class AnyArguments:
    """Lets everything pass: the kernel checks arguments against the schema it was given."""

    def validate_json(self, input: str | bytes | bytearray, **_: Any) -> dict[str, Any]:
        """Read arguments; what is no JSON is passed on as text."""
        try:
            value = cast("JsonValue", json.loads(input))
        except (ValueError, RecursionError):
            value = input if isinstance(input, str) else bytes(input).decode("utf-8", "replace")
        return self.validate_python(value)

    def validate_python(self, input: Any, **_: Any) -> dict[str, Any]:
        """Take arguments as they are."""
        return cast("dict[str, Any]", input) if isinstance(input, dict) else _Unread(input)


def as_written(arguments: dict[str, Any]) -> JsonValue:
    """Give the arguments that `AnyArguments` let pass, as the model wrote them."""
    return arguments.value if isinstance(arguments, _Unread) else arguments


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model is told."""

    text: str
    is_error: bool
    attachments: Sequence[Attachment] = ()


class Calls:
    """Runs the calls of one run, tells of them, and finds out when they go in circles."""

    def __init__(self, sink: Sink, cancel: CancelToken) -> None:
        self._sink, self._cancel = sink, cancel
        self._guard = RepeatGuard()

    async def run(self, box: DeckToolBox, call: ToolCall) -> Answer:
        """Run a call.

        Raises:
            Circles: It has brought the same answer too often.
            OSError: What is told cannot be written: nobody reads it any more.
        """
        await self._sink(ToolCalled(call.id, call.name, call.input))
        outcome = await self._ran(box, call)
        answer = for_model(outcome.result)
        media = tuple(one.media_type for one in answer.attachments)
        if outcome.is_error and media:
            # No provider takes pictures in an answer that says that something failed.
            said = f"{answer.text}\n[left out of a failed answer: {', '.join(media)}]"
            answer, media = ForModel(said), ()
        code = outcome.details.get("code")
        told = ToolAnswered(call.id, call.name, answer.text, outcome.is_error, media)
        await self._sink(replace(told, code=str(code) if code else None))
        text = self._checked(call.name, call.input, answer.text)
        return Answer(text, outcome.is_error, answer.attachments)

    async def missed(self, identity: str, name: str, said: str) -> None:
        """Tell of a call of a tool that is not there.

        Raises:
            Circles: It was called too often.
        """
        await self._sink(ToolAnswered(identity, name, said, is_error=True, code="unknown_tool"))
        self._checked(name, None, said)

    def _checked(self, name: str, arguments: JsonValue, text: str) -> str:
        finding = self._guard.note(name, arguments, text)
        if finding == "stop":
            raise Circles(name)
        return f"{text}\n\n{repeat_words(name)}" if finding == "tell" else text

    async def _ran(self, box: DeckToolBox, call: ToolCall) -> ToolOutcome:
        """Run the call while whoever listens hears of its progress."""
        send, receive = anyio.create_memory_object_stream["ToolProgress"](64)

        def advanced(progress: ToolProgress) -> None:
            try:
                send.send_nowait(progress)
            except anyio.WouldBlock:
                return  # somebody reads slower than the tool tells: the next one says more

        outcome: ToolOutcome | None = None
        failed: list[OSError] = []
        with send, receive:
            async with anyio.create_task_group() as tasks:

                async def relay() -> None:
                    async for one in receive:
                        said = ToolAdvanced(call.id, call.name, one.done, one.total, one.message)
                        try:
                            await self._sink(said)
                        except OSError as exc:
                            failed.append(exc)
                            tasks.cancel_scope.cancel()

                tasks.start_soon(relay)
                outcome = await box.runner.run(call, self._cancel, on_progress=advanced)
                send.close()
        if failed:
            raise failed[0]
        assert outcome is not None
        return outcome
