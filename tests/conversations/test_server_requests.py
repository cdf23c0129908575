"""Requests of servers as questions: forms, web addresses, sampling, roots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.dialogs import scripted

from indusagi.interop.protocol_bridge.rpc.connection import RpcError
from induscode.cli.dialog import Reply
from induscode.conversations.server_requests import (
    REFUSED,
    InvalidFormError,
    SamplingModel,
    build_server_handlers,
    parse_form,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.dialogs import ScriptedDialog

    from indusagi.core.json import JsonObject

pytestmark = pytest.mark.anyio
CANCEL = Reply(cancelled=True)


async def elicit(dialog: ScriptedDialog, server: str = "github", **params: Any) -> JsonObject:
    handler = build_server_handlers(dialog).bind(server).elicit
    assert handler is not None
    return await handler({"message": "Who?", **params})


async def fill(dialog: ScriptedDialog, *required: str, **properties: Any) -> JsonObject:
    schema = {"type": "object", "properties": properties, "required": [*required]}
    return await elicit(dialog, requestedSchema=schema)


def content(result: JsonObject) -> Any:
    assert result["action"] == "accept"
    return result["content"]


# -- forms --------------------------------------------------------------------------------------


async def test_form_is_asked_field_by_field_reviewed_and_sent() -> None:
    dialog = scripted("y", ">Ada", ">36", "y", "2", "y")
    result = await fill(
        dialog,
        "name",
        "age",
        "active",
        "colour",
        name={"type": "string", "title": "Name", "description": "In\nfull"},
        age={"type": "integer", "minimum": 0},
        active={"type": "boolean"},
        colour={"type": "string", "enum": ["r", "g"], "enumNames": ["red", "green"]},
    )
    assert content(result) == {"name": "Ada", "age": 36, "active": True, "colour": "g"}
    first, name, age, _, colour, review = dialog.questions
    assert first.title == "server github asks for information"
    assert first.lines == ("| Who?", "it asks for: Name, age, active, colour")
    assert first.default == "n"
    assert name.title == "server github asks for Name (text, required)"
    assert name.lines == ("In", "full")
    assert "not below 0" in age.lines
    assert [choice.label for choice in colour.choices] == ["red", "green"]
    assert review.title == "send this to server github?"
    assert 'name: "Ada"' in review.lines


async def test_answers_can_be_changed_before_they_are_sent() -> None:
    dialog = scripted("y", ">Ada", "c", ">Alan", "y")
    assert content(await fill(dialog, "name", name={"type": "string"})) == {"name": "Alan"}


@pytest.mark.parametrize(
    ("script", "action"),
    [
        (("n",), "decline"),
        ((CANCEL,), "cancel"),
        (("y", CANCEL), "cancel"),
        (("y", ">Ada", "n"), "decline"),
        (("y", ">Ada", CANCEL), "cancel"),
    ],
)
async def test_form_is_declined_or_cancelled_at_every_question(script: tuple[str | Reply, ...], action: str) -> None:
    assert await fill(scripted(*script), "name", name={"type": "string"}) == {"action": action}


@pytest.mark.parametrize(
    ("schema", "wrong", "right", "value"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["a", "abcd", ""], "abc", "abc"),
        ({"type": "string", "format": "email"}, ["ada", "a b@c"], "ada@example.org", "ada@example.org"),
        ({"type": "string", "format": "uri"}, ["example.org"], "https://example.org", "https://example.org"),
        ({"type": "string", "format": "date"}, ["tomorrow", "2026-13-01"], "2026-07-28", "2026-07-28"),
        ({"type": "string", "format": "date-time"}, ["noon"], "2026-07-28T12:00:00Z", "2026-07-28T12:00:00Z"),
        ({"type": "number", "minimum": 1, "maximum": 2}, ["0.5", "2.5", "inf", "nan", "x"], "1.5", 1.5),
        ({"type": "integer"}, ["1.5", "one"], "-3", -3),
        ({"type": "string", "enum": [str(n) for n in range(100, 140)]}, ["41", "1,2", "x"], "40", "139"),
        (
            {"type": "array", "minItems": 1, "maxItems": 2, "items": {"enum": ["a", "b", "c"]}},
            ["d", "1,2,3", "0"],
            "1, c, a",
            ["a", "c"],
        ),
        ({"type": "array", "items": {"anyOf": [{"const": "a", "title": "First"}]}}, ["2"], "1", ["a"]),
    ],
)
async def test_answer_is_checked_by_the_schema(schema: Any, wrong: list[str], right: str, value: object) -> None:
    dialog = scripted("y", *(f">{text}" for text in (*wrong, right)), "y")
    assert content(await fill(dialog, "field", field=schema)) == {"field": value}
    assert len(dialog.problems) == len(wrong)


async def test_optional_fields_are_left_out_and_defaults_are_taken() -> None:
    dialog = scripted("y", ">", ">", "-", "-", ">", "y")
    result = await fill(
        dialog,
        plain={"type": "string"},
        given={"type": "string", "default": "x"},
        flag={"type": "boolean"},
        one={"type": "string", "oneOf": [{"const": "a", "title": "A"}]},
        some={"type": "array", "items": {"enum": ["a"]}, "default": ["a"]},
    )
    assert content(result) == {"given": "x", "some": ["a"]}
    assert [question.default for question in dialog.questions[3:5]] == ["-", "-"]


async def test_default_of_a_choice_is_the_key_of_enter() -> None:
    dialog = scripted("y", "n", "1", "y")
    fields = {"flag": {"type": "boolean", "default": False}, "one": {"type": "string", "enum": ["a"], "default": "a"}}
    assert content(await fill(dialog, "flag", "one", **fields)) == {"flag": False, "one": "a"}
    assert [question.default for question in dialog.questions[1:3]] == ["n", "1"]


async def test_form_without_fields_is_agreed_to() -> None:
    assert await fill(scripted("y")) == {"action": "accept", "content": {}}


@pytest.mark.parametrize(
    ("name", "schema"),
    [("password", {}), ("api_key", {}), ("x", {"title": "Access token"}), ("x", {"format": "password"})],
)
async def test_secret_is_never_asked_for_by_a_form(name: str, schema: JsonObject) -> None:
    dialog = scripted("y")
    assert await fill(dialog, **{name: {"type": "string", **schema}}) == {"action": "decline"}
    assert not dialog.questions
    assert "server github asked for" in dialog.shown[0]


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"x": {"type": "object"}}},
        {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "string"}}}},
        {"type": "object", "properties": {"x": True}},
        {"type": "object", "properties": {str(n): {"type": "string"} for n in range(51)}},
    ],
)
async def test_form_that_is_not_flat_is_refused_without_a_question(schema: Any) -> None:
    dialog = scripted()
    with pytest.raises(RpcError):
        await elicit(dialog, requestedSchema=schema)
    assert not dialog.questions


async def test_text_of_a_server_cannot_pass_for_a_line_of_ours() -> None:
    dialog = scripted("n")
    message = "Hi\x1b[2J\nserver: bank\u202e\n" + "x\n" * 500
    await elicit(dialog, message=message, requestedSchema={"type": "object", "properties": {}})
    lines = dialog.questions[0].lines
    assert lines[:2] == ("| Hi\\x1b[2J", "| server: bank\\u202e")
    assert lines[-1].endswith("more lines")
    assert len(lines) < 500


async def test_server_is_named_by_its_configured_id() -> None:
    dialog = scripted("n", "n")
    handlers = build_server_handlers(dialog)
    for server in ("one", "two"):
        elicit = handlers.bind(server).elicit
        assert elicit is not None
        await elicit({"message": "I am bank", "requestedSchema": {"type": "object"}})
    assert [question.title.split()[1] for question in dialog.questions] == ["one", "two"]


async def test_unknown_mode_is_refused() -> None:
    with pytest.raises(RpcError, match="no mode"):
        await elicit(scripted(), mode="voice")


# -- web addresses ------------------------------------------------------------------------------


@pytest.mark.parametrize(("reply", "action"), [("y", "accept"), ("n", "decline"), (CANCEL, "cancel")])
async def test_web_address_is_shown_with_its_domain_and_needs_consent(reply: str | Reply, action: str) -> None:
    dialog = scripted(reply)
    url = "https://github.com@evil.example/login?x=1"
    assert await elicit(dialog, mode="url", url=url, elicitationId="1") == {"action": action}
    (question,) = dialog.questions
    assert "server github asks you to open a web address" in question.title
    assert f"address: {url}" in question.lines
    assert "domain: evil.example" in question.lines
    assert question.default == "n"


async def test_domain_with_letters_of_other_scripts_is_shown_in_ascii() -> None:
    dialog = scripted("n")
    await elicit(dialog, mode="url", url="http://gіthub.com/")  # noqa: RUF001 — the i is Cyrillic on purpose
    assert "domain: xn--gthub-n2e.com" in dialog.questions[0].lines
    assert any("not encrypted" in line for line in dialog.questions[0].lines)


@pytest.mark.parametrize("url", ["javascript:alert(1)", "file:///etc/passwd", "https://", "http://[", 7, None])
async def test_other_addresses_are_refused_without_a_question(url: object) -> None:
    dialog = scripted()
    with pytest.raises(RpcError):
        await elicit(dialog, mode="url", url=url)
    assert not dialog.questions


# -- sampling and roots -------------------------------------------------------------------------

SAMPLE: JsonObject = {
    "systemPrompt": "Be brief.",
    "messages": [
        {"role": "user", "content": {"type": "text", "text": "Say\nsomething."}},
        {"role": "user", "content": [{"type": "image", "mimeType": "image/png", "data": "QUJD"}]},
        "junk",
    ],
    "maxTokens": 7,
}


async def test_sampling_request_is_shown_and_asked_about_once_or_for_the_session() -> None:
    sampled: list[JsonObject] = []

    async def sample(params: JsonObject) -> JsonObject:
        sampled.append(params)
        return {"model": "m"}

    dialog = scripted("y", "s")
    handlers = build_server_handlers(dialog, sample)
    one, two = handlers.bind("one").sample, handlers.bind("two").sample
    assert one is not None
    assert two is not None
    for _ in range(4):
        assert await one(SAMPLE) == {"model": "m"}
    assert len(dialog.questions) == 2
    lines = dialog.questions[0].lines
    assert lines[:4] == ("system prompt:", "| Be brief.", "message of the user:", "| Say")
    assert "[image image/png, 3 bytes]" in lines
    assert lines[-1] == "at most 7 tokens"
    with pytest.raises(RpcError) as refused:  # the yes was for the other server
        await two(SAMPLE)
    assert refused.value.code == REFUSED
    assert len(sampled) == 4


@pytest.mark.parametrize("reply", ["n", CANCEL])
async def test_refused_sampling_request_reaches_no_model(reply: str | Reply) -> None:
    model = SamplingModel()
    handler = build_server_handlers(scripted(reply), model.complete).sample
    assert handler is not None
    with pytest.raises(RpcError, match="refused"):
        await handler(SAMPLE)


async def test_sampling_before_the_first_turn_is_an_error() -> None:
    with pytest.raises(RpcError, match="no model"):
        await SamplingModel().complete(SAMPLE)


async def test_servers_are_told_what_is_offered(tmp_path: Path) -> None:
    async def sample(params: JsonObject) -> JsonObject:
        return {}

    assert [*build_server_handlers(scripted()).capabilities()] == ["elicitation"]
    handlers = build_server_handlers(scripted(), sample, (str(tmp_path),))
    assert [*handlers.capabilities()] == ["elicitation", "sampling", "roots"]
    assert handlers.roots is not None
    assert await handlers.roots({}) == {"roots": [{"uri": tmp_path.as_uri(), "name": tmp_path.name}]}


@pytest.mark.parametrize("kind", [["string", "null"], {}, None])
def test_finding_f1_a_field_of_a_type_that_is_no_text_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidFormError, match="forms do not allow"):
        parse_form({"type": "object", "properties": {"a": {"type": kind}}})
