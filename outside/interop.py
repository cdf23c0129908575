"""`python -m outside.interop`: visit servers that others wrote, over every transport.

Ends with 0 if all went well, with 1 if something failed or was skipped, with 2 if nothing could be
installed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from indusagi.interop import SseServerConfig, StreamableHttpServerConfig
from outside.install import ROOT, CannotInstall, find_node, node_packages, python_commands
from outside.remote import NotListening, listening, pages
from outside.restarts import STARTS, visit_restarts
from outside.say import aligned, complain, markdown, say, write_between
from outside.servers import make_scratch, node_servers, python_servers, restarted_servers
from outside.visit import Visit, stdio, visit, visit_together

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from outside.servers import RemoteKind, Server

_HEAD = ("server", "transport", "protocol", "tools", "called", "ms", "result")
_WIDTHS = (19, 15, 17, 5, 29, 5, 6)
_NO_NODE = "skipped: no node"


class _Options(argparse.Namespace):
    allow_skip: bool


def main(arguments: Sequence[str]) -> int:
    """Visit them all and return the exit code."""
    parser = argparse.ArgumentParser(prog="outside.interop", description=__doc__)
    parser.add_argument("--allow-skip", action="store_true", help="a skipped row is no failure")
    options = parser.parse_args(arguments, _Options())
    try:
        visits = _visit_all()
    except CannotInstall as exc:
        complain(f"outside.interop: {exc}")
        return 2
    skipped = [done for done in visits if done.skipped]
    failed = [done for done in visits if done.wrong]
    if not skipped:
        # Without the times, which differ from run to run.
        rows = [(*_cells(done)[:5], "FAILED" if done.wrong else "ok") for done in visits]
        write_between(ROOT / "docs/evidence/conformance.md", "interop", markdown((*_HEAD[:5], _HEAD[6]), rows))
    well = len(visits) - len(failed) - len(skipped)
    say(f"{well} ok, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or (skipped and not options.allow_skip) else 0


def _visit_all() -> list[Visit]:
    node = find_node()
    commands, modern = python_commands("servers"), python_commands("modern")
    varied, unordered = python_commands("varied"), python_commands("unordered")
    packages = Path() if node is None else node_packages(node)
    if node is None:
        complain("outside.interop: no node 22 or newer with npm; run `make setup`, or install one")
    with tempfile.TemporaryDirectory() as folder, pages(Path(folder)) as address:
        # Some servers compare a path with what it really is: a link on the way would confuse them.
        scratch = Path(folder).resolve()
        make_scratch(scratch)
        program = Path("node") if node is None else node.path
        servers = [
            *python_servers(commands, modern, scratch, f"{address}/note.txt"),
            *node_servers(program, packages, scratch),
        ]
        again = restarted_servers(varied, unordered, program, packages, scratch)
        return asyncio.run(_print_rows(servers, again, scratch, no_node=node is None))


async def _print_rows(
    servers: Sequence[Server], again: Sequence[Server], scratch: Path, *, no_node: bool
) -> list[Visit]:
    say(aligned(_HEAD, _WIDTHS))
    visits: list[Visit] = []
    async for done in _rows(servers, no_node=no_node):
        say(aligned(_cells(done), _WIDTHS))
        visits.append(done)
    for server in again:
        if server.needs_node and no_node:
            done = Visit(server.id, f"stdio, {STARTS} starts", skipped=_NO_NODE)
        else:
            done = await visit_restarts(server, scratch / f"{server.id}.db")
        say(aligned(_cells(done), _WIDTHS))
        visits.append(done)
    return visits


async def _rows(servers: Sequence[Server], *, no_node: bool) -> AsyncGenerator[Visit]:
    there = [server for server in servers if not (no_node and server.needs_node)]
    for server in servers:
        if server in there:
            yield await visit(stdio(server), server.calls)
        else:
            yield Visit(server.id, "stdio", skipped=_NO_NODE)
    yield await visit_together(there)
    for server in servers:
        for kind in server.remote:
            if server in there:
                yield await _visit_remote(server, kind)
            else:
                yield Visit(server.id, kind, skipped=_NO_NODE)


async def _visit_remote(server: Server, kind: RemoteKind) -> Visit:
    try:
        async with listening([*server.command, *server.remote[kind]]) as port:
            if kind == "sse":
                config = SseServerConfig(server.id, f"http://localhost:{port}/sse")
            else:
                config = StreamableHttpServerConfig(server.id, f"http://localhost:{port}/mcp")
            return await visit(config, server.calls)
    except NotListening as exc:
        return Visit(server.id, kind, wrong=[str(exc)])


def _cells(done: Visit) -> tuple[str, ...]:
    if done.skipped:
        return (done.server, done.transport, "", "", "", "", done.skipped)
    called = done.called[0] if done.called else ""
    if len(done.called) > 1:
        called += f" and {len(done.called) - 1} more"
    spoken, tools, ms = done.spoken, str(done.tools), f"{done.ms:.0f}"
    return (done.server, done.transport, spoken, tools, called, ms, done.verdict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
