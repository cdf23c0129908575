"""Sign-ins of a gateway's users, shared by the nodes of a cluster: a user signs in once.

Each is an entry of the shared table, so it's sealed with the cluster's key wherever it leaves a node. A refresh holds a
lock in the table, because an issuer that rotates refresh tokens takes a second refresh for theft.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from indusagi.core.ids import new_ulid
from indusagi.core.time import now_ms
from indusagi.interop.auth.contract import AuthFault, CredentialKey, StoredCredentials, parse_credentials
from induscode.cluster.contract import ClusterFault

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from indusagi.core.json import JsonObject
    from induscode.cluster.shared.table import SharedTable

T = TypeVar("T")
SIGN_IN, LOCK = "sign-in", "sign-in-lock"
"""Kinds of entries: a sign-in, and the node that refreshes it."""
_LOCK_MS: Final = 60_000
"""How long a node may hold a lock: longer than a refresh takes. Their clocks may differ by less than that."""
_WAIT_S: Final = 90.0
_PAUSE_S: Final = 0.1


class SharedCredentials:
    """The `CredentialStore` of one user at all nodes."""

    def __init__(self, table: SharedTable, user: str, registrations: dict[CredentialKey, StoredCredentials]) -> None:
        self._table, self.user = table, user
        self._registrations = registrations

    async def load(self, resource: str, client: str = "") -> StoredCredentials | None:
        """Return the server's most recently saved sign-in, with any issuer."""
        found = [one for one in self._read() if (one[1].resource, one[1].client) == (resource, client)]
        return parse_credentials(max(found, key=lambda one: one[2])[3]) if found else None

    async def find(self, key: CredentialKey) -> StoredCredentials | None:
        """Return the sign-in with exactly this key, or our registration at its issuer, which all users share."""
        found = next((parse_credentials(value) for _, known, _, value in self._read() if known == key), None)
        return found or self._registrations.get(key)

    async def save(self, credentials: StoredCredentials) -> None:
        """Store a sign-in; a registration alone is only remembered."""
        self._registrations[credentials.key] = credentials.drop_tokens()
        if credentials.tokens is None:
            return
        value: JsonObject = {"user": self.user, "saved_ms": now_ms(), "credentials": credentials.to_json()}
        await _reach(self._table.put(self._name(SIGN_IN, credentials.key), value))

    async def delete(self, key: CredentialKey) -> None:
        """Remove a sign-in, if it exists."""
        await _reach(self._table.put(self._name(SIGN_IN, key), None))

    async def list_credentials(self) -> Sequence[StoredCredentials]:
        """List every sign-in."""
        return [one for row in self._read() if (one := parse_credentials(row[3])) is not None]

    @asynccontextmanager
    async def lock(self, key: CredentialKey) -> AsyncGenerator[None]:
        """Keep other tasks and nodes from refreshing this sign-in."""
        place, mark = self._name(LOCK, key), new_ulid()

        def take(value: JsonObject | None) -> JsonObject | None:
            return value if _is_held(value) else {"by": mark, "until": now_ms() + _LOCK_MS}

        try:
            async with asyncio.timeout(_WAIT_S):
                while self._table.list(LOCK).get(place, {}).get("by") != mark:
                    if _is_held(self._table.list(LOCK).get(place)):
                        await asyncio.sleep(_PAUSE_S)
                        await _reach(self._table.load())
                    else:
                        await _reach(self._table.update(place, take))
                await _reach(self._table.load())  # what the last holder has saved
        except TimeoutError as exc:
            message = f"the sign-in of {key.resource} is being refreshed by another node: try again later"
            raise AuthFault(message, is_transient=True) from exc
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True), suppress(AuthFault):  # it ends by itself
                await _reach(self._table.update(place, lambda value: None if _is_by(value, mark) else value))

    def _read(self) -> Sequence[tuple[str, CredentialKey, int, JsonObject]]:
        return read_sign_ins(self._table, self.user)

    def _name(self, kind: str, key: CredentialKey) -> str:
        return self._table.build_key(kind, self.user, key.issuer, key.resource, key.client)


def read_sign_ins(table: SharedTable, user: str | None = None) -> Sequence[tuple[str, CredentialKey, int, JsonObject]]:
    """Read the users, keys, times and credentials of the sign-ins of one user, or of all."""
    rows: list[tuple[str, CredentialKey, int, JsonObject]] = []
    for value in table.list(SIGN_IN).values():
        owner, saved_ms, document = value.get("user"), value.get("saved_ms"), value.get("credentials")
        if (
            isinstance(owner, str)
            and isinstance(saved_ms, int)
            and isinstance(document, dict)
            and user in {None, owner}
        ):
            parts = (str(document.get(name, "")) for name in ("issuer", "resource", "client"))
            rows.append((owner, CredentialKey(*parts), saved_ms, document))
    return rows


def _is_held(value: Mapping[str, object] | None) -> bool:
    until = None if value is None else value.get("until")
    return isinstance(until, int) and until > now_ms()


def _is_by(value: Mapping[str, object] | None, mark: str) -> bool:
    return value is not None and value.get("by") == mark


async def _reach(work: Awaitable[T]) -> T:
    try:
        return await work
    except ClusterFault as fault:
        raise AuthFault(f"the sign-ins shared by the nodes cannot be reached: {fault}", is_transient=True) from fault
