from __future__ import annotations

import copy
import json
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import json_values

from indusagi.core.faults import CoreError, Note
from indusagi.core.json import compact_json, is_json_object
from indusagi.interop.protocol_bridge.contract import (
    BLOCK_TYPES,
    FAULT_KINDS,
    BridgeConfig,
    EndpointPhase,
    EndpointStatus,
    FaultDetail,
    FaultKind,
    ProtocolFault,
    RemoteCallResult,
    RemoteTool,
    RemoteToolRef,
    ServerLimits,
    SseServerConfig,
    StdioServerConfig,
    StreamableHttpServerConfig,
    from_block,
    is_protocol_fault,
    is_terminal_phase,
    is_usable_phase,
    parse_call_result,
    protocol_fault,
    qualify_tool_name,
    to_block,
    to_tool_result,
)
from indusagi.runtime.contract import JsonContentBlock, TextContentBlock, ToolDescriptor

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import ServerConfig


CONFIGS: list[ServerConfig] = [
    StdioServerConfig("a", "run", ["x"], {"K": "v"}),
    SseServerConfig("a", "http://a/", {"K": "v"}),
    StreamableHttpServerConfig("a", "http://a/", {"K": "v"}),
]


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_fault_shows_its_message_and_kind(kind: FaultKind) -> None:
    cause = ValueError("why")
    fault = ProtocolFault(kind, "what happened", cause)
    assert str(fault) == fault.message == "what happened"
    assert repr(fault) == f"ProtocolFault({kind!r}, 'what happened')"
    assert fault.kind == kind
    assert fault.cause is fault.__cause__ is cause
    assert fault.detail == FaultDetail()
    assert isinstance(fault, CoreError)


def test_fault_takes_its_cause_from_raise_from() -> None:
    fault = protocol_fault("timeout", "late")
    assert fault.cause is None
    cause = ValueError("why")
    with pytest.raises(ProtocolFault) as caught:
        raise fault from cause
    assert caught.value.cause is cause
    detail = FaultDetail(server="a", reason="auth", http_status=401)
    assert ProtocolFault("transport", "no", detail=detail).detail is detail


def test_is_protocol_fault_accepts_only_faults() -> None:
    assert is_protocol_fault(protocol_fault("transport", "lost"))
    assert not any(is_protocol_fault(value) for value in (CoreError("x"), None, "transport"))


def test_fault_kinds_match_their_type() -> None:
    assert get_args(FaultKind) == FAULT_KINDS
    assert len(set(FAULT_KINDS)) == 6


@pytest.mark.parametrize(
    ("phase", "usable", "terminal"),
    [
        (EndpointPhase.IDLE, False, False),
        (EndpointPhase.CONNECTING, False, False),
        (EndpointPhase.READY, True, False),
        (EndpointPhase.CLOSING, False, False),
        (EndpointPhase.CLOSED, False, True),
        (EndpointPhase.FAULTED, False, True),
    ],
)
def test_phases_know_whether_they_are_usable_or_terminal(phase: EndpointPhase, usable: bool, terminal: bool) -> None:
    assert (is_usable_phase(phase), is_terminal_phase(phase)) == (usable, terminal)
    assert phase == phase.value


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_configurations_are_immutable(config: ServerConfig) -> None:
    with pytest.raises(FrozenInstanceError):
        config.id = "b"  # pyright: ignore[reportAttributeAccessIssue]
    mapping = config.env if config.kind == "stdio" else config.headers
    with pytest.raises(TypeError):
        mapping["K"] = "w"  # pyright: ignore[reportIndexIssue]


def test_repr_of_a_configuration_hides_secrets() -> None:
    hidden = {"KEY": "s3cret"}
    for config in (
        StdioServerConfig("a", "run", env=hidden),
        SseServerConfig("a", "http://a/", hidden),
        StreamableHttpServerConfig("a", "http://a/", hidden),
    ):
        assert "s3cret" not in repr(config)


