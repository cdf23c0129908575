from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.scripts import ROOT
from tests.support.servers import diary
from tests.support.waiting import is_alive, until

from indusagi.core.cancel import ENDING, ending_signals

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.mark.parametrize("number", [signal.Signals[name] for name in ENDING])
async def test_signal_cancels_the_token_with_its_name(number: signal.Signals) -> None:
    async with ending_signals() as token:
        os.kill(os.getpid(), number)
        with anyio.fail_after(60):
            assert await token == number.name


async def test_signal_handlers_are_restored_after_the_block() -> None:
    async with ending_signals():
        pass
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.Signals[name] for name in ENDING])
def test_terminated_program_ends_its_servers_and_their_children(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "log"
    script = f"""
import asyncio
from tests.support.servers import fault, honest
from indusagi.core.cancel import ending_signals
from indusagi.interop import BridgeConfig, start_server_fleet
async def main():
    log = {str(log)!r}
    servers = [honest("--log", log), fault("forks", "stubborn", "--log", log)]
    async with ending_signals() as token:
        fleet = await start_server_fleet(BridgeConfig(servers))
        try:
            print("ready", flush=True)
            await token
        finally:
            await fleet.tear_down()
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        anyio.run(until, lambda: bool(diary(log, "child")))
        process.send_signal(number)
        assert process.wait(timeout=60) == 0
    pids = [int(pid) for event in ("start", "child") for pid in diary(log, event)]
    assert len(pids) == 3
    assert not any(is_alive(pid) for pid in pids)
