from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from indusagi.interop.protocol_bridge.client.faults import Site, classify
from indusagi.interop.protocol_bridge.contract import (
    FaultDetail,
    ProtocolFault,
    ServerLimits,
    SseServerConfig,
    StdioServerConfig,
    StreamableHttpServerConfig,
)
from indusagi.interop.protocol_bridge.rpc.connection import BadAnswer, LinkEnd, RpcError, WireClosed, WireTimeout
from indusagi.interop.protocol_bridge.rpc.errors import VersionMismatch

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.contract import FaultKind, FaultReason, ServerConfig

STDIO = StdioServerConfig("a", "run", limits=ServerLimits(connect_s=7.5))
HTTP = StreamableHttpServerConfig("a", "http://a/")
SSE = SseServerConfig("a", "http://a/")


def closed(reason: FaultReason = "exited", *stderr: str) -> WireClosed:
    detail = FaultDetail(reason=reason, exit_code=3, stderr=stderr)
    return WireClosed(LinkEnd("exited with code 3", detail))


def refused(reason: FaultReason | None = None, status: int | None = None, message: str = "no") -> RpcError:
    error = RpcError(-32602, message)
    if reason or status:
        error.detail = FaultDetail(reason=reason, http_status=status)
    return error


@pytest.mark.parametrize(
    ("exc", "site", "config", "kind", "reason"),
    [
        # What took too long is a timeout, wherever it was.
        (TimeoutError(), Site.CONNECT, STDIO, "timeout", None),
        (TimeoutError(), Site.CONNECT, HTTP, "timeout", None),
        (WireTimeout("late"), Site.LIST, STDIO, "timeout", None),
        (WireTimeout("late"), Site.CALL, SSE, "timeout", None),
        # What breaks the rules is the protocol's, wherever it was.
        (VersionMismatch("old"), Site.CONNECT, STDIO, "protocol", "version"),
        (VersionMismatch("old"), Site.CONNECT, HTTP, "protocol", "version"),
        (BadAnswer("odd"), Site.CONNECT, STDIO, "protocol", "malformed"),
        (BadAnswer("odd"), Site.LIST, HTTP, "protocol", "malformed"),
        (BadAnswer("odd"), Site.CALL, STDIO, "protocol", "malformed"),
        (refused("malformed", 200), Site.CONNECT, HTTP, "protocol", "malformed"),
        (refused("malformed", 200), Site.CALL, HTTP, "protocol", "malformed"),
        # What cannot be reached: a process was not started, a place was not found.
        (closed(), Site.CONNECT, STDIO, "spawn_failed", "exited"),
        (closed(), Site.CONNECT, HTTP, "transport", "exited"),
        (refused(), Site.CONNECT, STDIO, "spawn_failed", None),
        (refused(), Site.CONNECT, SSE, "transport", None),
        (refused("auth", 401), Site.CONNECT, HTTP, "transport", "auth"),
        (OSError("broken"), Site.CONNECT, STDIO, "spawn_failed", None),
        (OSError("broken"), Site.CONNECT, HTTP, "transport", None),
        # What was lost later is the transport's; a call may have taken effect.
        (closed(), Site.HELD, STDIO, "transport", "exited"),
        (closed(), Site.LIST, STDIO, "transport", "exited"),
        (closed(), Site.CALL, STDIO, "transport", "outcome_unknown"),
        (closed("frame_too_large"), Site.CALL, STDIO, "transport", "outcome_unknown"),
        (refused("closed"), Site.CALL, HTTP, "transport", "outcome_unknown"),
        (refused("closed"), Site.LIST, HTTP, "transport", "closed"),
        (refused("auth", 401), Site.CALL, HTTP, "transport", "auth"),
        (refused("rate_limited", 429), Site.LIST, HTTP, "transport", "rate_limited"),
        (OSError("broken"), Site.CALL, STDIO, "transport", None),
        # What the server refuses in its own words.
        (refused(), Site.LIST, STDIO, "protocol", None),
        (refused(), Site.CALL, STDIO, "tool_error", None),
        (refused(None, 400), Site.CALL, HTTP, "tool_error", None),
        (refused(None, 400), Site.LIST, HTTP, "protocol", None),
    ],
)
def test_an_exception_is_told_by_what_it_is_and_where_it_happened(
    exc: Exception, site: Site, config: ServerConfig, kind: FaultKind, reason: FaultReason | None
) -> None:
    fault = classify(exc, config, site, subject="tool")
    assert (fault.kind, fault.detail.reason) == (kind, reason)
    assert fault.cause is exc
    assert fault.detail.server == "a"
    assert str(fault).startswith("server 'a': ")
    doubt = "whether the call took effect is unknown" in str(fault)
    assert doubt == (reason == "outcome_unknown")


