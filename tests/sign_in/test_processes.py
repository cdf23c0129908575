"""Sign-ins that several processes share, and processes that are killed."""

from __future__ import annotations

import pytest
from tests.sign_in.test_servers import ADA, ask_who, configure, sign_in
from tests.support.authlib_server import AuthlibServer
from tests.support.protected_server import protected_site
from tests.support.refresh_race import kill_in_refresh, run_race

pytestmark = pytest.mark.process


async def test_processes_refresh_a_rotating_token_once_each_round() -> None:
    async with protected_site() as site:
        await sign_in(configure(site.server.url))
        report = await run_race(site, processes=3, rounds=4)
    assert report.faults == []
    assert report.refreshes == [1, 1, 1, 1]
    assert site.issuer.reuses == 0


async def test_a_process_killed_before_the_issuer_judges_its_refresh_loses_nothing() -> None:
    async with protected_site() as site:
        config = configure(site.server.url)
        await sign_in(config)
        await kill_in_refresh(site, pause="before")
        assert await ask_who(config) == ADA
        assert site.issuer.reuses == 0


async def test_a_process_killed_before_the_answer_arrives_loses_nothing_where_the_issuer_forgives_it() -> None:
    async with protected_site(AuthlibServer(forgives_reuse=True)) as site:
        config = configure(site.server.url)
        await sign_in(config)
        await kill_in_refresh(site, pause="after")
        assert await ask_who(config) == ADA
        assert site.issuer.count("refresh_token") == 2
