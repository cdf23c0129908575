"""Persistent pins: the approved definitions of every tool.

A tool has a set of approved forms and may alternate among them. A server's first listing is approved as is. Later
additions and changes stay disabled until a user approves them. If only the order changed, the approved text stays in
use.

Pins belong to the server's identity (command, arguments, variable names, or address). Editing a row keeps its pins:
`follow_rows` copies them to the new identity. Opening the pins reads all forms, since the event loop compares them
with every tool of every listing. Until then, nothing is approved.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import cast
from urllib.parse import urlsplit

from anyio import to_thread

from indusagi.core.faults import Note
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.client.tools import model_name
from indusagi.interop.protocol_bridge.contract import ItemKind, RemoteTool, RemoteToolRef, ServerConfig
from induscode.deck.mcp.capability import definition_pin, read_definitions
from induscode.deck.mcp.drift import DisabledTool, Drift, DriftGrade, PinVerdict, canonical_digest, closest_drift
from induscode.deck.mcp.store import LedgerStore
from induscode.deck.mcp.store.events import Batch, Event, Row, build_subject, filter_texts
from induscode.deck.mcp.store.journal import LATE, LISTED, Journal, build_tool_filter
from induscode.servers.config.trust import server_identity

_ACTING_SCHEMES = frozenset({"ui", "skill"})
"""Resources with these schemes become apps or instructions."""
_MAX_PLAIN_URI_CHARS = 512
_PLAIN_URI = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%{}]+")
"""URI (RFC 3986) and template characters: no spaces, so no sentences."""


@record
class ApprovedForm:
    """One definition of a tool, from its first listing or approved since."""

    pin: str
    """Digest of the definition as the server sent it."""
    canonical: str | None
    """Digest of the canonical form. `None` in rows of older ledgers."""
    text: str | None
    """The definition, or `None` if withheld or damaged."""

    def matches(self, canonical: Callable[[], str]) -> bool:
        """Tell whether a definition with this canonical digest equals this form, ignoring order."""
        own = self.canonical
        if own is None:
            definition = self.definition
            own = None if definition is None else canonical_digest(definition)
        return own == canonical()

    @property
    def definition(self) -> JsonObject | None:
        """The definition, parsed from its text."""
        return _parse_definition(self.text)


class StorePins:
    """The approved forms of some servers' tools, filled by `load_pins`."""

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        """`None`: read-only, so first definitions don't get pinned."""
        self._forms: dict[tuple[str, JsonValue], dict[str, list[ApprovedForm]]] = {}
        """By server and kind, then by name."""
        self._listed: dict[str, set[JsonValue]] = {}
        """Kinds that servers with forms have listed before, even if empty."""
        self._listed_in_run: dict[str, set[ItemKind]] = {}
        """Kinds that servers have listed in this run."""
        self._filters: dict[str, JsonValue] = {}
        """The tool filter of each server's last listing."""
        self._held_first: set[RemoteToolRef] = set()
        """Items that the review held when they were first seen."""
        self._unread: set[str] = set()
        """Servers whose forms we couldn't read (yet): nothing of theirs gets approved or pinned."""
        self.growing: Collection[str] = ()
        """Servers whose rows approve additions (`"added": "allow"`)."""
        self.added: Counter[str] = Counter()
        """Number of forms of each server that this process has approved so far."""
        self.locked: Mapping[RemoteToolRef, JsonObject] = {}
        """The definitions of the project's lock file, which first definitions must match."""

    # -- from the store ---------------------------------------------------------------------

    def forget(self, servers: Iterable[str], *, unread: bool = False) -> None:
        """Drop the state of servers. With `unread`, nothing of theirs is approved until `learn`."""
        gone = {*servers}
        self._forms = {key: forms for key, forms in self._forms.items() if key[0] not in gone}
        for server in gone:
            for known in (self._listed, self._listed_in_run, self._filters):
                known.pop(server, None)
        self._held_first = {ref for ref in self._held_first if ref.server not in gone}
        self._unread = self._unread | gone if unread else self._unread - gone

    def load(self, servers: Iterable[str], approvals: Approvals) -> None:
        """Replace the state of servers with the store's."""
        names = {*servers}
        asked = {server: kinds for server, kinds in self._listed_in_run.items() if server in names}
        self.forget(names)
        self._listed_in_run |= asked
        for server, facts in approvals.pins:
            kind, tool, pin = facts.get("kind", "tool"), facts.get("tool"), facts.get("pin")
            if server not in names or not isinstance(tool, str) or not isinstance(pin, str):
                continue
            self._listed.setdefault(server, set()).add(kind)
            if tool != LISTED:
                canonical, address = facts.get("canonical"), facts.get("definition")
                text = approvals.documents.get(address) if isinstance(address, str) else None
                form = ApprovedForm(pin, canonical if isinstance(canonical, str) else None, text)
                self._forms.setdefault((server, kind), {}).setdefault(tool, []).append(form)
        for server, facts in approvals.listings:
            if server not in names:
                continue
            if "filter" in facts:
                self._filters[server] = facts["filter"]
            self._held_first |= {tool.ref for tool in _read_disabled(server, facts) if tool.cause == "review"}
            if server in self._listed:  # a server that never listed anything is still new
                self._listed[server].add(facts.get("kind", "tool"))

    # -- verdicts ---------------------------------------------------------------------------

    def is_first(self, server: str, kind: ItemKind) -> bool:
        """Tell whether the next listing of a kind would be approved as the first."""
        return self._journal is not None and kind not in self._listed.get(server, ())

    def _find_forms(self, ref: RemoteToolRef) -> Sequence[ApprovedForm]:
        return self._forms.get((ref.server, ref.kind), {}).get(ref.name, ())

    def find_approved(self, ref: RemoteToolRef) -> JsonObject | None:
        """Return the definition of an item that was approved last, or else the locked one."""
        forms = self._find_forms(ref)
        return forms[-1].definition if forms else self.locked.get(ref)

    def judge(self, ref: RemoteToolRef, raw: JsonObject, is_serious: Callable[[], bool] | None = None) -> PinVerdict:
        """Compare a definition with the approved forms, adding it if it's part of the first listing.

        A new definition that `is_serious` is held. Raises `NotJson` if it holds a value JSON can't represent.
        """
        if ref.server in self._unread:
            return PinVerdict()
        pin = definition_pin(raw)
        forms = self._find_forms(ref)
        if not forms:
            return self._judge_first(ref, pin, raw, is_serious)
        if any(form.pin == pin for form in forms):
            return PinVerdict(served=raw)
        canonical = cache(lambda: canonical_digest(raw))
        for form in reversed(forms):
            # A form without its text can't stand in for other bytes.
            if form.matches(canonical) and (definition := form.definition) is not None:
                return PinVerdict(served=definition)
        drift = closest_drift(ref, [known for form in forms if (known := form.definition) is not None], raw)
        return PinVerdict(drift, None if drift.disables else drift.before)

    def _judge_first(
        self, ref: RemoteToolRef, pin: str, raw: JsonObject, is_serious: Callable[[], bool] | None
    ) -> PinVerdict:
        """Judge an item without approved forms: by the lock file, whether its server is known, and the review."""
        locked = self.locked.get(ref)
        if locked is not None:
            is_same = definition_pin(locked) == pin or canonical_digest(locked) == canonical_digest(raw)
            drift = None if is_same else closest_drift(ref, [locked], raw)
            if drift is not None and drift.disables:
                return PinVerdict(drift)
            self._pin_first(ref, definition_pin(locked), locked)
            return PinVerdict(drift, locked)
        if any((other.server, other.kind) == (ref.server, ref.kind) for other in self.locked):
            return PinVerdict(Drift(ref, DriftGrade.ROUTING, None, raw, "added"))
        was_held = ref in self._held_first
        if self._is_addition(ref) and not was_held:
            plain = self._describe_plainly(ref)
            grade = DriftGrade.ROUTING if plain is None else DriftGrade.COSMETIC
            return PinVerdict(Drift(ref, grade, None, raw, "added"), plain)
        # Once held, it waits for the user even if the server makes it harmless.
        if is_serious is not None and (was_held or is_serious()):
            self._held_first.add(ref)
            self._listed.setdefault(ref.server, set())  # the rest of its kind isn't first any more
            return PinVerdict(Drift(ref, DriftGrade.ROUTING, None, raw, "review"))
        self._pin_first(ref, pin, raw)
        return PinVerdict(served=raw)

    def _is_addition(self, ref: RemoteToolRef) -> bool:
        # App content is read, not listed: its resource was the addition.
        if ref.kind == "content" or ref.server in self.growing:
            return False
        if ref.kind not in self._listed.get(ref.server, ()):
            return False
        former = self._filters.get(ref.server)
        # If the row's filter excluded the tool before, the user let it in; the server didn't add it.
        return ref.kind != "tool" or _lets_in(former, ref.name)

    def _describe_plainly(self, ref: RemoteToolRef) -> JsonObject | None:
        """Describe an added resource by its address alone, if the server had others in the same place.

        Servers list files, tables and notes as they come, and users expect to read them. The server's names and
        descriptions could carry instructions, so those wait for approval.
        """
        place = _find_place(ref.name)
        if ref.kind != "resource" or place is None or len(ref.name) > _MAX_PLAIN_URI_CHARS:
            return None
        known = (name for kind in ("resource", "template") for name in self._forms.get((ref.server, kind), ()))
        return {"uri": ref.name, "name": ref.name} if any(_find_place(name) == place for name in known) else None

    def finish_listing(self, server: str, kind: ItemKind) -> None:
        """End the first listing of a kind. Later items count as additions.

        A server that hasn't listed anything of any kind may still be starting, so it stays new.
        """
        if server in self._unread or self._journal is None:
            return
        if kind == "tool":
            self._filters[server] = self._journal.find_filter(server)
        asked = self._listed_in_run.setdefault(server, set())
        asked.add(kind)
        listed = self._listed.get(server)
        if listed is None:
            return
        for one in asked - listed:
            listed.add(one)
            if (server, one) not in self._forms:
                # A pin, so that the backup and the other nodes get it too.
                self._journal.record_pin(RemoteToolRef(server, LISTED, one), LISTED, {})

    def approve(self, ref: RemoteToolRef, raw: JsonObject) -> None:
        """Approve this definition in addition to the earlier ones."""
        self._add_form(ref, definition_pin(raw), raw)

    def _pin_first(self, ref: RemoteToolRef, pin: str, raw: JsonObject) -> None:
        if self._journal is not None:
            self._add_form(ref, pin, raw)

    def _add_form(self, ref: RemoteToolRef, pin: str, raw: JsonObject) -> None:
        forms = self._forms.setdefault((ref.server, ref.kind), {}).setdefault(ref.name, [])
        self._listed.setdefault(ref.server, set())
        canonical = canonical_digest(raw)
        if self._journal is not None:
            self._journal.record_pin(ref, pin, raw, canonical, further=bool(forms))
        forms.append(ApprovedForm(pin, canonical, compact_json(raw)))
        self.added[ref.server] += 1


