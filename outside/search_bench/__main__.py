"""`python -m outside.search_bench`: recall of the tool search on public sets, beside FastMCP's and published figures.

Ours is measured through `ToolIndex.search`, as a client uses it: lexical, semantic (the cosine alone) and mixed. The
semantic columns need the model (`indus search fetch-model`). It ends with 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from induscode.connectors.operations import build_operation_item
from induscode.connectors.sources import examine_source
from induscode.search import index as search_index
from induscode.search.background import open_semantic
from induscode.search.index import ToolIndex
from induscode.search.weights import SENTENCE_ENCODER
from outside.connectors import DOCUMENT, QUERIES, fetch_document
from outside.install import CannotInstall, python_commands
from outside.say import say
from outside.search_bench import sets
from outside.search_bench.sets import BenchSet, Task
from outside.search_bench.sources import SetMissing, find_files

Rank: TypeAlias = Callable[[BenchSet], Callable[[str], Sequence[str]]]
"""Prepares a system for a set, and gives a function from a query to qualified names."""
DEPTHS: Final = (1, 5, 10)
PUBLISHED: Final = {"golden": "mcpproxy-go, as published for corpus_v1: .418 / .681 / .791"}
GOALS: Final = (("golden", "mixed", 5, 0.90), ("golden", "lexical", 5, 0.76), ("LiveMCPBench, steps", "mixed", 5, 0.78))
_MOST: Final = 100
_FASTMCP_S: Final = 1_800


def main(arguments: Sequence[str]) -> int:
    """Measure, print the tables, and tell by the exit code whether the goals are met."""
    parser = argparse.ArgumentParser(prog="search-bench", description=__doc__)
    parser.add_argument(
        "--sets", type=Path, help="a directory with the files of sources.toml, instead of fetching them"
    )
    parser.add_argument("--only", action="append", metavar="SET", help="measure this set; repeatable")
    parser.add_argument("--no-fastmcp", action="store_true", help="measure ours alone")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    try:
        root = find_files(options.sets)
        systems: dict[str, Rank] = {"FastMCP 4.1.2": prepare_fastmcp} if not options.no_fastmcp else {}
        if systems:
            python_commands("modern")
    except (SetMissing, CannotInstall) as exc:
        print(f"search-bench: {exc}", file=sys.stderr)
        return 2
    systems["lexical"] = prepare_lexical
    if SENTENCE_ENCODER.is_fetched():
        systems |= {"semantic": prepare_semantic, "mixed": prepare_mixed}
    else:
        say(f"There is no model: the semantic columns are left out ({SENTENCE_ENCODER.fetch_command}).")
    figures: dict[str, dict[str, dict[str, list[float]]]] = {}
    benches = read_sets(root)
    for bench in benches:
        if not options.only or bench.name in options.only:
            figures[bench.name] = measure(bench, systems)
    if unknown := {*(options.only or ())} - figures.keys():
        parser.error(f"there is no set {', '.join(sorted(unknown))}; there are: {', '.join(b.name for b in benches)}")
    check_names(benches[-1])
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    return judge(figures)


def read_sets(root: Path) -> Sequence[BenchSet]:
    """Read every set, and the assembled one at the end."""
    document = fetch_document()
    operations = examine_source("github", str(DOCUMENT), document, "https://api.github.com", None).operations
    read = [
        sets.read_golden(root),
        sets.read_live(root, steps=True),
        sets.read_live(root, steps=False),
        sets.read_metatool(root),
        sets.read_toolbench(root),
        sets.read_bfcl(root),
        sets.read_operations([build_operation_item(operation) for operation in operations], QUERIES),
    ]
    return [*read, sets.assemble([bench for bench in read if "steps" not in bench.name], _MOST)]


def prepare_lexical(bench: BenchSet) -> Callable[[str], Sequence[str]]:
    """Search by words alone."""
    return _ask(ToolIndex(bench.items))


def prepare_mixed(bench: BenchSet) -> Callable[[str], Sequence[str]]:
    """Search by words and meaning."""
    index = ToolIndex(bench.items, open_semantic())
    index.prepare(lambda done, total: say(f"  vectors: {done} of {total}") if done % 512 == 0 else None)
    return _ask(index)


def prepare_semantic(bench: BenchSet) -> Callable[[str], Sequence[str]]:
    """Rank by the cosine alone: what the semantic half does without the lexical one."""
    semantic = open_semantic()
    assert semantic is not None
    semantic.prepare(bench.items)
    semantic.select(dict(enumerate(bench.items)))
    names = [item.qualified_name for item in bench.items]

    def rank(query: str) -> Sequence[str]:
        vector = semantic.encode_query(query)
        assert vector is not None
        scores = semantic.score(vector)
        return [names[number] for number in sorted(scores, key=lambda number: (-scores[number], names[number]))[:10]]

    return rank


def _ask(index: ToolIndex) -> Callable[[str], Sequence[str]]:
    return lambda query: [hit.item.qualified_name for hit in index.search([query], limit=max(DEPTHS)).hits]


def prepare_fastmcp(bench: BenchSet) -> Callable[[str], Sequence[str]]:
    """Have FastMCP rank all queries of a set in a process of its own, by its own index over its own text."""
    queries = list(dict.fromkeys(query for task in bench.tasks for query in task.queries))
    tools = [
        {
            "name": item.qualified_name,
            "description": f"{item.title}. {item.description}" if item.title else item.description,
            "schema": item.schema or {},
        }
        for item in bench.items
    ]
    asked = json.dumps({"tools": tools, "queries": queries, "limit": max(DEPTHS)})
    program = [str(python_commands("modern") / "python"), str(Path(__file__).parent / "fastmcp_search.py")]
    done = subprocess.run(program, input=asked, capture_output=True, text=True, timeout=_FASTMCP_S, check=False)
    if done.returncode:
        raise SystemExit(f"FastMCP failed: {done.stderr[-2000:]}")
    ranked = dict(zip(queries, json.loads(done.stdout), strict=True))
    return lambda query: ranked[query]


def measure(bench: BenchSet, systems: dict[str, Rank]) -> dict[str, dict[str, list[float]]]:
    """Measure every system on a set, and print its table."""
    held = [task for task in bench.tasks if not task.is_tuning]
    print(f"\n{bench.name}: {len(bench.items):,} tools, {len(bench.tasks):,} tasks, {len(held):,} of them held out")
    print(f"  {'':16} {'held out: recall@1 / 5 / 10':30} {'all':24} ms a query")
    figures: dict[str, dict[str, list[float]]] = {}
    for name, prepare in systems.items():
        rank = prepare(bench)
        begin = time.perf_counter()
        ranked = {query: rank(query) for task in bench.tasks for query in task.queries}
        each = (time.perf_counter() - begin) / len(ranked) * 1_000
        figures[name] = {
            part: [sum(recall(ranked, task, depth) for task in tasks) / len(tasks) for depth in DEPTHS]
            for part, tasks in (("held out", held), ("all", bench.tasks))
        }
        texts = [" / ".join(f"{value:.3f}" for value in figures[name][part]) for part in ("held out", "all")]
        shown = "" if name.startswith("FastMCP") else f"{each:.2f}"
        print(f"  {name:16} {texts[0]:30} {texts[1]:24} {shown}", flush=True)
    if bench.name in PUBLISHED:
        print(f"  {PUBLISHED[bench.name]} (all)")
    return figures


def recall(ranked: dict[str, Sequence[str]], task: Task, depth: int) -> float:
    """Return which share of the labels is among the first hits of the queries of a task."""
    found = {name for query in task.queries for name in ranked[query][:depth]}
    return sum(not label.isdisjoint(found) for label in task.labels) / len(task.labels)


def check_names(bench: BenchSet) -> None:
    """Search every tool of a set by its names; each must come first.

    Raises:
        SystemExit: One does not.
    """
    index = ToolIndex(bench.items)
    for item in bench.items:
        for query in (item.qualified_name, item.name, item.name.upper().replace("_", "-")):
            first = index.search([query], limit=1).hits[0].item
            if search_index.normalize_name(query) not in {
                search_index.normalize_name(name) for name in (first.name, first.qualified_name)
            }:
                raise SystemExit(f"{query!r} finds {first.qualified_name} first")
    print(f"\nExact names: {len(bench.items):,} tools by three spellings each, all first")


def judge(figures: dict[str, dict[str, dict[str, list[float]]]]) -> int:
    """Print the goals with what was reached on the part that was held out."""
    missed = 0
    for bench, system, depth, goal in GOALS:
        if system in figures.get(bench, {}):
            reached, whole = (figures[bench][system][part][DEPTHS.index(depth)] for part in ("held out", "all"))
            missed += reached < goal
            mark = "ok" if reached >= goal else "MISSED"
            print(
                f"{mark:6} {bench}, {system}, recall@{depth}: {reached:.3f} held out, {whole:.3f} all, goal {goal:.2f}"
            )
    return 1 if missed else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main(sys.argv[1:]))
