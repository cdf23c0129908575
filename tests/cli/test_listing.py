"""A listing is a table for users, one JSON object for programs, and a line if it's empty."""

from __future__ import annotations

import json
from operator import itemgetter
from typing import TYPE_CHECKING

from induscode.cli.listing import Listing

if TYPE_CHECKING:
    import pytest

    from indusagi.core.json import JsonObject

ROWS: list[JsonObject] = [{"name": "a\x1b", "tools": 3}, {"name": "longer", "tools": 12}]


def build(rows: list[JsonObject]) -> Listing[JsonObject]:
    return Listing(
        "servers",
        rows,
        ("NAME", "TOOLS"),
        itemgetter("name", "tools"),
        before={"file": "x"},
        after={"notes": []},
        empty="No servers.",
    )


def test_a_table_escapes_cells_and_aligns_numbers_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert build(ROWS).show(as_json=False) == 0
    assert capsys.readouterr().out.splitlines() == ["NAME    TOOLS", "a\\x1b       3", "longer     12"]


def test_json_has_the_rows_between_the_other_members(capsys: pytest.CaptureFixture[str]) -> None:
    build(ROWS).show(as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (list(found), found["servers"]) == (["file", "servers", "notes"], ROWS)


def test_without_rows_there_is_one_line_and_empty_json(capsys: pytest.CaptureFixture[str]) -> None:
    build([]).show(as_json=False)
    assert capsys.readouterr().out == "No servers.\n"
    build([]).show(as_json=True)
    assert json.loads(capsys.readouterr().out)["servers"] == []
