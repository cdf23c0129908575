"""State a cluster node shares with other nodes, applied to its gateway.

Approved definitions and consents sync both ways automatically. Servers and rules enter the cluster through `indus
cluster config`: a node writes the servers to a private file that it reads like its other configuration files, and its
calls have to pass the cluster's rules in addition to its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.app_dirs import make_private_dir, replace_file, state_dir
from indusagi.core.json import JsonObject, compact_json, is_json_object
from indusagi.core.tasks import Backoff
from indusagi.core.time import now_ms
from induscode.boot.plans import plan_servers
from induscode.cli.terminal import print_status
from induscode.cluster.contract import ClusterFault, ClusterSettings
from induscode.cluster.node import open_node
from induscode.cluster.opening import describe_fault
from induscode.cluster.server_sessions import open_session
from induscode.cluster.sessions import open_sessions
from induscode.cluster.shared.state import (
    ANSWER,
    BUDGET,
    JOIN,
    REQUEST,
    TOKEN,
    USE,
    CallPublisher,
    SharedState,
    SharedTrust,
    keep_running,
    open_shared_state,
)
from induscode.cluster.shared.state import KIND as CONSENT
from induscode.deck.mcp.store.pins import build_identities
from induscode.gateway.approvals.queue import POLL_S, ApprovalQueue
from induscode.gateway.approvals.store import Approval, ApprovalState
from induscode.gateway.gateway import Gateway, GatewayContext, NodeHooks
from induscode.gateway.recursion import drop_own_address
from induscode.gateway.tokens import TokenEntry, TokenStore, TokenUse, grant_calls
from induscode.permissions.flow import IDLE_S, READ

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AsyncExitStack

    from anyio.abc import TaskGroup

    from induscode.cluster.shared.table import SharedTable
    from induscode.deck.contract import Capability
    from induscode.gateway.token_book import TokenBook
    from induscode.launch.invocation import Invocation
    from induscode.permissions import CardChecks, Wrap


WATCH_S = 0.25
"""Poll interval for a node's files, so that changes on other nodes apply within a second."""
RULES = "the rules of the cluster"
_JOIN_S = 5.0
"""How long a call waits for the brokers, to learn what its client has read, or its budget, at other nodes."""
_USES_S = 2.0
"""How often uses of tokens are shared."""


def find_config_path(node: str) -> str:
    """Return the path of the file with the cluster's servers; `OSError` without a home directory."""
    return os.path.join(state_dir(), "cluster", f"{node}.json")


class JoinSharing:
    """Shares what clients without sessions have read: each of their requests may reach another node."""

    def __init__(self, table: SharedTable) -> None:
        self._table = table

    async def read(self, key: str, /) -> Sequence[JsonObject]:
        """Return the calls of a conversation at all nodes; if they can't be asked, it counts as having read all."""
        try:
            async with asyncio.timeout(_JOIN_S):
                await self._table.load()
        except (ClusterFault, TimeoutError):
            return [{"label": label, "tool": "a node that can't be asked"} for label in READ]
        value = self._table.list(JOIN).get(self._table.build_key(JOIN, key), {})
        calls, until = value.get("calls"), value.get("until")
        is_recent = isinstance(until, int) and until > now_ms()
        return [*filter(is_json_object, calls)] if is_recent and isinstance(calls, list) else []

    async def write(self, key: str, calls: Sequence[JsonObject], /) -> None:
        """Add the calls of a conversation to its entry."""
        known = {str(call.get("label")): call for call in (*calls, *await self.read(key))}
        value: JsonObject = {"calls": [*known.values()], "until": now_ms() + round(IDLE_S * 1000)}
        try:
            async with asyncio.timeout(_JOIN_S):
                await self._table.put(self._table.build_key(JOIN, key), value)
        except (ClusterFault, TimeoutError) as fault:
            print_status(f"what a client has read is not shared with the other nodes: {fault}")


