"""The semantic half: vectors of items, their cache, and the mixture of both halves."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.encoders import TopicEncoder

from induscode.search.background import open_index
from induscode.search.index import ToolIndex
from induscode.search.items import build_item
from induscode.search.semantic import SemanticIndex, VectorCache, list_texts, vectors_path
from induscode.search.weights import SENTENCE_ENCODER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from induscode.search.items import SearchItem
    from induscode.search.semantic import Array


def make_item(name: str, description: str = "") -> SearchItem:
    return build_item("tool", "srv", name, f"srv__{name}", description=description)


ITEMS = (make_item("sendMessage", "Send an email."), make_item("read_file", "Read a file."), make_item("open_bug"))


@pytest.fixture
def cache(tmp_path: Path) -> VectorCache:
    return VectorCache(str(tmp_path / "state" / "vectors.db"))


def test_items_are_found_by_meaning_after_prepare() -> None:
    index = ToolIndex(ITEMS, SemanticIndex(TopicEncoder()))
    before = index.search(["ticket"])
    assert (before.hits, before.is_semantic) == ([], False)
    assert index.prepare()
    answer = index.search(["ticket"])
    assert answer.is_semantic
    assert [hit.item.name for hit in answer.hits] == ["open_bug"]
    assert answer.hits[0].score == 1.0
    assert index.search([""]).hits == []
    assert not ToolIndex(ITEMS).prepare()


def test_a_name_comes_before_meaning_and_words_decide_between_equals() -> None:
    named, other = make_item("mail_folder"), make_item("mail_document")
    index = ToolIndex([other, named], SemanticIndex(TopicEncoder()))
    index.prepare()
    assert index.search(["post document folder"]).hits[0].item is other  # both have one meaning, this has a word more
    assert index.search(["mail-folder"]).hits[0].item is named


def test_only_changed_items_are_encoded_and_the_cache_serves_the_next_run(cache: VectorCache) -> None:
    first = TopicEncoder()
    index = ToolIndex(ITEMS, SemanticIndex(first, cache))
    index.prepare()
    assert len(first.texts) == 2 * len(ITEMS)
    changed = make_item("open_bug", "Report a ticket.")
    index.update([*ITEMS[:2], changed])
    assert not index.search(["ticket"]).is_semantic  # until the new vector is there
    index.prepare()
    assert first.texts[2 * len(ITEMS) :] == list(list_texts(changed))
    second, reports = TopicEncoder(), list[tuple[int, int]]()
    index = ToolIndex([*ITEMS[:2], changed], SemanticIndex(second, cache))
    index.prepare(lambda done, total: reports.append((done, total)))
    assert (second.texts, reports) == ([], [])
    assert index.search(["letter or email"]).hits[0].item is ITEMS[0]
    assert stat.S_IMODE(os.stat(cache.path).st_mode) == 0o600
    assert cache.notes == []


def test_a_damaged_cache_is_begun_again_with_a_note(cache: VectorCache) -> None:
    os.makedirs(os.path.dirname(cache.path))
    with open(cache.path, "wb") as file:
        file.write(b"not a database" * 100)
    assert cache.read(["a"], 4) == {}
    assert "damaged" in str(cache.notes[0])
    cache.write({"a": b"1234"})
    assert cache.read(["a", "b"], 4) == {"a": b"1234"}
    assert cache.read(["a", "b"], 8) == {}
    with open(cache.path, "r+b") as file:
        file.truncate(os.path.getsize(cache.path) - 4096)
    index = ToolIndex(ITEMS, SemanticIndex(TopicEncoder(), cache))
    assert index.prepare()


def test_a_cache_that_cannot_be_written_leaves_one_note(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = VectorCache(str(tmp_path / "file" / "vectors.db"))
    index = ToolIndex(ITEMS, SemanticIndex(TopicEncoder(), cache))
    assert index.prepare()
    assert len(cache.notes) == 1
    assert "each run" in str(cache.notes[0])


def test_without_the_model_an_index_is_lexical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    index, notes = open_index(ITEMS)
    assert notes == ()
    assert index.search(["email"]).hits[0].item is ITEMS[0]
    assert vectors_path().startswith(str(tmp_path))


def test_a_cache_that_another_process_holds_stays_as_it_is(cache: VectorCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indusagi.core.sqlite.BUSY_S", 0.01)
    cache.write({"a": b"1234"})
    with closing(sqlite3.connect(cache.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert cache.read(["a"], 4) == {}
    assert "locked" in str(cache.notes[0])
    assert cache.read(["a"], 4) == {"a": b"1234"}


def test_a_row_of_another_size_is_made_again(cache: VectorCache) -> None:
    ToolIndex(ITEMS, SemanticIndex(TopicEncoder(), cache)).prepare()
    with closing(sqlite3.connect(cache.path)) as database, database:
        database.execute("UPDATE vectors SET vector = 'text' WHERE digest = ?", [ITEMS[0].digest])
        database.execute("UPDATE vectors SET vector = x'0011' WHERE digest = ?", [ITEMS[1].digest])
    again = TopicEncoder()
    assert ToolIndex(ITEMS, SemanticIndex(again, cache)).prepare()
    assert len(again.texts) == 2 * 2


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, (2).to_bytes(8, "little") + b"[]", b"x" * 7])
def test_a_damaged_model_leaves_a_note_and_words_are_searched(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    os.makedirs(os.path.dirname(SENTENCE_ENCODER.path))
    with open(SENTENCE_ENCODER.path, "wb") as file:
        file.write(content)
        file.truncate(SENTENCE_ENCODER.size)
    index, notes = open_index(ITEMS)
    assert "indus search fetch-model" in str(notes[0])
    assert index.search(["email"]).hits[0].item is ITEMS[0]
    assert not SENTENCE_ENCODER.is_intact()


@pytest.mark.parametrize("failure", [PermissionError("not yours"), ValueError("no weights")])
def test_a_model_that_cannot_be_opened_leaves_a_note_and_words_are_searched(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> SemanticIndex:
        raise failure

    monkeypatch.setattr("induscode.search.background.open_semantic", refuse)
    index, (note,) = open_index(ITEMS)
    assert f"it cannot be used: {failure}" in str(note)
    assert index.search(["email"]).hits[0].item is ITEMS[0]


class Damaged(TopicEncoder):
    """Has a weight that is no number."""

    def encode(self, texts: Sequence[str]) -> Array:
        return super().encode(texts) * np.float32("nan")


def test_with_cached_vectors_a_damaged_model_leaves_a_note_and_words_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    cache = VectorCache(vectors_path())
    ToolIndex(ITEMS, SemanticIndex(TopicEncoder(), cache)).prepare()
    monkeypatch.setattr("induscode.search.background.has_semantic", lambda: True)

    def read_damaged(_path: str) -> Damaged:
        return Damaged()

    monkeypatch.setattr("induscode.search.encoder.read_encoder", read_damaged)
    index, notes = open_index(ITEMS)
    assert "its weights are damaged" in str(notes[0])
    assert not index.search(["email"]).is_semantic
    assert index.search(["email"]).hits[0].item is ITEMS[0]


def test_a_query_that_damaged_weights_give_no_numbers_for_is_searched_by_words(cache: VectorCache) -> None:
    ToolIndex(ITEMS, SemanticIndex(TopicEncoder(), cache)).prepare()
    index = ToolIndex(ITEMS, SemanticIndex(Damaged(), cache))
    assert index.prepare()
    answer = index.search(["email"])
    assert not answer.is_semantic
    assert answer.hits[0].item is ITEMS[0]


def test_weights_that_give_no_numbers_are_never_kept(cache: VectorCache) -> None:
    with pytest.raises(ValueError, match="weights are damaged"):
        ToolIndex(ITEMS, SemanticIndex(Damaged(), cache)).prepare()
    assert cache.read([item.digest for item in ITEMS], 12) == {}
