"""The examples that are shown are the examples that run."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.support.scripts import ROOT, run

pytestmark = pytest.mark.process
README = (ROOT / "README.md").read_text(encoding="utf-8")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=25
    )


def test_the_readme_shows_the_example_that_runs_here() -> None:
    source = (ROOT / "docs_src/first_tool.py").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert shown == source
    words = len(README.split())
    expected = f"False {{'lines': {len(README.splitlines())}, 'words': {words}}}\n"
    assert python("docs_src/first_tool.py").stdout == expected


def test_the_readme_shows_what_the_demo_prints() -> None:
    (shown,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    assert shown in python("docs_src/demo.py").stdout


def test_the_demo_leaves_nothing_in_the_home_directory() -> None:
    python("docs_src/demo.py")
    assert list(Path.home().iterdir()) == []


def test_the_readme_shows_what_bad_input_gets() -> None:
    (shown,) = re.findall(r"\$ indus (--cwd nowhere)\n(.*?)```", README, re.DOTALL)
    assert run(*shown[0].split(), cwd=ROOT / "docs").stderr == shown[1]


def test_the_readme_is_short() -> None:
    assert 75 <= len(README.splitlines()) <= 150


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")))
def test_every_link_between_the_pages_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("example", ["mount_servers", "drive_endpoint", "one_process"])
def test_the_page_on_servers_shows_what_its_examples_print(example: str) -> None:
    page = (ROOT / "docs/mcp-servers.md").read_text(encoding="utf-8")
    assert python(f"docs_src/{example}.py").stdout in page


def test_the_page_on_servers_shows_lines_of_its_example() -> None:
    page = (ROOT / "docs/mcp-servers.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    source = (ROOT / "docs_src/mount_servers.py").read_text(encoding="utf-8")
    assert textwrap.indent(shown, "    ") in source
