"""Brokers and nodes as processes, in one directory; everything is ended when the block is left."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

BIN = Path(sys.executable).parent
PASSED = ("LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "PATH")
START_S = 40.0
END_S = 8.0
CONFIG = """
listen: 127.0.0.1:{client}
server_name: {name}
jetstream {{ store_dir: "{store}", sync_interval: always }}
"""
ROUTES = "cluster {{ name: demo, listen: 127.0.0.1:{route}, routes: [{routes}] }}\n"


class Parts:
    """The processes of a small cluster."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {name: os.environ[name] for name in PASSED if name in os.environ}
        self.environment |= {"HOME": str(folder), "NO_COLOR": "1"}
        self.brokers, self.nodes = {}, {}
        self.urls = []
        """Of the nodes, where clients reach them."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.nodes.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self.nodes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        for process in (*self.nodes.values(), *self.brokers.values()):
            process.kill()
            process.wait()

    def _start(self, name, command):
        log = open(self.folder / f"{name}.log", "wb")  # noqa: SIM115 — the process has it, too
        with log:
            # Sessions of their own: Ctrl-C is for the demo, which ends them in order.
            return subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def read_log(self, name):
        """Return what a process has written."""
        return (self.folder / f"{name}.log").read_text("utf-8", "replace")

    def wait_for_text(self, name, process, text):
        """Wait until a process has written something; a process that ended is an error."""
        give_up_at = time.monotonic() + START_S
        while text not in self.read_log(name):
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError(f"{name} did not start:\n{self.read_log(name)}")
            time.sleep(0.05)

    def start_brokers(self, count):
        """Start brokers that form a cluster, and return their addresses."""
        names = [f"broker-{number + 1}" for number in range(count)]
        clients, routes = choose_ports(count), choose_ports(count)
        everyone = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        for name, client, route in zip(names, clients, routes, strict=True):
            path = self.folder / f"{name}.conf"
            store = self.folder / name
            text = CONFIG.format(client=client, name=name, store=store)
            if count > 1:
                text += ROUTES.format(route=route, routes=everyone)
            path.write_text(text, encoding="utf-8")
            self.brokers[name] = self._start(name, [str(BIN / "nats-server"), "-c", str(path)])
        for name in names:
            self.wait_for_text(name, self.brokers[name], "Server is ready")
        return ",".join(f"nats://127.0.0.1:{port}" for port in clients)

    def prepare(self, brokers, *flags):
        """Run `indus cluster init` until the brokers have found each other."""
        give_up_at = time.monotonic() + START_S
        command = [str(BIN / "indus"), "cluster", "init", "--cluster", brokers, *flags]
        while True:
            done = subprocess.run(command, env=self.environment, cwd=self.folder, capture_output=True, text=True)
            if done.returncode == 0:
                return done.stdout
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"the brokers cannot be prepared: {done.stderr}")
            time.sleep(0.5)

    def start_nodes(self, names, brokers, servers, *flags):
        """Start nodes with the same servers, and wait until each serves clients."""
        config = self.folder / "servers.json"
        config.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
        words = ("--http", "127.0.0.1:0", "--no-token", "--profile", "none", "--mcp", str(config), *flags)
        for name in names:
            command = [str(BIN / "indus"), "serve", *words, "--cluster", brokers, "--node", name]
            self.nodes[name] = self._start(name, command)
        for name in names:
            self.wait_for_text(name, self.nodes[name], "native tools")
            self.urls += re.findall(r"serving at (\S+)", self.read_log(name))
        return dict(zip(names, self.urls, strict=True))

    def run(self, *words):
        """Run `indus`, and return what it prints."""
        command = [str(BIN / "indus"), *words]
        return subprocess.run(command, env=self.environment, cwd=self.folder, capture_output=True, text=True).stdout


def choose_ports(count):
    """Choose ports of this machine that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
