"""The rows of the fault list that a process can bring about, each with the server that does it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.servers.malformed import ANSWERS, LISTS, READABLE, TOOLS
from tests.support.opened import attempt, fault_of_call, fault_of_opening, fleet_of, mounted, opened
from tests.support.scripts import ROOT
from tests.support.servers import STEADY, STEADY_S, diary, fault, honest
from tests.support.transports import LoopTime, settled
from tests.support.waiting import is_alive, until

from indusagi.core.cancel import CancelToken
from indusagi.interop import (
    EndpointPhase,
    Handlers,
    ProtocolFault,
    ServerLimits,
    StdioServerConfig,
    Supervision,
    create_server_endpoint,
)
from indusagi.interop.protocol_bridge.client import session
from indusagi.interop.protocol_bridge.client.stdio import StdioTransport, is_inherited
from indusagi.runtime.contract import ToolCall

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonValue
    from indusagi.interop import ServerEndpointImpl
    from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd
    from indusagi.runtime.contract import ToolProgress

pytestmark = [pytest.mark.anyio, pytest.mark.process]

SOON_KILLED = replace(STEADY, close_s=0.02)
"""For servers that do not end by themselves."""


async def works(endpoint: ServerEndpointImpl) -> None:
    """The endpoint is usable."""
    assert endpoint.phase is EndpointPhase.READY
    result = await endpoint.invoke("echo", {"text": "still here"})
    assert result.content == ({"type": "text", "text": "still here"},)


async def test_r01_a_server_that_never_answers_times_out_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with fleet_of(fault("mute", "--log", log, limits=replace(STEADY, connect_s=0.2)), honest()) as fleet:
        status = fleet.status()
        assert status["mute"].fault is not None
        assert status["mute"].fault.kind == "timeout"
        assert status["honest"].phase is EndpointPhase.READY
        assert "no answer within 0.2 s" in str(status["mute"].fault)
    assert [is_alive(int(pid)) for pid in diary(log, "start")] == [False] * len(diary(log, "start"))


async def test_r02_an_early_exit_is_told_with_its_code_and_cause() -> None:
    failure = await fault_of_opening(fault("exits", 3, "no API key \x1b[31mset"))
    assert failure.kind == "spawn_failed"
    assert (failure.detail.reason, failure.detail.exit_code) == ("exited", 3)
    assert "exited with code 3. Last output: no API key set" in str(failure)
    assert failure.detail.server == "exits"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (StdioServerConfig("x", "no-such-command"), "was not found: check its spelling and PATH"),
        (StdioServerConfig("x", "cluster:ada/db"), "only a gateway with --cluster reaches it"),
        (StdioServerConfig("x", "/dev/null"), "may not be executed"),
        (StdioServerConfig("x", "sh", ("-c", "a\0b")), "the command line cannot be used"),
        (StdioServerConfig("x", "sh", cwd="/no/such/place"), "its working directory '/no/such"),
    ],
)
async def test_r03_what_cannot_be_started_says_why(config: StdioServerConfig, said: str) -> None:
    failure = await fault_of_opening(config)
    assert failure.kind == "spawn_failed"
    assert said in str(failure)


async def test_r04_a_call_that_hangs_times_out_and_the_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, log = LoopTime(monkeypatch), tmp_path / "log"
    async with opened(fault("hang", "--log", log)) as endpoint, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(fault_of_call(endpoint))
        await until(lambda: bool(diary(log, "heard tools/call")))
        await time.passes(STEADY_S)
        failure = await call
        assert failure.kind == "timeout"
        assert "not answered within 60 s" in str(failure)
        await until(lambda: bool(diary(log, "cancelled")))
        await works(endpoint)


class Heard:
    """The progress of a call."""

    def __init__(self) -> None:
        self.count = 0

    def take(self, _: ToolProgress) -> None:
        self.count += 1

    async def more(self) -> None:
        """Wait for some more of it."""
        before = self.count
        await until(lambda: self.count > before)


IN_ALL = replace(STEADY, call_idle_s=200.0, call_hard_s=600.0)


async def test_r05_progress_keeps_a_call_alive_until_the_hard_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    time, heard = LoopTime(monkeypatch), Heard()
    async with opened(fault("endless-progress", "0.01", limits=IN_ALL)) as endpoint, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(attempt(endpoint, "fault", {}, on_progress=heard.take))
        for _ in range(4):
            await heard.more()
            assert not call.done()
            await time.passes(150)
        outcome = await call
        assert isinstance(outcome, ProtocolFault)
        assert outcome.kind == "timeout"
        assert "600 s in all" in str(outcome)
        await works(endpoint)


async def test_r05_progress_starts_the_idle_deadline_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    time, heard, gate = LoopTime(monkeypatch), Heard(), tmp_path / "gate"
    reporting = fault("endless-progress", "0.01", gate, limits=IN_ALL)
    async with opened(reporting) as endpoint, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(endpoint.invoke("fault", {}, on_progress=heard.take))
        for _ in range(2):
            await heard.more()
            await time.passes(150)
        await heard.more()
        gate.touch()
        assert not (await call).is_error


async def test_r06_a_server_killed_in_a_call_comes_back_under_the_same_names() -> None:
    async with mounted(fault("dies", "KILL")) as bridge:
        before = [descriptor.name for descriptor in bridge.box.descriptors()]
        outcome = await bridge.box.runner.run(ToolCall("1", "dies__fault", {}))
        assert outcome.is_error
        assert outcome.details["code"] == "transport"
        assert outcome.details["reason"] == "outcome_unknown"
        assert "was ended by SIGKILL; whether the call took effect is unknown" in str(outcome.output)
        await until(lambda: bridge.fleet.status()["dies"].phase is EndpointPhase.READY)
        again = await bridge.box.runner.run(ToolCall("2", "dies__echo", {"text": "back"}))
        assert again.output == "back"
        assert bridge.fleet.status()["dies"].restarts == 1
        assert [descriptor.name for descriptor in bridge.box.descriptors()] == before


async def test_r06_every_call_in_flight_fails_when_the_server_dies() -> None:
    failures: list[str] = []

    async def call(endpoint: ServerEndpointImpl, name: str) -> None:
        failures.append((await fault_of_call(endpoint, name)).kind)

    async with opened(fault("dies", "KILL")) as endpoint:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(call, endpoint, "fault")
        assert failures == ["transport"] * 5
        assert endpoint.phase is EndpointPhase.FAULTED
        with pytest.raises(ProtocolFault, match="is faulted") as raised:
            await endpoint.invoke("echo", {})
        assert str(raised.value).startswith("server 'dies' is faulted: the connection was lost")


async def test_r07_a_crash_loop_opens_the_circuit_and_a_restart_by_hand_works(tmp_path: Path) -> None:
    log = tmp_path / "log"
    rules = Supervision(first_s=0.02, jitter=0, failures=3, open_s=60)
    crashing = fault("crash-loop", 3, "--log", log)
    async with fleet_of(crashing, supervision=rules) as fleet:
        await until(lambda: (fleet.status()["crash-loop"].next_try_s or 0) > 30)
        assert len(diary(log, "start")) == 3
        await fleet.restart("crash-loop")
        assert fleet.status()["crash-loop"].phase is EndpointPhase.READY
        assert fleet.status()["crash-loop"].next_try_s is None


async def test_r08_garbage_between_the_answers_is_skipped_and_counted_once() -> None:
    async with opened(fault("garbage")) as endpoint:
        assert len(await endpoint.list_tools()) >= 1
        await works(endpoint)
        notes = [str(note) for note in endpoint.status().notes if "no protocol messages" in str(note)]
        assert len(notes) == 1


async def test_r09_invalid_utf8_survives() -> None:
    async with opened(fault("bad-utf8")) as endpoint:
        result = await endpoint.invoke("fault", {})
        assert "\ufffd" in str(result.content)
        await works(endpoint)


async def test_r10_half_a_line_and_the_end_is_a_lost_connection_at_once() -> None:
    async with opened(fault("half-line", "exit")) as endpoint:
        assert (await fault_of_call(endpoint)).kind == "transport"


async def test_r10_half_a_line_and_silence_is_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    time, log = LoopTime(monkeypatch), tmp_path / "log"
    async with opened(fault("half-line", "hang", "--log", log)) as endpoint, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(fault_of_call(endpoint))
        await until(lambda: bool(diary(log, "heard tools/call")))
        await time.passes(STEADY_S)
        assert (await call).kind == "timeout"


async def test_r13_a_flood_on_standard_error_stalls_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    async with opened(fault("stderr-flood")) as endpoint:
        await works(endpoint)
    assert capfd.readouterr().err == ""


async def test_r14_a_server_that_ignores_everything_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with opened(fault("stubborn", "--log", log, limits=SOON_KILLED)) as endpoint:
        await works(endpoint)
    assert endpoint.phase is EndpointPhase.CLOSED
    assert not is_alive(int(diary(log, "start")[0]))


@pytest.mark.parametrize("words", [(), ("quiet",), ("stubborn",), ("setsid",), ("setsid", "quiet")])
async def test_r15_children_of_the_server_are_gone_after_the_close(tmp_path: Path, words: tuple[str, ...]) -> None:
    log = tmp_path / "log"
    async with opened(fault("forks", *words, "--log", log, limits=SOON_KILLED)):
        await until(lambda: bool(diary(log, "child")))
    children = [int(pid) for pid in diary(log, "child")]
    assert children
    await until(lambda: not any(is_alive(pid) for pid in children))


async def test_r18_a_server_that_closes_its_output_is_lost_and_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with opened(fault("closes", "stdout", "--log", log, limits=SOON_KILLED)) as endpoint:
        failure = await fault_of_call(endpoint)
        assert (failure.kind, failure.detail.reason) == ("transport", "outcome_unknown")
        assert "closed its output" in str(failure)
        await endpoint.wait_closed()
        assert endpoint.phase is EndpointPhase.FAULTED
    assert not is_alive(int(diary(log, "start")[0]))


async def test_r18_a_server_that_stops_reading_is_lost() -> None:
    async with opened(fault("closes", "stdin", limits=SOON_KILLED)) as endpoint:
        await endpoint.invoke("fault", {})
        await until(lambda: endpoint.phase is EndpointPhase.FAULTED)
        assert "stopped reading" in str(endpoint.status().fault)


async def test_server_may_close_its_standard_error() -> None:
    async with opened(fault("closes", "stderr")) as endpoint:
        await endpoint.invoke("fault", {})
        await works(endpoint)


async def test_r19_no_answer_is_too_odd_to_be_told_at_once() -> None:
    async with opened(fault("answers", limits=replace(STEADY, frame_bytes=2**26))) as endpoint:
        for kind in ANSWERS:
            outcome = await attempt(endpoint, "fault", {"kind": kind})
            if isinstance(outcome, ProtocolFault):
                assert outcome.kind in {"protocol", "tool_error", "transport"}, kind
                assert kind not in READABLE
            elif kind in READABLE:
                assert outcome.content == ({"type": "text", "text": "good"},), kind
            await works(endpoint)


@pytest.mark.parametrize("kind", list(TOOLS))
async def test_r20_one_odd_tool_never_takes_the_others_with_it(kind: str) -> None:
    async with mounted(fault("tools", kind)) as bridge:
        names = [mounted_tool.ref.name for mounted_tool in bridge.tools]
        assert [name for name in names if name.startswith("good_")] == [f"good_{n}" for n in range(9)]
        assert len(names) == 10 or bridge.notes
        for descriptor in bridge.box.descriptors():
            outcome = await bridge.box.runner.run(ToolCall("1", descriptor.name, {}))
            assert not outcome.is_error


@pytest.mark.parametrize("kind", list(LISTS))
async def test_r20_a_listing_that_is_none_leaves_the_endpoint_ready(kind: str) -> None:
    async with fleet_of(fault("lists", kind)) as fleet:
        status = fleet.status()["lists"]
        assert status.phase is EndpointPhase.READY
        if status.tool_count == 0 and kind != "empty":
            assert status.fault is not None
            assert status.fault.kind == "protocol"


async def test_r20_a_listing_that_hangs_times_out_and_leaves_the_endpoint_ready() -> None:
    async with fleet_of(fault("lists", "hang", limits=replace(STEADY, list_s=0.05))) as fleet:
        status = fleet.status()["lists"]
        assert (status.phase, status.tool_count) == (EndpointPhase.READY, 0)
        assert status.fault is not None
        assert status.fault.kind == "timeout"


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (("pages", "endless"), "has more than 50 pages"),
        (("pages", "same"), "repeats its pages"),
        (("pages", "cycle"), "repeats its pages"),
        (("many-tools", "3000"), "more than 1,000; 2,"),
    ],
)
async def test_r21_a_list_without_end_is_capped_and_the_status_says_so(mode: tuple[str, str], said: str) -> None:
    async with opened(fault(*mode)) as endpoint:
        tools = await endpoint.list_tools()
        assert 0 < len(tools) <= 1_000
        assert any(said in str(note) for note in endpoint.status().notes)


async def test_r22_a_burst_of_changes_is_answered_with_few_listings(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with opened(fault("burst", "--log", log)) as endpoint:
        await endpoint.list_tools()
        await endpoint.invoke("fault", {})
        await until(lambda: len(diary(log, "heard tools/list")) >= 2)
        await works(endpoint)
        assert len(diary(log, "heard tools/list")) <= 3


@pytest.mark.parametrize("mode", [("version", "1999-01-01"), ("modern-version", "offer", "2099-01-01")])
async def test_r23_a_version_we_do_not_speak_is_told_with_both_sides(mode: tuple[str, ...]) -> None:
    failure = await fault_of_opening(fault(*mode))
    assert (failure.kind, failure.detail.reason) == ("protocol", "version")
    assert mode[-1] in str(failure)
    assert "2025-11-25" in str(failure)


async def test_r23_a_modern_server_of_another_version_names_it() -> None:
    failure = await fault_of_opening(fault("modern-version", "refuse", "2099-01-01"))
    assert failure.kind in {"protocol", "spawn_failed"}


@pytest.mark.parametrize(
    "mode",
    [
        ("dies-on-unknown",),
        ("silent-discover",),
        ("slow-start", "0.1"),
        ("slow-discover", "0.1", "--era", "modern"),
        ("slow-discover", "0.1", "--era", "both"),
        ("locked-modern", "refuse"),
        ("locked-modern", "drop"),
        ("drip",),
        ("banner",),
    ],
)
async def test_servers_with_odd_handshakes_are_connected(mode: tuple[str, ...]) -> None:
    # It is asked in the old way too before most of these have answered.
    async with opened(fault(*mode, limits=replace(STEADY, probe_s=0.05))) as endpoint:
        await works(endpoint)


async def test_r33_a_thousand_calls_at_once_are_all_answered() -> None:
    answers: list[str] = []

    async def call(endpoint: ServerEndpointImpl, n: int) -> None:
        result = await endpoint.invoke("echo", {"text": str(n)})
        answers.append(str(result.content[0]))

    async with opened(honest()) as endpoint:
        async with anyio.create_task_group() as tasks:
            for n in range(1_000):
                tasks.start_soon(call, endpoint, n)
    assert sorted(answers) == sorted(str({"type": "text", "text": str(n)}) for n in range(1_000))


async def test_r33_half_of_the_calls_cancelled_leave_the_others_right() -> None:
    answers: list[str] = []
    token = CancelToken()

    async def call(endpoint: ServerEndpointImpl, n: int) -> None:
        if n % 2:
            outcome = await attempt(endpoint, "slow", {"seconds": 20}, cancel=token)
            assert isinstance(outcome, ProtocolFault)
            assert outcome.detail.reason == "cancelled"
        else:
            result = await endpoint.invoke("echo", {"text": str(n)})
            answers.append(str(result.content[0]))

    async with opened(honest(limits=ServerLimits(in_flight=1_000))) as endpoint:
        async with anyio.create_task_group() as tasks:
            for n in range(100):
                tasks.start_soon(call, endpoint, n)
            await until(lambda: len(answers) == 50)
            token.cancel("enough")
        await works(endpoint)
    assert len(answers) == 50


async def test_r34_tearing_down_while_connecting_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    slow = fault("mute", "--log", log, limits=replace(STEADY, connect_s=20))
    endpoint = create_server_endpoint(slow)
    async with anyio.create_task_group() as tasks:

        async def open_it() -> None:
            with pytest.raises(ProtocolFault, match="is closed"):
                await endpoint.open()

        tasks.start_soon(open_it)
        await until(lambda: bool(diary(log, "start")))
        assert endpoint.phase is EndpointPhase.CONNECTING
        await endpoint.close()
    assert endpoint.phase is EndpointPhase.CLOSED
    assert not is_alive(int(diary(log, "start")[0]))


async def test_r39_a_server_sees_nothing_of_our_environment_but_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "secret-canary")
    monkeypatch.setenv("LC_TIME", "C")
    async with opened(honest(env={"DECLARED": "yes"})) as endpoint:
        result = await endpoint.invoke("env", {})
        seen = result.structured
        assert isinstance(seen, dict)
        assert (seen["DECLARED"], seen["LC_TIME"], seen["HOME"]) == ("yes", "C", os.environ["HOME"])
        assert "secret-canary" not in str(result)
        others = {name for name in seen if name not in {"DECLARED", "INDUS_CHILD"}}
        assert all(is_inherited(name) for name in others), others


async def test_r42_what_cannot_be_seen_is_taken_out_of_what_a_model_is_shown() -> None:
    async with mounted(fault("dirty")) as bridge:
        for descriptor in bridge.box.descriptors():
            shown = f"{descriptor.name}{descriptor.title}{descriptor.description}"
            assert all(letter.isprintable() or letter in "\n\t" for letter in shown)
        assert any("invisible characters were removed" in str(note) for note in bridge.notes)


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list"])
async def test_server_request_without_capability_is_refused(method: str) -> None:
    async with opened(fault("asks", method)) as endpoint:
        result = await endpoint.invoke("fault", {})
        assert "-32601" in str(result.content)


async def test_flood_of_server_requests_is_refused_one_by_one() -> None:
    async with opened(fault("inbound")) as endpoint:
        await endpoint.invoke("fault", {})
        await works(endpoint)


@pytest.mark.parametrize("mode", ["chatter", "odd-progress"])
async def test_unsolicited_messages_disturb_no_call(mode: str) -> None:
    async with opened(fault(mode)) as endpoint:
        heard = Heard()
        outcome = await attempt(endpoint, "fault", on_progress=heard.take)
        assert not isinstance(outcome, ProtocolFault)
        await works(endpoint)


@pytest.mark.parametrize(("mode", "wrote"), [(("late",), "late"), (("ignores-cancel", "0.1"), "finished")])
async def test_answer_that_nobody_waits_for_disturbs_no_call(
    mode: tuple[str, ...], wrote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, log = LoopTime(monkeypatch), tmp_path / "log"
    async with opened(fault(*mode, "--log", log)) as endpoint, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(fault_of_call(endpoint))
        await until(lambda: bool(diary(log, "heard tools/call")))
        await time.passes(STEADY_S)
        assert (await call).kind == "timeout"
        await until(lambda: bool(diary(log, wrote)))
        await works(endpoint)


async def test_endless_input_requests_end_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_EMPTY_ROUND_PAUSE_S", 0.001)
    async with opened(fault("input-for-ever")) as endpoint:
        assert (await fault_of_call(endpoint)).kind in {"protocol", "tool_error"}


@pytest.mark.parametrize("how", ["wrong", "missing"])
async def test_result_that_violates_its_schema_gets_a_note(how: str) -> None:
    async with mounted(fault("output-mismatch", how)) as bridge:
        outcome = await bridge.box.runner.run(ToolCall("1", "output-mismatch__fault", {}))
        assert not outcome.is_error
        assert outcome.content
        assert "output schema" in str(outcome.details["notes"])


def test_r16_direct_children_die_with_us_also_by_kill_9(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"""
import asyncio
from tests.support.servers import fault, honest
from indusagi.interop import BridgeConfig, start_server_fleet
async def main():
    servers = [honest("--log", {str(log)!r}, id=f"s{{n}}") for n in range(4)]
    servers.append(fault("stubborn", "--log", {str(log)!r}))
    await start_server_fleet(BridgeConfig(servers))
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    pids = [int(pid) for pid in diary(log, "start")]
    assert len(pids) == 5
    anyio.run(until, lambda: not any(is_alive(pid) for pid in pids))


