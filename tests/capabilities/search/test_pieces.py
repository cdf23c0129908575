"""The parts of a search: ripgrep's place and environment, patterns, output, handles."""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.search import search as ripgrep
from indusagi.capabilities.search.request import WINDOW_CHARS, TooManyAlternatives, cut_window, expand_braces
from indusagi.capabilities.search.search import CountReader, MatchReader, build_environment, find_ripgrep, run_program
from indusagi.capabilities.search.walk import DirHandle
from indusagi.capabilities.tools.find import NameQuery, find_names, split_query

RG = str(Path(sys.executable).parent / "rg")


# -- where ripgrep is -------------------------------------------------------------------------


def program(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rg").write_text("#!/bin/sh\n", encoding="utf-8")
    (folder / "rg").chmod(0o755)
    return str(folder / "rg")


def test_ripgrep_is_found_beside_python(tmp_path: Path) -> None:
    assert find_ripgrep(str(tmp_path)) == RG


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a Python without ripgrep."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none/python"))
    monkeypatch.setattr("sysconfig.get_path", {"scripts": str(tmp_path / "none")}.get)


@pytest.mark.usefixtures("_elsewhere")
def test_default_14_a_program_in_the_workspace_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = tmp_path / "work"
    program(workspace)
    program(workspace / "bin")
    monkeypatch.chdir(workspace)
    (tmp_path / "link").symlink_to(workspace / "bin")
    bad = [str(workspace), str(workspace / "bin"), ".", "bin", "", str(tmp_path / "link")]
    monkeypatch.setenv("PATH", os.pathsep.join(bad))
    assert find_ripgrep(str(workspace)) is None
    good = program(tmp_path / "work-tools")
    monkeypatch.setenv("PATH", os.pathsep.join([*bad, os.path.dirname(good)]))
    assert find_ripgrep(str(workspace)) == good


@pytest.mark.usefixtures("_elsewhere")
def test_a_directory_named_rg_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin/rg").mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_ripgrep(str(tmp_path / "work")) is None


def test_the_environment_of_ripgrep_holds_no_setting_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", "/somewhere")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    assert set(build_environment()) <= {"HOME", "XDG_CONFIG_HOME", "LC_ALL"}


# -- patterns ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("a", ["a"]),
        ("{a,b}", ["a", "b"]),
        ("x{a,{b,c}d}y", ["xay", "xbdy", "xcdy"]),
        ("{a,b}{1,2}", ["a1", "a2", "b1", "b2"]),
        ("{a", ["{a"]),
        ("a}", ["a}"]),
        ("\\{a,b}", ["\\{a,b}"]),
        ("{,a}", ["", "a"]),
        ("{}", [""]),
    ],
)
def test_braces_expand_to_each_alternative(glob: str, expected: list[str]) -> None:
    assert sorted(expand_braces(glob)) == sorted(expected)


def test_too_many_alternatives_are_refused() -> None:
    with pytest.raises(TooManyAlternatives):
        expand_braces("{a,b}" * 9)
    with pytest.raises(TooManyAlternatives):
        expand_braces("{" + "," * 300 + "}")


@pytest.mark.parametrize(
    ("query", "folder", "rest"),
    [
        ("*.py", "", "*.py"),
        ("src/*.py", "src", "*.py"),
        ("src/a/**/x", "src/a", "**/x"),
        ("s*/a/x?", "", "s*/a/x?"),
        ("src/x", "", "src/x"),
        ("/a/*", "/a", "*"),
        ("/*", "/", "*"),
    ],
)
def test_the_walk_starts_in_the_directories_before_the_first_glob(query: str, folder: str, rest: str) -> None:
    assert split_query(query) == (folder, rest)


@given(st.text(max_size=1_500), st.integers(0, 1_500), st.integers(0, 1_500))
def test_a_window_is_part_of_the_line_and_holds_the_start_of_the_match(text: str, one: int, other: int) -> None:
    start, end = sorted((min(one, len(text)), min(other, len(text))))
    shown = cut_window(text, start, end)
    assert len(shown) <= WINDOW_CHARS
    assert (shown == text) == (len(text) <= WINDOW_CHARS)
    if start < len(text) and len(text) > WINDOW_CHARS:
        begin = text.find(shown.removeprefix("…").removesuffix("…"))
        assert begin >= 0 or "…" in text


# -- what a program writes --------------------------------------------------------------------


def record(kind: str, **data: object) -> bytes:
    return json.dumps({"type": kind, "data": data}, separators=(",", ":")).encode() + b"\n"


def match(path: str, number: int, text: str) -> bytes:
    lines, place = {"text": text}, [{"start": 0, "end": 1}]
    return record("match", path={"text": path}, lines=lines, line_number=number, submatches=place)


WRITTEN = b"".join(
    [
        record("begin", path={"text": "./b"}),
        match("./b", 1, "é one\n"),
        record("context", path={"text": "./b"}, lines={"text": "near\n"}, line_number=2),
        match("./b", 4, "two\n"),
        record("end", path={"text": "./b"}, binary_offset=None),
        record("begin", path={"bytes": "6Q=="}),
        match("?", 1, "three\n"),
        record("end", path={"bytes": "6Q=="}, binary_offset=7),
        record("summary", stats={"searches": 9}),
    ]
)


