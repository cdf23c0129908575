"""The recorder: every call becomes one record, without its texts, and no call waits for it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.calls.helpers import load_calls, observed_box

from indusagi.core.cancel import CancelToken
from indusagi.core.faults import Note
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from indusagi.interop.protocol_bridge.redaction import Redaction
from indusagi.runtime.calls import CallingClient, current_agent, current_client, current_trace
from indusagi.runtime.contract import JsonContentBlock, TextContentBlock, ToolCall, ToolResult
from induscode.calls import recorder as recorder_module
from induscode.calls.database import CallDatabase
from induscode.calls.record import CallOrigin, estimate_size, find_outcome, find_tool_ref, measure_result
from induscode.calls.recorder import CallRecorder, FailedCalls, RecordSettings

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonObject, JsonValue

pytestmark = pytest.mark.anyio
ORIGIN = CallOrigin(via="session", conversation="talk")


async def record_calls(path: Path, *calls: tuple[str, JsonValue], **settings: Any) -> CallRecorder:
    recorder = CallRecorder(str(path), ORIGIN, RecordSettings(**settings), lambda: ("run", 4))
    box = observed_box(recorder)
    for number, (name, arguments) in enumerate(calls):
        await box.runner.run(ToolCall(f"id{number}", name, arguments))
    await recorder.aclose()
    return recorder


async def query(path: Path, statement: str) -> list[Any]:
    def execute() -> list[Any]:
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(statement).fetchall()

    return await anyio.to_thread.run_sync(execute)


async def test_a_call_is_recorded_with_its_origin_sizes_and_outcome(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    await record_calls(path, ("echo", {"text": "häh"}), ("fail", {}), ("boom", {}), ("absent", {}))
    echo, fail, boom, absent = await load_calls(path)
    assert (echo.via, echo.conversation, echo.run, echo.turn, echo.call) == ("session", "talk", "run", 4, "id0")
    assert (echo.server, echo.tool, echo.outcome, echo.code, echo.attempt) == ("", "echo", "ok", "", 1)
    assert (echo.argument_bytes, echo.result_bytes, echo.tokens) == (len('{"text":"häh"}'.encode()), 4, 5)
    assert (fail.outcome, fail.code) == ("error", "not_found")
    assert (boom.outcome, boom.code) == ("error", "failed")
    assert (absent.tool, absent.code) == ("absent", "unknown_tool")
    assert echo.duration_us >= 0
    assert echo.at_ms > 0


async def test_equal_arguments_have_equal_digests_and_the_file_holds_no_text(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    secret: JsonObject = {"text": "my-secret-argument", "more": 1}
    await record_calls(path, ("echo", secret), ("echo", dict(reversed(secret.items()))), ("echo", {"text": "other"}))
    first, second, third = [one.digest for one in await load_calls(path)]
    assert first == second != third
    assert len(first) == 32
    assert b"my-secret-argument" not in path.read_bytes()


async def test_large_arguments_have_the_same_digest_as_if_they_were_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "calls.db"
    await record_calls(path, ("echo", {"text": "abc"}))
    monkeypatch.setattr(recorder_module, "_LARGE_BYTES", 1)
    recorder = CallRecorder(str(path), ORIGIN)
    box = observed_box(recorder)
    await box.runner.run(ToolCall("1", "echo", {}))
    with anyio.fail_after(60):
        while not recorder.key:  # noqa: ASYNC110 — the thread has no event for it
            await anyio.sleep(0.01)
    await box.runner.run(ToolCall("2", "echo", {"text": "abc"}))
    await recorder.aclose()
    small, _, large = await load_calls(path)
    assert large.digest == small.digest
    assert large.argument_bytes == small.argument_bytes


async def test_arguments_that_are_no_json_are_recorded_without_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    mixed: Any = {1: "a", "b": 2}
    await record_calls(path, ("echo", {"text": "x", "odd": mixed}))
    (record,) = await load_calls(path)
    assert record.digest == ""
    assert record.argument_bytes > 0


async def test_attempts_count_the_same_call_until_it_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    await record_calls(path, ("fail", {}), ("fail", {}), ("fail", {"x": 1}), ("echo", {}), ("echo", {}))
    assert [one.attempt for one in await load_calls(path)] == [1, 2, 1, 1, 1]
    counts = FailedCalls()
    assert [counts.count("k", is_ok=ok) for ok in (False, False, True, True)] == [1, 2, 3, 1]


async def test_client_agent_and_trace_come_from_the_context_of_the_call(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    recorder = CallRecorder(str(path), ORIGIN)
    box = observed_box(recorder)

    async def call(name: str) -> None:
        current_client.set(CallingClient(name, "2", f"user of {name}"))
        current_agent.set(f"agent of {name}")
        current_trace.set({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"})
        await box.runner.run(ToolCall(name, "echo", {}))

    async with asyncio.TaskGroup() as tasks:
        for name in ("one", "two"):
            tasks.create_task(call(name))
    await recorder.aclose()
    one, two = sorted(await load_calls(path), key=lambda record: record.client)
    assert (one.client, one.principal, one.agent, one.trace) == ("one 2", "user of one", "agent of one", "a" * 32)
    assert (two.client, two.principal) == ("two 2", "user of two")


async def test_payloads_are_kept_where_asked_without_secrets_of_known_shapes(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    token = "ghp_" + "a" * 30
    await record_calls(path, ("echo", {"text": f"hello {token}"}), payloads=True)
    ((arguments, result),) = await query(path, "SELECT arguments, result FROM payloads")
    assert "hello" in arguments
    assert "hello" in result
    assert token not in arguments + result


async def test_finding_r4_payloads_hold_no_secret_of_a_row(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    row = StdioServerConfig("a", "run", env={"TOKEN": "hunter2-hunter2", "MODE": "fast"})
    recorder = CallRecorder(str(path), ORIGIN, RecordSettings(payloads=True))
    recorder.hide_secrets = Redaction((row,)).hide
    box = observed_box(recorder)
    filler = "x" * (64 * 1024 - 20)  # the cut would split the secret behind it
    for text in ("fast hunter2-hunter2", f"{filler}hunter2-hunter2 {filler}"):
        await box.runner.run(ToolCall("1", "echo", {"text": text}))
    await recorder.aclose()
    rows = await query(path, "SELECT arguments, result FROM payloads")
    assert len(rows) == 2
    assert "fast" in rows[0][0]
    assert not [text for row in rows for text in row if "hunter2" in text]
    assert "more characters" in rows[1][0]


async def test_payloads_expire_while_a_run_goes_on_and_nothing_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pruned = tmp_path / "calls.db", threading.Event()
    prune = CallDatabase.prune

    def prune_and_tell(database: CallDatabase, keep_days: int) -> None:
        prune(database, keep_days)
        if database.newest():
            pruned.set()

    monkeypatch.setattr(CallDatabase, "prune", prune_and_tell)
    monkeypatch.setattr("induscode.calls.recorder.PRUNE_S", 0.01)
    monkeypatch.setattr("induscode.calls.recorder.GATHER_S", 0.01)
    recorder = CallRecorder(str(path), ORIGIN, RecordSettings(payloads=True, payload_hours=0))
    await observed_box(recorder).runner.run(ToolCall("1", "echo", {"text": "secret"}))
    assert await anyio.to_thread.run_sync(pruned.wait, 10)
    assert await query(path, "SELECT count(*) FROM calls") == [(1,)]
    assert await query(path, "SELECT count(*) FROM payloads") == [(0,)]
    await recorder.aclose()


async def test_a_cancelled_call_is_recorded_as_cancelled(tmp_path: Path) -> None:
    recorder = CallRecorder(str(tmp_path / "calls.db"), ORIGIN)
    box = observed_box(recorder)
    began = asyncio.Event()
    async with anyio.create_task_group() as tasks:
        run = partial(box.runner.run, on_progress=lambda _: began.set())
        tasks.start_soon(run, ToolCall("1", "hang", {}), CancelToken())
        await began.wait()
        tasks.cancel_scope.cancel()
    await recorder.aclose()
    (record,) = await load_calls(tmp_path / "calls.db")
    assert (record.outcome, record.result_bytes) == ("cancelled", 0)


async def test_what_the_queue_cannot_take_is_dropped_counted_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MOST_QUEUED", 3)
    path, notes = tmp_path / "calls.db", list[Note]()
    recorder = CallRecorder(str(path), ORIGIN, on_note=notes.append)
    hold = threading.Event()

    def serve_later(database: CallDatabase) -> None:
        hold.wait(60)
        CallRecorder._serve(recorder, database)

    monkeypatch.setattr(recorder, "_serve", serve_later)
    box = observed_box(recorder)
    for number in range(8):
        await box.runner.run(ToolCall(str(number), "echo", {}))
    assert recorder.dropped == 5
    assert len(notes) == 1
    assert "could not be recorded" in str(notes[0])
    hold.set()
    await recorder.aclose()
    assert len(await load_calls(path)) == 3
    assert await query(path, "SELECT value FROM facts WHERE name = 'dropped'") == [(5,)]


async def test_calls_go_on_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    notes: list[Note] = []
    recorder = CallRecorder(str(tmp_path / "file" / "calls.db"), ORIGIN, on_note=notes.append)
    box = observed_box(recorder)
    outcome = await box.runner.run(ToolCall("1", "echo", {"text": "a"}))
    assert outcome.output == "a"
    assert recorder._thread is not None
    await anyio.to_thread.run_sync(recorder._thread.join, 10)
    assert (await box.runner.run(ToolCall("2", "echo", {"text": "b"}))).output == "b"
    assert recorder.dropped == 2
    assert "not recorded any more" in str(notes[0])
    await recorder.aclose()


async def test_a_damaged_file_leaves_a_note(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    path.write_bytes(b"no database" * 1_000)
    recorder = await record_calls(path, ("echo", {}))
    assert "set aside" in str(recorder.notes[0])
    assert len(await load_calls(path)) == 1


async def test_a_recorder_without_calls_starts_no_thread_and_makes_no_file(tmp_path: Path) -> None:
    recorder = await record_calls(tmp_path / "calls.db")
    assert recorder._thread is None
    assert not (tmp_path / "calls.db").exists()


@pytest.mark.parametrize(
    ("code", "is_remote", "expected"),
    [
        ("denied", True, "denied"),
        ("timeout", True, "fault"),
        ("timeout", False, "error"),
        ("cancelled", False, "cancelled"),
        ("", True, "error"),
    ],
)
def test_an_error_has_one_name(code: str, is_remote: bool, expected: str) -> None:
    assert find_outcome(is_cancelled=False, is_error=True, code=code, is_remote=is_remote) == expected


def test_a_result_is_measured_by_its_text_and_its_data() -> None:
    image: JsonValue = {"type": "image", "data": "A" * 1_000}
    total, text = measure_result(ToolResult((TextContentBlock("ä" * 10), JsonContentBlock(image))))
    assert text == 20
    assert 1_020 <= total <= 1_060
    structured = measure_result(ToolResult((), structured={"rows": [1, 2]}))
    assert structured[0] == structured[1] > 0
    many: list[JsonValue] = [0] * 5_000
    assert estimate_size(many)[1] is False


def test_the_server_of_a_tool_is_found_inside_of_wrappers() -> None:
    class Remote:
        ref = "the reference"

    class Wrapper:
        inner = Remote()

    assert find_tool_ref(Wrapper()) == "the reference"
    assert find_tool_ref(object()) is None
    assert find_tool_ref(None) is None


@pytest.mark.parametrize(
    ("value", "size"),
    [("abc", 5), ({}, 1), ({"ab": 1, "c": None}, 3 + 8 + 1 + 8), ([], 1), ([1, "x"], 3 + 4 + 3), (True, 4), (1.5, 4)],
)
def test_the_size_of_a_value_is_estimated_part_by_part(value: Any, size: int) -> None:
    assert estimate_size(value) == (size, True)
