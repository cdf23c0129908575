"""Match strategies: the laws of each, and difficult cases."""

from __future__ import annotations

import ast
import itertools
import re
import unicodedata
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import examples

from indusagi.capabilities.files.lines import has_line_numbers, strip_line_numbers
from indusagi.capabilities.files.match import (
    MatchStrategy,
    NoMatch,
    TextMatch,
    find_match,
    infer_unit,
    normalize_endings,
    reindent,
)
from indusagi.capabilities.files.replace import splice

if TYPE_CHECKING:
    import random

LINES = st.lists(
    st.sampled_from(["", " ", "\t", "a", "b = 1", "  a", "    a", "\ta", "a  ", "b = 1\t", "“a”", '"a"', "a b"]),
    min_size=1,
    max_size=6,
)
ENDS = st.sampled_from(["\n", "\r\n"])


@st.composite
def texts(draw: st.DrawFn) -> str:
    lines = draw(LINES)
    ends = [draw(ENDS) for _ in lines]
    text = "".join(line + end for line, end in zip(lines, ends, strict=True))
    return text if draw(st.booleans()) else text.removesuffix(ends[-1])


def replace_once(text: str, old: str, new: str, *, every: bool = False) -> tuple[MatchStrategy, str]:
    found = find_match(text, old, new, every=every)
    assert isinstance(found, TextMatch), f"{old!r} not found in {text!r}"
    assert every or len(found.spans) == 1
    return found.strategy, splice(text, found, old, new)


def has_no_match(text: str, old: str, new: str = "other") -> bool:
    return isinstance(find_match(text, old, new), NoMatch)


@given(st.text("ab\n", max_size=30), st.text("ab\n", min_size=1, max_size=4), st.text("ab\nc"))
def test_an_exact_replacement_equals_str_replace(text: str, old: str, new: str) -> None:
    if old in text:
        found = find_match(text, old, new, every=True)
        assert isinstance(found, TextMatch)
        assert found.strategy is MatchStrategy.EXACT
        assert splice(text, found, old, new) == text.replace(old, new)


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=3))
def test_overlapping_places_are_found_when_one_is_wanted(text: str, old: str) -> None:
    found = find_match(text, old, "x")
    places = [at for at in range(len(text)) if text.startswith(old, at)]
    seen = [] if isinstance(found, NoMatch) else [span.start for span in found.spans]
    assert seen == places


def _but_for(strategy: MatchStrategy, text: str) -> str:
    """Take away what a step ignores, by other means than the step does."""
    text = re.sub(r"\r?\n", "\n", text)
    if strategy is MatchStrategy.PUNCTUATION:
        text = unicodedata.normalize("NFKC", text).translate(str.maketrans("“”\u2018\u2019", "\"\"''"))
    if strategy in {MatchStrategy.TRAILING, MatchStrategy.INDENT, MatchStrategy.PUNCTUATION}:
        text = re.sub(r"[ \t\r]+(?=\n|\Z)", "", text)
    if strategy in {MatchStrategy.INDENT, MatchStrategy.PUNCTUATION}:
        text = re.sub(r"(?m)^[ \t]+", "", text)
    return text


@given(texts(), texts().filter(bool))
def test_a_strategy_ignores_nothing_else(text: str, old: str) -> None:
    found = find_match(text, old, "new")
    if isinstance(found, NoMatch):
        return
    for span in found.spans:
        there = text[span.start : span.end]
        wanted, seen = _but_for(found.strategy, old), _but_for(found.strategy, there)
        # A model that quotes the last line of a file cannot see whether it has an ending.
        unended = span.end == len(text) and not text.endswith("\n")
        assert seen == wanted or (unended and seen + "\n" == wanted)


@given(texts(), texts().filter(bool), texts())
def test_text_outside_of_a_match_is_unchanged(text: str, old: str, new: str) -> None:
    found = find_match(text, old, new, every=True)
    if isinstance(found, TextMatch):
        changed = splice(text, found, old, new)
        first, last = found.spans[0].start, found.spans[-1].end
        assert changed.startswith(text[:first])
        assert changed.endswith(text[last:])
        between = [text[one.end : other.start] for one, other in zip(found.spans, found.spans[1:], strict=False)]
        assert all(part in changed for part in between)