def _find_place(uri: str) -> tuple[str, str] | None:
    """Return a URI's scheme and, for web addresses, host; `None` if it isn't plain."""
    if _PLAIN_URI.fullmatch(uri) is None:
        return None
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if not parts.scheme or parts.scheme in _ACTING_SCHEMES:
        return None
    return parts.scheme, parts.netloc if parts.scheme in {"http", "https"} else ""


def _lets_in(filtered: JsonValue, name: str) -> bool:
    """Tell whether a filter of `build_tool_filter` lets a tool in."""
    if not is_json_object(filtered):
        return True
    include = filtered.get("include")
    return name not in filter_texts(filtered.get("exclude")) and (include is None or name in filter_texts(include))


# -- reading ----------------------------------------------------------------------------------


@record
class Approvals:
    """Stored pins and last listings, each with its server."""

    pins: Sequence[tuple[str, JsonObject]]
    listings: Sequence[tuple[str, JsonObject]]
    documents: Mapping[str, str]


async def read_pins(
    store: LedgerStore, servers: Iterable[ServerConfig], places: Mapping[str, str] | None = None
) -> StorePins:
    """Read the approved forms of servers' tools, for comparison only.

    Raises `SilentStoreError` if the store doesn't answer.
    """
    pins = StorePins(None)
    identities = {config.id: {server_identity(config)} for config in servers}
    for server, row in await _read_places(store, places or {}):
        identities.get(server, set()).add(str(row.facts.get("identity")))
    pins.load(identities, await _read_approvals(store, identities))
    return pins


