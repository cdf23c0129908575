"""Status of the brokers, their storage, and the nodes, in words.

Each broker gets a separate connection that waits for its greeting, so an unreachable or slow one is named even while
the brokers have no majority. Everything has a deadline; missing answers are left out and reported as such.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from indusagi.core.faults import describe_error
from indusagi.core.json import JsonObject, is_json_object
from indusagi.core.records import record
from induscode.cluster.broker import SLOW_S, STATES, Broker, Storage, explain_state
from induscode.cluster.contract import BrokerState, ClusterFault, NodeInfo

if TYPE_CHECKING:
    from induscode.cluster.membership import Membership

_T = TypeVar("_T")

_GREETING_S = 2.0
"""How long a broker may take to greet."""
_REPORT_S = 3.0
"""Deadline for all requests over the connection together."""
_GREETING_BYTES = 65_536
_PORT = 4222
_FULL = 0.98
"""An account that has used this much of its storage rejects the next larger write."""


@record(kw_only=True)
class BrokerView:
    """One broker as this process found it."""

    address: str
    name: str = ""
    took_s: float | None = None
    """Time until it greeted; None if it didn't."""
    reason: str = ""

    @property
    def state(self) -> BrokerState:
        """Its state."""
        if self.took_s is None:
            return "away"
        return "slow" if self.took_s > SLOW_S else "ready"

    def __str__(self) -> str:
        name = " ".join(filter(None, (self.name, f"({self.address})" if self.name and self.address else self.address)))
        return f"{name} {self.words}"

    @property
    def words(self) -> str:
        """Its state in words, after its name."""
        if self.took_s is None:
            return f"is away: {self.reason}"
        return f"{'is slow' if self.state == 'slow' else 'answers'}: {1000 * self.took_s:,.0f} ms"

    def to_json(self) -> JsonObject:
        """Return it as a JSON object."""
        took_ms = None if self.took_s is None else round(1000 * self.took_s, 1)
        facts: JsonObject = {"name": self.name, "address": self.address, "state": self.state}
        return {**facts, "took_ms": took_ms, "reason": self.reason}


@record(kw_only=True)
class BrokerReport:
    """The brokers, their storage, and the nodes' view of them."""

    state: BrokerState
    brokers: Sequence[BrokerView]
    storage: Storage | None = None
    waiting: Sequence[NodeInfo] = ()
    """Nodes running without a lease."""
    silent: Sequence[str] = ()
    """Nodes with a lease that don't report themselves."""
    nodes: Sequence[NodeInfo] = ()

    @property
    def is_usable(self) -> bool:
        """Whether the brokers work, possibly slowly."""
        return self.state in {"ready", "slow"}

    @property
    def summary(self) -> str:
        """The state in words."""
        return "ready" if self.state not in STATES else f"{self.state}: they {STATES[self.state]}"

    def list_problems(self) -> Sequence[str]:
        """List the problems, each as a sentence."""
        silence = "has a lease, and does not report itself: cut off, stopped, or just gone"
        names = Counter(node.node for node in self.nodes)
        return [
            *(f"broker {view}" for view in self.brokers if view.state != "ready"),
            *(
                f"node {node.node!r} says: the brokers {STATES[node.brokers]}"
                for node in self.nodes
                if node.brokers in STATES
            ),
            *(f"node {node.node!r} runs and has no lease{explain_state(node.brokers)}" for node in self.waiting),
            *(f"node {name!r} {silence}" for name in self.silent),
            *(f"{count} nodes are named {name!r}: stop all but one" for name, count in names.items() if count > 1),
        ]

    def describe_storage(self) -> str:
        """Describe the storage, or return "" if unknown."""
        if self.storage is None:
            return ""
        limit = self.storage.limit
        return f"{_show_size(self.storage.used)} used" + ("" if limit is None else f" of {_show_size(limit)}")

    def to_json(self) -> JsonObject:
        """Return it as a JSON object."""
        used, limit = (None, None) if self.storage is None else (self.storage.used, self.storage.limit)
        return {
            "broker": self.state,
            "brokers": [view.to_json() for view in self.brokers],
            "offline": [view.name or view.address for view in self.brokers if view.state == "away"],
            "storage": {"used": used, "limit": limit},
            "waiting": [node.to_json() for node in self.waiting],
            "silent": [*self.silent],
        }


