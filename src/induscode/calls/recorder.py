"""Call recorder: the observer that records every call of a run.

A call puts its facts on a bounded queue and moves on; the recorder's thread batches them, computes digests and writes
one transaction. No call waits for its record. If the queue is full, calls are dropped and counted; a note reports it,
and the count is stored with the records.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from hashlib import blake2b
from json import JSONEncoder
from time import monotonic, perf_counter_ns, sleep
from typing import TYPE_CHECKING

from anyio import move_on_after, to_thread

from indusagi.core.app_dirs import state_dir
from indusagi.core.faults import Note, describe_error
from indusagi.core.json import BYTES_PER_TOKEN, JsonValue
from indusagi.core.records import record
from indusagi.core.secrets import hide_secrets
from indusagi.core.tasks import Listeners
from indusagi.core.text import format_count
from indusagi.core.time import now_ms
from indusagi.runtime.calls import (
    ObserverChain,
    current_agent,
    current_client,
    current_completion,
    current_trace,
    current_wait,
)
from indusagi.runtime.contract import ToolCall, ToolOutcome
from induscode.calls.record import (
    CALLS_FILE,
    CallOrigin,
    estimate_size,
    find_outcome,
    find_tool_ref,
    measure_result,
    report_new_notes,
)
from induscode.launch.settings import CALLS_KEEP_DAYS, CALLS_PAYLOAD_HOURS, CALLS_RECORD, Settings

if TYPE_CHECKING:
    from indusagi.runtime.calls import CallObserver
    from induscode.calls.database import CallDatabase, Payload
    from induscode.calls.record import CallRow
    from induscode.calls.telemetry import CallTelemetry
    from induscode.deck.mcp.boot import BootedBridge

MOST_QUEUED = 16_384
"""Queue size, a few seconds of a busy gateway. Further calls are dropped."""
GATHER_S = 1.0
"""How long the thread gathers calls after a batch's first."""
_HURRY_AT = 1_024
"""Queue length at which the thread stops gathering."""
_BATCH_SIZE = 2_048
"""Records per transaction, bounded because calls keep arriving while it's built."""
CLOSE_S = 5.0
"""Longest wait for the last batch at the end of a run."""
_YIELD_EVERY = 128
"""Records computed before the thread yields to the event loop."""
_PRUNE_EVERY = 5_000
PRUNE_S = 600.0
"""Longest time between prunes."""
_MAX_FAILED = 1_024
"""Failed calls whose repetitions are counted."""
_LARGE_BYTES = 16 * 1_024
"""Larger arguments are digested at once, to keep them out of the queue."""
_PAYLOAD_CHARS = 64 * 1_024
_NAME_CHARS = 200
_RULE_CHARS = 1_000

_ENCODER = JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=repr)


@record(kw_only=True)
class RecordSettings:
    """What to record, and for how long."""

    keep_days: int = 30
    payloads: bool = False
    """Whether to keep the texts of arguments and results too."""
    payload_hours: int = 24


