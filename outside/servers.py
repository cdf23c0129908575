"""The servers that are visited: how each is started, what is asked of it, what it must answer.

They are other people's: four on the first Python SDK, three on the TypeScript one, two of those
once more as they were at the first version of the protocol, and one that speaks the newest.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.json import compact_json
from outside.host import SAMPLED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from indusagi.core.json import JsonObject

RemoteKind: TypeAlias = Literal["streamable_http", "sse"]
NOTE = "a note to be read"


@dataclass(frozen=True, slots=True)
class Call:
    """One call, and a text that must be part of its answer."""

    tool: str
    arguments: JsonObject
    expected: str
    steps: int = 0
    """How many times at least it must tell of its progress."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server over standard input and output, and perhaps behind an address as well."""

    id: str
    command: Sequence[str]
    calls: Sequence[Call]
    env: dict[str, str] = field(default_factory=dict[str, str])
    needs_node: bool = False
    remote: Mapping[RemoteKind, Sequence[str]] = field(default_factory=dict[RemoteKind, "list[str]"])
    """What to add to the command for each other transport; `{port}` stands for the port, which is
    also in the variable PORT."""


def python_servers(commands: Path, modern: Path, scratch: Path, page: str) -> list[Server]:
    """List the servers on the Python SDK."""
    noon: JsonObject = {"source_timezone": "Etc/UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    fetch = [str(commands / "mcp-server-fetch"), "--allow-private-ips", "--ignore-robots-txt"]
    sqlite = [str(commands / "mcp-server-sqlite"), "--db-path", str(scratch / "some.db")]
    return [
        Server(
            "time",
            [str(commands / "mcp-server-time"), "--local-timezone", "Etc/UTC"],
            [Call("convert_time", noon, "T21:00:00+09:00")],
        ),
        Server("git", [str(commands / "mcp-server-git")], [Call("git_log", {"repo_path": str(scratch)}, NOTE)]),
        Server("fetch", fetch, [Call("fetch", {"url": page}, NOTE)]),
        Server("sqlite", sqlite, [Call("read_query", {"query": "SELECT 6 * 7 AS answer"}, "{'answer': 42}")]),
        Server(
            "motherduck",
            [str(modern / "mcp-server-motherduck"), "--db-path", ":memory:", "--read-write"],
            [Call("execute_query", {"sql": "SELECT 6 * 7 AS answer"}, "42")],
            remote={"streamable_http": ["--transport", "http", "--port", "{port}"]},
        ),
    ]


def restarted_servers(varied: Path, unordered: Path, node: Path, packages: Path, scratch: Path) -> list[Server]:
    """List the servers that are started again and again: of many authors, and without any key.

    The definitions of the first two come in another order at every start.
    """

    def start(package: str, script: str) -> list[str]:
        return [str(node), str(packages / package / script)]

    note = str(scratch / "note.txt")
    nowhere = "http://127.0.0.1:9"
    asked: JsonObject = {"files": [{"file_path": note, "ranges": [{"start": 1}]}]}
    thought: JsonObject = {"thought": NOTE, "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
    commands = "ls,cat,pwd,grep,wc,touch,find,echo"
    return [
        Server(
            "shell",
            [str(unordered / "mcp-shell-server")],
            [Call("shell_execute", {"command": ["cat", note], "directory": str(scratch)}, NOTE)],
            {"ALLOW_COMMANDS": commands},
        ),
        Server(
            "atlassian",
            [str(unordered / "mcp-atlassian")],
            # There is no Jira: that it says so shows that the call came to it.
            [Call("jira_get_issue", {"issue_key": "AB-1"}, f"connect to Jira at {nowhere}")],
            {
                "JIRA_URL": nowhere,
                "JIRA_USERNAME": "nobody",
                "JIRA_API_TOKEN": "none",
                "CONFLUENCE_URL": f"{nowhere}/wiki",
                "CONFLUENCE_USERNAME": "nobody",
                "CONFLUENCE_API_TOKEN": "none",
            },
        ),
        Server(
            "calculator", [str(varied / "mcp-server-calculator")], [Call("calculate", {"expression": "6 * 7"}, "42")]
        ),
        Server("text-editor", [str(varied / "mcp-text-editor")], [Call("get_text_file_contents", asked, NOTE)]),
        Server(
            "diff",
            [str(varied / "mcp-server-diff-python")],
            [Call("get-unified-diff", {"string_a": "a", "string_b": NOTE}, f"+{NOTE}")],
        ),
        Server(
            "excel",
            [str(varied / "excel-mcp-server"), "stdio"],
            [Call("create_workbook", {"filepath": str(scratch / "some.xlsx")}, "Created")],
        ),
        Server(
            "sequential-thinking",
            start("@modelcontextprotocol/server-sequential-thinking", "dist/index.js"),
            [Call("sequentialthinking", thought, '"thoughtNumber": 1')],
            needs_node=True,
        ),
        Server(
            "hello-world",
            start("mcp-hello-world", "build/stdio.js"),
            [Call("echo", {"message": NOTE}, NOTE)],
            needs_node=True,
        ),
        Server(
            # It greets on standard output, before anything of the protocol.
            "calculator-wrtn",
            start("@wrtnlabs/calculator-mcp", "bin/index.js"),
            [Call("add", {"a": 2, "b": 40}, "42")],
            needs_node=True,
        ),
        Server(
            "taskmanager",
            start("@kazuph/mcp-taskmanager", "dist/index.js"),
            [Call("list_requests", {}, "requests_listed")],
            {"TASK_MANAGER_FILE_PATH": str(scratch / "tasks.json")},
            needs_node=True,
        ),
    ]


def node_servers(node: Path, packages: Path, scratch: Path) -> list[Server]:
    """List the servers on the TypeScript SDK; paths that are not there are not looked at."""

    def start(package: str, *arguments: str) -> list[str]:
        return [str(node), str(packages / package / "dist/index.js"), *arguments]

    official = "@modelcontextprotocol/server-"
    note = str(scratch / "note.txt")
    return [
        Server(
            "everything",
            start(f"{official}everything"),
            _EVERYTHING,
            needs_node=True,
            remote={"streamable_http": ["streamableHttp"], "sse": ["sse"]},
        ),
        Server(
            "filesystem",
            start(f"{official}filesystem", str(scratch)),
            [Call("read_text_file", {"path": note}, NOTE)],
            needs_node=True,
        ),
        Server(
            "memory",
            start(f"{official}memory"),
            [Call("read_graph", {}, NOTE)],
            {"MEMORY_FILE_PATH": str(scratch / "memory.json")},
            needs_node=True,
        ),
        Server(
            "everything-062",
            start("everything-062"),
            [
                Call("add", {"a": 2, "b": 40}, "42"),
                # It prints our answer without looking into it; that it came is what matters.
                Call("sampleLLM", {"prompt": "Say something."}, "LLM sampling result"),
            ],
            needs_node=True,
        ),
        Server(
            "filesystem-062",
            start("filesystem-062", str(scratch)),
            [Call("read_file", {"path": note}, NOTE)],
            needs_node=True,
        ),
    ]


_EVERYTHING = (
    Call("get-sum", {"a": 2, "b": 40}, "42"),
    Call("get-structured-content", {"location": "Chicago"}, "temperature"),
    # What follows makes the server ask us, or tell us, something while the call goes on.
    Call("trigger-long-running-operation", {"duration": 0.2, "steps": 2}, "completed", steps=2),
    Call("trigger-sampling-request", {"prompt": "Say something."}, SAMPLED),
    Call("trigger-elicitation-request", {}, "User provided the requested information"),
    Call("get-roots-list", {}, "file:///"),
)


def make_scratch(folder: Path) -> None:
    """Put into a folder what the servers are to find.

    A note, in a repository of one commit, and something to remember.
    """
    (folder / "note.txt").write_text(f"{NOTE}\n", "utf-8")
    entity: JsonObject = {"name": "bridge", "entityType": "thing", "observations": [NOTE]}
    (folder / "memory.json").write_text(compact_json({"type": "entity", **entity}), "utf-8")
    git = ("git", "-c", "user.name=outside", "-c", "user.email=outside@example.invalid")
    for step in (
        ("init", "--quiet"),
        ("add", "note.txt"),
        ("commit", "--quiet", "--no-gpg-sign", "--no-verify", "--message", NOTE),
    ):
        subprocess.run((*git, *step), cwd=folder, check=True, timeout=30)
