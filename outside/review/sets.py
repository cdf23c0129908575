"""The definitions of the corpus: our attacks, those of public sets, and what real servers list.

A public set counts as far as the text of its definitions misleads: many of its tools have honest definitions and harm
elsewhere, which no review of definitions sees. Which ones count was decided before the first run.
"""

from __future__ import annotations

import ast
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from outside.review.score import Definition, drop_copies
from outside.search_bench.sources import read_sources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SOURCES: Final = Path(__file__).with_name("sources.toml")
"""The files of public sets, with their digests."""
_OURS: Final = Path(__file__).with_name("attacks.toml")
_DATASETS: Final = "mcpproxy-go/specs/065-evaluation-foundation/datasets"
_SNAPSHOT: Final = "mcpproxy-go/specs/083-discovery-profiler/datasets/livemcptool_snapshot/tools.json"
_TECHNIQUES: Final = "safe-mcp/techniques"
_FOREIGN: Final = {
    "filesystem": ("read_file", "write_file", "list_directory"),
    "github": ("create_issue", "search_repositories", "get_file_contents"),
    "mail": ("send_email",),
    "slack": ("post_message",),
    "whatsapp": ("send_message", "list_chats"),
}
KNOWN: Final = {tool: server for server, tools in _FOREIGN.items() for tool in tools}
"""Tools of other servers that attacks find."""

_PROGRAMS: Final[Mapping[str, Sequence[str]]] = {
    "damn-vulnerable-MCP-server/challenges/easy/challenge2/server.py": ("get_company_data", "search_company_database"),
    "damn-vulnerable-MCP-server/challenges/medium/challenge5/server.py": ("calculate", "enhanced_calculate"),
    "damn-vulnerable-MCP-server/challenges/hard/challenge10/server.py": (
        "get_user_profile",
        "malicious_check_system_status",
    ),
    "MCPSecBench/code/maliciousadd.py": ("add", "modify", "m_check", "aft_check"),
    "mcp-attack-labs/labs/01-mcp-tool-poisoning/attack1_direct_poison.py": ("add",),
    "mcp-attack-labs/labs/01-mcp-tool-poisoning/reference/mcp-injection-experiments/direct-poisoning.py": ("add",),
    "mcp-attack-labs/labs/01-mcp-tool-poisoning/reference/mcp-injection-experiments/shadowing.py": ("add",),
    "mcp-attack-labs/labs/01-mcp-tool-poisoning/reference/mcp-injection-experiments/whatsapp-takeover.py": (
        "get_fact_of_the_day",
    ),
    "mcp-attack-labs/labs/02-docker-dash/docker_mcp_server.py": ("docker_health_report",),
    "mcp-attack-suite/environment/arena/challenges/ETHPriceServer/mcp_servers/get_ETH_Price.py": ("get_price",),
    "mcp-attack-suite/environment/arena/challenges/emailsystem/mcp_servers/malicious_tools_server.py": (
        "send_teams_message",
    ),
    "mcp-scanner/examples/example-malicious-servers/line_jumping_server.py": (
        "send_mail",
        "retrieve_logs",
        "get_workstation_environment",
    ),
    "mcp-scanner/examples/example-malicious-servers/malicious_mcp_streamable_server.py": (
        "execute_system_command",
        "run_injection_code",
    ),
    "mcp-scanner/examples/example-malicious-servers/server.py": ("add", "send_email"),
    "mcp-scanner-benchmark/backend/vulnerable_examples/server.py": ("execute_unsafe_command", "read_any_file"),
    "mcp-server-everything-wrong/src/mcp_server_everything_wrong/server.py": (
        "joke_teller",
        "shadowing_attack",
        "echo",
    ),
    "hijack-agentic-ai/demos/demo2-mcp-tool-abuse/src/mcp_servers/weather_server.py": ("get_weather",),
    "mcp-hacking/tool-poisoning-attack/poisoning-server.py": ("add_numbers",),
    "mcp-hacking/tool-shadowing-attack/poisoning-server.py": ("add_numbers",),
    "mcp-injection-experiments/src/mcp_demo/experiments/direct_poisoning.py": ("POISONED_DESCRIPTION",),
    "mcp-injection-experiments/src/mcp_demo/experiments/implicit_tool_poisoning.py": ("_POISONED_DESCRIPTION",),
    "mcp-injection-experiments/src/mcp_demo/experiments/sleeper_rug_pull.py": ("POISONED_DESCRIPTION",),
    "mcp-injection-experiments/src/mcp_demo/experiments/tool_shadowing.py": ("HELPER_DESCRIPTION",),
}
"""Functions, constants and entries with a poisoned definition, by program."""
_ARENA: Final = "mcp-attack-suite/environment/arena/challenges"
_INJECTIONS: Final = (
    f"{_ARENA}/ETHPriceServer/attacks/tool_poisoning.json",
    f"{_ARENA}/documentsystem/attacks/tool_poisoning.json",
    f"{_ARENA}/emailsystem/attacks/tool_poisoning.json",
    f"{_ARENA}/emailsystem/attacks/tool_poisoning_focused_hardened.json",
)
_SCENARIOS: Final = "tool-poisoning-bench/scenarios.py"
_POISONED: Final = {"data_processor", "api_client", "analyzer", "formatter", "helper"}
_GROUPS: Final = ("shadowing_patterns", "cross_tool_references", "email_hijacking", "cross_origin_attempts")