async def load_pins(pins: StorePins, store: LedgerStore, servers: Iterable[ServerConfig]) -> None:
    """Read the approved forms of these servers' tools into `pins`.

    Raises:
        SilentStoreError: The store doesn't answer. Until it does, nothing of these servers is approved.
    """
    identities = {config.id: {server_identity(config)} for config in servers}
    while identities:
        added = pins.added.copy()
        approvals = await _read_approvals(store, identities)
        settled = [server for server in identities if pins.added[server] == added[server]]
        pins.load(settled, approvals)
        for server in settled:
            del identities[server]  # the others approved one during the read, so the rows may lack it


async def _read_approvals(store: LedgerStore, identities: Mapping[str, Collection[str]]) -> Approvals:
    pins = _select_facts(await store.latest("pin"), identities)
    listings = _select_facts(await store.latest("list"), identities)
    addresses = [address for _, facts in pins if isinstance(address := facts.get("definition"), str)]
    return Approvals(pins, listings, await store.documents(addresses))


def _select_facts(rows: Iterable[Row], identities: Mapping[str, Collection[str]]) -> Sequence[tuple[str, JsonObject]]:
    return [(server, row.facts) for row in rows if (server := _find_server(row, identities)) is not None]


def build_identities(servers: Iterable[ServerConfig]) -> Mapping[str, str]:
    """Map the ids of servers to their identities."""
    return {config.id: server_identity(config) for config in servers}


