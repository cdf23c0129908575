"""The call database: one private SQLite file per user, which every process appends to, and its statistics.

Rows are pruned by age and count, payloads by expiry; removed data is overwritten (`secure_delete`). A damaged file is
set aside and replaced, since call records are worth less than the call waiting for them. All functions block and belong
to one thread. A power loss may lose the last second (`synchronous = NORMAL`,
https://www.sqlite.org/pragma.html#pragma_synchronous); a killed process loses the records its thread hadn't written.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from indusagi.core.app_dirs import state_dir
from indusagi.core.faults import CoreError
from indusagi.core.json import JsonObject
from indusagi.core.records import record
from indusagi.core.sqlite import DatabaseFormat, connect_read_only, create_or_replace, read_pragma, transaction
from indusagi.core.text import matches_parts
from indusagi.core.time import DAY_MS, find_safe_now, now_ms
from induscode.calls.record import CALLS_FILE, COLUMNS, DECLINED, FAILED_OUTCOMES, CallRecord, CallRow

T = TypeVar("T")
MOST_ROWS = 200_000
_MAX_READ = 25_000
_HOUR_MS = 3_600_000
_NUMBERS = frozenset(
    {"at_ms", "duration_us", "turn", "argument_bytes", "result_bytes", "tokens", "attempt", "waited_us"}
)
# Covers statistics by tool and by server: 35 ms instead of 200 ms for 100,000 calls.
_INDEX = "CREATE INDEX by_tool ON calls (kind, server, tool, outcome, duration_us, tokens)"
_SCHEMA = (
    "CREATE TABLE calls (id INTEGER PRIMARY KEY AUTOINCREMENT, "
    + ", ".join(f"{name} {'INTEGER' if name in _NUMBERS else 'TEXT'} NOT NULL" for name in COLUMNS)
    + ")",
    _INDEX,
    "CREATE TABLE payloads (call INTEGER PRIMARY KEY, expires_ms INTEGER NOT NULL, "
    "arguments TEXT NOT NULL, result TEXT NOT NULL)",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
    "INSERT INTO facts VALUES ('dropped', 0), ('key', randomblob(32))",
)
_ADD_KIND = ("ALTER TABLE calls ADD COLUMN kind TEXT NOT NULL DEFAULT 'tool'", "DROP INDEX by_tool", _INDEX)
_ADD_WAITED = ("ALTER TABLE calls ADD COLUMN waited_us INTEGER NOT NULL DEFAULT 0",)
_ADD_ALLOWED = ("ALTER TABLE calls ADD COLUMN allowed_by TEXT NOT NULL DEFAULT ''",)
_CALLS = DatabaseFormat(
    application_id=0x63616C6C,
    # 1 had no `kind`; 2 had no `waited_us`, and `duration_us` included the user's time; 3 had no `allowed_by`.
    version=4,
    upgrades={
        0: _SCHEMA,
        1: (*_ADD_KIND, *_ADD_WAITED, *_ADD_ALLOWED),
        2: (*_ADD_WAITED, *_ADD_ALLOWED),
        3: _ADD_ALLOWED,
    },
    # The appending connection rereads few pages, so its cache is small (SQLite's default is 2 MB).
    pragmas=("synchronous = NORMAL", "secure_delete = ON", "cache_size = -256"),
)
_INSERT = f"INSERT INTO calls ({', '.join(COLUMNS)}) VALUES "
_VALUES = f"({', '.join('?' * len(COLUMNS))})"
_STATEMENT_SIZES = (256, 16, 1)
"""Rows per statement. A statement releases the GIL, and a busy event loop returns it only after its switch interval
(5 ms): with a statement per row, the thread would write 200 rows a second. SQLite caches each compiled statement, so
there are only a few sizes. 256 rows stay within SQLite's variable limit since 3.32."""
_SPECIAL = re.compile(r"[?\[]")
"""Characters with a special meaning in SQLite's GLOB."""
_SELECT = f"SELECT id, {', '.join(COLUMNS)} FROM calls"


class EmptyCallsError(Exception):
    """The file has no table yet: a process is creating it, or ran out of space."""


class UnreadableCallsError(CoreError):
    """The call records can't be read."""


