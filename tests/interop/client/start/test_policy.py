"""How long a start may take, and which commands may be downloading."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.interop import ServerLimits, StartHistory, StartPolicy, StdioServerConfig, StreamableHttpServerConfig
from indusagi.interop.protocol_bridge.client.start import RestartRecord, Supervision, find_package_manager
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.contract import FaultReason


POLICY = StartPolicy()


def config(*argv: str, connect_s: float | None = None) -> StdioServerConfig:
    return StdioServerConfig("s", argv[0], argv[1:], limits=ServerLimits(connect_s=connect_s))


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["npx", "-y", "a"], "npx"),
        (["/usr/local/bin/npx", "a"], "npx"),
        ([r"C:\Program Files\nodejs\npx.cmd", "a"], "npx"),
        (["NPX.CMD", "a"], "npx"),
        (["npm", "exec", "--yes", "a"], "npm"),
        (["npm", "--silent", "x", "a"], "npm"),
        (["pnpm", "dlx", "a"], "pnpm"),
        (["yarn", "dlx", "a"], "yarn"),
        (["bunx", "a"], "bunx"),
        (["bun", "x", "a"], "bun"),
        (["uvx", "a"], "uvx"),
        (["uv", "tool", "run", "a"], "uv"),
        (["uv", "--directory", "/x", "run", "a"], "uv"),
        (["pipx", "run", "a"], "pipx"),
        (["python3.12", "-m", "pipx", "run", "a"], "pipx"),
        (["python", "-m", "uv", "run", "a"], "uv"),
        (["docker", "run", "-i", "a"], "docker"),
        (["docker", "--context", "x", "run", "a"], "docker"),
        (["podman", "container", "run", "a"], "podman"),
        (["deno", "run", "-A", "npm:a"], "deno"),
        (["go", "run", "x@latest"], "go"),
        (["sh", "-c", "npx -y a"], "npx"),
        (["bash", "-lc", "cd /x && exec uvx a"], "uvx"),
        (["bash", "--login", "-c", "A=1 B='2 3' npx a | tee x"], "npx"),
        (["sh", "-c", "npx 'unclosed"], "npx"),
        (["busybox", "sh", "-c", "npx a"], "npx"),
        (["cmd", "/c", "npx", "-y", "a"], "npx"),
        (["cmd.exe", "/d", "/s", "/C", "npx -y a"], "npx"),
        (["pwsh", "-NoProfile", "-Command", "npx -y a"], "npx"),
        (["env", "A=1", "npx", "a"], "npx"),
        (["/usr/bin/env", "-i", "-u", "X", "uvx", "a"], "uvx"),
        (["env", "-S", "npx -y a"], "npx"),
        (["nice", "-n", "5", "timeout", "60", "npx", "a"], "npx"),
        (["mise", "exec", "node@22", "--", "npx", "a"], "npx"),
        (["node", "/usr/lib/node_modules/npm/bin/npx-cli.js", "-y", "a"], "npx"),
        (["node", "--no-warnings", "/x/npm-cli.js", "exec", "a"], "npm"),
        # What runs what is there already.
        (["python", "server.py"], None),
        (["python", "-m", "server", "npx"], None),
        (["node", "server.js", "npx"], None),
        (["node"], None),
        (["npm", "test"], None),
        (["uv", "pip", "list"], None),
        (["docker", "ps"], None),
        (["./npx-like", "a"], None),
        (["sh", "server.sh"], None),
        (["sh", "-c", "echo npx"], None),
        (["sh", "-c"], None),
        (["cmd"], None),
        (["env"], None),
        (["sudo", "-E", "server"], None),
        (["A=1"], None),
        (["bash", "-c", 'bash -c \'bash -c "bash -c \\"bash -c \\\\\\"x\\\\\\"\\""\''], None),
    ],
)
def test_finding_b1_a_package_manager_is_known_however_it_is_started(argv: list[str], name: str | None) -> None:
    found = find_package_manager(argv[0], argv[1:])
    assert (None if found is None else found.name) == name


@given(st.lists(st.text(), min_size=1, max_size=6))
def test_any_command_line_is_accepted(argv: list[str]) -> None:
    found = find_package_manager(argv[0], argv[1:])
    assert found is None or found.name


def test_finding_b1_a_first_start_has_a_minute_and_is_extended_up_to_a_cap() -> None:
    plain = POLICY.allow(config("server"), seen_up=False)
    assert (plain.limit_s, plain.cap_s, plain.first, plain.package_manager) == (60, 120, True, None)
    npx = POLICY.allow(config("npx", "-y", "a"), seen_up=False)
    assert (npx.limit_s, npx.cap_s, npx.first, npx.package_manager) == (60, 300, True, "npx")
    # What a container engine downloads, another process does.
    docker = POLICY.allow(config("docker", "run", "a"), seen_up=False)
    assert (docker.limit_s, docker.cap_s) == (300, 300)


@pytest.mark.parametrize(
    ("argv", "limit_s", "cap_s"), [(["server"], 10, 120), (["npx", "a"], 10, 300), (["docker", "run", "a"], 60, 300)]
)
def test_finding_a4_a_later_start_has_ten_seconds_and_the_patience_of_a_first_one(
    argv: list[str], limit_s: float, cap_s: float
) -> None:
    later = POLICY.allow(config(*argv), seen_up=True)
    assert (later.limit_s, later.cap_s, later.first) == (limit_s, cap_s, False)
    assert later.patient_next


@pytest.mark.parametrize("seen_up", [True, False])
@pytest.mark.parametrize("stated", [3.0, 10.0, 400.0])
def test_finding_b1_a_limit_that_is_stated_wins(seen_up: bool, stated: float) -> None:
    allowed = POLICY.allow(config("npx", "a", connect_s=stated), seen_up=seen_up)
    assert (allowed.limit_s, allowed.cap_s) == (stated, stated)
    assert not allowed.patient_next


def test_remote_server_has_the_later_start_limit() -> None:
    remote = StreamableHttpServerConfig("s", "http://127.0.0.1:9/mcp")
    allowed = POLICY.allow(remote, seen_up=False)
    assert (allowed.limit_s, allowed.cap_s, allowed.first) == (10, 10, False)
    assert StartHistory().was_up(remote)


def test_start_digest_covers_command_arguments_environment_and_directory() -> None:
    history = StartHistory()
    one = StdioServerConfig("a", "x", ["y"], {"K": "1"}, cwd="/")
    history.record_up(one)
    assert history.was_up(StdioServerConfig("another id", "x", ["y"], {"K": "1"}, cwd="/"))
    for other in (
        StdioServerConfig("a", "x", ["z"], {"K": "1"}, cwd="/"),
        StdioServerConfig("a", "x", ["y"], {"K": "2"}, cwd="/"),
        StdioServerConfig("a", "x", ["y"], {"K": "1"}),
    ):
        assert not history.was_up(other)
    history.record_timeout(one)
    assert not history.was_up(one)
    remote = StreamableHttpServerConfig("s", "http://127.0.0.1:9/mcp")
    history.record_up(remote)
    history.record_timeout(remote)
    assert history.was_up(remote)


RULES = Supervision(jitter=0, failures=1_000)
"""Without chance, and with a circuit that does not open."""


def fault(reason: FaultReason | None = None, retry_after_s: float | None = None) -> ProtocolFault:
    detail = FaultDetail(reason=reason, retry_after_s=retry_after_s)
    return ProtocolFault("transport", "lost", detail=detail)


def test_backoff_grows_to_its_maximum() -> None:
    record = RestartRecord(replace(RULES, first_s=1, factor=2, longest_s=10))
    delays = [record.delay(fault(), 0, now) for now in range(6)]
    assert delays == [1, 2, 4, 8, 10, 10]


@pytest.mark.parametrize("failure", [None, fault(), fault("exited")])
def test_server_without_fault_is_restarted_too(failure: ProtocolFault | None) -> None:
    assert RestartRecord(RULES).delay(failure, 0, 0) == 1.0


@given(st.integers(0, 8))
def test_jitter_stays_within_its_share(failures: int) -> None:
    record = RestartRecord(replace(RULES, jitter=0.2, factor=2, longest_s=100))
    plain = min(2**failures, 100)
    delays = [record.delay(None, 0, 0) for _ in range(failures + 1)]
    last = delays[-1]
    assert last is not None
    assert plain * 0.8 <= last <= plain * 1.2


def test_failures_within_the_window_open_the_circuit() -> None:
    record = RestartRecord(replace(RULES, failures=3, window_s=10, open_s=60))
    assert [record.delay(fault(), 0, now) for now in (0, 4, 8)] == [1, 1.6, 60]
    assert record.opened == 1


def test_failures_outside_the_window_do_not_open_the_circuit() -> None:
    record = RestartRecord(replace(RULES, failures=3, window_s=10, open_s=600, longest_s=2))
    delays = [record.delay(fault(), 0, now) for now in range(0, 100, 5)]
    assert max(delay or 0 for delay in delays) == 2
    assert record.opened == 0


def test_open_time_of_the_circuit_doubles_to_its_maximum() -> None:
    record = RestartRecord(replace(RULES, failures=1, open_s=60, open_longest_s=200))
    assert [record.delay(fault(), 0, now) for now in range(4)] == [60, 120, 200, 200]


def test_circuit_counts_again_after_it_was_open() -> None:
    record = RestartRecord(replace(RULES, failures=2, first_s=1, factor=1, open_s=60))
    assert [record.delay(fault(), 0, now) for now in range(4)] == [1, 60, 1, 120]


def test_long_uptime_clears_the_record() -> None:
    record = RestartRecord(replace(RULES, failures=2, open_s=60, healthy_s=120))
    assert [record.delay(fault(), 0, now) for now in (0, 1)] == [1, 60]
    assert record.delay(fault(), 119, 2) != 60
    assert record.delay(fault(), 120, 3) == 1
    assert (record.in_a_row, record.opened, record.starts) == (1, 0, [3])


def test_record_can_be_cleared() -> None:
    record = RestartRecord(replace(RULES, failures=2))
    record.delay(fault(), 0, 0)
    record.delay(fault(), 0, 0)
    record.forget()
    assert record == RestartRecord(record.rules)


@pytest.mark.parametrize(("asked", "waits"), [(None, 1), (0.0, 1), (0.5, 1), (90.0, 90)])
def test_retry_after_delays_the_restart(asked: float | None, waits: float) -> None:
    assert RestartRecord(RULES).delay(fault("rate_limited", asked), 0, 0) == waits


@pytest.mark.parametrize(("failures", "asked", "waits"), [(1, 90.0, 90), (1, 30.0, 60)])
def test_open_circuit_waits_at_least_retry_after(failures: int, asked: float, waits: float) -> None:
    record = RestartRecord(replace(RULES, failures=failures, open_s=60))
    assert record.delay(fault("rate_limited", asked), 0, 0) == waits


@pytest.mark.parametrize(
    ("reason", "hopeless"),
    [
        ("auth", True),
        ("not_found", True),
        ("untrusted", True),
        ("version", True),
        ("malformed", True),
        ("redirect", True),
        ("closed", False),
        ("exited", False),
        ("frame_too_large", False),
        ("rate_limited", False),
        ("refused", False),
        ("upstream", False),
        (None, False),
    ],
)
def test_permanent_faults_are_not_retried(reason: FaultReason | None, hopeless: bool) -> None:
    record = RestartRecord(RULES)
    delay = record.delay(fault(reason), 0, 0)
    assert (delay is None) == hopeless
    assert record.in_a_row == (0 if hopeless else 1)


@pytest.mark.parametrize("failures", [1, 5, 10_000])
def test_failing_server_is_retried_forever(failures: int) -> None:
    rules = Supervision(failures=failures)
    record, now = RestartRecord(rules), 0.0
    for _ in range(3_000):
        delay = record.delay(fault("exited"), 0, now)
        assert delay is not None
        assert 0 < delay <= rules.open_longest_s
        now += delay


@given(st.lists(st.tuples(st.floats(0, 300), st.floats(0, 300), st.none() | st.floats(0, 1e6))))
def test_delay_stays_between_retry_after_and_the_maximum(falls: list[tuple[float, float, float | None]]) -> None:
    record, now = RestartRecord(Supervision()), 0.0
    for gap, up_s, asked in falls:
        now += gap
        delay = record.delay(fault("rate_limited", asked), up_s, now)
        assert delay is not None
        assert (asked or 0) <= delay <= max(asked or 0, 600, 60 * 1.2)