@given(texts(), st.data())
def test_whole_lines_quoted_with_other_endings_and_blanks_are_found(text: str, data: st.DataObject) -> None:
    lines = normalize_endings(text).split("\n")
    start = data.draw(st.integers(0, len(lines) - 1))
    end = data.draw(st.integers(start + 1, len(lines)))
    quoted = [line.rstrip() for line in lines[start:end]]
    if any(quoted):
        found = find_match(text, "\n".join(quoted), "new")
        assert isinstance(found, TextMatch)
        assert found.strategy in {MatchStrategy.EXACT, MatchStrategy.ENDINGS, MatchStrategy.TRAILING}


@pytest.mark.parametrize(
    ("strategy", "text", "old", "new", "expected"),
    [
        # Line endings: those of the file stay, an added line ends like its neighbours.
        (MatchStrategy.ENDINGS, "a\r\nb\r\nc\r\n", "a\nb\n", "A\nB\n", "A\r\nB\r\nc\r\n"),
        (MatchStrategy.ENDINGS, "a\r\nb\r\nc\r\n", "a\nb", "a\nx\ny\nb", "a\r\nx\r\ny\r\nb\r\nc\r\n"),
        (MatchStrategy.EXACT, "a\r\nb\r\n", "b", "b\nc", "a\r\nb\r\nc\r\n"),
        (MatchStrategy.EXACT, "a\r\nb", "b", "b\nc", "a\r\nb\r\nc"),
        (MatchStrategy.EXACT, "a\nb\r\nc\n", "a\n", "a\nx\n", "a\nx\nb\r\nc\n"),
        (MatchStrategy.EXACT, "a", "a", "a\nb", "a\nb"),
        # A carriage return without a newline is an ordinary character.
        (MatchStrategy.EXACT, "a\rb", "b", "b\nc", "a\rb\nc"),
        (MatchStrategy.EXACT, "a\rb\rc\r", "a\rb", "a\rx", "a\rx\rc\r"),
        (MatchStrategy.ENDINGS, "a\nb\r\nc\nd\r\n", "b\nc\n", "b\nC\n", "a\nb\r\nC\nd\r\n"),
        (MatchStrategy.ENDINGS, "x\r\ny\nz\r\n", "x\ny\nz\n", "x\n1\ny\nz\n", "x\r\n1\r\ny\nz\r\n"),
        (MatchStrategy.EXACT, "a\nb\n", "b\n", "b\r\nc\r\n", "a\nb\nc\n"),
        (MatchStrategy.ENDINGS, "a\r\nb\r\n", "\nb", "\nx\nb", "a\r\nx\r\nb\r\n"),
        (MatchStrategy.ENDINGS, "a\r\nb", "\n", "\n\n", "a\r\n\r\nb"),
        # Line endings are used as given if nothing else changes.
        (MatchStrategy.EXACT, "a\r\nb\n", "a\r\n", "a\n", "a\nb\n"),
        (MatchStrategy.ENDINGS, "a\r\nb\r\n", "a\nb\n", "a\r\nb\r\n", "a\r\nb\r\n"),
        # A last line that is not ended.
        (MatchStrategy.ENDINGS, "a\nb", "b\n", "c\n", "a\nc"),
        (MatchStrategy.ENDINGS, "a\nb", "b\n", "c", "a\nc"),
        (MatchStrategy.ENDINGS, "a\nb", "a\nb\n", "", ""),
        (MatchStrategy.TRAILING, "a\nb  ", "b\n", "c\n", "a\nc"),
        # Trailing blanks of unchanged lines are kept.
        (MatchStrategy.TRAILING, "a  \nb\t\nc\n", "a\nb\nc", "a\nB\nc", "a  \nB\nc\n"),
        (MatchStrategy.TRAILING, "a\nb\n", "a \nb  ", "A\nb", "A\nb\n"),
        (MatchStrategy.TRAILING, "f(x)  \n  y\n", "(x)\n  y", "(z)\n  y", "f(z)\n  y\n"),
        (MatchStrategy.TRAILING, "a\n   \nb\n", "\t\nb", "\t\nc", "a\n   \nc\n"),
        (MatchStrategy.TRAILING, "a\n   \nb\n", "\t\nb", "x\nb", "a\nx\nb\n"),
        (MatchStrategy.TRAILING, "a\r\r\nb\r\n", "a\nb", "a\nc", "a\r\r\nc\r\n"),
        (MatchStrategy.TRAILING, "x \n\ny\n", "x\n\ny", "x\n\nz", "x \n\nz\n"),
        (MatchStrategy.TRAILING, "a\nb  \nc  \n", "a\nb\nc\n", "x\ny\nb\nc\n", "x\ny\nb  \nc  \n"),
        # Indentation: by a margin, by another unit, and where the quotation begins in a line.
        (MatchStrategy.INDENT, "    a\n        b\n", "a\n    b", "a\n    c", "    a\n        c\n"),
        (MatchStrategy.INDENT, "a\n    b\n", "    a\n        b\n", "    a\n        c\n", "a\n    c\n"),
        (MatchStrategy.INDENT, "\ta\n\t\tb\n", "    a\n        b", "    a\n            c", "\ta\n\t\t\tc\n"),
        (MatchStrategy.INDENT, "{\n\tx\n}\n", "{\n  x\n}", "{\n  x\n  y\n    z\n}",
         "{\n\tx\n\ty\n\t\tz\n}\n"),
        (MatchStrategy.INDENT, "\tx\n\ty\n", "x\n    y", "z\n    y", "\tz\n\ty\n"),
        (MatchStrategy.INDENT, "  a\n    b\n", "    a\n        b", "    a\n        b\n        c",
         "  a\n    b\n    c\n"),
        (MatchStrategy.INDENT, "if a:\r\n\tb\r\n", "if a:\n    b\n", "if a:\n    c\n", "if a:\r\n\tc\r\n"),
        (MatchStrategy.INDENT, "\tb", "    b\n", "    c\n", "\tc"),
        (MatchStrategy.INDENT, "x:\n\ta\n\n\tb\n", "  a\n\n  b", "  a\n\n  c", "x:\n\ta\n\n\tc\n"),
        (MatchStrategy.INDENT, "x:\n\ta\n\tb\n", "    b\n", "", "x:\n\ta\n"),
        (MatchStrategy.INDENT, "\ta\n\tb\n", "    a\n    b\n", "    a\r\n    b\r\n", "\ta\n\tb\n"),
        # The look of punctuation, which stays where nothing else changes.
        (MatchStrategy.PUNCTUATION, "say “hi” now\n", 'say "hi" now', 'say "hi" later', "say “hi” later\n"),
        (MatchStrategy.PUNCTUATION, "a — b\r\nc\r\n", "a - b\nc", "a - b\nd", "a — b\r\nd\r\n"),
        (MatchStrategy.PUNCTUATION, "x\u00a0= 1\n", "x = 1", "x = 2", "x\u00a0= 2\n"),
        (MatchStrategy.PUNCTUATION, "it's", "it\u2019s", "it was", "it was"),
        (MatchStrategy.PUNCTUATION, "  f(\u2018a\u2019)\n", "f('a')\n", "g('a')\n", "  g(\u2018a\u2019)\n"),
        (MatchStrategy.PUNCTUATION, "  f(\u2018a\u2019)\n  b\n", "f('a')\nb", "f('a')\nc",
         "  f(\u2018a\u2019)\n  c\n"),
        (MatchStrategy.PUNCTUATION, "“a”\n“b”\n", '"a"\n"b"', '"a"\n"c"\n"d"', '“a”\n"c"\n"d"\n'),
    ],
)  # fmt: skip
def test_ignored_differences_are_preserved(
    strategy: MatchStrategy, text: str, old: str, new: str, expected: str
) -> None:
    assert replace_once(text, old, new) == (strategy, expected)


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("a = 1\nb = 2\n", "a = 1 b = 2"),  # probe 0.6: two lines are not one
        ("a = 1 b = 2\n", "a = 1\nb = 2"),
        ("x := 1\ny := 2\nz := 3\n", "x := 1\ny := 99\nz := 3"),  # the ends agree, the middle not
        ("a\n\nb\n", "a\nb"),
        ("a\nb\n", "a\n\nb"),
        ("foo\n", "foo\n\n"),
        ("foo\nbar\n", "foo\n   \nbar"),
        ("bar\nfoo\n", "   \nfoo"),
        ("x = 10\n", "x = 1  "),
        ("a  b\n", "a b"),
        ("call(a,b)\n", "call(a, b)"),
        ("Value\n", "value"),
        ("caf\u00e9\n", "cafe\u0301"),
        ("a...b", "a…b"),
        ("class A:\n    def f(self):\n        pass\n", "class A:\n  def f(self):\n  pass"),
        ("\ta\n\tb\n", "  a\n    b"),
        ("  ", "\t"),
        ("one\\ntwo\n", "one\ntwo"),
        ("a\rb\rc\r", "a\nb"),
        ("", "a"),
    ],
)
def test_other_differences_prevent_a_match(text: str, old: str) -> None:
    assert has_no_match(text, old)


