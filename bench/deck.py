"""What the deck's ledger costs: enrolling, replaying, and booting from it."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import tempfile
from contextlib import closing
from dataclasses import replace
from functools import partial
from time import perf_counter, process_time
from typing import TYPE_CHECKING

from bench.bridge.program import server
from bench.measure import Pair, calls, compare
from bench.row import CannotMeasure, Row
from bench.samples import SEARCH_SCHEMA
from indusagi.interop.protocol_bridge import BridgeConfig, EndpointPhase, StdioServerConfig, mount_protocol_bridge
from indusagi.interop.protocol_bridge.client.tools import read_tools
from induscode.deck.mcp.boot import BootOptions, boot_bridge
from induscode.deck.mcp.capability import BridgeCapability, read_definitions
from induscode.deck.mcp.ledger import BridgeLedger, EnrollRequest
from induscode.deck.mcp.review import review_items
from induscode.deck.mcp.store import open_store
from induscode.deck.mcp.store.history import read_ledger_log
from induscode.deck.mcp.store.journal import Journal
from induscode.servers.plan import ServerPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from bench.measure import Batch
    from induscode.deck.mcp.ledger import BridgeEntry

_AT = "2026-11-15T12:00:00.000Z"
_FEW, _MANY, _LOG = 1_000, 10_000, 100_000
_ROUNDS = 5
_SERVERS, _BOOT_TOOLS, _OWN_TOOLS = 30, 510, 12
"""The tools of all servers, and how many of a server's own it has without being told."""


# -- the ledger -------------------------------------------------------------------------------


def make_requests(count: int, server: str = "bench") -> Sequence[EnrollRequest]:
    """Make so many tools of one server, to be enrolled."""
    config = StdioServerConfig(server, "never-started")
    (tool,), _ = read_tools([SEARCH_SCHEMA], config)
    made: list[EnrollRequest] = []
    for number in range(count):
        ref = replace(tool.ref, name=f"tool{number}")
        descriptor = replace(tool.descriptor, name=f"{server}__tool{number}")
        made.append(EnrollRequest(BridgeCapability.from_definition(descriptor, ref, tool.raw), server))
    return made


def _enroll_tools(requests: Sequence[EnrollRequest]) -> BridgeLedger:
    ledger = BridgeLedger.empty()
    for request in requests:
        ledger = ledger.enroll(request, _AT)
    return ledger


def _enrol() -> Pair:
    requests = make_requests(_MANY)
    many, few = partial(_enroll_tools, requests), partial(_enroll_tools, requests[:_FEW])
    return compare(_run_timed(many), _run_timed(few), rounds=_ROUNDS)


def _review() -> Pair:
    items = {request.capability.ref: request.capability.raw for request in make_requests(_FEW)}
    names = {f"other{number}_tool": "other" for number in range(_FEW)}
    read = partial(read_definitions, "tool", [*items.values()], StdioServerConfig("bench", "never-started"))
    return compare(_run_timed(partial(review_items, "bench", items, names)), _run_timed(read), rounds=_ROUNDS)


def _run_timed(step: Callable[[], object]) -> Batch:
    """Time calls by what they use of the processor.

    On a busy machine a long piece of work is interrupted, and a short one beside it is not.
    """

    def batch(count: int) -> float:
        started = process_time()
        for _ in range(count):
            step()
        return process_time() - started

    return batch


def _log(count: int) -> Sequence[BridgeEntry]:
    """Make a log in which the same tools come again and again."""
    requests = make_requests(_FEW)
    ledger = BridgeLedger.empty()
    number = 0
    while ledger.next_seq <= count:
        ledger = ledger.enroll(requests[number % _FEW], _AT)
        number += 1
    return ledger.log[:count]


def _replay() -> Pair:
    log = _log(_LOG)
    whole, tenth = partial(BridgeLedger.from_log, log), partial(BridgeLedger.from_log, log[:_MANY])
    return compare(_run_timed(whole), _run_timed(tenth), rounds=_ROUNDS)


# -- the store --------------------------------------------------------------------------------


def _replay_stored() -> Pair:
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        path = os.path.join(folder, "state", "ledger.db")
        run = runner.run(_write_store(path, _log(_LOG)))
        ours, bare = _reading(runner, path, run), calls(partial(_read_bare, path))
        return compare(ours, bare, rounds=_ROUNDS)


