"""Which line of a failed process tells why, and which cache it says is damaged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.interop.protocol_bridge.client.causes import find_cache_damage, find_cause, needs_sdk_1

NPM_404 = """npm error code E404
npm error 404 Not Found - GET https://registry.example/no-such - Not found
npm error 404
npm error 404  'no-such@*' is not in this registry.
npm error A complete log of this run can be found in: /home/u/.npm/_logs/2026-debug-0.log"""
NODE_MODULE = """node:internal/modules/cjs/loader:1228
  throw err;
  ^

Error: Cannot find module '/srv/server.js'
    at Function._resolveFilename (node:internal/modules/cjs/loader:1225:15)
    at node:internal/main/run_main_module:36:49 {
  code: 'MODULE_NOT_FOUND',
  requireStack: []
}

Node.js v20.20.2"""
NODE_THROW = """file:///srv/index.js:3
throw new TypeError("bad option");
      ^

TypeError: bad option
    at file:///srv/index.js:3:7

Node.js v22.1.0"""
PYTHON = """Traceback (most recent call last):
  File "/srv/server.py", line 3, in <module>
    import mcp.server
ModuleNotFoundError: No module named 'mcp'"""
PYTHON_CHAINED = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
    int("x")
ValueError: invalid literal for int() with base 10: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
    raise ConfigError("no database url")
app.errors.ConfigError: no database url"""
RUST = """thread 'main' panicked at src/main.rs:7:5:
called `Result::unwrap()` on an `Err` value: ConnectionRefused
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace"""
GO = """panic: runtime error: invalid memory address or nil pointer dereference
[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x1]

goroutine 1 [running]:
main.main()
	/srv/main.go:10 +0x18
exit status 2"""
JAVA = """Exception in thread "main" java.lang.RuntimeException: startup failed
	at com.example.Main.main(Main.java:5)
Caused by: java.io.FileNotFoundException: config.yml (No such file or directory)
	at java.base/java.io.FileInputStream.open0(Native Method)
	... 1 more"""
ARGPARSE = """usage: server [-h] --db DB
server: error: the following arguments are required: --db"""
CLICK = """Usage: server [OPTIONS] PATH
Try 'server --help' for help.

Error: Missing argument 'PATH'."""
UV = """  \u00d7 No solution found when resolving tool dependencies:
  \u2570\u2500\u25b6 Because no-such was not found in the package registry, it cannot be used."""
DOTNET = """Unhandled exception. System.IO.FileNotFoundException: Could not find file '/x'.
   at Program.Main() in /srv/Program.cs:line 4"""
DOCKER = """Unable to find image 'no/such:latest' locally
docker: Error response from daemon: pull access denied for no/such.
See 'docker run --help'."""
LOGGED = """INFO starting
ERROR: could not connect to postgres at localhost:5432
INFO shutting down
bye"""


PYTHON_GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/srv/app.py", line 6, in <module>
  |     asyncio.run(main())
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/srv/app.py", line 2, in serve
    |     raise ValueError("API key missing")
    | ValueError: API key missing
    +------------------------------------"""
PYDANTIC = """\
Traceback (most recent call last):
  File "/srv/app.py", line 6, in <module>
pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings
token
  Field required [type=missing, input_value={}, input_type=dict]
    For further information visit https://errors.pydantic.dev/2.11/v/missing"""
