"""`indus tools`: what there is, where from, at what cost, and without starting what is known."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from tests.commands.helpers import PYTHON, configured, faulty, one_line, project_file, row, told, user_file
from tests.support.scripts import run
from tests.support.servers import HONEST_TOOLS, SERVERS, diary

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def test_the_native_tools_are_listed_with_their_profile_and_their_cost(tmp_path: Path) -> None:
    done = run("tools", cwd=tmp_path)
    assert done.returncode == 0
    summary, tools = ([line.split() for line in part.splitlines()] for part in done.stdout.split("\n\n"))
    assert tools[0] == ["NAME", "SOURCE", "PROFILE", "TOKENS"]
    assert tools[1][:3] == ["read", "native", "read-only"]
    assert int(tools[1][3]) > 50
    total = sum(int(line[3]) for line in tools[1:])
    assert summary[-1] == ["all", str(len(tools) - 1), str(total)]
    assert [line.split() for line in run("tools", "native", cwd=tmp_path).stdout.splitlines()] == tools


def test_the_cost_is_a_quarter_of_the_bytes_a_model_is_told(tmp_path: Path) -> None:
    shown = told("tools", "show", "read", "--json", cwd=tmp_path)
    said = {"name": shown["name"], "description": shown["description"], "parameters": shown["parameters"]}
    size = len(json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode())
    assert shown["tokens"] == -(-size // 4)


def test_only_the_tools_that_were_asked_for_are_listed(tmp_path: Path) -> None:
    listed = told("tools", "--json", "--tools", "grep,web_fetch", cwd=tmp_path)
    assert [one["name"] for one in listed["tools"]] == ["grep", "webfetch"]
    none = told("tools", "list", "--no-tools", "--json", cwd=tmp_path)
    assert none["total"] == {"tools": 0, "tokens": 0}


def test_a_server_is_asked_once_and_known_from_then_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"many": row("--tools", 500, "--log", log)})
    first = told("tools", "--json", cwd=tmp_path)
    assert [one["state"] for one in first["sources"]] == ["built in", "asked"]
    assert len(diary(log, "start")) == 1
    second = told("tools", "--json", cwd=tmp_path)
    assert [one["state"] for one in second["sources"]] == ["built in", "known"]
    assert len(diary(log, "start")) == 1
    assert first["tools"] == second["tools"]
    cost = second["sources"][1]
    assert cost["tools"] == len(HONEST_TOOLS) + 500
    assert cost["tokens"] == sum(t["tokens"] for t in second["tools"] if t["source"] == "many")
    again = run("tools", "show", "many__tool_499", cwd=tmp_path)
    assert "source: many, profile: none" in again.stdout
    assert len(diary(log, "start")) == 1


def test_with_no_check_nothing_is_started_and_it_is_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"honest": row("--log", log)})
    done = run("tools", "--no-check", cwd=tmp_path)
    assert done.returncode == 0
    assert "honest  -" in done.stdout
    assert "it was never started (indus tools starts it once)" in done.stderr
    assert not log.exists()


def test_servers_that_are_not_there_are_told_and_the_others_listed(tmp_path: Path) -> None:
    configured(
        user_file(),
        {
            "bad": {"command": "no-such-command"},
            "dies": faulty("exits"),
            "open": {"command": "x", "env": {"K": "${NOT_SET_HERE}"}},
            "good": row(),
        },
    )
    configured(project_file(tmp_path), {"theirs": row()})
    done = run("tools", "--json", cwd=tmp_path)
    listed = json.loads(done.stdout)
    states = {one["name"]: one["state"] for one in listed["sources"]}
    assert states == {
        "native": "built in",
        "good": "asked",
        "bad": "faulted",
        "dies": "faulted",
        "open": "unresolved",
        "theirs": "untrusted",
    }
    assert "indus: server 'bad': the command 'no-such-command' was not found" in done.stderr
    assert "(indus mcp doctor bad)" in done.stderr
    assert "API_KEY is missing" in done.stderr
    assert "(indus mcp trust theirs)" in done.stderr
    assert "the variable NOT_SET_HERE is not set" in done.stderr


_NAMED = f"""
import sys
sys.path.insert(0, {str(SERVERS)!r})
from peer import Peer, text
peer = Peer("named", {{}})
peer.add(sys.argv[1], lambda call: text(sys.argv[1]))
peer.serve()
"""


def test_two_tools_that_come_out_under_one_name_are_told_apart(tmp_path: Path) -> None:
    script = tmp_path / "named.py"
    script.write_text(_NAMED, encoding="utf-8")
    servers = {"a": "b__x", "a__b": "x"}
    rows = {server: {"command": sys.executable, "args": [str(script), tool]} for server, tool in servers.items()}
    configured(user_file(), rows)
    first = told("tools", "--json", cwd=tmp_path)
    found = {one["tool"]: one["name"] for one in first["tools"] if one["source"] != "native"}
    assert found["b__x"] == "a__b__x"
    assert found["x"].startswith("a__b__x_")
    for tool, name in found.items():
        assert run("call", name, cwd=tmp_path).stdout == f"{tool}\n"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["show"], ["Missing argument 'NAME'"]),
        (["show", "grepp"], ["There is no tool 'grepp'. Did you mean 'grep'?"]),
        (["show", "a\x1b[2J"], ["'a\\x1b[2J'"]),
        (["search"], ["Missing argument"]),
        (["search", " ", ""], ["WORDS has no word: say what the tool does, or its name"]),
        (["list", "--tools", "nope"], ["there is no capability 'nope'"]),
        (["--mcp", "nowhere"], ["--mcp nowhere: no such file or directory"]),
        (["--cwd", "nowhere"], ["'nowhere': No such file or directory"]),
        (["extra"], ["There is no server 'extra' (there are: native"]),
        (["lsit"], ["There is no command 'lsit'. Did you mean 'list'?"]),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, words: list[str], parts: list[str]) -> None:
    one_line(run("tools", *words, cwd=tmp_path), *parts)


def test_a_tool_is_shown_with_all_that_a_model_is_told(tmp_path: Path) -> None:
    done = run("tools", "show", "web_fetch", cwd=tmp_path)
    assert done.stdout.startswith("webfetch (Fetch URL)\nsource: native, profile: read-only")
    assert '"type": "object"' in done.stdout
    file = configured(tmp_path / "s.json", {"honest": row()})
    shown = told("tools", "show", "honest__add", "--json", "--mcp", str(file), cwd=tmp_path)
    assert (shown["source"], shown["tool"], shown["readOnly"]) == ("honest", "add", True)
    assert shown["outputSchema"]["required"] == ["sum"]
    assert shown["annotations"]["readOnlyHint"] is True


def test_a_search_ranks_by_words_and_puts_a_name_first(tmp_path: Path) -> None:
    answer = told("tools", "search", "text", "in", "FILES", "--json", "--limit", "3", cwd=tmp_path)
    assert "grep" in [one["name"] for one in answer["tools"]]
    assert (len(answer["tools"]), answer["semantic"]) == (3, False)
    assert answer["leftOut"] > 0
    done = run("tools", "search", "Read", "--limit", "1", cwd=tmp_path)
    assert done.stdout.startswith("read(")
    assert "more match less well" in done.stderr
    most = str(len(run("tools", "search", "Read", "--limit", "50", cwd=tmp_path).stdout.splitlines()) - 1)
    done = run("tools", "search", "Read", "--limit", most, cwd=tmp_path)
    assert "indus: 1 more matches less well: " in done.stderr


def test_a_search_finds_items_of_a_known_server_without_starting_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"honest": row("--log", log)})
    told("tools", "--json", cwd=tmp_path)
    log.unlink()
    found = told("tools", "search", "sum of two numbers", "--server", "honest", "--no-check", "--json", cwd=tmp_path)
    assert [(one["server"], one["kind"]) for one in found["tools"]][:1] == [("honest", "tool")]
    assert found["tools"][0]["signature"].startswith(found["tools"][0]["name"] + "(")
    one_line(run("tools", "search", "sum", "--server", "nope", cwd=tmp_path), "There is no server 'nope'", code=2)
    assert json.loads(run("tools", "search", "sum", "--kind", "prompt", "--json", cwd=tmp_path).stdout)["tools"] == []
    (tmp_path / ".indusvx").mkdir()
    (tmp_path / ".indusvx" / "permissions.json").write_text('{"deny": ["honest__a*", "bash"]}', encoding="utf-8")
    done = run("tools", "search", "honest__add", "add numbers with bash in the background", cwd=tmp_path)
    assert not {"honest__add", "bash", "process"} & {line.partition("(")[0] for line in done.stdout.splitlines()}
    assert "not searched: rules deny them" in done.stderr
    assert not log.exists()


def test_a_search_for_one_kind_finds_nothing_of_another(tmp_path: Path) -> None:
    configured(user_file(), {"lib": {"command": PYTHON[0], "args": [*PYTHON[1:], str(SERVERS / "library.py")]}})
    assert run("prompts", cwd=tmp_path).returncode == run("resources", cwd=tmp_path).returncode == 0

    def search(*words: str) -> list[tuple[str, str]]:
        found = json.loads(run("tools", "search", "--limit", "50", "--json", *words, cwd=tmp_path).stdout)
        return [(one["kind"], one["name"]) for one in found["tools"]]

    assert search("--kind", "prompt", "grep") == []
    assert search("--kind", "prompt", "greet") == [("prompt", "/lib:greet")]
    words = ("book", "note", "today", "log", "text")
    assert {kind for kind, _ in search("--kind", "resource", *words)} == {"resource", "template"}
    assert {kind for kind, _ in search("--kind", "tool", *words)} == {"tool"}
    assert {kind for kind, _ in search("--kind", "tool", "--kind", "resource", *words)} == {
        "tool",
        "resource",
        "template",
    }


def test_tools_that_their_server_calls_read_only_are_listed_and_found_as_such(tmp_path: Path) -> None:
    configured(user_file(), {"honest": row()})
    listed = {one["name"]: one["readOnly"] for one in told("tools", "--json", cwd=tmp_path)["tools"]}
    expected = {"honest__add": True, "honest__echo": False, "read": True, "write": False}
    assert {name: listed[name] for name in expected} == expected
    found = told("tools", "search", "honest__add", "--limit", "1", "--json", cwd=tmp_path)["tools"]
    assert [(one["name"], one["readOnly"]) for one in found] == [("honest__add", True)]
    assert "read-only: yes" in run("tools", "show", "honest__add", cwd=tmp_path).stdout


def test_a_search_at_one_server_starts_no_other_and_is_silent_about_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"honest": row(), "other": row("--log", log), "broken": faulty("exit")})
    done = run("tools", "search", "sum of two numbers", "--server", "honest", cwd=tmp_path)
    assert done.stdout.startswith("honest__add(")
    assert "broken" not in done.stderr
    assert not log.exists()


def test_a_search_without_a_hit_is_exit_code_1(tmp_path: Path) -> None:
    one_line(run("tools", "search", "zxqv", cwd=tmp_path), "nothing found among", code=1)
    done = run("tools", "search", "zxqv", "--json", cwd=tmp_path)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["tools"], answer["leftOut"]) == (1, [], 0)


def test_a_search_for_prompts_that_were_never_listed_says_how_they_become_known(tmp_path: Path) -> None:
    done = run("tools", "search", "--kind", "prompt", "triage", cwd=tmp_path)
    assert done.returncode == 1
    assert "found after they were listed once: indus prompts" in done.stderr


def test_a_search_repeats_at_most_a_line_of_its_words(tmp_path: Path) -> None:
    done = run("tools", "search", "x" * 5_000, cwd=tmp_path)
    assert "more characters]" in done.stderr
    assert len(done.stderr) < 400


def test_what_a_server_says_cannot_move_the_cursor(tmp_path: Path) -> None:
    configured(user_file(), {"dirty": faulty("dirty")})
    for words in (("tools",), ("tools", "--json"), ("tools", "search", "e")):
        done = run(*words, cwd=tmp_path)
        assert "\x1b" not in done.stdout + done.stderr
        assert "\u202e" not in done.stdout + done.stderr


def test_finding_1a5_cards_that_models_are_not_shown_say_why(tmp_path: Path) -> None:
    listed = {tool["name"]: tool["missing"] for tool in told("tools", "--json", cwd=tmp_path)["tools"]}
    assert len(listed) == 17
    assert "connector" in listed["saas-action"]
    assert listed["read"] is listed["task"] is None
