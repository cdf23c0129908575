"""The glossary is sorted, and the names it gives exist."""

from __future__ import annotations

import re

from tests.support.scripts import ROOT

PAGE = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
LINES = PAGE.partition("## The words")[2].partition("\n## ")[0].splitlines()
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in LINES if line.startswith("| ")][1:]


_DEFINED = re.compile(r"^[ \t]*(?:class|def|async def) (\w+)|^[ \t]*(\w+): ", re.MULTILINE)


def read_defined_names() -> set[str]:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    return {name for text in texts for names in _DEFINED.findall(text) for name in names if name}


def test_every_word_has_one_row_in_alphabetical_order() -> None:
    words = [row[0] for row in ROWS]
    assert words == sorted(set(words))
    assert len(words) > 80


def test_class_names_in_the_glossary_exist() -> None:
    defined = read_defined_names()
    shown = {name for row in ROWS for name in re.findall(r"`([A-Z][a-z]\w+)`", row[2])}
    assert shown - defined == set()
