"""The scoreboard's probes of read, grep and find."""

from __future__ import annotations

import shutil
import statistics
import subprocess
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from bench.row import CannotMeasure
from bench.tools.board import MB, Finding, Item, format_counts, seconds
from bench.tools.trees import files_in, grow, list_by_git
from indusagi.capabilities.search.search import find_ripgrep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.tools.board import Scene
    from bench.tools.subject import Answer
    from indusagi.core.json import JsonObject

_GROWTH = 16 * MB
_TIMES = {"grep": 1.3, "find": 2.0}
_ROUNDS, _MOST_ROUNDS = 4, 12
_IN_A_ROW = 3
_LINE = "line %09d of a log that somebody has let grow for very long\n"
_NEEDLE = "needle_in_the_hay"
_NAMED = "file7"
_BATCH = 50

# -- read -----------------------------------------------------------------------------------


def large(scene: Scene) -> Finding:
    """Read three lines from the middle of a large file, beside sed."""
    count = scene.sizes.file_bytes // len(_LINE % 0)
    path = scene.folder / "large.log"
    with open(path, "w", encoding="ascii") as file:
        for start in range(0, count, 10_000):
            file.write("".join(_LINE % n for n in range(start, min(start + 10_000, count))))
    at = count // 2
    with scene.driver() as driver:
        arguments: JsonObject = {"path": path.name, "offset": at, "limit": 3}
        driver.call("read", {"path": path.name, "offset": 1, "limit": 3}, scene.sizes.patience_s)
        batch = driver.calls([("read", arguments)], limit_s=scene.sizes.patience_s)
    (answer,) = batch.answers
    if answer is None or batch.growth is None:
        return Finding(ok=False, text=f"over {scene.sizes.patience_s:g} s, given up")
    right = _LINE.strip() % at in answer.text
    text = f"+{batch.growth / MB:.1f} MB, {seconds(answer.seconds)}"
    by_sed = _by_sed(path, at)
    if by_sed is not None:
        text += f" (sed: {seconds(by_sed)})"
    figures = {"bytes": batch.growth, "seconds": answer.seconds}
    return Finding(batch.growth < _GROWTH and right, text, figures)


def _by_sed(path: Path, at: int) -> float | None:
    if not shutil.which("sed"):
        return None
    started = perf_counter()
    # The whole file: a reader that states the number of lines must read all of it.
    subprocess.run(["sed", "-n", f"{at},{at + 2}p", path], stdout=subprocess.DEVNULL, check=True)
    return perf_counter() - started


def kinds(scene: Scene) -> Finding:
    """Read files other than plain text."""
    folder = scene.folder
    (folder / "wide.txt").write_bytes("\ufeffgrüße\nzwei\n".encode("utf-16-le"))
    (folder / "old.txt").write_bytes("déjà vu, señor, garçon\n".encode("latin-1"))
    (folder / "program").write_bytes(b"\x7fELF" + bytes(range(256)) * 40)
    (folder / "one-line.js").write_text("x" * 3 * MB, encoding="ascii")
    with scene.driver() as driver:
        wide = driver.call("read", {"path": "wide.txt"})
        old = driver.call("read", {"path": "old.txt"})
        program = driver.call("read", {"path": "program"})
        one_line = driver.call("read", {"path": "one-line.js"})
        missing = driver.call("read", {"path": "one-lime.js"})
    cases = {
        "UTF-16 is read": "grüße" in wide.text and "\0" not in wide.text,
        "Latin-1 is read": "déjà vu" in old.text,
        "a program is refused": program.error and "\0" not in program.text,
        "a line of 3 MB is cut": not one_line.error and len(one_line.text) < 100_000,
        "a similar name is suggested": missing.error and "one-line.js" in missing.text,
    }
    return format_counts(cases)


# -- grep and find --------------------------------------------------------------------------