def read_ours() -> list[Definition]:
    """Read the attacks we wrote."""
    found: list[Definition] = []
    for row in tomllib.loads(_OURS.read_text("utf-8"))["attack"]:
        times = row.get("repeat", 1)
        raw: dict[str, Any] = {"name": row["name"], "description": row["description"]}
        schema = row.get("schema", "{}")
        if "REPEAT" in schema:
            schema = schema.replace("REPEAT", "a word, " * (times // 8))
        else:
            raw["description"] *= times
        raw["inputSchema"] = {"type": "object", "properties": json.loads(schema)}
        if "annotations" in row:
            raw["annotations"] = row["annotations"]
        first = f"ours-{row['name']}" if "source" in row else ""
        found.append(Definition(row.get("source", "ours"), "attacker", raw, row["class"], first_id=first))
    return found


def read_public(root: Path) -> list[Definition]:
    """Read the attacks of the public sets."""
    found = [*_read_corpora(root / _DATASETS), *_read_techniques(root / _TECHNIQUES)]
    for path, names in _PROGRAMS.items():
        tools = read_program((root / path).read_text("utf-8"))
        source, _, place = path.partition("/")
        found += [Definition(source, place, tools[name], "poisoned") for name in names]
    for path in _INJECTIONS:
        row = _read(root / path)["tool_poisoning"]
        source, _, place = path.partition("/")
        found.append(Definition(source, place, _tool(row["target_tool"], row["injection"]), "poisoned"))
    found += _read_scenarios(root / _SCENARIOS)
    return drop_copies(found)


def read_imitations(root: Path) -> list[Definition]:
    """Read harmless texts that resemble attacks; their class is `imitation`."""
    found: list[Definition] = []
    for name in ("detect_corpus_v1.json", "security_corpus_v1.json"):
        for row in _read(root / _DATASETS / name)["entries"]:
            if row["label"] != "malicious":
                tool = row.get("tool") or _tool("tool", row["description"])
                found.append(Definition("mcpproxy-go", row["id"], tool, "imitation", first_id=row["id"]))
    return found


def read_real(root: Path, listings: Path) -> list[Definition]:
    """Read what real servers list: in public sets and in `listings`."""
    found: list[Definition] = []
    for path in sorted(listings.glob("*.json")):
        row = _read(path)
        found += [Definition("installed", row["server"], tool) for tool in row["tools"]]
    for row in _read(root / _SNAPSHOT)["tools"]:
        first = f"{row['server']}:{row['tool']}"
        found.append(Definition("LiveMCPTool", row["server"], _rename(row), first_id=first))
    for source in read_sources(SOURCES):
        for path in (root / source.name / name for name in sorted(source.files)):
            if path.suffix == ".snap":
                found.append(Definition(source.name, "github", _read(path)))
            elif path.name == "tools.json" and source.name == "mcp-registry":
                for row in _read(path):
                    found.append(Definition(source.name, path.parent.name, _fill_schema(row)))
    return drop_copies(found)


def _read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8-sig"))


def _tool(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}}


def _rename(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**_tool(row["tool"], row["description"]), **{key: row[key] for key in row.keys() & {"inputSchema"}}}


def _fill_schema(row: Mapping[str, Any]) -> dict[str, Any]:
    """Write the arguments of Docker's registry as a schema."""
    properties = {
        one["name"]: {"type": one.get("type", "string"), "description": one.get("desc", "")}
        for one in row.get("arguments") or ()
    }
    return {**_tool(row["name"], row.get("description", "")), "inputSchema": {"properties": properties}}


def _read_corpora(folder: Path) -> Iterator[Definition]:
    for row in _read(folder / "detect_corpus_v1.json")["entries"]:
        if row["label"] == "malicious":
            peers = {one["tool"]["name"]: one["server"] for one in row.get("peers") or ()}
            tool: dict[str, Any] = {**row["tool"], "inputSchema": {"type": "object"}}
            yield Definition("mcpproxy-go", row["id"], tool, row["category"], peers, row["id"])
    for row in _read(folder / "security_corpus_v1.json")["entries"]:
        if row["label"] == "malicious":
            tool = _tool("tool", row["description"])
            yield Definition("mcpproxy-go", row["id"], tool, row["category"], first_id=row["id"])


def _read_techniques(folder: Path) -> Iterator[Definition]:
    for line in (folder / "SAFE-T1001/test-logs.json").read_text("utf-8").splitlines():
        row = json.loads(line)
        if row["tool_name"] in _POISONED:
            yield Definition("safe-mcp", "T1001", _tool(row["tool_name"], row["tool_description"]), "poisoned")
    groups = _read(folder / "SAFE-T1008/test-logs.json")
    for group in _GROUPS:
        for row in groups[group]:
            yield Definition("safe-mcp", "T1008", _tool(row["tool_name"], row["tool_description"]), "shadowing")
    for row in _read(folder / "SAFE-T1402/test-logs.json"):
        if not row["tool_id"].startswith("legit"):
            tool = _tool(row["tool_name"], row["metadata"]["description"])
            yield Definition("safe-mcp", "T1402", tool, "poisoned")


def _read_scenarios(path: Path) -> Iterator[Definition]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            given = {one.arg: one.value for one in node.keywords}
            if "description_override" in given:
                place = ast.literal_eval(given["id"])
                for name, text in ast.literal_eval(given["description_override"]).items():
                    yield Definition("tool-poisoning-bench", place, _tool(name, text), "poisoned")


# -- programs ---------------------------------------------------------------------------------


def read_program(text: str) -> dict[str, dict[str, Any]]:
    """Find tools in a program: functions, `name` and `description` in one literal, and constants.

    Of two tools with one name, the one with the longer description counts: the other is what the attack replaces.
    """
    found: dict[str, dict[str, Any]] = {}

    def add(tool: dict[str, Any]) -> None:
        known = found.get(tool["name"])
        if known is None or len(known["description"]) < len(tool["description"]):
            found[tool["name"]] = {**(known or {}), **tool}

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            schema = {"properties": {one.arg: _read_argument(one) for one in node.args.args}}
            add({**_tool(node.name, ast.get_docstring(node) or ""), "inputSchema": schema})
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            given = {key.value: _join(value) for key, value in pairs if isinstance(key, ast.Constant)}
            name, description = given.get("name"), given.get("description")
            if name and description:
                add(_tool(name, description))
        elif isinstance(node, ast.Assign) and (description := _join(node.value)):
            target = node.targets[0]
            if isinstance(target, ast.Name):
                add(_tool(target.id, description))
            elif isinstance(target, ast.Attribute) and target.attr == "__doc__" and isinstance(target.value, ast.Name):
                add({"name": target.value.id, "description": description})
    return found


def _join(node: ast.expr) -> str:
    """Return a literal text; empty if it's something else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _read_argument(argument: ast.arg) -> dict[str, Any]:
    calls = [node for node in ast.walk(argument) if isinstance(node, ast.Call)]
    texts = [_join(one.value) for call in calls for one in call.keywords if one.arg == "description"]
    return {"type": "string", "description": texts[0]} if texts else {"type": "string"}


def count_sources(definitions: Sequence[Definition]) -> Mapping[str, tuple[int, int]]:
    """Count definitions and servers by source."""
    sources = dict.fromkeys(one.source for one in definitions)
    chosen = {source: [one for one in definitions if one.source == source] for source in sources}
    return {source: (len(ones), len({one.server for one in ones})) for source, ones in chosen.items()}
