"""Comments in the place of code, told from comments about code."""

from __future__ import annotations

import pytest

from indusagi.capabilities.files.edits.elisions import omissions

PLACEHOLDERS = """\
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


@pytest.mark.parametrize("line", PLACEHOLDERS.splitlines())
def test_a_placeholder_is_noticed(line: str) -> None:
    assert omissions(f"a\n{line}\nb", "", "a.py") == [(2, line.strip())]


@pytest.mark.parametrize("line", COMMENTS.splitlines())
def test_a_comment_about_something_is_not_a_placeholder(line: str) -> None:
    assert omissions(line, "", "a.py") == []


def test_a_placeholder_that_the_file_has_already_is_somebodys_text() -> None:
    line = "# ... rest of code unchanged ..."
    assert omissions(f"x\n    {line}\r\n", f"{line}\n", "a.py") == []


@pytest.mark.parametrize("line", ["# The rest of the file ...", "* ... other methods ..."])
def test_headings_and_lists_in_prose_are_not_comments(line: str) -> None:
    assert omissions(line, "", "README.md") == []
    assert omissions("<!-- rest of the file unchanged -->", "", "README.md")


def test_a_long_line_is_no_placeholder() -> None:
    assert omissions(f"# rest of code ... {' ' * 200}x", "", "a.py") == []


@pytest.mark.parametrize("row", ["#", "*", "// ", "%", " "])
def test_a_row_of_signs_of_any_length_is_gone_through_once(row: str) -> None:
    text = row[:-1] + row[-1] * 20_000_000
    assert omissions(f"{text}{'x' * 300}\n# rest unchanged", "", "a.py") == [(2, "# rest unchanged")]
