"""What a model receives of a result: each kind of block, and what is left out of it and named."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.adapters import PDF, PNG

from indusagi.adapters import calls as module
from indusagi.adapters.calls import (
    Attachment,
    ModelContent,
    ask_gate,
    build_gate_request,
    format_arguments,
    is_gated,
    is_read_only,
    parse_arguments,
    to_model_content,
)
from indusagi.runtime.contract import JsonContentBlock, TextContentBlock, ToolCall, ToolDescriptor, ToolResult

if TYPE_CHECKING:
    from indusagi.adapters.calls import Gate

IMAGE = base64.b64encode(PNG).decode()
DOCUMENT = base64.b64encode(PDF).decode()


def convert(*values: Any) -> ModelContent:
    """Convert a result of these blocks; a string is a text block."""
    blocks = [TextContentBlock(value) if isinstance(value, str) else JsonContentBlock(value) for value in values]
    return to_model_content(ToolResult(blocks))


def resource(**fields: Any) -> dict[str, Any]:
    """An embedded resource."""
    return {"type": "resource", "resource": {"uri": "file:///a", **fields}}


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"a": 1}, '{"a":1}'),
        ([1, 2], "[1,2]"),
        ({"type": ["image"]}, '{"type":["image"]}'),
        ({"type": "resource_link", "uri": "x:"}, '{"type":"resource_link","uri":"x:"}'),
        ({"type": "resource", "resource": "x"}, '{"type":"resource","resource":"x"}'),
        (
            {"type": "other", "resource": {"uri": "u", "text": "t"}},
            '{"type":"other","resource":{"uri":"u","text":"t"}}',
        ),
        (resource(text="words"), "[resource file:///a]\nwords"),
        (resource(text=""), "[resource file:///a]\n"),
        (resource(), '{"uri":"file:///a"}'),
        (resource(blob="§"), "[resource file:///a: left out, its content is not valid base64]"),
        (resource(blob="AAAA"), "[resource file:///a: application/octet-stream, 3 bytes, left out: no model takes it]"),
        ({"type": "image", "data": "A"}, "[image: left out, its content is not valid base64]"),
        ({"type": "image", "data": "AA AA"}, "[image: left out, its content is not valid base64]"),
        ({"type": "image", "data": None}, "[image: left out, its content is not valid base64]"),
        ({"type": "image"}, "[image: left out, its content is not valid base64]"),
        (
            {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
            "[audio: audio/wav, 3 bytes, left out: no model takes it]",
        ),
        (
            {"type": "image", "data": "AAAA", "mimeType": "image/tiff; page=1"},
            "[image: image/tiff, 3 bytes, left out: no model takes it]",
        ),
    ],
)
def test_a_block_that_is_no_attachment_is_text(block: Any, text: str) -> None:
    assert convert("before", block) == ModelContent(f"before\n{text}")


@pytest.mark.parametrize("mime", ["image/png", "image/jpeg", "image/gif", "image/webp", "image/png ; q=1"])
def test_images_that_models_take_are_attached(mime: str) -> None:
    found = convert({"type": "image", "data": IMAGE, "mimeType": mime})
    assert found == ModelContent("", (Attachment(PNG, mime.partition(" ")[0]),))
    assert found.attachments[0].is_image


def test_a_document_is_attached_and_named_in_the_text() -> None:
    found = convert("a", resource(blob=DOCUMENT, mimeType="application/pdf"), "b")
    assert found.text == "a\n[resource file:///a: attached]\nb"
    (file,) = found.attachments
    assert (file.data, file.is_image, file.file_name) == (PDF, False, "attachment.pdf")
    assert file.to_data_url() == f"data:application/pdf;base64,{DOCUMENT}"


def test_an_attachment_of_the_largest_size_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    block = {"type": "image", "data": IMAGE, "mimeType": "image/png"}
    monkeypatch.setattr(module, "_MAX_ATTACHMENT_BYTES", len(PNG))
    assert convert(block).attachments
    monkeypatch.setattr(module, "_MAX_ATTACHMENT_BYTES", len(PNG) - 1)
    assert convert(block) == ModelContent(f"[image: image/png, {len(PNG)} bytes, left out: no model takes it]")


def test_structured_content_is_text_where_there_is_no_other() -> None:
    assert to_model_content(ToolResult((), structured={"a": 1})).text == '{"a":1}'
    assert to_model_content(ToolResult((TextContentBlock("x"),), structured={"a": 1})).text == "x"
    assert to_model_content(ToolResult(())).text == ""


def test_a_failure_is_text_alone_and_marked() -> None:
    image = JsonContentBlock({"type": "image", "data": IMAGE, "mimeType": "image/png"})
    found = to_model_content(ToolResult((TextContentBlock("no"), image), is_error=True))
    assert found == ModelContent("no\n[left out of a failed answer: image/png]", is_error=True)
    assert found.marked_text == f"Error: {found.text}"
    assert to_model_content(ToolResult((TextContentBlock("no"),), is_error=True)).text == "no"
    assert convert("yes").marked_text == ModelContent("yes").marked_text == "yes"


@pytest.mark.parametrize(
    ("text", "value"), [("", {}), ('{"a": 1}', {"a": 1}), ("{", "{"), ("[" * 100_000, "[" * 100_000)]
)
def test_arguments_that_are_not_json_stay_text(text: str, value: Any) -> None:
    assert parse_arguments(text) == value


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (None, False),
        ({}, False),
        ({"readOnlyHint": True}, True),
        ({"readOnlyHint": False}, False),
        ({"readOnlyHint": 1}, False),
    ],
)
def test_only_true_says_that_a_tool_changes_nothing(annotations: Any, *, expected: bool) -> None:
    assert is_read_only(ToolDescriptor("a", "", {"type": "object"}, annotations=annotations)) is expected


def test_a_request_shows_every_character_of_a_call() -> None:
    request = build_gate_request(ToolCall("1", "té\n", {"a": "\u202e"}))
    assert request.title == 't\\u00e9\\n {"a": "\\u202e"}'
    assert (request.tool, request.arguments, request.reasons) == ("té\n", {"a": "\u202e"}, ())
    assert format_arguments({"a": b"x"}) == '{"a": "b\'x\'"}'  # type: ignore[dict-item]


@pytest.mark.anyio
@pytest.mark.parametrize(("answer", "refusal"), [(True, None), (False, ""), ("why", "why"), (1, ""), (None, "")])
async def test_only_true_lets_a_call_run(answer: Any, refusal: str | None) -> None:
    request = build_gate_request(ToolCall("1", "t", {}))

    class Asked:
        async def __call__(self, _: object) -> Any:
            return answer

    async def ask(_: object) -> Any:
        return answer

    gates: list[Gate] = [lambda _: answer, ask, Asked(), lambda request: ask(request)]
    for gate in gates:
        assert await ask_gate(gate, request) == refusal


def test_a_toolbox_checks_its_calls_if_it_says_exactly_so() -> None:
    class Box:
        is_gated: Any = True

    box: Any = Box()
    assert is_gated(box)
    Box.is_gated = 1
    assert not is_gated(box)
    assert not is_gated(object())  # type: ignore[arg-type]