CLAP = """\
error: the following required arguments were not provided:
  --key <KEY>

Usage: server --key <KEY>

For more information, try '--help'."""


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        (NPM_404, ["npm error code E404", "404 Not Found"]),
        (NODE_MODULE, ["Error: Cannot find module '/srv/server.js'"]),
        (NODE_THROW, ["TypeError: bad option"]),
        (PYTHON, ["ModuleNotFoundError: No module named 'mcp'"]),
        (PYTHON_CHAINED, ["app.errors.ConfigError: no database url"]),
        (RUST, ["panicked at src/main.rs:7:5", "ConnectionRefused"]),
        (PYTHON_GROUP, ["ValueError: API key missing"]),
        (PYTHON_GROUP.partition("\n")[2], ["ValueError: API key missing"]),
        (PYDANTIC, ["1 validation error for Settings", "token", "Field required"]),
        (CLAP, ["required arguments were not provided", "--key <KEY>"]),
        (GO, ["panic: runtime error: invalid memory address"]),
        (JAVA, ["Caused by: java.io.FileNotFoundException: config.yml"]),
        (ARGPARSE, ["server: error: the following arguments are required: --db"]),
        (CLICK, ["Error: Missing argument 'PATH'."]),
        (UV, ["No solution found", "no-such was not found in the package registry"]),
        (DOTNET, ["Could not find file '/x'"]),
        (DOCKER, ["docker: Error response from daemon: pull access denied"]),
        (LOGGED, ["could not connect to postgres"]),
        ("sh: 1: no-such: not found\nbye", ["no-such: not found"]),
        ("Please set GITHUB_TOKEN\nbye", ["Please set GITHUB_TOKEN", "bye"]),
        ("one\ntwo\nthree\nfour", ["two / three / four"]),
        ("\x1b[31mFatal: no key\x1b[0m", ["Fatal: no key"]),
        ("Node.js v20.20.2", ["Node.js v20.20.2"]),
    ],
    ids=lambda value: value.split("\n")[0][:30] if isinstance(value, str) else "",
)
def test_finding_b5_the_line_that_tells_the_cause_is_shown(said: str, parts: list[str]) -> None:
    cause = find_cause(said.split("\n"))
    for part in parts:
        assert part in cause
    if len(said.split("\n")) > 3 and "Node.js v" in said:
        assert "Node.js v" not in cause
    assert "complete log" not in cause
    assert "\x1b" not in cause


@given(st.lists(st.text(max_size=200), max_size=30))
def test_cause_of_any_output_is_one_short_line(lines: list[str]) -> None:
    cause = find_cause(lines)
    assert "\n" not in cause
    assert len(cause) <= 400
    find_cache_damage(lines, "npx")
    find_cache_damage(lines, "uvx", "package")


FOLDER = "/home/u/.npm/_npx/3dfbf5a9eea4a1b3"


@pytest.mark.parametrize(
    ("said", "manager"),
    [
        (f"npm error code ENOTEMPTY\nnpm error path {FOLDER}/node_modules/a", "npx"),
        (f"npm error ECOMPROMISED Lock compromised: {FOLDER}/concurrency.lock", "npx"),
        (f"Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported from {FOLDER}/a.js", "npx"),
        (f"Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'zod' imported from file://{FOLDER}/a.js", "npx"),
        (f"Error: Cannot find module '{FOLDER}/node_modules/a/dist/index.js'", None),
    ],
)
def test_finding_b1_damaged_folder_of_npx_is_named(said: str, manager: str | None) -> None:
    damage = find_cache_damage(said.split("\n"), manager, "mcp-server-time")
    assert damage is not None
    assert (damage.folder, damage.command) == (FOLDER, "")
    assert damage.cause


@pytest.mark.parametrize(
    ("said", "manager", "command"),
    [
        ("npm error code ECOMPROMISED\nnpm error Lock compromised", "npx", ""),
        ("sh: 1: mcp-server-files: not found", "npx", ""),
        ("npm warn tar TAR_ENTRY_ERROR ENOENT: no such file", "npx", "npm cache verify"),
        ("npm error code EINTEGRITY", "npm", "npm cache verify"),
        ("npm error zlib: unexpected end of file", "npx", "npm cache verify"),
        ("error: Failed to read from the distribution cache", "uvx", "uv cache clean mcp-server-time"),
        ("error: Failed to open lock file `/home/u/.cache/uv/.lock`", "uv", "uv cache clean"),
        ("  Caused by: failed to extract archive: invalid Zip archive", "uvx", "uv cache clean"),
        ("zipfile.BadZipFile: File is not a zip file", "pipx", "pipx run --no-cache mcp-server-time"),
        ("error: IntegrityCheckFailed extracting tarball", "bunx", "bun pm cache rm"),
        (" ERR_PNPM_TARBALL_INTEGRITY  Got unexpected checksum", "pnpm", "pnpm store prune"),
    ],
)
def test_finding_b1_a_damaged_cache_is_known_with_the_command_that_mends_it(
    said: str, manager: str | None, command: str
) -> None:
    damage = find_cache_damage(said.split("\n"), manager, "mcp-server-time")
    assert damage is not None
    assert damage.command.startswith(command)
    assert damage.cause


