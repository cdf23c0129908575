"""The example addons, in the real program: an audit log and a secret scanner."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.addons import add_project_addon
from tests.support.scripts import ROOT, run

from indusagi.core.app_dirs import state_dir

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.process
# Written in two parts: scanners of repositories look for the whole.
TOKEN = "ghp_" + "a1B2" * 9
KEY = "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE " + "KEY-----"
SECRETS = {
    "GitHub token": TOKEN,
    "private key": KEY,
    "AWS access key": "AKIA" + "ABCDEFGHIJKLMNOP",
    "Slack token": "xoxb-" + "1234567890-abc",
    "API key": "sk-" + "proj-abcdefghijklmnopqrstuv",
    "JSON Web Token": "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0." + "c2lnbmF0dXJlLWhlcmU",
}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name in ("audit_log", "secret_scanner"):
        source = (ROOT / "examples/addons" / f"{name}.py").read_text(encoding="utf-8")
        add_project_addon(tmp_path, name, source)
    return tmp_path


def call(work: Path, tool: str, **arguments: str) -> subprocess.CompletedProcess[str]:
    return run("call", tool, "--json", json.dumps(arguments), cwd=work)


def read_log() -> list[dict[str, object]]:
    path = Path(os.path.join(state_dir(), "addons", "audit_log", "audit.jsonl"))
    assert path.stat().st_mode & 0o777 == 0o600
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("kind", list(SECRETS))
def test_the_scanner_denies_arguments_with_a_secret_and_redacts_results(work: Path, kind: str) -> None:
    secret = SECRETS[kind]
    done = call(work, "write", path="new.txt", content=f"my secret: {secret}")
    assert done.returncode == 1
    expected = f"the addon 'secret_scanner' denies it: its arguments hold what looks like a {kind}"
    assert expected in done.stdout
    assert not (work / "new.txt").exists()
    (work / "secret.txt").write_text(f"before {secret} after", encoding="utf-8")
    done = call(work, "read", path="secret.txt")
    assert done.returncode == 0
    assert f"[redacted: {kind}]" in done.stdout
    assert "[secrets redacted: 1]" in done.stdout
    assert secret.splitlines()[-1] not in done.stdout
    assert "MIIEpAIBAAKCAQEA" not in done.stdout


def test_text_without_secrets_is_unchanged(work: Path) -> None:
    text = "a task-list, a skip-link, ghp_short and eyJ"
    assert call(work, "write", path="plain.txt", content=text).returncode == 0
    assert (work / "plain.txt").read_text(encoding="utf-8") == text
    assert "redacted" not in call(work, "read", path="plain.txt").stdout


def test_the_audit_log_has_every_call_with_outcome_and_duration_and_no_secret(work: Path) -> None:
    call(work, "ls")
    call(work, "write", path="new.txt", content=TOKEN)
    call(work, "read", path="gone.txt")
    rows = read_log()
    assert [(row["tool"], row["outcome"], row["arguments"]) for row in rows] == [
        ("ls", "ok", []),
        ("write", "denied", ["content", "path"]),
        ("read", "not_found", ["path"]),
    ]
    assert all(isinstance(row["duration_ms"], float) and row["call"] == 1 for row in rows)
    assert TOKEN not in json.dumps(rows)


def test_a_call_that_cannot_be_logged_gives_no_result(work: Path) -> None:
    call(work, "ls")
    path = Path(os.path.join(state_dir(), "addons", "audit_log", "audit.jsonl"))
    path.unlink()
    path.mkdir()
    done = call(work, "ls")
    assert done.returncode == 1
    assert "the result of ls is withheld: the required addon 'audit_log' failed after it" in done.stdout


def test_the_addon_of_the_page_denies_a_forced_push(tmp_path: Path) -> None:
    page = (ROOT / "docs/guides/addons.md").read_text(encoding="utf-8")
    add_project_addon(tmp_path, "no_force", page.partition("```python\n")[2].partition("```")[0])
    done = call(tmp_path, "bash", command="git push --force")
    assert done.returncode == 1
    assert "bash was not run: the addon 'no_force' denies it: open a pull request instead" in done.stdout
    assert call(tmp_path, "bash", command="echo pushed").returncode == 0
