"""The stream of changes: tells a browser which topics have changed, so that it fetches their sections again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import anyio
from anyio import to_thread

from induscode.calls.database import UnreadableCallsError, open_calls

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from induscode.gateway.page.contract import PageSource, Topic

_LOOK_S: Final = 0.5
"""How often it looks: a change is seen within a second, also one that another process has written."""
_PING_S: Final = 15.0
_BROKERS_S: Final = 5.0
"""How often the view of a cluster is fetched anyway: brokers to which this node is not connected announce nothing."""


async def watch_changes(source: PageSource) -> AsyncGenerator[bytes]:
    """Yield a server-sent event `change` with the changed topics, whenever there are some; a comment now and then.

    `ready` comes first: what has changed before it is not announced, so the browser fetches its sections once.

    https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
    """
    known = await _take_signatures(source)
    yield b"retry: 2000\r\nevent: ready\r\ndata: []\r\n\r\n"
    quiet_s = 0.0
    while True:
        await anyio.sleep(_LOOK_S)
        present = await _take_signatures(source)
        changed = sorted(topic for topic, signature in present.items() if known[topic] != signature)
        known = present
        quiet_s = 0.0 if changed else quiet_s + _LOOK_S
        if changed:
            yield f"event: change\r\ndata: {json.dumps(changed)}\r\n\r\n".encode()
        elif quiet_s >= _PING_S:
            quiet_s = 0.0
            yield b": \r\n\r\n"


async def _take_signatures(source: PageSource) -> Mapping[Topic, object]:
    """Take a value of each topic that differs after a change."""
    mcp = source.session.mcp
    servers = tuple(
        (name, status.phase, status.tool_count, status.restarts, str(status.fault or ""))
        for name, status in mcp.status().items()
    )
    # The ledger is a value: a changed one is another object, which this reference keeps alive.
    node = source.node
    nodes = ()
    if node is not None:
        nodes = (*node.membership.list_nodes(), node.broker.state, anyio.current_time() // _BROKERS_S)
    return {
        "cluster": (nodes, servers),
        "servers": (servers, tuple(row.id for row in source.plan.rows)),
        "items": (_Same(mcp.ledger), tuple(tool.ref for tool in mcp.disabled)),
        "calls": await to_thread.run_sync(_find_newest),
    }


class _Same:
    """Compares an object by identity."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _find_newest() -> int:
    try:
        database = open_calls()
    except UnreadableCallsError:
        return 0
    if database is None:
        return 0
    try:
        return database.newest()
    finally:
        database.close()
