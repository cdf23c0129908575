"""What grep and find cost beside ripgrep run by hand, in a tree of 40,000 files."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import awaits, calls, compare
from bench.row import CannotMeasure, Row
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.registry import ToolRegistry
from indusagi.capabilities.search.search import find_ripgrep
from indusagi.capabilities.tools.find import find_tool
from indusagi.capabilities.tools.grep import grep_tool
from indusagi.runtime import ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.measure import Pair
    from indusagi.core.json import JsonObject

_FOLDERS = 2_000
_FILES = 20
"""In each of them."""
_ROUNDS = 9
_NEEDLE = "needle_in_the_hay"
_NAMED = "file7.py"
_RULES = "*.pyc\n*.log\nnode_modules/\n__pycache__/\n/dist\nbuild*/\n!keep.log\n"
_SAME_AS_OURS = (
    *("--no-config", "--hidden", "--no-require-git", "--crlf", "--engine=auto"),
    *("--max-filesize=20M", "--glob=!.git"),
)
_THREADS = f"--threads={min(4, os.cpu_count() or 1)}"
_ENDINGS = ("py", "js", "txt", "md", "log")


def plant(root: Path, folders: int) -> None:
    """Make a tree of small files that looks the same each time; one of them holds the needle."""
    chance = random.Random(1)
    words = [f"word{number}" for number in range(2_000)]
    for number in range(folders):
        folder = root / f"package{number % 40}" / f"module{number % 400}" / f"part{number}"
        folder.mkdir(parents=True)
        for at in range(_FILES):
            lines = (" ".join(chance.choices(words, k=8)) for _ in range(chance.randint(5, 40)))
            path = folder / f"file{at}.{chance.choice(_ENDINGS)}"
            path.write_text("\n".join(lines), encoding="utf-8")
    (root / ".gitignore").write_text(_RULES, encoding="utf-8")
    (root / "package3" / "needle.txt").write_text(f"hay\n{_NEEDLE}\n", encoding="utf-8")


def compare_tool(
    name: str, arguments: JsonObject, by_hand: Sequence[str], *, folders: int = _FOLDERS, rounds: int = _ROUNDS
) -> Pair:
    """Have a tool of a box and ripgrep by hand do the same in turns.

    Args:
        name: The tool.
        arguments: What it is given.
        by_hand: The same for ripgrep.
        folders: How large the tree is.
        rounds: How many turns each has.
    """
    with tempfile.TemporaryDirectory() as place, asyncio.Runner() as runner:
        root = Path(place)
        plant(root, folders)
        program = find_ripgrep(place)
        if program is None:
            raise CannotMeasure("there is no ripgrep")
        registry = ToolRegistry()
        registry.register_all([grep_tool(), find_tool()])
        box = registry.to_tool_box(make_local_context(root))

        async def ours() -> None:
            outcome = await box.runner.run(ToolCall("call-1", name, arguments))
            if outcome.is_error or not outcome.details["total"]:
                raise CannotMeasure(f"{name} found nothing: {outcome.output}")

        theirs = partial(_by_hand, [program, *_SAME_AS_OURS, *by_hand, "./"], root)
        return compare(awaits(runner, ours), calls(theirs), rounds=rounds)


def _by_hand(argv: Sequence[str], root: Path) -> None:
    found = subprocess.run(argv, cwd=root, stdout=subprocess.PIPE, check=False)
    if found.returncode or not found.stdout:
        raise CannotMeasure("ripgrep by hand found nothing")


ROWS: tuple[Row, ...] = (
    Row(
        "grep",
        "a rare word in 40,000 files",
        "rg",
        partial(compare_tool, "grep", {"pattern": _NEEDLE}, [_THREADS, "--json", "-e", _NEEDLE, "--"]),
        budget=1.3,
    ),
    Row(
        "find-sorted",
        "names among 40,000 files, in order",
        "rg --files --sort path",
        partial(compare_tool, "find", {"query": _NAMED}, ["--files", "-0", "--sort=path", f"--iglob=*{_NAMED}*", "--"]),
        budget=1.3,
    ),
    Row(
        "find",
        "names among 40,000 files",
        "rg --files",
        partial(compare_tool, "find", {"query": _NAMED}, [_THREADS, "--files", "-0", f"--iglob=*{_NAMED}*", "--"]),
        budget=2.0,
    ),
)
