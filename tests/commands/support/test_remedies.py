"""What a person is advised to do about a server that failed, for every reason and kind of a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from indusagi.interop.protocol_bridge.contract import (
    FaultDetail,
    ProtocolFault,
    StdioServerConfig,
    StreamableHttpServerConfig,
)
from induscode.commands.support.remedies import Advice, advise, format_server_command

if TYPE_CHECKING:
    from pathlib import Path

HTTP = StreamableHttpServerConfig("my s", "https://example.org/mcp")
STDIO = StdioServerConfig("my s", "run-it", [])
OWN = "this is the server's own error: compare what its documentation requires with its row: indus mcp get 'my s'"
AUTH = "it refuses the credentials: check the header in its row, or sign in again: indus mcp login 'my s'"
NOISE = (
    "its standard output may carry protocol messages only: have it log to standard error; if it is an HTTP server, add "
    "it by its address: indus mcp add -t http 'my s' URL"
)


def fail(kind: Any = "transport", **detail: Any) -> ProtocolFault:
    return ProtocolFault(kind, "it failed", detail=FaultDetail(**detail))


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        (fail(reason="auth"), AUTH),
        (fail(reason="exited"), "it ended by itself: see what it wrote, if anything, and try its command in a shell"),
        (fail(reason="frame_too_large"), "it sent more than one message may hold"),
        (fail(reason="not_found"), "install the command, or correct it: indus mcp get 'my s'"),
        (fail(reason="rate_limited"), "try again later"),
        (fail(reason="redirect"), "put the address it redirects to into its row"),
        (fail(reason="refused"), "nothing listens at its address: start it, or correct the address"),
        (fail(reason="sign_in"), "sign in: indus mcp login 'my s'"),
        (fail(reason="version"), "it uses another version of the protocol: update it"),
        (fail("timeout"), "it took too long: give it more time with startup_timeout_sec in its row"),
        (fail("spawn_failed"), "try its command in a shell"),
        (fail("transport"), "check that its address is right and can be reached from here"),
        (fail("protocol"), "its responses are invalid: check whether it is an MCP server"),
        (fail("not_connected"), "see the fault"),
        (fail("protocol", rpc_code=-32603), OWN),
        (fail("protocol", rpc_code=-32603, http_status=401, reason="auth"),
         AUTH),
        *((fail("protocol", stdout=("hi",), reason=one), NOISE) for one in (None, "exited", "closed", "malformed")),
        (fail("protocol", stdout=("hello",), reason="version"), "it uses another version of the protocol: update it"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("config", [HTTP, STDIO], ids=["http", "stdio"])
def test_each_fault_has_its_remedy(config: Any, fault: ProtocolFault, remedy: str) -> None:
    assert advise("my s", config, fault, {}) == Advice(remedy, [])


def test_a_connected_server_needs_no_more_time_to_start() -> None:
    listed = advise("s", HTTP, fail("timeout"), {}, connected=True).remedy
    assert listed.startswith("it came up and does not list its tools")
    assert advise("s", HTTP, fail("transport"), {}, connected=True).remedy.startswith("check that its address")


@pytest.mark.parametrize(("count", "end"), [(1, "A00"), (12, "A11"), (13, "A11 and 1 more")])
def test_variables_that_were_not_passed_on_are_named(count: int, end: str) -> None:
    names = [f"A{number:02}" for number in range(count)]
    fault = fail("spawn_failed", stderr=(f"missing {' '.join(names)}",))
    (note,) = advise("s", STDIO, fault, dict.fromkeys(names, "x")).notes
    assert note.startswith("set in this shell and not passed on to it: A00")
    assert f"{end}; if it needs one" in note
    assert advise("s", HTTP, fault, dict.fromkeys(names, "x")).notes == []


@pytest.mark.parametrize("variable", ["npm_config_cache", "NPM_CONFIG_CACHE", "HOME"])
def test_a_lock_that_npx_left_behind_is_named(variable: str, tmp_path: Path) -> None:
    cache = tmp_path / ".npm" if variable == "HOME" else tmp_path
    for name in ("b c", "a"):
        (cache / "_npx" / name).mkdir(parents=True)
        (cache / "_npx" / name / "concurrency.lock").touch()
    environ = {variable: str(tmp_path)}
    npx = StdioServerConfig("s", "npx", ["-y", "some-server"])
    wanted = f"npx left a lock behind when it was killed; mend it: rm -rf {cache}/_npx/a '{cache}/_npx/b c'"
    assert advise("s", npx, fail("timeout"), environ).remedy == wanted
    assert advise("s", npx, fail("spawn_failed"), environ).remedy == wanted
    assert advise("s", npx, fail("protocol"), environ).remedy.startswith("its responses are invalid")
    assert advise("s", STDIO, fail("timeout"), environ).remedy.startswith("it took too long")


def test_a_command_for_a_server_is_quoted_for_a_shell() -> None:
    assert format_server_command("get", "a b") == "indus mcp get 'a b'"
