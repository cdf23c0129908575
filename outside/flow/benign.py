"""Benign traces: how many steps of public task sets the guard would ask about.

Labels are proposed from the definitions of the set's tools, as for rows that nobody has touched. Each task is one
conversation.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from induscode.servers.labels import propose_labels

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

_TOOLS: Final = "mcpproxy-go/specs/083-discovery-profiler/datasets/livemcptool_snapshot/tools.json"
_TASKS: Final = "LiveMCPBench/annotated_data/all_annotations.json"
_TRACES: Final = "LiveMCPBench/baseline/output/claude-sonnet-4-20250514_Qwen3-Embedding-0.6B.json"
_NUMBER: Final = re.compile(r"^\s*\d+[.)]\s*")
_READ: Final = {"private", "untrusted"}
Step = tuple[str, str]
"""Server and tool."""


@dataclass(frozen=True, slots=True)
class BenignScore:
    """Questions about one set, if each yes covers one call, and if it covers the tool in the conversation."""

    name: str
    tasks: int
    steps: int
    once: int
    lasting: int


def measure(root: Path) -> Sequence[BenignScore]:
    """Count the questions about the annotated steps and about the calls of an agent."""
    tools = json.loads((root / _TOOLS).read_text("utf-8"))["tools"]
    labels: dict[Step, Collection[str]] = {}
    owners: defaultdict[str, list[str]] = defaultdict(list)
    for tool in tools:
        name, server = tool["tool"], tool["server"]
        labels[server, name] = propose_labels(name, tool, StdioServerConfig(server, "x"))
        owners[name].append(server)
    annotated = [
        [(owners[name][0], name) for name in _list_names(task) if name in owners]
        for task in json.loads((root / _TASKS).read_text("utf-8"))
    ]
    scores = [_count("LiveMCPBench, annotated steps", annotated, labels)]
    traces = [_read_calls(task) for task in json.loads((root / _TRACES).read_text("utf-8"))]
    return [*scores, _count("LiveMCPBench, calls of an agent (Claude Sonnet 4)", traces, labels)]


def _count(name: str, tasks: Sequence[Sequence[Step]], labels: Mapping[Step, Collection[str]]) -> BenignScore:
    once = lasting = 0
    for steps in tasks:
        join: set[str] = set()
        asked: set[Step] = set()
        for step in steps:
            found = labels.get(step, ())
            if "outward" in found and join >= _READ:
                once += 1
                lasting += step not in asked
                asked.add(step)
            join |= _READ.intersection(found)
    return BenignScore(name, len(tasks), sum(map(len, tasks)), once, lasting)


def _list_names(task: Any) -> list[str]:
    return [_NUMBER.sub("", line).strip() for line in task["Annotator Metadata"]["Tools"].splitlines()]


def _read_calls(task: Any) -> list[Step]:
    calls = [call["function"] for message in task["messages"] for call in message.get("tool_calls") or ()]
    found: list[Step] = []
    for call in calls:
        if call["name"] == "execute-tool":
            try:
                arguments = json.loads(call["arguments"])
            except ValueError:
                continue
            found.append((str(arguments.get("server_name")), str(arguments.get("tool_name"))))
    return found
