"""What goes between us and a process of our own."""

from __future__ import annotations

import pytest

from indusagi.capabilities.apart.parcel import packed, unpacked


def test_a_message_that_is_cut_is_no_message() -> None:
    whole = b"".join(packed({"a": 1}, [b"x" * 10, b""]))
    assert unpacked(whole) == ({"a": 1}, [b"x" * 10, b""])
    for end in range(len(whole)):
        with pytest.raises(ValueError, match=r".*"):
            unpacked(whole[:end])


@pytest.mark.parametrize("head", [b"1", b"[{}]", b"[{}, 1]", b"[" * 200_000, b"x"])
def test_what_we_have_not_written_is_no_message(head: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        unpacked(len(head).to_bytes(8, "big") + head)
