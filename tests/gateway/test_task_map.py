"""The map of a gateway's tasks: owners, expiry, bounds, a damaged file, and the record of a call at its true end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from indusagi.core.time import now_ms
from indusagi.interop.protocol_bridge.client.tasks import TaskExchange
from indusagi.interop.protocol_bridge.rpc.connection import RpcError
from induscode.gateway.content import GatewayContent
from induscode.gateway.tasks import GatewayTasks, TaskMap, TaskRow

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.faults import Note
    from indusagi.core.json import JsonObject
    from indusagi.runtime.contract import ToolOutcome

TASK: JsonObject = {"taskId": "task-1", "status": "working", "ttlMs": 60_000, "pollIntervalMs": 5}


def made(server: str = "s", **more: object) -> TaskExchange:
    exchange = TaskExchange()
    exchange.created, exchange.server = {**TASK, **more}, server  # type: ignore[dict-item]
    return exchange


async def refuse(tasks: GatewayTasks, task_id: object, owner: bytes) -> str:
    with pytest.raises(RpcError) as caught:
        await tasks.request("tasks/get", {"taskId": str(task_id)}, owner)
    return caught.value.message


async def test_a_task_belongs_to_its_owner_alone_and_is_found_again_by_another_process(tmp_path: Path) -> None:
    path = str(tmp_path / "state" / "tasks.db")
    first = GatewayTasks(GatewayContent(), TaskMap(path))
    handle = await first.add(made(), b"ada", None)
    assert handle == {**TASK, "taskId": handle["taskId"]}
    assert handle["taskId"] != "task-1"
    await first.aclose()
    second = GatewayTasks(GatewayContent(), TaskMap(path))
    await second.open()
    assert second.find_server(handle["taskId"]) == "s"
    assert "belongs to another client" in await refuse(second, handle["taskId"], b"eve")
    assert await refuse(second, handle["taskId"], b"ada") == "the servers are not there yet"
    await second.aclose()


async def test_expired_tasks_and_tasks_that_the_server_numbers_again_are_gone(tmp_path: Path) -> None:
    tasks = GatewayTasks(GatewayContent(), TaskMap(str(tmp_path / "tasks.db")))
    old = await tasks.add(made(createdAt="2026-01-01T00:00:00Z", ttlMs=0, lastUpdatedAt="x"), b"ada", None)
    new = await tasks.add(made(), b"eve", None)
    assert "belongs to another client" in await refuse(tasks, old["taskId"], b"ada")
    assert await refuse(tasks, new["taskId"], b"eve") == "the servers are not there yet"
    again = await tasks.add(made(), b"eve", None)
    assert again["taskId"] == new["taskId"]
    await tasks.aclose()


def test_finding_r8_a_clock_that_jumps_removes_no_tasks_and_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    path.write_bytes(b"no database at all, but long enough to be read as a broken header of one" * 20)
    path.chmod(0o600)
    known, now = TaskMap(str(path)), now_ms()
    known.write(TaskRow("a", "s", "1", "o", now - 1))
    known.write(TaskRow("b", "s", "2", "o", now + 60_000))
    assert known.read_all(now + 400 * 86_400_000) == []
    assert [row.id for row in known.read_all(now)] == ["b"]
    known.close()
    assert any(".corrupt-" in name for name in os.listdir(tmp_path))


def test_past_the_most_rows_leave_the_file_that_expire_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("induscode.gateway.tasks.MOST_TASKS", 2)
    known = TaskMap(str(tmp_path / "tasks.db"))
    for expires_ms in (30, 10, 20):
        known.write(TaskRow(f"t{expires_ms}", "s", str(expires_ms), "o", expires_ms))
    assert [row.id for row in known.read_all(0)] == ["t20", "t30"]
    assert known.find("t10") is None
    known.close()


async def test_a_map_that_cannot_be_written_is_reported_and_tasks_live_in_memory(tmp_path: Path) -> None:
    notes: list[Note] = []
    (tmp_path / "file").write_text("")
    tasks = GatewayTasks(GatewayContent(), TaskMap(str(tmp_path / "file" / "tasks.db")), notes.append)
    handle = await tasks.add(made(), b"", None)
    assert tasks.find_server(handle["taskId"]) == "s"
    assert "cannot be remembered across a restart" in str(notes[0])


async def test_a_call_ends_for_its_observers_when_its_task_is_seen_to_have_ended() -> None:
    content = GatewayContent()
    tasks, exchange = GatewayTasks(content), made()
    ended: list[tuple[ToolOutcome, float | None]] = []
    exchange.completion.listen(lambda outcome, seconds: ended.append((outcome, seconds)))
    told: list[JsonObject] = []
    handle = await tasks.add(exchange, b"", told.append)
    times: JsonObject = {"createdAt": "2026-11-17T04:00:00Z", "lastUpdatedAt": "2026-11-17T04:00:02.5Z"}
    result: JsonObject = {"content": [{"type": "text", "text": "no"}], "isError": True}
    from indusagi.interop.protocol_bridge.client.handlers import current_server  # noqa: PLC0415 — as a session does

    current_server.set("s")
    content.receive("notifications/tasks", {**TASK, "taskId": "task-2", "status": "completed"})
    assert (ended, told) == ([], [])
    for _ in range(2):
        content.receive("notifications/tasks", {**TASK, **times, "status": "completed", "result": result})
    assert [(one.is_error, seconds) for one, seconds in ended] == [(True, 2.5)]
    assert [one["taskId"] for one in told] == [handle["taskId"]]
