"""Coding agents: we import what their own commands write, and they list what we install.

Each has a home folder of its own, in which nothing else is set. The agents are not asked for
anything but their list of servers, which needs no account.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

_RUN_S = 120.0
_INDUS = str(Path(sys.executable).parent / "indus")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "GEMINI_CLI_TRUST_WORKSPACE": "true",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
}
LOOKED_AT = ("imported", "installed", "removed", "printed")


@dataclass(frozen=True, slots=True)
class Agent:
    """A coding agent: its command, and how it adds servers."""

    name: str
    client: str
    """Its name after `--install`, and the program that its printed line starts."""
    command: Sequence[str]
    adds: Sequence[Sequence[str]]
    """Words after `mcp add` for a server with a command and one with an address."""
    starts: bool = True
    """Whether its list starts the servers and tells which of them answered."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one agent; what went wrong is in its place, otherwise nothing."""

    agent: str
    version: str
    wrong: Mapping[str, str]

    @property
    def cells(self) -> tuple[str, ...]:
        """Give the row of the table."""
        told = ("no" if self.wrong.get(what) else "yes" for what in LOOKED_AT)
        return (self.agent, self.version, *told)


def agents(node: Path, packages: Path) -> list[Agent]:
    """List them; paths are not looked at, but for the one that depends on the platform."""
    stdio = ("npx", "-y", "@example/files")
    url, header = "https://example.invalid/mcp", "Authorization: Bearer abc"
    claude = [str(node), str(packages / "@anthropic-ai/claude-code/cli-wrapper.cjs")]
    gemini = [str(node), str(packages / "@google/gemini-cli/bundle/gemini.js")]
    codex = [str(node), str(packages / "@openai/codex/bin/codex.js")]
    opencode = packages / "opencode-linux-x64-baseline/bin/opencode"
    known = [
        Agent(
            "Claude Code",
            "claude",
            claude,
            [("files", "-e", "TOKEN=abc", "--", *stdio), ("--transport", "http", "remote", url, "--header", header)],
        ),
        Agent(
            "Codex",
            "codex",
            codex,
            [
                ("files", "--env", "TOKEN=abc", "--", *stdio),
                ("remote", "--url", url, "--bearer-token-env-var", "REMOTE_TOKEN"),
            ],
            starts=False,
        ),
        Agent(
            "Gemini CLI",
            "gemini",
            gemini,
            [("files", "-e", "TOKEN=abc", stdio[0], "--", *stdio[1:]), ("-t", "http", "remote", url, "-H", header)],
        ),
        Agent(
            "opencode",
            "opencode",
            [str(opencode)],
            [
                ("files", "--env", "TOKEN=abc", "--", *stdio),
                ("remote", "--url", url, "--header", header.replace(": ", "=")),
            ],
        ),
    ]
    return known if opencode.exists() else known[:-1]


def examine(agent: Agent) -> Outcome:
    """Let an agent and indus read each other's files."""
    with TemporaryDirectory(prefix="agent-") as folder:
        home, project = Path(folder, "home"), Path(folder, "project")
        home.mkdir()
        project.mkdir()
        subprocess.run(["git", "init", "-q", str(project)], check=False)
        desk = _Desk(agent, project, {**_QUIET, "HOME": str(home)})
        version = re.search(r"\d+\.\d+\.\d+", desk.run(*agent.command, "--version"))
        wrong = {
            "imported": desk.imported(),
            "installed": desk.installed(),
            "removed": desk.removed(),
            "printed": desk.printed(),
        }
        return Outcome(agent.name, version[0] if version else "", wrong)


@dataclass(frozen=True, slots=True)
class _Desk:
    """One agent in its home."""

    agent: Agent
    project: Path
    variables: Mapping[str, str]

    def imported(self) -> str:
        """Let the agent add servers, and import what it wrote."""
        for words in self.agent.adds:
            self.run(*self.agent.command, "mcp", "add", *words)
        said = self.run(_INDUS, "mcp", "import", "--dry-run", "--json")
        try:
            found = {one["name"]: one["transport"] for one in json.loads(said)["servers"]}
        except (ValueError, KeyError):
            return said
        return "" if found == {"files": "stdio", "remote": "http"} else f"found {found}"

    def installed(self) -> str:
        """Install the gateway, and have the agent list it."""
        self.run(_INDUS, "serve", "--no-mcp", "--install", self.agent.client)
        return self._list_entries("indus", present=True)

    def removed(self) -> str:
        """Take it out again; what the agent had stays."""
        self.run(_INDUS, "serve", "--uninstall", self.agent.client)
        return self._list_entries("indus", present=False) or self._list_entries("files", present=None)

    def printed(self) -> str:
        """Run the agent's own commands as `--print-config` prints them, for both transports."""
        wrong = self._print_entry() or self._list_entries("indus", present=True)
        self.run(_INDUS, "serve", "--uninstall", self.agent.client)
        # No gateway runs at that address: the entry has to be in the list, and cannot answer.
        wrong = wrong or self._print_entry("--http", "7332") or self._list_entries("indus", present=None)
        self.run(_INDUS, "serve", "--uninstall", self.agent.client)
        return wrong or self._list_entries("indus", present=False)

    def _print_entry(self, *words: str) -> str:
        asked = ("--no-mcp", *words, "--print-config", self.agent.client)
        said = self.run(_INDUS, "serve", *asked)
        line = re.search(rf"^indus: or: ({self.agent.client} .*)$", said, re.MULTILINE)
        if line is None:
            return f"no command was printed: {said}"
        self.run(*self.agent.command, *shlex.split(line[1])[1:])
        return ""

    def _list_entries(self, name: str, *, present: bool | None) -> str:
        """Check the agent's list; None: it has the server, whether that answers or not."""
        said = self.run(*self.agent.command, "mcp", "list")
        return judge_list(said, name, present=present, starts=self.agent.starts)

    def run(self, *command: str) -> str:
        """Run a command and give what it wrote on both outputs."""
        kept = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        try:
            done = subprocess.run(
                command,
                cwd=self.project,
                env={**kept, **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_RUN_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            return str(exc)
        # What is written on both may stand in one line; only standard output of ours is JSON.
        text = done.stdout.decode("utf-8", "replace")
        return _COLOUR.sub("", text)


def judge_list(said: str, name: str, *, present: bool | None, starts: bool) -> str:
    """Say what is wrong with the list of an agent; nothing if it is as it should be."""
    lines = [line for line in said.splitlines() if re.search(rf"\b{name}\b(?!/)", line)]
    if present is False:
        return f"still there: {lines[0]}" if lines else ""
    if not lines:
        return f"not in the list: {said.strip()[-300:]}"
    if present and starts and not any(re.search(r"connected", one, re.IGNORECASE) for one in lines):
        return f"not connected: {lines[0]}"
    if present and any(re.search(r"disconnected|failed", one, re.IGNORECASE) for one in lines):
        return f"not connected: {lines[0]}"
    return ""
