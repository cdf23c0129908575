"""Things in order: the same as all at once, whatever their number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.core import sorting as order
from indusagi.core.sorting import sort_in_chunks


@given(st.lists(st.tuples(st.integers(0, 5), st.integers())), st.integers(1, 5))
def test_parts_give_the_order_that_one_sort_gives(items: list[tuple[int, int]], part: int) -> None:
    def first(pair: tuple[int, int]) -> int:
        return pair[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "_AT_ONCE", part)
        assert sort_in_chunks(items, first) == sorted(items, key=first)