async def follow_rows(journal: Journal, servers: Iterable[ServerConfig], places: Mapping[str, str]) -> None:
    """Copy the pins of rows edited since the last run to the new identities.

    A server is its name in its file: a new version, option or command under that name is checked against the earlier
    approvals. Raises `SilentStoreError` if the store doesn't answer.
    """
    store, identities = journal.store, {config.id: server_identity(config) for config in servers}
    known = {server: str(row.facts.get("identity")) for server, row in await _read_places(store, places)}
    moved = {server: {known[server]} for server in identities if known.get(server, "") not in {"", identities[server]}}
    if moved:
        own = await _read_approvals(store, {server: {identities[server]} for server in moved})
        former = await _read_approvals(store, moved)
        batch = _build_copies(journal, identities, own, former)
        store.append(lambda: batch)
    for server, identity in identities.items():
        if server in places and known.get(server) != identity:
            journal.record_place(server, places[server], identity)


def _build_copies(journal: Journal, identities: Mapping[str, str], own: Approvals, former: Approvals) -> Batch:
    """Build the rows that copy pins and listings of a server's former identity."""
    has_pins = {(server, facts.get("kind"), facts.get("tool")) for server, facts in own.pins}
    has_forms = {(server, facts.get("kind"), facts.get("tool"), facts.get("pin")) for server, facts in own.pins}
    has_lists = {(server, facts.get("kind")) for server, facts in own.listings}
    events: list[Event] = []
    for server, facts in former.pins:
        kind, tool, pin = facts.get("kind"), str(facts.get("tool")), str(facts.get("pin"))
        if (server, kind, tool, pin) not in has_forms:
            names = (identities[server], server, tool, *(() if kind is None else ("kind", str(kind))))
            subject = build_subject(*names, pin) if (server, kind, tool) in has_pins else build_subject(*names)
            has_pins.add((server, kind, tool))
            events.append(journal.make_event("pin", {**facts, "identity": identities[server]}, subject))
    for server, facts in former.listings:
        kind = facts.get("kind")
        if (server, kind) not in has_lists:
            names = (identities[server], server, *(() if kind is None else (str(kind),)))
            events.append(journal.make_event("list", {**facts, "identity": identities[server]}, build_subject(*names)))
    return Batch(events, former.documents)


