"""`indus mcp list`, `get`, `doctor` and `logs`: how a server is, why, and what to do about it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.commands.helpers import configured, faulty, one_line, project_file, row, told, user_file
from tests.support.scripts import run
from tests.support.servers import HONEST_TOOLS, diary
from tests.support.waiting import is_alive

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process


def several(cwd: Path) -> dict[str, Any]:
    """Configure a server for every state there is."""
    configured(
        user_file(),
        {
            "good": row(required=True, start="lazy"),
            "missing": {"command": "no-such-command"},
            "dies": faulty("exits"),
            "mute": faulty("mute", startup_timeout_sec=0.3),
            "version": faulty("version"),
            "away": {"url": "http://u:p4ss@127.0.0.1:9/mcp?key=s3cret"},
            "open": {"command": "x", "args": ["${NOT_SET_HERE}"]},
            "off": row(enabled=False),
        },
    )
    configured(project_file(cwd), {"theirs": row()})
    return {"cwd": cwd}


def test_every_server_is_listed_with_its_phase_and_the_reason(tmp_path: Path) -> None:
    done = run("mcp", "list", "--json", **several(tmp_path))
    listed = {one["name"]: one for one in json.loads(done.stdout)["servers"]}
    phases = {name: one["phase"] for name, one in listed.items()}
    assert phases == {
        "theirs": "untrusted",
        "good": "ready",
        "missing": "faulted",
        "dies": "faulted",
        "mute": "faulted",
        "version": "faulted",
        "away": "faulted",
        "open": "unresolved",
        "off": "disabled",
    }
    assert listed["good"]["tools"] == len(HONEST_TOOLS)
    assert (listed["good"]["required"], listed["good"]["start"]) == (True, "lazy")
    assert listed["missing"]["fault"] == {"kind": "spawn_failed", "reason": "not_found"}
    assert "was not found" in listed["missing"]["message"]
    assert "API_KEY is missing" in listed["dies"]["message"]
    assert listed["mute"]["fault"]["kind"] == "timeout"
    assert listed["open"]["message"] == "not started: the variable NOT_SET_HERE is not set"
    assert "indus mcp trust theirs" in listed["theirs"]["message"]
    off = {
        "transport": None,
        "sandbox": None,
        "labels": None,
        "phase": "disabled",
        "tools": None,
        "enabled": False,
        "required": False,
        "start": None,
    }
    more: dict[str, Any] = {"fault": None, "message": "switched off: indus mcp enable off", "disabled": []}
    more["findings"] = []
    assert listed["off"] == {"name": "off", "scope": "user", "file": str(user_file()), **off, **more}
    assert "s3cret" not in done.stdout + done.stderr
    assert "p4ss" not in done.stdout + done.stderr


def test_without_a_check_nothing_is_started_and_the_last_count_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"honest": row("--log", log)})
    plain = run("mcp", "list", "--no-check", cwd=tmp_path)
    assert plain.stdout.splitlines()[1].split() == ["honest", "stdio", "-", "-", "user"]
    assert not log.exists()
    run("mcp", cwd=tmp_path)
    assert len(diary(log, "start")) == 1
    listed = told("mcp", "list", "--no-check", "--json", cwd=tmp_path)["servers"]
    assert listed[0]["tools"] == len(HONEST_TOOLS)
    assert told("mcp", "get", "honest", "--json", cwd=tmp_path)["tools"] == len(HONEST_TOOLS)
    assert len(diary(log, "start")) == 1


def test_no_servers_is_said_with_the_way_to_add_one(tmp_path: Path) -> None:
    assert "indus mcp add NAME" in run("mcp", "list", cwd=tmp_path).stdout
    assert told("mcp", "list", "--json", cwd=tmp_path) == {"servers": []}
    assert "indus mcp add NAME" in run("mcp", "doctor", cwd=tmp_path).stdout


def test_files_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    project_file(tmp_path).parent.mkdir()
    project_file(tmp_path).write_text("{", encoding="utf-8")
    done = run("mcp", "list", cwd=tmp_path)
    assert done.returncode == 0
    assert "skipped: invalid JSON" in done.stderr


def test_a_file_or_a_folder_can_be_named(tmp_path: Path) -> None:
    file = configured(tmp_path / "s.json", {"given": row(), "off": row(disabled=True)})
    folder = tmp_path / "other"
    configured(project_file(folder), {"theirs": row(), "gone": row(enabled=False)})
    words = ("mcp", "list", "--no-check", "--json", "--mcp", f"{file},{folder}")
    listed = told(*words, cwd=tmp_path)["servers"]
    assert {one["name"]: one["phase"] for one in listed} == {
        "given": "unchecked",
        "theirs": "untrusted",
        "off": "disabled",
        "gone": "disabled",
    }


def test_get_shows_everything_but_the_values_of_secrets(tmp_path: Path) -> None:
    configured(
        user_file(),
        {
            "s": {"command": "a\nb", "args": ["x\x1b[2J"], "env": {"TOKEN": "s3cret"}},
            "r": {
                "url": "https://u:p4ss@h/mcp?key=s3cret",
                "headers": {"Authorization": "Bearer s3cret"},
                "include_tools": ["a"],
            },
        },
    )
    done = run("mcp", "get", "s", cwd=tmp_path)
    assert 'command: "a\\nb"' in done.stdout
    assert 'args: "x\\u001b[2J"' in done.stdout
    assert "env: TOKEN\n" in done.stdout
    shown = run("mcp", "get", "r", "--json", cwd=tmp_path)
    facts = json.loads(shown.stdout)
    assert facts["headers"] == ["Authorization"]
    assert facts["includeTools"] == ["a"]
    for text in (done.stdout, shown.stdout, run("mcp", "get", "r", cwd=tmp_path).stdout):
        assert "s3cret" not in text
        assert "p4ss" not in text


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["get"], ["Missing argument 'NAME'"]),
        (["get", "god"], ["There is no server 'god'", "Did you mean 'good'?"]),
        (["get", "a\nb"], ["'a\\nb'"]),
        (["list", "--mcp", "nowhere"], ["--mcp nowhere: no such file"]),
        (["list", "extra"], ["unexpected extra argument (extra)"]),
        (["doctor", "nobody"], ["There is no server 'nobody'"]),
        (["doctor", "--mcp", "nowhere"], ["no such file"]),
        (["logs"], ["Missing argument 'NAME'"]),
        (["logs", "nobody"], ["There is no server 'nobody'"]),
        (["logs", "good", "--limit", "0"], ["0 is not in the range"]),
        (["logs", "good", "--limit", "many"], ["'many' is not a valid integer"]),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, words: list[str], parts: list[str]) -> None:
    configured(user_file(), {"good": row()})
    one_line(run("mcp", *words, cwd=tmp_path), *parts)


def test_the_doctor_says_of_each_server_what_is_the_matter_and_what_to_do(tmp_path: Path) -> None:
    done = run("mcp", "doctor", **several(tmp_path))
    assert done.returncode == 1
    parts = _parts(done.stdout)
    assert parts["good"].startswith("✓")
    assert parts["good"].endswith(f"   {len(HONEST_TOOLS)} tools")
    assert "→ install the command" in parts["missing"]
    assert re.search(r"✗ +dies +exited with code .*\n +reading settings\n +FATAL: API_KEY is missing\n", parts["dies"])
    assert "→ it needs the variable API_KEY: add it to its row" in parts["dies"]
    assert "startup_timeout_sec" in parts["mute"]
    assert "→ it uses another version" in parts["version"]
    assert "→ " in parts["away"]
    assert "the variable NOT_SET_HERE is not set" in parts["open"]
    assert re.search(r"○ +theirs +not trusted\n", parts["theirs"])
    assert "→ look at it and consent to it: indus mcp trust theirs" in parts["theirs"]
    assert f"{len(parts)} servers, {len(parts) - 1} problems. Details of one: indus mcp doctor NAME\n" in done.stdout
    assert "s3cret" not in done.stdout + done.stderr


def test_the_doctor_has_details_of_one_server(tmp_path: Path) -> None:
    there = several(tmp_path)
    text = run("mcp", "doctor", "good", **there).stdout
    assert f"command: {sys.executable}: {os.path.abspath(sys.executable)}" in text
    assert "state: ready" in text
    assert "protocol: 2025-11-25, server: honest 1.0" in text
    assert f"tools: {len(HONEST_TOOLS)}" in text
    assert "latency: " in text
    text = run("mcp", "doctor", "dies", **there).stdout
    assert "stderr: reading settings" in text
    assert "stderr: FATAL: API_KEY is missing" in text
    assert "Fix: it needs the variable API_KEY" in text
    text = run("mcp", "doctor", "away", **there).stdout
    assert "address: http://…@127.0.0.1:9/mcp?…" in text
    assert "s3cret" not in text


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://mcp.invalid/mcp", True),
        ("HTTP://10.255.255.1:1/mcp", True),
        ("https://mcp.invalid/mcp", False),
        ("http://127.0.0.1:9/mcp", False),
        ("http://localhost:9/mcp", False),
    ],
)
def test_the_doctor_names_an_address_that_is_not_encrypted(tmp_path: Path, url: str, warned: bool) -> None:
    configured(project_file(tmp_path), {"far": {"url": url}})  # without consent nobody connects
    assert ("not encrypted" in run("mcp", "doctor", "far", cwd=tmp_path).stdout) is warned


def _parts(text: str) -> dict[str, str]:
    """Split the summary by server."""
    parts: dict[str, str] = {}
    name = ""
    for line in text.partition("\n8 servers")[0].splitlines():
        name = line.split()[1] if line[0] in "✓✗○" else name
        parts[name] = f"{parts[name]}\n{line}" if name in parts else line
    return parts


def test_the_doctor_is_content_with_one_that_is_well(tmp_path: Path) -> None:
    configured(user_file(), {"good": row(), "bad": {"command": "no-such-command"}})
    (found,) = told("mcp", "doctor", "good", "--json", cwd=tmp_path)["servers"]
    assert (found["handshake"], found["remedy"], found["era"]) == ("done", None, "legacy")
    assert found["latencyMs"] >= 0
    configured(user_file(), {"new": row("--era", "modern")})
    (found,) = told("mcp", "doctor", "new", "--json", cwd=tmp_path)["servers"]
    assert (found["era"], found["version"]) == ("modern", "2026-07-28")


def test_a_server_that_cannot_list_is_told(tmp_path: Path) -> None:
    configured(user_file(), {"odd": faulty("lists", "no-list"), "dirty": faulty("dirty")})
    done = run("mcp", "doctor", cwd=tmp_path)
    assert "\x1b" not in done.stdout + done.stderr
    assert "✗  odd    its tools could not be listed" in done.stdout
    assert "○  dirty" in done.stdout


def test_a_command_beside_its_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    script = tmp_path / "here" / "serve"
    script.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    script.chmod(0o755)
    configured(user_file(), {"s": {"command": "./serve", "cwd": str(tmp_path / "here")}})
    done = run("mcp", "doctor", "s", cwd=tmp_path)
    assert f"command: ./serve: {script}" in done.stdout


_LEAVES = """
import os, subprocess, sys
from indusagi.capabilities.leftovers import write_receipt
mark = "left-" + os.urandom(8).hex()
null = subprocess.DEVNULL
job = subprocess.Popen(
    ["sleep", "60"], stdin=null, stdout=null, stderr=null,
    env={"INDUS_CHILD": mark}, start_new_session=True,
)
write_receipt(mark, job.pid, "sleep 60", "/")
print(job.pid, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="receipts need start times of processes")
def test_jobs_that_a_crashed_run_left_are_told_and_can_be_ended(tmp_path: Path) -> None:
    left = subprocess.run([sys.executable, "-c", _LEAVES], capture_output=True, text=True, check=True, timeout=60)
    pid = int(left.stdout)
    try:
        done = run("mcp", "doctor", cwd=tmp_path)
        assert done.returncode == 1
        assert f"left running by a crashed run: process {pid}, sleep 60" in done.stdout
        assert "indus mcp doctor --end-leftovers" in done.stdout
        done = run("mcp", "doctor", "--json", cwd=tmp_path)
        assert json.loads(done.stdout)["leftovers"][0]["pid"] == pid
        ended = run("mcp", "doctor", "--end-leftovers", cwd=tmp_path)
        assert (ended.returncode, f"ended: process {pid}" in ended.stdout) == (0, True)
        assert run("mcp", "doctor", cwd=tmp_path).returncode == 0
        assert not is_alive(pid)
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_logs_show_what_a_server_said_before_it_failed(tmp_path: Path) -> None:
    secret = "s3cret-s3cret-s3cret"
    fatal = f"FATAL: bad token {secret}"
    configured(user_file(), {"dies": faulty("exits", 3, fatal, env={"TOKEN": secret})})
    assert run("mcp", "list", cwd=tmp_path).returncode == 0
    done = run("mcp", "logs", "dies", cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert any(line.endswith("fault  stderr  reading settings") for line in lines)
    assert any(line.endswith("fault  stderr  FATAL: bad token …") for line in lines)
    assert any("fault  spawn_failed" in line for line in lines)
    assert secret not in done.stdout
    entries = told("mcp", "logs", "dies", "--json", "--limit", "1", cwd=tmp_path)["entries"]
    assert [(one["event"], one["subject"]) for one in entries] == [("fault", "stderr")]


def test_logs_of_a_server_that_never_ran_are_empty(tmp_path: Path) -> None:
    configured(user_file(), {"good": row()})
    assert "Nothing has happened at server 'good' yet." in run("mcp", "logs", "good", cwd=tmp_path).stdout
    run("mcp", "list", cwd=tmp_path)
    run("mcp", "list", cwd=tmp_path)
    done = run("mcp", "logs", "good", "--limit", "1", cwd=tmp_path)
    assert done.stdout.rstrip().endswith("ready")
