"""What two texts begin and end with alike."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.core import text as ends
from indusagi.core.text import common_end, common_start


@pytest.mark.parametrize("chunk", [1, 2, 3, 64])
@given(st.text("ab", max_size=12), st.text("ab", max_size=12))
def test_what_is_common_is_as_long_as_can_be(chunk: int, one: str, other: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ends, "_CHUNK", chunk)
        start = common_start(one, other)
        end = common_end(one, other, start)
    assert start == _alike(one, other)
    assert end == _alike(one[start:][::-1], other[start:][::-1])


def _alike(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def test_long_texts_are_compared_to_their_last_letter() -> None:
    text = b"x" * 200_000
    assert common_start(text, text) == 200_000
    assert common_start(text + b"a", text + b"b") == 200_000
    assert common_end(b"a" + text, b"b" + text, 0) == 200_000
    assert common_end(text, text + text, 50_000) == 150_000
