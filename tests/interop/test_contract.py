from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING, get_args

import pytest

from indusagi.core.faults import CoreError
from indusagi.interop.protocol_bridge.contract import (
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
    is_protocol_fault,
    is_terminal_phase,
    is_usable_phase,
    protocol_fault,
    qualify_tool_name,
)
from indusagi.runtime.contract import ToolDescriptor

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue
    from indusagi.interop.protocol_bridge.contract import ServerConfig

CONFIGS: list[ServerConfig] = [
    StdioServerConfig("a", "run", ["x"], {"K": "v"}),
    SseServerConfig("a", "http://a/", {"K": "v"}),
    StreamableHttpServerConfig("a", "http://a/", {"K": "v"}),
]


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_fault_is_its_message_and_says_its_kind_beside_it(kind: FaultKind) -> None:
    cause = ValueError("why")
    fault = ProtocolFault(kind, "what happened", cause)
    assert str(fault) == fault.message == "what happened"
    assert repr(fault) == f"ProtocolFault({kind!r}, 'what happened')"
    assert fault.kind == kind
    assert fault.cause is fault.__cause__ is cause
    assert fault.detail == FaultDetail()
    assert isinstance(fault, CoreError)


def test_a_fault_without_a_cause_has_none_until_it_is_raised_from_one() -> None:
    fault = protocol_fault("timeout", "late")
    assert fault.cause is None
    cause = ValueError("why")
    with pytest.raises(ProtocolFault) as caught:
        raise fault from cause
    assert caught.value.cause is cause
    detail = FaultDetail(server="a", reason="auth", http_status=401)
    assert ProtocolFault("transport", "no", detail=detail).detail is detail


def test_a_fault_is_told_from_everything_else() -> None:
    assert is_protocol_fault(protocol_fault("transport", "lost"))
    assert not any(is_protocol_fault(value) for value in (CoreError("x"), None, "transport"))


def test_the_kinds_of_faults_are_six_and_the_same_for_types_and_values() -> None:
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
def test_a_phase_says_whether_it_can_be_used_and_whether_it_is_the_last(
    phase: EndpointPhase, usable: bool, terminal: bool
) -> None:
    assert (is_usable_phase(phase), is_terminal_phase(phase)) == (usable, terminal)
    assert phase == phase.value


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
def test_a_configuration_cannot_be_changed(config: ServerConfig) -> None:
    with pytest.raises(FrozenInstanceError):
        config.id = "b"  # pyright: ignore[reportAttributeAccessIssue]
    mapping = config.env if config.kind == "stdio" else config.headers
    with pytest.raises(TypeError):
        mapping["K"] = "w"  # pyright: ignore[reportIndexIssue]


def test_the_secrets_of_a_configuration_are_not_shown() -> None:
    hidden = {"KEY": "s3cret"}
    for config in (
        StdioServerConfig("a", "run", env=hidden),
        SseServerConfig("a", "http://a/", hidden),
        StreamableHttpServerConfig("a", "http://a/", hidden),
    ):
        assert "s3cret" not in repr(config)


def test_a_configuration_keeps_copies_of_what_it_was_given() -> None:
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


def test_configurations_are_equal_when_all_they_say_is() -> None:
    assert StdioServerConfig("a", "run", ["x"]) == StdioServerConfig("a", "run", ("x",))
    assert StdioServerConfig("a", "run") != StdioServerConfig("a", "run", limits=ServerLimits(tools=1))
    assert StdioServerConfig("a", "run") != StdioServerConfig("a", "run", env={"K": "v"})
    url = "http://a/"
    assert StreamableHttpServerConfig("a", url) == StreamableHttpServerConfig("a", url)
    assert SseServerConfig("a", url) != StreamableHttpServerConfig("a", url)


def test_the_kind_belongs_to_the_class() -> None:
    assert [config.kind for config in CONFIGS] == ["stdio", "sse", "streamable_http"]
    with pytest.raises(TypeError):
        StdioServerConfig("a", "run", kind="sse")  # pyright: ignore[reportCallIssue]


def test_server_and_tool_are_joined_by_two_underscores() -> None:
    assert qualify_tool_name(RemoteToolRef("github", "create_issue")) == "github__create_issue"
    both = {qualify_tool_name(RemoteToolRef(*ref)) for ref in (("a__b", "c"), ("a", "b__c"))}
    assert both == {"a__b__c"}


def test_a_result_cannot_be_changed_by_who_gave_its_content() -> None:
    blocks: list[JsonValue] = [{"type": "text", "text": "a"}]
    result = RemoteCallResult(blocks)
    blocks.append(None)
    assert result.content == ({"type": "text", "text": "a"},)
    assert (result.is_error, result.structured, result.meta, result.notes) == (False, None, None, ())


def test_a_tool_without_a_definition_has_an_empty_one_of_its_own() -> None:
    ref, descriptor = RemoteToolRef("a", "b"), ToolDescriptor("a__b", "", {"type": "object"})
    first, second = RemoteTool(ref, descriptor), RemoteTool(ref, descriptor)
    assert first.raw == {}
    assert first.raw is not second.raw


def test_a_status_says_little_until_there_is_something_to_say() -> None:
    status = EndpointStatus("a", EndpointPhase.IDLE, 0)
    assert (status.fault, status.restarts, status.next_try_s) == (None, 0, None)
    assert (status.trust, status.notes) == ("trusted", ())
