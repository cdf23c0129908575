"""A run's observers: the call recorder, and OpenTelemetry if the environment configures a collector."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.app_dirs import state_dir
from indusagi.core.records import record
from indusagi.runtime.calls import ObserverChain
from induscode.calls.record import CALLS_FILE
from induscode.calls.recorder import CallRecorder, RecordSettings
from induscode.launch.settings import CALLS_KEEP_DAYS, CALLS_PAYLOAD_HOURS, CALLS_RECORD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AsyncExitStack

    from indusagi.core.faults import Note
    from indusagi.runtime.calls import CallObserver
    from induscode.calls.record import CallOrigin
    from induscode.calls.telemetry import CallTelemetry
    from induscode.deck.mcp.boot import BootedBridge
    from induscode.launch.settings import Settings


@record
class CallObservers:
    """The observers of a run's calls."""

    recorder: CallRecorder | None = None
    """None if the user turned records off."""
    telemetry: CallTelemetry | None = None
    """None unless a collector is configured."""
    unopened: Sequence[Note] = ()

    @property
    def notes(self) -> Sequence[Note]:
        """Observation problems."""
        return (*self.unopened, *(note for one in self._opened for note in one.notes))

    @property
    def _opened(self) -> Sequence[CallRecorder | CallTelemetry]:
        return [one for one in (self.telemetry, self.recorder) if one is not None]

    def combine(self, *others: CallObserver | None) -> CallObserver | None:
        """Combine them with others into one observer, or None if there are none."""
        # The recorder starts last and finishes first: it reads the trace that telemetry sets.
        observers = [one for one in (*others, *self._opened) if one is not None]
        return ObserverChain(observers) if len(observers) > 1 else observers[0] if observers else None

    def attach_servers(self, mcp: BootedBridge) -> None:
        """Connect the observers to the run's servers."""
        if self.recorder is not None:
            self.recorder.find_place = mcp.find_place
            self.recorder.hide_secrets = mcp.hide_secrets
        if self.telemetry is not None:
            self.telemetry.find_transport = lambda server: mcp.plan.configs[server].kind


async def open_observers(
    stack: AsyncExitStack, settings: Settings, origin: CallOrigin, on_note: Callable[[Note], None] | None = None
) -> CallObservers:
    """Open a run's observers, which `stack` closes. Problems go to `on_note` as they occur."""
    from induscode.calls.telemetry import CallTelemetry, is_configured, open_telemetry  # noqa: PLC0415 — a late start

    recorder = build_recorder(settings, origin, on_note)
    if recorder is not None:
        stack.push_async_callback(recorder.aclose)
    if not is_configured(os.environ):
        return CallObservers(recorder)
    # In a thread: the SDK takes most of a second to load.
    opened = await to_thread.run_sync(open_telemetry, os.environ, on_note, origin.transport)
    if not isinstance(opened, CallTelemetry):
        return CallObservers(recorder, None, (opened,))
    stack.push_async_callback(opened.aclose)
    return CallObservers(recorder, opened)


def build_recorder(
    settings: Settings, origin: CallOrigin, on_note: Callable[[Note], None] | None = None
) -> CallRecorder | None:
    """Build the recorder of this user's calls. None if it's turned off or there's no home directory."""
    kept = settings.get(CALLS_RECORD)
    if kept == "off":
        return None
    try:
        path = os.path.join(state_dir(), CALLS_FILE)
    except OSError:
        return None  # the note about the ledger says so
    details = RecordSettings(
        keep_days=settings.get(CALLS_KEEP_DAYS),
        payloads=kept == "payloads",
        payload_hours=settings.get(CALLS_PAYLOAD_HOURS),
    )
    return CallRecorder(path, origin, details, on_note=on_note)
