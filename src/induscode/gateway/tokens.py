"""Named tokens of a gateway, principals that are locked out, and their use: one private file.

A token is 256 random bits, so its plain SHA-256 is all we store: nobody can guess it from the digest, and a slow hash
would only slow down requests. Entries of revoked tokens stay, so that other nodes of a cluster learn about them.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from typing import Any, Final, Literal

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.sqlite import DatabaseFormat, LazyDatabase, file_identity, read_pragma, transaction
from indusagi.core.time import DAY_MS, iso_utc, now_ms

FILE: Final = "tokens.db"
PREFIX: Final = "indus_"
"""Marks a token, for our redaction and for scanners."""
_ALPHABET: Final = string.ascii_letters + string.digits
_CHARACTERS: Final = 43
"""Of 62 each: 256 bits."""
_TOKEN: Final = re.compile(rf"{PREFIX}[A-Za-z0-9]{{{_CHARACTERS}}}", re.ASCII)
_KEPT_DAYS: Final = 90
"""How long the use of an owner is kept after its last one."""
_FORM: Final = DatabaseFormat(
    application_id=0x696E746B,
    version=1,
    upgrades={
        0: (
            "CREATE TABLE entries (kind TEXT, name TEXT, changed_ms INTEGER NOT NULL, facts TEXT NOT NULL, "
            "PRIMARY KEY (kind, name)) STRICT, WITHOUT ROWID",
            "CREATE TABLE uses (owner TEXT, node TEXT, day INTEGER NOT NULL, facts TEXT NOT NULL, "
            "PRIMARY KEY (owner, node)) STRICT, WITHOUT ROWID",
            "CREATE TABLE grants (owner TEXT PRIMARY KEY, day INTEGER NOT NULL, calls INTEGER NOT NULL) "
            "STRICT, WITHOUT ROWID",
        )
    },
    pragmas=("synchronous = FULL",),  # a revoked token must not come back
)


def generate_token() -> str:
    """Generate a token."""
    return PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(_CHARACTERS))


def is_token(text: str) -> bool:
    """Return whether a text has the form of a named token."""
    return _TOKEN.fullmatch(text) is not None


def hash_token(token: str) -> bytes:
    """Return the digest that's stored instead of a token."""
    return hashlib.sha256(token.encode()).digest()


@record(kw_only=True)
class Budget:
    """Limits of a principal per day (UTC); 0: none."""

    calls: int = 0
    tokens: int = 0


@record(kw_only=True)
class TokenEntry:
    """A named token, or a principal that's locked out."""

    kind: Literal["token", "principal"] = "token"
    name: str
    """The principal in rules and records."""
    digest: str = field(default="", repr=False)
    """Of the token, in hexadecimal digits."""
    view: str = ""
    """The only view it opens, if any."""
    scopes: tuple[str, ...] = ()
    created_ms: int = 0
    changed_ms: int = 0
    """Grows with each change: the latest entry of a name is the one in force, on all nodes of a cluster."""
    expires_ms: int = 0
    """0: never."""
    revoked_ms: int = 0
    calls_per_day: int = 0
    tokens_per_day: int = 0
    rate: float = 0.0
    """Requests per second; 0: the gateway's limit."""

    @property
    def owner(self) -> str:
        """Name of its budget."""
        return f"{self.kind}:{self.name}"

    @property
    def budget(self) -> Budget:
        """Its limits per day."""
        return Budget(calls=self.calls_per_day, tokens=self.tokens_per_day)

    def find_state(self, now: int) -> str:
        """Return `active`, `revoked` or `expired`."""
        return "revoked" if self.revoked_ms else "expired" if 0 < self.expires_ms <= now else "active"

    def find_end(self, now: int) -> str:
        """Return why it isn't accepted; empty if it is."""
        state = self.find_state(now)
        if self.kind == "principal":
            return f"{self.name!r} is locked out of this gateway" if state == "revoked" else ""
        end = f"{'was revoked' if self.revoked_ms else 'expired'} at {iso_utc(self.revoked_ms or self.expires_ms)}"
        return "" if state == "active" else f"the token {self.name!r} {end}"

    def to_json(self) -> JsonObject:
        """Return it as a JSON object."""
        return {**asdict(self), "scopes": [*self.scopes]}

    @classmethod
    def parse(cls, value: JsonValue) -> TokenEntry:
        """Parse the value of `to_json`, or raise `ValueError`."""
        if not is_json_object(value) or value.get("kind") not in {"token", "principal"} or not value.get("name"):
            raise ValueError("not an entry of a token")
        scopes = value.get("scopes")
        return cls(**_read_fields(cls, value, scopes=tuple(map(str, scopes)) if isinstance(scopes, list) else ()))


@record(kw_only=True)
class TokenUse:
    """The use of an owner at the gateways of one machine."""

    owner: str
    node: str = ""
    """The machine's node of a cluster."""
    day: int = 0
    """Day of the counts since 1970 (UTC)."""
    calls: int = 0
    tokens: int = 0
    first_ms: int = 0
    last_ms: int = 0
    client: str = ""
    """Name of its last client."""
    address: str = ""

    @classmethod
    def parse(cls, value: JsonObject) -> TokenUse:
        """Parse the value of `to_json`, or raise `ValueError`."""
        return cls(**_read_fields(cls, value))

    def add(self, later: TokenUse) -> TokenUse:
        """Return this use and a later one of the same owner and machine together."""
        is_same_day = self.day == later.day
        return replace(
            later,
            calls=later.calls + self.calls * is_same_day,
            tokens=later.tokens + self.tokens * is_same_day,
            first_ms=self.first_ms or later.first_ms,
            last_ms=max(self.last_ms, later.last_ms),
            client=later.client or self.client,
            address=later.address or self.address,
        )

    def to_json(self) -> JsonObject:
        """Return it as a JSON object."""
        return asdict(self)


