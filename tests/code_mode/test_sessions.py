"""Code mode in sessions, in a gateway and on the command line, with a scripted model and real processes."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.commands.helpers import user_file
from tests.commands.serving import greeted, wait_for
from tests.support.model_server import Reply, calls, model_server, says
from tests.support.scripts import command, run
from tests.support.sessions import SessionSetup
from tests.support.waiting import LIMIT_S

from induscode.conversations.contract import ExitCode
from induscode.launch.settings import CODE_ENABLED, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.process
CODE = Settings().with_flag(CODE_ENABLED, True)
"""As `--code` sets it."""
COUNT = 50


def count_tokens(requests: list[dict[str, Any]]) -> int:
    """Count what a model reads and writes: four bytes of a request are a token; the last reply is in no request."""
    return sum(len(json.dumps(request)) for request in requests) // 4


def test_a_script_of_fifty_calls_costs_a_twentieth_of_fifty_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    costs: dict[str, int] = {}
    script = f"texts = [read(path=f'file{{i}}.txt') for i in range({COUNT})]\nsum('needle' in text for text in texts)"
    turns = [calls("read", path=f"file{index}.txt") for index in range(COUNT)]
    plans: Mapping[str, tuple[list[Reply], Settings]] = {
        "turns": (turns, Settings()),
        "script": ([calls("run_code", code=script)], CODE),
    }
    for name, (replies, settings) in plans.items():
        with model_server(*replies, says("Two files have it.")) as server:
            setup = SessionSetup(tmp_path / name, server)
            setup.cwd.mkdir(parents=True)
            for index in range(COUNT):
                text = "needle" if index in {7, 31} else "straw"
                (setup.cwd / f"file{index}.txt").write_text(f"{text}\n" * 5, encoding="utf-8")
            code = setup.run_in_process(monkeypatch, settings=settings, tools=("read",), max_requests=COUNT + 2)
            assert code == ExitCode.OK, capfd.readouterr().err
            costs[name] = count_tokens(server.requests)
            if name == "script":
                assert server.requests[-1]["messages"][-1]["content"] == "2"
    # 130,523 and 1,378 when docs/guides/code-mode.md was written.
    assert costs["script"] <= 0.05 * costs["turns"]


def test_a_denied_tool_stays_denied_in_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = "try:\n    bash(command='touch made')\nexcept PermissionError as exc:\n    print(exc)\nls(path='.')"
    with model_server(calls("run_code", code=script), says("No.")) as server:
        setup = SessionSetup(tmp_path, server)
        assert setup.run_in_process(monkeypatch, settings=CODE, approval="ask") == ExitCode.OK
        answer = server.requests[-1]["messages"][-1]["content"]
        assert "bash was not run: this run cannot ask the user" in answer
        assert "[.: empty]" in answer
        assert "run_code" in {tool["function"]["name"] for tool in server.requests[0]["tools"]}
    with model_server(says("Yes.")) as server:
        SessionSetup(tmp_path, server).run_in_process(monkeypatch)
        assert "run_code" not in {tool["function"]["name"] for tool in server.requests[0]["tools"]}  # off unless asked
    assert not (tmp_path / "project" / "made").exists()


def find_nothing(_name: str) -> None: ...


def test_without_the_extra_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("induscode.code_mode.process.find_spec", find_nothing)
    with model_server() as server:
        assert SessionSetup(tmp_path, server).run_in_process(monkeypatch, settings=CODE) == ExitCode.USAGE
    assert capfd.readouterr().err == "indus: code mode needs the extra `code`: pip install 'indus-deck[code]'\n"


def list_descendants(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text(encoding="ascii").split()):
            found += [child, *list_descendants(child)]
    return found


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads the process list of Linux")
def test_kill_9_of_the_parent_leaves_no_interpreter(tmp_path: Path) -> None:
    code = "write(path='started', content='')\nwhile True: pass"
    process = subprocess.Popen([command(), "call", "run_code", f"code={code}"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        wait_for((tmp_path / "started").exists)
        handles = [os.pidfd_open(pid) for pid in list_descendants(process.pid)]
        assert len(handles) >= 2  # the host and its worker, which computes
    finally:
        process.kill()
        process.wait()
    try:
        for handle in handles:
            assert select.select([handle], [], [], LIMIT_S)[0], "an interpreter goes on"
    finally:
        for handle in handles:
            os.close(handle)


def test_ctrl_c_in_a_script_ends_its_calls(tmp_path: Path) -> None:
    code = "bash(command='touch started; sleep 61.2718')"
    process = subprocess.Popen(
        [command(), "call", "run_code", f"code={code}"], cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True
    )
    wait_for((tmp_path / "started").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == ExitCode.INTERRUPTED
    assert "61.2718" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_a_gateway_runs_scripts_within_the_view_of_a_client(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("needle", encoding="utf-8")
    views = {"few": {"tools": ["run_code", "read"], "rename": {"read": "open-file"}}}
    settings = user_file().parents[1] / "indus" / "settings.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(json.dumps({"serve": {"views": views}}), encoding="utf-8")
    with greeted("--code", "--no-mcp", "--view", "few", cwd=tmp_path) as gateway:
        tools = {tool["name"]: tool for tool in gateway.ask("tools/list")["result"]["tools"]}
        assert [*tools] == ["open-file", "run_code"]
        assert tools["run_code"]["annotations"]["readOnlyHint"] is False
        hidden = "try:\n    ls(path='.')\nexcept NameError as exc:\n    print(exc)"
        script = f"print('needle' in open_file(path='a.txt'))\n{hidden}"
        result = gateway.ask("tools/call", name="run_code", arguments={"code": script})["result"]
        first, second = result["content"][0]["text"].splitlines()
        assert (first, second[:24]) == ("True", "name 'ls' is not defined")
    rules = tmp_path / ".indusvx" / "permissions.json"
    rules.parent.mkdir()
    rules.write_text('{"deny": ["grep"]}', encoding="utf-8")
    with greeted("--code", "--no-mcp", "--search", "on", cwd=tmp_path) as gateway:
        listed = [tool["name"] for tool in gateway.ask("tools/list")["result"]["tools"]]
        assert listed == ["find_tools", "describe_tools", "call_tool", "run_code"]
        script = "[one['name'] for one in find_tools('search the contents of files', 50)]"
        result = gateway.ask("tools/call", name="run_code", arguments={"code": script})["result"]
        assert {"grep", "read"} & {*json.loads(result["content"][0]["text"])} == {"read"}


def test_a_script_is_tried_by_hand(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "found = find_tools('search the contents of files')\nfound[0]['name']", encoding="utf-8"
    )
    done = run("call", "run_code", "code=@script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "grep\n")
    (tmp_path / ".indusvx").mkdir()
    (tmp_path / ".indusvx" / "permissions.json").write_text('{"deny": ["grep"]}', encoding="utf-8")
    done = run("call", "run_code", "code=@script.py", cwd=tmp_path)
    assert (done.returncode, "grep" in done.stdout) == (0, False), "a denied tool is not found"
    done = run("call", "run_code", "code=@absent.py", cwd=tmp_path)
    assert (done.returncode, "code=@absent.py: No such file or directory" in done.stderr) == (2, True)
    done = run("calls", "--json", cwd=tmp_path)
    assert '"tool": "run_code"' in done.stdout or '"tool":"run_code"' in done.stdout