# -- fair reading ---------------------------------------------------------------------------


async def test_finding_d12_a_flooding_server_is_read_a_little_in_each_turn_of_the_loop() -> None:
    """Between two of its turns every other server has one; counted, since time proves nothing."""
    turn = 0
    loop = asyncio.get_running_loop()

    def count_turns() -> None:
        nonlocal turn
        turn += 1
        ticking.append(loop.call_soon(count_turns))
        del ticking[:-1]

    ticking: list[asyncio.Handle] = []
    heard: Counter[int] = Counter()
    counted: dict[int, int] = {}
    handlers = Handlers(on_notification=lambda method, params: heard.update([turn]))
    async with (
        opened(fault("notice-flood"), handlers) as flooding,
        opened(honest(limits=STEADY)) as calm,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(attempt, flooding, "fault")
        await until(lambda: heard.total() > 100)
        count_turns()
        for number in range(20):
            answer = await calm.invoke("echo", {"text": str(number)})
            assert answer.content == ({"type": "text", "text": str(number)},)
        ticking[0].cancel()
        counted |= {at: count for at, count in heard.items() if 0 < at < turn}
        tasks.cancel_scope.cancel()
    assert sum(counted.values()) > 100
    assert max(counted.values()) <= 16


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
async def test_finding_d12_all_that_was_written_arrives_in_order_before_the_end(size: int) -> None:
    """However the bytes are cut, and though the process is gone while most are still unread."""
    lines = [b'{"n":%d}' % number for number in range(500)] + [b'{"big":"%b"}' % (b"x" * 70_000)]
    data = b"\n".join(lines) + b"\n\n  \nunfinished"
    link = StdioTransport("s", ServerLimits())
    heard: list[bytes | JsonValue] = []
    ends: list[TransportEnd] = []
    link.attach(heard.append, ends.append)
    for start in range(0, len(data) if size > 1 else 400, size):
        link.stdout_received(data[start : start + size])
    assert len(heard) <= 16 * (1 if size > 4096 else len(data))
    link.child.exited.set()
    link.child.output_ended.set()
    link.child.errors_ended.set()
    link.state_changed()
    assert len(ends) == 1
    expected = lines if size > 1 else data[:400].split(b"\n")[:-1]
    assert heard == expected
    await settled()
    assert heard == expected
