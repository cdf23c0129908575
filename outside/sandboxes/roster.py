"""The servers that are started in every sandbox profile, and the calls that are made of each.

Those of `outside.servers`, and as many again of other authors. They need no account: where a server wants a key at its
start it gets an empty word, and what it answers then must be the same in every profile.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from outside.servers import Call, Server, node_servers, python_servers, restarted_servers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.json import JsonObject

_Calls: TypeAlias = "Sequence[tuple[str, JsonObject]]"
_NOWHERE = "http://127.0.0.1:9"
_THOUGHT: JsonObject = {"thought": "a", "thought_number": 1, "total_thoughts": 1, "next_thought_needed": False}
_DATABASE: Mapping[str, str] = {
    "MYSQL_HOST": "127.0.0.1",
    "MYSQL_PORT": "9",
    "MYSQL_USER": "none",
    "MYSQL_PASSWORD": "none",
    "MYSQL_DATABASE": "none",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A package with a server, its arguments and its calls. `{work}` and `{page}` are replaced in both."""

    package: str
    calls: _Calls
    arguments: Sequence[str] = ()
    program: str = ""
    """Its command, if that is not named like the package."""
    env: Mapping[str, str] | None = None


_LEGACY = (
    Entry("cli-mcp-server", [("run_command", {"command": "ls"})], env={"ALLOWED_DIR": "{work}"}),
    Entry("terminal-controller", [("execute_command", {"command": "cat note.txt"})], program="terminal_controller"),
    Entry("code-index-mcp", [("set_project_path", {"path": "{work}"}), ("find_files", {"pattern": "*.txt"})]),
    Entry("dns-mcp", [("resolve_dns", {"name": "localhost"})]),
    Entry("drawio-mcp", [("diagram", {"action": "create", "name": "a"})]),
    Entry("mcp-database", [("list_databases", {})]),
    Entry("mcp-dice", [("roll_dice", {"notation": "1d1"})]),
    Entry("mcp-echo", [("echo", {"message": "a"})]),
    Entry("mcp-filesystem", [("read_file", {"file_path": "{work}/note.txt"})]),
    Entry("mcp-math", [("add", {"a": 2, "b": 40})]),
    Entry("mcp-server-duckdb", [("query", {"query": "SELECT 6 * 7"})], ["--db-path", "{work}/some.duckdb"]),
    Entry("mcp-server-rss", [("feed", {"url": "{page}/some.xml"})]),
    Entry("mcp-todo", [("task_create", {"name": "a"}), ("task_list", {})]),
    Entry("mcp-youtube-transcript", [("get_transcript", {"url": "https://example.invalid/watch?v=a"})]),
    Entry("mysql-mcp-server", [("execute_sql", {"query": "SELECT 1"})], program="mysql_mcp_server", env=_DATABASE),
    Entry(
        "office-powerpoint-mcp-server",
        [("create_presentation", {}), ("save_presentation", {"file_path": "{work}/some.pptx"})],
        program="ppt_mcp_server",
    ),
    Entry("pylint-mcp", [("lint", {"filename": "{work}/some.py"})]),
    Entry("random-number-mcp", [("random_int", {"low": 7, "high": 7})]),
    Entry("redis-mcp-server", [("dbsize", {})]),
)
"""On the first major version of the Python SDK."""

_MODERN = (
    Entry("awslabs.aws-documentation-mcp-server", [("read_documentation", {"url": "https://example.invalid/a.html"})]),
    Entry("calculator-mcp-server", [("add", {"a": 2, "b": 40})]),
    Entry("duckduckgo-mcp-server", [("fetch_content", {"url": "{page}/note.txt"})]),
    Entry("excel-mcp-server", [("create_workbook", {"path": "{work}/some.xlsx"})], ["stdio"]),
    Entry("filesystem-mcp", [("read_file", {"path": "{work}/note.txt"})], ["{work}"]),
    Entry("markitdown-mcp", [("convert_to_markdown", {"uri": "file://{work}/note.txt"})]),
    Entry("mcp-clickhouse", [("list_databases", {})]),
    Entry("mcp-dblp", [("export_bibtex", {"path": "{work}/some.bib"})]),
    Entry("mcp-nixos", [("nix", {"action": "search", "query": "git"})]),
    Entry(
        "mcp-pandoc", [("convert-contents", {"contents": "# a", "input_format": "markdown", "output_format": "html"})]
    ),
    Entry("mcp-sequential-thinking", [("create_session", {"title": "a"}), ("list_sessions", {})]),
    Entry("mcp-server-wikipedia", [("skills_list", {})]),
    Entry("mcp-ssh", [("list_sessions", {})], program="mcp-ssh-session"),
    Entry("odoo-mcp", [("build_domain", {"conditions": [{"field": "name", "operator": "=", "value": "a"}]})]),
    Entry("sequential-thinking-mcp", [("think", {"thread_purpose": "a", "thought": "a", "thought_index": 1})]),
    Entry(
        "office-word-mcp-server",
        [
            ("create_document", {"filename": "{work}/some.docx"}),
            ("get_document_text", {"filename": "{work}/some.docx"}),
        ],
        program="word_mcp_server",
    ),
)
"""On the second."""