class TokenSharing:
    """Shares named tokens, locked-out principals, and budgets with the other nodes. `run` has to run meanwhile."""

    def __init__(self, state: SharedState, store: TokenStore) -> None:
        self._table, self._node, self.store = state.table, state.node.info.node, store
        self._changed = asyncio.Event()
        self._known: dict[str, JsonObject] = {}
        """Entries of the table that were read or written."""
        self._send_at, self._is_behind = 0.0, False
        state.on_tokens.add(self._changed.set)

    async def run(self, book: TokenBook) -> None:
        """Share changes as they come, until cancelled or the brokers fail."""
        book.on_changed.add(self._changed.set)
        self._changed.set()
        while True:
            with anyio.move_on_after(_USES_S if self._is_behind else None):
                await self._changed.wait()
            self._changed.clear()
            if await self.take():
                await book.load()
            await self._send()

    async def take(self) -> bool:
        """Store the entries of the other nodes, and return whether one of a token is new."""
        shared = {**self._table.list(TOKEN), **self._table.list(USE)}
        new = {key: value for key, value in shared.items() if self._known.get(key) != value}
        self._known |= new

        def store() -> bool:
            has_entry = False
            for key, value in new.items():
                try:
                    if key.startswith(f"{TOKEN}."):
                        has_entry |= self.store.put(TokenEntry.parse(value))
                    elif value.get("node") != self._node:
                        self.store.put_use(TokenUse.parse(value))
                except ValueError as exc:
                    print_status(f"the entry {key} of the cluster is ignored: {exc}")
            return has_entry

        return await to_thread.run_sync(store) if new else False

    async def _send(self) -> None:
        shared = self._table.list(TOKEN)
        for entry in await to_thread.run_sync(self.store.list_entries):
            key = self._table.build_key(TOKEN, entry.kind, entry.name)
            if entry.changed_ms > int(str(shared.get(key, {}).get("changed_ms", -1))):
                await self._table.put(key, entry.to_json())
        now = asyncio.get_running_loop().time()
        self._is_behind = now < self._send_at
        if self._is_behind:
            return
        self._send_at = now + _USES_S
        for use in await to_thread.run_sync(self.store.list_uses):
            key = self._table.build_key(USE, use.owner, self._node)
            if use.node == self._node and self._known.get(key) != use.to_json():
                self._known[key] = use.to_json()
                await self._table.put(key, use.to_json())

    async def grant(self, owner: str, day: int, count: int, limit: int) -> int:
        """Take calls of a budget, like `TokenStore.grant`; `OSError` if the brokers don't answer."""
        granted = 0

        def change(value: JsonObject | None) -> JsonObject:
            nonlocal granted
            known = value or {}
            taken_day, taken = int(str(known.get("day", day))), int(str(known.get("calls", 0)))
            calls, granted = grant_calls((taken_day, taken), day, count, limit)
            return {"day": max(day, taken_day), "calls": calls}

        key, backoff = self._table.build_key(BUDGET, owner), Backoff(0.01, longest_s=0.1, jitter=0.5)
        try:
            async with asyncio.timeout(_JOIN_S):
                while True:
                    try:
                        await self._table.update(key, change)
                        break
                    except ClusterFault as fault:
                        if fault.state != "ready":
                            raise
                        await backoff.pause()  # other nodes take calls of it too
        except (ClusterFault, TimeoutError) as fault:
            raise OSError(f"the brokers of the cluster don't answer: {fault}") from fault
        return granted


