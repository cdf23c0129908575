from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from indusagi.interop.protocol_bridge.client.faults import FaultSite, to_protocol_fault
from indusagi.interop.protocol_bridge.contract import (
    FaultDetail,
    ProtocolFault,
    ServerLimits,
    SseServerConfig,
    StdioServerConfig,
    StreamableHttpServerConfig,
)
from indusagi.interop.protocol_bridge.rpc.connection import (
    ConnectionClosedError,
    InvalidResponseError,
    RequestTimeoutError,
    RpcError,
    VersionMismatchError,
)
from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.contract import FaultKind, FaultReason, ServerConfig

STDIO = StdioServerConfig("a", "run", limits=ServerLimits(connect_s=7.5))
HTTP = StreamableHttpServerConfig("a", "http://a/")
SSE = SseServerConfig("a", "http://a/")


def closed(reason: FaultReason = "exited", *stderr: str) -> ConnectionClosedError:
    detail = FaultDetail(reason=reason, exit_code=3, stderr=stderr)
    return ConnectionClosedError(TransportEnd("exited with code 3", detail))


def refused(reason: FaultReason | None = None, status: int | None = None, message: str = "no") -> RpcError:
    error = RpcError(-32602, message)
    if reason or status:
        error.detail = FaultDetail(reason=reason, http_status=status)
    return error


@pytest.mark.parametrize(
    ("exc", "site", "config", "kind", "reason"),
    [
        # What took too long is a timeout, wherever it was.
        (TimeoutError(), FaultSite.CONNECT, STDIO, "timeout", None),
        (TimeoutError(), FaultSite.CONNECT, HTTP, "timeout", None),
        (RequestTimeoutError("late"), FaultSite.LIST, STDIO, "timeout", None),
        (RequestTimeoutError("late"), FaultSite.CALL, SSE, "timeout", None),
        # What breaks the rules is the protocol's, wherever it was.
        (VersionMismatchError("old"), FaultSite.CONNECT, STDIO, "protocol", "version"),
        (VersionMismatchError("old"), FaultSite.CONNECT, HTTP, "protocol", "version"),
        (InvalidResponseError("odd"), FaultSite.CONNECT, STDIO, "protocol", "malformed"),
        (InvalidResponseError("odd"), FaultSite.LIST, HTTP, "protocol", "malformed"),
        (InvalidResponseError("odd"), FaultSite.CALL, STDIO, "protocol", "malformed"),
        (refused("malformed", 200), FaultSite.CONNECT, HTTP, "protocol", "malformed"),
        (refused("malformed", 200), FaultSite.CALL, HTTP, "protocol", "malformed"),
        # What cannot be reached: a process was not started, a place was not found.
        (closed(), FaultSite.CONNECT, STDIO, "spawn_failed", "exited"),
        (closed(), FaultSite.CONNECT, HTTP, "transport", "exited"),
        (refused(), FaultSite.CONNECT, STDIO, "spawn_failed", None),
        (refused(), FaultSite.CONNECT, SSE, "transport", None),
        (refused("auth", 401), FaultSite.CONNECT, HTTP, "transport", "auth"),
        (OSError("broken"), FaultSite.CONNECT, STDIO, "spawn_failed", None),
        (OSError("broken"), FaultSite.CONNECT, HTTP, "transport", None),
        # What was lost later is the transport's; a call may have taken effect.
        (closed(), FaultSite.HELD, STDIO, "transport", "exited"),
        (closed(), FaultSite.LIST, STDIO, "transport", "exited"),
        (closed(), FaultSite.CALL, STDIO, "transport", "outcome_unknown"),
        (closed("frame_too_large"), FaultSite.CALL, STDIO, "transport", "outcome_unknown"),
        (refused("closed"), FaultSite.CALL, HTTP, "transport", "outcome_unknown"),
        (refused("closed"), FaultSite.LIST, HTTP, "transport", "closed"),
        (refused("auth", 401), FaultSite.CALL, HTTP, "transport", "auth"),
        (refused("rate_limited", 429), FaultSite.LIST, HTTP, "transport", "rate_limited"),
        (OSError("broken"), FaultSite.CALL, STDIO, "transport", None),
        # What the server refuses in its own words.
        (refused(), FaultSite.LIST, STDIO, "protocol", None),
        (refused(), FaultSite.CALL, STDIO, "tool_error", None),
        (refused(None, 400), FaultSite.CALL, HTTP, "tool_error", None),
        (refused(None, 400), FaultSite.LIST, HTTP, "protocol", None),
    ],
)
def test_fault_kind_follows_from_exception_and_site(
    exc: Exception, site: FaultSite, config: ServerConfig, kind: FaultKind, reason: FaultReason | None
) -> None:
    fault = to_protocol_fault(exc, config, site, subject="tool")
    assert (fault.kind, fault.detail.reason) == (kind, reason)
    assert fault.cause is exc
    assert fault.detail.server == "a"
    assert str(fault).startswith("server 'a': ")
    doubt = "whether the call took effect is unknown" in str(fault)
    assert doubt == (reason == "outcome_unknown")


