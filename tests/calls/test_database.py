"""The database of calls: private, bounded, and begun again if it is damaged."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.calls.helpers import make_record, read_calls
from tests.support.clock import ManualClock

from indusagi.core.sqlite import ForeignDatabaseError
from indusagi.core.time import now_ms
from induscode.calls.database import CallDatabase, CallFilter, Payload, find_percentile, read_series, read_statistics

if TYPE_CHECKING:
    from pathlib import Path

    from induscode.calls.record import CallRecord

DAY_MS = 86_400_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "calls.db"


def store(path: Path, *records: CallRecord, payload: Payload | None = None) -> None:
    with closing(CallDatabase(str(path))) as database:
        database.append([one.to_row() for one in records], {} if payload is None else {0: payload})


def test_records_are_read_as_they_were_written_in_a_private_file(path: Path) -> None:
    first = make_record(client="a \u202e\ud800"[:2], principal="ada", conversation="c", turn=3, tokens=9)
    store(path, first, make_record(outcome="error", code="failed"))
    read = read_calls(path)
    assert [one.id for one in read] == [1, 2]
    assert [getattr(read[0], name) for name in ("client", "principal", "turn", "tokens")] == ["a ", "ada", 3, 9]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("count", [1, 15, 17, 256, 300, 1_000])
def test_a_batch_of_any_length_is_stored_in_its_order(path: Path, count: int) -> None:
    store(path, *(make_record(tool=f"t{number}") for number in range(count)))
    assert [one.tool for one in read_calls(path)] == [f"t{number}" for number in range(count)]


def test_filters_choose_by_name_outcome_and_time(path: Path) -> None:
    store(
        path,
        make_record(server="git", tool="log", at_ms=10),
        make_record(server="web", tool="get", outcome="fault", at_ms=20, duration_us=900),
        make_record(server="git", tool="show", outcome="denied", at_ms=30, client="editor 1"),
    )
    assert [one.tool for one in read_calls(path, server="git")] == ["log", "show"]
    assert [one.tool for one in read_calls(path, tool="*o*")] == ["log", "show"]
    assert [one.tool for one in read_calls(path, failed=True)] == ["get"]
    assert [one.tool for one in read_calls(path, declined=True)] == ["show"]
    assert [one.tool for one in read_calls(path, failed=True, declined=True)] == ["get", "show"]
    assert [one.tool for one in read_calls(path, since_ms=20, client="editor*")] == ["show"]
    assert [one.tool for one in read_calls(path, after=2)] == ["show"]
    with closing(CallDatabase(str(path), write=False)) as database:
        assert [one.tool for one in database.latest(CallFilter(), 1, slowest=True)] == ["get"]


def test_only_a_star_is_special_in_a_filter(path: Path) -> None:
    uris = ["dir:///a?q=[1]", "dir:///aXq=1", "dir:///a?q=[1]/more"]
    records = [make_record(tool=uri, kind="resource") for uri in uris]
    with closing(CallDatabase(str(path))) as database:
        database.append([one.to_row() for one in records])
        for pattern, expected in (("dir:///a?q=[1]", uris[:1]), ("*q=[[]1]*", []), ("dir:///a?*", uris[::2])):
            wanted = CallFilter(tool=pattern)
            assert [call.tool for call in database.latest(wanted, 9)] == expected
            assert [call.tool for call in records if wanted.matches(call)] == expected


def test_old_rows_and_rows_past_the_most_leave_and_numbers_are_never_given_twice(path: Path) -> None:
    now = now_ms()
    store(path, make_record(at_ms=now - 3 * DAY_MS), *(make_record(at_ms=now) for _ in range(5)))
    with closing(CallDatabase(str(path))) as database:
        database.prune(keep_days=2)
        assert [one.id for one in database.stream(CallFilter())] == [2, 3, 4, 5, 6]
        database.prune(keep_days=2, most=2)
        assert [one.id for one in database.stream(CallFilter())] == [5, 6]
        database.connection.execute("DELETE FROM calls")
        database.append([make_record().to_row()])
        assert [one.id for one in database.stream(CallFilter())] == [7]


@pytest.mark.parametrize("jump", [60, 400, 40_000])
def test_finding_r8_a_clock_that_jumps_removes_no_calls(path: Path, monkeypatch: pytest.MonkeyPatch, jump: int) -> None:
    clock = ManualClock(20_000 * DAY_MS)
    monkeypatch.setattr("induscode.calls.database.now_ms", clock.now_ms)
    with closing(CallDatabase(str(path))) as database:

        def call() -> list[int]:
            database.prune(keep_days=30)  # as a run begins
            database.append([make_record(at_ms=clock.now_ms()).to_row()])
            database.prune(keep_days=30)
            return [one.id for one in database.stream(CallFilter())]

        call()
        clock.advance(DAY_MS)
        call()
        clock.advance(jump * DAY_MS)
        call()
        clock.advance(DAY_MS // 2)
        call()
        clock.advance(-jump * DAY_MS)
        assert call() == [1, 2, 3, 4, 5]
        # A user who comes back after a long time: the second day shows that the clock is right.
        clock.advance(jump * DAY_MS)
        assert call() == [1, 2, 3, 4, 5, 6]
        clock.advance(2 * DAY_MS)
        assert call() == [3, 4, 6, 7]


def test_payloads_are_shown_until_they_expire_and_are_then_gone_from_the_file(path: Path) -> None:
    texts = Payload('{"text":"find-this-argument"}', "find-this-result")
    store(path, make_record(), payload=texts)
    with closing(CallDatabase(str(path))) as database:
        record, payload = database.find(1)
        assert (record is not None, payload) == (True, texts)
        database.connection.execute("UPDATE payloads SET expires_ms = 1")
        assert database.find(1)[1] is None
        database.prune(keep_days=100_000)
        assert database.connection.execute("SELECT count(*) FROM payloads").fetchone() == (0,)
        database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert b"find-this" not in path.read_bytes()


def test_a_damaged_file_is_set_aside_and_a_new_one_begun(path: Path) -> None:
    store(path, make_record())
    path.write_bytes(b"no database at all" * 100)
    with closing(CallDatabase(str(path))) as database:
        assert database.set_aside is not None
        database.append([make_record().to_row()])
    assert len(read_calls(path)) == 1
    assert [one.name for one in path.parent.glob("*.corrupt-*")] != []


def test_a_file_without_kinds_is_upgraded_when_it_is_opened(path: Path) -> None:
    store(path, make_record(tool="old"))
    with closing(sqlite3.connect(path)) as older:
        older.execute("DROP INDEX by_tool")
        older.execute("ALTER TABLE calls DROP COLUMN kind")
        older.execute("ALTER TABLE calls DROP COLUMN waited_us")
        older.execute("ALTER TABLE calls DROP COLUMN allowed_by")
        older.execute("CREATE INDEX by_tool ON calls (server, tool, outcome, duration_us, tokens)")
        older.execute("PRAGMA user_version = 1")
    assert [(one.tool, one.kind) for one in read_calls(path)] == [("old", "tool")]
    store(path, make_record(kind="prompt", tool="new"))
    with closing(CallDatabase(str(path), write=False)) as database:
        *groups, everything = read_statistics(database, "tool", CallFilter())
    assert [(one.kind, one.name) for one in groups] == [("prompt", "new"), ("tool", "old")]
    assert everything.calls == 2


@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_finding_u2_file_of_the_version_before_opens_and_keeps_its_rows(path: Path, write: bool) -> None:
    store(path, make_record(tool="old", duration_us=7))
    with closing(sqlite3.connect(path)) as older:
        older.execute("ALTER TABLE calls DROP COLUMN waited_us")
        older.execute("ALTER TABLE calls DROP COLUMN allowed_by")
        older.execute("PRAGMA user_version = 2")
    with closing(CallDatabase(str(path), write=write)) as database:
        (old,) = database.latest(CallFilter(), 9)
        assert (old.tool, old.duration_us, old.waited_us) == ("old", 7, 0)
    store(path, make_record(tool="new", duration_us=5, waited_us=9))
    assert [(one.tool, one.waited_us) for one in read_calls(path)] == [("old", 0), ("new", 9)]


def test_finding_u2_declined_calls_are_no_errors_and_have_no_duration(path: Path) -> None:
    store(
        path,
        make_record(tool="a", at_ms=10, duration_us=500),
        make_record(tool="a", at_ms=20, duration_us=700, outcome="error"),
        make_record(tool="a", at_ms=30, duration_us=1, outcome="denied"),
        make_record(tool="a", at_ms=40, duration_us=900, outcome="cancelled"),
    )
    with closing(CallDatabase(str(path), write=False)) as database:
        group, everything = read_statistics(database, "tool", CallFilter())
        series = read_series(database, 100, 100, 1)
    for one in (group, everything):
        assert (one.calls, one.errors, one.declined) == (4, 1, 1)
        assert (one.p50_us, one.slowest_us) == (700, 900)
    assert ([*series.calls], [*series.errors], [*series.declined]) == ([4], [1], [1])
    assert [*series.p50_us] == [700]


def test_a_file_of_another_program_or_of_a_later_version_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 7")
    before = path.read_bytes()
    with pytest.raises(ForeignDatabaseError):
        CallDatabase(str(path))
    assert path.read_bytes() == before


def test_the_keys_of_digests_differ_between_users(tmp_path: Path) -> None:
    with (
        closing(CallDatabase(str(tmp_path / "a" / "c.db"))) as one,
        closing(CallDatabase(str(tmp_path / "b.db"))) as two,
    ):
        assert len(one.key) == 32
        assert one.key != two.key


def test_two_writers_lose_nothing(path: Path) -> None:
    with closing(CallDatabase(str(path))) as one, closing(CallDatabase(str(path))) as two:
        for _ in range(20):
            one.append([make_record().to_row()], dropped=1)
            two.append([make_record().to_row()])
        assert one.dropped() == 20
    assert [one.id for one in read_calls(path)] == list(range(1, 41))


def test_statistics_count_errors_and_take_percentiles_by_nearest_rank(path: Path) -> None:
    store(
        path,
        *(make_record(tool="echo", duration_us=value, tokens=2) for value in range(1, 101)),
        make_record(tool="fail", duration_us=7, outcome="error"),
        make_record(tool="fail", duration_us=9, outcome="ok"),
        make_record(server="", tool="echo", duration_us=3),
    )
    with closing(CallDatabase(str(path), write=False)) as database:
        echo, fail, native, everything = read_statistics(database, "tool", CallFilter())
        assert (echo.server, echo.name, echo.calls, echo.errors, echo.tokens) == ("s", "echo", 100, 0, 200)
        assert (echo.p50_us, echo.p95_us, echo.slowest_us) == (50, 95, 100)
        assert (fail.calls, fail.errors, fail.p50_us, fail.p95_us) == (2, 1, 7, 9)
        assert (native.server, native.calls) == ("", 1)
        assert (everything.name, everything.calls, everything.errors) == ("all", 103, 1)
        assert [one.name for one in read_statistics(database, "server", CallFilter())] == ["s", "", "all"]
        assert [one.calls for one in read_statistics(database, "client", CallFilter(tool="none"))] == [0]


@pytest.mark.parametrize(
    ("values", "percent", "expected"), [([], 50, 0), ([4], 95, 4), ([1, 2], 50, 1), ([1, 2], 95, 2)]
)
def test_a_percentile_is_a_value_that_occurred(values: list[int], percent: int, expected: int) -> None:
    assert find_percentile(values, percent) == expected
