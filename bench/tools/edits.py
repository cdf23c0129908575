"""The scoreboard's probes of edit and write: cost of a miss, lost updates, bytes, wrong edits."""

from __future__ import annotations

import ast
import os
import stat
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from bench.tools.board import Finding, Item, format_counts, seconds
from bench.tools.subject import Stuck

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.tools.board import Scene
    from bench.tools.subject import Driver
    from indusagi.core.json import JsonObject

_MISS_S = 0.5
_SMALL = 25
_CALLERS = 20


def miss(scene: Scene) -> Finding:
    """Edit what is not there: in a small file, and in a large one."""
    small = _time_miss(scene, _SMALL)
    try:
        large = min(_time_miss(scene, scene.sizes.edit_lines) for _ in range(scene.tries))
    except Stuck as exc:
        return Finding(ok=False, text=f"{exc} ({_SMALL} lines: {seconds(small)})")
    text = f"{seconds(large)} ({_SMALL} lines: {seconds(small)})"
    return Finding(large < _MISS_S, text, {"seconds": large, "small_seconds": small})


def _time_miss(scene: Scene, lines: int) -> float:
    path = scene.folder / "code.py"
    text = "".join(f"    value_{n} = compute({n}, {n * 7 % 13})\n" for n in range(lines))
    path.write_text(text, encoding="utf-8")
    at = lines // 2
    wanted = "".join(f"    value_{n} = computed({n}, {n * 7 % 13})\n" for n in range(at, at + 8))
    with scene.driver() as driver:
        driver.call("read", {"path": path.name}, scene.sizes.patience_s)
        arguments = {"path": path.name, "oldText": wanted, "newText": "    pass\n"}
        return driver.call("edit", {**arguments}, scene.sizes.patience_s).seconds


def parallel(scene: Scene) -> Finding:
    """Have many edit different lines of one file at once; count those that are gone after it."""
    path = scene.folder / "lines.txt"
    lost = told = 0
    with scene.driver() as driver:
        for _ in range(scene.sizes.edit_rounds):
            path.write_text("".join(f"line {n:02} old\n" for n in range(_CALLERS)), "utf-8")
            driver.call("read", {"path": path.name})
            batch = driver.calls(
                [
                    ("edit", {"path": path.name, "oldText": f"line {n:02} old", "newText": f"line {n:02} new"})
                    for n in range(_CALLERS)
                ],
                together=True,
            )
            after = path.read_text("utf-8")
            for n, answer in enumerate(batch.answers):
                told += answer is not None and not answer.error
                lost += f"line {n:02} new" not in after
    total = _CALLERS * scene.sizes.edit_rounds
    text = f"{lost} of {total} lost, {told} reported as done"
    return Finding(lost == 0, text, {"lost": lost, "total": total})


# -- bytes ----------------------------------------------------------------------------------

_ENCODINGS = ("utf-8", "utf-8-sig", "utf-16-le", "utf-16-be", "latin-1", "cp1252", "cp1251", "shift_jis", "gb18030")
_MARKS = {"utf-8-sig": "", "utf-16-le": "\ufeff", "utf-16-be": "\ufeff"}
"""What is put before the text; the codec of the first puts it there itself."""
_WORDS = {
    "cp1251": "Съешь ещё этих мягких французских булок",
    "shift_jis": "日本語の文章をここに書きます",
    "gb18030": "这里写一些中文的句子作为例子",
}
_ENDINGS = ("\n", "\r\n", "mixed", "no last")


@dataclass(frozen=True, slots=True)
class _Edit:
    """An edit, and what it makes of the lines of a file."""

    name: str
    old: str
    new: str


_EDITS = (
    _Edit("word", "target one", "goal number one"),
    _Edit("lines", "target one\ntarget two\n", "goal one\ngoal between\ngoal two\n"),
    _Edit("cut", "target two\n", ""),
)


def check_bytes(scene: Scene) -> Finding:
    """Edit files of all kinds and compare every byte with what it must be."""
    files: dict[str, tuple[bytes, bytes]] = {}
    calls: list[tuple[str, JsonObject]] = []
    for encoding, ending, edit in product(_ENCODINGS, _ENDINGS, _EDITS):
        name = f"{encoding}-{_ENDINGS.index(ending)}-{edit.name}.txt"
        files[name] = _file(encoding, ending, edit)
        (scene.folder / name).write_bytes(files[name][0])
        calls.append(("read", {"path": name}))
        calls.append(("edit", {"path": name, "oldText": edit.old, "newText": edit.new}))
    with scene.driver() as driver:
        driver.calls(calls, watch=False)
    kept = refused = damaged = 0
    for name, (before, after) in files.items():
        found = (scene.folder / name).read_bytes()
        kept += found == after
        refused += found == before
        damaged += found not in {before, after}
    text = f"{kept} of {len(files)} exact, {refused} refused, {damaged} damaged"
    figures = {"exact": kept, "refused": refused, "damaged": damaged, "total": len(files)}
    return Finding(kept == len(files), text, figures)