@pytest.mark.parametrize(
    ("exc", "site", "said"),
    [
        (TimeoutError(), FaultSite.CONNECT, "failed: no answer within 7.5 s"),
        (closed(), FaultSite.HELD, "the connection was lost: it exited with code 3"),
        (InvalidResponseError("odd"), FaultSite.LIST, "its tools could not be listed: odd"),
        (refused(), FaultSite.CALL, "the call of 'tool' failed: no"),
        (RequestTimeoutError("m was late"), FaultSite.CALL, "the call of 'tool' failed: m was late"),
        (refused(message="\x1b[31mr\u202eed"), FaultSite.CALL, "the call of 'tool' failed: red"),
        (
            refused(message=""),
            FaultSite.CALL,
            "the call of 'tool' failed: it answered with the error -32602 and no message",
        ),
        (ValueError(), FaultSite.HELD, "the connection was lost: ValueError"),
        (
            closed(),
            FaultSite.CALL,
            "the call of 'tool' failed: it exited with code 3; whether the call took effect is unknown",
        ),
    ],
)
def test_message_names_server_site_and_reason(exc: Exception, site: FaultSite, said: str) -> None:
    assert str(to_protocol_fault(exc, STDIO, site, subject="tool")) == f"server 'a': {said}"


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        (("first", "no \x1b[31mAPI key", "", "  \t"), ". Last output: no API key"),
        (("  indented\x00  ",), ". Last output: indented"),
        (("", " "), ""),
        ((), ""),
    ],
)
def test_cause_in_stderr_is_quoted_clean(stderr: tuple[str, ...], words: str) -> None:
    fault = to_protocol_fault(closed("exited", *stderr), STDIO, FaultSite.CONNECT)
    said = "server 'a': failed: exited with code 3"
    assert str(fault) == said + words
    assert fault.detail.stderr == stderr
    assert fault.detail.exit_code == 3


def test_protocol_fault_is_returned_unchanged() -> None:
    fault = ProtocolFault("spawn_failed", "no such command", ValueError())
    assert to_protocol_fault(fault, HTTP, FaultSite.CALL) is fault
    assert to_protocol_fault(ExceptionGroup("several", [fault, ValueError()]), HTTP, FaultSite.CALL) is fault


def test_exception_group_is_reduced_to_its_first_leaf() -> None:
    inner = InvalidResponseError("odd")
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [inner]), ValueError()])
    fault = to_protocol_fault(group, STDIO, FaultSite.LIST)
    assert fault.cause is inner
    assert fault.kind == "protocol"


def test_rpc_code_is_kept_unless_the_transport_made_it() -> None:
    assert to_protocol_fault(refused(), STDIO, FaultSite.CALL).detail.rpc_code == -32602
    known = to_protocol_fault(refused(None, 400), HTTP, FaultSite.CALL).detail
    assert (known.rpc_code, known.http_status) == (-32602, 400)
    made_up = to_protocol_fault(refused("upstream", 502), HTTP, FaultSite.CALL).detail
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
    ConnectionClosedError(TransportEnd("", FaultDetail())),
    ConnectionClosedError(TransportEnd(" ", FaultDetail(http_status=405))),
    ConnectionClosedError(TransportEnd("", FaultDetail(reason="closed"))),
    RequestTimeoutError(""),
    InvalidResponseError(""),
    RpcError(-32000, ""),
    VersionMismatchError(""),
]