async def _write_store(path: str, log: Sequence[BridgeEntry]) -> str:
    store = await open_store(path)
    try:
        journal = Journal(store)
        for at in range(0, len(log), _FEW):
            journal.record_entries(log[at : at + _FEW])
        if not await store.flush():
            raise CannotMeasure(f"nothing can be stored: {store.notes}")
        return journal.run
    finally:
        await store.aclose()


def _reading(runner: asyncio.Runner, path: str, run: str) -> Batch:
    async def batch(count: int) -> float:
        store = await open_store(path)
        try:
            started = perf_counter()
            for _ in range(count):
                entries, _notes = await read_ledger_log(store, run)
                if BridgeLedger.from_log(entries).next_seq != _LOG + 1:
                    raise CannotMeasure("the store gave another log than it was given")
            return perf_counter() - started
        finally:
            await store.aclose()

    return lambda count: runner.run(batch(count))


def _read_bare(path: str) -> list[object]:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT facts FROM events ORDER BY position")
        return [json.loads(facts) for (facts,) in found]


# -- booting ----------------------------------------------------------------------------------


def _boot() -> Pair:
    """Boot a deck from what is known of servers, and mount the same servers."""
    each = _BOOT_TOOLS // _SERVERS - _OWN_TOOLS
    command, args = server(sys.executable)
    servers = [
        StdioServerConfig(f"server{number}", command, [*args, "--tools", str(each)]) for number in range(_SERVERS)
    ]
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        path = os.path.join(folder, "state", "ledger.db")
        runner.run(_boot_deck(path, servers, lazy=False))
        ours = _sum_times(runner, partial(_boot_deck, path, servers, lazy=True))
        return compare(ours, _sum_times(runner, partial(_mount_servers, servers)), rounds=_ROUNDS)


async def _boot_deck(path: str, servers: Sequence[StdioServerConfig], *, lazy: bool) -> float:
    started = perf_counter()
    store = await open_store(path)
    options = BootOptions(lazy=frozenset(one.id for one in servers) if lazy else ())
    bridge = await boot_bridge(store, ServerPlan.from_configs(servers), options)
    if not lazy:
        await bridge.wait_started()
    took = perf_counter() - started
    status, tools = bridge.status(), bridge.capabilities
    await bridge.aclose()
    await store.aclose()
    if len(tools) < _BOOT_TOOLS - _SERVERS:
        raise CannotMeasure(f"the deck is not whole: {bridge.notes}")
    if lazy and any(one.phase is not EndpointPhase.IDLE for one in status.values()):
        raise CannotMeasure("a server was started")
    return took


async def _mount_servers(servers: Sequence[StdioServerConfig]) -> float:
    started = perf_counter()
    bridge = await mount_protocol_bridge(BridgeConfig(servers))
    took = perf_counter() - started
    await bridge.fleet.tear_down()
    return took


def _sum_times(runner: asyncio.Runner, once: Callable[[], Coroutine[object, object, float]]) -> Batch:
    """Sum up what each one says it took: closing is not part of it."""
    return lambda count: sum(runner.run(once()) for _ in range(count))


ROWS = (
    Row("enrol-10k", f"enrolling {_MANY:,} tools one by one", f"enrolling {_FEW:,}", _enrol, budget=12),
    Row("review", f"reviewing {_FEW:,} new tools", "reading their definitions", _review, budget=3),
    Row(
        "replay-100k",
        f"folding a log of {_LOG:,} events",
        f"folding one of {_MANY:,}",
        _replay,
        # Ten times the events; what is beyond that is the sorting, and caches that are too small.
        budget=15,
    ),
    Row(
        "replay-stored",
        f"a ledger of {_LOG:,} events from its file",
        "reading its rows as JSON and doing nothing with them",
        _replay_stored,
        # Twice what is measured: every row becomes an event, and every event is folded.
        budget=10,
    ),
    Row(
        "boot-500",
        f"a deck of {_BOOT_TOOLS} tools from the store, with no server started",
        f"mounting the {_SERVERS} servers that have them",
        _boot,
        budget=0.5,
    ),
)
