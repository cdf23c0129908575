"""The engine in Python, beside ripgrep: what both write is read by the same reader."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from indusagi.capabilities.search import engine, ripgrep
from indusagi.capabilities.search.records import Counts, Matches
from indusagi.capabilities.search.request import MAX_FILE_BYTES, Mode, Search

if TYPE_CHECKING:
    from collections.abc import Mapping

RG = str(Path(sys.executable).parent / "rg")
Said = tuple[int, object, int | None]


def fill(root: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)


def read(search: Search, output: bytes, root: Path) -> tuple[object, int | None]:
    """Give all that there is in what was written, files by their way from the root."""
    if search.mode is Mode.COUNT:
        counts = Counts(1_000)
        counts.feed(output)
        named = {_below(path, root): count for path, count in counts.counts.items()}
        return sorted(named.items()), counts.searched
    matches = Matches(1_000)
    matches.feed(output)
    lines = sorted(
        (_below(file.path, root), file.is_binary, [(line.number, line.text, line.match)])
        for file in matches.files
        for line in (file.lines if not file.is_binary else file.lines[:0])
    )
    return (lines, sorted(_below(path, root) for path in matches.binary)), matches.searched


def _below(path: str, root: Path) -> str:
    return path.removeprefix(f"{root}/")


def by_us(root: Path, search: Search, capture: pytest.CaptureFixture[bytes], target: str | None = None) -> Said:
    path, extent = (target, "whole") if target else (str(root), "tree")
    code = engine.main(json.dumps(asdict(search)), path, extent)
    return code, *read(search, capture.readouterr().out, root)


def by_ripgrep(root: Path, search: Search, target: str | None = None) -> Said:
    where, whole = target or str(root), target is not None
    argv = ripgrep.command(RG, search, where, in_order=True, whole=whole)
    done = subprocess.run(argv, cwd=root, capture_output=True, check=False)
    return done.returncode, *read(search, done.stdout, root)


FILES: dict[str, str | bytes] = {
    "a.py": "foo\nbar\nfoo bar\n\nend",
    "b/c.ts": "x\nfoo(\n\nfoo\nfoo\n",
    "b/d.tsx": "Foo\r\nbar\r\n",
    "e.log": "foo\n",
    "node_modules/f.py": "foo\n",
    "utf16": "foo é\n".encode("utf-16"),
    "bom": "\ufefffoo\n",
    "latin": b"foo \xe9\n",
    "late": b"foo\n" + b"x\n" * 60_000 + b"\0",
    "early": b"foo\n\0",
    "\udce9": "foo\n",
    ".gitignore": "*.log\nnode_modules/\n",
    "empty": "",
}
SEARCHES = [
    Search(pattern="foo"),
    Search(pattern="nothing"),
    Search(pattern="foo", before=1, after=1),
    Search(pattern="foo", ignore_case=True, literal=True),
    Search(pattern="foo(", literal=True),
    Search(pattern="f o o", extended=True),
    Search(pattern="foo.bar", multiline=True, dot_all=True),
    Search(pattern=r"foo\nfoo|foo", multiline=True),
    Search(pattern=r"foo\n", multiline=True, mode=Mode.FILES),
    Search(pattern="^$"),
    Search(pattern="foo", mode=Mode.FILES),
    Search(pattern="foo", mode=Mode.COUNT),
    Search(pattern="foo", no_ignore=True),
    Search(pattern="foo", glob="*.{ts,py}"),
    Search(pattern="foo", glob="!b"),
    Search(pattern="foo", glob="b/**"),
    Search(pattern="foo", type="py"),
    Search(pattern="foo(?! bar)"),
    Search(pattern=r"\x{66}oo"),
    Search(pattern=r"[[:alpha:]]oo"),
    Search(pattern=r"o[[:^alpha:]]"),
    Search(pattern=r"o\r$"),
    Search(pattern=r"foo\nbar", multiline=True),
    Search(pattern=r"foo(\n|)", multiline=True, mode=Mode.COUNT),
    Search(pattern="foo", glob="*.ts{,x}"),
    Search(pattern=r"(?<name>f)oo$"),
]


@pytest.mark.process
@pytest.mark.parametrize("number", range(len(SEARCHES)))
def test_both_engines_write_the_same(number: int, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    fill(tmp_path, FILES)
    search = SEARCHES[number]
    assert by_us(tmp_path, search, capsysbinary) == by_ripgrep(tmp_path, search)


@pytest.mark.process
@pytest.mark.parametrize("name", ["a.py", "latin", "early", "empty"])
def test_both_engines_write_the_same_of_one_file(
    name: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    fill(tmp_path, FILES)
    search, target = Search(pattern="foo"), str(tmp_path / name)
    assert by_us(tmp_path, search, capsysbinary, target) == by_ripgrep(tmp_path, search, target)


@pytest.mark.parametrize(
    ("search", "word"),
    [
        (Search(pattern="foo("), "regex parse error:\n    foo(\n       ^\nerror: missing )"),
        (Search(pattern=r"\x{ffffff}"), "regex parse error"),
        (Search(pattern="[a-z&&[^b]]"), "Possible set intersection"),
        (Search(pattern="a{99999999999}"), "regex parse error"),
        (Search(pattern="foo", glob="{a,b}" * 9), "error parsing glob"),
    ],
)
def test_what_cannot_be_searched_for_is_said(
    search: Search, word: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert engine.main(json.dumps(asdict(search)), str(tmp_path), "tree") == 2
    assert word in capsysbinary.readouterr().err.decode()


def test_files_that_are_too_large_are_left_out(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    fill(tmp_path, {"large": "foo\n", "small": "foo\n"})
    os.truncate(tmp_path / "large", MAX_FILE_BYTES + 1)
    code, _, searched = by_us(tmp_path, Search(pattern="foo"), capsysbinary)
    assert (code, searched) == (0, 1)


def test_a_file_that_cannot_be_read_leaves_the_others(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, {"a": "foo\n", "b": "foo\n"})
    real = os.open

    def opening(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        if path == "a":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", opening)
    assert engine.main(json.dumps(asdict(Search(pattern="foo"))), str(tmp_path), "tree") == 2
    said = capsysbinary.readouterr()
    assert said.err == b"a: Permission denied\n"
    assert b'"b"' in said.out


def test_a_reader_that_has_gone_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {str(number): "foo\n" for number in range(20)})
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        assert engine.main(json.dumps(asdict(Search(pattern="foo"))), str(tmp_path), "tree") == 2
        monkeypatch.undo()
