"""The API reference has an entry for every public name, and the pages of the command agree with its tables."""

from __future__ import annotations

import json
import re
import runpy
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.scripts import ROOT, run

if TYPE_CHECKING:
    from pathlib import Path

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

SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/reference.py"))


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


@pytest.mark.parametrize("page", ["commands.md", "settings.md"])
def test_pages_of_the_command_agree_with_its_tables(page: str) -> None:
    assert (REFERENCE / page).read_text(encoding="utf-8") == SCRIPT["build_pages"]()[page], "run make reference"


@pytest.mark.process
@pytest.mark.parametrize("words", SCRIPT["JSON_FORMATS"])
def test_json_has_the_members_of_the_reference(words: str, tmp_path: Path) -> None:
    done = run(*words.split(), "--json", cwd=tmp_path)
    assert tuple(json.loads(done.stdout)) == SCRIPT["JSON_FORMATS"][words]
