"""The servers that the conformance suite judges, and what each of them cannot have.

What a server does not offer is left out with a reason: never without one, and never if it passes
after all.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outside.install import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NO_RESOURCES = "a tool box has no resources"
_NO_PROMPTS = "a tool box has no prompts"
_NO_COMPLETION = "completion needs prompts or resource templates"
_NO_LOGGING = "a tool in a tool box cannot send log messages"
_OWN_STREAM = "a tool cannot close the stream of its own response"
_NO_ERROR = "a tool in a tool box returns results, never protocol errors"
_OWN_KEYS = "the host chooses the keys of input requests; the suite expects the server's own key"
_NO_STATE = "the input arrives without the state that identifies its call"
_NO_SUCH_NAMES = "it has none of the tools that the suite calls"

_BOX_LEFT_OUT: dict[str, str] = {
    "completion-complete": _NO_COMPLETION,
    "tools-call-with-logging": _NO_LOGGING,
    "server-sse-polling": _OWN_STREAM,
    "resources-list": _NO_RESOURCES,
    "resources-read-text": _NO_RESOURCES,
    "resources-read-binary": _NO_RESOURCES,
    "resources-templates-read": _NO_RESOURCES,
    "resources-subscribe": _NO_RESOURCES,
    "resources-unsubscribe": _NO_RESOURCES,
    "sep-2164-resource-not-found": _NO_RESOURCES,
    "prompts-list": _NO_PROMPTS,
    "prompts-get-simple": _NO_PROMPTS,
    "prompts-get-with-args": _NO_PROMPTS,
    "prompts-get-embedded-resource": _NO_PROMPTS,
    "prompts-get-with-image": _NO_PROMPTS,
    "input-required-result-basic-elicitation": _OWN_KEYS,
    "input-required-result-non-tool-request": _NO_PROMPTS,
    "input-required-result-ignore-extra-params": _NO_STATE,
    "sep-2640-skills-directory": _NO_RESOURCES,
    "sep-2640-skills-enumeration": _NO_RESOURCES,
    "sep-2640-skills-manifest": _NO_RESOURCES,
}
_BOX_MAY_FAIL: dict[str, str] = {
    "sep-2549-prompts-list-caching-hints": _NO_PROMPTS,
    "sep-2549-resources-list-caching-hints": _NO_RESOURCES,
    "sep-2549-resources-templates-list-caching-hints": _NO_RESOURCES,
    "sep-2575-server-no-log-without-loglevel": _NO_LOGGING,
    "sep-2575-server-rejects-undeclared-capability": _NO_ERROR,
    "sep-2575-missing-capability-http-400": _NO_ERROR,
}
_SESSIONS = 8
_TASKS_LEFT_OUT = {"tasks-status-notifications": "the suite skips it for every server"}
_RELAY_LEFT_OUT = {"server-sse-polling": _OWN_STREAM}
_GENERAL = frozenset(
    {
        "server-initialize",
        "server-session-lifecycle",
        "server-stateless",
        "logging-set-level",
        "ping",
        "tools-list",
        "server-sse-multiple-streams",
        "dns-rebinding-protection",
        "http-header-validation",
        "input-required-result-unsupported-methods",
    }
)
"""What can be said of any server that has tools."""
_DECK_MAY_FAIL: dict[str, str] = dict.fromkeys(
    (
        "sep-2575-server-rejects-undeclared-capability",
        "sep-2575-missing-capability-http-400",
        "sep-2575-http-server-no-independent-requests-on-stream",
        "sep-2575-server-no-log-without-loglevel",
        "sep-2575-server-sends-tools-list-changed-on-subscription",
    ),
    _NO_SUCH_NAMES,
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A server under judgement."""

    name: str
    command: tuple[str, ...]
    """What serves `http://localhost:{port}/mcp`; the port is put in for `{port}`."""
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    """The scenarios about what it does not offer, with the reason."""
    may_fail: Mapping[str, str] = field(default_factory=dict[str, str])
    """Checks about the same inside of other scenarios."""
    only: frozenset[str] | None = None
    """All that can be judged, where that is the shorter list."""
    prepare: tuple[str, ...] = ()
    """A command that is run once before: a gateway declares extensions of servers that it has seen."""
    has_tasks: bool = False
    """Whether the scenarios of tasks are judged, and they alone."""
    sessions: int | None = None
    """So many scenarios a process of it has room for: the suite leaves its sessions open."""

    def why_not(self, scenario: str) -> str | None:
        """Give the reason why a scenario does not count."""
        if self.only is not None and scenario not in self.only:
            return _NO_SUCH_NAMES
        return self.left_out.get(scenario)


def _run_nodes(gateway: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that runs three nodes with the flags of a gateway."""
    return (sys.executable, "-m", "outside.conformance.nodes", "{port}", *gateway[gateway.index("--no-token") :])


def subjects(scratch: Path) -> list[Subject]:
    """Name them all; what they need is written into an empty folder."""
    config = scratch / "servers.json"
    server = {"command": sys.executable, "args": ["-m", "outside.conformance.server"], "cwd": str(ROOT)}
    server["added"] = "allow"  # a scenario adds a tool and expects to hear of it
    config.write_text(json.dumps({"mcpServers": {"conformance": server}}), "utf-8")
    python = sys.executable
    task_config, task_server = scratch / "tasks.json", (python, str(ROOT / "tests/servers/tasks.py"))
    tasks = {"command": task_server[0], "args": [task_server[1], "--era", "modern"]}
    task_config.write_text(json.dumps({"mcpServers": {"tasks": tasks}}), "utf-8")
    indus = (python, "-m", "induscode", "serve", "--http", "127.0.0.1:{port}", "--no-token")
    gateway = (*indus, "--profile", "none", "--names", "plain", "--mcp", str(config))
    task_gateway = (*indus, "--profile", "none", "--names", "plain", "--tasks", "refuse", "--mcp", str(task_config))
    relay = (*indus, "--transparent", "conformance", "--mcp", str(config))
    return [
        Subject("direct", (python, "-m", "outside.conformance.server", "--http", "{port}")),
        Subject(
            "tool box",
            (python, "-m", "outside.conformance.host", "{port}"),
            left_out=_BOX_LEFT_OUT,
            may_fail=_BOX_MAY_FAIL,
        ),
        Subject("pass-through", relay, left_out=_RELAY_LEFT_OUT, sessions=_SESSIONS),
        Subject(
            "gateway",
            gateway,
            left_out=_RELAY_LEFT_OUT,
            prepare=(python, "-m", "induscode", "resources", "list", "--mcp", str(config)),
            sessions=_SESSIONS,
        ),
        Subject(
            "three nodes",
            _run_nodes(gateway),
            left_out=_RELAY_LEFT_OUT,
            prepare=(python, "-m", "induscode", "resources", "list", "--mcp", str(config)),
            sessions=_SESSIONS,
        ),
        Subject("tasks, direct", (*task_server, "--http", "{port}"), left_out=_TASKS_LEFT_OUT, has_tasks=True),
        Subject("tasks, gateway", task_gateway, left_out=_TASKS_LEFT_OUT, has_tasks=True),
        Subject("tasks, three nodes", _run_nodes(task_gateway), left_out=_TASKS_LEFT_OUT, has_tasks=True),
        Subject("deck", (*indus, "--no-mcp"), may_fail=_DECK_MAY_FAIL, only=_GENERAL, sessions=_SESSIONS),
    ]
