"""Questions to the person at an editor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import anyio

from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import INTERNAL_ERROR, JsonRpcConnection, RpcError
from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd, linked_pair
from induscode.cli.dialog import Choice, FileChange, Question, Reply
from induscode.conversations.tool_calls import current_call
from induscode.frontends.acp.session import EditorDialog
from induscode.frontends.acp.updates import OpenCall, UpdateChannel

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.core.json import JsonObject

YES_NO = (Choice(key="y", label="yes"), Choice(key="n", label="No, and say what to do instead", refuses=True))


class Updates:
    """The part of `SessionUpdates` that a dialog uses."""

    def __init__(self, channel: UpdateChannel) -> None:
        self.channel = channel
        self.calls: dict[str, OpenCall] = {}


class Asked:
    """A dialog whose editor answers by a function."""

    def __init__(self, answer: Callable[[str, JsonObject], JsonObject], *, takes_text: bool = False) -> None:
        ours, theirs = linked_pair()
        self.sent: list[tuple[str, JsonObject]] = []

        async def respond(method: str, params: JsonObject) -> JsonObject:
            self.sent.append((method, params))
            return answer(method, params)

        self.editor = JsonRpcConnection(
            theirs, on_request=respond, on_notify=lambda method, params: self.sent.append((method, params))
        )
        self.connection = JsonRpcConnection(ours)
        self.updates = Updates(UpdateChannel(self.connection, ours.writable, "s"))
        self.dialog = EditorDialog(takes_text=takes_text)
        self.dialog.updates = cast("Any", self.updates)

    def list_updates(self) -> list[Any]:
        return [params["update"] for method, params in self.sent if method == "session/update"]


def fill_in(*texts: str) -> Callable[[str, JsonObject], JsonObject]:
    answers = iter(texts)

    def answer(_: str, __: JsonObject) -> JsonObject:
        return {"action": "accept", "content": {"answer": next(answers)}}

    return answer


def give(result: JsonObject) -> Callable[[str, JsonObject], JsonObject]:
    def answer(_: str, __: JsonObject) -> JsonObject:
        return result

    return answer


def choose(option: str | None) -> Callable[[str, JsonObject], JsonObject]:
    def answer(_: str, __: JsonObject) -> JsonObject:
        if option is None:
            return {"outcome": {"outcome": "cancelled"}}
        return {"outcome": {"outcome": "selected", "optionId": option}}

    return answer


async def test_a_question_beside_a_call_is_shown_as_a_call_of_its_own() -> None:
    asked = Asked(choose("y"))
    reply = await asked.dialog.ask(Question(title="Send it?", lines=("a: 1",), choices=YES_NO))
    await anyio.lowlevel.checkpoint()
    assert reply == Reply("y")
    first, last = asked.list_updates()
    assert (first["title"], first["status"], last["status"]) == ("Send it?", "pending", "completed")
    request = cast("Any", next(params for method, params in asked.sent if method == "session/request_permission"))
    assert request["toolCall"]["toolCallId"] == first["toolCallId"] == last["toolCallId"]
    assert [option["name"] for option in request["options"]] == ["yes", "No"], "there is no field for the reason"


async def test_a_question_about_a_call_names_it() -> None:
    asked = Asked(choose("n"))
    diff: JsonObject = {"type": "diff", "path": "/a", "oldText": None, "newText": "n"}
    asked.updates.calls["model-id"] = OpenCall("editor-id", "write", "edit")
    change = FileChange(path="/a", before=None, after="n", diff="@@ -0,0 +1 @@\n+n", counts="+1")
    token = current_call.set("model-id")
    try:
        assert await asked.dialog.ask(Question(title="Write?", choices=YES_NO, change=change)) == Reply("n")
    finally:
        current_call.reset(token)
    (_, request), *rest = asked.sent
    assert cast("Any", request)["toolCall"]["toolCallId"] == "editor-id"
    assert cast("Any", request)["toolCall"]["content"] == [diff]
    assert rest == [], "a refused call is not reported as running"


async def test_whatever_is_no_answer_is_a_no() -> None:
    def fail(_: str, __: JsonObject) -> JsonObject:
        raise RpcError(INTERNAL_ERROR, "no window")

    question = Question(title="Send it?", choices=YES_NO)
    for answer in (choose(None), choose("other"), give({}), fail):
        assert (await Asked(answer).dialog.ask(question)).cancelled
    gone = Asked(choose("y"))
    gone.connection.end(TransportEnd("gone", FaultDetail(reason="closed")))
    assert (await gone.dialog.ask(question)).cancelled
    assert (await EditorDialog(takes_text=True).ask(question)).cancelled, "the session is not open"


async def test_text_is_asked_for_where_the_editor_has_forms() -> None:
    asked = Asked(fill_in("abc", "12"), takes_text=True)
    number = Question(title="How many?", check=lambda text: None if text.isdigit() else "not a number")
    assert await asked.dialog.ask(number) == Reply(text="12")
    assert [cast("Any", params)["message"] for _, params in asked.sent] == ["How many?", "not a number\nHow many?"]
    assert (await asked.dialog.ask(Question(title="Password?", secret=True))).cancelled
    declined = Asked(give({"action": "decline"}), takes_text=True)
    assert (await declined.dialog.ask(number)).cancelled
    assert (await Asked(choose("y")).dialog.ask(number)).cancelled, "this editor has no forms"
    stubborn = Asked(fill_in(*["abc"] * 5), takes_text=True)
    assert (await stubborn.dialog.ask(number)).cancelled
