"""`python -m outside.clients.search`: clients that others wrote, before `indus serve --search on`.

Each lists the tools, finds one, calls it by `call_tool` and by its own name, and gets a picture by `call_tool`. The
clients know nothing of a search. Ends with 0 if all went well, with 1 if something failed, with 2 if nothing could be
installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from outside.clients.report import TEXT
from outside.clients.server import PICTURE
from outside.clients.subject import CannotServe, Target, listening, make_subject
from outside.install import ROOT, CannotInstall, find_node, node_packages, python_commands
from outside.say import aligned, complain, markdown, say, write_between

_PROGRAMS = Path(__file__).with_name("programs")
_INDUS = Path(sys.executable).parent / "indus"
_HEAD = ("client", "transport", "list", "find", "call_tool", "by name", "image")
_WIDTHS = (16, 9, 4, 4, 9, 7, 5)
_LISTED = ["find_tools", "describe_tools", "call_tool"]
_LIMIT_S = 120.0


def main() -> int:
    """Let them all visit and return the exit code."""
    try:
        node = find_node()
        if node is None:
            raise CannotInstall("no node 22 or newer with npm; run `make setup`, or install one")
        packages, modern = node_packages(node, "clients"), python_commands("clients/modern")
    except CannotInstall as exc:
        complain(f"outside.clients.search: {exc}")
        return 2
    commands = {
        "TypeScript SDK": [str(node.path), str(_PROGRAMS / "search_typescript.mjs")],
        "FastMCP": [str(modern / "python"), str(_PROGRAMS / "search_fastmcp.py")],
        "openai-agents": [str(modern / "python"), str(_PROGRAMS / "search_agents.py")],
    }
    say(aligned(_HEAD, _WIDTHS))
    rows: list[tuple[str, ...]] = []
    for name, command in commands.items():
        for transport in ("stdio", "http"):
            rows.append((name, transport, *_visit(command, transport, packages)))
            say(aligned(rows[-1], _WIDTHS))
    write_between(ROOT / "docs/evidence/clients.md", "search", markdown(_HEAD, rows))
    return 1 if any("no" in row[2:] for row in rows) else 0


def _visit(command: list[str], transport: str, packages: Path) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as name:
        subject = make_subject(Path(name).resolve(), (str(_INDUS), "serve", "--search", "on"))
        try:
            if transport == "stdio":
                return _judge(_run(command, Target(subject), packages))
            with listening(subject) as target:
                return _judge(_run(command, target, packages))
        except (CannotServe, subprocess.SubprocessError, ValueError) as exc:
            complain(f"{command[-1]}: {exc}")
            return ("no",) * 5


def _run(command: list[str], target: Target, packages: Path) -> dict[str, object]:
    asked = {**target.as_json(), "text": TEXT, "query": "say it again", "packages": str(packages)}
    done = subprocess.run(
        [*command, json.dumps(asked)], stdout=subprocess.PIPE, env=target.subject.env, check=True, timeout=_LIMIT_S
    )
    return json.loads(done.stdout.splitlines()[-1])


def _judge(report: dict[str, object]) -> tuple[str, ...]:
    seen = (
        report["tools"] == _LISTED,
        str(report["found"]).startswith("shelf__echo(text: str)"),
        report["by_card"] == TEXT,
        report["by_name"] == TEXT,
        report["image"] == PICTURE,
    )
    return tuple("yes" if one else "no" for one in seen)


if __name__ == "__main__":
    sys.exit(main())
