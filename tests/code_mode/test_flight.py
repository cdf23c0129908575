"""Memory of a script's calls, in bytes: whatever a script does with its calls, the gateway holds a bounded amount."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

from induscode.code_mode.contract import CodeLimits, FunctionCall
from induscode.code_mode.process import MAX_QUEUED_BYTES, RunningScript, ScriptProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonValue
    from indusagi.core.process.child import ChildProcess
    from induscode.code_mode.contract import ScriptFault, ScriptResult

KB = 1_000
LIMITS = CodeLimits(calls=200, parallel=8, value_bytes=100 * KB, flight_bytes=200 * KB, wall_s=60.0)


class FakeChild:
    """An interpreter process in memory: what it sends is `written` by a test, what it gets is kept in `got`."""

    def __init__(self) -> None:
        self.writable = asyncio.Event()
        self.writable.set()
        self.exited = asyncio.Event()
        self.got: list[dict[str, Any]] = []
        self.got_bytes = 0
        self.output_open, self.is_paused = True, False
        self.exit_code = None

    def write(self, data: bytes) -> None:
        self.got_bytes += len(data)
        self.got.append(json.loads(data))

    def pause_output(self) -> None:
        self.is_paused = True

    def resume_output(self) -> None:
        self.is_paused = False

    async def end(self, _: float) -> None: ...


class Rig:
    """A script whose interpreter is the test itself."""

    def __init__(self, *, result_bytes: int = 10, limits: CodeLimits = LIMITS) -> None:
        self.child = FakeChild()
        self.process = ScriptProcess(["python"])
        self.process._child = cast("ChildProcess", self.child)
        self.limits = limits
        self.result_bytes = result_bytes
        self.begun = self.most_open = self.open = 0
        self.gate = anyio.Event()
        self.gate.set()
        self.result: ScriptResult | None = None

    async def call(self, call: FunctionCall) -> JsonValue:
        self.begun += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await self.gate.wait()
        self.open -= 1
        return "r" * self.result_bytes

    async def run(self) -> None:
        self.result = await self.process.run("…", ["f"], self.call, self.limits)

    def send(self, **message: JsonValue) -> bool:
        """Send a message as the interpreter does; `False` if the pipe is full, so that it would block."""
        if self.child.is_paused:
            return False
        self.process.stdout_received(json.dumps(message).encode() + b"\n")
        return True

    def make_call(self, number: int, size: int) -> bool:
        return self.send(op="call", id=number, name="f", args=["a" * size], kwargs={})

    @property
    def held_bytes(self) -> int:
        """What waits in front of the reader."""
        return sum(map(len, self.process._queue)) + len(self.process._line)

    @property
    def answers(self) -> Sequence[dict[str, Any]]:
        return [message for message in self.child.got if "code" not in message]

    @property
    def fault(self) -> ScriptFault:
        assert self.result is not None
        assert self.result.fault is not None
        return self.result.fault


async def settle() -> None:
    for _ in range(200):
        await anyio.lowlevel.checkpoint()


async def test_finding_r1_arguments_of_waiting_calls_are_bounded_in_bytes() -> None:
    rig, most, made = Rig(), 0, 0
    rig.gate = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.run)
        await settle()
        for number in range(200):  # no call ends: the interpreter blocks soon, and everything else goes on
            if rig.make_call(number, 90 * KB):
                made += 1
            await settle()
            most = max(most, rig.held_bytes)
        assert made * 90 * KB <= LIMITS.flight_bytes + MAX_QUEUED_BYTES + 3 * LIMITS.value_bytes
        assert most <= MAX_QUEUED_BYTES + LIMITS.value_bytes
        assert rig.begun == 2
        rig.gate.set()
        while made < 200:
            made += rig.make_call(made, 90 * KB)
            await settle()
        rig.send(op="done", value=1)
    assert rig.result is not None
    assert (rig.result.value, rig.begun) == (1, 200)  # slowed down, and none refused


async def test_finding_r1_answers_that_the_script_does_not_read_are_bounded_in_bytes() -> None:
    rig = Rig(result_bytes=90 * KB)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.run)
        await settle()
        for number in range(200):
            rig.make_call(number, 10)
            await settle()
        assert rig.child.got_bytes <= LIMITS.flight_bytes + 1_000  # in the pipe, or in the interpreter's process
        assert rig.begun <= len(rig.answers) + LIMITS.parallel  # the others have no result yet
        while len(rig.answers) < 200:  # it begins to read: everything arrives
            rig.send(op="taken", id=rig.answers[-1]["id"])
            for answer in rig.answers:
                rig.send(op="taken", id=answer["id"])
            await settle()
        rig.send(op="done", value=None)
    assert rig.begun == 200
    assert rig.most_open <= LIMITS.parallel


async def test_a_script_that_ends_without_its_answers_lets_them_go() -> None:
    rig = Rig(result_bytes=90 * KB)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.run)
        await settle()
        for number in range(12):
            rig.make_call(number, 10)
        await settle()
        rig.send(op="done", value="early")
    assert rig.result is not None
    assert rig.result.value == "early"
    assert rig.begun == 12


async def test_large_arguments_with_large_unread_results_end_the_script() -> None:
    rig = Rig(result_bytes=90 * KB)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.run)
        await settle()
        number = 0
        while rig.result is None:
            number += rig.make_call(number, 90 * KB)
            await settle()
    assert (rig.fault.kind, "await some before the next" in rig.fault.message) == ("limit", True)
    assert rig.child.got_bytes <= LIMITS.flight_bytes + 1_000


async def test_finding_r1_one_call_too_many_ends_the_script() -> None:
    rig = Rig(limits=CodeLimits(calls=200, wall_s=60.0))
    rig.gate = anyio.Event()  # no call ends
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.run)
        await settle()
        for number in range(5_000):
            rig.make_call(number, 10)
    assert rig.fault.kind == "limit"
    assert rig.fault.message == "RuntimeError: a script makes 200 calls at most"
    assert rig.begun <= rig.limits.parallel
    assert not rig.process.is_idle  # its process isn't used again


async def test_the_loop_serves_others_during_a_flood_of_messages() -> None:
    rig, turns = Rig(), 0

    async def be_another() -> None:
        nonlocal turns
        while rig.result is None:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.run)
        await settle()
        for _ in range(1_000):
            rig.process.stdout_received(b'{"op": "print", "text": "x"}\n')
        rig.process.stdout_received(b'{"op": "done", "value": null}\n')
        tasks.start_soon(be_another)
    assert rig.result is not None
    assert rig.result.output == "x" * 1_000
    assert turns > 500


async def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    rig = Rig()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.run)
        await settle()
        rig.process.stdout_received(b'{"op": "print", "text": "a\\ud800"}\n')
        rig.process.stdout_received(b'{"op": "done", "value": ["\\ud83d\\ude00", {"\\ud800": 1}]}\n')
    assert rig.result is not None
    assert (rig.result.output, rig.result.value) == ("a\ufffd", ["\U0001f600", {"\ufffd": 1}])


@pytest.mark.parametrize("line", [b"no json\n", b"[1]\n", b'{"op": "other"}\n', b"x" * 2_000_000])
async def test_what_is_no_message_ends_the_interpreter(line: bytes) -> None:
    rig = Rig()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.run)
        await settle()
        rig.process.stdout_received(line)
    assert rig.fault.message == "the interpreter sent an invalid message, and was ended"
    assert rig.held_bytes == 0


async def test_empty_prints_cost_nothing() -> None:
    sent: list[bytes] = []

    async def send(line: bytes) -> None:
        sent.append(line)

    async def call(_: FunctionCall) -> JsonValue:
        return None

    script = RunningScript(call, LIMITS, send)
    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            await script.handle({"op": "print", "text": ""}, 1, tasks, lambda: pytest.fail("not the end"))
    assert script._output == []
