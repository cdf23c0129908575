"""What `make clients` stands on: the server behind, the judge, and the running of commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from outside.clients import __main__ as command
from outside.clients.agents import Agent, Outcome, agents, judge_list
from outside.clients.report import BOOK, RESOURCE, TEXT, NoReport, Report, judge_client, read_report
from outside.clients.roster import Client, FastMcp, Inspector, Program, clients
from outside.clients.running import Runs
from outside.clients.server import FAILURE, NOTE, NOTED, PICTURE, STEPS, TOOLS
from outside.clients.subject import CannotServe, Subject, Target, listening, make_subject
from outside.clients.visits import Visit, visit
from tests.support.scripts import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonObject

PINS = ROOT / "outside/clients"
GOOD = Report(
    protocol="2025-11-25",
    tools=[f"shelf__{tool['name']}" for tool in TOOLS],
    echoed=TEXT,
    image=("image/png", PICTURE),
    resource=NOTED,
    prompt=f"Find {BOOK}.",
    error=FAILURE,
    steps=STEPS,
    uncancelled="",
    after=TEXT,
)
ORDERLY = ["started", "cancelled"]


def _subject(folder: Path, *program: str) -> Subject:
    return make_subject(folder, program or (sys.executable, "-c", "pass"))


def _python(text: str) -> tuple[str, str, str]:
    return sys.executable, "-c", text


def _asked(folder: Path, *messages: JsonObject) -> list[JsonObject]:
    lines = "".join(f"{json.dumps({'jsonrpc': '2.0', **message})}\n" for message in messages)
    done = subprocess.run(
        [sys.executable, PINS / "server.py"],
        input=lines,
        env={"JOURNAL": str(folder / "journal")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def _call(number: int, tool: str, **more: object) -> JsonObject:
    return json.loads(json.dumps({"id": number, "method": "tools/call", "params": {"name": tool, **more}}))


def test_the_server_answers_as_each_tool_should(tmp_path: Path) -> None:
    hello: JsonObject = {"protocolVersion": "2025-06-18"}
    answers = _asked(
        tmp_path,
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        {"id": 3, "method": "ping"},
        {"id": 4, "method": "roots/list"},
        _call(5, "echo", arguments={"text": TEXT}),
        _call(6, "picture"),
        _call(7, "fail"),
        {"id": 8, "method": "resources/list"},
        {"id": 9, "method": "resources/read", "params": {"uri": NOTE}},
        {"id": 10, "method": "prompts/list"},
        {"id": 11, "method": "prompts/get", "params": {"name": "find", "arguments": {"book": BOOK}}},
    )
    results = {answer["id"]: answer.get("result") for answer in answers}
    told = json.dumps(results, ensure_ascii=False)
    assert list(results) == [*range(1, 12)]
    assert results[4] is None
    assert all(part in told for part in (TEXT, PICTURE, FAILURE, "2025-06-18", "inputSchema", NOTED, f"Find {BOOK}."))


@pytest.mark.process
def test_the_server_tells_of_its_steps_only_to_whoever_asks(tmp_path: Path) -> None:
    asked = _asked(tmp_path, _call(1, "steps", _meta={"progressToken": 7}))
    assert [answer.get("method") for answer in asked] == [*["notifications/progress"] * STEPS, None]
    assert len(_asked(tmp_path, _call(1, "steps"))) == 1


@pytest.mark.process
def test_the_server_notes_whether_its_slow_tool_was_cancelled_or_abandoned(tmp_path: Path) -> None:
    def cancel(number: int) -> JsonObject:
        return {"method": "notifications/cancelled", "params": {"requestId": number}}

    assert _asked(tmp_path, _call(1, "slow"), cancel(2), cancel(1), cancel(1)) == []
    assert (tmp_path / "journal").read_text("utf-8").split() == ORDERLY
    assert _asked(tmp_path, _call(1, "slow")) == []
    assert (tmp_path / "journal").read_text("utf-8").split() == [*ORDERLY, "started", "abandoned"]


def test_a_report_of_what_was_served_has_nothing_wrong() -> None:
    findings = judge_client(GOOD, lambda: ORDERLY)
    assert [finding.wrong for finding in findings] == [""] * 9
    assert {finding.what for finding in findings} == {*Visit.looked_at, "after"}
    assert not any(finding.wrong for finding in judge_client(replace(GOOD, steps=None), lambda: ORDERLY))


@pytest.mark.parametrize(
    ("report", "what"),
    [
        (replace(GOOD, tools=GOOD.tools[1:]), "list"),
        (replace(GOOD, echoed="Gr\u00c3\u00bc\u00c3\u0178e"), "call"),
        (replace(GOOD, image=("image/jpeg", PICTURE)), "image"),
        (replace(GOOD, image=("image/png", PICTURE[:-4])), "image"),
        (replace(GOOD, resource="another note"), "resource"),
        (replace(GOOD, prompt="Find None."), "prompt"),
        (replace(GOOD, error="something went wrong"), "error"),
        (replace(GOOD, steps=0), "progress"),
        (replace(GOOD, uncancelled="it ended: done"), "cancel"),
        (replace(GOOD, after=""), "after"),
    ],
)
def test_the_judge_finds_the_one_thing_that_is_wrong(report: Report, what: str) -> None:
    wrong = [finding.what for finding in judge_client(report, lambda: ORDERLY) if finding.wrong]
    assert wrong == [what]


@pytest.mark.parametrize(
    ("happened", "told"),
    [
        ([], "never called"),
        (["started"], "was started"),
        (["started", "abandoned"], "started and abandoned"),
        ([*ORDERLY, *ORDERLY], "started and cancelled and started and cancelled"),
    ],
)
def test_a_tool_that_was_not_cancelled_counts_as_such_whatever_the_client_says(
    monkeypatch: pytest.MonkeyPatch, happened: list[str], told: str
) -> None:
    monkeypatch.setattr("outside.clients.report._CANCEL_S", 0.0)
    [finding] = [found for found in judge_client(GOOD, lambda: happened) if found.what == "cancel"]
    assert told in finding.wrong


def test_a_cancellation_that_arrives_a_moment_later_is_waited_for() -> None:
    seen = iter([["started"], ["started"]])
    findings = judge_client(GOOD, lambda: next(seen, ORDERLY))
    assert not any(finding.wrong for finding in findings)


def test_a_report_is_read_as_a_program_wrote_it() -> None:
    written: JsonObject = {
        "protocol": GOOD.protocol,
        "tools": [*GOOD.tools],
        "echoed": TEXT,
        "image": [*GOOD.image],
        "resource": NOTED,
        "prompt": f"Find {BOOK}.",
        "error": FAILURE,
        "steps": STEPS,
        "uncancelled": "",
        "after": TEXT,
    }
    assert read_report(written) == GOOD
    with pytest.raises(NoReport):
        read_report([])
    empty = read_report({})
    wrong = [finding.what for finding in judge_client(empty, lambda: ORDERLY) if finding.wrong]
    assert wrong == ["list", "call", "image", "resource", "prompt", "error", "cancel", "after"]


def test_a_result_counts_whatever_the_exit_code_is(tmp_path: Path) -> None:
    runs = Runs(_subject(tmp_path), lambda: None)
    assert runs.result(*_python("print('{\"a\": 1}'); exit(5)")) == {"a": 1}
    with pytest.raises(NoReport, match=r"ended with 3: .*out of ink"):
        runs.result(*_python("import sys; sys.stderr.write('out of ink'); exit(3)"))


def test_a_command_runs_in_the_empty_home_and_without_the_callers_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/elsewhere")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    runs = Runs(_subject(tmp_path), lambda: None)
    told = runs.result(*_python("import json, os; print(json.dumps(dict(os.environ)))"))
    assert isinstance(told, dict)
    assert told["HOME"] == str(tmp_path / "home")
    assert not {"XDG_STATE_HOME", "OPENAI_API_KEY"} & told.keys()


def test_a_command_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outside.clients.running._RUN_S", 0.0)
    looks: list[None] = []
    runs = Runs(_subject(tmp_path), lambda: looks.append(None))
    with pytest.raises(NoReport, match="does not end"):
        runs.result(*_python("import time; time.sleep(60)"))
    assert looks


def test_an_interrupt_comes_once_the_slow_tool_runs(tmp_path: Path) -> None:
    subject = _subject(tmp_path)
    looked: list[list[str]] = []
    text = (
        "import time\n"
        "try:\n"
        f"    open({str(subject.journal)!r}, 'a').write('started\\n')\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        f"    open({str(subject.journal)!r}, 'a').write('cancelled\\n')\n"
    )
    assert Runs(subject, lambda: looked.append(subject.happened())).interrupted(*_python(text)) == ""
    assert looked[0] == ["started"]
    assert subject.happened() == ORDERLY


def test_a_client_that_ends_before_the_slow_tool_runs_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NoReport, match="never called: no such tool"):
        Runs(_subject(tmp_path), lambda: None).interrupted(*_python("print('no such tool')"))


def test_a_subject_is_an_empty_home_and_a_file_with_one_server(tmp_path: Path) -> None:
    subject = _subject(tmp_path, "indus", "serve")
    program, serve, option, rows = subject.command
    assert (program, serve, option) == ("indus", "serve", "--mcp")
    with open(rows, encoding="utf-8") as file:
        assert list(json.load(file)["mcpServers"]) == ["shelf"]
    assert list(subject.home.iterdir()) == []


def test_a_program_is_given_either_a_command_or_an_address(tmp_path: Path) -> None:
    subject = _subject(tmp_path)
    command = Target(subject).as_json()
    address = Target(subject, "http://127.0.0.1:1/mcp", "opens-it").as_json()
    assert "url" not in command
    assert command["command"] == [*subject.command]
    assert "command" not in address
    assert address["headers"] == {"Authorization": "Bearer opens-it"}


def test_a_server_that_does_not_come_to_listen_says_why(tmp_path: Path) -> None:
    subject = _subject(tmp_path, *_python("import sys; sys.exit('no port for you')"))
    with pytest.raises(CannotServe, match="no port for you"), listening(subject):
        pytest.fail("nobody listens")


_LISTENS = """
import os, pathlib, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit({code}))
token = pathlib.Path.home() / ".local/state/indus/serve-token"
token.parent.mkdir(parents=True)
token.write_text("made-up\\n")
host, port = sys.argv[-1].split(":")
with socket.create_server((host, int(port))) as server:
    while True:
        server.accept()[0].close()
