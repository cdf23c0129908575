"""What goes between us and a process of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.capabilities.worker.message import packed, unpacked

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue


def test_a_message_that_is_cut_is_no_message() -> None:
    whole = b"".join(packed({"a": 1}, [b"x" * 10, b""]))
    assert unpacked(whole) == ({"a": 1}, [b"x" * 10, b""])
    for end in range(len(whole)):
        with pytest.raises(ValueError, match=rf"^{end} bytes of \d+$| column \d+ "):
            unpacked(whole[:end])


@given(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3),
    st.lists(st.binary(max_size=20), max_size=3),
)
def test_finding_e10_a_message_is_read_as_it_was_written(facts: dict[str, JsonValue], parts: list[bytes]) -> None:
    assert unpacked(b"".join(packed(facts, parts))) == (facts, parts)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"1", "^no message of ours$"),
        (b"[{}]", "^not enough values to unpack"),
        (b"[{}, 1]", "^no message of ours$"),
        (b"[" * 200_000, "^no message of ours$"),
        (b"x", "^Expecting value"),
        (b"[{}, [3]]", "^17 bytes of 20$"),
    ],
)
def test_what_we_have_not_written_is_no_message(head: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        unpacked(len(head).to_bytes(8, "big") + head)
