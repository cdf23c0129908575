"""A guide is about one task: short, shown rather than told, and addressed to the reader."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import ROOT

if TYPE_CHECKING:
    from pathlib import Path

GUIDES = sorted((ROOT / "docs/guides").rglob("*.md"))
MAX_WORDS = 800
MIN_BLOCKS = 6
"""Code blocks per 1,000 words."""


def test_there_are_guides() -> None:
    assert len(GUIDES) > 40


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_is_short_and_shows_code(guide: Path) -> None:
    text = guide.read_text(encoding="utf-8")
    words = len(text.split())
    blocks = len(re.findall(r"^ *```\w", text, re.MULTILINE))
    assert words <= MAX_WORDS, f"{words} words: split the page by task, or move details to docs/reference"
    assert 1000 * blocks >= MIN_BLOCKS * words, f"{blocks} code blocks in {words} words: show it instead"


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_speaks_to_the_reader(guide: Path) -> None:
    assert re.search(r"\byour?\b", guide.read_text(encoding="utf-8"), re.IGNORECASE)
