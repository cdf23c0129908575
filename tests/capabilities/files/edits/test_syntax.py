"""Errors that a change has brought, and none that were there before."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
from tests.support.scripts import unmeasured

from indusagi.capabilities.files.edits.syntax import broken_by

BROKEN = [
    ("a.py", "x = 1\n", "x = (\n", "line 1"),
    ("a.pyi", "", "def f(:\n", "line 1"),
    ("b.PY", None, "if x:\npass\n", "line 2"),
    ("a.json", '{"a": 1}', '{"a": 1,}', "line 1"),
    ("a.toml", "a = 1\n", "a = \n", "line 1"),
    ("a.xml", "<a/>", "<a>\n<b></a>", "line 2"),
    ("a.svg", None, "<svg>", "line 1"),
]


@pytest.mark.parametrize(("path", "former", "text", "where"), BROKEN)
def test_an_error_that_a_change_brings_is_told(path: str, former: str | None, text: str, where: str) -> None:
    wrong = broken_by(path, former, text)
    assert wrong is not None
    assert where in wrong


@pytest.mark.parametrize(("path", "former", "text", "where"), BROKEN)
def test_an_error_that_was_there_before_is_not(path: str, former: str | None, text: str, where: str) -> None:
    assert broken_by(path, text, text + " ") is None
    assert broken_by(path, text, former or "") is None or not former


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "\ufeffx = 1\n"),
        ("a.py", "x = '\\d'\n"),
        ("a.py", "x = '\udce9'\n"),
        ("a.py", "x = " + "-" * 50_000 + "1"),
        ("a.py", "(" * 500_000),
        ("a.json", "[" * 100_000),
        ("a.json", "9" * 5_000),
        ("a.json", "{" * 400_001),
        ("a.toml", "=" * 400_001),
        ("a.toml", "a = " + "[" * 5_000),
        ("a.toml", "a = " + "9" * 5_000),
        ("a.toml", f"a{'.a' * 150_000} ="),
        ("a.toml", f"[a{'.a' * 100_000}]\n" + "k =\n" * 20_000),
        ("a.toml", "'='" + ".a" * 150_000 + " ="),
        ("a.xml", "<a>\udce9</a>"),
        ("a.xml", '<?xml version="1.0" encoding="latin-1"?><a>é</a>'),
        ("a.xml", '<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>'),
        ("a.xml", "<!DOCTYPE a [<!ENTITY x 'xx'>]><a>&x;</a"),
        ("tsconfig.json", "// a comment\n{}"),
        (".vscode/settings.json", "// a comment\n{}"),
        ("/w/.vscode/settings.json", "// a comment\n{}"),
        ("a.txt", "x = ("),
        ("py", "x = ("),
    ],
)
def test_what_is_right_or_cannot_be_told_is_passed_over(path: str, text: str) -> None:
    assert broken_by(path, None, text) is None


def test_a_doubtful_escape_warns_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert broken_by("a.py", None, "x = '\\d'\n") is None


@pytest.mark.process
def test_importing_the_tools_loads_no_parser_and_no_library() -> None:
    code = (
        "import sys; import indusagi.capabilities.tools.edit, indusagi.capabilities.tools.write; "
        "heavy = ('rapidfuzz', 'chardet', 'tomllib', 'xml.parsers.expat'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True, env=unmeasured()
    )
    assert done.stdout.strip() == "[]"


def test_a_toml_file_of_many_tables_and_long_lines_is_looked_at() -> None:
    text = "".join(f"[a.b.c{n}]\nx.y = 'www.example.org {'.' * 60}'\n" for n in range(1_000))
    assert broken_by("a.toml", None, f"{text}z = [{'1.5, ' * 9_000}]\n") is None
    assert broken_by("a.toml", None, f"{text}z = [{'1.5, ' * 9_000}\n") is not None
