"""The snippets of the pages: Python parses and imports existing names, commands and flags of `indus` exist."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from importlib import import_module
from typing import TYPE_CHECKING, cast

import click
import pytest
from tests.support.scripts import ROOT

from induscode.commands.program import root_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGES = [
    path
    for pattern in ("*.md", "docs/*.md", "docs/[!d]*/**/*.md", "examples/*.md")
    for path in sorted(ROOT.glob(pattern))
    if path.parent.name != "adapters"  # Their programs import the frameworks: make adapters runs them.
]
FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def read_snippets(page: Path, language: str) -> list[str]:
    fences = FENCE.findall(page.read_text(encoding="utf-8"))
    return [textwrap.dedent(code) for _, found, code in fences if found == language]


def read_commands(page: Path) -> Iterator[list[str]]:
    """Read the arguments of every `$ indus …` line, without comments, pipes and redirections."""
    for snippet in read_snippets(page, "console"):
        for line in snippet.splitlines():
            match = re.search(r"(?:^\$ |\| )indus( .*)?$", line)
            if match is not None:
                words = shlex.split(match.group(1) or "", comments=True)
                stop = next((index for index, word in enumerate(words) if word in {">", ">>", "|"}), len(words))
                yield words[:stop]


def parse(command: click.Command, arguments: list[str], context: click.Context) -> None:
    """Parse `arguments` as click would, without checking values or running anything."""
    _, rest, _ = command.make_parser(context).parse_args(arguments)
    if isinstance(command, click.Group) and rest:
        inner = command.get_command(context, rest[0])
        assert inner is not None, f"there is no command {rest[0]!r}"
        parse(inner, rest[1:], click.Context(inner, parent=context, info_name=rest[0], **inner.context_settings))


def resolve(imported: ast.ImportFrom) -> None:
    module = import_module(cast("str", imported.module))
    for alias in imported.names:
        assert hasattr(module, alias.name), f"{imported.module} has no {alias.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_snippets_parse_and_import_existing_names(page: Path) -> None:
    for snippet in read_snippets(page, "python"):
        # A snippet may show the inside of a function.
        tree = ast.parse(f"async def snippet():\n{textwrap.indent(snippet, '    ')}")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("indusagi", "induscode")):
                resolve(node)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_shown_commands_and_flags_exist(page: Path) -> None:
    root = root_command()
    for arguments in read_commands(page):
        parse(root, arguments, click.Context(root, info_name="indus"))


def test_commands_are_found_in_the_pages() -> None:
    assert sum(len(list(read_commands(page))) for page in PAGES) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_shown_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shown = set(re.findall(r"(?:`|^\$ )make ([a-z][a-z-]*)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert shown <= targets
