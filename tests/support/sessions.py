"""Sessions for tests: a directory, a model server, MCP servers in a file, and the program itself."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from tests.support.forked import CONSTANTS, start_command
from tests.support.scripts import command

from induscode.conversations import servers
from induscode.conversations.run import run_headless
from induscode.launch.invocation import Invocation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest
    from tests.support.model_server import ModelServer

    from indusagi.interop.protocol_bridge.contract import StdioServerConfig

ModelApi = Literal["openai", "anthropic"]


@dataclass
class SessionSetup:
    """A working directory with everything that a session needs."""

    folder: Path
    server: ModelServer
    api: ModelApi = "openai"
    rows: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """MCP servers, as in a configuration file."""
    environ: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def cwd(self) -> Path:
        """Working directory of the session."""
        return self.folder / "project"

    def mount(self, config: StdioServerConfig, **more: object) -> None:
        """Add a server to the configuration file."""
        row = {"command": config.command, "args": [*config.args], "env": dict(config.env)}
        self.rows[config.id] = {**row, **more}

    def build_environment(self) -> dict[str, str]:
        """Build the variables with the address and key of the model."""
        if self.api == "anthropic":
            return {"ANTHROPIC_BASE_URL": self.server.url, "ANTHROPIC_API_KEY": "key"}
        return {"OPENAI_BASE_URL": f"{self.server.url}/v1", "OPENAI_API_KEY": "key"}

    def build_fields(self, prompt: str = "the prompt", **flags: Any) -> dict[str, Any]:
        """Build the fields of an invocation."""
        self.cwd.mkdir(exist_ok=True)
        given: dict[str, Any] = {"cwd": str(self.cwd), "prompt": prompt, "approval": "all"}
        given["model"] = "anthropic:scripted" if self.api == "anthropic" else "openai:scripted"
        if self.rows:
            path = self.folder / "mcp.json"
            path.write_text(json.dumps({"mcpServers": self.rows}), encoding="utf-8")
            given["mcp"] = (str(path),)
        return {**given, **flags}

    def run_in_process(self, monkeypatch: pytest.MonkeyPatch, prompt: str = "the prompt", **flags: Any) -> int:
        """Run the session in this process."""
        for name, value in {**self.build_environment(), **self.environ}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(
            servers, "FIRST_PROMPT_LIMIT_S", CONSTANTS["induscode.conversations.servers:FIRST_PROMPT_LIMIT_S"]
        )
        return run_headless(Invocation(**self.build_fields(prompt, **flags)))

    def start(
        self,
        prompt: str = "the prompt",
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        **flags: Any,
    ) -> subprocess.Popen[str]:
        """Start the session in a process of its own."""
        # Unbuffered output would hide a missing flush.
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        return start_command(
            [command(), *build_command_line(self.build_fields(prompt, **flags))],
            environ={**inherited, **self.build_environment(), **self.environ},
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def run_process(self, prompt: str = "the prompt", **flags: Any) -> ProcessResult:
        """Run the session in a process of its own to its end."""
        process = self.start(prompt, **flags)
        out, err = process.communicate(timeout=60)
        return ProcessResult(process.returncode, out, err)


@dataclass(frozen=True)
class ProcessResult:
    """Exit code and output of a session."""

    code: int
    out: str
    err: str


def build_command_line(fields: Mapping[str, Any]) -> list[str]:
    """Write an invocation as a command line."""
    words = ["-C", fields["cwd"], "-p", fields["prompt"]]
    for key, value in fields.items():
        if key in {"cwd", "prompt"}:
            continue
        flag = {"continue_last": "--continue"}.get(key, f"--{key.replace('_', '-')}")
        if isinstance(value, bool):
            words += [flag] if value else []
        else:
            several = cast("tuple[str, ...]", value) if isinstance(value, tuple) else (str(value),)
            words += [flag, ",".join(several)]
    return words


def to_text(body: Mapping[str, Any]) -> str:
    """Write a request as one text without the JSON escapes of newlines and quotes."""
    return json.dumps(body, ensure_ascii=False).replace("\\n", "\n").replace('\\"', '"')
