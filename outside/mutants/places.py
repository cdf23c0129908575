"""A mutant, and the text of the places that may be changed."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed place of one file."""

    path: str
    """Relative to the repository."""
    line: int
    start: int
    end: int
    new: str
    """The bytes from `start` to `end` of the file become these."""
    change: str
    first: int
    last: int
    """The lines of the changed statement: a test that runs one of them may notice."""
    is_imported: bool
    """Whether the place runs when the module is imported."""

    @property
    def room(self) -> str:
        """The top-level package that the place belongs to."""
        parts = self.path.split("/")
        return "/".join(parts[1:3]) if len(parts) > 3 else parts[1]

    def apply(self, source: bytes) -> bytes:
        """Return the source of the file with the change."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def show(self, source: bytes) -> tuple[str, str]:
        """Return the changed line before and after."""
        begin = source.rfind(b"\n", 0, self.start) + 1
        stop = source.find(b"\n", self.end)
        stop = len(source) if stop < 0 else stop
        after = source[begin : self.start] + self.new.encode() + source[self.end : stop]
        return _flatten(source[begin:stop].decode()), _flatten(after.decode())


def _flatten(text: str) -> str:
    return " ".join(text.split())


def is_usable(mutant: Mutant, source: bytes) -> bool:
    """Tell whether the changed source is a program, and another one."""
    try:
        return ast.dump(ast.parse(mutant.apply(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


class Places:
    """The source of a file, and the mutants found in it so far."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.found: list[Mutant] = []
        self.lines = source.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.span = (1, 1)
        """The lines of the statement at hand."""
        self.functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        """The functions around the statement at hand."""

    def begin_of(self, node: ast.expr | ast.stmt) -> int:
        """Return where a node begins."""
        return self.starts[node.lineno - 1] + node.col_offset

    def end_of(self, node: ast.expr | ast.stmt) -> int:
        """Return where a node ends."""
        return self.starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def text_of(self, node: ast.expr | ast.stmt) -> str:
        """Return the text of a node."""
        return self.source[self.begin_of(node) : self.end_of(node)].decode()

    def splice(self, start: int, end: int, new: str, change: str) -> None:
        """Add a mutant that has another text from `start` to `end`."""
        line = self.source.count(b"\n", 0, start) + 1
        first, last = self.span
        self.found.append(Mutant(self.path, line, start, end, new, change, first, last, not self.functions))

    def replace(self, node: ast.expr | ast.stmt, new: str, change: str) -> None:
        """Add a mutant that has another text instead of a node."""
        self.splice(self.begin_of(node), self.end_of(node), new, change)

    def replace_between(self, left: ast.expr, right: ast.expr, old: str, new: str, change: str) -> None:
        """Add a mutant that has another operator between two operands."""
        start = self.end_of(left)
        gap = self.source[start : self.begin_of(right)].decode()
        word = rf"\b{old}\b" if old[0].isalpha() else re.escape(old)
        if match := re.search(word, gap):
            before = len(gap[: match.start()].encode())
            self.splice(start + before, start + before + len(match[0].encode()), new, change)

    def drop_items(self, items: Sequence[tuple[ast.expr, ast.expr]], change: str) -> None:
        """Drop each item of a display: from its first expression to the end of its second one."""
        for index, (first, last) in enumerate(items):
            if index + 1 < len(items):
                self.splice(self.begin_of(first), self.begin_of(items[index + 1][0]), "", change)
            else:
                self.splice(self.end_of(items[index - 1][1]), self.end_of(last), "", change)
