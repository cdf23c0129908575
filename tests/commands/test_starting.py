"""What commands say and do while servers start slowly, download, or fail to start."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.commands.helpers import CLOSE_S, PYTHON, SLOW_S, configured, faulty, held, on_terminal, row, told, user_file
from tests.commands.serving import serving
from tests.support.forked import CONSTANTS, start_command
from tests.support.scripts import command, run
from tests.support.servers import SERVERS

from indusagi.interop import StdioServerConfig, protocol_fault
from indusagi.interop.protocol_bridge.contract import SlowStart
from induscode.boot.runners import explain_slow_start
from induscode.servers.remedies import advise

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def fetched(folder: Path, steps: int, **more: Any) -> dict[str, Any]:
    """Make the row of a server behind a package manager that unpacks for so many tenths of a s."""
    program = folder / "npx"
    script = SERVERS / "package_manager.py"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([*PYTHON, str(script)])} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    args = [str(folder / "cache"), str(steps), "clean-slowly", *PYTHON, str(SERVERS / "honest.py")]
    return {"command": str(program), "args": args, **more}


def python(text: str, **more: Any) -> dict[str, Any]:
    """Make the row of a server that is a few lines of Python."""
    return {"command": PYTHON[0], "args": [*PYTHON[1:], "-c", text], **more}


def lock_of(folder: Path) -> Path:
    return folder / "cache" / "_npx" / "0123456789abcdef" / "concurrency.lock"


def test_finding_b1_a_slow_start_is_a_line_on_a_terminal_and_nothing_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONSTANTS, SLOW_S, 0.05)
    hold = tmp_path / "hold"
    for verb, server, program, line in (
        ("list", "files", tmp_path / "npx", "npx may be downloading it"),
        ("doctor", "files", tmp_path / "npx", "files: starting (npx)"),
        ("doctor", "slow", None, "slow: no answer yet"),
    ):
        hold.touch()
        configured(user_file(), {server: held(hold, command=program)})
        assert line in on_terminal("mcp", verb, cwd=tmp_path, release=(line, hold))
    configured(user_file(), {"slow": faulty("slow-start", 0.2)})
    assert run("mcp", "list", cwd=tmp_path).stderr == ""


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        (SlowStart(True, "npx"), "x: npx may be downloading it"),
        (SlowStart(True), "x: no answer yet"),
        (SlowStart(False, "npx"), "x: starting (npx)"),
        (SlowStart(False), "x: no answer yet"),
    ],
)
def test_the_line_of_a_slow_start_says_what_is_known(slow: SlowStart, said: str) -> None:
    assert f"x: {explain_slow_start(slow)}" == said


@pytest.fixture
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a server that is no package manager less time to exit than the package manager here takes."""
    monkeypatch.setitem(CONSTANTS, CLOSE_S, 0.05)


@pytest.mark.usefixtures("_short_patience")
def test_finding_b1_a_list_that_gives_up_in_mid_unpack_leaves_the_cache_whole(tmp_path: Path) -> None:
    configured(user_file(), {"files": fetched(tmp_path, 100, startup_timeout_sec=0.4)})
    (listed,) = told("mcp", "list", "--json", cwd=tmp_path)["servers"]
    assert listed["fault"]["kind"] == "timeout"
    assert not lock_of(tmp_path).parent.exists()