@pytest.mark.parametrize("exc", EMPTY, ids=repr)
@pytest.mark.parametrize("site", list(FaultSite))
@pytest.mark.parametrize("config", [STDIO, HTTP, SSE], ids=["stdio", "http", "sse"])
def test_finding_1a11_an_exception_without_words_still_gives_a_reason(
    exc: BaseException, site: FaultSite, config: ServerConfig
) -> None:
    said = str(to_protocol_fault(exc, config, site, subject="tool"))
    reason = said.rpartition("failed: ")[2].rpartition("made: ")[2].rpartition("lost: ")[2]
    reason = reason.rpartition("listed: ")[2].removeprefix("it ").strip()
    assert len(reason) > 3
    assert any(one.isalpha() for one in reason)


def test_finding_1a11_a_fault_that_is_made_without_words_has_some() -> None:
    assert str(ProtocolFault("transport", "")) == "transport, for an unknown reason"
    assert "reset" in str(ProtocolFault("transport", " ", ConnectionResetError()))


SECRETS = {
    "the value of a variable": "hunter2-hunter2",
    "a password in a URL of the row": "pw0rd-of-the-database",
    "a token that the row doesn't know": "ghp_0123456789abcdefghij0123",
    "an assignment": "s3cr3t-of-a-friend",
    "a header": "0123456789abcdef",
    "the middle of a private key": "MIIEowIBAAKCAQEA7bq98s6Zb9dQ2xk0",
}
LAST_WORDS = (
    "using hunter2-hunter2",
    "connecting to postgres://app:pw0rd-of-the-database@db/app",
    "cloning https://ghp_0123456789abcdefghij0123@github.com/a/b",
    "Error: invalid config PASSWORD=s3cr3t-of-a-friend",
    "sent Authorization: Bearer 0123456789abcdef",
    "-----BEGIN PRIVATE KEY-----",
    "MIIEowIBAAKCAQEA7bq98s6Zb9dQ2xk0",
    "-----END PRIVATE KEY-----",
)


@pytest.mark.parametrize("what", SECRETS)
@pytest.mark.parametrize("place", ["stderr", "message", "refusal", "stdout"])
@pytest.mark.parametrize("site", FaultSite)
def test_finding_r4_a_fault_carries_no_secret(what: str, place: str, site: FaultSite) -> None:
    row = StdioServerConfig(
        "a", "run", env={"TOKEN": "hunter2-hunter2", "DATABASE_URL": "postgres://app:pw0rd-of-the-database@db/app"}
    )
    text = "\n".join(LAST_WORDS)
    raised = {
        "stderr": closed("exited", *LAST_WORDS),
        "message": ConnectionClosedError(TransportEnd(text, FaultDetail())),
        "refusal": refused(message=text),
        "stdout": closed(),
    }[place]
    output = Output((), LAST_WORDS if place == "stdout" else ())
    fault = to_protocol_fault(raised, row, site, subject="tool", process=output)  # pyright: ignore[reportArgumentType]
    shown = "\n".join((str(fault), repr(fault), *fault.detail.stderr, *fault.detail.stdout))
    assert SECRETS[what] not in shown
    assert "a" in shown


class Output:
    """What a process wrote."""

    def __init__(self, errors: tuple[str, ...], lines: tuple[str, ...]) -> None:
        self._errors, self._lines = errors, lines

    def read_stderr(self) -> tuple[str, ...]:
        return self._errors

    def read_invalid_lines(self) -> tuple[str, ...]:
        return self._lines


def test_other_values_of_a_row_stay_readable() -> None:
    row = StdioServerConfig("a", "run", env={"LOG_LEVEL": "error", "MODE": "fast", "TOKEN": "hunter2-hunter2"})
    fault = to_protocol_fault(closed("exited", "an error in fast mode: hunter2-hunter2"), row, FaultSite.HELD)
    assert fault.detail.stderr == ("an error in fast mode: …",)