_NODE = (
    Entry(
        "@modelcontextprotocol/server-github",
        [("search_repositories", {"query": "a"})],
        env={"GITHUB_PERSONAL_ACCESS_TOKEN": "none"},
    ),
    Entry("@playwright/mcp", [("browser_close", {})], ["--headless"]),
    Entry("@upstash/context7-mcp", [("resolve-library-id", {"query": "a", "libraryName": "a"})]),
    Entry("@wonderwhy-er/desktop-commander", [("read_file", {"path": "{work}/note.txt"}), ("list_sessions", {})]),
    Entry("@negokaz/excel-mcp-server", [("excel_describe_sheets", {"fileAbsolutePath": "{work}/absent.xlsx"})]),
    Entry("@antv/mcp-server-chart", [("generate_liquid_chart", {"percent": 0.5})]),
    Entry("drawio-mcp-server", [("get-shape-categories", {})]),
    Entry("mcp-sqlite-server", [("query", {"db": "{work}/some.db", "sql": "SELECT 6 * 7 AS answer"})]),
    Entry("mcp-server-code-runner", [("run-code", {"code": "console.log(6 * 7)", "languageId": "javascript"})]),
    Entry("mcp-server-commands", [("run_command", {"command": "cat note.txt"})]),
    Entry("@cyanheads/git-mcp-server", [("git_log", {"path": "{work}"}), ("git_status", {"path": "{work}"})]),
    Entry("@shtse8/filesystem-mcp", [("read_content", {"paths": ["note.txt"]})]),
    Entry("@tokenizin/mcp-npx-fetch", [("fetch_txt", {"url": "{page}/note.txt"})]),
    Entry("@itseasy21/mcp-knowledge-graph", [("read_graph", {})], env={"MEMORY_FILE_PATH": "{work}/memory.json"}),
    Entry("chrome-devtools-mcp", [("list_pages", {})], ["--headless", "--no-usage-statistics"]),
    Entry("@browsermcp/mcp", [("browser_snapshot", {})]),
    Entry("@notionhq/notion-mcp-server", [("API-get-self", {})], env={"NOTION_TOKEN": "none"}),
    Entry("mcp-docker-server", [("list_containers", {})]),
    Entry("mcp-shrimp-task-manager", [("list_tasks", {"status": "all"})], env={"DATA_DIR": "{work}/tasks"}),
    Entry("time-mcp", [("days_in_month", {"date": "2026-02-01"})]),
    Entry("@mcp-get-community/server-curl", [("curl", {"url": "{page}/note.txt"})]),
    Entry("@anaisbetts/mcp-installer", [("install_local_mcp_server", {"path": "{work}/absent"})]),
    Entry("@eslint/mcp", [("lint-files", {"filePaths": ["{work}/some.js"]})]),
    Entry("@mui/mcp", [("fetchDocs", {"urls": ["https://example.invalid/a"]})]),
    Entry("@heroui/react-mcp", [("list_components", {})]),
    Entry("mcp-sequentialthinking-tools", [("sequentialthinking_tools", {**_THOUGHT, "available_mcp_tools": ["a"]})]),
    Entry("wikipedia-mcp", [("search", {"query": "a"})]),
    Entry("mcp-graphql", [("query-graphql", {"query": "{{ a }}"})], env={"ENDPOINT": "{page}/note.txt"}),
    Entry("package-registry-mcp", [("list-npm-package-versions", {"name": "isarray"})]),
    Entry("dice-roller-mcp", [("roll_dice", {"dice_count": 1, "dice_sides": 6})]),
    Entry(
        "@f4ww4z/mcp-mysql-server",
        [("connect_db", {"host": "127.0.0.1", "user": "none", "password": "none", "database": "none"})],
    ),
    Entry("mcp-json", [("find_json_files", {}), ("read_json_file", {"filePath": "{work}/memory.json"})]),
    Entry("claude-mermaid", [("mermaid_save", {"save_path": "{work}/some.svg", "preview_id": "a"})]),
    Entry("@bitbonsai/mcpvault", [("get_vault_stats", {}), ("read_note", {"path": "some.md"})], ["{work}"]),
    Entry("mcp-obsidian", [("search_notes", {"query": "some"})], ["{work}"]),
    Entry("@openbnb/mcp-server-airbnb", [("airbnb_listing_details", {"id": "1"})]),
    Entry("godot-mcp", [("list_projects", {"directory": "{work}"})]),
    Entry("@coo-quack/calc-mcp", [("math", {"expression": "6 * 7"})]),
    Entry("@djankies/vitest-mcp", [("set_project_root", {"path": "{work}"})]),
    Entry("nx-mcp", [("nx_docs", {"userQuery": "a"})], ["{work}"]),
    Entry("mcp-searxng", [("searxng_web_search", {"query": "a"})], env={"SEARXNG_URL": _NOWHERE}),
)
"""From npm."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One server to start, and what it is a version of."""

    server: Server
    package: str
    version: str