def _show_size(count: int) -> str:
    for size, unit in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


async def read_report(broker: Broker, membership: Membership | None) -> BrokerReport:
    """Find out how the brokers are, within a few seconds and without raising."""
    async with asyncio.TaskGroup() as tasks:
        views = tasks.create_task(greet_brokers(broker))
        storage = tasks.create_task(_ask(broker.read_storage()))
        silent = None if membership is None else tasks.create_task(_ask(membership.list_silent()))
        offline = None if membership is None else tasks.create_task(_ask(membership.list_offline()))
    found, stored = [*views.result()], storage.result()
    missing = set(() if offline is None else offline.result() or ()) - {view.name for view in found}
    found += [BrokerView(address="", name=name, reason="another broker says so") for name in sorted(missing)]
    waiting = () if membership is None else membership.list_waiting()
    state: BrokerState = broker.state
    if state in {"ready", "slow"}:
        if stored is not None and stored.limit is not None and stored.used >= _FULL * stored.limit:
            state = "full"
        elif 2 * sum(view.state == "away" for view in found) > len(found):
            state = "partitioned"  # some reads work without a majority
        else:  # this process doesn't write, but nodes do
            for one in waiting:
                state = one.brokers if one.brokers != "ready" else state
    return BrokerReport(
        state=state,
        brokers=found,
        storage=stored,
        waiting=waiting,
        silent=() if silent is None else silent.result() or (),
        nodes=() if membership is None else membership.list_nodes(),
    )


async def _ask(request: Awaitable[_T]) -> _T | None:
    try:
        async with asyncio.timeout(_REPORT_S):
            return await request
    except (ClusterFault, TimeoutError):
        return None  # the brokers' state reports it


async def greet_brokers(broker: Broker) -> Sequence[BrokerView]:
    """Connect to each known broker, and wait for its greeting."""
    known = (*map(urlsplit, broker.settings.brokers), *broker.client.servers)
    addresses = sorted({f"{one.hostname}:{one.port or _PORT}" for one in known})
    async with asyncio.TaskGroup() as tasks:
        greeting = [tasks.create_task(_greet(address)) for address in addresses]
    views = [task.result() for task in greeting]
    broker.names |= {view.address: view.name for view in views if view.name}
    return [replace(view, name=broker.names.get(view.address, "")) for view in views]


async def _greet(address: str) -> BrokerView:
    """Wait for a broker's `INFO`: https://docs.nats.io/reference/reference-protocols/nats-protocol#info."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    began, writer = loop.time(), None
    try:
        async with asyncio.timeout(_GREETING_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=_GREETING_BYTES)
            line = await reader.readline()
    except TimeoutError:
        return BrokerView(address=address, reason=f"no answer within {_GREETING_S:g} s")
    except ConnectionRefusedError:
        return BrokerView(address=address, reason="nothing listens there")
    except (OSError, ValueError) as exc:
        return BrokerView(address=address, reason=describe_error(exc))
    finally:
        if writer is not None:
            writer.transport.abort()
    took_s = loop.time() - began
    if not line:
        return BrokerView(address=address, reason="it closes the connection")
    value: object = None
    with suppress(ValueError, RecursionError):  # not plain NATS, but alive
        value = json.loads(line.removeprefix(b"INFO "))
    name = value.get("server_name") if is_json_object(value) else None
    return BrokerView(address=address, name=name if isinstance(name, str) else "", took_s=took_s)
