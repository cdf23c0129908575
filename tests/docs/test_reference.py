"""The API reference has an entry for every public name, and the pages of the command agree with its tables."""

from __future__ import annotations

import json
import re
import runpy
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.scripts import ROOT, run

from induscode.commands.groups import CommandGroup
from induscode.commands.program import root_command

if TYPE_CHECKING:
    from pathlib import Path

    import click

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
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").as_posix()
        assert f" {name}\n" in navigation or name.startswith("decisions/0")


@pytest.mark.parametrize("page", ["commands.md", "settings.md", "exit-codes.md", "json.md"])
def test_pages_of_the_command_agree_with_its_tables(page: str) -> None:
    assert (REFERENCE / page).read_text(encoding="utf-8") == SCRIPT["build_pages"]()[page], "run make reference"


def test_files_of_the_state_directory_exist_in_the_source() -> None:
    page = (REFERENCE / "files.md").read_text(encoding="utf-8").partition("## In the state directory")[2]
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    cells = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    names = [name for cell in cells for path in re.findall(r"`([^`]+)`", cell) for name in path.strip("/").split("/")]
    assert len(names) > 20
    for name in names:
        assert re.search(r"[<{]|NODE", name) or re.search(rf'["/]{re.escape(name)}["/]', source), name


@pytest.mark.process
@pytest.mark.parametrize("words", SCRIPT["JSON_FORMATS"])
def test_json_has_the_members_of_the_reference(words: str, tmp_path: Path) -> None:
    done = run(*words.split(), "--json", cwd=tmp_path)
    assert tuple(json.loads(done.stdout)) == SCRIPT["JSON_FORMATS"][words]


def test_every_list_has_json_of_a_documented_format() -> None:
    lists: dict[str, click.Command] = {}
    for path, command in SCRIPT["_walk"](root_command()):
        if isinstance(command, CommandGroup):
            continue
        if path[-1] in {"list", "timeline", "auth", "connect", "calls", "top", "audit"}:
            lists[" ".join(path[1:])] = command
    without = [words for words, one in lists.items() if not any("--json" in option.opts for option in one.params)]
    assert (without, len(lists) > 10) == ([], True)
    documented = [" ".join(word for word in words.split() if word[0] != "-") for words in SCRIPT["JSON_FORMATS"]]
    assert {*lists} <= {*documented}