@dataclass(frozen=True, slots=True)
class Places:
    """Where the servers are installed, and what they are given."""

    commands: Sequence[Path]
    """Of the four environments of `outside.servers`, and of our two."""
    node: Path
    packages: Path
    sandboxed_packages: Path
    work: Path
    page: str


def list_subjects(places: Places) -> list[Subject]:
    """List them all."""
    note = f"{places.page}/note.txt"
    servers, modern, varied, unordered, *ours = places.commands
    known = [
        *python_servers(servers, modern, places.work, note),
        *restarted_servers(varied, unordered, places.node, places.packages, places.work),
        *node_servers(places.node, places.packages, places.work),
    ]
    subjects = [
        _identify(server, places.packages if server.needs_node else None) for server in known if server.id != "excel"
    ]
    for commands, entries in zip(ours, (_LEGACY, _MODERN), strict=True):
        for entry in entries:
            command = [str(commands / (entry.program or entry.package))]
            subjects.append(_identify(_build(entry, command, places), None))
    for entry in _NODE:
        command = [str(places.node), _find_script(places.sandboxed_packages / entry.package)]
        subjects.append(_identify(_build(entry, command, places), places.sandboxed_packages))
    return subjects


def _build(entry: Entry, command: Sequence[str], places: Places) -> Server:
    def fill(text: str) -> str:
        return text.replace("{work}", str(places.work)).replace("{page}", places.page)

    calls = [Call(tool, json.loads(fill(json.dumps(arguments))), "") for tool, arguments in entry.calls]
    env = {name: fill(value) for name, value in (entry.env or {}).items()}
    return Server(entry.package, [*command, *map(fill, entry.arguments)], calls, env)


def _find_script(package: Path) -> str:
    """Find what `npx` would run."""
    programs: str | dict[str, str] = json.loads((package / "package.json").read_text("utf-8"))["bin"]
    return str(package / (programs if isinstance(programs, str) else next(iter(programs.values()))))


def _identify(server: Server, packages: Path | None) -> Subject:
    if packages is None:
        program = Path(server.command[0])
        folders = [str(path) for path in program.parent.parent.glob("lib/python*/site-packages")]
        for distribution in distributions(path=folders):
            if any(
                point.group == "console_scripts" and point.name == program.name for point in distribution.entry_points
            ):
                return Subject(server, distribution.name, distribution.version)
        return Subject(server, server.id, "")
    parts = Path(server.command[1]).relative_to(packages).parts
    package = "/".join(parts[: 2 if parts[0].startswith("@") else 1])
    found = json.loads((packages / package / "package.json").read_text("utf-8"))
    return Subject(server, found["name"], found["version"])
