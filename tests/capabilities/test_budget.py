from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities import budget as budget_module
from indusagi.capabilities.budget import UNLIMITED, OutputBudget, clip, count_lines, encode_pieces, standard_budget
from indusagi.runtime.contract import Keep

texts = st.text(st.sampled_from("ab\n é€🙂"), max_size=60)
budgets = st.builds(OutputBudget, st.integers(0, 40), st.integers(0, 8))


def size(text: str) -> int:
    return len(text.encode())


class InOneGo(str):
    """A text that must not be encoded as a whole: that would hold up the event loop."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        raise AssertionError("encoded in one go")


def test_long_text_is_encoded_in_pieces() -> None:
    text = InOneGo("é\n" * 700_000)
    assert not standard_budget().admits(text)
    assert UNLIMITED.admits(text)
    assert b"".join(encode_pieces(text)) == ("é\n" * 700_000).encode()
    for keep in Keep:
        assert clip(text, standard_budget(), keep).size == 2_100_000


@given(texts, st.integers(1, 9))
def test_pieces_join_to_the_whole_text(text: str, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(budget_module, "_PIECE", piece)
        assert b"".join(encode_pieces(text)) == text.encode()


def test_standard_budget_is_50_kib_and_2000_lines() -> None:
    assert standard_budget() == OutputBudget(51_200, 2_000)


@pytest.mark.parametrize(("text", "lines"), [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n", 1), ("\n\n", 2)])
def test_lines_are_counted_as_in_an_editor(text: str, lines: int) -> None:
    assert count_lines(text) == lines == len(text.splitlines())


@given(texts, budgets, st.sampled_from(Keep))
def test_kept_parts_fit_the_budget_and_are_the_ends(text: str, budget: OutputBudget, keep: Keep) -> None:
    cut = clip(text, budget, keep)
    assert size(cut.head) + size(cut.tail) <= budget.max_bytes
    assert count_lines(cut.head) + count_lines(cut.tail) <= budget.max_lines
    assert text.startswith(cut.head)
    assert text.endswith(cut.tail)
    assert len(cut.head) + len(cut.tail) <= len(text)
    assert (cut.lines, cut.size) == (count_lines(text), size(text))


@given(texts, budgets)
def test_text_within_the_budget_is_kept_whole(text: str, budget: OutputBudget) -> None:
    if budget.admits(text):
        assert clip(text, budget, Keep.HEAD).head == text
        assert clip(text, budget, Keep.TAIL).tail == text


@given(texts, budgets)
def test_head_ends_with_a_complete_line(text: str, budget: OutputBudget) -> None:
    head = clip(text, budget, Keep.HEAD).head
    first_line = text.partition("\n")[0] + "\n"
    if head and head != text and size(first_line) <= budget.max_bytes:
        assert head.endswith("\n")


@given(texts, budgets)
def test_tail_starts_with_a_complete_line(text: str, budget: OutputBudget) -> None:
    tail = clip(text, budget, Keep.TAIL).tail
    last_line = text.removesuffix("\n").rpartition("\n")[2]
    if tail and tail != text and size(last_line) + 1 <= budget.max_bytes:
        assert text[: -len(tail)].endswith("\n")


def test_head_has_as_many_lines_as_fit() -> None:
    text = "".join(f"line {n}\n" for n in range(100))
    cut = clip(text, OutputBudget(10_000, 3), Keep.HEAD)
    assert (cut.head, cut.next_line) == ("line 0\nline 1\nline 2\n", 4)


def test_tail_has_as_many_lines_as_fit() -> None:
    text = "".join(f"line {n}\n" for n in range(100))
    assert clip(text, OutputBudget(10_000, 2), Keep.TAIL).tail == "line 98\nline 99\n"


def test_tail_gets_the_larger_share_of_both_ends() -> None:
    text = "".join(f"line {n:02}\n" for n in range(100))
    cut = clip(text, OutputBudget(80, 100), Keep.ENDS)
    assert (count_lines(cut.head), count_lines(cut.tail)) == (2, 8)


@pytest.mark.parametrize("keep", list(Keep))
def test_single_long_line_is_cut_between_characters(keep: Keep) -> None:
    cut = clip("🙂" * 100, OutputBudget(50, 10), keep)
    assert 40 <= size(cut.head) + size(cut.tail) <= 50


def test_notice_is_placed_at_the_cut() -> None:
    text = "".join(f"{n}\n" for n in range(10))
    budget = OutputBudget(1_000, 5)
    assert clip(text, budget, Keep.ENDS).render(lambda _: "[…]") == "0\n[…]\n6\n7\n8\n9\n"
    assert clip(text, budget, Keep.HEAD).render(lambda _: "[…]") == "0\n1\n2\n3\n4\n[…]"
    assert clip(text, budget, Keep.TAIL).render(lambda _: "[…]").startswith("[…]\n5\n")


def test_text_of_exactly_the_budget_fits() -> None:
    assert OutputBudget(3, 2).admits("a\nb")
    assert not OutputBudget(2, 2).admits("a\nb")
    assert not OutputBudget(3, 1).admits("a\nb")


def test_end_of_a_long_last_line_is_kept() -> None:
    assert clip("x" * 100 + "\n", OutputBudget(10, 5), Keep.TAIL).tail == "x" * 9 + "\n"
