"""Records of ripgrep, as the readers of a search take them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from indusagi.capabilities.search import search
from indusagi.capabilities.search.search import CountReader, MatchReader


def record(kind: str, **data: Any) -> bytes:
    """A record of ripgrep."""
    return json.dumps({"type": kind, "data": data}, separators=(",", ":")).encode() + b"\n"


def match(number: int, text: str = "x\n", *places: tuple[int, int]) -> bytes:
    """A record of a match."""
    submatches = [{"start": start, "end": end} for start, end in places or ((0, 1),)]
    return record("match", lines={"text": text}, line_number=number, submatches=submatches)


def begin(path: str) -> bytes:
    """The record before the matches of a file."""
    return record("begin", path={"text": path})


def end(*, binary: bool = False) -> bytes:
    """The record after the matches of a file."""
    return record("end", binary_offset=7 if binary else None)


def read(*records: bytes, limit: int = 100, **options: Any) -> MatchReader:
    """Read records."""
    reader = MatchReader(limit, **options)
    for piece in records:
        reader.feed(piece)
    return reader


def show_lines(reader: MatchReader) -> dict[str, list[tuple[int, str, int | None]]]:
    """Return the lines of each file."""
    return {file.path: [(line.number, line.text, line.match) for line in file.lines] for file in reader.files}


def test_records_become_lines_of_files() -> None:
    context = record("context", lines={"text": "c\n"}, line_number=1)
    reader = read(begin("./b"), context, match(2), match(4), end(), begin("a"), match(9), end())
    assert show_lines(reader) == {"b": [(1, "c", None), (2, "x", 0), (4, "x", 1)], "a": [(9, "x", 0)]}
    assert (reader.matches, reader.is_full, reader.searched) == (3, False, None)
    assert [file.path for file in reader.sorted_files()] == ["a", "b"]
    reader.feed(record("summary", stats={"searches": 12}))
    assert reader.searched == 12


def test_a_binary_file_counts_nothing() -> None:
    reader = read(
        begin("a"), match(1), end(), begin("b"), match(1), match(2), end(binary=True), begin("c"), match(1), end()
    )
    assert (reader.matches, reader.binary) == (2, ["b"])
    assert [file.path for file in reader.sorted_files()] == ["a", "c"]


def test_matches_are_skipped_and_limited() -> None:
    reader = read(begin("a"), match(1), match(2), match(3), match(4), end(), skip=1, limit=2)
    assert show_lines(reader) == {"a": [(2, "x", 0), (3, "x", 1)]}
    assert (reader.matches, reader.is_full) == (4, True)
    exact = read(begin("a"), match(1), match(2), end(), limit=2)
    assert (exact.matches, exact.is_full) == (2, False)


def test_files_are_limited_and_chosen() -> None:
    records = (begin("a"), match(1), end(), begin("b"), match(1), end(), begin("c"), match(1), end())
    reader = read(*records, max_files=2)
    assert ([file.path for file in reader.files], reader.is_full) == (["a", "b"], True)

    def is_not_b(path: str) -> bool:
        return path != "b"

    chosen = read(*records, record("summary", stats={"searches": 3}), accepts=is_not_b)
    assert ([file.path for file in chosen.files], chosen.matches, chosen.searched) == (["a", "c"], 2, None)


def test_a_record_that_is_too_long_is_left_out_and_its_file_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "RECORD_BYTES", 300)
    path = {"text": "./long"}
    long = record("match", path=path, lines={"text": "y" * 400}, line_number=1, submatches=[])
    other = record("context", path=path, lines={"text": "y" * 400}, line_number=1)
    for size in (1, 50, 1_000):
        whole = begin("a") + long + other + match(2) + end()
        reader = read(*[whole[at : at + size] for at in range(0, len(whole), size)])
        assert show_lines(reader) == {"a": [(2, "x", 0)]}
        assert reader.too_long == ["long"]


def test_matches_of_several_lines_are_split_where_they_share_none() -> None:
    reader = read(begin("a"), match(5, "ab\ncd\nef\n", (0, 4), (6, 7)), end())
    assert show_lines(reader) == {"a": [(5, "ab", 0), (6, "cd", 0), (7, "ef", 1)]}
    shared = read(begin("a"), match(5, "ab\ncd\n", (0, 4), (4, 5)), end())
    assert (shared.matches, [line.match for line in shared.files[0].lines]) == (1, [0, 0])
    count = search._MATCH_LINES + 2
    long = read(begin("a"), match(1, "z\n" * count, (0, 2 * count)), end())
    lines = long.files[0].lines
    assert (len(lines), lines[-1].text, lines[-1].number) == (count - 1, "… [2 more lines of this match]", count - 1)


def test_text_that_is_not_utf_8_comes_as_base64() -> None:
    data: dict[str, Any] = {"lines": {"bytes": "Y2Fm6Qo="}, "line_number": 1, "submatches": []}
    reader = read(record("begin", path={"bytes": "Li/p"}), record("match", **data), end())
    assert show_lines(reader) == {"\udce9": [(1, "caf\ufffd", 0)]}


def test_counts_are_read_up_to_a_number_of_files() -> None:
    data = b"./a\x003\nb\x001\nc\x002\n"
    for size in (1, 4, 99):
        reader = CountReader(2)
        for at in range(0, len(data), size):
            reader.feed(data[at : at + size])
        assert (reader.counts, reader.is_full) == ({"a": 3, "b": 1}, True)
    chosen = CountReader(9, lambda name: name != "b")
    chosen.feed(data)
    assert (chosen.counts, chosen.is_full, chosen.searched) == ({"a": 3, "c": 2}, False, None)