def test_the_first_strategy_with_a_match_decides() -> None:
    assert replace_once("  a\na\n", "\na\n", "\nb\n") == (MatchStrategy.EXACT, "  a\nb\n")
    found = find_match("a \na  \n", "a\n", "b\n")
    assert isinstance(found, TextMatch)
    assert (found.strategy, len(found.spans)) == (MatchStrategy.TRAILING, 2)


def test_each_of_all_places_keeps_its_own_indentation() -> None:
    text = "if a:\n\tx()\n\ty()\nelse:\n\t\tx()\n\t\ty()\n"
    strategy, changed = replace_once(text, "    x()\n    y()\n", "    x()\n    z()\n", every=True)
    assert strategy is MatchStrategy.INDENT
    assert changed == "if a:\n\tx()\n\tz()\nelse:\n\t\tx()\n\t\tz()\n"


@given(texts(), st.lists(st.sampled_from(["a", "", " ", "a  "]), min_size=2, max_size=4))
def test_finding_e2_replacing_all_never_gives_overlapping_spans(text: str, lines: list[str]) -> None:
    found = find_match(text, "\n".join(lines), "x", every=True)
    spans = found.spans if isinstance(found, TextMatch) else ()
    assert all(before.end <= after.start for before, after in itertools.pairwise(spans))


