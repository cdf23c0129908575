"""Process that runs scripts with pydantic-monty, one at a time, until standard input ends.

`induscode.code_mode.process` starts it as a script, with the extra `[code]`, and documents the protocol: JSON lines in
both directions. The interpreter itself is another process, the worker of monty's pool. It has no files, network or
host modules, and the pool kills it when it exceeds its limits (https://github.com/pydantic/monty). The end of standard
input, also after a kill -9 of our parent, ends both.
"""

from __future__ import annotations

import io
import json
import os
import queue
import re
import signal
import sys
import threading
import tokenize
from importlib import import_module
from typing import Any, cast

_KILL_AFTER_S = 1.0
"""Grace beyond the time limit before killing an operation that doesn't check the clock, e.g. on giant integers."""
_LINES = 5
_MAX_LINE_CHARS = 160
_AWAIT = re.compile(r"\bawait\b")
_FORMATTED = re.compile(r"[bru]*f", re.IGNORECASE)
"""Start of an f-string, which is a single token before Python 3.12."""
_UNAWAITED = re.compile(r"<(coroutine external_future|gather)\(\d+\)>")
"""How monty shows a call that the script didn't await."""
_NEEDS_AWAIT = "In a script with `await`, every call of a tool needs one"


class MontyHost:
    """Both directions of the protocol, and the pool of one worker."""

    def __init__(self) -> None:
        self.monty: Any = import_module("pydantic_monty")
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._in: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._answers: dict[int, dict[str, Any]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._in.put(json.loads(line))
        # Our parent is gone or wants us to exit. The worker belongs to our process group.
        os.killpg(0, signal.SIGKILL)

    def send(self, **message: Any) -> None:
        """Send a message. Raises TypeError, ValueError or RecursionError if it isn't JSON."""
        text = json.dumps(message, allow_nan=False)
        self._out.write(text + "\n")
        self._out.flush()

    def wait_for(self, ids: set[int]) -> dict[int, dict[str, Any]]:
        """Wait for the answer to at least one of the calls."""
        while not ids & self._answers.keys():
            message = self._in.get()
            self._answers[message["id"]] = message
        taken = {number: self._answers.pop(number) for number in ids & self._answers.keys()}
        for number in taken:
            self.send(op="taken", id=number)
        return taken

    def serve(self) -> None:
        """Run scripts forever."""
        self.send(op="ready")
        while True:
            request = self._in.get()
            if "code" not in request:  # the answer to a call of a failed script
                continue
            self._answers.clear()
            cpu_s = request["cpu_s"]
            pool = self.monty.Monty(
                min_processes=1, max_processes=1, request_timeout=cpu_s + _KILL_AFTER_S, turn_duration_limit_grace=None
            )
            with pool:
                MontyScript(self, request).run(pool)


class MontyScript:
    """One script."""

    def __init__(self, host: MontyHost, request: dict[str, Any]) -> None:
        self._host, self._monty, self._request = host, host.monty, request
        self._code: str = request["code"]
        self._names = set[str](request["names"])
        # A script that awaits gets awaitables from its calls; one that never does gets results.
        self._awaits = uses_await(self._code)
        self._printed = 0

    def run(self, pool: Any) -> None:
        """Run it, and send its outcome."""
        monty, request = self._monty, self._request
        limits = {
            "max_feed_duration_secs": request["cpu_s"],
            "max_memory": request["memory_bytes"],
            "max_suspensions": request["calls"] * 4 + 100,
            "max_total_sleep_secs": 0.0,
        }
        try:
            with pool.checkout(limits=limits, script_name="script.py", os_policy={"sleep": "zero"}) as session:
                snapshot = session.feed_start(self._code, print_callback=self._print)
                while not isinstance(snapshot, monty.MontyComplete):
                    snapshot = self._resume(snapshot)
                value = snapshot.output
            self._finish(value)
        except monty.MontySyntaxError as exc:
            self._fail("syntax", f"SyntaxError: {exc}", exc.traceback())
        except monty.MontyRuntimeError as exc:
            self._fail_at_runtime(exc)
        except monty.MontyCrashedError as exc:
            if exc.timed_out:
                self._fail("limit", self._describe_time_limit())
            else:
                self._fail("crash", "the interpreter ended by itself")
        except monty.MontyError as exc:
            self._fail("exception", str(exc))

    def _resume(self, snapshot: Any) -> Any:
        monty = self._monty
        if isinstance(snapshot, monty.FunctionSnapshot):
            return self._resume_call(snapshot)
        if isinstance(snapshot, monty.NameLookupSnapshot):
            name = snapshot.variable_name
            if snapshot.object_id is not None or name not in self._names:
                return snapshot.resume()

            def function() -> None: ...

            function.__name__ = function.__qualname__ = name
            return snapshot.resume(value=function)
        answers = self._host.wait_for(set(snapshot.pending_call_ids))
        return snapshot.resume({number: _to_result(answer) for number, answer in answers.items()})

    def _resume_call(self, snapshot: Any) -> Any:
        if snapshot.is_os_function or snapshot.object_id is not None:
            return snapshot.resume_not_handled() if snapshot.is_os_function else snapshot.resume(_NO_METHOD)
        number = snapshot.call_id
        try:
            call = {"id": number, "name": snapshot.function_name, "args": [*snapshot.args], "kwargs": snapshot.kwargs}
            self._host.send(op="call", **call)
        except (TypeError, ValueError, RecursionError) as exc:
            message = f"{snapshot.function_name}: the arguments are no JSON: {exc}"
            return snapshot.resume({"exc_type": "TypeError", "message": message})
        if self._awaits:
            return snapshot.resume({"future": ...})
        return snapshot.resume(_to_result(self._host.wait_for({number})[number]))

    def _print(self, _stream: str, text: str) -> None:
        self._printed += len(text.encode("utf-8", "replace"))
        if self._printed > self._request["output_bytes"]:
            raise MemoryError(f"it printed more than {self._request['output_bytes']:,} bytes")
        if text:
            self._host.send(op="print", text=text)

    def _finish(self, value: Any) -> None:
        if self._awaits and _holds_unawaited(value):
            self._fail("exception", f"TypeError: its value is no result but a call. {_NEEDS_AWAIT}")
            return
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            text = json.dumps(_describe(value))
        if len(text) > self._request["value_bytes"]:
            message = f"its value has {len(text):,} bytes, and {self._request['value_bytes']:,} are the limit"
            self._fail("limit", f"MemoryError: {message}")
        else:
            self._host.send(op="done", value=json.loads(text))

    def _fail_at_runtime(self, exc: Any) -> None:
        message, inner = exc.display("type-msg"), exc.exception()
        is_limit = isinstance(inner, (MemoryError, RecursionError)) or "limit exceeded" in message
        if "feed time limit exceeded" in message:
            message = self._describe_time_limit()
        if isinstance(inner, TypeError) and "coroutine" in message:
            message += f". {_NEEDS_AWAIT}"
        self._fail("limit" if is_limit else "exception", message, exc.traceback())

    def _describe_time_limit(self) -> str:
        return f"TimeoutError: the script computed for longer than its limit of {self._request['cpu_s']:g} s"

    def _fail(self, kind: str, message: str, frames: Any = ()) -> None:
        lines = [
            {
                "number": frame.line,
                "text": (frame.source_line or "").strip()[:_MAX_LINE_CHARS],
                "function": frame.function_name or "",
            }
            for frame in [*frames][-_LINES:]
        ]
        self._host.send(op="failed", kind=kind, message=message[:4_000], lines=lines)


_NO_METHOD = {"exc_type": "AttributeError", "message": "there is no such method"}


def _to_result(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        return {"exc_type": answer["error"], "message": answer["message"]}
    return {"return_value": answer["value"]}


def uses_await(code: str) -> bool:
    """Return whether a script awaits anything, ignoring comments and plain strings."""
    if _AWAIT.search(code) is None:
        return False
    try:
        # Don't parse it: this process's parser isn't part of the sandbox.
        return any(
            token.string == "await"
            if token.type == tokenize.NAME
            else token.type == tokenize.STRING and bool(_FORMATTED.match(token.string) and _AWAIT.search(token.string))
            for token in tokenize.generate_tokens(io.StringIO(code).readline)
        )
    except (tokenize.TokenError, SyntaxError):
        return True


def _holds_unawaited(value: Any) -> bool:
    """Return whether a value, or one of its items, is an unawaited call."""
    some: list[Any] = [value]
    if isinstance(value, dict):
        some += cast("dict[Any, Any]", value).values()
    elif isinstance(value, (list, tuple)):
        some += cast("list[Any]", value)
    return any(isinstance(one, str) and _UNAWAITED.fullmatch(one) is not None for one in some)


def _describe(value: Any) -> str:
    try:
        return repr(value)
    except RecursionError:
        return f"a {type(value).__name__} that is too deep to be shown"
    except ValueError as exc:  # an integer of thousands of digits
        return f"a value of the type {type(value).__name__} that cannot be shown: {exc}"


if __name__ == "__main__":
    MontyHost().serve()
