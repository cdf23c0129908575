"""The program behind `make cluster-demo`: three brokers, three nodes, ten servers, and what clients see of failures.

Everything runs on this machine, in a temporary directory, which is removed at the end; also after Ctrl-C. The exit code
is 1 if a call ran twice, an answer was lost, or servers did not come back.
"""

import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import nats
from load import Load, count_outcomes
from parts import Parts

HERE = Path(__file__).resolve().parent
SERVERS = [f"counter-{number}" for number in range(10)]
CLIENTS = 6
CALM_S = 4.0
BACK_S = 25.0
SHOWN = 3


class DemoError(Exception):
    """The demo did not show what it should show."""


def say(text=""):
    print(text, flush=True)


def count(number, noun):
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_calls(calls, seconds):
    """Print what clients saw in a time."""
    outcomes = count_outcomes(calls)
    took = sorted(call.took_s for call in calls if call.outcome == "answer")
    say(f"  {count(len(calls), 'call')} in {seconds:.0f} s, each to any node: {count(outcomes['answer'], 'answer')}")
    if took:
        say(
            f"  half of them within {statistics.median(took) * 1000:.1f} ms, 99 of 100 within "
            f"{took[int(len(took) * 0.99)] * 1000:.0f} ms"
        )
    words = {
        "unknown": "cut off: the client is told that the outcome is unknown",
        "refused": "refused with a reason, before anything ran",
        "closed": "to the dead node: connection refused, the client goes to another",
    }
    for outcome, text in words.items():
        if outcomes[outcome]:
            say(f"  {count(outcomes[outcome], 'call')} {text}")
    reasons = Counter(call.said for call in calls if call.outcome in {"unknown", "refused"})
    for reason, times in reasons.most_common(SHOWN):
        say(f"    {times:>4} times: {reason[:110]}")


async def wait_for_all(load, servers, since):
    """Wait until each server has answered a call that was sent after a moment; return how long each took."""
    back = {}
    while time.monotonic() - since < BACK_S:
        for call in load.calls:
            if call.outcome == "answer" and call.at > since and call.server in servers:
                back.setdefault(call.server, call.at + call.took_s - since)
        if len(back) == len(servers):
            return back
        await asyncio.sleep(0.1)
    missing = ", ".join(sorted(set(servers) - set(back)))
    raise DemoError(f"no answer of {missing} in {BACK_S:.0f} s")


def read_owners(parts, brokers):
    """Return the node of each server."""
    text = parts.run("cluster", "placements", "--json", "--cluster", brokers)
    return {row["server"]: row["node"] for row in json.loads(text)["placements"]}


async def find_leader(brokers):
    """Ask the brokers which of them leads the group that keeps the leases."""
    client = await nats.connect(brokers.split(","))
    try:
        cluster = (await client.jetstream().stream_info("KV_indus_leases")).cluster
        if cluster is None or cluster.leader is None:
            raise DemoError("the brokers have no leader")
        return cluster.leader
    finally:
        await client.close()


async def fail_under_load(load, title, kill, servers):
    """Kill something while clients call, and print what they saw."""
    say()
    say(title)
    began = len(load.calls)
    async with load.running():
        await asyncio.sleep(1.5)
        killed_at = time.monotonic()
        kill()
        back = await wait_for_all(load, servers, killed_at)
        await asyncio.sleep(2.0)
    calls = load.calls[began:]
    show_calls(calls, time.monotonic() - killed_at + 1.5)
    say(f"  answers of all {len(servers)} servers concerned: again after {max(back.values()):.1f} s at most")
    return max(back.values())


def check_journal(load, journal):
    """Compare what clients saw with what the servers have run; return the sentence to print."""
    ran = Counter(journal.read_text().split())
    seen = {call.identity: call.outcome for call in load.calls}
    twice = [identity for identity, times in ran.items() if times > 1]
    lost = [identity for identity, outcome in seen.items() if outcome == "answer" and identity not in ran]
    wrong = [identity for identity, outcome in seen.items() if outcome in {"refused", "closed"} and identity in ran]
    if twice or lost or wrong:
        raise DemoError(f"ran twice: {twice[:5]}; answered without a run: {lost[:5]}; refused and run: {wrong[:5]}")
    unknown = [identity for identity, outcome in seen.items() if outcome == "unknown"]
    there = sum(identity in ran for identity in unknown)
    return (
        f"  {count(len(seen), 'call')}: none ran twice, each answer has its run, no refused call ran;\n"
        f"  of {count(len(unknown), 'call')} with an unknown outcome {there} had run"
    )


async def run(folder):
    """Run the steps."""
    with Parts(folder) as parts:
        began = time.monotonic()
        brokers = parts.start_brokers(3)
        parts.prepare(brokers, "--replicas", "3")
        journal = folder / "journal"
        command = {"command": sys.executable, "args": [str(HERE / "counter_server.py"), str(journal)]}
        nodes = parts.start_nodes(("a", "b", "c"), brokers, dict.fromkeys(SERVERS, command))
        load = Load(nodes.values(), SERVERS, CLIENTS)
        async with load.running():
            await wait_for_all(load, SERVERS, began)
        say(f"three brokers, three nodes and ten servers are up after {time.monotonic() - began:.1f} s:")
        for line in parts.run("cluster", "--cluster", brokers).splitlines():
            say(f"  {line}")

        say()
        say(f"{CLIENTS} clients call the servers, each call through any of the nodes:")
        first, at = len(load.calls), time.monotonic()
        async with load.running():
            await asyncio.sleep(CALM_S)
        show_calls(load.calls[first:], time.monotonic() - at)

        owners = read_owners(parts, brokers)
        victim = Counter(owners.values()).most_common(1)[0][0]
        moved = [server for server, node in owners.items() if node == victim]
        title = f"kill -9 of node {victim!r}, which runs {count(len(moved), 'server')}, under the same load:"
        await fail_under_load(load, title, parts.nodes[victim].kill, moved)
        for line in parts.run("cluster", "--cluster", brokers).splitlines():
            say(f"  {line}")

        leader = await find_leader(brokers)
        title = f"kill -9 of {leader}, which leads the brokers, under the same load:"
        await fail_under_load(load, title, parts.brokers[leader].kill, SERVERS)

        say()
        say("what the clients saw against what the servers have written down:")
        say(check_journal(load, journal))
        say()
        say("the nodes stop:")
    for name in parts.nodes:
        if name != victim:
            say(f"  node {name!r}: exit code {parts.nodes[name].returncode}")


def main():
    """Run the demo, and return the exit code."""

    def stop(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with tempfile.TemporaryDirectory(prefix="indus-cluster-") as name:
        try:
            asyncio.run(run(Path(name)))
        except KeyboardInterrupt:
            say("stopped; every process of the demo has ended")
            return 130
        except (DemoError, RuntimeError) as exc:
            say(f"failed: {exc}")
            if os.environ.get("KEEP_LOGS"):
                for path in sorted(Path(name).glob("*.log")):
                    say(f"--- {path.name}\n{path.read_text('utf-8', 'replace')[-4_000:]}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