def test_configuration_copies_its_arguments() -> None:
    args, env = ["x"], {"K": "v"}
    config = StdioServerConfig("a", "run", args, env)
    args.append("y")
    env["L"] = "w"
    assert config.args == ("x",)
    assert config.env == {"K": "v"}
    headers = {"K": "v"}
    remote = SseServerConfig("a", "http://a/", headers)
    headers.clear()
    assert remote.headers == {"K": "v"}
    servers: list[ServerConfig] = [config]
    bridge = BridgeConfig(servers)
    servers.clear()
    assert bridge.servers == (config,)
    assert BridgeConfig().servers == ()


def test_configurations_compare_by_value() -> None:
    assert StdioServerConfig("a", "run", ["x"]) == StdioServerConfig("a", "run", ("x",))
    assert StdioServerConfig("a", "run") != StdioServerConfig("a", "run", limits=ServerLimits(tools=1))
    assert StdioServerConfig("a", "run") != StdioServerConfig("a", "run", env={"K": "v"})
    url = "http://a/"
    assert StreamableHttpServerConfig("a", url) == StreamableHttpServerConfig("a", url)
    assert SseServerConfig("a", url) != StreamableHttpServerConfig("a", url)


def test_kind_is_a_class_attribute() -> None:
    assert [config.kind for config in CONFIGS] == ["stdio", "sse", "streamable_http"]
    with pytest.raises(TypeError):
        StdioServerConfig("a", "run", kind="sse")  # pyright: ignore[reportCallIssue]


def test_qualified_name_joins_server_and_tool() -> None:
    assert qualify_tool_name(RemoteToolRef("github", "create_issue")) == "github__create_issue"
    both = {qualify_tool_name(RemoteToolRef(*ref)) for ref in (("a__b", "c"), ("a", "b__c"))}
    assert both == {"a__b__c"}


def test_result_copies_its_content() -> None:
    blocks: list[JsonValue] = [{"type": "text", "text": "a"}]
    result = RemoteCallResult(blocks)
    blocks.append(None)
    assert result.content == ({"type": "text", "text": "a"},)
    assert (result.is_error, result.structured, result.meta, result.notes) == (False, None, None, ())


def test_tool_without_definition_has_its_own_empty_one() -> None:
    ref, descriptor = RemoteToolRef("a", "b"), ToolDescriptor("a__b", "", {"type": "object"})
    first, second = RemoteTool(ref, descriptor), RemoteTool(ref, descriptor)
    assert first.raw == {}
    assert first.raw is not second.raw


def test_status_has_empty_defaults() -> None:
    status = EndpointStatus("a", EndpointPhase.IDLE, 0)
    assert (status.fault, status.restarts, status.next_try_s) == (None, 0, None)
    assert (status.trust, status.notes) == ("trusted", ())


OWNER = "server 'a', tool 'b'"

objects: st.SearchStrategy[JsonObject] = st.dictionaries(
    st.sampled_from(["type", "text", "data", "_meta", "annotations", "x"]) | st.text(max_size=4),
    json_values,
    max_size=5,
)


def _typed(kind: str, rest: JsonObject) -> JsonObject:
    return {**rest, "type": kind}


def _with_text(text: str, rest: JsonObject) -> JsonObject:
    return {**rest, "type": "text", "text": text}


mcp_blocks = st.builds(_typed, st.sampled_from(sorted(BLOCK_TYPES)), objects) | st.builds(
    _with_text, st.text(), objects
)


@given(st.lists(mcp_blocks, max_size=6))
def test_blocks_round_trip_unchanged(blocks: list[JsonValue]) -> None:
    before = copy.deepcopy(blocks)
    assert [to_block(from_block(block)) for block in blocks] == before
    assert blocks == before


@given(json_values | objects)
def test_any_block_round_trips_without_loss(block: JsonValue) -> None:
    made = from_block(block)
    if isinstance(made, TextContentBlock):
        assert block == {"type": "text", "text": made.text, **(made.extra or {})}
    else:
        assert made.value is block