async def forget_row(store: LedgerStore, begin: Callable[[], Journal], server: str, place: str) -> None:
    """End a row, so that a server added under its name later is a new one.

    Raises `SilentStoreError` if the store doesn't answer.
    """
    if await _read_places(store, {server: place}):
        begin().record_place(server, place, "")


async def _read_places(store: LedgerStore, places: Mapping[str, str]) -> list[tuple[str, Row]]:
    """Read the last identity of the rows at these places."""
    subjects = {build_subject(place): server for server, place in places.items()}
    rows = await store.latest("place") if subjects else ()
    return [(subjects[row.subject], row) for row in rows if row.subject in subjects]


async def read_pinned(
    store: LedgerStore, servers: Iterable[ServerConfig], kind: ItemKind = "tool"
) -> Mapping[str, Sequence[JsonObject]]:
    """Read the pinned definitions of each known server's last listing, in its order.

    Skips servers with a missing or damaged definition: an incomplete listing would look complete.
    """
    configs = {config.id: config for config in servers}
    identities = {config.id: {server_identity(config)} for config in configs.values()}
    listings = {
        server: filter_texts(row.facts.get("tools" if kind == "tool" else "items"))
        for server, row in await _read_listings(store, configs.values(), (kind,))
    }
    pins = {
        (server, str(row.facts.get("tool"))): str(row.facts.get("definition"))
        # Without listings, skip the pins: reading them all takes longer than the rest of a command.
        for row in (await store.latest("pin") if any(listings.values()) else ())
        if (server := _find_server(row, identities)) is not None and row.facts.get("kind", "tool") == kind
    }
    documents = await store.documents(pins.values())
    definitions: dict[str, Sequence[JsonObject]] = {}
    for server, tools in listings.items():
        parsed = [_parse_definition(documents.get(pins.get((server, tool), ""))) for tool in tools]
        # Most servers have only tools. An empty list of another kind is worth knowing without a start.
        if (tools or kind != "tool") and None not in parsed:
            definitions[server] = [definition for definition in parsed if definition is not None]
    return definitions


async def read_asked(store: LedgerStore, servers: Iterable[ServerConfig]) -> Mapping[str, JsonObject]:
    """Read the behaviours of servers that waited for approval the last time they ran.

    Raises `SilentStoreError` if the store doesn't answer.
    """
    rows = await _read_listings(store, servers, ("behaviour",))
    return {server: asked for server, row in rows if is_json_object(asked := row.facts.get("asked"))}


async def read_disabled_tools(
    store: LedgerStore, servers: Iterable[ServerConfig], *kinds: ItemKind
) -> Mapping[str, Sequence[DisabledTool]]:
    """Read the tools (or items of these kinds) that were disabled at each known server's last listing.

    Raises `SilentStoreError` if the store doesn't answer.
    """
    disabled: dict[str, list[DisabledTool]] = {}
    for server, row in await _read_listings(store, servers, kinds or ("tool",)):
        disabled.setdefault(server, []).extend(_read_disabled(server, row.facts))
    return {**disabled}


