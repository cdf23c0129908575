"""The fuzz of `indus serve --http --auth`, with a few hundred requests."""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING

import pytest
from outside.host_fuzz.generate import FuzzedRequest
from outside.host_fuzz.run import exchange, send_all
from tests.commands.serving import serving
from tests.support.issuer import running_issuer
from tests.support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.process
async def test_finding_f1_random_requests_end_no_gateway_and_leave_no_traceback(tmp_path: Path) -> None:
    async with running_issuer() as issuer:
        flags = ("--auth", issuer.url, "--profile", "read-only", "--no-mcp", "--max-rate-per-principal", "1000000")
        with serving("--http", "127.0.0.1:0", *flags, cwd=tmp_path) as gateway:
            await until(lambda: "native tools" in gateway.said())
            found = re.search(r"serving at (\S+)", gateway.said())
            assert found is not None
            report = await send_all(Random(1), found[1], issuer, 600)
            said = gateway.said()
        assert gateway.process.returncode == 0
    assert (report.unanswered, dict(report.refused_good)) == ([], {})
    assert len(report.statuses) > 4
    assert "Traceback" not in said
    assert "failed in" not in said


async def test_a_gateway_that_is_gone_has_no_status() -> None:
    async with running_issuer() as issuer:
        port = int(issuer.url.rpartition(":")[2])
        assert await exchange(port, FuzzedRequest(b"GET /keys HTTP/1.1\r\n\r\n")) == 200
        assert await exchange(port, FuzzedRequest(b"GET /ke", is_cut=True)) == 0