@record
class Payload:
    """The texts of one call, kept for a short time if the user asks for it."""

    arguments: str
    result: str


@record(kw_only=True)
class CallFilter:
    """Which calls to read. `*` in names matches any text."""

    server: str | None = None
    tool: str | None = None
    client: str | None = None
    conversation: str | None = None
    failed: bool = False
    declined: bool = False
    since_ms: int = 0
    after: int = 0
    """Only calls with a greater number."""

    def matches(self, call: CallRecord) -> bool:
        """Return whether a record outside the database matches."""
        for column in ("server", "tool", "client", "conversation"):
            pattern = getattr(self, column)
            if pattern is not None and not matches_parts(str(getattr(call, column)), pattern.split("*")):
                return False
        return call.at_ms >= self.since_ms and (not self._outcomes or call.outcome in self._outcomes)

    @property
    def _outcomes(self) -> tuple[str, ...]:
        """The wanted outcomes; empty for all."""
        return (*(FAILED_OUTCOMES if self.failed else ()), *((DECLINED,) if self.declined else ()))

    def to_sql(self) -> tuple[str, list[object]]:
        """Build the WHERE clause and its values."""
        tests, values = ["TRUE"], list[object]()
        if self.after:
            tests.append("id > ?")
            values.append(self.after)
        if self.since_ms:
            tests.append("at_ms >= ?")
            values.append(self.since_ms)
        for column in ("server", "tool", "client", "conversation"):
            wanted = getattr(self, column)
            if wanted is not None:
                # GLOB is case-sensitive and knows `*`: https://www.sqlite.org/lang_expr.html#glob. Escape its other
                # special characters: `?` and `[` occur in resource URIs.
                tests.append(f"{column} GLOB ?")
                values.append(_SPECIAL.sub(r"[\g<0>]", wanted))
        if outcomes := self._outcomes:
            tests.append(f"outcome IN ({', '.join('?' * len(outcomes))})")
            values.extend(outcomes)
        return f"WHERE {' AND '.join(tests)}", values


