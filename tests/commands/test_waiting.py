"""Commands and prompts next to a server that never answers."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.commands.helpers import HONEST, configured, held, row
from tests.support.forked import CONSTANTS, start_command
from tests.support.model_server import model_server, says
from tests.support.scripts import command, run
from tests.support.sessions import SessionSetup

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

SOON_S = 0.05
"""A limit that the test waits for: nothing it needs has to happen within it."""


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Configure a server that never answers and leaves a file when it's started, and one without faults."""
    silent = {"command": "sh", "args": ["-c", f"touch '{tmp_path}/started'; cat >/dev/null"]}
    return str(configured(tmp_path / "mcp.json", {"silent": silent, "good": row(), "silent-too": silent}))


def is_started(tmp_path: Path) -> bool:
    return (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("tools show good__echo", "good__echo (good__echo)"),
        ("tools show good_echo", "good__echo (good__echo)"),
        ("tools show read", "source: native"),
        ("tools search echo --server good", "good__echo("),
        ("call good__echo text=hello", "hello"),
        ("call @good:test://text", "text"),
        ("resources list good", "@good:test://text"),
        ("resources read @good:test://text", "text"),
        ("prompts list good", "/good:"),
        ("mcp get good", "name: good"),
        ("mcp doctor good", "state: ready"),
    ],
)
def test_finding_u1_commands_start_only_the_server_they_name(
    line: str, shown: str, config: str, tmp_path: Path
) -> None:
    done = run(*line.split(), "--mcp", config, cwd=tmp_path)
    assert (done.returncode, shown in done.stdout) == (0, True), done
    assert not is_started(tmp_path)


@pytest.mark.parametrize("line", ["tools show nothing", "call nothing", "call nothing__at_all x=1", "call god__echo"])
def test_finding_u1_names_that_no_server_can_have_start_nothing(line: str, config: str, tmp_path: Path) -> None:
    done = run(*line.split(), "--mcp", config, cwd=tmp_path)
    assert (done.returncode, "here is no tool" in done.stderr) == (2, True), done
    assert not is_started(tmp_path)


def test_finding_u1_adding_a_server_starts_no_other(tmp_path: Path) -> None:
    for name in ("silent", "good"):
        line = ["sh", "-c", f"touch {tmp_path}/started; exec sleep 1000"] if name == "silent" else HONEST
        added = ["--no-check"] if name == "silent" else []
        done = run("mcp", "add", *added, name, "--", *line, cwd=tmp_path)
        assert done.returncode == 0, done
    assert "ready, 12 tools" in done.stdout
    assert not is_started(tmp_path)


@pytest.mark.parametrize(
    ("line", "module", "shown"),
    [
        ("tools", "catalog:LOOK_LIMIT_S", "good__echo"),
        ("tools search echo", "catalog:FIRST_PROMPT_LIMIT_S", "good__echo("),
        ("resources", "runners:LOOK_LIMIT_S", "@good:test://text"),
        ("prompts", "runners:LOOK_LIMIT_S", "/good:"),
    ],
)
def test_finding_u1_lists_of_all_servers_go_on_without_the_silent_one(
    line: str, module: str, shown: str, config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = configured(tmp_path / "good.json", {"good": row()})
    for kind in ("tools", "resources"):  # its lists are in the ledger by now
        assert run(kind, "--mcp", str(good), cwd=tmp_path).returncode == 0
    monkeypatch.setitem(CONSTANTS, f"induscode.boot.{module}", SOON_S)
    done = run(*line.split(), "--mcp", config, cwd=tmp_path)
    assert (done.returncode, shown in done.stdout) == (0, True), done
    remedy = f"indus mcp doctor --mcp {config} silent waits longer"
    assert f"server 'silent': no answer within 0.05 s ({remedy})" in done.stderr


def test_finding_r7_rows_of_the_list_are_printed_as_servers_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    monkeypatch.setitem(CONSTANTS, "induscode.commands.mcp.list_servers:_IN_ORDER_S", SOON_S)
    path = configured(tmp_path / "mcp.json", {"slow": held(hold), "good": row()})
    argv = [command(), "mcp", "list", "--mcp", str(path)]
    with start_command(
        argv, environ=dict(os.environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=tmp_path, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == ["NAME", "TRANSPORT", "STATE", "TOOLS", "SCOPE", "MESSAGE"]
        assert process.stdout.readline().split() == ["good", "stdio", "ready", "12", "given"]
        hold.unlink()
        assert process.stdout.readline().split() == ["slow", "stdio", "ready", "12", "given"]
        assert process.wait(60) == 0


def test_finding_r7_silent_server_is_listed_after_the_limit(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONSTANTS, "induscode.commands.mcp.list_servers:LOOK_LIMIT_S", SOON_S)
    done = run("mcp", "list", "--json", "--mcp", config, cwd=tmp_path)
    rows = {entry["name"]: entry for entry in json.loads(done.stdout)["servers"]}
    assert [*rows] == ["silent", "good", "silent-too"]
    assert (rows["silent"]["phase"], rows["silent"]["tools"]) == ("connecting", None)
    assert rows["silent"]["message"].startswith("no answer within 0.05 s (indus mcp doctor")


def test_finding_u1_first_prompt_goes_on_without_the_silent_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CONSTANTS, "induscode.conversations.servers:FIRST_PROMPT_LIMIT_S", SOON_S)
    with model_server() as server:
        setup = SessionSetup(tmp_path, server)
        setup.rows["silent"] = {"command": "sh", "args": ["-c", "cat >/dev/null"]}
        server.script[:] = [says("done")]
        assert setup.run_in_process(monkeypatch, output_format="json") == 0
    notes = json.loads(capfd.readouterr().out)["notes"]
    assert "server 'silent' is still starting: the model gets its tools once it's up" in notes