def _read_disabled(server: str, listing: JsonObject) -> Iterable[DisabledTool]:
    """Read the disabled tools of a listing."""
    grades = {str(grade): grade for grade in DriftGrade}
    rows, kind = listing.get("disabled"), str(listing.get("kind", "tool"))
    for facts in filter(is_json_object, rows if isinstance(rows, list) else ()):
        tool, name = facts.get("tool"), facts.get("name")
        if isinstance(tool, str):
            ref = RemoteToolRef(server, tool, cast("ItemKind", kind))
            shown = name if isinstance(name, str) else model_name(ref)
            grade = grades.get(str(facts.get("grade")), DriftGrade.BREAKING)
            cause = "added" if "added" in facts else "review" if "review" in facts else "changed"
            fields, checks = (tuple(filter_texts(facts.get(key))) for key in ("fields", "checks"))
            yield DisabledTool(ref, shown, grade, fields, cause=cause, checks=checks)


async def _read_listings(
    store: LedgerStore, servers: Iterable[ServerConfig], kinds: Sequence[ItemKind]
) -> list[tuple[str, Row]]:
    """Read each server's last listings, if made with its current configuration and filter."""
    configs = {config.id: config for config in servers}
    identities = {config.id: {server_identity(config)} for config in configs.values()}
    rows = [(row, server) for row in await store.latest("list") if (server := _find_server(row, identities))]
    return [
        (server, row)
        for row, server in rows
        for kind in kinds
        if row.facts.get("kind", "tool") == kind
        and (kind != "tool" or row.facts.get("filter") == build_tool_filter(configs[server]))
    ]


def _find_server(row: Row, identities: Mapping[str, Collection[str]]) -> str | None:
    server = row.facts.get("server")
    return server if isinstance(server, str) and row.facts.get("identity") in identities.get(server, ()) else None


def _parse_definition(text: str | None) -> JsonObject | None:
    try:
        definition: JsonValue = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return definition if is_json_object(definition) else None


# -- from earlier runs ------------------------------------------------------------------------


async def read_known_tools(
    store: LedgerStore, servers: Iterable[ServerConfig], kind: ItemKind = "tool"
) -> tuple[Mapping[str, Sequence[RemoteTool]], Sequence[Note]]:
    """Read the tools (or other items) of known servers, in the form a listing returns them."""
    configs = {config.id: config for config in servers}
    known: dict[str, Sequence[RemoteTool]] = {}
    notes: list[Note] = []
    for server, rows in (await read_pinned(store, configs.values(), kind)).items():
        # In a thread: preparing hundreds of schemas for a model takes a while.
        known[server], remarks = await to_thread.run_sync(read_definitions, kind, rows, configs[server])
        notes.extend(remarks)
    return known, notes


async def find_started_before(store: LedgerStore, servers: Iterable[ServerConfig]) -> Sequence[ServerConfig]:
    """Find the servers that came up with their current configuration and haven't timed out since.

    A server that timed out on start may have to download its program again, so it doesn't count.
    """
    up = await _find_last_up(store)
    faults = await store.latest("fault")
    late = {row.facts.get("identity"): row.position for row in faults if row.facts.get("subject") == "timeout"}
    return [config for config in servers if (key := server_identity(config)) in up and up[key] > late.get(key, 0)]


async def find_down_before(store: LedgerStore, servers: Iterable[ServerConfig]) -> Sequence[str]:
    """Find the servers that failed to start, or were too late, and haven't come up since.

    An interrupted start doesn't count: a client may kill a first gateway right away and continue with a second one.
    """
    up = await _find_last_up(store)
    late = [row for row in await store.latest("connect") if row.facts.get("subject") == LATE]
    down: dict[object, int] = {}
    for row in (*late, *await store.latest("fault")):
        identity = row.facts.get("identity")
        down[identity] = max(row.position, down.get(identity, 0))
    identities = {config.id: server_identity(config) for config in servers}
    return [server for server, key in identities.items() if down.get(key, 0) > up.get(key, 0)]


async def _find_last_up(store: LedgerStore) -> Mapping[object, int]:
    """Find the ledger position where each server was last up."""
    up: dict[object, int] = {}
    for op in ("list", "ready"):
        for row in await store.latest(op):
            identity = row.facts.get("identity")
            up[identity] = max(row.position, up.get(identity, 0))
    return up
