"""One node's shared state: its ledger, the consents of its user, and the records of its calls."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.tasks import Listeners
from indusagi.core.time import iso_utc, now_ms
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from induscode.cluster.contract import ClusterFault, LostRaceError
from induscode.cluster.jetstream import Stream
from induscode.cluster.shared.ledger import LedgerAuditor, LedgerPublisher
from induscode.cluster.shared.table import LOCK, PIN, SIGN_IN, ClusterPins, SharedTable, open_table
from induscode.servers.config.rows import ServerRow, find_project_dir
from induscode.servers.config.trust import TrustStore, consent_facts

if TYPE_CHECKING:
    from induscode.cluster.broker import Broker
    from induscode.cluster.key import ClusterKey
    from induscode.cluster.node import ClusterNode
    from induscode.core.consent import ConsentState
    from induscode.deck.mcp.store import LedgerStore

_log = logging.getLogger(__name__)

REQUEST, ANSWER = "approval", "answer"
"""Kinds of entries: a call that waits for a person, and what another node's user said."""
JOIN = "join"
"""Kind of an entry: what the conversation of a client without sessions has read."""
TOKEN, USE, BUDGET = "token", "use", "budget"
"""Kinds of entries: a named token or locked-out principal, its use at one node, and the calls it has taken."""
_RETRY_S = 2.0
_CLOSE_S = 3.0
"""How long a stopping node waits for the broker to accept its last rows and records."""


class SharedState:
    """A node's table, and its ledger while that's open."""

    def __init__(self, node: ClusterNode, table: SharedTable) -> None:
        self.node = node
        self.table = table
        self.pins: ClusterPins | None = None
        self.on_pins: Listeners[[]] = Listeners()
        """Called when a definition was approved, here or on another node."""
        self.on_approvals: Listeners[[]] = Listeners()
        """Called when a request for approval, or an answer, changed."""
        self.on_tokens: Listeners[[]] = Listeners()
        """Called when a token, or its use, changed."""
        self.on_other: Listeners[[]] = Listeners()
        """Called when another entry changed: servers, consents, rules."""
        self._unshared = asyncio.Event()
        table.on_change.add(self._change)

    def _change(self, keys: frozenset[str]) -> None:
        kinds = {key.partition(".")[0] for key in keys}
        if PIN in kinds:
            self.on_pins()
        if kinds & {REQUEST, ANSWER}:
            self.on_approvals()
        if kinds & {TOKEN, USE}:
            self.on_tokens()
        if kinds - {PIN, REQUEST, ANSWER, JOIN, TOKEN, USE, BUDGET, SIGN_IN, LOCK}:
            self.on_other()

    def share_pins(self) -> None:
        """Look for pins the other nodes don't have, after the servers or the ledger changed."""
        self._unshared.set()

    @asynccontextmanager
    async def share_store(self, local: LedgerStore) -> AsyncGenerator[None]:
        """Publish this machine's ledger inside the block, and share its pins in both directions."""
        node, broker = self.node, self.node.broker
        settings, key = broker.settings, broker.settings.key
        assert key is not None
        stream = Stream(broker, settings.ledger)

        def count(waiting: int) -> None:
            node.membership.info = replace(node.membership.info, unpublished=waiting)
            self.share_pins()

        def come_back() -> None:
            publisher.forget()
            self.table.look()

        publisher = LedgerPublisher(stream, settings, key, local, node.on_note, broker.payload_bytes, count)
        auditor = LedgerAuditor(stream, settings, key, node.on_note)
        local.shared = self.pins = ClusterPins(local, self.table, settings.node)
        forget = node.on_back.add(come_back)
        work: Sequence[Callable[[], Awaitable[None]]] = (publisher.run, auditor.run, self.table.run, self._share)
        running = [asyncio.create_task(keep_running(run), name="shared state") for run in work]  # noqa: TID251 — awaited below
        try:
            yield
        finally:
            forget()
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            if broker.is_connected:
                await finish(publisher.publish_all)
                await finish(auditor.anchor)
            self.pins = local.shared = None

    async def _share(self) -> None:
        while True:
            await self._unshared.wait()
            self._unshared.clear()
            try:
                if self.pins is not None and await self.pins.share():
                    self.on_pins()  # another process on this machine may have approved them
            except ClusterFault:
                self._unshared.set()
                raise


