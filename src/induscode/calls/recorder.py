"""Recorder of calls: the observer that makes a record of every call of a run.

A call hands its facts to a bounded queue and goes on; a thread of the recorder gathers them for a moment, computes
digests and writes one transaction. No call waits for its record. What the queue cannot take is dropped and counted, and
a note says so; the number is stored beside the records.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from contextlib import suppress
from hashlib import blake2b
from json import JSONEncoder
from time import monotonic, perf_counter_ns, sleep
from typing import TYPE_CHECKING

from indusagi.core.faults import Note, describe_error
from indusagi.core.json import BYTES_PER_TOKEN
from indusagi.core.records import record
from indusagi.core.secrets.names import hide_secrets
from indusagi.core.text import format_count
from indusagi.core.time import now_ms
from indusagi.runtime.calls import current_agent, current_client, current_completion, current_trace, current_wait
from indusagi.runtime.contract import ToolCall
from induscode.calls.record import (
    CallOrigin,
    estimate_size,
    find_outcome,
    find_tool_ref,
    measure_result,
    report_new_notes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import ToolOutcome
    from induscode.calls.database import CallDatabase, Payload
    from induscode.calls.record import CallRow

MOST_QUEUED = 16_384
"""Calls that wait for the thread, some seconds of a busy gateway; further ones are dropped."""
GATHER_S = 1.0
"""How long the thread gathers calls after the first one of a batch."""
_HURRY_AT = 1_024
"""Calls with which the thread gathers no longer."""
_MOST_WRITTEN = 2_048
"""Records of one transaction: calls go on while it is gathered, and it may not grow with them."""
CLOSE_S = 5.0
"""The longest wait for the last batch at the end of a run."""
_SLICE = 128
"""Records that are computed before the thread lets the event loop run."""
_PRUNE_EVERY = 5_000
PRUNE_S = 600.0
"""The longest time between two removals of what has expired."""
_MOST_FAILED = 1_024
"""Calls without success whose repetitions are counted."""
_LARGE_BYTES = 16 * 1_024
"""Arguments that are larger are digested at once, so that the queue holds none of them."""
_PAYLOAD_CHARS = 64 * 1_024
_NAME_CHARS = 200

_ENCODER = JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=repr)


@record(kw_only=True)
class RecordSettings:
    """What is kept, and for how long."""

    keep_days: int = 30
    payloads: bool = False
    """Whether the texts of arguments and results are kept too."""
    payload_hours: int = 24


class RecordedCall:
    """One call, from its start until its record is written; an `ObservedCall`.

    The event loop notes values and computes nothing: a gateway pays for every function that a call passes.
    """

    __slots__ = (
        "agent",
        "arguments",
        "began_ns",
        "call",
        "client",
        "code",
        "digest",
        "ended_ns",
        "is_cancelled",
        "is_error",
        "payload",
        "place",
        "recorder",
        "result_bytes",
        "text_bytes",
        "tool",
        "trace",
        "wait",
        "waited_ns",
    )

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
        """Take what the record needs of the outcome, and hand it to the thread; of a task when it has ended."""
        # At the end: a tracer has set it by now.
        self.trace = current_trace.get()
        completion = current_completion.get()
        if completion is not None and completion.is_deferred:
            completion.listen(self._complete)
        else:
            self._complete(outcome)

    def _complete(self, outcome: ToolOutcome | None, seconds: float | None = None) -> None:
        self.ended_ns = perf_counter_ns()
        if seconds is not None:  # the clock of the server: nobody may have looked when the task ended
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
        if (size > _LARGE_BYTES or not is_whole) and recorder.has_key:
            self.digest = recorder.digest(self.arguments)
            self.arguments, self.call = None, ToolCall(self.call.id, self.call.name, None)
        recorder.put(self)

    def to_row(self, attempts: FailedCalls, epoch_ns: int) -> CallRow:
        """Build the row of the table; called in the thread.

        `epoch_ns` is the difference between the time and the clock that measures durations.
        """
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
        )


class FailedCalls:
    """Counts how often the same call was made without success, for a bounded number of calls."""

    def __init__(self) -> None:
        self._failures: OrderedDict[object, int] = OrderedDict()

    def count(self, key: object, *, is_ok: bool) -> int:
        """Return the number of this attempt; a success ends the count."""
        attempt = self._failures.pop(key, 0) + 1
        if not is_ok:
            self._failures[key] = attempt
            if len(self._failures) > _MOST_FAILED:
                self._failures.popitem(last=False)
        return attempt


class CallRecorder:
    """Records the calls of one run; a `CallObserver`. The thread starts with the first call.

    Args:
        path: Of the database.
        origin: What all calls have in common.
        settings: What is kept.
        find_place: Returns the run of the ledger and its present turn.
        on_note: Receives what could not be recorded, in the thread of the event loop.
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
        self.on_rows: Callable[[Sequence[CallRow]], None] = lambda _: None
        """Receives the rows that were written, in the thread of the recorder."""
        self.dropped = 0
        """Calls that were not recorded."""
        self._stored_dropped = 0
        self._notes: list[Note] = []
        self._said = 0
        self._key = b""
        self._queue: deque[RecordedCall] = deque()
        self._is_woken = False
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def notes(self) -> Sequence[Note]:
        """What could not be recorded, and why."""
        if not self.dropped:
            return tuple(self._notes)
        message = f"{format_count(self.dropped, 'call')} could not be recorded: they came faster than they are written"
        return (*self._notes, *(() if self._notes else (Note("the records of calls", message),)))

    # -- in the event loop ------------------------------------------------------------------

    def start(self, call: ToolCall, tool: object) -> RecordedCall:
        """Note the start of a call."""
        return RecordedCall(self, call, tool)

    def put(self, call: RecordedCall) -> None:
        """Hand a call to the thread, or drop it if too many wait."""
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

    @property
    def has_key(self) -> bool:
        """Whether the thread has opened the database, which holds the key of digests."""
        return bool(self._key)

    def digest(self, arguments: JsonValue) -> tuple[str, int]:
        """Digest arguments with the key of this user; return the digest and the bytes of their JSON."""
        data = _encode(arguments).encode("utf-8", "surrogatepass")
        if not data:
            return "", estimate_size(arguments)[0]
        return blake2b(data, key=self._key, digest_size=16).hexdigest(), len(data)

    async def aclose(self) -> None:
        """Write what is left, end the thread, and report what came since the last call."""
        from anyio import move_on_after, to_thread  # noqa: PLC0415 — loaded wherever a loop runs

        self._closing.set()
        self._hurry.set()
        self._wake.set()
        if self._thread is not None:
            with move_on_after(CLOSE_S, shield=True):
                await to_thread.run_sync(self._thread.join, CLOSE_S)
        self._report_notes()

    def _start_thread(self) -> None:
        # A daemon: a run that forgets to close its recorder can still end.
        self._thread = threading.Thread(target=self._write_calls, name="call records", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as exc:  # the system gives this process no further thread
            self._thread = None
            self._fail(exc)

    # -- in the thread ----------------------------------------------------------------------

    def _write_calls(self) -> None:
        database: CallDatabase | None = None
        try:
            from induscode.calls.database import CallDatabase  # noqa: PLC0415 — takes as long as a call

            database = CallDatabase(self.path)
            self._key = database.key
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
                database.prune(self.settings.keep_days)  # payloads expire while nothing is called, too
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
            while self._queue and len(rows) < _MOST_WRITTEN:
                call = self._queue.popleft()
                if call.payload is not None:
                    payloads[len(rows)] = call.payload
                rows.append(call.to_row(attempts, epoch_ns))
                if len(rows) % _SLICE == 0:
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
        """Record no further calls."""
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
    """Encode arguments and result, cut, with secrets replaced."""
    from induscode.calls.database import Payload  # noqa: PLC0415 — where payloads are kept

    texts = [_encode(value) for value in (arguments, None if outcome is None else outcome.output)]
    return Payload(*(_cut_payload(text, hide) for text in texts))


def _cut_payload(text: str, hide: Callable[[str], str]) -> str:
    """Cut a text after its secrets are replaced: the cut splits none of them."""
    shown = hide(text[: 2 * _PAYLOAD_CHARS])
    if max(len(text) // 2, len(shown)) <= _PAYLOAD_CHARS:
        return shown
    return f"{shown[:_PAYLOAD_CHARS]}… [{len(text) - _PAYLOAD_CHARS:,} more characters]"
