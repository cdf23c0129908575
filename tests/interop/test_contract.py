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