@given(st.lists(st.integers(0, len(WRITTEN)), max_size=12))
def test_records_are_read_in_pieces_of_any_size(cuts: list[int]) -> None:
    reader = MatchReader(10)
    places = [0, *sorted(cuts), len(WRITTEN)]
    for start, end in pairwise(places):
        reader.feed(WRITTEN[start:end])
    assert [(line.number, line.text, line.match) for line in reader.files[0].lines] == [
        (1, "é one", 0),
        (2, "near", None),
        (4, "two", 1),
    ]
    assert (reader.matches, reader.searched, reader.binary) == (2, 9, ["\udce9"])
    assert [file.path for file in reader.sorted_files()] == ["b"]


def test_a_full_reader_reads_nothing_more() -> None:
    reader = MatchReader(1)
    reader.feed(WRITTEN)
    assert reader.is_full
    assert sum(file.matches for file in reader.files) == 1


def test_an_endless_record_is_not_kept_in_memory() -> None:
    reader = MatchReader(10)
    reader.feed(record("begin", path={"text": "a"}))
    reader.feed(b'{"type":"match","data":{"path":{"text":"a"},"lines":{"text":"')
    for _ in range(64):
        reader.feed(b"x" * (ripgrep.RECORD_BYTES // 4))
        assert len(reader._buffer) <= ripgrep.RECORD_BYTES * 2
    reader.feed(b'"}}}\n' + match("a", 2, "y\n"))
    assert reader.too_long == ["a"]
    assert [line.text for line in reader.files[0].lines] == ["y"]


def test_a_long_context_record_is_skipped() -> None:
    reader = MatchReader(10)
    reader.feed(b'{"type":"context","data":{' + b"x" * (2 * ripgrep.RECORD_BYTES) + b"\n")
    assert reader.too_long == []


def test_counts_are_read_in_pieces_of_any_size() -> None:
    written = b"./a\n\0003\n./b\00012\n\n15 matches\n7 files searched\n"
    for cut in range(len(written)):
        reader = CountReader(10)
        reader.feed(written[:cut])
        reader.feed(written[cut:])
        assert (reader.counts, reader.searched) == ({"a\n": 3, "b": 12}, 7)


def test_a_record_outside_a_file_is_ignored() -> None:
    reader = MatchReader(10)
    reader.feed(match("a", 1, "x\n") + record("context", lines={"text": ""}, line_number=1))
    reader.feed(record("end", binary_offset=None) + record("other"))
    assert (reader.matches, reader.files) == (0, [])


# -- programs that crash ----------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.process
async def test_a_program_that_panics_is_ended(tmp_path: Path) -> None:
    script = "printf \"thread 'main' panicked\" >&2; printf ' at somewhere' >&2; exec sleep 60"
    with anyio.fail_after(60):
        run = await run_program(["/bin/sh", "-c", script], {}, str(tmp_path), MatchReader(10), 50)
    assert (run.timed_out, run.exit_code) == (False, 2)


# -- handles ----------------------------------------------------------------------------------


def test_an_abandoned_handle_is_not_used(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    duplicate = DirHandle(handle)
    os.close(handle)
    duplicate.abandon()
    duplicate.abandon()
    assert find_names(duplicate, str(tmp_path), NameQuery("x")).examined == 0


class Reader:
    """A reader that has enough after so many pieces."""

    def __init__(self, enough: int) -> None:
        self.enough, self.fed = enough, list[bytes]()

    @property
    def is_full(self) -> bool:
        return len(self.fed) >= self.enough

    def feed(self, data: bytes) -> None:
        self.fed.append(data)


class Ended:
    """A process whose ends a test sets."""

    def __init__(self) -> None:
        self.exited = anyio.Event()
        self.output_open = self.errors_open = True


def test_a_reader_that_has_enough_gets_no_more() -> None:
    reader: Any = Reader(2)
    listener = ripgrep._OutputListener(reader)
    for piece in (b"1", b"2", b"3"):
        assert listener.over.is_set() is (piece == b"3")
        listener.stdout_received(piece)
    assert reader.fed == [b"1", b"2"]


def test_the_beginning_of_standard_error_is_kept_and_a_panic_ends_the_run() -> None:
    reader: Any = Reader(1)
    listener = ripgrep._OutputListener(reader)
    listener.stderr_received(b"x" * (ripgrep._STDERR_BYTES - 1))
    listener.stderr_received(b"yz")
    assert listener.stderr == b"x" * (ripgrep._STDERR_BYTES - 1) + b"y"
    assert not listener.over.is_set()
    listener = ripgrep._OutputListener(reader)
    listener.stderr_received(b"rg: " + ripgrep._PANIC)
    assert listener.over.is_set()


@pytest.mark.parametrize("last", ["exited", "output_open", "errors_open"])
def test_a_run_is_over_when_the_process_and_both_streams_have_ended(last: str) -> None:
    reader: Any = Reader(1)
    listener, child = ripgrep._OutputListener(reader), Ended()
    listener.child = cast("Any", child)

    def end(what: str) -> None:
        child.exited.set() if what == "exited" else setattr(child, what, False)
        listener.state_changed()

    for what in sorted({"exited", "output_open", "errors_open"} - {last}):
        end(what)
        assert not listener.over.is_set()
    end(last)
    assert listener.over.is_set()
