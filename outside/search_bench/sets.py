"""The sets as tools and tasks: what is searched, the queries of each task, and the tools that are right.

A task is right in so far as its labels are found. A label is a set of items of which any one will do: a tool that two
sources bring, or a name that two servers have. Tasks are divided by the SHA-256 of their text: the mixing weights were
chosen on the part `tuning`, and figures are reported for the part `held out`.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from induscode.search.items import build_item

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from induscode.search.items import SearchItem

_STEP: Final = re.compile(r"^\s*\d+[.)]\s*")
_LAST: Final = 0x80


@dataclass(frozen=True, slots=True)
class Task:
    """What is looked for, and what is right."""

    queries: Sequence[str]
    """One query, or one for each step: the hits of all of them count."""
    labels: Sequence[frozenset[str]]
    """Qualified names, of which one of each set must be found."""

    @property
    def is_tuning(self) -> bool:
        """Whether the task is in the part that weights are chosen on: half of all tasks."""
        return hashlib.sha256("\n".join(self.queries).encode()).digest()[0] < _LAST


@dataclass(frozen=True, slots=True)
class BenchSet:
    """Tools and tasks."""

    name: str
    items: Sequence[SearchItem]
    tasks: Sequence[Task]


def _read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def _read_lines(path: Path) -> Iterator[Any]:
    for line in path.read_text("utf-8").splitlines():
        yield json.loads(line)


def _build(server: str, tool: str, description: str, schema: Any) -> SearchItem:
    return build_item("tool", server, tool, f"{server}__{tool}", description=description, schema=schema or {})


def read_golden(root: Path) -> BenchSet:
    """Read the golden set of mcpproxy-go: 45 tools of seven reference servers, 47 questions with graded labels."""
    folder = root / "mcpproxy-go/specs"
    tools = _read(folder / "083-discovery-profiler/datasets/corpus_v2.tools.json")["tools"]
    items = [_build(tool["server"], tool["tool"], tool["description"], tool["schema"]) for tool in tools]
    rows = _read(folder / "065-evaluation-foundation/datasets/retrieval_golden_v1.json")["queries"]
    tasks = [
        Task(
            [row["query"]],
            [frozenset({label["tool_id"].replace(":", "__", 1)}) for label in row["labels"] if label["relevance"] >= 1],
        )
        for row in rows
    ]
    return BenchSet("golden", items, tasks)


def read_live_tools(root: Path) -> Sequence[SearchItem]:
    """Read the 527 tools of LiveMCPBench."""
    path = root / "mcpproxy-go/specs/083-discovery-profiler/datasets/livemcptool_snapshot/tools.json"
    tools = _read(path)["tools"]
    return [_build(tool["server"], tool["tool"], tool["description"], tool["inputSchema"]) for tool in tools]


def read_live(root: Path, *, steps: bool) -> BenchSet:
    """Read the tasks of LiveMCPBench: 94 with labelled tools; the query is the question, or each step is one."""
    items = read_live_tools(root)
    owners: defaultdict[str, set[str]] = defaultdict(set)
    for item in items:
        owners[item.name].add(item.qualified_name)
    tasks: list[Task] = []
    for row in _read(root / "LiveMCPBench/annotated_data/all_annotations.json"):
        facts = row["Annotator Metadata"]
        names = dict.fromkeys(_list_lines(facts["Tools"]))
        labels = [frozenset(owners[name]) for name in names if name in owners]
        queries = _list_lines(facts["Steps"]) if steps else [row["Question"]]
        if labels and queries:
            tasks.append(Task(queries, labels))
    return BenchSet("LiveMCPBench, steps" if steps else "LiveMCPBench, whole tasks", items, tasks)


def _list_lines(text: str) -> list[str]:
    lines = (_STEP.sub("", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def read_metatool(root: Path) -> BenchSet:
    """Read MetaTool: 199 plug-ins of chat programs, and every twentieth of 20,614 questions."""
    folder = root / "MetaTool/dataset"
    about: dict[str, str] = _read(folder / "plugin_des.json")
    items = [_build("plugin", name, text, None) for name, text in about.items()]
    with (folder / "data/all_clean_data.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["Query"], row["Tool"]) for row in csv.DictReader(file)]
    tasks = [Task([query], [frozenset({f"plugin__{tool}"})]) for query, tool in rows if tool in about]
    return BenchSet("MetaTool", items, _take(tasks, 1_000))


def read_toolbench(root: Path) -> BenchSet:
    """Read MCPToolBench++: four domains with single calls; tools that the set calls similar are right too."""
    items: dict[str, SearchItem] = {}
    tasks: list[Task] = []
    for path in sorted((root / "MCPToolBenchPP/data").glob("*/*_single*.json")):
        if "demo" in path.name:
            continue
        for row in _read(path):
            owners = {tool: server for server, tools in row["mcp_tools_dict"].items() for tool in tools}
            for tool in row["tools"]:
                server = owners.get(tool["name"], row["category"])
                item = _build(server, tool["name"], tool["description"], tool["input_schema"])
                items[item.qualified_name] = item
            (call,) = row["function_call_label"][:1]
            named = [call, *call.get("similar_tools", ())]
            names = frozenset(f"{owners.get(each['name'], row['category'])}__{each['name']}" for each in named)
            tasks.append(Task([row["query"]], [names]))
    return BenchSet("MCPToolBench++", list(items.values()), tasks)


def read_bfcl(root: Path) -> BenchSet:
    """Read four categories of the Berkeley Function-Calling Leaderboard: one call each, 500 questions."""
    folder = root / "gorilla/berkeley-function-call-leaderboard/bfcl_eval/data"
    items: dict[str, SearchItem] = {}
    tasks: list[Task] = []
    for name in ("live_multiple", "live_simple", "multiple", "simple_python"):
        answers = {
            row["id"]: next(iter(row["ground_truth"][0]))
            for row in _read_lines(folder / f"possible_answer/BFCL_v4_{name}.json")
        }
        for row in _read_lines(folder / f"BFCL_v4_{name}.json"):
            for function in row["function"]:
                # The same name with another text is another function.
                text = function["description"]
                mark = hashlib.sha256(text.encode()).hexdigest()[:6]
                item = _build(f"bfcl-{mark}", function["name"], text, function["parameters"])
                items.setdefault(item.qualified_name, item)
            query = " ".join(message["content"] for message in row["question"][0] if message["role"] == "user")
            right = {
                f"bfcl-{hashlib.sha256(function['description'].encode()).hexdigest()[:6]}__{function['name']}"
                for function in row["function"]
                if function["name"] == answers[row["id"]]
            }
            tasks.append(Task([query], [frozenset(right)]))
    # The server's name is a digest, which no query has: it says nothing.
    plain = [_build("", item.name, item.description, item.schema) for item in items.values()]
    named = [_rename(item, name) for item, name in zip(plain, items, strict=True)]
    return BenchSet("BFCL", named, _take(tasks, 500))


def _rename(item: SearchItem, name: str) -> SearchItem:
    return build_item("tool", item.server, item.name, name, description=item.description, schema=item.schema)


def read_operations(items: Sequence[SearchItem], queries: Path) -> BenchSet:
    """Read GitHub's REST API as `make connectors` fetches it, with its twenty questions."""
    slugs = {item.name: item.qualified_name for item in items}
    rows: dict[str, str] = tomllib.loads(queries.read_text("utf-8"))
    return BenchSet("GitHub REST", items, [Task([text], [frozenset({slugs[name]})]) for text, name in rows.items()])


def assemble(sets: Sequence[BenchSet], most: int) -> BenchSet:
    """Put sets together: every tool once, and at most `most` single queries of each set.

    Tools with one own name and one description are the same tool: a label may name any of them.
    """
    kept: dict[tuple[str, str], SearchItem] = {}
    names: dict[str, str] = {}
    for bench in sets:
        for item in bench.items:
            first = kept.setdefault((item.name, " ".join(item.description.split())), item)
            names[item.qualified_name] = first.qualified_name
    tasks: dict[str, Task] = {}
    for bench in sets:
        for task in _take([task for task in bench.tasks if len(task.queries) == 1], most):
            labels = [frozenset(names[name] for name in label if name in names) for label in task.labels]
            tasks.setdefault(task.queries[0], Task(task.queries, labels))
    return BenchSet("assembled", list(kept.values()), list(tasks.values()))


def _take(tasks: Sequence[Task], most: int) -> Sequence[Task]:
    """Take the tasks with the smallest digests, in their order."""
    ranked = sorted(tasks, key=lambda task: hashlib.sha256(repr(task.queries).encode()).digest())
    chosen = {id(task) for task in ranked[:most]}
    return [task for task in tasks if id(task) in chosen]