@pytest.mark.parametrize(
    ("text", "old", "strategy"),
    [
        ("a \na \na \n", "a\na", MatchStrategy.TRAILING),
        ("a\r\na\r\na\r\n", "a\na", MatchStrategy.ENDINGS),
        ("\ta\n\ta\n\ta\n", "a\na\n", MatchStrategy.INDENT),
    ],
)
def test_finding_e2_overlapping_places_are_replaced_once(text: str, old: str, strategy: MatchStrategy) -> None:
    found = find_match(text, old, "b", every=True)
    assert isinstance(found, TextMatch)
    assert (len(found.spans), found.strategy) == (1, strategy)


def test_finding_e2_blanks_before_a_quoted_newline_stay() -> None:
    strategy, text = replace_once("keep  \nold \nrest\n", "\nold\nrest", "!")
    assert (strategy, text) == (MatchStrategy.TRAILING, "keep  !\n")


def test_probe_0_5_python_stays_python_when_the_indentation_was_quoted_wrongly() -> None:
    text = "class A:\n    def f(self):\n        x = 1\n        return x\n"
    _, changed = replace_once(text, "def f(self):\n    x = 1", "def f(self):\n    if self:\n        x = 2")
    ast.parse(changed)
    assert changed == ("class A:\n    def f(self):\n        if self:\n            x = 2\n        return x\n")


def _program(chance: random.Random, unit: str) -> list[str]:
    """Make lines of Python, several levels deep."""
    lines: list[str] = []

    def block(depth: int) -> None:
        for _ in range(chance.randint(1, 4)):
            if chance.random() < 0.4 and depth < 4:
                lines.append(f"{unit * depth}if v{chance.randint(0, 99)}:")
                block(depth + 1)
            else:
                lines.append(f"{unit * depth}x{chance.randint(0, 999)} = {chance.randint(0, 9)}")
                lines.extend([""] if chance.random() < 0.2 else [])

    block(0)
    return lines


@examples(2)
@given(
    st.randoms(use_true_random=False),
    st.sampled_from(["    ", "\t", "  "]),
    st.sampled_from(["    ", "\t", "  "]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["margin", "unit"]),
)
def test_a_block_quoted_with_another_indentation_is_changed_correctly(
    chance: random.Random, unit: str, other: str, ending: str, kind: str
) -> None:
    lines = _program(chance, unit)
    start = chance.randrange(len(lines))
    quoted = lines[start : chance.randint(start + 1, len(lines))]
    at = chance.randrange(len(quoted))
    if not quoted[at]:
        return
    depth = quoted[at][: len(quoted[at]) - len(quoted[at].lstrip())]
    new = [*quoted[:at], f"{depth}if z:", f"{depth}{unit}pass", *quoted[at:]]

    def misquote(line: str) -> str:
        level = (len(line) - len(line.lstrip())) // len(unit)
        wrong = unit * (level + 1) if kind == "margin" else other * level
        return wrong + line.lstrip() if line else line

    old_text, new_text = ("\n".join(map(misquote, part)) for part in (quoted, new))
    text = ending.join([*lines, ""])
    found = find_match(text, old_text, new_text)
    if isinstance(found, TextMatch) and found.strategy is MatchStrategy.INDENT and len(found.spans) == 1:
        changed = splice(text, found, old_text, new_text)
        assert changed == ending.join([*lines[:start], *new, *lines[start + len(quoted) :], ""])
        ast.parse(changed)
    else:
        # There are other such lines, or lines that are as deep as these are misquote to be.
        assert isinstance(found, TextMatch)