DOCKER_OFF = f"""Error: connect ENOENT /var/run/docker.sock
    at PipeConnectWrap.afterConnect [as oncomplete] (node:net:1607:16)
    at file://{FOLDER}/node_modules/docker-mcp/dist/index.js:12:3
  code: 'ENOENT', syscall: 'connect', address: '/var/run/docker.sock'"""


@pytest.mark.parametrize("manager", ["npx", "npm", None])
def test_finding_a3_a_stack_trace_through_the_folder_of_npx_is_no_damage(manager: str | None) -> None:
    assert find_cache_damage(DOCKER_OFF.split("\n"), manager) is None
    assert find_cache_damage([f"ENOENT in file://{FOLDER}/x"], manager).folder == FOLDER  # type: ignore[union-attr] — it is found
    assert find_cache_damage(["ENOENT in http:///_npx/0123456789ab/x"], manager) is None


FOR_SDK_1 = [
    "ModuleNotFoundError: No module named 'mcp.server.fastmcp'. This is mcp 2.x, where FastMCP was renamed to "
    f"MCPServer (from mcp.server.mcpserver import MCPServer) and other APIs changed; see {'x' * 200} or pin "
    "'mcp<2' to keep running v1 code.",
    "ModuleNotFoundError: No module named 'mcp.server.fastmcp'",
    "ImportError: cannot import name 'FastMCP' from 'mcp.server' (/a/mcp/server/__init__.py)",
    "ImportError: cannot import name 'McpError' from 'mcp' (/a/mcp/__init__.py)",
    "ImportError: cannot import name 'McpError' from 'mcp.shared.exceptions' (/a/b.py)",
    "AttributeError: 'Server' object has no attribute 'list_tools'",
    "AttributeError: module 'mcp.types' has no attribute 'Foo'",
    "TypeError: FastMCP.__init__() got an unexpected keyword argument 'dependencies'",
]


@pytest.mark.parametrize("line", FOR_SDK_1)
def test_finding_a13_cause_of_a_server_for_version_1_says_what_it_needs(line: str) -> None:
    lines = ["Traceback (most recent call last):", '  File "/a/b.py", line 3, in <module>', "    import x", line]
    assert needs_sdk_1(lines)
    assert find_cause(lines).endswith(" (it needs mcp<2)")


@pytest.mark.parametrize(
    "line",
    [
        "ModuleNotFoundError: No module named 'mcpx'",
        "ModuleNotFoundError: No module named 'mcp'",
        "ImportError: cannot import name 'x' from 'mcp_server_time' (/a)",
        "AttributeError: 'Servers' object has no attribute 'x'",
        "TypeError: Serve.run() takes 1 positional argument",
    ],
)
def test_finding_a13_other_import_errors_are_left_alone(line: str) -> None:
    assert not needs_sdk_1([line])
    assert "mcp<2" not in find_cause([line])


