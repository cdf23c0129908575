"""What a person is advised to do about a server that failed, for every reason and kind of a fault."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from indusagi.core.time import now_ms
from indusagi.interop.protocol_bridge.contract import (
    FaultDetail,
    ProtocolFault,
    StdioServerConfig,
    StreamableHttpServerConfig,
)
from induscode.servers.remedies import Advice, advise, format_server_command

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
        (fail(reason="exited"), "it exited: run its command in a shell to see why"),
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


NPX = StdioServerConfig("s", "npx", ["-y", "some-server@1.2"])


def make_folder(cache: Path, name: str, *packages: str, lock_age_s: float | None = None) -> Path:
    folder = cache / "_npx" / name
    folder.mkdir(parents=True)
    if packages:
        (folder / "package.json").write_text(json.dumps({"dependencies": dict.fromkeys(packages, "1")}))
    if lock_age_s is not None:
        lock = folder / "concurrency.lock"
        lock.touch()
        then = now_ms() / 1000 - lock_age_s
        os.utime(lock, (then, then))
    return folder


@pytest.mark.parametrize("variable", ["npm_config_cache", "NPM_CONFIG_CACHE", "HOME"])
def test_finding_a3_only_a_lock_of_the_package_itself_is_named(variable: str, tmp_path: Path) -> None:
    cache = tmp_path / ".npm" if variable == "HOME" else tmp_path
    make_folder(cache, "other", "other-server", lock_age_s=900)
    make_folder(cache, "unknown", lock_age_s=900)
    environ = {variable: str(tmp_path)}
    assert advise("s", NPX, fail("timeout"), environ).remedy.startswith("it took too long")
    own = make_folder(cache, "o w n", "some-server", lock_age_s=900)
    wanted = f"npx left a lock behind when it was killed; mend it: rm -rf '{own}'"
    assert advise("s", NPX, fail("timeout"), environ).remedy == wanted
    assert advise("s", NPX, fail("spawn_failed"), environ).remedy == wanted
    assert advise("s", NPX, fail("protocol"), environ).remedy.startswith("its responses are invalid")
    assert advise("s", STDIO, fail("timeout"), environ).remedy.startswith("it took too long")


def test_finding_a3_lock_of_a_running_install_is_left_alone(tmp_path: Path) -> None:
    # Nothing but the name says whose it is: npm writes package.json at the end.
    name = hashlib.sha512(b"some-server@1.2").hexdigest()[:16]
    make_folder(tmp_path, name, lock_age_s=0)
    remedy = advise("s", NPX, fail("timeout"), {"npm_config_cache": str(tmp_path)}).remedy
    assert remedy == "npx is installing it just now: try again when it has ended"


@pytest.mark.parametrize("args", [["-y", "some-server"], ["-p", "some-server", "x"], ["--package=some-server", "x"]])
def test_finding_a3_only_the_damaged_folder_of_the_package_itself_is_deleted(args: list[str], tmp_path: Path) -> None:
    npx = StdioServerConfig("s", "npx", args)
    environ = {"npm_config_cache": str(tmp_path)}
    own = make_folder(tmp_path, "0123456789abcdef", "some-server")
    other = make_folder(tmp_path, "fedcba9876543210", "other-server")
    for folder, command in ((own, f"rm -rf {own}"), (other, None)):
        fault = fail("spawn_failed", stderr=(f"Error: Cannot find module '{folder}/node_modules/zod/index.js'",))
        remedy = advise("s", npx, fault, environ).remedy
        assert ("rm -rf" in remedy) == (command is not None)
        assert (command or "") in remedy
    gone = fail("spawn_failed", stderr=("sh: 1: some-server: not found",))
    assert advise("s", npx, gone, environ).remedy.endswith(f"mend it: rm -rf {own}")
    assert "rm -rf" not in advise("s", StdioServerConfig("s", "npx", ["-y", "third"]), gone, environ).remedy


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("Error: connect ENOENT /var/run/docker.sock", "Docker isn't running: start it"),
        ("docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "Docker isn't running"),
        ("docker.errors.DockerException: Error while fetching server API version: x", "Docker isn't running"),
        ("permission denied while trying to connect to unix:///var/run/docker.sock", "you may not use Docker"),
        ("Cannot connect to Podman. Please verify your connection", "Podman isn't running"),
        ("/usr/bin/env: 'node': No such file or directory", "Node.js is missing"),
        ("sh: 1: node: not found", "Node.js is missing"),
        ("npm error code EBADENGINE", "it needs another version of Node.js"),
        ("error: Could not acquire lock on the cache", "another install holds the lock"),
        ("npm error code E404", "there's no package of this name and version: correct it: indus mcp get s"),
        ("npm error code EAI_AGAIN", "a name could not be resolved"),
        ("KeyError: 'ACME_TOKEN'", 'it needs the variable ACME_TOKEN: add it to its row, as in "env": {"ACME_TOKEN":'),
        ("Error: ACME_TOKEN is required", "it needs the variable ACME_TOKEN"),
        ("ACME_TOKEN environment variable is not set", "it needs the variable ACME_TOKEN"),
        ("Missing required environment variable: ACME_TOKEN", "it needs the variable ACME_TOKEN"),
        ("Please set ACME_API_KEY", "it needs the variable ACME_API_KEY"),
        ("TypeError [ERR_INVALID_ARG_TYPE]: x must be of type string", "it exited"),
    ],
)
@pytest.mark.parametrize("command", ["npx", "uvx", "my-server"])
def test_finding_a3_real_cause_has_its_remedy(line: str, remedy: str, command: str, tmp_path: Path) -> None:
    config = StdioServerConfig("s", command, ["some-server"])
    fault = fail(
        "transport", reason="exited", stderr=("starting", line, "    at file:///u/.npm/_npx/0123456789abcdef/a.js")
    )
    advised = advise("s", config, fault, {"HOME": str(tmp_path)}).remedy
    assert advised.startswith(remedy)
    assert "rm -rf" not in advised


@pytest.mark.parametrize(
    ("command", "program"),
    [("npx", "Node.js, which has npx"), ("/usr/bin/uvx", "uv, which has uvx"), ("docker", "Docker")],
)
def test_finding_a3_missing_program_is_named_with_what_has_it(command: str, program: str) -> None:
    config = StdioServerConfig("s", command, ["x"])
    wanted = f"install {program}, or correct the command: indus mcp get s"
    assert advise("s", config, fail("spawn_failed", reason="not_found"), {}).remedy == wanted


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("uvx mcp-server-tree-sitter", "add --with 'mcp<2' to its row: uvx --with 'mcp<2' … (indus mcp get s)"),
        ("uv run server.py", "add --with 'mcp<2' to its row: uv run --with 'mcp<2' … (indus mcp get s)"),
        ("python -m server", "install 'mcp<2' where it runs"),
    ],
)
def test_finding_a13_server_for_version_1_of_the_sdk_has_its_remedy(words: str, remedy: str) -> None:
    command, *args = words.split()
    stderr = ("Traceback (most recent call last):", "ImportError: cannot import name 'FastMCP' from 'mcp.server' (/a)")
    fault = fail("transport", reason="exited", stderr=stderr)
    advised = advise("s", StdioServerConfig("s", command, args), fault, {}).remedy
    assert advised == f"it was written for version 1 of the Python SDK and got a newer one: {remedy}"


def test_a_command_for_a_server_is_quoted_for_a_shell() -> None:
    assert format_server_command("get", "a b") == "indus mcp get 'a b'"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ModuleNotFoundError: No module named 'mcp'", "a module it needs is missing"),
        ("Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod'", "a module it needs is missing"),
        ("Error: listen EADDRINUSE: address already in use :::8080", "its port is in use"),
        ("PermissionError: [Errno 13] Permission denied: '/srv/x'", "it may not use a file or directory"),
        ("Error: ENOENT: no such file or directory, scandir '/nope'", "a file or directory that its last output names"),
        ("KeyError: 'API_TOKEN'", "it needs the variable API_TOKEN"),
    ],
)
def test_a_known_cause_of_a_failed_start_names_its_fix(line: str, said: str) -> None:
    assert advise("s", STDIO, fail("spawn_failed", stderr=("Traceback:", line)), {}).remedy.startswith(said)
