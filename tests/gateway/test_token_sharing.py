"""Named tokens in a cluster: one list, one budget, and one end for all nodes."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.commands.helpers import configured, row, user_file
from tests.commands.serving import hello, serving, wait_for
from tests.support.broker import broker_process
from tests.support.resources import STAMP
from tests.support.scripts import run
from tests.support.waiting import LIMIT_S

from induscode.commands.program import run as run_here
from induscode.gateway.tokens import grant_calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.commands.serving import Gateway

pytestmark = pytest.mark.process
NODES = ("a", "b", "c")


class Machine:
    """A node with a state directory of its own."""

    def __init__(self, folder: Path, key: Path, name: str) -> None:
        self.folder, self.name, self.state = folder, name, folder / name
        (self.state / "indus").mkdir(parents=True)
        shutil.copy(key, self.state / "indus" / "cluster.key")
        self.url = ""

    def run(self, *words: str) -> str:
        """Run a command on this machine."""
        done = run(*words, cwd=self.folder, XDG_STATE_HOME=str(self.state))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def send(self, client: httpx2.Client, token: str, name: str, **arguments: Any) -> httpx2.Response:
        """Call a tool at this node."""
        headers = {
            "authorization": f"Bearer {token}",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": name,
        }
        params = {"name": name, "arguments": arguments, "_meta": STAMP}
        frame = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return client.post(self.url, json=frame, headers=headers)


def test_a_token_ends_at_three_nodes_and_its_budget_is_one(tmp_path: Path) -> None:
    """One cluster for all of it: a start takes longer than the rest."""
    configured(user_file(), {"one": row(added="allow")})
    accept = {"accept": "application/json, text/event-stream"}
    with broker_process(tmp_path / "broker") as broker, ExitStack() as stack:
        assert run_here(["cluster", "init", "--cluster", broker.url]) == 0
        key = Path.home() / ".local/state/indus/cluster.key"
        machines = [Machine(tmp_path, key, name) for name in NODES]
        for one in machines:
            words = ("--http", "127.0.0.1:0", "--profile", "read-only", "--cluster", broker.url, "--node", one.name)
            gateway = stack.enter_context(serving(*words, cwd=tmp_path, XDG_STATE_HOME=str(one.state)))
            wait_for(partial(_is_up, gateway, one))
        client = stack.enter_context(httpx2.Client(timeout=LIMIT_S, headers=accept))
        pool = stack.enter_context(ThreadPoolExecutor(64))
        _use_budget(machines, client, pool)
        _revoke(machines, client, pool)


def _is_up(gateway: Gateway, one: Machine) -> bool:
    found = re.search(r"serving at (\S+)", gateway.said())
    one.url = found[1] if found else ""
    return "native tools" in gateway.said()


def _create(machines: Sequence[Machine], client: httpx2.Client, name: str, *words: str) -> str:
    """Create a token on the first machine, and wait until all nodes know it."""
    token = machines[0].run("tokens", "create", name, *words).strip()
    headers = {"authorization": f"Bearer {token}"}
    for one in machines:
        wait_for(lambda url=one.url: client.post(url, json=hello(), headers=headers).status_code == 200)
    return token


def _use_budget(machines: Sequence[Machine], client: httpx2.Client, pool: ThreadPoolExecutor) -> None:
    """Let 64 calls race for the budget of all nodes."""
    token = _create(machines, client, "ci", "--calls-per-day", "30")

    def call(number: int) -> Any:
        one = machines[number % 3]
        return one.send(client, token, "ls", path=str(one.folder)).json()["result"]

    answers = [*pool.map(call, range(64))]
    assert Counter(answer["isError"] for answer in answers) == {False: 30, True: 34}
    refusals = {answer["content"][0]["text"].partition(", until")[0] for answer in answers if answer["isError"]}
    assert refusals == {"The budget of the token 'ci' is used up: 30 calls per day"}

    def is_shared() -> bool:
        rows = json.loads(machines[2].run("tokens", "list", "--json"))["tokens"]
        return [(row["name"], row["state"], row["calls_today"]) for row in rows] == [("ci", "active", 30)]

    wait_for(is_shared)


def _revoke(machines: Sequence[Machine], client: httpx2.Client, pool: ThreadPoolExecutor) -> None:
    """Revoke a token while its session has a stream at another node, and a server runs its call at a third."""
    a, b, c = machines
    token = _create(machines, client, "slow")
    headers = {"authorization": f"Bearer {token}"}
    headers["mcp-session-id"] = client.post(b.url, json=hello(), headers=headers).headers["mcp-session-id"]
    is_open = threading.Event()

    def hold_stream() -> int:
        with httpx2.Client(timeout=LIMIT_S) as own, suppress(httpx2.HTTPError):
            wanted = {**headers, "accept": "text/event-stream"}
            with own.stream("GET", c.url, headers=wanted) as stream:
                is_open.set()
                for _ in stream.iter_bytes():
                    pass
                return stream.status_code
        return 0

    def hold_call() -> str:
        with suppress(httpx2.HTTPError):
            return c.send(client, token, "one__slow", seconds=600).text
        return "cut off"

    stream, call = pool.submit(hold_stream), pool.submit(hold_call)
    assert is_open.wait(LIMIT_S)
    a.run("tokens", "revoke", "slow")
    assert stream.result(LIMIT_S) in {0, 200}
    assert "slept" not in call.result(LIMIT_S)
    for one in machines:
        wait_for(partial(_is_refused, one, client, token))
        assert client.post(one.url, json=hello(), headers=headers).status_code == 401


def _is_refused(one: Machine, client: httpx2.Client, token: str) -> bool:
    return one.send(client, token, "ls", path=str(one.folder)).status_code == 401


@pytest.mark.parametrize(
    ("known", "day", "count", "limit", "expected"),
    [
        ((5, 0), 5, 3, 10, (3, 3)),
        ((5, 9), 5, 3, 10, (10, 1)),
        ((5, 12), 5, 3, 10, (12, 0)),  # the budget became smaller
        ((4, 10), 5, 3, 10, (3, 3)),
        ((6, 2), 5, 3, 10, (2, 0)),  # the day has ended for another node
        ((5, 9), 5, -3, 0, (6, -3)),
        ((5, 2), 5, -3, 0, (0, -2)),
        ((6, 2), 5, -3, 0, (2, 0)),
    ],
)
def test_calls_are_taken_from_one_day(known: Any, day: int, count: int, limit: int, expected: Any) -> None:
    assert grant_calls(known, day, count, limit) == expected
