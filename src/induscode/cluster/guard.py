"""Guard of a node: a small process that outlives a node which is killed, and ends what it has left.

A node that is killed with -9 cannot release its lease, so its servers would stay without an owner until the lease has
run out. The guard watches the process of the node. When that has ended without a word, the guard ends the server
processes that are left, checks that none runs any more, and only then ends the lease at the broker: a node that lives,
or is merely stopped, keeps its lease. The entry is replaced by compare-and-set, so a renewal that was still under way
is refused, or makes the guard read again.

The guard sleeps in a system call and imports nothing of the cluster until it is needed. It needs `/proc` and pidfds:
Linux. Elsewhere a killed node is replaced when its lease has run out.
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
"""How long server processes have to end at SIGTERM."""
_KILL_S = 5.0
_PAUSE_S = 0.05
_EMPTY_SCANS = 2
"""A process that was being started has no marker for a moment."""
_RETRY_S = 0.2
_GIVE_UP_S = 60.0
"""When the lease has run out anyway."""
_LEAVE_S = 2.0
_TOLD = ("node", "prefix", "connect_s", "role", "credentials")
"""What the guard needs of the settings, beside the brokers; the key of the cluster is not among it: the node seals what
its guard may have to write."""


class Guard:
    """The node's end of its guard; `open_guard` makes one."""

    def __init__(self, process: subprocess.Popen[bytes] | None = None, mark: str = "") -> None:
        self._process = process
        self.mark = mark
        """The marker of the servers of this node, for the variable `INDUS_CHILD`."""

    def tell_lease(self, lease: str, ended: bytes, gone: bytes) -> None:
        """Name the lease that this node is about to create, with the entry that ends it and the report of its end."""
        self.tell({"lease": lease, "ended": ended.hex(), "gone": gone.hex()})

    def tell(self, message: dict[str, object]) -> None:
        """Tell the guard something that it needs after the end of the node."""
        if self._process is not None:
            with suppress(OSError):  # it was killed: the lease runs out instead
                cast("IO[bytes]", self._process.stdin).write(json.dumps(message).encode() + b"\n")

    def leave(self) -> None:
        """End the guard: the node has released its lease, and its servers have ended."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            process.communicate(b'{"leave": true}\n', timeout=_LEAVE_S)
        process.kill()
        process.wait()


@asynccontextmanager
async def open_guard(settings: ClusterSettings) -> AsyncGenerator[Guard]:
    """Have this process guarded inside the block; where the system cannot, the guard does nothing."""
    import asyncio  # noqa: PLC0415 — not in the guard itself

    from indusagi.core.ids import new_ulid  # noqa: PLC0415 — not in the guard itself

    mark, process = new_ulid(), None
    if can_guard():
        # -P: no module is taken from the working directory, which may be a project that is not trusted.
        command = [sys.executable, "-P", "-m", "induscode.cluster.guard", str(os.getpid())]
        process = subprocess.Popen(  # noqa: ASYNC220 — a fork takes a millisecond
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
    guard = Guard(process, mark)
    # By its input, not by its command line: the addresses may have passwords in them.
    told = {name: getattr(settings, name) for name in _TOLD}
    guard.tell({"settings": told | {"brokers": [*settings.brokers]}, "mark": mark})
    try:
        yield guard
    finally:
        await asyncio.to_thread(guard.leave)


def can_guard() -> bool:
    """Return whether the system lets one process watch another, and list the servers that it has left."""
    return hasattr(os, "pidfd_open") and os.path.exists("/proc/self/environ")


# -- in the process of the guard ----------------------------------------------------------------


def main() -> None:
    """Wait for the end of the node, and end what it has left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a service manager signals all processes of a service
    node = int(sys.argv[1])
    handle: int | None = None
    with suppress(OSError):  # it has ended already
        handle = os.pidfd_open(node)
        if os.getppid() != node:
            os.close(handle)  # that of another process
            handle = None
    told: dict[str, object] = {}
    for line in sys.stdin.buffer:
        with suppress(ValueError):  # cut off by the end of the node
            told.update(json.loads(line))
    if told.get("leave") or "lease" not in told or "settings" not in told:
        return
    if handle is not None:
        select.select([handle], [], [])
    last = LastWord(str(told["lease"]), bytes.fromhex(str(told["ended"])), bytes.fromhex(str(told["gone"])))
    _end_node(cast("dict[str, object]", told["settings"]), last, str(told["mark"]))


class LastWord(NamedTuple):
    """What the guard writes for a node that has ended."""

    lease: str
    ended: bytes
    """The entry that ends the lease."""
    gone: bytes
    """The report that the node is gone."""


def _end_node(fields: dict[str, object], last: LastWord, mark: str) -> None:
    import asyncio  # noqa: PLC0415 — only after the end of a node

    began = time.monotonic()
    name = fields.get("node")
    if not end_servers(mark):
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


def end_servers(mark: str) -> bool:
    """End the processes with a marker and their descendants: SIGTERM, then SIGKILL; return whether all have ended."""
    from indusagi.core.process.tree import ProcessTree, signal_processes  # noqa: PLC0415 — only after a node's end

    tree = ProcessTree(mark)
    for number, patience_s in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _KILL_S)):
        give_up_at, empty = time.monotonic() + patience_s, 0
        while time.monotonic() < give_up_at:
            left = tree.list_running(None)
            signal_processes(left, number)
            empty = 0 if left else empty + 1
            if empty == _EMPTY_SCANS:
                return True
            time.sleep(_PAUSE_S)
    return False


async def _release_lease(fields: dict[str, object], last: LastWord) -> None:
    """End the lease of a process that has ended, and tell the other nodes.

    Raises:
        TimeoutError: The broker stayed away.
    """
    import asyncio  # noqa: PLC0415 — only after the end of a node

    from induscode.cluster.broker import open_broker  # noqa: PLC0415 — only after the end of a node
    from induscode.cluster.contract import ClusterFault, ClusterSettings  # noqa: PLC0415 — only after a node's end

    settings = ClusterSettings(**fields)  # pyright: ignore[reportArgumentType] — written by `open_guard`
    async with asyncio.timeout(_GIVE_UP_S):
        while True:
            try:
                async with open_broker(settings) as broker:
                    await end_dead_lease(broker, last)
            except ClusterFault:
                await asyncio.sleep(_RETRY_S)
            else:
                return


async def end_dead_lease(broker: Broker, last: LastWord) -> None:
    """End the lease of a node whose process has ended; the other nodes learn of it at once.

    Raises:
        ClusterFault: The broker did not do it.
    """
    from induscode.cluster.contract import LostRaceError  # noqa: PLC0415 — not in the guard while it waits

    leases = await broker.open_bucket(broker.settings.leases)
    while (entry := await leases.get(last.lease)) is not None and entry.value != last.ended:
        with suppress(LostRaceError):  # a renewal was under way
            await leases.update(last.lease, last.ended, entry.revision)
    await broker.publish(broker.settings.beats, last.gone)


if __name__ == "__main__":
    main()