class GatewaySharing:
    """A node's shared state, applied to its gateway."""

    def __init__(self, state: SharedState, invocation: Invocation) -> None:
        settings = state.node.broker.settings
        assert settings.key is not None
        self.state = state
        self.trust = SharedTrust(state.table, settings.key, settings.node)
        self.calls = CallPublisher(state.node.broker, settings.key)
        self.tokens = TokenSharing(state, TokenStore())
        self._path = invocation.cluster_config
        self._workspace = os.path.realpath(invocation.cwd)
        self._base: CardChecks | None = None
        self._consented = asyncio.Event()

    def write_servers(self) -> None:
        """Write the cluster's servers to this node's file. Blocks.

        The file includes the consents, as the server plan depends on both.
        """
        servers: JsonObject = {}
        for value in self.state.table.list("server").values():
            name, row = value.get("name"), value.get("row")
            if isinstance(name, str) and is_json_object(row):
                servers[name] = row
        consents = sorted(self.state.table.list(CONSENT))
        text = compact_json({"mcpServers": dict(sorted(servers.items())), "consents": [*consents]})
        make_private_dir(os.path.dirname(self._path))
        try:
            with open(self._path, encoding="utf-8") as file:
                is_same = file.read() == text
        except (OSError, ValueError):
            is_same = False
        if not is_same:
            replace_file(self._path, text.encode())

    def limit_checks(self, checks: CardChecks) -> CardChecks:
        """Put the cluster's rules in front of this gateway's permission checks."""
        from induscode.permissions.check import Permissions, is_denied, limit_card  # noqa: PLC0415 — with rules only
        from induscode.permissions.rules import Effect, Rule, RuleOrigin, parse_settings  # noqa: PLC0415 — with rules only

        self._base = checks
        checks = replace(checks, checks_remote=True)  # rules may arrive later
        documents = [value.get("rules") for value in self.state.table.list("rules").values()]
        if not documents:
            return checks
        rules: list[Rule] = []
        for document in documents:
            found, notes = parse_settings(document, RULES, RuleOrigin.PROJECT)
            rules += found
            for note in notes:
                print_status(str(note))
        everything = Rule(effect=Effect.ALLOW, tool="*", origin=RuleOrigin.SESSION)
        approver = None if checks.open_approver is None else checks.open_approver()
        limits = Permissions([*rules, everything], limits=f"{RULES} do not allow it", approver=approver)

        def limit(wrap: Wrap, card: Capability) -> Capability:
            return limit_card(wrap(card), limits)

        return replace(
            checks,
            native=partial(limit, checks.native),
            remote=partial(limit, checks.remote),
            is_denied=partial(is_denied, workspace=self._workspace),
        )

    def follow(self, gateway: Gateway, tasks: TaskGroup) -> None:
        """Share this node's approvals and consents, and apply other nodes' changes as they arrive."""
        state, loop = self.state, asyncio.get_running_loop()
        if state.pins is not None:
            state.pins.identities = lambda: build_identities(gateway.plan.configs.values()).values()
        state.on_pins.add(lambda: tasks.start_soon(gateway.read_approvals))
        state.on_other.add(lambda: tasks.start_soon(self._apply, gateway))
        if gateway.checks.flow is not None:
            gateway.checks.flow.shared = JoinSharing(state.table)
        self.trust.on_checked.add(lambda: loop.call_soon_threadsafe(self._consented.set))
        self._consented.set()
        if gateway.session.calls.recorder is not None:
            gateway.session.calls.recorder.on_rows.add(self.calls.put)
        tasks.start_soon(keep_running, self.calls.run)
        tasks.start_soon(keep_running, ApprovalSharing(gateway.approvals, state).run)
        if gateway.book is not None:
            tasks.start_soon(keep_running, partial(self.tokens.run, gateway.book))
        tasks.start_soon(keep_running, self._share_consents)
        state.share_pins()

    async def _apply(self, gateway: Gateway) -> None:
        try:
            await to_thread.run_sync(self.write_servers)
        except OSError as exc:
            print_status(f"the servers of the cluster cannot be written: {exc}")
        assert self._base is not None
        gateway.change_checks(self.limit_checks(self._base))
        self.state.share_pins()

    async def _share_consents(self) -> None:
        while True:
            await self._consented.wait()
            self._consented.clear()
            try:
                await self.trust.share()
            except ClusterFault:
                self._consented.set()  # retry later
                raise


async def join_cluster(
    stack: AsyncExitStack, context: GatewayContext, settings: ClusterSettings
) -> GatewayContext | None:
    """Make the gateway a cluster node until `stack` closes, with the servers and the state of all nodes.

    Prints the problem and returns `None` if it can't join.
    """
    invocation, options = context.invocation, context.options
    try:
        node = await stack.enter_async_context(open_node(settings, guarded=True))
        sessions = await stack.enter_async_context(open_sessions(node))
        shared = await open_shared_state(node)
    except ClusterFault as fault:
        print_status(f"the cluster cannot be joined: {describe_fault(fault)}")
        return None
    node.on_note.add(print_status)
    others = [info.node for info in node.membership.list_nodes() if info.node != node.info.node]
    print_status(f"node {node.info.node!r} of a cluster, with {', '.join(others) or 'no other node yet'}")
    if shared is None:
        print_status("no key of the cluster: its ledger and its approvals stay on this machine")
    else:
        sharing = GatewaySharing(shared, invocation)
        stack.push_async_callback(sharing.calls.close)
        try:
            await to_thread.run_sync(sharing.write_servers)
            stack.callback(sharing.tokens.store.close)
            await sharing.tokens.take()  # before a client presents a token that another node has revoked
        except (OSError, sqlite3.Error) as exc:
            print_status(f"the servers and tokens of the cluster cannot be written: {exc}")
            return None
        planned = await to_thread.run_sync(plan_servers, invocation, sharing.trust)
        held_back = await to_thread.run_sync(context.consented.hold_back, planned)
        if context.watch is not None:
            context.watch.poll_s = WATCH_S
        plan = drop_own_address(held_back, context.address)
        limit, follow = sharing.limit_checks, sharing.follow
        hooks = NodeHooks(
            share_store=shared.share_store,
            trust=sharing.trust,
            limit_checks=limit,
            on_follow=follow,
            grant=sharing.tokens.grant,
            table=shared.table,
        )
        context = replace(context, plan=plan, hooks=hooks)
    boot = replace(context.boot, open_session=partial(open_session, node), node=node.info.node)
    if options.settings is not None:
        options = replace(options, settings=replace(options.settings, router=sessions))
    return replace(context, options=options, boot=boot, node=node)


