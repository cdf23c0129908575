"""The shared table without a broker: which entries are taken over, which are ignored, and what is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.broker import KEY

from indusagi.core.json import compact_json
from induscode.cluster.contract import ClusterFault, ClusterSettings, LostRaceError
from induscode.cluster.jetstream import BucketEntry, StreamMessage, StreamState
from induscode.cluster.served import CallerTokens
from induscode.cluster.shared import table as module
from induscode.cluster.shared.table import SharedTable

pytestmark = pytest.mark.anyio
SETTINGS = ClusterSettings(brokers=["nats://127.0.0.1:1"], node="one", key=KEY)


@dataclass
class Bucket:
    """A bucket and its stream in memory; so many writes lose the race."""

    messages: list[StreamMessage] = field(default_factory=list[StreamMessage])
    entries: dict[str, BucketEntry] = field(default_factory=dict[str, BucketEntry])
    races: int = 0

    def write(self, key: str, data: bytes) -> None:
        if self.races:
            self.races -= 1
            raise LostRaceError("another node was first")
        number = len(self.messages) + 1
        self.messages.append(StreamMessage(number, f"$KV.{SETTINGS.shared}.{key}", data))
        self.entries[key] = BucketEntry(data, number)

    async def get(self, key: str) -> BucketEntry | None:
        return self.entries.get(key)

    async def put(self, key: str, data: bytes, revision: int | None) -> None:
        assert revision == (self.entries[key].revision if key in self.entries else None)
        self.write(key, data)

    async def read_state(self) -> StreamState:
        return cast("StreamState", SimpleNamespace(created=None, last=len(self.messages)))

    async def read_next(self, number: int, _: str) -> StreamMessage | None:
        return self.messages[number - 1] if number <= len(self.messages) else None


@dataclass
class Stage:
    """A table over a bucket, and what it said."""

    bucket: Bucket = field(default_factory=Bucket)
    notes: list[str] = field(default_factory=list[str])
    changes: list[frozenset[str]] = field(default_factory=list[frozenset[str]])
    is_refused: bool = False

    def open(self) -> SharedTable:
        broker: Any = SimpleNamespace(
            settings=SETTINGS, check_write=self.check_write, client=SimpleNamespace(jetstream=SimpleNamespace)
        )
        table = SharedTable(broker, cast("Any", self.bucket), KEY, self.notes.append)
        table._stream = cast("Any", self.bucket)
        table.on_change.add(self.changes.append)
        return table

    def check_write(self) -> None:
        if self.is_refused:
            raise ClusterFault("ready", "this node has no lease now")

    def write(self, key: str, **entry: Any) -> None:
        self.bucket.entries.pop(key, None)
        self.bucket.write(key, KEY.seal(f"{SETTINGS.shared}/{key}", compact_json(entry).encode()))


async def test_entries_are_written_followed_and_removed() -> None:
    stage = Stage()
    ours, other = stage.open(), stage.open()
    key = ours.build_key("server", "a")
    assert key.startswith("server.")
    assert (len(key), key == ours.build_key("server", "a"), key == ours.build_key("server", "b")) == (39, True, False)
    await ours.put(key, {"name": "a"})
    assert ours._noticed.is_set()
    await ours.put("rules.x", {"rules": 1})
    assert (ours.list("server"), ours.list("serv")) == ({key: {"name": "a"}}, {})
    await other.load()
    assert other.list("server") == {key: {"name": "a"}}
    assert stage.changes == [frozenset({key, "rules.x"})]
    await other.load()
    await other.put(key, None)
    assert (other.list("server"), len(stage.changes)) == ({}, 1)
    await ours.load()
    assert (ours.list("server"), stage.changes[1:]) == ({}, [frozenset({key})])
    assert stage.notes == []


async def test_a_lost_race_is_run_again_and_a_lasting_one_is_a_fault() -> None:
    stage = Stage()
    table = stage.open()
    stage.bucket.races = 4
    await table.put("server.a", {"n": 1})
    assert len(stage.bucket.messages) == 1
    stage.bucket.races = 5
    with pytest.raises(ClusterFault, match=r"other nodes change server\.a all the time"):
        await table.put("server.a", {"n": 2})
    stage.is_refused = True
    with pytest.raises(ClusterFault, match="no lease"):
        await table.put("server.a", {"n": 3})


async def test_a_change_begins_with_what_another_node_wrote_meanwhile() -> None:
    stage = Stage()
    one, other = stage.open(), stage.open()
    key = one.build_key("budget", "ci")

    def count(value: Any) -> Any:
        return {"calls": (value or {"calls": 0})["calls"] + 1}

    for table in (one, other, one, other):  # neither reads in between
        await table.update(key, count)
    stage.bucket.races = 2
    await one.update(key, count)
    assert one.list("budget") == {key: {"calls": 5}}
    # What a broker brings back isn't newer than what's known.
    stage.bucket.entries[key] = BucketEntry(stage.bucket.messages[0].data, stage.bucket.entries[key].revision)
    await one.update(key, count)
    assert one.list("budget") == {key: {"calls": 6}}


async def test_an_entry_that_is_not_of_this_cluster_is_replaced() -> None:
    stage = Stage()
    stage.bucket.write("server.a", b"not sealed")
    table = stage.open()
    await table.load()
    assert "the entry server.a of the broker is ignored" in stage.notes[0]
    await table.put("server.a", {"n": 1})
    assert table.list("server") == {"server.a": {"n": 1}}


async def test_versions_only_grow() -> None:
    stage = Stage()
    table = stage.open()
    stage.write("server.a", version=2**60, value={"n": 1})
    await table.load()
    await table.put("server.a", {"n": 2})
    assert table._versions["server.a"] == 2**60 + 1
    stage.write("server.a", version=2**60, value={"n": 3})
    stage.write("server.a", version=2**60 + 1, value={"n": 4})
    await table.load()
    assert table.list("server") == {"server.a": {"n": 4}}
    assert stage.notes == ["the entry server.a of the broker is ignored: it is older than the one that was there"]


async def test_a_removal_by_other_means_changes_nothing_and_is_told_once() -> None:
    stage = Stage()
    table = stage.open()
    await table.put("server.a", {"n": 1})
    for key in ("server.a", "server.a", "server.unknown"):
        stage.bucket.write(key, b"")
    await table.load()
    assert table.list("server") == {"server.a": {"n": 1}}
    assert [note.partition(" was removed")[0] for note in stage.notes] == ["the entry server.a"]


async def test_the_size_of_an_entry_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    table = stage.open()
    monkeypatch.setattr(module, "_MAX_ENTRY_BYTES", 1_000)
    with pytest.raises(ClusterFault, match="it is too large to be shared: "):
        await table.put("server.a", {"text": "x" * 9_000})


async def test_notes_about_entries_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    monkeypatch.setattr(module, "_MAX_NOTES", 2)
    for number in range(5):
        stage.bucket.write(f"server.{number}", b"not sealed")
    await stage.open().load()
    assert [note.startswith("the entry") for note in stage.notes] == [True, True, False]
    assert stage.notes[2] == "further entries of the broker that are ignored are not told"


def test_a_caller_is_described_with_a_token_of_its_own() -> None:
    class Client:
        pass

    tokens, one, two = CallerTokens(), Client(), Client()

    def describe(client: object, **more: Any) -> Any:
        facts = {"client": client, "capabilities": {"a": 1}, "log_level": "info", "exchange": None, "tasks": None}
        return tokens.describe(cast("Any", SimpleNamespace(**{**facts, **more})))

    shown = {"client": "1", "capabilities": {"a": 1}, "logLevel": "info", "exchange": False, "tasks": None}
    assert describe(one) == shown
    assert [describe(client)["client"] for client in (two, one, None)] == ["2", "1", None]
    assert describe(one, exchange=object(), tasks=SimpleNamespace(core=True)) == {
        **shown, "exchange": True, "tasks": {"core": True},
    }  # fmt: skip