@pytest.mark.parametrize(
    ("exc", "site", "said"),
    [
        (TimeoutError(), Site.CONNECT, "the connection could not be made: no answer within 7.5 s"),
        (closed(), Site.HELD, "the connection was lost: it exited with code 3"),
        (BadAnswer("odd"), Site.LIST, "its tools could not be listed: odd"),
        (refused(), Site.CALL, "the call of 'tool' failed: no"),
        (WireTimeout("m was late"), Site.CALL, "the call of 'tool' failed: m was late"),
        (refused(message="\x1b[31mr\u202eed"), Site.CALL, "the call of 'tool' failed: red"),
        (refused(message=""), Site.CALL, "the call of 'tool' failed: it answered with the error -32602 and no message"),
        (ValueError(), Site.HELD, "the connection was lost: ValueError"),
        (
            closed(),
            Site.CALL,
            "the call of 'tool' failed: it exited with code 3; whether the call took effect is unknown",
        ),
    ],
)
def test_the_message_names_the_server_the_place_and_the_reason(exc: Exception, site: Site, said: str) -> None:
    assert str(classify(exc, STDIO, site, subject="tool")) == f"server 'a': {said}"


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        (("first", "no \x1b[31mAPI key", "", "  \t"), " (its stderr: no API key)"),
        (("  indented\x00  ",), " (its stderr: indented)"),
        (("", " "), ""),
        ((), ""),
    ],
)
def test_the_cause_that_a_process_wrote_is_repeated_clean(stderr: tuple[str, ...], words: str) -> None:
    fault = classify(closed("exited", *stderr), STDIO, Site.CONNECT)
    said = "server 'a': the connection could not be made: it exited with code 3"
    assert str(fault) == said + words
    assert fault.detail.stderr == stderr
    assert fault.detail.exit_code == 3


def test_what_is_a_fault_already_stays_what_it_is() -> None:
    fault = ProtocolFault("spawn_failed", "no such command", ValueError())
    assert classify(fault, HTTP, Site.CALL) is fault
    assert classify(ExceptionGroup("several", [fault, ValueError()]), HTTP, Site.CALL) is fault


def test_of_several_exceptions_the_first_and_innermost_is_told() -> None:
    inner = BadAnswer("odd")
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [inner]), ValueError()])
    fault = classify(group, STDIO, Site.LIST)
    assert fault.cause is inner
    assert fault.kind == "protocol"


def test_the_code_of_a_refusal_is_kept_unless_the_link_made_it_up() -> None:
    assert classify(refused(), STDIO, Site.CALL).detail.rpc_code == -32602
    known = classify(refused(None, 400), HTTP, Site.CALL).detail
    assert (known.rpc_code, known.http_status) == (-32602, 400)
    made_up = classify(refused("upstream", 502), HTTP, Site.CALL).detail
    assert (made_up.rpc_code, made_up.http_status) == (None, 502)


class Mute(Exception):
    """Says nothing."""


class Broken(Exception):
    """Cannot even be asked."""

    def __str__(self) -> str:
        raise RuntimeError


EMPTY: list[BaseException] = [
    TimeoutError(),
    OSError(),
    ConnectionResetError(),
    BrokenPipeError(),
    EOFError(),
    ValueError(""),
    RuntimeError(" \n"),
    Exception("\u200b\u202e"),
    Mute(),
    Broken(),
    ExceptionGroup("g", [Mute(), OSError()]),
    WireClosed(LinkEnd("", FaultDetail())),
    WireClosed(LinkEnd(" ", FaultDetail(http_status=405))),
    WireClosed(LinkEnd("", FaultDetail(reason="closed"))),
    WireTimeout(""),
    BadAnswer(""),
    RpcError(-32000, ""),
    VersionMismatch(""),
]


@pytest.mark.parametrize("exc", EMPTY, ids=repr)
@pytest.mark.parametrize("site", list(Site))
@pytest.mark.parametrize("config", [STDIO, HTTP, SSE], ids=["stdio", "http", "sse"])
def test_finding_a11_an_exception_without_words_still_gives_a_reason(
    exc: BaseException, site: Site, config: ServerConfig
) -> None:
    said = str(classify(exc, config, site, subject="tool"))
    reason = said.rpartition("failed: ")[2].rpartition("made: ")[2].rpartition("lost: ")[2]
    reason = reason.rpartition("listed: ")[2].removeprefix("it ").strip()
    assert len(reason) > 3
    assert any(one.isalpha() for one in reason)


def test_finding_a11_a_fault_that_is_made_without_words_has_some() -> None:
    assert str(ProtocolFault("transport", "")) == "transport, for an unknown reason"
    assert "reset" in str(ProtocolFault("transport", " ", ConnectionResetError()))