@pytest.mark.usefixtures("_short_patience")
def test_finding_b1_ctrl_c_in_mid_unpack_leaves_the_cache_whole(tmp_path: Path) -> None:
    configured(user_file(), {"files": fetched(tmp_path, 300)})
    child = start_command([command(), "mcp", "list"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    _wait_for(lock_of(tmp_path))
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    assert not lock_of(tmp_path).parent.exists()


@pytest.mark.usefixtures("_short_patience")
def test_finding_b1_a_killed_program_leaves_its_package_manager_time_to_clean_up(tmp_path: Path) -> None:
    configured(user_file(), {"files": fetched(tmp_path, 300)})
    child = start_command([command(), "mcp", "list"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    _wait_for(lock_of(tmp_path))
    child.kill()
    child.wait(60)
    _wait_for(lock_of(tmp_path).parent, there=False)


def _wait_for(path: Path, *, there: bool = True) -> None:
    end = time.monotonic() + 20
    while path.exists() != there:
        assert time.monotonic() < end
        time.sleep(0.02)


# -- the doctor -------------------------------------------------------------------------------


def examined(row: dict[str, Any], cwd: Path, **variables: str) -> dict[str, Any]:
    configured(user_file(), {"s": row})
    done = run("mcp", "doctor", "--json", cwd=cwd, **variables)
    assert done.returncode == 1, done
    (found,) = json.loads(done.stdout)["servers"]
    return found


def test_finding_b4_the_doctor_names_output_that_is_not_the_protocol(tmp_path: Path) -> None:
    text = "print('Listening on :3000', flush=True)\nwhile True: input()"
    found = examined(python(text, startup_timeout_sec=0.5), tmp_path)
    assert "'Listening on :3000'" in found["fault"]
    assert "standard error" in found["remedy"]


def test_finding_b6_the_doctor_names_what_the_server_was_not_given(tmp_path: Path) -> None:
    text = "import sys; print('Error: ACME_SETTING is not set', file=sys.stderr); sys.exit(1)"
    found = examined(python(text), tmp_path, ACME_SETTING="v4lue", BRAVE_API_KEY="s3cret", HTTPS_PROXY="http://p")
    (note,) = found["notes"]
    assert "ACME_SETTING, BRAVE_API_KEY" in note
    assert "HTTPS_PROXY" not in note
    assert "s3cret" not in json.dumps(found)
    assert "v4lue" not in json.dumps(found)


def test_finding_b6_certificates_and_proxies_reach_a_server(tmp_path: Path) -> None:
    configured(user_file(), {"honest": row()})
    variables = {"SSL_CERT_FILE": "/c", "NODE_EXTRA_CA_CERTS": "/n", "https_proxy": "http://p:1"}
    done = run("call", "honest__env", cwd=tmp_path, **variables)
    for name, value in variables.items():
        assert f'"{name}": "{value}"' in done.stdout, done


def test_finding_c6_the_doctor_leaves_the_error_of_a_server_to_the_server(tmp_path: Path) -> None:
    text = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    if 'id' not in asked: continue\n"
        "    answer = {'error': {'code': -32000, 'message': 'licence expired'}}\n"
        "    if asked['method'] == 'initialize':\n"
        "        answer = {'result': {'protocolVersion': '2025-06-18', "
        "'capabilities': {'tools': {}}}}\n"
        "    print(json.dumps({'jsonrpc': '2.0', 'id': asked['id'], **answer}), flush=True)\n"
    )
    found = examined(python(text), tmp_path)
    assert "licence expired (code -32000)" in found["fault"]
    assert "the server's own error" in found["remedy"]
    assert "MCP server at all" not in found["remedy"]


@pytest.mark.parametrize(("connected", "said"), [(False, "startup_timeout_sec"), (True, "login")])
def test_finding_c6_more_time_is_advised_for_a_start_and_not_for_a_listing(connected: bool, said: str) -> None:
    fault = protocol_fault("timeout", "no answer within 10 s")
    config = StdioServerConfig(id="s", command="true")
    remedy = advise("s", config, fault, {}, connected=connected).remedy
    assert said in remedy
    assert ("startup_timeout_sec" in remedy) is not connected


@pytest.mark.parametrize(
    ("name", "said", "command"),
    [
        ("npx", "npm error code ECOMPROMISED", "rm -rf {folder}"),
        ("npx", "npm error ENOTEMPTY: rename {folder}/a", "rm -rf {folder}"),
        ("uvx", "error: Failed to read from the cache", "uv cache clean mcp-server-time"),
    ],
)
def test_finding_b1_the_doctor_names_the_command_that_mends_a_cache(
    tmp_path: Path, name: str, said: str, command: str
) -> None:
    folder = lock_of(tmp_path).parent
    folder.mkdir(parents=True)
    (folder / "package.json").write_text('{"dependencies": {"mcp-server-time": "^1.2"}}', encoding="utf-8")
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\necho '{said.format(folder=folder)}' >&2\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    row = {"command": str(program), "args": ["-q", "mcp-server-time@1.2"]}
    found = examined(row, tmp_path, npm_config_cache=str(tmp_path / "cache"))
    assert f"mend it: {command.format(folder=folder)}" in found["remedy"]


def test_a_damaged_cache_without_a_folder_of_the_package_is_verified(tmp_path: Path) -> None:
    program = tmp_path / "npx"
    program.write_text("#!/bin/sh\necho 'npm error code ECOMPROMISED' >&2\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)
    row = {"command": str(program), "args": ["-q", "mcp-server-time@1.2"]}
    found = examined(row, tmp_path, npm_config_cache=str(tmp_path / "cache"))
    assert found["remedy"].endswith("mend it: npm cache verify")


def test_finding_b1_the_doctor_finds_a_lock_that_npx_left_behind(tmp_path: Path) -> None:
    lock_of(tmp_path).mkdir(parents=True)
    os.utime(lock_of(tmp_path), (0, 0))
    package = lock_of(tmp_path).with_name("package.json")
    package.write_text('{"dependencies": {"a": "1"}}', encoding="utf-8")
    program = tmp_path / "npx"
    program.write_text("#!/bin/sh\nexec sleep 20\n", encoding="utf-8")
    program.chmod(0o755)
    row = {"command": str(program), "args": ["-y", "a"], "startup_timeout_sec": 0.3}
    found = examined(row, tmp_path, npm_config_cache=str(tmp_path / "cache"))
    assert found["remedy"].endswith(f"mend it: rm -rf {lock_of(tmp_path).parent}")


# -- the gateway ------------------------------------------------------------------------------


def test_finding_c3_initialize_is_answered_while_the_ledger_and_the_servers_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONSTANTS, "indusagi.interop.protocol_bridge.host.session:_INSTRUCTIONS_TIMEOUT_S", 0.1)
    configured(user_file(), {f"s{n}": faulty("mute", startup_timeout_sec=60) for n in range(8)})
    run("mcp", "list", "--no-check", cwd=tmp_path)
    (ledger,) = _ledgers()
    holder = sqlite3.connect(ledger, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with serving(cwd=tmp_path) as gateway:
            gateway.greet()
            assert "serving over standard input" not in gateway.said()
            holder.execute("ROLLBACK")
            gateway.until(lambda: "serving over standard input" in gateway.said())
    finally:
        holder.close()


def _ledgers() -> list[str]:
    """Find the ledger of this test's user."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.environ["HOME"], ".local", "state")
    path = os.path.join(home, "indus", "ledger.db")
    assert os.path.exists(path), sys.executable
    return [path]