class CallDatabase:
    """One connection to the file."""

    def __init__(self, path: str, *, write: bool = True) -> None:
        """Open the file. With `write`, create it, or replace it if it's damaged.

        Raises:
            OSError: It can't be created, or belongs to another user.
            sqlite3.Error: It can't be opened, or belongs to another program or a later version.
            EmptyCallsError: Opened for reading, and has no table yet.
        """
        self.path = path
        self.set_aside: str | None = None
        """The damaged file that was replaced, if any."""
        if not write:
            self.connection = connect_read_only(path)
            try:
                if 0 < read_pragma(self.connection, "user_version") < _CALLS.version:
                    CallDatabase(path).close()
                if self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                    raise EmptyCallsError(path)
                self.dropped()
            except BaseException:
                self.connection.close()
                raise
            return
        self.connection, self.set_aside = create_or_replace(path, _CALLS)
        self.key = bytes(self._fact("key"))

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    # -- writing ----------------------------------------------------------------------------

    def append(
        self,
        rows: Sequence[CallRow],
        payloads: Mapping[int, Payload] | None = None,
        *,
        dropped: int = 0,
        hours: int = 1,
    ) -> None:
        """Append records in one transaction, and add to the count of dropped ones; `sqlite3.Error` if that fails.

        `payloads` are keyed by row index, and expire after `hours`.
        """
        with transaction(self.connection):
            start = 0
            while start < len(rows):
                count = next(size for size in _STATEMENT_SIZES if start + size <= len(rows))
                values = [value for row in rows[start : start + count] for value in row]
                self.connection.execute(_INSERT + ", ".join([_VALUES] * count), values)
                start += count
            if payloads:
                last = self.connection.execute("SELECT max(id) FROM calls").fetchone()[0]
                first, expires_ms = last - len(rows) + 1, now_ms() + hours * _HOUR_MS
                self.connection.executemany(
                    "INSERT INTO payloads VALUES (?, ?, ?, ?)",
                    ((first + index, expires_ms, one.arguments, one.result) for index, one in payloads.items()),
                )
            if dropped:
                self.connection.execute("UPDATE facts SET value = value + ? WHERE name = 'dropped'", (dropped,))

    def prune(self, keep_days: int, most: int = MOST_ROWS) -> None:
        """Remove old rows, rows beyond `most`, and expired payloads. A clock jumping ahead removes no rows."""
        now = now_ms()
        with transaction(self.connection):
            # Each day's first and last call are enough.
            days = self.connection.execute("SELECT min(at_ms), max(at_ms) FROM calls GROUP BY at_ms / ?", (DAY_MS,))
            safe_ms = find_safe_now(now, [now, *(at_ms for day in days for at_ms in day)])
            self.connection.execute("DELETE FROM calls WHERE at_ms < ?", (safe_ms - keep_days * DAY_MS,))
            self.connection.execute("DELETE FROM calls WHERE id <= (SELECT max(id) FROM calls) - ?", (most,))
            self.connection.execute("DELETE FROM payloads WHERE expires_ms <= ?", (now,))

    # -- reading ----------------------------------------------------------------------------

    def dropped(self) -> int:
        """Return the number of dropped records."""
        return int(self._fact("dropped"))

    def _fact(self, name: str) -> int | bytes:
        return self.connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()[0]

    def latest(self, wanted: CallFilter, limit: int, *, slowest: bool = False) -> list[CallRecord]:
        """Read the last calls in order, or the slowest first."""
        where, values = wanted.to_sql()
        order = "duration_us DESC" if slowest else "id DESC"
        rows = self.connection.execute(f"{_SELECT} {where} ORDER BY {order} LIMIT ?", [*values, limit])
        records = [CallRecord(*row) for row in rows]
        return records if slowest else records[::-1]

    def stream(self, wanted: CallFilter) -> Iterator[CallRecord]:
        """Read all calls in order, a few at a time."""
        where, values = wanted.to_sql()
        for row in self.connection.execute(f"{_SELECT} {where} ORDER BY id", values):
            yield CallRecord(*row)

    def measures(self, column: str, wanted: CallFilter) -> Iterable[tuple[str, str, str, str, int, int, str]]:
        """Read data for statistics: kind, server, group, outcome, count, tokens, and comma-separated durations.

        SQLite joins the durations: a tuple per call would take three times as long.
        """
        where, values = wanted.to_sql()
        names = "kind, server, tool" if column == "tool" else f"'', '', {column}"
        # For a grouping, SQLite would rather read a whole index than the last calls alone.
        source = "calls NOT INDEXED" if wanted.after else "calls"
        return self.connection.execute(
            f"SELECT {names}, outcome, count(*), sum(tokens), group_concat(duration_us) FROM {source} {where} "
            f"GROUP BY {names if column == 'tool' else column}, outcome",
            values,
        )

    def list_clients(self, since_ms: int) -> Mapping[str, tuple[int, int]]:
        """Return the number of calls and the time of the last one, by client."""
        rows = self.connection.execute(
            "SELECT client, count(*), max(at_ms) FROM calls WHERE at_ms >= ? GROUP BY client", [since_ms]
        )
        return {client: (count, last_ms) for client, count, last_ms in rows}

    def measure_steps(
        self, wanted: CallFilter, until_ms: int, step_ms: int
    ) -> Iterable[tuple[int, str, str, int, int, str]]:
        """Read calls by interval: index, server, outcome, count, tokens, durations.

        The first interval starts at `wanted.since_ms`.
        """
        where, values = wanted.to_sql()
        return self.connection.execute(
            "SELECT (at_ms - ?) / ?, server, outcome, count(*), sum(tokens), group_concat(duration_us) "
            f"FROM calls {where} AND at_ms < ? GROUP BY 1, 2, 3",
            [wanted.since_ms, step_ms, *values, until_ms],
        )

    def newest(self) -> int:
        """Return the number of the last call, or 0."""
        return int(self.connection.execute("SELECT coalesce(max(id), 0) FROM calls").fetchone()[0])

    def limit(self, wanted: CallFilter) -> tuple[CallFilter, bool]:
        """Limit a filter to the last calls, so that reading takes the same time however many there are.

        Returns whether that leaves out calls since `wanted.since_ms`.
        """
        after = max(0, self.newest() - _MAX_READ)
        before = self.connection.execute("SELECT at_ms FROM calls WHERE id <= ? ORDER BY id DESC LIMIT 1", (after,))
        row = before.fetchone()
        return replace(wanted, after=after), row is not None and row[0] >= wanted.since_ms

    def related(self, call: CallRecord, limit: int) -> list[CallRecord]:
        """Read the calls of the same trace, or else the same turn, in order, including this one."""
        if not call.trace and not call.run:
            return [call]
        where, values = ("trace = ?", [call.trace]) if call.trace else ("run = ? AND turn = ?", [call.run, call.turn])
        near = f"{_SELECT} WHERE {where} AND id BETWEEN ? AND ? ORDER BY id LIMIT ?"
        rows = self.connection.execute(near, [*values, call.id - limit, call.id + limit, limit])
        return [CallRecord(*row) for row in rows]

    def find(self, number: int) -> tuple[CallRecord | None, Payload | None]:
        """Find a call by number, with its texts if they were kept and haven't expired."""
        row = self.connection.execute(f"{_SELECT} WHERE id = ?", (number,)).fetchone()
        texts = self.connection.execute(
            "SELECT arguments, result FROM payloads WHERE call = ? AND expires_ms > ?", (number, now_ms())
        ).fetchone()
        return (None if row is None else CallRecord(*row)), (None if texts is None else Payload(*texts))