class RecordedCall:
    """One call, from its start until its record is written; an `ObservedCall`.

    The event loop only stores values here: a gateway pays for every function a call passes through.
    """

    def __init__(self, recorder: CallRecorder, call: ToolCall, tool: object) -> None:
        self.recorder = recorder
        self.call = call
        self.tool = tool
        self.client = current_client.get()
        self.agent = current_agent.get()
        self.place = recorder.find_place()
        self.wait = current_wait.get()
        self.digest: tuple[str, int] | None = None
        self.payload: Payload | None = None
        self.began_ns = perf_counter_ns()

    def finish(self, outcome: ToolOutcome | None) -> None:
        """Queue the call with its outcome, for a task once it has ended."""
        # Read it now: a tracer has set it in the meantime.
        self.trace = current_trace.get()
        completion = current_completion.get()
        if completion is not None and completion.is_deferred:
            completion.listen(self._complete)
        else:
            self._complete(outcome)

    def _complete(self, outcome: ToolOutcome | None, seconds: float | None = None) -> None:
        self.ended_ns = perf_counter_ns()
        if seconds is not None:  # by the server's clock; we may have polled only after the task ended
            self.ended_ns = min(self.ended_ns, self.began_ns + int(seconds * 1_000_000_000))
        self.waited_ns = 0 if self.wait is None else int(self.wait.seconds * 1_000_000_000)
        self.waited_ns = min(self.waited_ns, self.ended_ns - self.began_ns)
        self.is_cancelled = outcome is None
        self.is_error, self.code, self.result_bytes, self.text_bytes = False, "", 0, 0
        if outcome is not None:
            result = outcome.result
            if result.is_error:
                code = result.details.get("code")
                self.is_error, self.code = True, code if isinstance(code, str) else ""
            self.result_bytes, self.text_bytes = measure_result(result)
        recorder, self.arguments = self.recorder, self.call.input
        size, is_whole = estimate_size(self.arguments)
        if recorder.settings.payloads:
            self.payload = _build_payload(self.arguments, outcome, recorder.hide_secrets)
        if (size > _LARGE_BYTES or not is_whole) and recorder.key:
            self.digest = recorder.digest(self.arguments)
            self.arguments, self.call = None, ToolCall(self.call.id, self.call.name, None)
        recorder.put(self)

    def to_row(self, attempts: FailedCalls, epoch_ns: int) -> CallRow:
        """Build the table row, in the thread. `epoch_ns` is the offset from the duration clock to Unix time."""
        origin, client, ref = self.recorder.origin, self.client, find_tool_ref(self.tool)
        digest, argument_bytes = self.digest or self.recorder.digest(self.arguments)
        named, principal = origin.client, ""
        if client is not None:
            named, principal = f"{client.name} {client.version}".strip(), client.principal
        server, tool = ("", self.call.name) if ref is None else (ref.server, ref.name)
        outcome = find_outcome(
            is_cancelled=self.is_cancelled, is_error=self.is_error, code=self.code, is_remote=ref is not None
        )
        kind = "tool" if ref is None else ref.kind
        key = (named, principal, self.agent, kind, server, tool, digest)
        return (
            (self.began_ns + epoch_ns) // 1_000_000,
            (self.ended_ns - self.began_ns - self.waited_ns) // 1_000,
            origin.via,
            named[:_NAME_CHARS],
            principal[:_NAME_CHARS],
            origin.conversation,
            *self.place,
            self.agent[:_NAME_CHARS],
            server,
            tool[:_NAME_CHARS],
            self.call.id[:_NAME_CHARS],
            digest,
            argument_bytes,
            self.result_bytes,
            -(-(argument_bytes + self.text_bytes) // BYTES_PER_TOKEN),
            outcome,
            self.code,
            attempts.count(key, is_ok=outcome == "ok"),
            # 00-<trace id>-<span id>-<flags>: https://www.w3.org/TR/trace-context/#traceparent-header-field-values
            "" if self.trace is None else self.trace.get("traceparent", "")[3:35],
            kind,
            self.waited_ns // 1_000,
            "" if self.wait is None else self.wait.allowed_by[:_RULE_CHARS],
        )


class FailedCalls:
    """Counts repetitions of failed calls, for a bounded number of calls."""

    def __init__(self) -> None:
        self._failures: OrderedDict[object, int] = OrderedDict()

    def count(self, key: object, *, is_ok: bool) -> int:
        """Return this attempt's number. A success resets the count."""
        attempt = self._failures.pop(key, 0) + 1
        if not is_ok:
            self._failures[key] = attempt
            if len(self._failures) > _MAX_FAILED:
                self._failures.popitem(last=False)
        return attempt


class CallRecorder:
    """A `CallObserver` that records the calls of one run. The thread starts with the first call.

    `find_place` returns the ledger's run and its current turn. `on_note` gets problems, in the event loop's thread.
    """

    def __init__(
        self,
        path: str,
        origin: CallOrigin,
        settings: RecordSettings | None = None,
        find_place: Callable[[], tuple[str, int]] = lambda: ("", 0),
        on_note: Callable[[Note], None] | None = None,
    ) -> None:
        self.path = path
        self.origin = origin
        self.settings = settings or RecordSettings()
        self.find_place = find_place
        self.hide_secrets: Callable[[str], str] = hide_secrets
        self.on_note = on_note
        self.on_rows: Listeners[[Sequence[CallRow]]] = Listeners()
        """Receives written rows, in the recorder's thread."""
        self.dropped = 0
        """Calls that weren't recorded."""
        self._stored_dropped = 0
        self._notes: list[Note] = []
        self._said = 0
        self.key = b""
        """The digest key, once the thread has opened the database."""
        self._queue: deque[RecordedCall] = deque()
        self._is_woken = False
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def notes(self) -> Sequence[Note]:
        """Recording problems."""
        if not self.dropped:
            return tuple(self._notes)
        message = f"{format_count(self.dropped, 'call')} could not be recorded: they came faster than they are written"
        return (*self._notes, *(() if self._notes else (Note("the records of calls", message),)))

    # -- event loop -------------------------------------------------------------------------

    def start(self, call: ToolCall, tool: object) -> RecordedCall:
        """Note the start of a call."""
        return RecordedCall(self, call, tool)

    def put(self, call: RecordedCall) -> None:
        """Queue a call for the thread, or drop it if the queue is full."""
        if len(self._queue) >= MOST_QUEUED or self._closing.is_set():
            self.dropped += 1
        else:
            self._queue.append(call)
            if not self._is_woken:
                self._is_woken = True
                self._wake.set()
                if self._thread is None:
                    self._start_thread()
            elif len(self._queue) == _HURRY_AT:
                self._hurry.set()
        if self.dropped or self._notes:
            self._report_notes()

    def _report_notes(self) -> None:
        self._said = report_new_notes(self.notes, self._said, self.on_note)

    def digest(self, arguments: JsonValue) -> tuple[str, int]:
        """Digest arguments with this user's key. Returns the digest and the size of their JSON."""
        data = _encode(arguments).encode("utf-8", "surrogatepass")
        if not data:
            return "", estimate_size(arguments)[0]
        return blake2b(data, key=self.key, digest_size=16).hexdigest(), len(data)

    async def aclose(self) -> None:
        """Write the remaining calls, stop the thread, and report new notes."""
        self._closing.set()
        self._hurry.set()
        self._wake.set()
        if self._thread is not None:
            with move_on_after(CLOSE_S, shield=True):
                await to_thread.run_sync(self._thread.join, CLOSE_S)
        self._report_notes()

    def _start_thread(self) -> None:
        # A daemon, so that a run that forgets to close its recorder can still exit.
        self._thread = threading.Thread(target=self._write_calls, name="call records", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as exc:  # can't start another thread
            self._thread = None
            self._fail(exc)

    # -- thread -----------------------------------------------------------------------------

    def _write_calls(self) -> None:
        database: CallDatabase | None = None
        try:
            from induscode.calls.database import CallDatabase  # noqa: PLC0415 — takes as long as a call

            database = CallDatabase(self.path)
            self.key = database.key
            if database.set_aside is not None:
                message = f"it was damaged and set aside as {database.set_aside!r}; a new file was begun"
                self._notes.append(Note(f"the records of calls {self.path!r}", message))
            database.prune(self.settings.keep_days)
            self._serve(database)
        except Exception as exc:  # noqa: BLE001 — boundary: calls go on without records, and a note says so
            self._fail(exc)
        finally:
            if database is not None:
                with suppress(Exception):
                    database.close()

    def _serve(self, database: CallDatabase) -> None:
        attempts = FailedCalls()
        since_prune, prune_at = 0, monotonic() + PRUNE_S
        while True:
            is_woken = self._wake.wait(max(0.0, prune_at - monotonic()))
            if since_prune >= _PRUNE_EVERY or monotonic() >= prune_at:
                since_prune, prune_at = 0, monotonic() + PRUNE_S
                database.prune(self.settings.keep_days)  # payloads also expire while there are no calls
            if not is_woken:
                continue
            self._hurry.wait(GATHER_S)
            self._wake.clear()
            self._hurry.clear()
            self._is_woken = False
            is_last = self._closing.is_set()
            rows: list[CallRow] = []
            payloads: dict[int, Payload] = {}
            epoch_ns = now_ms() * 1_000_000 - perf_counter_ns()
            while self._queue and len(rows) < _BATCH_SIZE:
                call = self._queue.popleft()
                if call.payload is not None:
                    payloads[len(rows)] = call.payload
                rows.append(call.to_row(attempts, epoch_ns))
                if len(rows) % _YIELD_EVERY == 0:
                    sleep(0)
            dropped = self.dropped
            if rows or dropped != self._stored_dropped:
                database.append(
                    rows, payloads, dropped=dropped - self._stored_dropped, hours=self.settings.payload_hours
                )
                self._stored_dropped = dropped
                self.on_rows(rows)
            since_prune += len(rows)
            if self._queue:  # more than one batch
                self._wake.set()
                self._hurry.set()
            elif is_last:
                return

    def _fail(self, failure: Exception) -> None:
        """Stop recording."""
        self._closing.set()
        self.dropped += len(self._queue)
        self._queue.clear()
        owner = f"the records of calls {self.path!r}"
        self._notes.append(Note(owner, f"calls are not recorded any more: {describe_error(failure)}"))


def _encode(value: JsonValue) -> str:
    try:
        return _ENCODER.encode(value)
    except (ValueError, TypeError, RecursionError):  # a cycle, keys of several types, too deep
        return ""


def _build_payload(arguments: JsonValue, outcome: ToolOutcome | None, hide: Callable[[str], str]) -> Payload:
    """Encode arguments and result, truncated and with secrets replaced."""
    from induscode.calls.database import Payload  # noqa: PLC0415 — where payloads are kept

    texts: list[str] = []
    for value in (arguments, None if outcome is None else outcome.output):
        text = _encode(value)
        # Replace secrets first, so that the cut can't split one.
        shown = hide(text[: 2 * _PAYLOAD_CHARS])
        if max(len(text) // 2, len(shown)) > _PAYLOAD_CHARS:
            shown = f"{shown[:_PAYLOAD_CHARS]}… [{len(text) - _PAYLOAD_CHARS:,} more characters]"
        texts.append(shown)
    return Payload(*texts)


# -- observers of a run -----------------------------------------------------------------------------


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

    recorder: CallRecorder | None = None
    kept = settings.get(CALLS_RECORD)
    if kept != "off":
        details = RecordSettings(
            keep_days=settings.get(CALLS_KEEP_DAYS),
            payloads=kept == "payloads",
            payload_hours=settings.get(CALLS_PAYLOAD_HOURS),
        )
        with suppress(OSError):  # there's no home directory, as the note about the ledger says
            recorder = CallRecorder(os.path.join(state_dir(), CALLS_FILE), origin, details, on_note=on_note)
            stack.push_async_callback(recorder.aclose)
    if not is_configured(os.environ):
        return CallObservers(recorder)
    # In a thread: the SDK takes most of a second to load.
    opened = await to_thread.run_sync(open_telemetry, os.environ, on_note, origin.transport)
    if not isinstance(opened, CallTelemetry):
        return CallObservers(recorder, None, (opened,))
    stack.push_async_callback(opened.aclose)
    return CallObservers(recorder, opened)