async def keep_running(run: Callable[[], Awaitable[None]]) -> None:
    """Run endless work, and restart it after a failure."""
    while True:
        try:
            await run()
        except (ClusterFault, LostRaceError) as exc:
            _log.debug("%s", exc)
        except Exception:  # noqa: BLE001 — boundary: the node serves clients whatever happens here
            _log.exception("the shared state of the cluster has failed")
        await asyncio.sleep(_RETRY_S)


async def finish(work: Callable[[], Awaitable[object]]) -> None:
    """Do the last of some work, within a short deadline. The next start does the rest."""
    try:
        async with asyncio.timeout(_CLOSE_S):
            await work()
    except (ClusterFault, LostRaceError, TimeoutError) as exc:
        _log.debug("the next start does the rest: %s", exc)


async def open_shared_state(node: ClusterNode) -> SharedState | None:
    """Open the nodes' shared state. None for a node without the cluster key."""
    if node.broker.settings.key is None:
        return None
    return SharedState(node, await open_table(node.broker, node.on_note))


# -- consents ---------------------------------------------------------------------------------
#
# A node shares its user's consents to the rows it serves, and withdraws revoked ones. Another node trusts a row that's
# equal in every fact: name, command, arguments, variables, address. Its file may be elsewhere there, unless the row
# runs something from its project: that must be in the same directory on both nodes. Without the key, the digest doesn't
# reveal the facts.


KIND = "consent"


class SharedTrust(TrustStore):
    """The consents of this user and of the other nodes. `consent` runs in threads."""

    def __init__(self, table: SharedTable, key: ClusterKey, node: str, path: str | None = None) -> None:
        super().__init__(path)
        self.on_checked: Listeners[[]] = Listeners()
        """Called in a thread after looking up a row: there may be a consent to share."""
        self._table = table
        self._key = key
        self._node = node
        self._own: dict[tuple[str, str], str] = {}
        """Digests of rows this user trusts, by file and server."""

    def consent(self, row: ServerRow) -> ConsentState:
        """Look up this user's consent, or another node's to an equal row."""
        own = super().consent(row)
        digest = self._digest(row)
        place = row.origin.file, row.id
        if own == "trusted":
            self._own[place] = digest
        else:
            self._own.pop(place, None)
        self.on_checked()
        others = self._table.list(KIND).values()
        is_trusted = own == "trusted" or any(
            value.get("digest") == digest and value.get("by") != self._node for value in others
        )
        return "trusted" if is_trusted else own

    def _digest(self, row: ServerRow) -> str:
        facts = consent_facts(row)
        if (folder := find_used_project(row)) is not None:
            facts["project"] = folder
        return self._key.digest(KIND, compact_json(facts, sort_keys=True))

    async def share(self) -> None:
        """Write this user's missing consents, and remove revoked ones."""
        wanted: dict[str, JsonObject] = {}
        for (file, server), digest in [*self._own.items()]:
            value: JsonObject = {"digest": digest, "server": server, "file": file, "by": self._node}
            wanted[self._table.build_key(KIND, digest, self._node)] = value
        present = self._table.list(KIND)
        for key, value in present.items():
            if key not in wanted and value.get("by") == self._node:
                file, server = str(value.get("file")), str(value.get("server"))
                # Keep consents of other projects that aren't served now.
                if (file, server) in self._own or not await to_thread.run_sync(self.has_consent, file, server):
                    await self._table.put(key, None)
        for key, value in wanted.items():
            if key not in present:
                await self._table.put(key, {**value, "at": iso_utc(now_ms())})


