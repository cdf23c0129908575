"""What is said to a process of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import anyio
import pytest

from indusagi.capabilities.files.asking import tell

if TYPE_CHECKING:
    from indusagi.core.child import Child

pytestmark = pytest.mark.anyio


async def test_a_process_is_told_much_in_pieces() -> None:
    """What is handed over in one go is copied in one go."""
    sizes: list[int] = []

    class Ears:
        writable = anyio.Event()

        def write(self, data: bytes) -> None:
            sizes.append(len(data))

    Ears.writable.set()
    await tell(cast("Child", Ears()), (b"head", bytes(1_000_000)))
    assert sum(sizes) == 1_000_004
    assert max(sizes) <= 256 * 1024
