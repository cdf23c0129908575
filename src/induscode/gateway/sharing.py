"""A gateway as a node of a cluster: what it shares with the other nodes, and what it takes from them.

Approved definitions and consents go both ways by themselves. Servers and rules are put into the cluster with
`indus cluster config`: a node writes the servers to a private file, which it reads like its own files, and its calls
have to pass the rules besides its own.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.app_dirs import make_private_dir, replace_private_file, state_dir
from indusagi.core.json import compact_json, is_json_object
from induscode.cli.terminal import print_status
from induscode.cluster.contract import ClusterFault
from induscode.cluster.shared.calls import CallPublisher
from induscode.cluster.shared.state import KIND as CONSENT
from induscode.cluster.shared.state import SharedTrust, keep_running
from induscode.deck.mcp.store.pins import build_identities
from induscode.gateway.cluster import NodeHooks

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from indusagi.core.json import JsonObject
    from induscode.cluster.shared.state import SharedState
    from induscode.deck.contract import Capability
    from induscode.gateway.gateway import Gateway
    from induscode.launch.invocation import Invocation
    from induscode.permissions.gate import CardChecks, Wrap

WATCH_S = 0.25
"""How often a node looks at its files: a change at another node applies here within a second."""
RULES = "the rules of the cluster"


def find_config_path(node: str) -> str:
    """Return the path of the file with the servers of the cluster.

    Raises:
        OSError: There is no home directory.
    """
    return os.path.join(state_dir(), "cluster", f"{node}.json")


class GatewaySharing:
    """The shared state of a node, applied to its gateway."""

    def __init__(self, state: SharedState, invocation: Invocation) -> None:
        settings = state.node.broker.settings
        assert settings.key is not None
        self.state = state
        self.trust = SharedTrust(state.table, settings.key, settings.node)
        self.calls = CallPublisher(state.node.broker, settings.key)
        self._path = invocation.cluster_config
        self._workspace = os.path.realpath(invocation.cwd)
        self._base: CardChecks | None = None
        self._consented = asyncio.Event()

    def build_hooks(self) -> NodeHooks:
        """Return what the gateway calls."""
        return NodeHooks(
            share_store=self.state.open_store, trust=self.trust, limit_checks=self.limit_checks, on_follow=self.follow
        )

    # -- before the gateway is there --------------------------------------------------------

    def write_servers(self) -> None:
        """Write the servers of the cluster to the file of this node; it blocks.

        A change of consents changes the file too: the plan of servers depends on both.
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
            replace_private_file(self._path, text.encode())

    def limit_checks(self, checks: CardChecks) -> CardChecks:
        """Put the rules of the cluster before the permission checks of this gateway."""
        from induscode.permissions.check import Permissions, is_denied, limit_card  # noqa: PLC0415 — with rules only
        from induscode.permissions.rules import Effect, Rule, RuleOrigin, parse_settings  # noqa: PLC0415 — with rules only

        self._base = checks
        checks = replace(checks, checks_remote=True)  # rules may come later
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
        limits = Permissions([*rules, everything], limits=f"{RULES} do not allow it")

        def limit(wrap: Wrap, card: Capability) -> Capability:
            return limit_card(wrap(card), limits)

        return replace(
            checks,
            native=partial(limit, checks.native),
            remote=partial(limit, checks.remote),
            is_denied=partial(is_denied, workspace=self._workspace),
        )

    # -- while it runs ----------------------------------------------------------------------

    def follow(self, gateway: Gateway, tasks: TaskGroup) -> None:
        """Share what is approved and consented to here, and apply what other nodes share as soon as it is there."""
        state, loop = self.state, asyncio.get_running_loop()
        if state.store is not None:
            state.store.identities = lambda: build_identities(gateway.plan.configs.values()).values()
        state.on_pins = lambda: tasks.start_soon(gateway.read_approvals)
        state.on_other = lambda: tasks.start_soon(self._apply, gateway)
        self.trust.on_checked = lambda: loop.call_soon_threadsafe(self._consented.set)
        self._consented.set()
        if gateway.session.calls.recorder is not None:
            gateway.session.calls.recorder.on_rows = self.calls.put
        tasks.start_soon(keep_running, self.calls.run)
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
                self._consented.set()  # again after a while
                raise
