"""`indus mcp`: servers in sandboxes, as rows, in questions, and compared by doctor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.commands.helpers import configured, one_line, project_file, row, servers_of, told, user_file
from tests.support.sandboxes import skip_without
from tests.support.scripts import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process
STRICT = "strict: reads system programs, its own package and the workspace; writes to a home of its own; no network"


def test_a_profile_is_added_shown_and_asked_about(tmp_path: Path) -> None:
    words = ("--no-check", "clock", "--", "clock-server", "--utc")
    assert run("mcp", "add", "--sandbox", "strict", *words, cwd=tmp_path).returncode == 0
    assert servers_of(user_file())["clock"]["sandbox"] == "strict"
    assert "\nsandbox: strict\n" in run("mcp", "get", "clock", cwd=tmp_path).stdout
    assert told("mcp", "get", "clock", "--json", cwd=tmp_path)["sandbox"] == "strict"
    one_line(run("mcp", "add", "--sandbox", "tight", *words, cwd=tmp_path), "'tight' is not one of")
    wider = {"profile": "strict", "hosts": ["api.example"], "write": ["~/out"]}
    configured(project_file(tmp_path), {"a": row(sandbox="strict"), "b": row(sandbox=wider)})
    asked = run("mcp", "trust", "--yes", "a", "b", cwd=tmp_path)
    assert f"sandbox: {STRICT}\n" in asked.stdout + asked.stderr
    assert "also writes ~/out; reaches api.example:443\n" in asked.stdout + asked.stderr


def test_a_sandbox_that_is_not_understood_keeps_the_server_from_starting(tmp_path: Path) -> None:
    configured(user_file(), {"a": row(sandbox={"hosts": "api.example"}), "b": row(sandbox="off")})
    listed = run("mcp", "list", "--json", cwd=tmp_path)
    assert {one["name"] for one in json.loads(listed.stdout)["servers"] if one["phase"] == "ready"} == {"b"}
    assert "the hosts of its sandbox must be a list of strings" in listed.stderr


def test_doctor_compares_the_profiles(tmp_path: Path) -> None:
    skip_without("bubblewrap")
    configured(user_file(), {"a": row(), "gone": {"command": "no-such-command"}})
    found = run("mcp", "doctor", "a", "--sandbox", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == ["off", "standard", "strict"]
    assert lines[0].partition(": ")[2] == lines[1].partition(": ")[2] == lines[2].partition(": ")[2]
    assert lines[3].startswith('Put "sandbox": "strict" into its row.')
    failed = run("mcp", "doctor", "gone", "--sandbox", "--json", cwd=tmp_path)
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["fits"] == "off"
    one_line(run("mcp", "doctor", "--sandbox", cwd=tmp_path), "--sandbox requires the NAME")
