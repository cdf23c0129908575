"""The named tokens of a running gateway: who presents one, when its access ends, and its budget.

Entries come from the file of tokens, which this follows, so a revoked token loses its access within a moment. Calls of
a budget are taken from the file in small parts, each in one transaction: gateways that share it never exceed it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import anyio
from anyio import to_thread

from indusagi.core.json import BYTES_PER_TOKEN, JsonObject, JsonValue, compact_json
from indusagi.core.tasks import Listeners
from indusagi.core.text import format_count
from indusagi.core.time import now_ms
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity, current_identity
from indusagi.runtime.calls import CallingClient, current_completion
from indusagi.runtime.contract import ToolCall, ToolOutcome, ToolResult
from induscode.calls.record import estimate_size, measure_result
from induscode.cli.terminal import print_status
from induscode.gateway.tokens import (
    Budget,
    TokenEntry,
    TokenStore,
    TokenUse,
    find_day,
    format_day_end,
    hash_token,
    is_token,
)

_log = logging.getLogger(__name__)

POLL_S: Final = 0.25
"""How often changes of other processes are read, and uses written."""
_PARTS: Final = 100
"""A process takes a budget's calls in parts of this fraction, since one at a time would cost a transaction each."""

Grant: TypeAlias = Callable[[str, int, int, int], Awaitable[int]]
"""Takes calls of a budget (owner, day, count, limit), and returns how many. A negative count gives some back."""


