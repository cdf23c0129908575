"""`python -m outside.clients`: let clients that others wrote visit `indus serve`.

Ends with 0 if all went well, with 1 if something failed, with 2 if nothing could be installed.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from outside.clients.agents import LOOKED_AT, Agent, Outcome, agents, examine
from outside.clients.roster import clients
from outside.clients.visits import Visit, visit
from outside.install import ROOT, CannotInstall, find_node, node_packages, python_commands
from outside.say import aligned, complain, markdown, say, write_between

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outside.clients.roster import Client
    from outside.clients.subject import Transport

TRANSPORTS: tuple[Transport, ...] = ("stdio", "http")
_HEAD = ("client", "transport", "protocol", *Visit.looked_at, "cancelled by", "result")
_WIDTHS = (22, 9, 10, *(max(len(what), 3) for what in Visit.looked_at), 21, 6)

_AGENTS = ("agent", "version", *LOOKED_AT, "result")
_AGENT_WIDTHS = (22, 9, *map(len, LOOKED_AT), 6)


class _Options(argparse.Namespace):
    only: str


def main(arguments: Sequence[str]) -> int:
    """Let them all visit and return the exit code."""
    parser = argparse.ArgumentParser(prog="outside.clients", description=__doc__)
    parser.add_argument("--only", default="", help="only clients whose name holds this")
    options = parser.parse_args(arguments, _Options())
    try:
        chosen = [client for client in _install_clients() if options.only in client.name]
        known = [agent for agent in _agents() if options.only in agent.name]
    except CannotInstall as exc:
        complain(f"outside.clients: {exc}")
        return 2
    say(aligned(_HEAD, _WIDTHS))
    visits = [_print_results(visit(client, how)) for how in TRANSPORTS for client in chosen]
    failed = [done for done in visits if done.wrong]
    outcomes = [_examine_client(agent) for agent in known]
    broken = [done for done in outcomes if any(done.wrong.values())]
    if not options.only:
        rows = [(*done.cells, "FAILED" if done.wrong else "ok") for done in visits]
        write_between(ROOT / "docs/evidence/clients.md", "clients", markdown(_HEAD, rows))
        told = [(*done.cells, "FAILED" if done in broken else "ok") for done in outcomes]
        write_between(ROOT / "docs/evidence/clients.md", "agents", markdown(_AGENTS, told))
    bad, done = len(failed) + len(broken), len(visits) + len(outcomes)
    say(f"{done - bad} ok, {bad} failed")
    return 1 if bad or not done else 0


def _install_clients() -> list[Client]:
    node = find_node()
    if node is None:
        raise CannotInstall("no node 22 or newer with npm; run `make setup`, or install one")
    modern, legacy = python_commands("clients/modern"), python_commands("clients/legacy")
    return clients(node.path, node_packages(node, "clients"), modern, legacy)


def _agents() -> list[Agent]:
    node = find_node()
    assert node is not None
    return agents(node.path, node_packages(node, "clients/coding"))


def _examine_client(agent: Agent) -> Outcome:
    done = examine(agent)
    wrong = "; ".join(f"{what}: {why}" for what, why in done.wrong.items() if why)
    say(aligned((*done.cells, f"FAILED: {wrong}" if wrong else "ok"), _AGENT_WIDTHS))
    return done


def _print_results(done: Visit) -> Visit:
    result = f"FAILED: {'; '.join(done.wrong)}" if done.wrong else "ok"
    say(aligned((*done.cells, result), _WIDTHS))
    return done


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
