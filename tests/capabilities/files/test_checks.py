"""Elisions and syntax errors in the text that an edit produces."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
from tests.support.scripts import unmeasured

from indusagi.capabilities.files.plan import find_elisions, find_new_syntax_error

ELISIONS = """\
# ... rest of code unchanged ...
// rest of code ...
// ... existing code ...
/* ... unchanged methods ... */
# (rest of methods ...)
<!-- rest of the file remains the same -->
    # ... (previous code remains unchanged)
// ... rest of the implementation
-- remaining functions omitted for brevity
{/* ... existing components ... */}
# rest unchanged
// ... other imports ...
# ... keep existing code ...
# [rest of the file stays the same]
// The rest of the code is unchanged.
# ... omitted ...
# rest of your code here
# Rest of the class…
// unchanged code below
; ... remaining configuration ...
 * ... other methods ...
"""
COMMENTS = """\
# skip the rest of the file
# The rest of the arguments are passed on.
x = 1  # rest of code ...
print("...rest of the code unchanged...")
# other handlers may raise
# existing files are kept as they are by the caller
# wait for remaining tests to end
# the same
# Existing users keep their old password
# unchanged files are skipped
# rest
# returns the original file, unchanged
# All other methods delegate to the wrapped object.
...
# ...
# and so on ...
"""


@pytest.mark.parametrize("line", ELISIONS.splitlines())
def test_an_elision_is_found(line: str) -> None:
    assert find_elisions(f"a\n{line}\nb", "", "a.py") == [(2, line.strip())]


@pytest.mark.parametrize("line", COMMENTS.splitlines())
def test_an_ordinary_comment_is_not_an_elision(line: str) -> None:
    assert find_elisions(line, "", "a.py") == []


def test_an_elision_that_the_file_contains_already_is_kept() -> None:
    line = "# ... rest of code unchanged ..."
    assert find_elisions(f"x\n    {line}\r\n", f"{line}\n", "a.py") == []


@pytest.mark.parametrize("path", ["README.md", "a.markdown", "a.mdx", "a.rst", "a.txt", "A.ADOC"])
@pytest.mark.parametrize("line", ["# The rest of the file ...", "* ... other methods ..."])
def test_headings_and_lists_in_prose_are_not_elisions(line: str, path: str) -> None:
    assert find_elisions(line, "", path) == []
    assert find_elisions("<!-- rest of the file unchanged -->", "", path)


def test_a_long_line_is_not_an_elision() -> None:
    assert find_elisions(f"# rest of code ... {' ' * 200}x", "", "a.py") == []


@pytest.mark.parametrize("row", ["#", "*", "// ", "%", " "])
def test_a_long_row_of_signs_takes_linear_time(row: str) -> None:
    text = row[:-1] + row[-1] * 5_000_000
    assert find_elisions(f"{text}{'x' * 300}\n# rest unchanged", "", "a.py") == [(2, "# rest unchanged")]


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
def test_a_new_syntax_error_is_found(path: str, former: str | None, text: str, where: str) -> None:
    wrong = find_new_syntax_error(path, former, text)
    assert wrong is not None
    assert where in wrong


@pytest.mark.parametrize(("path", "former", "text", "where"), BROKEN)
def test_a_former_syntax_error_is_not_reported(path: str, former: str | None, text: str, where: str) -> None:
    assert find_new_syntax_error(path, text, text + " ") is None
    assert find_new_syntax_error(path, text, former or "") is None or not former


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
def test_valid_and_uncheckable_texts_give_no_error(path: str, text: str) -> None:
    assert find_new_syntax_error(path, None, text) is None


def test_an_invalid_escape_sequence_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_new_syntax_error("a.py", None, "x = '\\d'\n") is None


@pytest.mark.process
def test_importing_edit_and_write_loads_no_parser_or_library() -> None:
    code = (
        "import sys; import indusagi.capabilities.tools.edit, indusagi.capabilities.tools.edit; "
        "heavy = ('chardet', 'tomllib', 'xml.parsers.expat'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=unmeasured()
    )
    assert done.stdout.strip() == "[]"


def test_a_toml_file_of_many_tables_and_long_lines_is_checked() -> None:
    text = "".join(f"[a.b.c{n}]\nx.y = 'www.example.org {'.' * 60}'\n" for n in range(1_000))
    assert find_new_syntax_error("a.toml", None, f"{text}z = [{'1.5, ' * 9_000}]\n") is None
    assert find_new_syntax_error("a.toml", None, f"{text}z = [{'1.5, ' * 9_000}\n") is not None
