"""The journal: what the deck was at any moment, byte for byte, and no secret in it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.deck.mcp.test_ledger import STEPS, grown
from tests.support.deck import AT, capability, ledger_of, request
from tests.support.stores import forge, query_file, run_sql, store_file, stored
from tests.support.strategies import examples

from indusagi.core.json import NotJson
from indusagi.interop.protocol_bridge.contract import RemoteTool, StdioServerConfig, StreamableHttpServerConfig
from indusagi.interop.protocol_bridge.redaction import Redaction
from indusagi.runtime.contract import ToolDescriptor
from induscode.deck.mcp.capability import BridgeCapability
from induscode.deck.mcp.ledger import BridgeLedger
from induscode.deck.mcp.store import memory_store
from induscode.deck.mcp.store.events import content_address, descriptor_text, join_json_array, parse_descriptor
from induscode.deck.mcp.store.history import deck_at, read_ledger_log
from induscode.deck.mcp.store.journal import Journal
from induscode.servers.config.trust import server_identity

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from indusagi.core.json import JsonObject

pytestmark = pytest.mark.anyio

READ = ToolDescriptor(
    "read",
    "Read a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}},
    title="Read",
    annotations={"readOnlyHint": True},
    output_schema={"type": "object"},
)
TOKEN = "tok-0123456789abcdef"
STDIO = StdioServerConfig("a", "server", ["--flag"], {"API_TOKEN": TOKEN, "MODE": "fast", "N": "1"})


def shown(ledger: BridgeLedger) -> list[ToolDescriptor]:
    return [READ, *(one.descriptor for one in ledger.live_capabilities())]


class Moments:
    """A clock that goes on by a second whenever it is asked."""

    def __init__(self) -> None:
        self.second = 0

    def __call__(self) -> str:
        self.second += 1
        return f"2026-11-15T12:00:{self.second:02d}.000Z"


# -- replay -----------------------------------------------------------------------------------


@examples(0.6)
@given(STEPS, st.integers(1, 4))
def test_a_ledger_read_from_the_store_equals_the_written_one(steps: list[tuple[str, str, str, int]], size: int) -> None:
    ledger = grown(steps)

    async def written_and_read() -> None:
        store = await memory_store()
        try:
            journal = Journal(store)
            log = ledger.log
            for at in range(0, len(log), size):
                journal.record_entries(log[at : at + size])
            entries, notes = await read_ledger_log(store, journal.run)
            assert (BridgeLedger.from_log(entries), notes) == (ledger, ())
            assert BridgeLedger.from_log(entries).snapshot == ledger.snapshot
            assert await store.verify() == ()
        finally:
            await store.aclose()

    anyio.run(written_and_read)


async def test_events_of_one_tool_share_its_definition(tmp_path: Path) -> None:
    """A copy for each of 100,000 events would take half a minute to make."""
    ledger = ledger_of(("a", "x"))
    for _ in range(2):
        ledger = ledger.withdraw_server("a", AT).enroll(request("a", "x"), AT)
    async with stored(tmp_path) as store:
        journal = Journal(store)
        journal.record_entries(ledger.log)
        entries, _ = await read_ledger_log(store, journal.run)
    cards = [entry.capability for entry in entries if entry.capability is not None]
    assert len(cards) == 3
    assert len({id(card.raw) for card in cards}) == 1
    assert len({id(card.parameters) for card in cards}) == 1


async def test_the_deck_of_every_turn_can_be_shown_again_byte_for_byte(tmp_path: Path) -> None:
    first = ledger_of(("a", "x"), ("b", "y"))
    second = first.enroll(request("a", "x", version=2), AT).withdraw_server("b", AT)
    decks: list[Sequence[ToolDescriptor]] = [[], shown(first), shown(first), shown(second)]
    async with stored(tmp_path) as store:
        journal = Journal(store)
        digests = [journal.record_turn(decks[0])]
        journal.record_entries(first.log)
        digests += [journal.record_turn(decks[1]), journal.record_turn(decks[2])]
        journal.record_entries(second.since(first.next_seq))
        digests.append(journal.record_turn(decks[3]))
        assert await store.flush()
        run = journal.run
    async with stored(tmp_path) as store:
        for turn, (deck, digest) in enumerate(zip(decks, digests, strict=True), start=1):
            record = await deck_at(store, run, turn=turn)
            assert record is not None
            assert (record.turn, record.text, record.notes) == (turn, join_json_array(map(descriptor_text, deck)), ())
            assert (
                record.digest
                == digest
                == content_address(join_json_array(map(descriptor_text, deck)))
                == content_address(record.text or "")
            )
            assert list(record.descriptors) == list(deck)
        last = await deck_at(store, run)
        assert last is not None
        assert last.capabilities == second.live_capabilities()
        assert [one.runner for one in last.capabilities] == [None]
        earlier = await deck_at(store, run, turn=3)
        assert earlier is not None
        assert earlier.capabilities == first.live_capabilities()
        assert await deck_at(store, run, turn=9) is None
        assert await deck_at(store, "unknown") is None
        assert await store.verify() == ()


async def test_the_deck_of_a_moment_contains_earlier_events_only(tmp_path: Path) -> None:
    now = Moments()
    async with stored(tmp_path) as store:
        journal = Journal(store, now=now)
        ledger = BridgeLedger.empty().enroll(request("a", "x"), now())
        journal.record_entries(ledger.log)
        journal.record_turn(shown(ledger))
        later = ledger.enroll(request("a", "y"), now())
        journal.record_entries(later.since(ledger.next_seq))
        assert await deck_at(store, journal.run, at="2026-11-15T11:00:00.000Z") is None
        names: list[tuple[int, list[str]]] = []
        for second in range(1, 5):
            record = await deck_at(store, journal.run, at=f"2026-11-15T12:00:{second:02d}.000Z")
            assert record is not None
            names.append((record.turn, [one.name for one in record.capabilities]))
        assert names == [(0, []), (0, ["a__x"]), (1, ["a__x"]), (1, ["a__x", "a__y"])]


async def test_an_unchanged_deck_costs_one_row_per_turn(tmp_path: Path) -> None:
    deck = shown(ledger_of(*(("a", f"t{number}") for number in range(50))))
    async with stored(tmp_path) as store:
        journal = Journal(store)
        for _ in range(20):
            journal.record_turn(deck)
        await store.flush()
    path = store_file(tmp_path)
    assert query_file(path, "SELECT count(*) FROM events WHERE op = 'turn'") == [(20,)]
    # Each descriptor, and the list of them.
    assert query_file(path, "SELECT count(*) FROM documents") == [(52,)]
    assert query_file(path, "SELECT max(length(facts)) < 300 FROM events") == [(1,)]


async def test_server_events_are_recorded_between_ledger_events(tmp_path: Path) -> None:
    async with stored(tmp_path) as store:
        journal = Journal(store, [STDIO])
        journal.record_event("connect", "a", "", "")
        journal.record_entries(ledger_of(("a", "x")).log)
        journal.record_event("fault", "a", "transport", "gone")
        rows = await store.rows(journal.run)
        assert [(row.op, row.facts.get("server")) for row in rows] == [
            ("run", None), ("connect", "a"), ("enroll", "a"), ("fault", "a"),
        ]  # fmt: skip
        identity = server_identity(STDIO)
        assert rows[-1].facts == {"server": "a", "subject": "transport", "detail": "gone", "identity": identity}
        assert rows[0].facts == {"servers": ["a"]}


async def test_a_listing_is_written_down_when_it_is_another(tmp_path: Path) -> None:
    one, two = (RemoteTool(capability("a", tool).ref, READ) for tool in "xy")
    async with stored(tmp_path) as store:
        journal = Journal(store, [STDIO])
        journal.set_known_listings({"a": ["x"]})
        for tools in ([one], [one, two], [one, two]):
            journal.record_listing("a", tools, ())
        journal.record_listing("unknown", [one], ())
        rows = [row for row in await store.rows(journal.run) if row.op == "list"]
        assert [row.facts["tools"] for row in rows] == [["x", "y"]]


async def test_a_descriptor_that_json_cannot_carry_is_refused_and_recorded(tmp_path: Path) -> None:
    plain = capability("a", "x")
    raw: JsonObject = {"name": "x", "n": float("inf")}
    odd = BridgeCapability.from_definition(plain.descriptor, plain.ref, raw)
    ledger = ledger_of(("a", "y"))
    entry = replace(ledger.log[0], capability=odd)
    async with stored(tmp_path) as store:
        journal = Journal(store)
        with pytest.raises(NotJson):
            journal.record_turn([ToolDescriptor("t", "", {"n": float("nan")})])
        assert journal.turns == 0
        journal.record_entries([entry])
        rows = await store.rows(journal.run)
        assert "inf" in str(rows[-1].facts["unwritable"])
        entries, notes = await read_ledger_log(store, journal.run)
        assert (entries, len(notes)) == ((), 1)


@pytest.mark.parametrize("text", ["[]", "{}", "1", "{", '{"name": 1}'])
def test_a_text_that_describes_no_tool_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_descriptor(text)


def test_a_descriptor_survives_its_text() -> None:
    assert parse_descriptor(descriptor_text(READ)) == READ
    bare = ToolDescriptor("t", "", {})
    assert parse_descriptor(descriptor_text(bare)) == bare


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM documents WHERE text LIKE '%Read a file%'",
        "UPDATE documents SET text = replace(text, 'Read a file', 'Delete it')",
        "DELETE FROM documents WHERE text LIKE '[%'",
    ],
)
async def test_an_incomplete_deck_is_reported_instead_of_shown(tmp_path: Path, statement: str) -> None:
    async with stored(tmp_path) as store:
        journal = Journal(store)
        journal.record_turn([READ, capability("a", "x").descriptor])
        await store.flush()
        run_sql(store_file(tmp_path), statement)
        record = await deck_at(store, journal.run, turn=1)
        assert record is not None
        assert (record.text, record.descriptors, len(record.notes)) == (None, (), 1)


@pytest.mark.parametrize(
    "damage",
    [
        "replace(facts, '\"key\"', '\"kex\"')",
        'replace(facts, \'"server":"a"\', \'"server":1\')',
        'replace(facts, \'"definition":"\', \'"definition":"0\')',
    ],
)
async def test_an_event_that_cannot_be_read_is_noted_and_the_others_stand(tmp_path: Path, damage: str) -> None:
    async with stored(tmp_path) as store:
        journal = Journal(store)
        journal.record_entries(ledger_of(("a", "x"), ("a", "y")).log)
        await store.flush()
        forge(store_file(tmp_path), f"UPDATE events SET facts = {damage} WHERE position = 2")
        entries, notes = await read_ledger_log(store, journal.run)
        assert [entry.seq for entry in entries] == [2]
        assert [note.owner for note in notes] == [f"row 2 of the run {journal.run}"]


@pytest.mark.parametrize("text", ["[1]", "[" * 50_000])
async def test_an_invalid_definition_is_noted(tmp_path: Path, text: str) -> None:
    async with stored(tmp_path) as store:
        journal = Journal(store)
        journal.record_entries(ledger_of(("a", "x")).log)
        await store.flush()
        path, address = store_file(tmp_path), content_address(text)
        forge(
            path,
            f"INSERT INTO documents VALUES ('{address}', '{text}')",
            f"UPDATE events SET facts = json_set(facts, '$.definition', '{address}') WHERE op = 'enroll'",
        )
        entries, notes = await read_ledger_log(store, journal.run)
        assert (entries, len(notes)) == ((), 1)


# -- secrets ----------------------------------------------------------------------------------

HTTP = StreamableHttpServerConfig(
    "h",
    "https://ann:pa%24sword@example.org/mcp?key=querysecret&mode=read",
    {"Authorization": "Bearer headersecret", "X-Trace": "on"},
    proxy="http://me:proxysecret@proxy.test:8080",
)
SECRETS = [TOKEN, "fast", "headersecret", "querysecret", "pa%24sword", "pa$sword", "proxysecret"]


async def test_no_value_of_a_configuration_is_ever_in_the_file(tmp_path: Path) -> None:
    said = "cannot reach https://ann:pa%24sword@example.org/mcp?key=querysecret#x: " + " ".join(SECRETS)
    async with stored(tmp_path) as store:
        journal = Journal(store, [STDIO, HTTP])
        journal.record_event("fault", "a", "transport", said)
        journal.record_event("fault", "a", said, "")
        leaky = capability("a", "x", description=f"Uses {TOKEN}.")
        ledger = BridgeLedger.empty().enroll(replace(request("a", "x"), capability=leaky), AT)
        journal.record_entries(ledger.log)
        journal.record_pin(leaky.ref, leaky.pin, leaky.raw)
        journal.record_turn([READ, leaky.descriptor])
        assert await store.flush()
        assert await store.verify() == ()
        entries, notes = await read_ledger_log(store, journal.run)
        assert (entries, len(notes)) == ((), 1)
        record = await deck_at(store, journal.run, turn=1)
        assert record is not None
        assert (record.text, record.digest) == (
            None,
            content_address(join_json_array(map(descriptor_text, [READ, leaky.descriptor]))),
        )
    dumped = json.dumps(query_file(store_file(tmp_path), "SELECT facts, subject FROM events"))
    dumped += json.dumps(query_file(store_file(tmp_path), "SELECT text FROM documents"))
    assert [secret for secret in SECRETS if secret in dumped] == []
    assert "Uses" not in dumped
    assert r"https://\\u2026@example.org/mcp?\\u2026" in dumped


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("see https://user:pw@host/p?q=1#f now", "see https://…@host/p?… now"),
        ("http://host?token=1", "http://host?…"),
        ("http://host/path", "http://host/path"),
        ("with ghp_0123456789012345678901 in it", "with … in it"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer …"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc", "…"),
        ("AKIA0123456789ABCDEF.", "…."),
        ("nothing to see", "nothing to see"),
    ],
)
def test_likely_secrets_are_removed_from_texts(text: str, clean: str) -> None:
    assert Redaction().clean(text) == clean


def test_short_and_common_values_do_not_make_a_definition_unkeepable() -> None:
    env = {"DEBUG": "true", "ROOT": "/home/somebody/projects", "API_KEY": 'a"b\\c'}
    known = Redaction([StdioServerConfig("a", "server", [], env)])
    raw: JsonObject = {"default": True, "description": "In /home/somebody/projects."}
    assert not known.holds_secret(json.dumps(raw))
    assert known.holds_secret(json.dumps({"description": 'x a"b\\c y'}))
    assert known.clean("in /home/somebody/projects") == "in …"


def test_an_invalid_url_has_no_values() -> None:
    assert Redaction([StreamableHttpServerConfig("h", "http://[")]).clean("http://[") == "http://["


def test_arguments_that_are_called_a_secret_are_taken_for_one() -> None:
    args = ["--port", "8080", "--api-key=opensesame", "--token", "letmein", "plain"]
    known = Redaction([StdioServerConfig("a", "server", args)])
    assert known.clean("opensesame letmein plain 8080") == "… … plain 8080"
    assert [known.holds_secret(one) for one in args] == [False, False, True, False, True, False]
