"""Invisible characters are reported by kind and line."""

from __future__ import annotations

import pytest

from indusagi.capabilities.files.lines import find_invisible


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\x1b[31mb", "terminal escape sequences in line 7"),
        ("\x1b]52;c;aGk=\x07", "terminal escape sequences in line 7"),
        ("a\x9b1m", "terminal escape sequences in line 7"),
        ("if admin\u202e \u2066// check\u2069", "text direction controls"),
        ("\u200f", "text direction controls in line 7"),
        ("x\U000e0041\U000e0042", "2 tag characters first in line 7"),
        ("pass\u200bword", "invisible characters in line 7"),
        ("\ufeffx", "invisible characters in line 7"),
        ("a\u200db", "invisible characters in line 7"),
        ("a\U000e0101", "invisible characters in line 7"),
        ("a\x07b", "control characters in line 7"),
        ("a\rb", "control characters in line 7"),
        ("a\u2028b", "control characters in line 7"),
    ],
)
def test_r42_each_kind_is_named(text: str, said: str) -> None:
    (found, *_) = find_invisible([(7, text)])
    assert said in str(found)


@pytest.mark.parametrize(
    "text", ["", "plain\ttext", "日本語 العربية עברית", "👩\u200d💻 family", "a\x0cb", "naïve “quotes”", "tail\r"]
)
def test_ordinary_text_of_any_script_is_not_reported(text: str) -> None:
    assert not find_invisible([(1, text)])


def test_the_count_and_the_first_line_of_each_kind_are_reported() -> None:
    lines = [(1, "a"), (2, "\u202ex\u200b"), (3, "\u202e\x1b[0m"), (4, "\u202e")]
    assert [str(kind) for kind in find_invisible(lines)] == [
        "terminal escape sequences in line 3",
        "3 text direction controls first in line 2",
        "invisible characters in line 2",
    ]
