"""What is said to a process of our own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import anyio
import pytest

from indusagi.capabilities.worker import client as asking
from indusagi.capabilities.worker.client import asked, tell

if TYPE_CHECKING:
    from indusagi.core.process.child import ChildProcess

pytestmark = pytest.mark.anyio


async def test_a_process_is_told_much_in_pieces() -> None:
    """What is handed over in one go is copied in one go."""
    sizes: list[int] = []

    class Ears:
        writable = anyio.Event()

        def write(self, data: bytes) -> None:
            sizes.append(len(data))

    Ears.writable.set()
    await tell(cast("ChildProcess", Ears()), (b"head", bytes(1_000_000)))
    assert sum(sizes) == 1_000_004
    assert max(sizes) <= 256 * 1024


@pytest.mark.process
async def test_of_an_answer_without_end_no_more_is_kept_than_an_honest_one_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_MOST_BYTES", 100_000)
    argv = [sys.executable, "-Ic", "import sys\nfor _ in range(64): sys.stdout.write('x' * 65536)"]
    kept = b"".join(await asked(argv, (), 20))
    assert 100_000 <= len(kept) < 1_000_000


@pytest.mark.process
async def test_a_process_of_ours_has_no_secret_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    argv = [sys.executable, "-Ic", "import os; print(*sorted(os.environ))"]
    assert b"SOME_API_KEY" not in b"".join(await asked(argv, (), 20))
    told = b"".join(await asked(argv, (), 20, {"LANGUAGE": "x"}))
    assert b"LANGUAGE" in told