# -- approvals --------------------------------------------------------------------------------
#
# Every node shows all requests for approval, and any node answers. Requests and answers are sealed entries of the
# shared table. A node copies the others' requests into its own store, so the page and `indus approvals` have one
# source, and sends on what they answer. Only the node that holds a call spends a yes. Entries are reused, since the
# table keeps each key for good.


_log = logging.getLogger(__name__)


class ApprovalSharing:
    """Shares one node's queue with the others. `run` has to run meanwhile."""

    def __init__(self, queue: ApprovalQueue, state: SharedState) -> None:
        self._queue, self._table, self._node = queue, state.table, state.node.info.node
        self._slots: dict[str, int] = {}
        """Entries of this node's requests, by id."""
        self._unwritten: dict[str, JsonObject | None] = {}
        self._foreign: dict[str, JsonObject] = {}
        """Other nodes' requests without an answer, by id."""
        self._changed = asyncio.Event()
        queue.on_asked.add(self._add)
        queue.on_ended.add(self._remove)
        state.on_approvals.add(self._changed.set)

    def _add(self, approval: Approval) -> None:
        taken = set(self._slots.values())
        slot = next(number for number in range(len(taken) + 1) if number not in taken)
        self._slots[approval.id] = slot
        self._write(self._table.build_key(REQUEST, self._node, str(slot)), {**approval.to_json(), "slot": slot})

    def _remove(self, approval: Approval) -> None:
        slot = self._slots.pop(approval.id, None)
        if slot is not None:
            self._write(self._table.build_key(REQUEST, self._node, str(slot)), None)

    def _write(self, key: str, value: JsonObject | None) -> None:
        self._unwritten[key] = value
        self._changed.set()

    async def run(self) -> None:
        """Share requests and answers until cancelled, or the brokers fail."""
        for key, value in self._table.list(REQUEST).items():
            if value.get("node") == self._node and value.get("id") not in self._slots:
                self._unwritten.setdefault(key, None)  # of an earlier process
        self._changed.set()
        while True:
            with anyio.move_on_after(POLL_S if self._foreign else None):
                await self._changed.wait()
            self._changed.clear()
            await self._take_answers()
            await self._take_requests(self._table.list(REQUEST))
            await self._send_answers()
            await self._put_all()

    async def _put_all(self) -> None:
        while self._unwritten:
            key, value = next(iter(self._unwritten.items()))
            await self._table.put(key, value)
            if self._unwritten.get(key) is value:  # otherwise it has changed meanwhile
                del self._unwritten[key]

    async def _take_answers(self) -> None:
        """Apply the other nodes' answers to this node's calls."""
        for value in [*self._table.list(ANSWER).values()]:
            if value.get("id") in self._slots:
                await self._queue.answer(
                    str(value["id"]),
                    str(value.get("digest")),
                    approve=value.get("approve") is True,
                    by=f"{value.get('by')} at node {value.get('node')}",
                    comment=str(value.get("comment", "")),
                )

    async def _take_requests(self, entries: Mapping[str, JsonObject]) -> None:
        """Copy the other nodes' requests into the store, and end those that are gone."""
        present: dict[str, JsonObject] = {}
        for value in [*entries.values()]:
            try:
                approval = Approval.parse(value)
            except ValueError as exc:
                _log.debug("%s", exc)
                continue
            if approval.node != self._node and approval.is_waiting():
                present[approval.id] = value
                if approval.id not in self._foreign:
                    await to_thread.run_sync(self._queue.store.add, approval)
        for approval_id in self._foreign.keys() - present.keys():
            end = partial(self._queue.store.end, approval_id, ApprovalState.WITHDRAWN, (ApprovalState.WAITING,))
            await to_thread.run_sync(end)  # what was approved here stays so: the holder knows what became of it
        self._foreign = present

    async def _send_answers(self) -> None:
        """Send the answers of this node's user to the nodes that hold the calls."""
        if not self._foreign:
            return
        answered = await to_thread.run_sync(self._queue.store.list_answered, [*self._foreign])
        for approval_id, approval in answered.items():
            request = self._foreign[approval_id]
            key = self._table.build_key(ANSWER, self._node, str(request.get("node")), str(request.get("slot")))
            if self._table.list(ANSWER).get(key, {}).get("id") != approval_id:
                self._unwritten[key] = {
                    "id": approval_id,
                    "digest": approval.digest,
                    "approve": approval.state is ApprovalState.APPROVED,
                    "by": approval.answered_by,
                    "comment": approval.comment,
                    "node": self._node,
                }
