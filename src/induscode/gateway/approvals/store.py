"""The requests for approval of this user's gateways, in a file that any process answers.

A request only moves forward: it waits, is approved, and is used once. Each step is one conditional update in SQLite
that names the request, its digest and a time before its end, so of any number of attempts at most one succeeds.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import Final

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.sqlite import DatabaseFormat, LazyDatabase, transaction
from indusagi.core.time import now_ms
from induscode.core.consent import Consent

FILE: Final = "approvals.db"
_KEPT_MS: Final = 86_400_000
"""How long requests stay readable after they were made."""
_MOST: Final = 10_000
_FORM: Final = DatabaseFormat(
    application_id=0x696E6170,
    version=1,
    upgrades={
        0: (
            "CREATE TABLE approvals (id TEXT PRIMARY KEY, digest TEXT NOT NULL, state TEXT NOT NULL, "
            "facts TEXT NOT NULL, asked_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, "
            "answered_by TEXT NOT NULL, comment TEXT NOT NULL) STRICT, WITHOUT ROWID",
        )
    },
)
_COLUMNS: Final = ("id", "digest", "state", "facts", "asked_ms", "expires_ms", "answered_by", "comment")
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM approvals"
_FACTS: Final = ("node", "principal", "client", "server", "tool", "title")


class ApprovalState(StrEnum):
    """State of a request."""

    WAITING = "waiting"
    APPROVED = "approved"
    USED = "used"
    """The call ran."""
    DENIED = "denied"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    """The client cancelled the call."""
    REFUSED = "refused"
    """Approved, but the definition or a rule changed meanwhile."""


_OPEN: Final = (ApprovalState.WAITING, ApprovalState.APPROVED)


@record(kw_only=True)
class Approval:
    """A call that waits, or waited, for a person."""

    id: str
    digest: str
    """Binds a yes to the principal, server, tool, definition and arguments. Nobody can guess it from them."""
    state: ApprovalState = ApprovalState.WAITING
    node: str = ""
    """The cluster node that holds the call."""
    principal: str = ""
    client: str = ""
    server: str = ""
    tool: str
    title: str
    lines: tuple[str, ...]
    """Everything a person is shown: all arguments, with invisible characters escaped and secrets replaced."""
    asked_ms: int
    expires_ms: int
    answered_by: str = ""
    comment: str = ""

    @property
    def consent(self) -> Consent:
        """The question."""
        return Consent(f"call of {self.tool}", self.digest, self.lines)

    def is_waiting(self) -> bool:
        """Return whether it can still be answered."""
        return self.state is ApprovalState.WAITING and self.expires_ms > now_ms()

    def to_json(self) -> JsonObject:
        """Return it as a JSON object."""
        return {**{one.name: getattr(self, one.name) for one in fields(self)}, "lines": [*self.lines]}

    @classmethod
    def parse(cls, value: JsonValue) -> Approval:
        """Parse the value of `to_json`, or raise `ValueError`."""
        try:
            assert is_json_object(value)
            lines = value["lines"]
            assert isinstance(lines, list)
            texts = {name: str(value[name]) for name in ("id", "digest", "answered_by", "comment", *_FACTS)}
            numbers = {name: int(str(value[name])) for name in ("asked_ms", "expires_ms")}
            return cls(**texts, **numbers, state=ApprovalState(str(value["state"])), lines=tuple(map(str, lines)))  # type: ignore[arg-type]  # pyright: by name
        except (AssertionError, KeyError) as exc:
            raise ValueError(f"not a request for approval: {exc}") from exc


class ApprovalStore(LazyDatabase):
    """The file of requests. Those in a damaged one are asked again."""

    def __init__(self, path: str | None = None) -> None:
        super().__init__(path, FILE, _FORM)

    def add(self, approval: Approval) -> bool:
        """Add a request, and forget those of earlier days. Return whether it's new."""
        values = approval.to_json()
        values["facts"] = json.dumps({name: values[name] for name in ("lines", *_FACTS)})
        with self._lock, transaction(self._open()):
            # A waiting one stays, however many another client makes and withdraws.
            over = "SELECT id FROM approvals WHERE state <> 'waiting' ORDER BY asked_ms DESC LIMIT -1 OFFSET ?"
            old = f"DELETE FROM approvals WHERE asked_ms < ? OR id IN ({over})"
            self._open().execute(old, (now_ms() - _KEPT_MS, _MOST - 1))
            insert = f"INSERT OR IGNORE INTO approvals VALUES (:{', :'.join(_COLUMNS)})"
            return self._open().execute(insert, values).rowcount == 1

    def list_all(self) -> Sequence[Approval]:
        """List all known requests, the newest first."""
        with self._lock:
            rows = self._open().execute(f"{_SELECT} ORDER BY asked_ms DESC, id DESC")
            return [_parse_row(row) for row in rows]

    def list_waiting(self) -> Sequence[Approval]:
        """List the requests that can be answered, the oldest first."""
        query = f"{_SELECT} WHERE state = ? AND expires_ms > ? ORDER BY asked_ms, id"
        with self._lock:
            return [_parse_row(row) for row in self._open().execute(query, (ApprovalState.WAITING, now_ms()))]

    def find(self, start: str) -> Approval | None:
        """Find the only request whose id starts like this."""
        with self._lock:
            query = f"{_SELECT} WHERE substr(id, 1, ?) = ? LIMIT 2"
            rows = self._open().execute(query, (len(start), start.upper())).fetchall()
        return _parse_row(rows[0]) if len(rows) == 1 and start else None

    def list_answered(self, ids: Collection[str]) -> Mapping[str, Approval]:
        """Return those of some requests that wait no longer, by id."""
        with self._lock:
            marks = ", ".join("?" * len(ids))
            query = f"{_SELECT} WHERE state <> ? AND id IN ({marks})"
            return {row[0]: _parse_row(row) for row in self._open().execute(query, (ApprovalState.WAITING, *ids))}

    def answer(self, approval_id: str, digest: str, *, approve: bool, by: str, comment: str = "") -> bool:
        """Answer a waiting request. Return False if it waits no longer, has expired, or is another one."""
        state = ApprovalState.APPROVED if approve else ApprovalState.DENIED
        return self._move(approval_id, digest, ApprovalState.WAITING, state, by, comment)

    def use(self, approval_id: str, digest: str) -> bool:
        """Spend a yes, once. Return False if there's none, it has expired, or it's about something else."""
        return self._move(approval_id, digest, ApprovalState.APPROVED, ApprovalState.USED)

    def _move(self, approval_id: str, digest: str, before: ApprovalState, after: ApprovalState, *answer: str) -> bool:
        more = ", answered_by = ?, comment = ?" if answer else ""
        change = f"UPDATE approvals SET state = ?{more} WHERE id = ? AND digest = ? AND state = ? AND expires_ms > ?"
        with self._lock:
            cursor = self._open().execute(change, (after, *answer, approval_id, digest, before, now_ms()))
            return cursor.rowcount == 1

    def end(self, approval_id: str, state: ApprovalState, before: Sequence[ApprovalState] = _OPEN) -> None:
        """End a request that nobody can answer or use any more, if it's in a state of `before`."""
        change = f"UPDATE approvals SET state = ? WHERE id = ? AND state IN ({', '.join('?' * len(before))})"
        with self._lock:
            self._open().execute(change, (state, approval_id, *before))


def _parse_row(row: Sequence[str | int]) -> Approval:
    values = dict(zip(_COLUMNS, row, strict=True))
    return Approval.parse({**values, **json.loads(str(values.pop("facts")))})