def probe_search(tool: str, scene: Scene) -> Finding:
    """Search a large tree, in turns with ripgrep by hand."""
    tree = scene.tree()
    program = find_ripgrep(str(tree))
    if program is None:
        raise CannotMeasure("there is no ripgrep")
    arguments, flags = _SEARCHES[tool]
    took = plain = 0.0
    ours: list[float] = []
    by_hand: list[float] = []
    command = [program, *_PLAIN, *flags, "./"]
    patience = scene.sizes.patience_s
    with scene.driver(tree) as driver:
        for turn in range(_MOST_ROUNDS):
            batch = driver.calls([(tool, arguments)] * _IN_A_ROW, watch=False, limit_s=_IN_A_ROW * patience)
            for answer in batch.answers:
                if answer is None or answer.error:
                    return Finding(ok=False, text=_describe_failure(answer, patience))
                ours.append(answer.seconds)
            by_hand += [_time_call(command, tree) for _ in range(_IN_A_ROW)]
            took, plain = statistics.median(ours), statistics.median(by_hand)
            # On only if it is over: others on the machine may be the reason.
            if (turn + 1 >= _ROUNDS and took <= _TIMES[tool] * plain) or sum(ours) > patience:
                break
    text = f"{took / plain:.2f} x ({seconds(took)} / {seconds(plain)})"
    if tool == "find":
        names = _time_call(["find", ".", "-name", f"*{_NAMED}*"], tree)
        text += f", plain `find` {seconds(names)}"
    figures = {"seconds": took, "rg_seconds": plain, "ratio": took / plain}
    return Finding(took <= _TIMES[tool] * plain, text, figures)


def _describe_failure(answer: Answer | None, patience_s: float) -> str:
    return f"over {patience_s:g} s, given up" if answer is None else "an error"


_PLAIN = ("--no-config", "--hidden", "--no-require-git", "--glob=!.git")
_SEARCHES: dict[str, tuple[JsonObject, Sequence[str]]] = {
    "grep": ({"pattern": _NEEDLE}, ("--json", "-e", _NEEDLE, "--")),
    "find": ({"query": _NAMED}, ("--files", "-0", f"--iglob=*{_NAMED}*", "--")),
}


def _time_call(command: Sequence[str], folder: Path) -> float:
    started = perf_counter()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, check=False)
    if not done.stdout:
        raise CannotMeasure(f"{Path(command[0]).name} by hand found nothing")
    return perf_counter() - started


def ignoring(scene: Scene) -> Finding:
    """Find all files of random trees, and compare with what git does not ignore."""
    if not shutil.which("git"):
        raise CannotMeasure("there is no git")
    count, wrong = scene.sizes.ignore_trees, 0
    roots = [scene.folder / str(seed) for seed in range(count)]
    for seed, root in enumerate(roots):
        grow(seed, root)
    with scene.driver() as driver:
        for start in range(0, count, _BATCH):
            part = roots[start : start + _BATCH]
            calls: list[tuple[str, JsonObject]] = [("find", {"query": "*", "path": root.name}) for root in part]
            for root, answer in zip(part, driver.calls(calls, together=True).answers, strict=True):
                listed = None if answer is None else _list_names(answer.text, root)
                wrong += listed != list_by_git(root)
    text = f"{wrong} of {count:,} trees"
    return Finding(wrong == 0, text, {"wrong": wrong, "total": count})


def _list_names(text: str, root: Path) -> set[str]:
    """Pick the files of the tree out of an answer, however it names them."""
    lines = {line.rstrip("\r") for line in text.split("\n")}
    return {
        name
        for name in files_in(root)
        if not lines.isdisjoint((name, f"./{name}", f"{root.name}/{name}", str(root / name)))
    }


ITEMS = (
    Item("read-large", "3 lines from the middle of 100 MB", "< 16 MB", large),
    Item("read-kinds", "files other than plain text", "all correct", kinds),
    Item("grep", "a rare word in 40,000 files, beside `rg`", "1.3 x", partial(probe_search, "grep")),
    Item("find", "names among 40,000 files, beside `rg`", "2 x", partial(probe_search, "find")),
    Item("ignore", "trees whose ignored files differ from git's", "0", ignoring),
)