def test_lines_whose_indentation_follows_no_rule_are_reported() -> None:
    text = "a:\n  b\n\n  a:\n      b\n      c\n"
    found = find_match(text, "a:\n    b\n  c", "d")
    assert found == NoMatch((4,))


def test_a_new_line_with_a_negative_indentation_prevents_a_match() -> None:
    assert find_match("    a\n", "        a", "        a\n  b") == NoMatch((1,))


@pytest.mark.parametrize(
    ("old", "there", "new", "unit", "expected"),
    [
        (["  a"], ["        a"], ["  a", "    b"], "    ", ["        a", "            b"]),
        (["a"], ["    a"], ["a", "  b"], "    ", ["    a", "        b"]),
        (["a"], ["    a"], ["a", "       b"], "    ", ["    a", "           b"]),  # aligned
        (["a"], ["\ta"], ["a", "    b"], "\t", ["\ta", "\t\tb"]),
        (["a"], ["\ta"], ["a", "       b"], "\t", None),
        (["\ta"], ["    a"], ["\ta", "\t\tb"], "    ", ["    a", "        b"]),
        (["  a", "     b"], ["    a", "  b"], ["  a"], "", None),
        (["a", "  b", "       c"], ["x", "    b", "     c"], ["  n", "       m"], "",
         ["    n", "     m"]),
        (["a", "  b", "       c"], ["x", "    b", "     c"], ["   n"], "", None),
        ([" \ta"], ["\ta"], [" \ta", "  \tb"], "\t", ["\ta", " \tb"]),
        (["    a"], ["\ta"], ["b"], "\t", ["b"]),
        (["        a"], ["\ta"], ["    a"], "\t", ["a"]),
        (["    a", "        b"], ["\ta", "\t\tb"], ["  c"], "\t", None),
        (["    a"], ["a"], ["    a", "\tb"], "", None),
        (["  a", " b"], ["\t\ta", " b"], ["c"], " ", None),
        (["  a", "    b"], ["\ta", "\t  b"], ["      c"], "\t", None),
        (["\ta", "        b"], ["  a", "    b"], ["\tc"], "", None),  # as deep, and yet not
        (["\ta", "    b"], ["    a", "  b"], ["\t c"], "    ", None),
        (["  a", "      b"], ["\ta", "\t\tb"], ["    c"], "\t", None),
    ],
)  # fmt: skip
def test_indentation_follows_one_rule_or_none(
    old: list[str], there: list[str], new: list[str], unit: str, expected: list[str] | None
) -> None:
    assert reindent(old, there, new, unit) == expected


@pytest.mark.parametrize(
    ("lines", "unit"),
    [
        (["a", "\tb", "\t\tc"], "\t"),
        (["a", "  b", "    c", "", "d", "    e"], "  "),
        (["a", "b"], ""),
        (["a", "  b", "a", "    b"], "  "),
    ],
)
def test_the_unit_of_a_file_is_its_most_frequent_step(lines: list[str], unit: str) -> None:
    assert infer_unit(lines) == unit


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("     1\ta\n     2\tb", "a\nb"),
        ("     9\ta\n    10\t\n", "a\n\n"),
        ("12\ta", "a"),
        ("     1\ta\nb", None),
        ("     1\ta\n     3\tb", None),
        ("a", None),
        ("", None),
        ("1" * 5_000 + "\ta", None),
    ],
)
def test_line_numbers_are_removed_if_every_line_has_the_next_number(text: str, bare: str | None) -> None:
    assert strip_line_numbers(text) == bare


def test_a_line_number_in_any_line_is_recognised() -> None:
    assert has_line_numbers("a\n     2\tb")
    assert not has_line_numbers("a\n2 b")


def test_every_strategy_handles_a_hundred_thousand_lines() -> None:
    text = "".join(f"    value_{n} = compute({n})  \r\n" for n in range(100_000))
    old = "value_99998 = compute(99998)\nvalue_99999 = compute(99999)"
    assert replace_once(text, old, "x\ny")[0] is MatchStrategy.INDENT
    assert has_no_match(text, old + "0")
