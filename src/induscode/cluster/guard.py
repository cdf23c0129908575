"""Guard of a node: a small process that outlives a killed node and cleans up after it.

A node killed with -9 can't release its lease, so its servers would have no owner until the lease expires. The guard
watches the node's process. If that exits without notice, the guard ends the remaining server processes, checks that
none is left, and only then ends the lease at the broker: a node that's alive, or merely suspended, keeps its lease. The
entry is replaced by compare-and-set, so a renewal in flight either fails or makes the guard read again.

The guard sleeps in a system call and imports nothing from the cluster until it's needed. It needs `/proc` and pidfds,
i.e. Linux. Elsewhere a killed node is replaced when its lease expires.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import IO, TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from induscode.cluster.broker import Broker
    from induscode.cluster.contract import ClusterSettings

_TERM_S = 0.5
"""How long server processes may take to end after SIGTERM."""
_KILL_S = 5.0
_RETRY_S = 0.2
_GIVE_UP_S = 60.0
"""By then the lease has expired anyway."""
_LEAVE_S = 2.0
_SETTINGS_FIELDS = ("node", "prefix", "connect_s", "role", "credentials")
"""Settings the guard needs, in addition to the brokers. Not the cluster key: the node seals the messages its guard may
have to send."""


class Guard:
    """The node's end of its guard. Create it with `open_guard`."""

    def __init__(self, process: subprocess.Popen[bytes] | None = None, mark: str = "") -> None:
        self._process = process
        self.mark = mark
        """Marker of this node's servers, for the variable `INDUS_CHILD`."""

    def tell_lease(self, lease: str, ended: bytes, gone: bytes) -> None:
        """Announce the lease this node is about to create, with the entry that ends it and the report of its end."""
        self.tell({"lease": lease, "ended": ended.hex(), "gone": gone.hex()})

    def tell(self, message: dict[str, object]) -> None:
        """Send the guard something it needs after the node's end."""
        if self._process is not None:
            with suppress(OSError):  # the guard was killed: the lease expires instead
                cast("IO[bytes]", self._process.stdin).write(json.dumps(message).encode() + b"\n")

    def leave(self) -> None:
        """End the guard, after releasing the lease and ending the servers."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            process.communicate(b'{"leave": true}\n', timeout=_LEAVE_S)
        process.kill()
        process.wait()


@asynccontextmanager
async def open_guard(settings: ClusterSettings) -> AsyncGenerator[Guard]:
    """Guard this process inside the block. Does nothing on systems without support."""
    import asyncio  # noqa: PLC0415 — not in the guard itself

    from indusagi.core.ids import new_ulid  # noqa: PLC0415 — not in the guard itself

    mark, process = new_ulid(), None
    if can_guard():
        # -P: don't import modules from the working directory, which may be an untrusted project.
        command = [sys.executable, "-P", "-m", "induscode.cluster.guard", str(os.getpid())]
        process = subprocess.Popen(  # noqa: ASYNC220 — a fork takes a millisecond
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
    guard = Guard(process, mark)
    # On stdin, not on the command line: the addresses may contain passwords.
    fields = {name: getattr(settings, name) for name in _SETTINGS_FIELDS}
    guard.tell({"settings": fields | {"brokers": [*settings.brokers]}, "mark": mark})
    try:
        yield guard
    finally:
        await asyncio.to_thread(guard.leave)


def can_guard() -> bool:
    """Return whether one process can watch another here, and list the servers it left behind."""
    return hasattr(os, "pidfd_open") and os.path.exists("/proc/self/environ")


# -- in the guard's process ---------------------------------------------------------------------


def main() -> None:
    """Wait for the node's end, and clean up after it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a service manager signals all processes of a service
    node = int(sys.argv[1])
    handle: int | None = None
    with suppress(OSError):  # it has already ended
        handle = os.pidfd_open(node)
        if os.getppid() != node:
            os.close(handle)  # the pid belongs to another process
            handle = None
    told: dict[str, object] = {}
    for line in sys.stdin.buffer:
        with suppress(ValueError):  # cut off by the node's end
            told.update(json.loads(line))
    if told.get("leave") or "lease" not in told or "settings" not in told:
        return
    if handle is not None:
        select.select([handle], [], [])
    last = LastWord(str(told["lease"]), bytes.fromhex(str(told["ended"])), bytes.fromhex(str(told["gone"])))
    _end_node(cast("dict[str, object]", told["settings"]), last, str(told["mark"]))


class LastWord(NamedTuple):
    """The guard's messages on behalf of an ended node."""

    lease: str
    ended: bytes
    """The entry that ends the lease."""
    gone: bytes
    """The report that the node is gone."""


def _end_node(fields: dict[str, object], last: LastWord, mark: str) -> None:
    import asyncio  # noqa: PLC0415 — only after the end of a node

    from indusagi.core.process.tree import end_marked  # noqa: PLC0415 — only after the end of a node

    began = time.monotonic()
    name = fields.get("node")
    if not end_marked(mark, _TERM_S, _KILL_S):
        _report(f"node {name!r} was killed, and servers of it cannot be ended: its lease is left to run out")
        return
    try:
        asyncio.run(_release_lease(fields, last))
    except TimeoutError:
        _report(f"node {name!r} was killed: its servers have ended, its lease is left to run out")
        return
    _report(f"node {name!r} was killed: its servers and its lease have ended, after {time.monotonic() - began:.1f} s")


def _report(text: str) -> None:
    with suppress(OSError, ValueError):  # nothing reads it any more
        sys.stderr.write(f"indus guard: {text}\n")
        sys.stderr.flush()


async def _release_lease(fields: dict[str, object], last: LastWord) -> None:
    """End the lease of an ended process, or raise `TimeoutError` if the broker stays away."""
    import asyncio  # noqa: PLC0415 — only after the end of a node

    from induscode.cluster.broker import open_broker  # noqa: PLC0415 — only after the end of a node
    from induscode.cluster.contract import ClusterFault, ClusterSettings  # noqa: PLC0415 — only after a node's end

    settings = ClusterSettings(**fields)  # pyright: ignore[reportArgumentType] — written by `open_guard`
    async with asyncio.timeout(_GIVE_UP_S):
        while True:
            try:
                async with open_broker(settings) as broker:
                    return await end_dead_lease(broker, last)
            except ClusterFault:
                await asyncio.sleep(_RETRY_S)


async def end_dead_lease(broker: Broker, last: LastWord) -> None:
    """End the lease of a node whose process has ended, and notify the other nodes, or raise `ClusterFault`."""
    from induscode.cluster.contract import LostRaceError  # noqa: PLC0415 — not in the guard while it waits
    from induscode.cluster.jetstream import open_bucket  # noqa: PLC0415 — not in the guard while it waits

    leases = await open_bucket(broker, broker.settings.leases)
    while (entry := await leases.get(last.lease)) is not None and entry.value != last.ended:
        with suppress(LostRaceError):  # a renewal was in flight
            await leases.put(last.lease, last.ended, entry.revision)
    await broker.publish(broker.settings.subject("beat"), last.gone)


if __name__ == "__main__":
    main()