@given(json_values | objects)
def test_unknown_json_block_becomes_text(block: JsonValue) -> None:
    known = is_json_object(block) and block.get("type") in sorted(BLOCK_TYPES)
    sent = to_block(from_block(block))
    if known:
        assert sent == block
    else:
        assert sent == {"type": "text", "text": compact_json(block)}
        assert json.loads(str(sent["text"])) == block


@pytest.mark.parametrize("kind", [[], {}, None, 5, "hologram"])
def test_block_with_an_invalid_type_becomes_text(kind: JsonValue) -> None:
    block: JsonValue = {"type": kind, "n": 1}
    assert to_block(JsonContentBlock(block))["type"] == "text"


def test_text_block_keeps_its_other_keys() -> None:
    rich: JsonValue = {"type": "text", "text": "a", "_meta": {"x": None}, "annotations": {}}
    assert from_block(rich) == TextContentBlock("a", {"_meta": {"x": None}, "annotations": {}})
    assert from_block({"type": "text", "text": "a"}) == TextContentBlock("a", None)
    assert to_block(TextContentBlock("a")) == {"type": "text", "text": "a"}


@pytest.mark.parametrize("text", [None, 5, ["a"]])
def test_text_block_without_text_is_kept_as_json(text: JsonValue) -> None:
    block: JsonValue = {"type": "text", "text": text}
    assert from_block(block) == JsonContentBlock(block)
    assert to_block(from_block(block)) == block


def test_call_result_is_parsed_with_all_fields() -> None:
    answer: JsonObject = {
        "content": [{"type": "text", "text": "a"}, {"type": "hologram"}],
        "isError": True,
        "structuredContent": {"n": [None]},
        "_meta": {"k": "v"},
        "resultType": "complete",
    }
    result = parse_call_result(answer, OWNER)
    assert result.content == ({"type": "text", "text": "a"}, {"type": "hologram"})
    assert (result.is_error, result.structured, result.meta) == (True, {"n": [None]}, {"k": "v"})
    assert result.notes == ()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({}, "no content"),
        ({"content": None}, "no content"),
        ({"content": "bare"}, "content of type str"),
        ({"content": {"type": "text", "text": "alone"}}, "content of type dict"),
    ],
)
def test_call_result_without_content_list_is_noted(answer: JsonObject, found: str) -> None:
    result = parse_call_result({**answer, "structuredContent": 5}, OWNER)
    assert result.content == ()
    assert result.structured == 5
    assert result.notes == (Note(OWNER, f"the answer has {found} instead of a list of blocks"),)


@pytest.mark.parametrize("flag", ["yes", 1, None, {}])
def test_only_true_marks_an_error(flag: JsonValue) -> None:
    assert not parse_call_result({"content": [], "isError": flag, "_meta": flag}, OWNER).is_error


def test_invalid_meta_is_dropped() -> None:
    assert parse_call_result({"content": [], "_meta": 5}, OWNER).meta is None


@given(objects)
def test_any_call_result_can_be_parsed(answer: JsonObject) -> None:
    result = parse_call_result({"content": [], **answer}, OWNER)
    assert to_tool_result(result).content == ()


def test_tool_result_has_blocks_structured_content_and_details() -> None:
    remote = RemoteCallResult(
        ({"type": "text", "text": "a"}, {"type": "image", "data": ""}),
        is_error=True,
        structured={"n": 1},
        meta={"k": "v"},
        notes=(Note(OWNER, "odd"),),
    )
    result = to_tool_result(remote)
    image: JsonValue = {"type": "image", "data": ""}
    assert result.content == (TextContentBlock("a"), JsonContentBlock(image))
    assert (result.is_error, result.structured) == (True, {"n": 1})
    assert result.details == {"_meta": {"k": "v"}, "notes": [f"{OWNER}: odd"]}


def test_plain_result_has_no_details() -> None:
    assert to_tool_result(RemoteCallResult(())).details == {}
