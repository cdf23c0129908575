"""The command line of ripgrep: which option each part of a search becomes."""

from __future__ import annotations

from typing import Any

import pytest

from indusagi.capabilities.search.request import MAX_FILE_BYTES, Mode, Search
from indusagi.capabilities.search.search import build_command

COMMON = {
    *("--no-config", "--hidden", "--engine=auto", "--no-require-git", "--no-ignore-dot", "--no-ignore-messages"),
    *("--color=never", "--glob=!.git", "-e", "--"),
}


def build(pattern: str = "a", *, in_order: bool = False, whole: bool = False, **search: Any) -> list[str]:
    """Return the options of a search beside the common ones."""
    argv = build_command("rg", Search(pattern=pattern, **search), "target", in_order=in_order, whole=whole)
    assert (argv[0], argv[-1], argv[-2]) == ("rg", "target", "--")
    assert set(argv) >= COMMON
    assert argv.index("--glob=!.git") + 1 == argv.index("-e")
    return [word for word in argv[1:-1] if word not in COMMON and not word.startswith("--threads=")]


SIZE = f"--max-filesize={MAX_FILE_BYTES}"
CONTENT = ["--json", "--before-context=0", "--after-context=0", "--crlf"]


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ({}, [*CONTENT, SIZE, "a"]),
        ({"in_order": True}, [*CONTENT, "--sort=path", SIZE, "a"]),
        ({"whole": True}, [*CONTENT, "a"]),
        ({"before": 2, "after": 3}, ["--json", "--before-context=2", "--after-context=3", "--crlf", SIZE, "a"]),
        ({"mode": Mode.FILES}, ["--json", "--max-count=1", "--crlf", SIZE, "a"]),
        ({"mode": Mode.COUNT}, ["--count", "--null", "--stats", "--with-filename", "--crlf", SIZE, "a"]),
        (
            {"mode": Mode.COUNT, "multiline": True},
            ["--count-matches", "--null", "--stats", "--with-filename", "--crlf", "--multiline", SIZE, "a"],
        ),
        ({"ignore_case": True}, [*CONTENT, "--ignore-case", SIZE, "a"]),
        ({"multiline": True, "dot_all": True}, [*CONTENT, "--multiline", "--multiline-dotall", SIZE, "a"]),
        ({"no_ignore": True}, [*CONTENT, "--no-ignore", SIZE, "a"]),
        ({"type": "py"}, [*CONTENT, "--type=py", SIZE, "a"]),
        ({"glob": "*.py"}, [*CONTENT, "--glob=*.py", SIZE, "a"]),
        ({"glob": "*.ts{,x}"}, [*CONTENT, "--glob=*.ts", "--glob=*.tsx", SIZE, "a"]),
        ({"glob": "*.{py"}, [*CONTENT, "--glob=*.{py", SIZE, "a"]),
        ({"secrets": (".env", "a*[b]")}, [*CONTENT, SIZE, "--glob=!/.env", r"--glob=!/a\*\[b\]", "a"]),
        ({"literal": True}, [*CONTENT, SIZE, "--fixed-strings", "a"]),
        ({"pattern": "a\nb", "literal": True}, [*CONTENT, SIZE, r"a(?:\r?\n)b"]),
        ({"pattern": r"a\r"}, [*CONTENT[:-1], SIZE, r"a\r"]),
        ({"pattern": "a b", "extended": True}, [*CONTENT, SIZE, "(?x)a b\n"]),
        ({"pattern": "a b", "extended": True, "literal": True}, [*CONTENT, SIZE, "--fixed-strings", "a b"]),
    ],
)
def test_a_search_becomes_a_command_line(search: dict[str, Any], expected: list[str]) -> None:
    assert build(**search) == expected


@pytest.mark.parametrize(("cores", "threads"), [(None, 1), (1, 1), (1_000, 4)])
def test_threads_are_as_many_as_cores_up_to_a_number(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, threads: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    for in_order, expected in ((False, threads), (True, 1)):
        argv = build_command("rg", Search(pattern="a"), "t", in_order=in_order, whole=False)
        assert f"--threads={expected}" in argv
