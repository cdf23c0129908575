"""`indus mcp learn`, and what a learned server asks for later."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.commands.helpers import PYTHON, configured, project_file, servers_of, told
from tests.support.sandboxes import skip_without
from tests.support.scripts import run
from tests.support.servers import SERVERS

pytestmark = pytest.mark.process
HOST = "api.learned.invalid:443"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A locked project with a server, and a home with notes."""
    skip_without("bubblewrap")
    notes = Path(os.environ["HOME"]) / "notes"
    notes.mkdir()
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "server.py").write_text((SERVERS / "curious.py").read_text("utf-8"))
    command = {"command": PYTHON[0], "args": ["-I", "-S", str(tmp_path / "server.py")], "sandbox": "standard"}
    configured(project_file(folder), {"lib": command})
    run("mcp", "trust", "--yes", "lib", cwd=folder)
    assert run("mcp", "lock", cwd=folder).returncode == 0
    return folder


def locked(folder: Path) -> str:
    """Return the lock file of a project."""
    return (folder / ".indusvx/mcp.lock.json").read_text("utf-8")


def test_a_learned_profile_is_written_and_pinned_after_a_yes(project: Path) -> None:
    asked = run("mcp", "learn", "lib", "--call", "fetch", "{}", cwd=project)
    assert (asked.returncode, servers_of(project_file(project))["lib"]["sandbox"]) == (2, "standard")
    assert HOST not in locked(project)
    facts = told("mcp", "learn", "lib", "--call", "fetch", "{}", "--json", cwd=project)
    assert facts["profile"] == {"profile": "strict", "hosts": [HOST]}
    assert (facts["tools"], facts["fault"]) == (["fetch", "save", "direct", "local", "notes", "key", "run"], None)
    assert facts["calls"][0] == {"tool": "fetch", "arguments": {}, "failure": None}
    digest = facts["digest"]
    words = ("mcp", "learn", "lib", "--call", "fetch", "{}", "--yes", "--digest")
    assert "it has changed since you looked" in run(*words, "0" * 64, cwd=project).stderr
    done = run(*words, digest, cwd=project)
    assert done.returncode == 0, done.stderr
    assert f"  hosts: {HOST}\n" in done.stdout
    assert "Learn again" not in done.stdout
    assert servers_of(project_file(project))["lib"]["sandbox"] == {"profile": "strict", "hosts": [HOST]}
    assert HOST in locked(project)
    assert told("mcp", "list", "--json", cwd=project)["servers"][0]["phase"] == "ready"  # it's still trusted


def test_a_new_host_and_a_new_path_are_drift_until_they_are_approved(project: Path) -> None:
    assert run("mcp", "learn", "lib", "--yes", cwd=project).returncode == 0
    assert servers_of(project_file(project))["lib"]["sandbox"] == {"profile": "strict", "hosts": []}
    run("call", "lib__fetch", cwd=project)
    hidden = run("call", "lib__notes", cwd=project)
    assert hidden.returncode == 1
    remedy = 'in its sandbox, ~/notes is hidden from it (add "~/notes" to "read" of its "sandbox")'
    assert f"indus: server 'lib': {remedy}\n" in hidden.stderr
    drifted = run("mcp", "diff", "lib", cwd=project)
    assert drifted.returncode == 1
    assert f'+    "{HOST}"' in drifted.stdout
    assert '+    "~/notes"' in drifted.stdout
    assert "changed since approved: behaviour" in run("mcp", "list", cwd=project).stdout
    logged = run("mcp", "logs", "lib", cwd=project).stdout
    assert f'the sandbox refused {HOST}; to allow it, add "{HOST}" to "hosts" of its "sandbox"' in logged
    assert 'the sandbox refused ~/notes; to allow it, add "~/notes" to "read" of its "sandbox"' in logged
    assert run("mcp", "approve", "lib", "--yes", cwd=project).returncode == 0
    wider = {"profile": "strict", "read": ["~/notes"], "hosts": [HOST]}
    assert servers_of(project_file(project))["lib"]["sandbox"] == wider
    assert HOST in locked(project)
    assert run("mcp", "diff", "lib", cwd=project).returncode == 0
    assert run("call", "lib__notes", cwd=project).returncode == 0


def test_a_path_that_the_caller_names_is_explained_and_no_drift(project: Path) -> None:
    assert run("mcp", "learn", "lib", "--yes", cwd=project).returncode == 0
    path = Path(os.environ["HOME"]) / "notes"
    called = run("call", "lib__notes", f"path={path}", cwd=project)
    assert "in its sandbox, ~/notes is hidden from it" in called.stderr
    assert run("mcp", "diff", "lib", cwd=project).returncode == 0