def use_calls(read: Callable[[CallDatabase], T]) -> T | None:
    """Read from this user's database, or return `None` if it doesn't exist or is still empty. Blocks."""
    database = open_calls()
    if database is None:
        return None
    with closing(database):
        return read(database)


def open_calls() -> CallDatabase | None:
    """Open this user's database for reading, or return `None` if it doesn't exist or is still empty."""
    path = CALLS_FILE
    try:
        path = os.path.join(state_dir(), CALLS_FILE)
        return CallDatabase(path, write=False) if os.path.lexists(path) else None
    except EmptyCallsError:
        return None
    except (OSError, sqlite3.Error, TypeError) as exc:
        is_damaged = isinstance(exc, sqlite3.DatabaseError) and not isinstance(exc, sqlite3.OperationalError)
        remedy = " (remove it, or make a call: it is set aside then)" if is_damaged else ""
        raise UnreadableCallsError(f"the records of calls {path!r} cannot be read: {exc}{remedy}") from exc


# -- statistics -------------------------------------------------------------------------------------


GROUPS = ("tool", "kind", "server", "client", "principal", "conversation", "agent", "via", "code")
"""Columns to group calls by."""


@record
class CallStatistics:
    """The calls of one group."""

    server: str
    name: str
    calls: int
    errors: int
    p50_us: int
    p95_us: int
    slowest_us: int
    tokens: int
    kind: str = ""
    declined: int = 0
    """Calls the user or a rule declined. They didn't run: they aren't errors, and have no duration."""

    def to_json(self, by: str) -> JsonObject:
        """Convert to a JSON object, naming a tool with its server."""
        named: JsonObject = {by: self.name}
        if by == "tool":
            named = {"kind": self.kind, "server": self.server, "tool": self.name}
        figures = ("calls", "errors", "declined", "p50_us", "p95_us", "slowest_us", "tokens")
        return {**named, **{name: getattr(self, name) for name in figures}}


def read_statistics(database: CallDatabase, by: str, wanted: CallFilter) -> list[CallStatistics]:
    """Read each group's statistics, most calls first, followed by the total."""
    tallies: dict[tuple[str, str, str], _Tally] = {}
    together = _Tally()
    for kind, server, name, outcome, calls, tokens, joined in database.measures(by, wanted):
        for tally in (tallies.setdefault((kind, server, name), _Tally()), together):
            tally.add(outcome, calls, tokens, joined)
    groups = [tally.summarize(*key) for key, tally in tallies.items()]
    groups.sort(key=lambda group: (-group.calls, group.server, group.name))
    return [*groups, together.summarize("", "", "all")]


