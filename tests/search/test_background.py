"""Search by meaning in gateways and sessions: vectors are made in the background, and words are searched meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from threading import Event
from threading import enumerate as list_threads
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.encoders import TopicEncoder
from tests.support.searched import SearchableTools

from indusagi.capabilities import ToolSpec, define_tool
from indusagi.runtime.contract import ToolCall, ToolDescriptor
from induscode.conversations.deck_limit import DeckSearch
from induscode.deck.contract import DeckContext, Profile
from induscode.deck.provision import ToolDeck, provision_deck
from induscode.gateway.search_box import SearchedBoxes
from induscode.search.background import BackgroundIndex
from induscode.search.items import build_item
from induscode.search.options import SearchOptions
from induscode.search.semantic import SemanticIndex
from induscode.search.weights import SENTENCE_ENCODER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from indusagi.core.faults import Note
    from induscode.search.items import SearchItem
    from induscode.search.semantic import Array

ITEMS = [build_item("tool", "srv", name, f"srv__{name}") for name in ("send_mail", "read_file", "open_bug")]
MORE = build_item("tool", "srv", "list_folder", "srv__list_folder")
WAIT_S = 60.0


class GatedEncoder(TopicEncoder):
    """Encodes after `gate` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Event()

    def encode(self, texts: Sequence[str]) -> Array:
        """Encode texts."""
        assert self.gate.wait(WAIT_S)
        return super().encode(texts)


def list_vector_threads() -> list[str]:
    return [thread.name for thread in list_threads() if thread.name.startswith("search-vectors")]


def wait_for_thread(index: BackgroundIndex) -> None:
    """Wait until everything that was begun has ended."""
    done = Event()
    index.run_soon(done.set)
    assert done.wait(WAIT_S)


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GatedEncoder]:
    """A model file of the right size, which this encoder stands for."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    os.makedirs(os.path.dirname(SENTENCE_ENCODER.path))
    with open(SENTENCE_ENCODER.path, "wb") as file:
        file.truncate(SENTENCE_ENCODER.size)
    encoder = GatedEncoder()

    def read_encoder(_path: str) -> GatedEncoder:
        return encoder

    monkeypatch.setattr("induscode.search.encoder.read_encoder", read_encoder)
    yield encoder
    assert list_vector_threads() == []


def test_words_are_searched_until_the_vectors_are_made_and_again_after_an_update() -> None:
    encoder = GatedEncoder()
    background = BackgroundIndex(lambda: SemanticIndex(encoder))
    index = background.open()
    index.update(ITEMS)
    assert [hit.item.name for hit in index.search(["bug"]).hits] == ["open_bug"]
    assert index.search(["ticket"]).hits == []
    encoder.gate.set()
    wait_for_thread(background)
    assert [hit.item.name for hit in index.search(["ticket"]).hits] == ["open_bug"]
    index.update([*ITEMS, MORE])
    wait_for_thread(background)
    assert "list_folder" in [hit.item.name for hit in index.search(["document"]).hits]
    assert len(encoder.texts) == 2 * (len(ITEMS) + 1) + 2  # and two queries
    background.close()
    assert list_vector_threads() == []


def test_close_ends_the_thread_before_the_next_items() -> None:
    class Begun(SemanticIndex):
        """Goes on when it should stop."""

        def prepare(
            self,
            items: Iterable[SearchItem],
            report: Callable[[int, int], None] = lambda _done, _all: None,
            should_stop: Callable[[], bool] = lambda: True,
        ) -> None:
            begun.set()
            while not should_stop():
                Event().wait(0.001)
            super().prepare(items, report, should_stop)

    begun, encoder = Event(), TopicEncoder()
    background = BackgroundIndex(lambda: Begun(encoder))
    index = background.open()
    index.update(ITEMS)
    assert begun.wait(WAIT_S)
    index.update([*ITEMS, MORE])
    background.close()
    assert (encoder.texts, list_vector_threads()) == ([], [])
    background.run_soon(begun.clear)
    assert begun.is_set()


def test_what_was_made_before_a_stop_is_kept() -> None:
    encoder = TopicEncoder()
    index = SemanticIndex(encoder)
    index.prepare(ITEMS, should_stop=lambda: bool(encoder.texts))
    assert len(encoder.texts) == 4  # of two items
    index.prepare(ITEMS)
    assert len(encoder.texts) == 2 * len(ITEMS)


def test_a_model_that_cannot_be_read_leaves_a_note_and_words_are_searched() -> None:
    notes: list[Note] = []

    def refuse() -> SemanticIndex:
        raise ValueError("no header")

    background = BackgroundIndex(refuse, notes.append)
    index = background.open()
    index.update(ITEMS)
    index.update([*ITEMS, MORE])
    wait_for_thread(background)
    assert [str(note).partition(" (")[0] for note in notes] == [
        "the semantic half of the search: it cannot be used: no header"
    ]
    assert index.search(["bug"]).hits[0].item.name == "open_bug"
    background.close()


# -- gateways and sessions --------------------------------------------------------------------------


async def find_later(find: Callable[[], Awaitable[object]], name: str) -> None:
    with anyio.fail_after(WAIT_S):
        while name not in str(await find()):
            await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_a_gateway_finds_by_meaning_after_a_while(fetched: GatedEncoder) -> None:
    boxes = [SearchableTools([ToolDescriptor(f"a__{name}", "", {}) for name in names]) for names in NAMES]
    present = boxes[0]
    searched = SearchedBoxes(SearchOptions(mode="on"))
    find_box = searched.wrap(lambda: present)

    async def find() -> object:
        return (await find_box().runner.run(ToolCall("1", "find_tools", {"queries": ["ticket"]}))).output

    assert "Nothing matches" in str(await find())
    fetched.gate.set()
    await find_later(find, "a__open_bug")
    present = boxes[1]
    await find_later(find, "a__open_issue")
    await searched.aclose()


@pytest.mark.anyio
async def test_a_session_finds_by_meaning_after_a_while(fetched: GatedEncoder, tmp_path: Path) -> None:
    async def answer(*_: object) -> str:
        return ""

    native = provision_deck(Profile.AUTHORING, DeckContext(str(tmp_path)))
    search = DeckSearch()
    for names in NAMES:
        cards = [define_tool(ToolSpec(f"a__{name}", "", {"type": "object"}, answer)) for name in names]
        find = search.open_box(ToolDeck(cards, native.context, (), [card.name for card in cards])).find
        assert find is not None
        if not fetched.gate.is_set():
            assert await find(["ticket"]) == []
            fetched.gate.set()
        await find_later(partial(find, ["ticket"]), f"a__{names[-1]}")
    await search.aclose()


NAMES = (("read_file", "open_bug"), ("read_file", "open_bug", "open_issue"))


def test_without_the_model_numpy_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    script = """
import sys
import anyio
from tests.support.searched import SearchableTools
from induscode.gateway.search_box import SearchedBoxes
from induscode.search.options import SearchOptions
searched = SearchedBoxes(SearchOptions(mode="on"))
assert searched.wrap(SearchableTools)().finder.find(["issue"]).found
anyio.run(searched.aclose)
assert "numpy" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
