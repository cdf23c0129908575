"""Two clients of one gateway: a few rounds of what `python -m bench.crossing` does ten thousand times."""

from __future__ import annotations

import pytest
from bench.crossing import cross

pytestmark = pytest.mark.process


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_nothing_of_one_client_reaches_the_other(era: str) -> None:
    counts = await cross(20, era)
    assert (counts["crossed"], counts["stray"]) == (0, 0)
    assert (counts["answers"], counts["progress"], counts["updates"]) == (160, 80, 80)
    # A modern client gets the result of a legacy server in place of a task.
    assert counts["tasks"] == (20 if era == "legacy" else 40)