@pytest.mark.parametrize(
    ("said", "manager"),
    [
        (NPM_404, "npx"),
        (NODE_MODULE, None),
        (PYTHON, "uvx"),
        (UV, "uvx"),
        (ARGPARSE, "npx"),
        (DOCKER, "docker"),
        ("sh: 1: x: not found", None),
        ("", "npx"),
    ],
)
def test_other_failures_are_not_a_damaged_cache(said: str, manager: str | None) -> None:
    assert find_cache_damage(said.split("\n"), manager) is None


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            ["failed to start", "npm ERR! code E404", "npm ERR! 404 Not Found", "x"],
            "npm ERR! code E404 / npm ERR! 404 Not Found",
        ),
        (
            ["error: one", "Caused by: java.lang.IllegalStateException: a", "Caused by: b.IOException: c"],
            "Caused by: b.IOException: c",
        ),
        (
            ["error: x", "thread 'main' panicked at src/main.rs:1:2:", "the message", "more"],
            "thread 'main' panicked at src/main.rs:1:2: / the message",
        ),
        (
            ["error: x", "thread 'main' (1) panicked at 'old', src/main.rs:1:2", "next"],
            "thread 'main' (1) panicked at 'old', src/main.rs:1:2",
        ),
        (["error: x", "panic: runtime", "fatal error: later"], "panic: runtime"),
        (["Error: x", "Exception in thread main y"], "Exception in thread main y"),
        (["Error: x", "Unhandled exception. System.Oops"], "Unhandled exception. System.Oops"),
        (["ValueError: first", "a.b.KeyError: 'second'", "unhandled rejection error"], "a.b.KeyError: 'second'"),
        (["Error: low", "TypeError [ERR_X]: high"], "TypeError [ERR_X]: high"),
        (["prog: error: x", "Uncaught (in promise) error y"], "Uncaught (in promise) error y"),
        (["error: x", "  \u00d7 No solution", "  ╰─▶ because", "then"], "\u00d7 No solution / ╰─▶ because"),
        (["error: x", "\u00d7 No solution", "because"], "\u00d7 No solution"),
        (["error: x", "✗ bad"], "✗ bad"),
        (["error: x", "a.py: error: one", "a.py: error: two"], "a.py: error: two"),
        (["error: x", "docker: no"], "docker: no"),
        (["error: x", "Error response from daemon: y"], "Error response from daemon: y"),
        (["it failed", "fatal: one", "error: two"], "fatal: one"),
        (["code: 'ERR_X'", "it failed"], "code: 'ERR_X'"),
        (["it failed", "sh: x: not found"], "sh: x: not found"),
        (["a", "the token is missing", "b"], "the token is missing"),
        (
            ["error: the following arguments were not given:", "  name", "x"],
            "error: the following arguments were not given: / name",
        ),
        (
            ["1 validation error for Settings", "key", "  Field is wrong", "x"],
            "1 validation error for Settings / key / Field is wrong",
        ),
        (["one", "two", "three", "four"], "two / three / four"),
        (["DeprecationWarning: x", "only"], "only"),
        (["npm warn x"], "npm warn x"),
        (["", "  "], ""),
        ([], ""),
    ],
)
def test_each_runtime_is_read_in_its_own_way(lines: list[str], cause: str) -> None:
    assert find_cause(lines) == cause


@pytest.mark.parametrize(
    ("manager", "line", "command"),
    [
        ("pipx", "bad zip", "pipx run --no-cache 'a b'"),
        ("bunx", "integrity check", "bun pm cache rm"),
        ("bun", "checksum", "bun pm cache rm"),
        ("pnpm", "truncated", "pnpm store prune"),
        ("pnpx", "ENOTEMPTY", "pnpm store prune"),
        ("yarn", "unexpected end", "yarn cache clean"),
        ("deno", "corrupt", "deno cache --reload 'a b'"),
        ("uv", "failed to unzip", "uv cache clean 'a b'"),
        ("npx", "ECOMPROMISED", ""),
        ("npm", "sh: 1: prog: not found", ""),
        ("npx", "EINTEGRITY", "npm cache verify"),
    ],
)
def test_each_package_manager_is_mended_in_its_own_way(manager: str | None, line: str, command: str) -> None:
    found = find_cache_damage(["first", f" {line} ", "last"], manager, "a b")
    assert found is not None
    assert found.command == command
    assert found.cause.endswith(f"({line})")


@pytest.mark.parametrize(
    ("manager", "line"),
    [
        (None, "ECOMPROMISED"),
        (None, "EINTEGRITY"),
        (None, "/c/_npx/0123456789ab/x is fine"),
        ("npx", "ENOENT /c/x"),
        ("uv", "integrity"),
        ("pipx", "ENOENT"),
        ("cargo", "corrupt"),
        ("docker", "corrupt"),
    ],
)
def test_another_managers_damage_is_none(manager: str | None, line: str) -> None:
    assert find_cache_damage([line], manager) is None


def test_without_a_package_the_cache_is_pruned() -> None:
    found = find_cache_damage(["bad crc"], "uv")
    assert found is not None
    assert found.command == "uv cache prune"
