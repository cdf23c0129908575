"""An editor for tests: the client of the package `agent-client-protocol` beside a process of `indus acp`.

Every message in both directions is validated against the models that the package generates from the protocol's schema.
A field that the schema does not have fails too.
"""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from acp import PROTOCOL_VERSION, text_block
from acp import schema as models
from acp.client.connection import ClientSideConnection
from acp.connection import StreamDirection
from acp.transports import default_environment
from pydantic import BaseModel
from tests.support.forked import start_command
from tests.support.scripts import command

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from pathlib import Path

    from acp.connection import StreamEvent

LIMIT_S = 60.0
"""Longer than any step of a test takes."""
_REQUESTS: dict[str, tuple[type[BaseModel], type[BaseModel] | None]] = {
    "initialize": (models.InitializeRequest, models.InitializeResponse),
    "authenticate": (models.AuthenticateRequest, models.AuthenticateResponse),
    "session/new": (models.NewSessionRequest, models.NewSessionResponse),
    "session/load": (models.LoadSessionRequest, models.LoadSessionResponse),
    "session/resume": (models.ResumeSessionRequest, models.ResumeSessionResponse),
    "session/list": (models.ListSessionsRequest, models.ListSessionsResponse),
    "session/close": (models.CloseSessionRequest, models.CloseSessionResponse),
    "session/prompt": (models.PromptRequest, models.PromptResponse),
    "session/set_mode": (models.SetSessionModeRequest, models.SetSessionModeResponse),
    "session/request_permission": (models.RequestPermissionRequest, models.RequestPermissionResponse),
    "session/cancel": (models.CancelNotification, None),
    "session/update": (models.SessionNotification, None),
    "$/cancel_request": (models.CancelRequestNotification, None),
}


@dataclass
class MessageJudge:
    """Validates the messages of a connection."""

    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Messages of the agent."""
    problems: list[str] = field(default_factory=list[str])
    _methods: dict[tuple[StreamDirection, object], str] = field(
        default_factory=dict[tuple[StreamDirection, object], str]
    )

    def __call__(self, event: StreamEvent) -> None:
        """Take one message."""
        message, direction = event.message, event.direction
        if direction is StreamDirection.INCOMING:
            self.messages.append(message)
        try:
            self._validate(message, direction)
        except Exception as exc:  # noqa: BLE001 — an observer must not raise
            self.problems.append(f"{message}: {exc}")

    def find_request(self, method: str) -> object:
        """Give the id of the open request of the editor for a method."""
        outgoing = StreamDirection.OUTGOING
        return next(key[1] for key, name in self._methods.items() if key[0] is outgoing and name == method)

    def _validate(self, message: dict[str, Any], direction: StreamDirection) -> None:
        assert message.get("jsonrpc") == "2.0"
        method = message.get("method")
        if isinstance(method, str):
            if "id" in message:
                self._methods[direction, message["id"]] = method
            _check_model(_REQUESTS[method][0], message["params"])
        elif "error" in message:
            assert isinstance(message["error"]["code"], int)
            assert isinstance(message["error"]["message"], str)
        else:
            asked = StreamDirection.OUTGOING if direction is StreamDirection.INCOMING else StreamDirection.INCOMING
            model = _REQUESTS[self._methods.pop((asked, message["id"]))][1]
            assert model is not None
            _check_model(model, message["result"])


def _check_model(model: type[BaseModel], value: dict[str, Any]) -> None:
    """Validate a value, and check that the model has each of its fields."""
    read = model.model_validate(value).model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert read == value, f"the schema has {read}"


@dataclass
class Question:
    """A permission request."""

    session: str
    call: models.ToolCallUpdate
    options: Sequence[models.PermissionOption]

    def names(self) -> dict[str, str]:
        """Give the kinds of the options by their ids."""
        return {option.option_id: option.kind for option in self.options}


class Editor:
    """A client that records updates and answers questions by a script."""

    def __init__(self) -> None:
        self.judge = MessageJudge()
        self.questions: list[Question] = []
        self.answer: Callable[[Question], str | None] = lambda _: None
        """Gives the id of an option; None for a question that is closed without an answer."""
        self.asked = asyncio.Event()
        self.hold = asyncio.Event()
        """An answer waits for it."""
        self.hold.set()
        self.arrived = asyncio.Condition()

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **_: Any
    ) -> models.RequestPermissionResponse:
        """Answer a question."""
        question = Question(session_id, tool_call, options)
        self.questions.append(question)
        self.asked.set()
        await self.hold.wait()
        chosen = self.answer(question)
        if chosen is None:
            return models.RequestPermissionResponse(outcome=models.DeniedOutcome(outcome="cancelled"))
        return models.RequestPermissionResponse(outcome=models.AllowedOutcome(option_id=chosen, outcome="selected"))

    @property
    def updates(self) -> list[tuple[str, Any]]:
        """The sessions and their updates, in the order of their messages; the client handles them a little later."""
        rows = [message["params"] for message in self.judge.messages if message.get("method") == "session/update"]
        read = [models.SessionNotification.model_validate(row) for row in rows]
        return [(row.session_id, row.update) for row in read]

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        """Tell waiting tests that an update has come."""
        async with self.arrived:
            self.arrived.notify_all()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds after an update."""
        async with asyncio.timeout(LIMIT_S), self.arrived:
            await self.arrived.wait_for(condition)

    def of(self, session: str, *kinds: type[Any]) -> list[Any]:
        """List the updates of a session."""
        return [update for name, update in self.updates if name == session and (not kinds or isinstance(update, kinds))]

    def said(self, session: str) -> str:
        """Give the text of the agent in a session."""
        return "".join(chunk.content.text for chunk in self.of(session, models.AgentMessageChunk))


@dataclass
class EditorProcess:
    """An editor with its agent."""

    editor: Editor
    agent: ClientSideConnection
    process: subprocess.Popen[bytes]
    input: asyncio.StreamWriter
    output: asyncio.ReadTransport
    capabilities: models.InitializeResponse

    async def say(self, session: str, text: str) -> str:
        """Send a prompt, and give the stop reason."""
        async with asyncio.timeout(LIMIT_S):
            response = await self.agent.prompt(session_id=session, prompt=[text_block(text)])
        return str(response.stop_reason)

    async def leave(self) -> int:
        """End the input of the agent, and wait for its end."""
        self.input.close()
        return await self.wait()

    async def wait(self) -> int:
        """Wait for the end of the agent."""
        return await asyncio.to_thread(self.process.wait, LIMIT_S)


@asynccontextmanager
async def open_editor(
    cwd: Path, environ: dict[str, str], *flags: str, editor: Editor | None = None
) -> AsyncGenerator[EditorProcess]:
    """Run `indus acp` with flags, and initialize it; at the end no message may have been invalid."""
    client = editor or Editor()
    loop = asyncio.get_running_loop()
    with (cwd.parent / "acp.stderr").open("ab") as stderr:
        process = start_command(
            [command(), "acp", *flags],
            environ={**default_environment(), **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=cwd,
            bufsize=0,
        )
    try:
        reader = asyncio.StreamReader(2**24)
        output, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, process.stdin)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        agent = ClientSideConnection(cast("Any", client), writer, reader, observers=[client.judge])
        try:
            async with asyncio.timeout(LIMIT_S):
                capabilities = await agent.initialize(protocol_version=PROTOCOL_VERSION)
            yield EditorProcess(client, agent, process, writer, output, capabilities)
        finally:
            await agent.close()
            writer.close()
            await asyncio.to_thread(process.wait, LIMIT_S)
            output.close()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert client.judge.problems == [], client.judge.problems
