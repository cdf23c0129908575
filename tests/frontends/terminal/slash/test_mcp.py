"""`/mcp` on a terminal, with servers that are processes."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.model_server import calls, says
from tests.support.servers import SERVERS, diary, fault, honest
from tests.support.slash import WIDE, wait_for_answer
from tests.support.terminal import ENTER, ESCAPE, TerminalSetup, open_setup

from indusagi.interop.protocol_bridge.contract import StdioServerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.terminal import Terminal

pytestmark = pytest.mark.process

GIVEN = ("--mcp", "given.json", "--approval", "all")


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[TerminalSetup]:
    with open_setup(tmp_path) as prepared:
        yield prepared


def test_a_server_that_dies_is_restarted_and_its_log_is_kept(setup: TerminalSetup) -> None:
    setup.write_config("given.json", fault("dies", id="dying"))
    script = (calls("dying__fault"), says("it died"))
    with setup.open(*GIVEN, script=script, columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        terminal.enter("end it")
        terminal.wait_for("it died")
        terminal.wait_for("✗ server 'dying': the connection was lost: it was ended by SIGKILL (/mcp says what to do)")
        terminal.wait_for("  about to die")
        wait_for_answer(terminal, "/mcp restart dying", "✓ dying: 2 tools")
        wait_for_answer(terminal, "/mcp logs dying", "stderr: about to die")
        wait_for_answer(terminal, "/mcp disconnect dying", "server 'dying' is disconnected")
        wait_for_answer(terminal, "/mcp list", "  off ")
        wait_for_answer(terminal, "/mcp disconnect dying", "server 'dying' is not connected")
        wait_for_answer(terminal, "/mcp connect dying", "✓ dying: 2 tools")
        wait_for_answer(terminal, "/mcp connect dying", "server 'dying' is connected")
        assert terminal.leave() == 0


def test_a_fault_is_shown_in_one_line_with_its_remedy(setup: TerminalSetup) -> None:
    setup.write_config("given.json", StdioServerConfig("absent", "no-such-command"))
    with setup.open(*GIVEN, columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        terminal.wait_for("(/mcp says what to do)")
        wait_for_answer(terminal, "/mcp list", "Fix: install the command, or correct it")
        assert "  failed  " in terminal.text
        assert terminal.leave() == 0


def test_a_slow_start_is_a_row_of_the_live_region_and_its_end_a_line(setup: TerminalSetup, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    setup.write_config("given.json", fault("gated-start", gate, id="slow"))
    with setup.open(*GIVEN, columns=WIDE) as terminal:
        shown = re.compile(r"  starting slow \d s: no answer yet")
        terminal.wait_for(lambda: any(map(shown.match, terminal.rows)))
        gate.write_text("", "utf-8")
        terminal.wait_for(lambda: not any(row.startswith("  starting") for row in terminal.rows))
        assert "indus: " not in terminal.output  # no status line passes the screen by
        assert terminal.leave() == 0


def test_an_untrusted_server_of_the_project_is_trusted_and_used(setup: TerminalSetup, tmp_path: Path) -> None:
    log = tmp_path / "log"
    setup.write_config(".mcp.json", honest("--log", log, id="ours"))
    script = (calls("ours__echo", text="heard"), says("done"))
    with setup.open("--approval", "all", script=script, columns=WIDE) as terminal:
        terminal.wait_for("This project configures 1 MCP server (")
        terminal.wait_for("▸ [ ] ours")
        words = (sys.executable, "-I", "-S", str(SERVERS / "honest.py"), "--log", str(log))
        assert f"command: {shlex.join(words)}" in terminal.text
        terminal.type(ESCAPE)
        terminal.wait_for("1 server not trusted: /mcp trust")
        wait_for_answer(terminal, "/mcp list", "Fix: /mcp trust ours")
        wait_for_answer(terminal, "/mcp connect ours", "server 'ours' is not started: it isn't trusted yet")
        wait_for_answer(terminal, "/mcp trust ours", "n  no")
        terminal.type("n")
        terminal.wait_for("ours: not trusted")
        assert not diary(log, "start")
        wait_for_answer(terminal, "/mcp trust", "▸ [ ] ours")
        terminal.type(" ")
        terminal.wait_for("▸ [x] ours")
        terminal.type(ENTER)
        terminal.wait_for("✓ ours: 12 tools")
        terminal.enter("call it")
        terminal.wait_for("done")
        wait_for_answer(terminal, "/mcp trust ours", "server 'ours' needs no consent")
        wait_for_answer(terminal, "/mcp trust", "no server waits for consent")
        assert terminal.leave() == 0
    assert "heard" in setup.requested()
    assert len(diary(log, "start")) == 1


def test_a_trusted_server_that_fails_shows_its_fault_once(setup: TerminalSetup) -> None:
    setup.write_config(".mcp.json", StdioServerConfig("broken", "sh", ["-c", "echo no key >&2; exit 4"]))
    with setup.open("--approval", "all", columns=WIDE) as terminal:
        terminal.wait_for("▸ [ ] broken")
        terminal.type(ESCAPE)
        terminal.wait_for("1 server not trusted: /mcp trust")
        wait_for_answer(terminal, "/mcp trust broken", "n  no")
        terminal.type("y")
        terminal.wait_for("  Fix: ")
        assert terminal.text.count("exited with code 4") == 1
        assert "servers changed" not in terminal.text
        assert "✗ broken: failed: exited with code 4" in terminal.text
        assert terminal.leave() == 0


def test_a_changed_definition_is_shown_graded_and_approved(setup: TerminalSetup, tmp_path: Path) -> None:
    definition, script = tmp_path / "definition.json", tmp_path / "server.py"
    server = [sys.executable, str(SERVERS / "honest.py"), "--rich"]
    script.write_text(
        f"import os, sys\nos.execv({sys.executable!r}, [*{server!r}, open({str(definition)!r}).read()])\n"
    )
    setup.write_config("given.json", StdioServerConfig("drifting", sys.executable, [str(script)]))
    definition.write_text(json.dumps({"description": "As it was."}))
    with setup.open(*GIVEN, columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/mcp restart drifting", "✓ drifting: 13 tools")
        wait_for_answer(terminal, "/mcp diff drifting", "no changed tools")
        assert terminal.leave() == 0
    definition.write_text(json.dumps({"description": "As it is."}))
    with setup.open(*GIVEN, columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/mcp approve drifting echo", "no tool 'echo' of 'drifting' waits for approval")
        wait_for_answer(terminal, "/mcp diff drifting", "drifting/rich: routing (description)")
        wait_for_answer(terminal, "/mcp list", "1 tool is disabled, changed since approved: rich")
        wait_for_answer(terminal, "/mcp tools drifting", "/mcp approve drifting rich")
        wait_for_answer(terminal, "/tools rich", "/mcp approve drifting rich")
        wait_for_answer(terminal, "/mcp approve drifting", "n  no")
        assert "drifting/rich: routing (description)" in terminal.text
        assert '-  "description": "As it was."' in terminal.text
        assert '+  "description": "As it is."' in terminal.text
        terminal.type("n")
        terminal.wait_for("drifting/rich: not approved")
        wait_for_answer(terminal, "/mcp approve drifting rich", "n  no")
        terminal.type("y")
        terminal.wait_for("drifting/rich: approved as it is now")
        wait_for_answer(terminal, "/tools rich", "As it is.")
        wait_for_answer(terminal, "/mcp approve drifting", "no tool of 'drifting' waits for approval")
        assert terminal.leave() == 0


def test_a_changed_file_of_the_workspace_is_held_back_until_the_person_agrees(
    setup: TerminalSetup, tmp_path: Path
) -> None:
    planted = tmp_path / "planted"
    setup.write_config("given.json", honest(id="first"))
    with setup.open(*GIVEN, columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/mcp restart first", "✓ first: ")
        setup.write_config("given.json", honest(id="first"), honest("--log", planted, id="second"))
        wait_for_answer(terminal, "/mcp list", "Fix: look at it: /mcp reload")
        assert "note: servers held back: second" in terminal.text
        wait_for_answer(terminal, "/mcp connect second", "it is not as it was when the file was named")
        wait_for_answer(terminal, "/mcp reload", "n  no")
        terminal.type("n")
        terminal.wait_for("second: not trusted")
        assert not diary(planted, "start")
        wait_for_answer(terminal, "/mcp trust second", "n  no")
        # What was shown is what is accepted: the row has changed behind the question.
        setup.write_config("given.json", honest(id="first"), honest("--log", planted, "--tools", 1, id="second"))
        terminal.type("y")
        terminal.wait_for("server 'second' is not started: /mcp says why")
        assert not diary(planted, "start")
        wait_for_answer(terminal, "/mcp reload", "n  no")
        terminal.type("y")
        terminal.wait_for("servers changed: second")
        wait_for_answer(terminal, "/mcp connect second", "second")
        assert len(diary(planted, "start")) == 1
        assert terminal.leave() == 0


def test_a_broken_file_leaves_the_servers_as_they_are(setup: TerminalSetup) -> None:
    path = setup.write_config("given.json", honest(id="first"))
    with setup.open(*GIVEN, columns=WIDE) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/mcp restart first", "✓ first: ")
        path.write_text('{"mcpServers": {')
        wait_for_answer(terminal, "/mcp tools first", "first__echo")
        assert "the servers stay as they were" in terminal.text
        path.write_text('{"mcpServers": {"first": {"command": 1}}}')
        wait_for_answer(terminal, "/mcp reload", "they were")
        wait_for_answer(terminal, "/mcp list", "ready")
        path.unlink()
        wait_for_answer(terminal, "/mcp reload", "they were")
        wait_for_answer(terminal, "/mcp disconnect first", "is disconnected")
        assert terminal.leave() == 0


def test_a_server_is_switched_off_and_on_for_the_session_or_in_its_file(setup: TerminalSetup) -> None:
    (setup.cwd / ".indusvx").mkdir()
    path = setup.write_config(".indusvx/mcp.json", honest(id="ours"))
    with setup.open("--approval", "all", columns=WIDE) as terminal:
        terminal.wait_for("▸ [ ] ours")
        terminal.type(f"a{ENTER}")
        terminal.wait_for("→ ours")
        wait_for_answer(terminal, "/mcp enable ours", "is switched on already")
        wait_for_answer(terminal, "/mcp disable ours", "servers removed: ours")
        wait_for_answer(terminal, "/mcp disable ours", "is switched off already")
        wait_for_answer(terminal, "/mcp list", "ours: switched off for this session")
        wait_for_answer(terminal, "/mcp restart ours", "is switched off for this session: /mcp enable ours")
        wait_for_answer(terminal, "/mcp enable ours", "servers added: ours")
        assert json.loads(path.read_text())["mcpServers"]["ours"].get("enabled") is None
        wait_for_answer(terminal, "/mcp disable ours --save", "servers removed: ours")
        assert json.loads(path.read_text())["mcpServers"]["ours"]["enabled"] is False
        wait_for_answer(terminal, "/mcp list", "ours: switched off in")
        wait_for_answer(terminal, "/mcp restart ours", "switched off in its file: /mcp enable ours")
        wait_for_answer(terminal, "/mcp enable ours", "servers added: ours")
        assert json.loads(path.read_text())["mcpServers"]["ours"]["enabled"] is False
        wait_for_answer(terminal, "/mcp enable ours --save", "is switched on")
        assert "enabled" not in json.loads(path.read_text())["mcpServers"]["ours"]
        assert terminal.leave() == 0


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("/mcp bogus", "/mcp has no action 'bogus'"),
        ("/mcp 'open", "the line cannot be read: No closing quotation"),
        ("/mcp list more", "what is 'more' for?"),
        ("/mcp reload more", "what is 'more' for?"),
        ("/mcp approve", "name the server: first"),
        ("/mcp approve first a b", "what is 'b' for?"),
        ("/mcp diff frist", "There is no server 'frist' (there are: first)"),
        *(
            (f"/mcp {action}{rest}", answer)
            for action in ("connect", "disconnect", "restart", "enable", "disable", "tools", "logs", "trust")
            for rest, answer in (
                ("", "name the server: first" if action != "trust" else "no server waits for consent"),
                (" frist", "There is no server 'frist' (there are: first). Did you mean 'first'?"),
                (" first more", "what is 'more' for?"),
            )
        ),
    ],
)
def test_bad_input_gives_one_line(shared: Terminal, line: str, answer: str) -> None:
    wait_for_answer(shared, line, answer)

    def list_rows() -> list[str]:
        return shared.text.rpartition(f"> {line}\n")[2].split("\n")

    shared.wait_for(lambda: list_rows()[1:2] == [">"])
    assert list_rows()[0].removeprefix("✗ ").startswith(answer)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """One session for all lines that change nothing."""
    folder = tmp_path_factory.mktemp("shared")
    with open_setup(folder) as prepared:
        prepared.write_config("given.json", honest(id="first"))
        variables = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
        with prepared.open(*GIVEN, environ=variables, columns=WIDE) as terminal:
            terminal.wait_for_prompt()
            yield terminal
            assert terminal.leave() == 0


def test_a_project_asks_once_about_its_servers_and_starts_the_marked_ones(setup: TerminalSetup, tmp_path: Path) -> None:
    logs = [tmp_path / f"log{number}" for number in range(2)]
    setup.write_config(".mcp.json", honest("--log", logs[0], id="one"), honest("--log", logs[1], id="two"))
    with setup.open(columns=WIDE) as terminal:
        terminal.wait_for("▸ [ ] one")
        terminal.type("2")
        terminal.wait_for("  [x] two")
        terminal.type(ENTER)
        terminal.wait_for("→ two")
        terminal.wait_for("1 server not trusted: /mcp trust")
        terminal.wait_for(lambda: bool(diary(logs[1], "start")))
        assert terminal.leave() == 0
    with setup.open(columns=WIDE) as terminal:
        terminal.wait_for("1 server not trusted: /mcp trust")
        assert "This project configures" not in terminal.text
        assert terminal.leave() == 0
    assert not diary(logs[0], "start")
    setup.write_config(".mcp.json", honest("--log", logs[0], "--other", id="one"), honest("--log", logs[1], id="two"))
    with setup.open(columns=WIDE) as terminal:  # it isn't what was postponed
        terminal.wait_for("▸ [ ] one")
        assert "[ ] two" not in terminal.text
        terminal.type(ESCAPE)
        terminal.wait_for_prompt()
        assert terminal.leave() == 0


def test_servers_are_a_list_to_act_on(setup: TerminalSetup) -> None:
    gone = StdioServerConfig("gone", "no-such-command", ())
    setup.write_config("given.json", honest(id="fine"), gone)
    with setup.open(*GIVEN, columns=100) as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/mcp restart fine", "✓ fine: ")
        terminal.enter("/mcp")
        terminal.wait_for("MCP servers · 1 ready, 1 failed")
        terminal.wait_for(lambda: any(row.startswith("▸ ✓ fine  12 of 12 tools") for row in terminal.rows))
        assert any(row.startswith("  ✗ gone  failed") for row in terminal.rows)
        terminal.type("gone" + ENTER)
        terminal.wait_for("Fix: install the command, or correct it")
        terminal.wait_for(lambda: any(row.startswith("▸ logs") for row in terminal.rows))
        terminal.type("disable" + ENTER)
        terminal.wait_for("server 'gone' is switched off for this session")
        terminal.enter("/mcp")
        terminal.wait_for("MCP servers · 1 ready, 1 off")
        terminal.type("add" + ENTER)
        terminal.wait_for("indus mcp add NAME")
        assert terminal.leave() == 0
    with setup.open("--no-mcp") as terminal:
        terminal.wait_for_prompt()
        wait_for_answer(terminal, "/mcp", "Started with --no-mcp.")
        assert terminal.leave() == 0
