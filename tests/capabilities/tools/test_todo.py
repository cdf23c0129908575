"""The checklist: one for each context, replaced as a whole, and nothing dropped in silence."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tools import box_of, call, context

from indusagi.capabilities import checklist
from indusagi.capabilities.checklist import checklist_of
from indusagi.capabilities.tools.todo import todo_read_tool, todo_set_tool

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.capabilities.registry import RegistryToolBox
    from indusagi.core.json import JsonObject, JsonValue

pytestmark = pytest.mark.anyio


def item(identity: str, status: str = "pending", text: str = "Do it") -> JsonObject:
    return {"id": identity, "text": text, "status": status}


def checklist_box(tmp_path: Path) -> RegistryToolBox:
    return box_of(context(tmp_path), todo_read_tool(), todo_set_tool())


async def set_items(box: RegistryToolBox, *items: JsonValue) -> str:
    outcome = await call(box, "todo_set", {"items": list(items)})
    assert not outcome.is_error
    return shown(outcome.output)


def shown(output: JsonValue) -> str:
    assert isinstance(output, list)
    first = output[0]
    assert isinstance(first, dict)
    return str(first["text"])


async def test_what_was_set_is_read_back_in_order(tmp_path: Path) -> None:
    box = checklist_box(tmp_path)
    await set_items(box, item("b", "done"), item("a", "active"), item("c"))
    outcome = await call(box, "todo_read")
    text = shown(outcome.output)
    assert text.splitlines() == ["1 of 3 done", "[x] b: Do it", "[~] a: Do it", "[ ] c: Do it"]
    block = outcome.content[1]
    assert getattr(block, "value", None) == {"items": [item("b", "done"), item("a", "active"), item("c")]}
    assert outcome.details == {"open": 2, "done": 1}


async def test_a_list_that_was_never_set_says_that_it_is_empty(tmp_path: Path) -> None:
    outcome = await call(checklist_box(tmp_path), "todo_read")
    assert shown(outcome.output) == "The checklist is empty."


async def test_an_item_that_is_left_out_unfinished_is_named(tmp_path: Path) -> None:
    box = checklist_box(tmp_path)
    await set_items(box, item("a"), item("b", "done"), item("c", "active"))
    assert "Dropped without finishing: a, c." in await set_items(box, item("d"))


async def test_two_active_items_are_accepted_and_mentioned(tmp_path: Path) -> None:
    box = checklist_box(tmp_path)
    text = await set_items(box, item("a", "active"), item("b", "active"))
    assert "2 items are active at once: a, b." in text


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([item("a"), item("a")], "two items have the id 'a'"),
        ([item("a", text="  ")], "the item 'a' has no text"),
        ([item("a"), item(" a")], "two items have the id 'a'"),
        ([item(" ")], "an item has no id"),
    ],
)
async def test_a_list_that_contradicts_itself_changes_nothing(
    tmp_path: Path, items: list[JsonValue], said: str
) -> None:
    box = checklist_box(tmp_path)
    await set_items(box, item("old"))
    outcome = await call(box, "todo_set", {"items": items})
    assert outcome.is_error
    assert said in str(outcome.output)
    assert outcome.details["code"] == "invalid_items"
    assert "old" in shown((await call(box, "todo_read")).output)


@pytest.mark.parametrize(
    "items",
    [
        [item("a", "someday")],
        [{"id": "a", "text": "x"}],
        [item("")],
        [item("a", text="x" * 501)],
        [item(str(n)) for n in range(201)],
        "a",
    ],
)
async def test_a_list_that_does_not_fit_the_schema_is_refused(tmp_path: Path, items: JsonValue) -> None:
    outcome = await call(checklist_box(tmp_path), "todo_set", {"items": items})
    assert outcome.details["code"] == "invalid_arguments"


async def test_a_list_that_was_quoted_is_understood(tmp_path: Path) -> None:
    box = checklist_box(tmp_path)
    quoted = '[{"id": "a", "text": "x", "status": "done"}]'
    assert not (await call(box, "todo_set", {"todos": quoted})).is_error
    assert "[x] a: x" in shown((await call(box, "todo_read")).output)


async def test_two_boxes_never_share_a_list(tmp_path: Path) -> None:
    one, two = checklist_box(tmp_path), checklist_box(tmp_path)
    await set_items(one, item("a"))
    assert shown((await call(two, "todo_read")).output) == "The checklist is empty."


async def test_probe_0_22_a_list_is_freed_with_its_context(tmp_path: Path) -> None:
    gc.collect()  # earlier tests may have left contexts
    stores = checklist._CHECKLISTS
    before = len(stores)
    box = checklist_box(tmp_path)
    await set_items(box, item("a"))
    assert len(stores) == before + 1
    del box
    gc.collect()
    assert len(stores) == before


async def test_the_former_list_and_what_is_open_can_be_looked_up(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    box = box_of(ctx, todo_set_tool())
    await set_items(box, item("a"), item("b", "done"))
    await set_items(box, item("c"))
    checklist = checklist_of(ctx)
    assert [entry.id for entry in checklist.former] == ["a", "b"]
    assert [entry.id for entry in checklist.open_items()] == ["c"]


ITEMS = st.lists(
    st.builds(
        item,
        st.text(min_size=1, max_size=8).filter(str.strip),
        st.sampled_from(["pending", "active", "done"]),
        st.text(min_size=1, max_size=20).filter(str.strip),
    ),
    max_size=8,
    unique_by=lambda entry: str(entry["id"]).strip(),
)


@given(ITEMS, ITEMS)
async def test_the_list_is_always_the_last_one_that_was_accepted(
    tmp_path: Path, first: list[JsonValue], second: list[JsonValue]
) -> None:
    ctx = context(tmp_path)
    box = box_of(ctx, todo_set_tool())
    await set_items(box, *first)
    await set_items(box, *second)
    listed: list[JsonValue] = [entry.to_json() for entry in checklist_of(ctx).items]
    wanted = [
        {**row, "id": str(row["id"]).strip(), "text": str(row["text"]).strip()}
        for row in second
        if isinstance(row, dict)
    ]
    assert listed == wanted
