"""The pages show the examples that run, and every link leads to a file."""

from __future__ import annotations

import ast
import re
import textwrap
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import ROOT, run

if TYPE_CHECKING:
    from pathlib import Path

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]


def read_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def read_example(name: str) -> tuple[str, str]:
    """Read the program of an example and what it prints."""
    source = (ROOT / f"examples/{name}.py").read_text(encoding="utf-8")
    program, _, comment = source.partition("# Prints:\n")
    output = "".join(line.removeprefix("# ") for line in comment.splitlines(keepends=True))
    return program, output


def test_the_readme_shows_the_first_example() -> None:
    program, _ = read_example("first_tool")
    (shown,) = read_blocks(README, "python")
    assert shown == program.partition("\n\n")[2]


@pytest.mark.process
def test_the_page_on_the_command_shows_what_bad_input_gets() -> None:
    page = (ROOT / "docs/guides/ask-a-model.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"\$ indus (--cwd nowhere)\n(.*?)```", page, re.DOTALL)
    assert run(*shown[0].split(), cwd=ROOT / "docs").stderr == shown[1]


def test_the_readme_is_short() -> None:
    assert 75 <= len(README.splitlines()) <= 200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_the_pages_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    ("name", "guide"),
    [
        ("mount_servers", "servers-from-python"),
        ("mcp_client", "servers-from-python"),
        ("test_greeter", "test-your-server"),
    ],
)
def test_the_guides_on_servers_show_their_examples_and_what_they_print(name: str, guide: str) -> None:
    page = (ROOT / f"docs/guides/{guide}.md").read_text(encoding="utf-8")
    program, output = read_example(name)
    shown = [*read_blocks(page, "python"), *read_blocks(page, "text")]
    assert any(block in program or textwrap.indent(block, "    ") in program for block in shown)
    assert not output or output in page


@pytest.mark.parametrize("example", sorted((ROOT / "examples/adapters").glob("*.py")), ids=lambda path: path.stem)
def test_the_page_of_a_framework_shows_its_complete_example(example: Path) -> None:
    shown = [
        block
        for page in (ROOT / "docs/guides/adapters").glob("*.md")
        for block in read_blocks(page.read_text(encoding="utf-8"), "python")
    ]
    program = example.read_text(encoding="utf-8")
    assert shown.count(program) == 1
    assert "gate=ask" in program
    # From the configuration file to the agent: the block of `open_deck`, without what the answer is printed with.
    block = next(
        node
        for node in ast.walk(ast.parse(program))
        if isinstance(node, ast.With | ast.AsyncWith) and "open_deck" in ast.unparse(node.items[0])
    )
    assert 1 + len(block.body) <= 5


def test_the_map_names_definitions_of_the_files_it_sends_readers_to() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = page.partition("### Where to look first")[2].partition("\n\n`runtime`")[0]
    for path in re.findall(r"`(indus\w+/[\w/]+\.py)`", table):
        assert (ROOT / "src" / path).is_file(), path
    places = re.findall(r"((?:`[\w.]+`(?:, | and ))*`[\w.]+`) in `(indus\w+/[\w/]+\.py)`", table)
    assert len(places) > 20
    for names, path in places:
        source = (ROOT / "src" / path).read_text(encoding="utf-8")
        for name in re.findall(r"\w+(?=`)", names):
            assert re.search(rf"^ *(class|def|async def) {name}\b|^ *{name}\b.*[:=]", source, re.M), f"{name} in {path}"
