"""Reviews the definitions of a run's servers, each next to the names and texts of the others.

A definition is reviewed when it's first seen, when it differs from what was approved, and when somebody looks at it.
An approved one isn't reviewed again at a start.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from indusagi.core.text import iter_strings
from induscode.deck.mcp.capability import name_item
from induscode.deck.mcp.drift import PinVerdict
from induscode.deck.mcp.review import IDENTIFIER, Finding, OtherNames, ToolNames, review_item, sort_findings
from induscode.deck.mcp.store.pins import read_known_tools

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.contract import ItemKind, RemoteTool, RemoteToolRef, ServerConfig
    from induscode.deck.mcp.store import LedgerStore
    from induscode.deck.mcp.store.pins import StorePins
    from induscode.servers.config.rows import ReviewMode
    from induscode.servers.plan import ServerPlan

_UNREVIEWED = frozenset({"content", "behaviour"})
"""Kinds without text: digests, and hosts and paths of a process."""


class Reviewer:
    """The policy of each server, and the definitions that all of them list."""

    def __init__(self) -> None:
        self.modes: Mapping[str, ReviewMode] = {}
        self.default: ReviewMode = "hold"
        """The mode of servers without a row."""
        self._items: dict[tuple[str, ItemKind], Sequence[RemoteTool]] = {}
        self._indexed: dict[tuple[str, ItemKind], Sequence[RemoteTool]] = {}
        """The items that the next two hold."""
        self._stale: dict[tuple[str, ItemKind], None] = {}
        """Lists that aren't indexed yet: that's done once something is compared with them."""
        self._names = ToolNames()
        self._mentions: dict[str, dict[tuple[str, ItemKind], list[RemoteTool]]] = {}
        """Items by the names in their texts."""
        self._found: dict[RemoteToolRef, tuple[JsonObject, Sequence[Finding]]] = {}

    def learn(self, server: str, kind: ItemKind, items: Sequence[RemoteTool]) -> None:
        """Compare definitions of other servers with these from now on."""
        self._items[server, kind] = items
        self._stale[server, kind] = None
        self._found.clear()

    async def learn_stored(
        self, store: LedgerStore, configs: Iterable[ServerConfig], kinds: Iterable[ItemKind]
    ) -> None:
        """Learn what servers listed last, from the ledger.

        Raises `SilentStoreError` if the store doesn't answer.
        """
        configs = [*configs]
        for kind in kinds if configs else ():
            known, _ = await read_known_tools(store, configs, kind)
            for server, items in known.items():
                self.learn(server, kind, items)

    def forget(self, server: str) -> None:
        """Forget a server that was removed."""
        for key in [key for key in self._items if key[0] == server]:
            self.learn(*key, ())
            del self._items[key]

    def review(self, ref: RemoteToolRef, raw: JsonObject) -> Sequence[Finding]:
        """Review a definition unless its server's mode is off."""
        if ref.kind in _UNREVIEWED or self._find_mode(ref.server) == "off":
            return ()
        known = self._found.get(ref)
        if known is None or known[0] != raw:
            self._update_index()
            names = OtherNames(self._names, ref.server)
            known = raw, sort_findings([*review_item(ref, raw, names), *self._find_mentions(ref)])
            self._found[ref] = known
        return known[1]

    def review_all(self, items: Iterable[tuple[RemoteToolRef, JsonObject]]) -> Sequence[Finding]:
        """Review definitions, serious findings first."""
        return sort_findings([finding for ref, raw in items for finding in self.review(ref, raw)])

    def review_server(self, server: str) -> Sequence[Finding]:
        """Review everything that a server lists."""
        listed = [items for (owner, _), items in self._items.items() if owner == server]
        return self.review_all((item.ref, item.raw) for items in listed for item in items)

    def judge(self, pins: StorePins, item: RemoteTool) -> PinVerdict:
        """Judge an item by its pins, and review it if it has none, or differs.

        Raises `NotJson` if it holds a value JSON can't represent.
        """
        ref, raw = item.ref, item.raw
        holds = self._find_mode(ref.server) == "hold"
        verdict = pins.judge(ref, raw, partial(self._is_serious, ref, raw) if holds else None)
        if verdict.drift is None:
            return verdict
        return replace(verdict, drift=replace(verdict.drift, findings=self.review(ref, raw)))

    def _is_serious(self, ref: RemoteToolRef, raw: JsonObject) -> bool:
        return any(finding.severity == "serious" for finding in self.review(ref, raw))

    def _find_mode(self, server: str) -> ReviewMode:
        return self.modes.get(server, self.default)

    def _update_index(self) -> None:
        if not self._names.servers:
            from induscode.deck.catalog import capability_ids  # noqa: PLC0415 — when something is reviewed

            self._names.add(map(str, capability_ids()), "indus")
        for key in self._stale:
            server, kind = key
            former, items = self._indexed.pop(key, ()), self._items.get(key, ())
            if kind == "tool":
                self._names.remove((item.ref.name for item in former), server)
                self._names.add((item.ref.name for item in items), server)
            for name in {name for item in former for name in _find_names(item)}:
                del self._mentions[name][key]
            for item in items:
                for name in _find_names(item):
                    self._mentions.setdefault(name, {}).setdefault(key, []).append(item)
            self._indexed[key] = items
        self._stale.clear()

    def _find_mentions(self, ref: RemoteToolRef) -> Iterable[Finding]:
        """Find texts of other servers that give instructions about a tool: they may be older than it."""
        if ref.kind != "tool":
            return
        own = ToolNames()
        own.add([ref.name], ref.server)
        for (server, _), items in self._mentions.get(ref.name, {}).items():
            names = OtherNames(own, server)
            for item in items if server != ref.server else ():
                for _, severity, place, message in names.check_mentions(item.raw):
                    if severity == "serious":
                        yield Finding(
                            "named-elsewhere", severity, ref, "name", f"{name_item(item.ref)}, {place} {message}"
                        )
                        return


def _find_names(item: RemoteTool) -> Iterable[str]:
    """Find the names in the texts of an item that are no common words."""
    if item.ref.kind in _UNREVIEWED:
        return ()
    return {*re.findall(IDENTIFIER, "\n".join(iter_strings(item.raw)))}


async def open_reviewer(store: LedgerStore, plan: ServerPlan, kinds: Sequence[ItemKind]) -> Reviewer:
    """Build a reviewer of what the servers of a plan listed last.

    Raises `SilentStoreError` if the store doesn't answer.
    """
    reviewer = Reviewer()
    reviewer.modes, reviewer.default = plan.reviews, plan.review
    await reviewer.learn_stored(store, (*plan.configs.values(), *plan.neighbours.values()), kinds)
    return reviewer