"""


def test_a_server_is_opened_by_the_token_that_it_made_and_told_to_end(tmp_path: Path) -> None:
    subject = _subject(tmp_path, *_python(_LISTENS.format(code=0)))
    with listening(subject) as target:
        assert target.token == "made-up"
        assert target.url.startswith("http://127.0.0.1:")
        assert target.transport == "http"


def test_a_server_that_ends_badly_is_a_failure(tmp_path: Path) -> None:
    subject = _subject(tmp_path, *_python(_LISTENS.format(code=3)))
    with pytest.raises(CannotServe, match="ended with 3"), listening(subject):
        pass


_COMMAND = """
import json, pathlib, sys, time
words, wrap, failed = sys.argv[1:], {wrap!r}, {failed!r}
tool = next((word[7:] for word in words if word.startswith("shelf__")), "")
given = next((json.loads(word) for word in words if word.startswith("{{")), {{}})
content = {{"type": "text", "text": given.get("text", {failure!r})}}
if tool == "picture":
    content = {{"type": "image", "mimeType": "image/png", "data": {picture!r}}}
result = {{"content": [content], failed: tool == "fail"}}
message = {{"content": {{"type": "text", "text": {prompt!r}}}}}
if {resource!r} in words:
    result = {{"contents": [{{"text": {noted!r}}}]}}