def _file(encoding: str, ending: str, edit: _Edit) -> tuple[bytes, bytes]:
    """Give a file before and after an edit: what is not replaced is the same by construction."""
    words = _WORDS.get(encoding, "Füße, déjà vu, señor")
    # In the mixed file the lines of the target end as those before it, and others do not.
    first = "\r\n" if ending in {"mixed", "\r\n"} else "\n"
    last = "\n" if ending == "mixed" else first
    head = "".join(f"{words} {n}{first}" for n in range(4))
    tail = "".join(f"{words} {n}{last}" for n in range(4, 8))
    if ending == "no last":
        tail = tail.removesuffix("\n")
    middle = "target one\ntarget two\n"
    mark = _MARKS.get(encoding, "")

    def whole(middle: str) -> bytes:
        return (mark + head + middle.replace("\n", first) + tail).encode(encoding)

    return whole(middle), whole(middle.replace(edit.old, edit.new))


# -- wrong edits ----------------------------------------------------------------------------


def sound(scene: Scene) -> Finding:
    """Try edits that a careless tool gets wrong."""
    with scene.driver() as driver:
        return format_counts({name: case(scene, driver) for name, case in _CASES.items()})


def _apply_edits(scene: Scene, driver: Driver, before: str, old: str, new: str) -> str:
    path = scene.folder / "case.py"
    path.write_text(before, encoding="utf-8", newline="")
    driver.call("read", {"path": path.name})
    driver.call("edit", {"path": path.name, "oldText": old, "newText": new})
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def _indentation(scene: Scene, driver: Driver) -> bool:
    before = "class A:\n    def f(self):\n        x = 1\n"
    after = _apply_edits(scene, driver, before, "def f(self):\n    x = 1", "def f(self):\n    x = 2")
    try:
        ast.parse(after)
    except SyntaxError:
        return False
    return True


def _is_unchanged(before: str, old: str) -> Callable[[Scene, Driver], bool]:
    def case(scene: Scene, driver: Driver) -> bool:
        return _apply_edits(scene, driver, before, old, "z = 0") == before

    return case


def _overwrite(scene: Scene, driver: Driver) -> bool:
    path = scene.folder / "unread.txt"
    path.write_text("precious\n", encoding="utf-8")
    driver.call("write", {"path": path.name, "content": "gone\n"})
    return path.read_text(encoding="utf-8") == "precious\n"


def _stale(scene: Scene, driver: Driver) -> bool:
    path = scene.folder / "stale.txt"
    path.write_text("one\n", encoding="utf-8")
    driver.call("read", {"path": path.name})
    path.write_text("two\n", encoding="utf-8")
    driver.call("write", {"path": path.name, "content": "one and more\n"})
    return path.read_text(encoding="utf-8") == "two\n"


def _through_link(scene: Scene, driver: Driver) -> bool:
    target, link = scene.folder / "target.sh", scene.folder / "link.sh"
    target.write_text("echo one\n", encoding="utf-8")
    target.chmod(0o750)
    link.symlink_to(target.name)
    driver.call("read", {"path": link.name})
    driver.call("edit", {"path": link.name, "oldText": "one", "newText": "two"})
    mode = stat.S_IMODE(os.stat(target).st_mode)
    return link.is_symlink() and mode == 0o750 and "two" in target.read_text(encoding="utf-8")


_CASES: dict[str, Callable[[Scene, Driver], bool]] = {
    "indentation kept valid": _indentation,
    "no match across lines": _is_unchanged("a = 1\nb = 2\n", "a = 1 b = 2"),
    "no match by similarity": _is_unchanged("if ok:\n    y = 99\n    done()\n", "if ok:\n    y = 2\n"),
    "ambiguous refused": _is_unchanged("x = 1\ny = 2\nx = 1\n", "x = 1"),
    "unread file is not overwritten": _overwrite,
    "changed file is not overwritten": _stale,
    "link and mode kept": _through_link,
}

ITEMS = (
    Item("edit-miss", "an edit that finds nothing, in 20,000 lines", "< 0.5 s", miss),
    Item("edit-parallel", "20 edits of one file at once, 5 times", "none lost", parallel),
    Item("edit-bytes", "9 encodings, 4 line endings, 3 edits: byte for byte", "all", check_bytes),
    Item("edit-sound", "edits and writes that must be refused, or done with care", "all", sound),
)