def _read_fields(cls: type[TokenEntry | TokenUse], value: Mapping[str, Any], **given: object) -> dict[str, Any]:
    """Read the fields of a record; `ValueError` if one has another type."""
    kinds: Mapping[str, Callable[[Any], object]] = {"int": int, "float": float}
    names = [one for one in fields(cls) if one.name in value and one.name not in given]
    return {**given, **{one.name: kinds.get(str(one.type), str)(value[one.name]) for one in names}}


def find_day() -> int:
    """Return the number of today since 1970 (UTC)."""
    return now_ms() // DAY_MS


def format_day_end(day: int) -> str:
    """Return when a day ends."""
    return iso_utc((day + 1) * DAY_MS)


def grant_calls(known: tuple[int, int], day: int, count: int, limit: int) -> tuple[int, int]:
    """Take up to `count` calls of a day from the budget whose day and taken calls are `known`, or give some back.

    Return how many calls are taken now, and how many were granted: none of a day that has ended for another node.
    """
    taken = 0 if known[0] < day else known[1]
    granted = 0 if known[0] > day else min(count, max(0, limit - taken)) if count > 0 else max(count, -taken)
    return taken + granted, granted


class TokenStore(LazyDatabase):
    """The file, created by the first write. A damaged one isn't replaced: the lock of a principal would be lost."""

    def __init__(self, path: str | None = None) -> None:
        super().__init__(path, FILE, _FORM, is_replaceable=False)
        self._identity: tuple[int, ...] = ()
        """Of the opened file."""

    def read_version(self) -> tuple[int, ...]:
        """Return numbers that change with every change of another process; none without a file."""
        with self._lock:
            try:
                identity = file_identity(self.path)
            except FileNotFoundError:
                identity = ()
            if identity != self._identity:  # removed, or replaced
                self.close()
                self._identity = identity
            return (*identity, read_pragma(self._open(), "data_version")) if identity else ()

    def list_entries(self) -> Sequence[TokenEntry]:
        """List all entries by name."""
        with self._lock:
            if not self.read_version():
                return ()
            rows = self._open().execute("SELECT facts FROM entries ORDER BY kind DESC, name").fetchall()
        return [TokenEntry.parse(json.loads(row[0])) for row in rows]

    def put(self, entry: TokenEntry) -> bool:
        """Store an entry, unless a later one of its name is there; return whether it was stored."""
        with self._lock, transaction(self._open()):
            cursor = self._open().execute(
                "INSERT INTO entries VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET changed_ms = excluded.changed_ms, "
                "facts = excluded.facts WHERE excluded.changed_ms > entries.changed_ms",
                (entry.kind, entry.name, entry.changed_ms, json.dumps(entry.to_json())),
            )
            return cursor.rowcount == 1

    # -- use --------------------------------------------------------------------------------

    def grant(self, owner: str, day: int, count: int, limit: int) -> int:
        """Take up to `count` calls of a budget for this process and return how many; a negative one gives them back."""
        with self._lock, transaction(self._open()):
            row = self._open().execute("SELECT day, calls FROM grants WHERE owner = ?", (owner,)).fetchone()
            taken, granted = grant_calls(row or (day, 0), day, count, limit)
            if granted:
                self._open().execute("INSERT OR REPLACE INTO grants VALUES (?, ?, ?)", (owner, day, taken))
            return granted

    def add_use(self, use: TokenUse) -> int:
        """Add to the use of an owner on this machine, and return its tokens of the day on all machines."""
        with self._lock, transaction(self._open()):
            known = self._find_uses(use.owner).get(use.node)
            use = use if known is None else known.add(use)
            self._put_use(use)
            self._open().execute("DELETE FROM uses WHERE day < ?", (use.day - _KEPT_DAYS,))
            return sum(one.tokens for one in self._find_uses(use.owner).values() if one.day == use.day)

    def put_use(self, use: TokenUse) -> None:
        """Store the use of an owner on another machine."""
        with self._lock:
            self._put_use(use)

    def _put_use(self, use: TokenUse) -> None:
        values = (use.owner, use.node, use.day, json.dumps(use.to_json()))
        self._open().execute("INSERT OR REPLACE INTO uses VALUES (?, ?, ?, ?)", values)

    def _find_uses(self, owner: str) -> Mapping[str, TokenUse]:
        rows = self._open().execute("SELECT facts FROM uses WHERE owner = ?", (owner,)).fetchall()
        return {use.node: use for use in (TokenUse(**json.loads(row[0])) for row in rows)}

    def list_uses(self) -> Sequence[TokenUse]:
        """List the use of all owners on all machines."""
        with self._lock:
            if not self.read_version():
                return ()
            return [TokenUse(**json.loads(row[0])) for row in self._open().execute("SELECT facts FROM uses")]
