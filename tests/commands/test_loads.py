"""What the commands load, and that every one of them explains itself."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.commands.helpers import configured, row, user_file
from tests.support.scripts import run, unmeasured

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

HEAVY = {
    "mcp", "mcp_types", "pydantic", "pydantic_ai", "httpx", "httpx2", "httpcore2", "jsonschema",
    "rich", "prompt_toolkit", "openai", "anthropic", "tree_sitter",
}  # fmt: skip
SCRIPT = """
import json, sys
sys.argv = ["indus", *{words!r}]
from induscode.__main__ import main
code = main()
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["tools"],
        ["tools", "search", "file"],
        ["mcp", "list", "--no-check"],
        ["mcp", "get", "honest"],
        ["mcp", "add", "--no-check", "other", "--", "sh"],
        ["ledger"],
        ["calls"],
        ["calls", "--by", "tool"],
        ["connectors"],
        ["ledger", "verify"],
        ["completion", "bash"],
        ["serve", "--print-config", "claude"],
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_loaded(tmp_path: Path, words: list[str]) -> None:
    log = tmp_path / "log"
    configured(user_file(), {"honest": row("--log", log)})
    assert run("tools", cwd=tmp_path).returncode == 0
    log.unlink()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(words=words)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=unmeasured(),
        cwd=tmp_path,
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0
    assert {name.partition(".")[0] for name in modules} & HEAVY == set()
    assert not log.exists()


COMMANDS = {
    "tools": ["list", "show", "search"],
    "call": [],
    "serve": [],
    "mcp": [
        "list", "get", "add", "add-json", "import", "remove", "enable", "disable", "trust",
        "untrust", "lock", "diff", "approve", "doctor", "logs", "search", "install",
    ],
    "connectors": ["list", "add", "remove", "doctor", "approve"],
    "ledger": ["timeline", "show", "at", "turn", "verify", "export"],
    "calls": [],
    "completion": [],
}  # fmt: skip


LINES = [[name] for name in COMMANDS] + [[name, one] for name in COMMANDS for one in COMMANDS[name]]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_every_command_explains_itself_and_refuses_what_it_does_not_know(tmp_path: Path, words: list[str]) -> None:
    done = run(*words, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: indus {' '.join(words)}")
    refused = run(*words, "--frobnicate", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "No such option '--frobnicate'" in refused.stderr