elif tool == "find":
    result = {{"messages": [message]}}
elif "initialize" in words:
    result = {{"protocolVersion": "2026-07-28"}}
elif not tool:
    result = {{"tools": [{{"name": name}} for name in {names!r}]}}
journal = pathlib.Path({journal!r})
if tool == "slow":
    try:
        journal.write_text("started")
        time.sleep(60)
    except KeyboardInterrupt:
        journal.write_text("started cancelled")
        sys.exit(130)
print(json.dumps({{"result": result}} if wrap else result))
"""


def _command(subject: Subject, *, wrap: bool, failed: str) -> list[str]:
    """Give a command that answers as those of others do: with `wrap`, inside a `result`."""
    known = {"failure": FAILURE, "picture": PICTURE, "names": GOOD.tools}
    known |= {"resource": RESOURCE, "noted": NOTED, "prompt": f"Find {BOOK}."}
    text = _COMMAND.format(wrap=wrap, failed=failed, journal=str(subject.journal), **known)
    path = subject.journal.with_name("command.py")
    # The first line of a script cannot name an interpreter whose path has a blank in it.
    path.write_text(f"#!{os.path.realpath(sys.executable)}\n{text}", "utf-8")
    path.chmod(0o700)
    return [str(path)]


@pytest.mark.process
@pytest.mark.parametrize("url", ["", "http://127.0.0.1:1/mcp"])
def test_a_command_is_run_once_for_everything_that_is_asked(tmp_path: Path, url: str) -> None:
    subject = _subject(tmp_path)
    target, runs = Target(subject, url, "opens-it"), Runs(subject, lambda: None)
    inspector = Inspector(_command(subject, wrap=True, failed="isError"), "modern")
    told = replace(GOOD, protocol="2026-07-28", steps=None)
    assert inspector.visit(target, runs) == told
    assert subject.happened() == ORDERLY
    subject.journal.write_text("", "utf-8")
    fastmcp = FastMcp(_command(subject, wrap=False, failed="is_error")[0])
    assert fastmcp.visit(target, runs) == replace(told, protocol="")
    assert subject.happened() == ORDERLY


@pytest.mark.process
def test_a_failure_that_a_command_does_not_know_for_one_is_none(tmp_path: Path) -> None:
    subject = _subject(tmp_path)
    fastmcp = FastMcp(_command(subject, wrap=False, failed="another")[0])
    assert fastmcp.visit(Target(subject), Runs(subject, lambda: None)).error == ""


def test_a_command_that_writes_something_else_is_no_visit(tmp_path: Path) -> None:
    subject = _subject(tmp_path)
    with pytest.raises(NoReport, match="is no result"):
        Inspector(_python("print(1)"), "modern").visit(Target(subject), Runs(subject, lambda: None))


def test_a_program_is_told_where_to_go_and_reports_by_itself(tmp_path: Path) -> None:
    subject = _subject(tmp_path)
    text = (
        "import json, sys; asked = json.loads(sys.argv[1]); "
        "print(json.dumps({'echoed': asked['text'], 'protocol': asked['era'], "
        "'error': asked['journal']}))"
    )
    report = Program(_python(text), {"era": "auto"}).visit(Target(subject), Runs(subject, lambda: None))
    assert (report.echoed, report.protocol, report.error) == (TEXT, "auto", str(subject.journal))


def test_the_page_shows_every_client_over_both_transports(tmp_path: Path) -> None:
    page = (ROOT / "docs/evidence/clients.md").read_text("utf-8")
    table = page.partition("<!-- clients -->")[2].partition("<!-- end of clients -->")[0]
    listed = clients(tmp_path, tmp_path, tmp_path, tmp_path)
    for how in ("stdio", "http"):
        for client in listed:
            assert f"| {client.name} | {how} |" in table


def test_every_client_is_there_and_in_both_eras_where_it_can_choose(tmp_path: Path) -> None:
    listed = clients(tmp_path / "node", tmp_path / "npm", tmp_path / "new", tmp_path / "old")
    inspectors = [client.way for client in listed if isinstance(client.way, Inspector)]
    assert {way.era for way in inspectors} == {"legacy", "modern"}
    assert len({client.name for client in listed}) == len(listed) == 7


class _Silent:
    def visit(self, target: Target, runs: Runs) -> Report:
        raise NoReport("it said nothing")


class _Content:
    def visit(self, target: Target, runs: Runs) -> Report:
        target.subject.journal.write_text("\n".join(ORDERLY), "utf-8")
        return replace(GOOD, steps=None)


def test_a_visit_tells_what_was_seen_and_what_is_missing() -> None:
    done = visit(Client("somebody", _Content(), "a bell"), "stdio")
    assert done.wrong == []
    assert done.cells == ("somebody", "stdio", "2025-11-25", *["yes"] * 6, "-", "yes", "a bell")


def test_a_visit_that_fails_says_why_and_shows_empty_cells() -> None:
    done = visit(Client("somebody", _Silent(), "a bell"), "stdio")
    assert done.wrong == ["it said nothing"]
    assert set(done.cells[2:-1]) == {""}


@pytest.mark.parametrize("name", ["legacy.txt", "modern.txt", "package.json", "package-lock.json"])
def test_the_pins_of_the_clients_hold_no_address(name: str) -> None:
    text = (PINS / name).read_text("utf-8")
    assert "://" not in text
    assert '"resolved"' not in text


def test_every_package_of_the_clients_is_pinned_by_a_hash() -> None:
    lock = json.loads((PINS / "package-lock.json").read_text("utf-8"))
    assert [path for path, held in lock["packages"].items() if path and "integrity" not in held] == []
    for name in ("legacy.txt", "modern.txt"):
        lines = (PINS / name).read_text("utf-8").splitlines()
        named = [line for line in lines if "==" in line]
        assert named
        assert all(line.endswith("\\") for line in named)


@pytest.mark.parametrize(("way", "code"), [(_Content(), 0), (_Silent(), 1)])
def test_the_exit_code_says_whether_all_went_well(
    way: _Content | _Silent, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed() -> list[Client]:
        return [Client("somebody", way, "a bell"), Client("another", _Silent(), "a bell")]

    monkeypatch.setattr(command, "_install_clients", installed)
    monkeypatch.setattr(command, "_agents", list[Agent])
    monkeypatch.setattr(command, "TRANSPORTS", ("stdio",))
    assert command.main(["--only", "somebody"]) == code


def test_nobody_who_visits_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_install_clients", list[Client])
    monkeypatch.setattr(command, "_agents", list[Agent])
    assert command.main(["--only", "nobody"]) == 1


def test_what_cannot_be_installed_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_node", lambda: None)
    assert command.main([]) == 2
    assert "no node" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "present", "starts", "wrong"),
    [
        ("indus: /x/indus serve - ✔ Connected", True, True, ""),
        ("indus: /x/indus serve - ✗ Failed to connect", True, True, "not connected"),
        ("✗ indus: serve (stdio) - Disconnected", True, True, "not connected"),
        ("Name Command\nindus /x/indus enabled", True, False, ""),
        ("Name Command\nother /x enabled", True, False, "not in the list"),
        ("other: x - ✔ Connected", False, True, ""),
        ("indus: x - ✔ Connected", False, True, "still there"),
        ("✗ files: npx - Disconnected", None, True, ""),
        ("", None, True, "not in the list"),
    ],
)
def test_the_list_of_an_agent_is_judged(said: str, present: bool | None, starts: bool, wrong: str) -> None:
    name = "files" if present is None else "indus"
    found = judge_list(said, name, present=present, starts=starts)
    assert (wrong in found) if wrong else found == ""


def test_agents_are_those_that_are_pinned(tmp_path: Path) -> None:
    known = {agent.client for agent in agents(tmp_path / "node", tmp_path)}
    assert known == {"claude", "codex", "gemini"}  # opencode is there where its program is
    lock = json.loads((PINS / "coding/package-lock.json").read_text("utf-8"))
    assert not [one for one in lock["packages"].values() if "resolved" in one]
    assert Outcome("A", "1", {"imported": "x"}).cells == ("A", "1", "no", "yes", "yes", "yes")