@dataclass(slots=True)
class _Spending:
    """The use of an owner here today, since it was last written."""

    use: TokenUse
    granted: int = 0
    """Calls that may still run."""
    tokens: int | None = None
    """Its tokens of today on all machines, as last read."""
    refusal: str = ""
    """Why further calls of the day are refused."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)


class TokenBook:
    """Named tokens, locked-out principals, and budgets; a `NamedTokens`."""

    def __init__(
        self, store: TokenStore | None = None, default: Budget | None = None, node: str = "", grant: Grant | None = None
    ) -> None:
        """Open the book of a gateway. A cluster has the name of this `node`, and a `grant` that all nodes share."""
        self.takes_tokens = True
        """False: only principals are locked out."""
        self.has_users = False
        """With access tokens, each user has its own sign-ins to servers: a named token gets nobody else's."""
        self.store = store or TokenStore()
        self.on_ended: Listeners[[]] = Listeners()
        self.on_changed: Listeners[[]] = Listeners()
        """Called after entries, or uses, were read or written."""
        self.write_event: Callable[[JsonObject], None] = lambda facts: None
        """Writes to the ledger."""
        self.report: Callable[[ClientIdentity], None] = lambda identity: None
        """Called with a token's identity on its first request here."""
        self._grant = grant or self._take_part
        self._default, self._node = default or Budget(), node
        self._version: tuple[int, ...] | None = None
        self._problem = ""
        self._entries: Mapping[tuple[str, str], TokenEntry] = {}
        self._by_digest: Mapping[bytes, TokenEntry] = {}
        self._accepted: frozenset[str] = frozenset()
        """Digests of accepted tokens."""
        self._barred: frozenset[str] = frozenset()
        """Principals that access tokens can't have: locked out, or the name of a token."""
        self._reported: set[bytes] = set()
        self._refused: set[str] = set()
        self._spending: dict[tuple[str, int], _Spending] = {}
        """By owner and day."""

    # -- access -----------------------------------------------------------------------------

    def find(self, token: str, peer: str) -> ClientIdentity | str | None:
        """Return the identity of a token's client, or why it's refused; None if it isn't a named token."""
        if not self.takes_tokens or not is_token(token):
            return None
        digest = hash_token(token)
        entry = self._by_digest.get(digest)
        if entry is None:
            return "the token is not valid: there is none like it, or a later one has replaced it"
        if reason := entry.find_end(now_ms()):
            if entry.digest not in self._refused:  # once, however often a client tries
                self._refused.add(entry.digest)
                self._write(entry.name, "refused", f"{reason}; from {peer}")
            return reason
        identity = ClientIdentity(
            owner=digest,
            principal=entry.name,
            user=compact_json(["token", entry.name, entry.created_ms]) if self.has_users else "",
            scopes=frozenset(entry.scopes),
            credential="token",
            view=entry.view,
            rate=entry.rate,
        )
        self._note_use(entry.owner, address=peer)
        if digest not in self._reported:
            self._reported.add(digest)
            self.report(identity)
        return identity

    def find_end(self, identity: ClientIdentity) -> str:
        """Return why a client's access has ended; empty while it may go on."""
        if identity.credential == "token":
            entry = self._by_digest.get(identity.owner[:32])
            return "the token is not valid any more" if entry is None else entry.find_end(now_ms())
        if identity.credential != "principal":
            return ""
        name, now = identity.principal, now_ms()
        lock, token = self._entries.get(("principal", name)), self._entries.get(("token", name))
        if lock is not None and (reason := lock.find_end(now)):
            return reason
        # Rules couldn't tell them apart.
        return "" if token is None or token.find_end(now) else f"{name!r} is the name of a token of this gateway"

    def note_client(self, identity: ClientIdentity, client: CallingClient) -> None:
        """Note the name of a token's client."""
        if identity.credential == "token" and client.name:
            self._note_use(_name_owner(identity), client=f"{client.name} {client.version}".strip())

    def _write(self, name: str, event: str, detail: str) -> None:
        self.write_event({"name": name, "subject": event, "detail": detail})

    # -- entries ----------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the tokens; raises `OSError` or `ValueError` if that fails."""
        try:
            version = await to_thread.run_sync(self.store.read_version)
            entries = await to_thread.run_sync(self.store.list_entries)
        except sqlite3.Error as exc:
            message = f"the tokens in {self.store.path!r} cannot be read: {exc}"
            raise ValueError(f"{message} (without the file there are no tokens and no locks)") from exc
        self._version = version
        self._entries = {(entry.kind, entry.name): entry for entry in entries}
        self._by_digest = {bytes.fromhex(entry.digest): entry for entry in entries if entry.digest}
        for spending in self._spending.values():
            spending.refusal = ""  # the budget may have changed
        self._check_ends()
        self.on_changed()

    def _check_ends(self) -> None:
        """Announce it if a token isn't accepted any more, or a principal is barred now."""
        now, before = now_ms(), (self._accepted, self._barred)
        active = [entry for entry in self._entries.values() if not entry.find_end(now)]
        self._accepted = frozenset(entry.digest for entry in active if entry.digest)
        self._barred = frozenset(
            entry.name for entry in self._entries.values() if (entry in active) == (entry.kind == "token")
        )
        if before[0] - self._accepted or self._barred - before[1]:
            self.on_ended()

    async def watch(self) -> None:
        """Follow changes of the entries, and write uses, until cancelled."""
        try:
            while True:
                await anyio.sleep(POLL_S)
                await self.poll()
        finally:
            with anyio.CancelScope(shield=True):
                await self._write_uses(gives_back=True)
                await to_thread.run_sync(self.store.close)

    async def poll(self) -> None:
        """Read changes, and write uses, once."""
        try:
            if await to_thread.run_sync(self.store.read_version) != self._version:
                await self.load()
            else:
                self._check_ends()
            self._problem = ""
        except (OSError, ValueError, sqlite3.Error) as exc:
            if str(exc) != self._problem:
                self._problem = str(exc)
                print_status(f"the tokens can't be read, so a revoked one isn't noticed: {exc}")
        await self._write_uses()

    # -- budgets ----------------------------------------------------------------------------

    async def take(self) -> str:
        """Take a call of the current client's budget. Return why there's none left, or an empty text."""
        identity = current_identity.get()
        owner, budget = _name_owner(identity), self._find_budget(identity)
        if budget is None:
            return ""
        spending = self._find_spending(owner)
        async with spending.lock:
            try:
                reason = spending.refusal or await self._take(owner, spending, budget)
            except (OSError, sqlite3.Error) as exc:
                return f"The budget of {identity.principal!r} can't be read, so the call wasn't made: {exc}"
        if reason and not spending.refusal:
            spending.refusal = reason
            self._write(identity.principal, "budget", reason)
        if not reason:
            return ""
        until = format_day_end(spending.use.day)
        return f"The budget of the {identity.credential} {identity.principal!r} is used up: {reason}, until {until}."

    async def _take(self, owner: str, spending: _Spending, budget: Budget) -> str:
        if spending.tokens is None:
            await self._write_use(spending)
        assert spending.tokens is not None
        if 0 < budget.tokens <= spending.tokens + spending.use.tokens:
            return f"{format_count(budget.tokens, 'token')} per day"
        if budget.calls and not spending.granted:
            part = max(1, budget.calls // _PARTS)
            spending.granted += await self._grant(owner, spending.use.day, part, budget.calls)
        if budget.calls and not spending.granted:
            return f"{format_count(budget.calls, 'call')} per day"
        spending.granted -= bool(budget.calls)
        return ""

    async def run(self, call: ToolCall, run: Callable[[], Awaitable[ToolOutcome]]) -> ToolOutcome:
        """Run a call within the budget of the current client; one that becomes a task counts when it has ended."""
        if refusal := await self.take():
            return ToolOutcome(call.id, ToolResult.error(refusal, code="budget"))
        identity, outcome, completion = current_identity.get(), await run(), current_completion.get()

        def count(ended: ToolOutcome, _: float | None = None) -> None:
            self._count(identity, call.input, measure_result(ended.result)[1])

        if completion is not None and completion.is_deferred:
            completion.listen(count)
        else:
            count(outcome)
        return outcome

    def count_content(self, params: JsonObject, result: JsonObject) -> None:
        """Count a resource or prompt that the current client received."""
        self._count(current_identity.get(), params, estimate_size(result)[0])

    def _count(self, identity: ClientIdentity, arguments: JsonValue, text_bytes: int) -> None:
        """Count a call, with tokens as in call records."""
        if self._find_budget(identity) is None and identity.credential != "token":
            return
        owner = _name_owner(identity)
        use, size = self._find_spending(owner).use, estimate_size(arguments)[0] + text_bytes
        self._note_use(owner, calls=use.calls + 1, tokens=use.tokens - (-size // BYTES_PER_TOKEN))

    def _find_budget(self, identity: ClientIdentity) -> Budget | None:
        """Return the limits of a client; None if it has none."""
        entry = self._entries.get(("token", identity.principal)) if identity.credential == "token" else None
        budget = self._default if identity.credential == "principal" else Budget() if entry is None else entry.budget
        return budget if budget.calls or budget.tokens else None

    def _find_spending(self, owner: str) -> _Spending:
        day = find_day()
        known = self._spending.get((owner, day))
        if known is None:
            known = self._spending[owner, day] = _Spending(TokenUse(owner=owner, node=self._node, day=day))
        return known

    def _note_use(self, owner: str, **changes: str | int) -> None:
        spending, now = self._find_spending(owner), now_ms()
        spending.use = replace(spending.use, first_ms=spending.use.first_ms or now, last_ms=now, **changes)

    async def _take_part(self, owner: str, day: int, count: int, limit: int) -> int:
        return await to_thread.run_sync(self.store.grant, owner, day, count, limit)

    async def _write_use(self, spending: _Spending) -> None:
        written = spending.use
        spending.use = TokenUse(owner=written.owner, node=written.node, day=written.day)
        try:
            with anyio.CancelScope(shield=True):
                spending.tokens = await to_thread.run_sync(self.store.add_use, written)
        except (OSError, sqlite3.Error):
            spending.use = written.add(spending.use)  # later
            raise

    async def _write_uses(self, *, gives_back: bool = False) -> None:
        """Write all uses since the last time, and at the end give back calls that weren't made."""
        today, has_changed = find_day(), False
        try:
            for (owner, day), spending in [*self._spending.items()]:
                async with spending.lock:
                    if spending.use.last_ms:
                        await self._write_use(spending)
                        has_changed = True
                    if gives_back and spending.granted:
                        await self._grant(owner, day, -spending.granted, 0)
                        spending.granted = 0
                if day < today:
                    del self._spending[owner, day]
        except (OSError, sqlite3.Error) as exc:
            _log.debug("the uses of tokens cannot be written: %s", exc)
        if has_changed:
            self.on_changed()


def _name_owner(identity: ClientIdentity) -> str:
    return f"{identity.credential}:{identity.principal}"