class _Tally:
    """Adds up a group's calls."""

    def __init__(self) -> None:
        self.durations: list[int] = []
        self.calls = self.errors = self.declined = self.tokens = 0

    def add(self, outcome: str, calls: int, tokens: int, durations: str) -> None:
        self.calls += calls
        self.tokens += tokens
        if outcome == DECLINED:
            self.declined += calls
            return
        self.durations.extend(map(int, durations.split(",")))
        self.errors += calls if outcome in FAILED_OUTCOMES else 0

    def find_percentile(self, percent: int) -> int:
        self.durations.sort()
        return find_percentile(self.durations, percent)

    def summarize(self, kind: str, server: str, name: str) -> CallStatistics:
        p50, p95, slowest = map(self.find_percentile, (50, 95, 100))
        return CallStatistics(
            server, name, self.calls, self.errors, p50, p95, slowest, self.tokens, kind, self.declined
        )


def find_percentile(ordered: Sequence[int], percent: int) -> int:
    """Find the nearest-rank percentile of sorted values; 0 if there are none."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0


def format_duration(microseconds: int) -> str:
    """Format a duration in its largest unit with three digits: `1.24 ms`, `3.50 s`."""
    if microseconds < 1_000:
        return f"{microseconds} us"
    value, unit = (microseconds / 1_000, "ms") if microseconds < 1_000_000 else (microseconds / 1_000_000, "s")
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


# -- series -----------------------------------------------------------------------------------


NATIVE = "native"
"""Stands for native tools, which have no server."""


@record(kw_only=True)
class CallSeries:
    """The calls between two times, in equal intervals, oldest first."""

    since_ms: int
    step_ms: int
    calls: Sequence[int]
    errors: Sequence[int]
    declined: Sequence[int]
    """Calls the user or a rule declined. They count as `calls`, and have no duration."""
    p50_us: Sequence[int]
    p95_us: Sequence[int]
    tokens: Mapping[str, Sequence[int]]
    """Estimated tokens by server."""
    latency_us: Mapping[str, Sequence[int]]
    """Median duration by server."""

    by_server: Mapping[str, Sequence[int]]
    """Number of calls by server."""
    failures: Mapping[str, int]
    """Number of failed calls by server."""
    refusals: Mapping[str, int]
    """Number of declined calls by server."""
    percentiles_us: Mapping[str, tuple[int, int]]
    """Median and p95 duration of all calls, by server."""

    @property
    def until_ms(self) -> int:
        """End of the last interval."""
        return self.since_ms + self.step_ms * len(self.calls)


def read_series(
    database: CallDatabase, until_ms: int, step_ms: int, steps: int, wanted: CallFilter | None = None
) -> CallSeries:
    """Read the calls, or the `wanted` ones, of the last `steps` intervals before `until_ms`. Blocks."""
    since_ms = until_ms - step_ms * steps
    wanted = replace(wanted or CallFilter(), since_ms=since_ms)
    series = [_Tally() for _ in range(steps)]
    by_server: dict[str, tuple[_Tally, list[_Tally]]] = {}
    for step, server, outcome, count, spent, joined in database.measure_steps(wanted, until_ms, step_ms):
        whole, of_server = by_server.setdefault(server or NATIVE, (_Tally(), [_Tally() for _ in range(steps)]))
        for tally in (series[step], whole, of_server[step]):
            tally.add(outcome, count, spent, joined)
    return CallSeries(
        since_ms=since_ms,
        step_ms=step_ms,
        calls=[tally.calls for tally in series],
        errors=[tally.errors for tally in series],
        declined=[tally.declined for tally in series],
        p50_us=[tally.find_percentile(50) for tally in series],
        p95_us=[tally.find_percentile(95) for tally in series],
        tokens={name: [tally.tokens for tally in row] for name, (_, row) in sorted(by_server.items())},
        by_server={name: [tally.calls for tally in row] for name, (_, row) in by_server.items()},
        refusals={name: whole.declined for name, (whole, _) in by_server.items()},
        failures={name: whole.errors for name, (whole, _) in by_server.items()},
        percentiles_us={
            name: (whole.find_percentile(50), whole.find_percentile(95)) for name, (whole, _) in by_server.items()
        },
        latency_us={name: [tally.find_percentile(50) for tally in row] for name, (_, row) in by_server.items()},
    )
