"""A cluster to be measured: brokers and nodes as processes, and clients of the nodes over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from tests.support.broker import BrokerProcess, broker_process, broker_processes

from bench.gateway.contenders import free_port
from bench.gateway.http_client import Web
from bench.process import surroundings
from bench.row import CannotMeasure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Sequence

_SERVER = str(Path(__file__).parents[1] / "echo_server.py")
_START_S = 60.0
_POLL_S = 0.02
_END_S = 10.0
TEXT = "The quick brown fox."


@dataclass(slots=True)
class Node:
    """One `indus serve --http --cluster`."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    def connect(self) -> Web:
        """Return a client of it that speaks the modern protocol."""
        return Web(self.port, "/mcp", modern=True)


class MeasuredCluster:
    """Brokers and nodes that run; `open_cluster` makes one."""

    def __init__(self, folder: Path, brokers: Sequence[BrokerProcess], servers: int) -> None:
        self.folder = folder
        self.brokers = brokers
        self.servers = [f"s{number}" for number in range(servers)]
        self.nodes: list[Node] = []
        self._config = folder / "servers.json"
        rows = {name: {"command": sys.executable, "args": ["-I", "-S", _SERVER]} for name in self.servers}
        self._config.write_text(json.dumps({"mcpServers": rows}), "utf-8")
        self._key = folder / "cluster.key"

    @property
    def addresses(self) -> str:
        """Of the brokers, as the option `--cluster` takes them."""
        return ",".join(broker.url for broker in self.brokers)

    def _env(self, home: str) -> dict[str, str]:
        kept = {key: value for key, value in surroundings().items() if not key.startswith("XDG_")}
        return {**kept, "HOME": str(self.folder / home)}

    def run(self, *words: str) -> str:
        """Run `indus cluster …`, and return what it prints."""
        where = ("--cluster", self.addresses, "--cluster-key", str(self._key))
        command = [sys.executable, "-m", "induscode", "cluster", *words, *where]
        done = subprocess.run(
            command,
            env=self._env("command"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_START_S,
            check=False,
        )
        if done.returncode:
            raise CannotMeasure(f"indus cluster {words[0]} failed: {done.stderr.strip()[-300:]}")
        return done.stdout

    def prepare(self, lease_s: float) -> None:
        """Make the buckets; brokers that elect their first leader are waited for."""
        give_up_at = monotonic() + _START_S
        replicas = "3" if len(self.brokers) > 1 else "1"
        while True:
            try:
                self.run("init", "--replicas", replicas, "--lease", f"{lease_s:g}")
            except CannotMeasure:
                if monotonic() > give_up_at:
                    raise
            else:
                return

    def start_node(self) -> Node:
        """Start one more node; it listens when `wait_listening` returns."""
        name, port = f"n{len(self.nodes)}", free_port()
        words = ["serve", "--http", f"127.0.0.1:{port}", "--no-token", "--profile", "none", "--mcp", str(self._config)]
        cluster = ["--cluster", self.addresses, "--cluster-key", str(self._key), "--node", name]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "induscode", *words, *cluster],
                env=self._env(name),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        node = Node(name, port, process)
        self.nodes.append(node)
        return node

    async def wait_ready(self, node: Node) -> None:
        """Wait until every server answers at a node."""
        give_up_at = monotonic() + _START_S
        client = node.connect()
        for server in self.servers:
            while True:
                try:
                    if is_answer(await client.request("tools/call", make_call(server))):
                        break
                except CannotMeasure:
                    if monotonic() > give_up_at:
                        said = (self.folder / f"{node.name}.log").read_text("utf-8")[-300:]
                        raise CannotMeasure(f"{server} does not answer at {node.name}: {said}") from None
                await asyncio.sleep(_POLL_S)
        await client.aclose()

    def find_owners(self) -> dict[str, Node]:
        """Find the node of each server."""
        found: Any = json.loads(self.run("placements", "--json"))
        nodes = {node.name: node for node in self.nodes}
        return {row["server"]: nodes[row["node"]] for row in found["placements"] if row["node"] in nodes}

    def stop(self) -> None:
        """End the nodes."""
        for node in self.nodes:
            with suppress(ProcessLookupError):
                node.process.send_signal(signal.SIGTERM)
        for node in self.nodes:
            try:
                node.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(node.process.pid, signal.SIGKILL)
                node.process.wait()


def make_call(server: str) -> dict[str, Any]:
    """Return the parameters of a call of a server's tool."""
    return {"name": f"{server}__echo", "arguments": {"text": TEXT}}


def is_answer(answer: Any) -> bool:
    """Return whether a call was answered by the server."""
    try:
        return answer["result"]["content"][0]["text"] == TEXT
    except (KeyError, IndexError, TypeError):
        return False


@contextmanager
def _brokers(folder: Path, count: int) -> Generator[Sequence[BrokerProcess]]:
    if count == 1:
        with broker_process(folder) as broker:
            yield [broker]
        return
    with broker_processes(folder, count) as brokers:
        yield brokers


@asynccontextmanager
async def open_cluster(
    nodes: int, servers: int, brokers: int = 1, lease_s: float = 10.0
) -> AsyncGenerator[MeasuredCluster]:
    """Run a cluster in which every server answers at every node."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        cluster = MeasuredCluster(folder, stack.enter_context(_brokers(folder / "brokers", brokers)), servers)
        stack.callback(cluster.stop)
        cluster.prepare(lease_s)
        for _ in range(nodes):
            cluster.start_node()
        for node in cluster.nodes:
            await cluster.wait_ready(node)
        yield cluster
