"""Waits for changes of a gateway's configuration files, or for a reload signal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from induscode.boot.config_watch import ConfigFiles

if TYPE_CHECKING:
    from induscode.cli.process import SignalState

_POLL_S = 1.0
_STABLE_S = 0.2
"""A changed file is read once it's been stable for this long, as it may still be being written."""


class FileWatch(ConfigFiles):
    """Polls configuration files for changes."""

    poll_s = _POLL_S

    async def wait_for_change(self, signals: SignalState) -> None:
        """Wait for a changed file, or for SIGHUP, after which all files are reread."""
        while True:
            with anyio.move_on_after(self.poll_s):
                await signals.reload.wait()
            changed = await to_thread.run_sync(self.has_changed)
            if signals.reload.is_set():
                signals.reload = anyio.Event()
                return
            if changed:
                while changed:
                    await anyio.sleep(_STABLE_S)
                    changed = await to_thread.run_sync(self.has_changed)
                return
