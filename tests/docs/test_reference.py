"""The API reference has an entry for every public name."""

from __future__ import annotations

import re
from importlib import import_module

import pytest
from tests.support.scripts import ROOT

REFERENCE = ROOT / "docs/reference"
PAGES = {
    "indusagi.mcp": "mcp",
    "indusagi.interop": "interop",
    "indusagi.capabilities": "capabilities",
    "indusagi.runtime": "runtime",
    "indusagi.core": "core",
    "induscode.deck": "deck",
    "induscode.deck.mcp": "deck-mcp",
    "induscode.addons": "addons",
}


def read_entries(page: str) -> list[str]:
    text = (REFERENCE / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^::: (\S+)$", text, re.MULTILINE)


@pytest.mark.parametrize("module", PAGES)
def test_every_public_name_of_a_package_is_on_its_page(module: str) -> None:
    names = set(import_module(module).__all__)
    if module == "indusagi.capabilities":
        # Re-exported from `indusagi.runtime`, whose page describes them.
        names -= set(import_module("indusagi.runtime").__all__)
    shown = {entry.rpartition(".")[2] for entry in read_entries(PAGES[module])}
    assert names <= shown


@pytest.mark.parametrize("page", PAGES.values())
def test_every_entry_can_be_imported(page: str) -> None:
    for entry in read_entries(page):
        module, _, name = entry.rpartition(".")
        assert hasattr(import_module(module), name), entry


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in [*(ROOT / "docs").glob("*.md"), *REFERENCE.glob("*.md")]:
        assert path.relative_to(ROOT / "docs").as_posix() in navigation
