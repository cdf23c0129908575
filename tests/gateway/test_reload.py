"""`indus serve` while its files change, and when it is told to end."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.commands.helpers import CLOSE_S, HONEST, configured, replace_file, row, servers_of, typed, user_file
from tests.commands.serving import CHANGED, greeted, serving, wait_for
from tests.support.forked import CONSTANTS
from tests.support.scripts import command, run
from tests.support.servers import HONEST_TOOLS, diary
from tests.support.waiting import LIMIT_S, is_alive

from induscode.boot.plans import ConfigFiles
from induscode.cli.process import SignalState
from induscode.servers.config.trust import TrustStore

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process
NONE = ["--profile", "none"]


def of(server: str) -> list[str]:
    return [f"{server}__{name}" for name in HONEST_TOOLS]


def gone(log: Path) -> None:
    """Check that no process of a server is left."""
    pids = [int(pid) for pid in diary(log, "start")]
    assert pids
    assert not any(map(is_alive, pids))


# -- files ------------------------------------------------------------------------------------


def test_servers_come_and_go_with_their_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with greeted(*NONE, cwd=tmp_path) as gateway:
        assert gateway.tools() == []
        configured(user_file(), {"a": row("--log", log)})
        assert gateway.until_tools(lambda tools: tools == of("a"))
        assert CHANGED in [one["method"] for one in gateway.heard]
        assert gateway.text("a__echo", text="x") == "x"
        configured(user_file(), {"b": row(), "a": row("--log", log)})
        assert gateway.until_tools(lambda tools: tools == [*of("b"), *of("a")])
        configured(user_file(), {"a": row("--log", log), "b": row()})
        assert gateway.until_tools(lambda tools: tools == [*of("a"), *of("b")])
        assert len(diary(log, "start")) == 1, "a server that stays as it is goes on"
        configured(user_file(), {"b": row(), "a": row("--log", log, "--tools", 1, added="allow")})
        assert gateway.until_tools(lambda tools: "a__tool_0" in tools)
        assert len(diary(log, "start")) == 2
        assert gateway.text("a__echo", text="y") == "y"
        configured(user_file(), {"b": row()})
        assert gateway.until_tools(lambda tools: tools == of("b"))
        gateway.until(lambda: not any(is_alive(int(pid)) for pid in diary(log, "start")))
        user_file().unlink()
        gateway.until_tools(lambda tools: tools == [] and "removed b" in gateway.said())
        for said in ("added a", "added b", "replaced a", "removed a", "removed b"):
            assert f"the configuration has changed: {said}" in gateway.said()


def test_a_server_that_comes_back_in_its_file_is_listed_from_the_ledger(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"a": row("--log", log, start="lazy")})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        assert gateway.tools() == of("a")
        configured(user_file(), {})
        gateway.until_tools(lambda tools: tools == [] and "removed a" in gateway.said())
        configured(user_file(), {"a": row("--log", log, start="lazy")})
        gateway.until_tools(lambda tools: tools == of("a"))
        assert len(diary(log, "start")) == 1
        assert gateway.text("a__echo", text="awake") == "awake"
        assert len(diary(log, "start")) == 2


def test_a_broken_file_changes_nothing_and_is_told_until_it_is_whole(tmp_path: Path) -> None:
    configured(user_file(), {"a": row()})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        replace_file(user_file(), '{"servers": {"a": ')
        gateway.until(lambda: "the servers stay as they were" in gateway.said())
        assert gateway.tools() == of("a")
        assert gateway.text("a__echo", text="still") == "still"
        assert "invalid JSON" in gateway.said()
        configured(user_file(), {"b": row()})
        gateway.until_tools(lambda tools: tools == of("b"))


def test_files_of_a_wrong_shape_change_nothing_and_are_told(tmp_path: Path) -> None:
    shapes = {
        "[]": "it is not an object",
        "null": "it is not an object",
        '{"mcpServers": []}': "'mcpServers' is not an object",
        '{"servers": "a"}': "'servers' is not an object",
        '{"servers": {"a": {"command": 5}}}': "its command is not text",
        '{"servers": {"a": 5}}': "skipped: it is not an object",
    }
    log = tmp_path / "log"
    configured(user_file(), {"a": row("--log", log)})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        assert gateway.tools() == of("a")
        for text, why in shapes.items():
            before = len(gateway.said())
            replace_file(user_file(), text)
            gateway.until(lambda before=before: "stay as they were" in gateway.said()[before:])
            assert why in gateway.said()[before:]
            assert gateway.text("a__echo", text="still") == "still"
        assert gateway.tools() == of("a")
        assert len(diary(log, "start")) == 1
        configured(user_file(), {})
        gateway.until_tools(lambda tools: tools == [] and "removed a" in gateway.said())


def test_a_row_that_names_no_server_is_told_and_the_others_come(tmp_path: Path) -> None:
    with greeted(*NONE, cwd=tmp_path) as gateway:
        configured(user_file(), {"bad": {}, "good": row()})
        gateway.until_tools(lambda tools: tools == of("good"))
        assert "neither a command nor a url" in gateway.said()


def test_a_named_file_elsewhere_is_the_users_and_is_followed(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    named = configured(tmp_path / "named.json", {"a": row()})
    with greeted(*NONE, "--mcp", str(named), cwd=work) as gateway:
        assert gateway.tools() == of("a")
        configured(named, {"b": row()})
        gateway.until_tools(lambda tools: tools == of("b"))
        named.unlink()
        gateway.until(lambda: "no such file or directory; the servers" in gateway.said())
        assert gateway.tools() == of("b")


def test_c8_what_changes_in_a_named_file_of_the_project_waits_for_a_word(tmp_path: Path) -> None:
    named = configured(tmp_path / "named.json", {"a": row(), "b": row()})
    log = tmp_path / "log"
    with greeted(*NONE, "--mcp", "named.json", cwd=tmp_path) as gateway:
        assert gateway.tools() == [*of("a"), *of("b")]
        configured(named, {"a": row(), "b": row("--log", log), "c": row("--log", log)})
        gateway.until_tools(lambda tools: tools == of("a"))
        gateway.until(lambda: f"indus mcp trust b --mcp {named}" in gateway.said())
        assert not log.exists()
        gateway.until(lambda: "the configuration has changed: held back b, c" in gateway.said())
        assert "added" not in gateway.said()
        os.kill(gateway.pid, signal.SIGHUP)  # a signal can't carry what the user has looked at
        assert run("mcp", "trust", "--yes", "c", "--mcp", str(named), cwd=tmp_path).returncode == 0
        gateway.until_tools(lambda tools: tools == [*of("a"), *of("c")])
        assert run("mcp", "trust", "--yes", "b", "--mcp", str(named), cwd=tmp_path).returncode == 0
        gateway.until_tools(lambda tools: tools == [*of("a"), *of("b"), *of("c")])
        assert servers_of(named).keys() == {"a", "b", "c"}


@pytest.mark.parametrize("how", ["plain", "through a link to the workspace"])
def test_c8_a_named_file_of_the_project_that_becomes_a_link_is_still_of_the_project(tmp_path: Path, how: str) -> None:
    work, log = tmp_path / "work", tmp_path / "log"
    work.mkdir()
    (tmp_path / "way").symlink_to(work)
    configured(work / "named.json", {"a": row()})
    elsewhere = configured(tmp_path / "other.json", {"a": row(), "b": row("--log", log)})
    given = work if how == "plain" else tmp_path / "way"
    with greeted(*NONE, "--mcp", str(given / "named.json"), cwd=work) as gateway:
        assert gateway.tools() == of("a")
        (work / "new").symlink_to(elsewhere)
        (work / "new").rename(work / "named.json")
        gateway.until(lambda: "indus mcp trust b --mcp" in gateway.said())
        assert gateway.tools() == of("a")
        assert not log.exists()
        assert run("mcp", "trust", "--yes", "b", "--mcp", str(given / "named.json"), cwd=work).returncode == 0
        gateway.until_tools(lambda tools: tools == [*of("a"), *of("b")])


def test_a_hangup_reads_the_files_anew_and_ends_nothing(tmp_path: Path) -> None:
    configured(user_file(), {"a": row()})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        os.kill(gateway.pid, signal.SIGHUP)
        configured(user_file(), {"b": row()})
        os.kill(gateway.pid, signal.SIGHUP)
        gateway.until_tools(lambda tools: tools == of("b"))


def test_a_hangup_of_the_terminal_is_an_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"a": row("--log", log)})
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", command(), "serve", "--http", "0"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
    )
    os.close(theirs)
    seen = b""
    while b"(1 ready)" not in seen:  # it serves before its servers have started
        seen += os.read(ours, 4096)
    os.close(ours)
    assert process.wait(LIMIT_S) == 128 + signal.SIGHUP
    gone(log)


# -- the end ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_lets_calls_finish_and_leaves_nothing(tmp_path: Path, number: int, code: int) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"a": row("--log", log)})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        asked = gateway.send("tools/call", name="a__slow", arguments={"seconds": 0.3})
        gateway.until(lambda: bool(diary(log, "heard tools/call")))
        os.kill(gateway.pid, number)
        assert not gateway.answer(asked)["result"]["isError"]
        assert gateway.process.wait(LIMIT_S) == code
    gone(log)


def test_a_call_that_takes_too_long_is_cancelled_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONSTANTS, "indusagi.interop.protocol_bridge.host.dispatcher:HostLimits.stop_s", 0.1)
    log = tmp_path / "log"
    configured(user_file(), {"a": row("--log", log)})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        gateway.send("tools/call", name="a__slow", arguments={"seconds": 60})
        gateway.until(lambda: bool(diary(log, "heard tools/call")))
        os.kill(gateway.pid, signal.SIGTERM)
        assert gateway.process.wait(LIMIT_S) == 0
    assert len(diary(log, "heard notifications/cancelled")) == 1
    gone(log)


def test_told_twice_it_ends_at_once_and_its_servers_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"a": row("--log", log)})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        gateway.send("tools/call", name="a__slow", arguments={"seconds": 60})
        gateway.until(lambda: bool(diary(log, "heard tools/call")))
        os.kill(gateway.pid, signal.SIGTERM)
        os.kill(gateway.pid, signal.SIGINT)
        assert gateway.process.wait(LIMIT_S) in {130, 143}
        wait_for(lambda: not any(is_alive(int(pid)) for pid in diary(log, "start")))


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs to see processes")
@pytest.mark.parametrize("words", [NONE, ["--transparent", "a"]], ids=["gateway", "relay"])
def test_told_twice_it_leaves_nothing_of_a_server_behind_a_script(tmp_path: Path, words: list[str]) -> None:
    log = tmp_path / "log"
    own = f"setsid sh -c 'echo start $$ >> {log}; exec sleep 60' &"
    script = f"{own} {shlex.join([*HONEST, '--log', str(log)])}; exit 1"
    configured(user_file(), {"a": {"command": "sh", "args": ["-c", script]}})
    with greeted(*words, cwd=tmp_path) as gateway:
        prefix = "" if "--transparent" in words else "a__"
        gateway.send("tools/call", name=f"{prefix}slow", arguments={"seconds": 60})
        gateway.until(lambda: bool(diary(log, "heard tools/call")))
        gateway.until(lambda: len(diary(log, "start")) == 2)
        os.kill(gateway.pid, signal.SIGTERM)
        os.kill(gateway.pid, signal.SIGINT)
        assert gateway.process.wait(LIMIT_S) in {130, 143}
        wait_for(lambda: not any(is_alive(int(pid)) for pid in diary(log, "start")))


def test_the_end_of_standard_input_is_the_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"a": row("--log", log)})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        assert gateway.process.stdin is not None
        gateway.process.stdin.close()
        assert gateway.process.wait(LIMIT_S) == 0
    gone(log)


def test_r52_a_client_that_vanishes_in_a_call_leaves_no_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"a": row("--log", log)})
    with greeted(*NONE, cwd=tmp_path) as gateway:
        gateway.send("tools/call", name="a__slow", arguments={"seconds": 60})
        gateway.until(lambda: bool(diary(log, "heard tools/call")))
        assert gateway.leave() == 0
    assert len(diary(log, "heard notifications/cancelled")) == 1
    gone(log)


def test_a_signal_while_servers_come_up_ends_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONSTANTS, CLOSE_S, 0.05)
    log = tmp_path / "log"
    quiet = {"command": "sh", "args": ["-c", f"echo start $$ >> {log}; exec sleep 60"]}
    configured(user_file(), {"quiet": quiet})
    with serving(*NONE, cwd=tmp_path) as gateway:
        gateway.until(lambda: bool(diary(log, "start")))
        os.kill(gateway.pid, signal.SIGTERM)
        assert gateway.process.wait(LIMIT_S) == 0
        assert gateway.lines == []
    gone(log)


# -- watching ---------------------------------------------------------------------------------


class Scripted(ConfigFiles):
    """Sees what it was told to see."""

    script: list[object]

    def read_signatures(self) -> object:
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


async def test_a_file_that_is_being_written_is_left_alone_until_it_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConfigFiles, "poll_s", 0.01)
    monkeypatch.setattr("induscode.boot.plans._STABLE_S", 0.01)
    Scripted.script = [1, 2, 3, 4, 4, 5]
    watch = Scripted(())
    told = SignalState()
    await watch.wait_for_change(told)
    assert Scripted.script == [5]
    await watch.wait_for_change(told)
    told.reload.set()
    await watch.wait_for_change(told)
    assert not told.reload.is_set()


def test_without_a_home_there_is_no_consent_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(_: object) -> str:
        raise OSError("there is no home directory")

    monkeypatch.setattr(TrustStore, "path", property(homeless))
    assert ConfigFiles(()).read_signatures() == ()


def test_a_person_who_starts_it_is_told_who_should(tmp_path: Path) -> None:
    done = typed("\x04", "serve", *NONE, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "indus connect" in done.stderr
