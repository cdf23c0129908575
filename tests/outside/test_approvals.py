"""Attempts to reuse, alter or outlive an approval, at gateways in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from outside.approvals.attempts import attack
from outside.approvals.sites import open_sites

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("count", [1, 3])
async def test_no_attempt_is_accepted_at_one_gateway_or_three_nodes(tmp_path: Path, count: int) -> None:
    wide, brief = tmp_path / "wide", tmp_path / "brief"
    async with open_sites(wide, count, 300.0) as patient, open_sites(brief, count, 0.3) as hasty:
        score = await attack(patient, hasty, 150, seed=count)
    assert score.attempts.total() >= 150
    assert score.expected.total() > 0
    assert score.accepted.total() == 0, score.accepted
    assert score.lost == 0