def find_used_project(row: ServerRow) -> str | None:
    """Return the directory of a row's project if its command names something there, otherwise None. Blocks.

    An equal row of another project (`node server.js`) runs another program.
    """
    config, command = row.config, (row.auth or {}).get("header_command")
    words = [config.command, *config.args, config.cwd or ""] if isinstance(config, StdioServerConfig) else []
    words += map(str, command) if isinstance(command, list) else ()
    folder = os.path.realpath(find_project_dir(row.origin))
    is_used = any(_names_file(folder, part) for word in words for part in (word, *word.split()))
    return folder if is_used else None


def _names_file(folder: str, word: str) -> bool:
    """Return whether a word of a command names something in a directory, or is a path with a variable."""
    # `--option=value`, `file.ts:run`, `-m package.module`
    names = {word, word.partition("=")[2], word.partition(":")[0], word.partition(".")[0]} - {""}
    return any(
        name.startswith(".")
        or (os.sep in name and ("$" in name or "{" in name))
        or (not os.path.isabs(name) and os.path.lexists(os.path.join(folder, name)))
        for name in names
    )


# -- call records -----------------------------------------------------------------------------
#
# Records contain sizes and digests, but no arguments or results. A node publishes them in batches from a bounded queue.
# While the broker is away, the oldest ones that don't fit are dropped; they stay in the node's database. A batch has an
# id and is resent unchanged if the broker didn't answer, so readers use the first of each id.


_MAX_WAITING = 20_000
_BATCH_SIZE = 500
_PUBLISH_INTERVAL_S = 0.5


class CallPublisher:
    """Publishes this node's call records."""

    def __init__(self, broker: Broker, key: ClusterKey) -> None:
        self._broker = broker
        self._stream = Stream(broker, broker.settings.calls)
        self._key = key
        self._waiting: deque[Sequence[str | int]] = deque(maxlen=_MAX_WAITING)
        self._unanswered: JsonObject | None = None
        """The last batch sent, until the broker answers."""

    def put(self, rows: Sequence[Sequence[str | int]]) -> None:
        """Add rows, in the recorder's thread."""
        self._waiting.extend(rows)

    async def run(self) -> None:
        """Publish records as they come, until cancelled or something fails."""
        while True:
            await asyncio.sleep(_PUBLISH_INTERVAL_S)
            await self.publish_all()

    async def close(self) -> None:
        """Publish the rest, within a short deadline. Call it after the recorder has written its last rows."""
        if self._broker.is_connected:
            await finish(self.publish_all)

    async def publish_all(self) -> None:
        """Publish all waiting records. If the broker fails, they keep waiting."""
        settings = self._broker.settings
        subject = settings.subject("calls", settings.node)
        while True:
            if self._unanswered is None:
                rows = [self._waiting.popleft() for _ in range(min(_BATCH_SIZE, len(self._waiting)))]
                if not rows:
                    return
                self._unanswered = {"node": settings.node, "batch": new_ulid(), "calls": [[*row] for row in rows]}
            sealed = self._key.seal(subject, compact_json(self._unanswered).encode())
            await self._stream.publish(subject, sealed)
            self._unanswered = None


async def read_calls(broker: Broker, columns: int) -> AsyncGenerator[tuple[str, Sequence[JsonValue]]]:
    """Read all nodes' records, newest first, each with its node. Skips damaged and repeated ones."""
    settings, key = broker.settings, broker.settings.key
    assert key is not None
    stream = Stream(broker, settings.calls)
    state = await stream.read_state()
    seen: set[str] = set()
    for number in range(state.last, max(0, state.first - 1), -1):
        message = await stream.read_at(number)
        if message is None:
            continue
        try:
            value: object = json.loads(key.unseal_message("calls", message.subject, message.data, number))
        except (ValueError, RecursionError) as exc:
            _log.debug("message %d of the call records: %s", number, exc)
            continue
        if not is_json_object(value) or (batch := str(value.get("batch", number))) in seen:
            continue
        seen.add(batch)
        calls, node = value.get("calls"), str(value.get("node"))
        for row in reversed(calls if isinstance(calls, list) else []):
            # Nodes of the previous version don't send `allowed_by`, the last column.
            if isinstance(row, list) and columns - 1 <= len(row) <= columns:
                yield node, row
