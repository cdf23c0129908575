"""`python -m outside.pin`: rewrite the pins of this folder.

Keeps the Python versions that are pinned already; `--upgrade` takes the newest. The node packages
are those that `package.json` names, in the versions it names; what they bring along is pinned in
`package-lock.json`. Neither file holds an address: whoever installs has a registry of their own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from outside.install import PINS, ROOT, find_node
from outside.say import complain

if TYPE_CHECKING:
    from collections.abc import Sequence

PYTHON = {
    "servers": "mcp<2 mcp-server-time mcp-server-git mcp-server-fetch mcp-server-sqlite",
    "modern": "mcp>=2 mcp-server-motherduck",
    "varied": "mcp<2 mcp-server-calculator mcp-text-editor excel-mcp-server mcp-server-diff-python",
    "unordered": "mcp<2 mcp-shell-server mcp-atlassian",
    "sandboxes/legacy": (
        "mcp<2 cli-mcp-server terminal-controller code-index-mcp dns-mcp drawio-mcp mcp-database mcp-dice mcp-echo"
        " mcp-filesystem mcp-math mcp-server-duckdb mcp-server-rss mcp-todo mcp-youtube-transcript mysql-mcp-server"
        " office-powerpoint-mcp-server pylint-mcp random-number-mcp redis-mcp-server"
    ),
    "sandboxes/modern": (
        "mcp>=2.2,<2.4 fastmcp<4.1 awslabs.aws-documentation-mcp-server calculator-mcp-server duckduckgo-mcp-server"
        " excel-mcp-server>=2.2 filesystem-mcp markitdown-mcp>=0.0.1a7 mcp-clickhouse mcp-dblp mcp-nixos mcp-pandoc"
        " mcp-sequential-thinking mcp-server-wikipedia mcp-ssh odoo-mcp sequential-thinking-mcp office-word-mcp-server"
    ),
    "clients/modern": "fastmcp==4.1.* openai-agents==0.24.*",
    "clients/legacy": "langchain-mcp-adapters==0.3.*",
    "adapters/frameworks": (
        ". mcp>=2.3,<3 openai anthropic langchain langchain-openai langchain-anthropic openai-agents==0.24.*"
        " pydantic-ai-slim[openai,anthropic] claude-agent-sdk"
    ),
}
"""What is installed together; the SDK is named where another version would be taken, and `.` is what we need."""
NODE = ("", "clients", "clients/coding", "sandboxes")
"""The folders that hold a `package.json`."""
_UNWANTED = ("resolved", "funding", "license", "deprecated")


def main(arguments: Sequence[str]) -> int:
    """Write both files and return the exit code."""
    node = find_node()
    if node is None:
        complain("outside.pin: no node 22 or newer with npm")
        return 2
    for name, wanted in PYTHON.items():
        pin_python(name, wanted.split(), *arguments)
    for group in NODE:
        with tempfile.TemporaryDirectory() as folder:
            pin_node(node.npm, group, Path(folder))
    return 0


def pin_python(name: str, wanted: Sequence[str], *options: str) -> None:
    """Write the versions and hashes of Python packages."""
    uv = [str(Path(sys.executable).parent / "uv"), "pip", "compile", "--quiet", *options]
    how = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-annotate"]
    told = ["--no-emit-index-url", "--custom-compile-command", "python -m outside.pin"]
    target = ["-", "--output-file", str(PINS / f"{name}.txt")]
    command = [*uv, *how, *told, *target]
    own: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    lines = [line for word in wanted for line in (own if word == "." else [word])]
    subprocess.run(command, cwd=ROOT, input="\n".join(lines), text=True, check=True)


def pin_node(npm: Sequence[str], group: str, folder: Path) -> None:
    """Write the versions and hashes of the node packages of a group."""
    shutil.copy(PINS / group / "package.json", folder)
    options = ("--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund")
    subprocess.run([*npm, "install", *options], cwd=folder, check=True)
    lock = json.loads((folder / "package-lock.json").read_text("utf-8"))
    for package in lock["packages"].values():
        for key in _UNWANTED:
            package.pop(key, None)
    text = json.dumps(lock, indent=1, ensure_ascii=False)
    (PINS / group / "package-lock.json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
