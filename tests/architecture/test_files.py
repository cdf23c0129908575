"""Files stay small enough to be read, and say what they are for."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SOURCES = sorted((ROOT / "src").rglob("*.py"))
LIMIT = 600
"""A longer file holds two nouns, or has a row here with the reason in its docstring."""
LARGER: dict[str, int] = {}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_source_file_is_short_and_begins_with_its_purpose(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LARGER.get(str(path.relative_to(ROOT)), LIMIT)
    assert ast.get_docstring(ast.parse(text))


def test_both_packages_are_typed() -> None:
    for package in ("indusagi", "induscode"):
        assert (ROOT / "src" / package / "py.typed").exists()


def test_no_commit_names_a_registry() -> None:
    for name in ("requirements.lock", "bootstrap.lock", "pyproject.toml"):
        assert "://" not in (ROOT / name).read_text(encoding="utf-8")
    assert not (ROOT / "uv.lock").exists()
