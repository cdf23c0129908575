"""Process that runs one script with CPython, inside bubblewrap.

Started by `induscode.code_mode.engines`; it imports the standard library only. Both directions are lines of JSON, see
`induscode.code_mode.process`. Before the script runs, the process limits its memory and CPU time and installs a system
call filter (https://man7.org/linux/man-pages/man2/seccomp.2.html) that leaves it computing, and its two pipes: no file,
socket, process or signal to another one. The script may reach every object of this interpreter, and gains nothing by
it: what holds is the kernel's, not Python's. The builtins and modules it is given are those that are of use here.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import builtins
import collections
import contextlib
import copy
import csv
import ctypes
import dataclasses
import datetime
import decimal
import functools
import hashlib
import heapq
import inspect
import itertools
import json
import linecache
import math
import operator
import os
import platform
import random
import re
import resource
import statistics
import string
import sys
import textwrap
import time
import traceback
import types
import typing
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

MODULES: Mapping[str, types.ModuleType] = {
    module.__name__: module
    for module in (
        *(asyncio, base64, collections, copy, csv, dataclasses, datetime, decimal, functools, hashlib, heapq),
        *(itertools, json, math, operator, random, re, statistics, string, textwrap, time, typing),
    )
}
"""What a script may import: all of it is loaded before the filter is installed."""
_HIDDEN = ("open", "input", "breakpoint", "help", "exit", "quit", "copyright", "credits", "license", "__import__")
_FILE = "script.py"
_LINES = 5
_LONGEST_LINE = 160
_PRINT_CHARS = 16_384
_NEEDS_AWAIT = "In a script with `await`, every call of a tool needs one"
_BASE_BYTES = 192 * 1024 * 1024
"""Address space of the interpreter itself, in addition to what a script may use."""

_SYSCALLS = {
    # read, write, close, fstat, poll, lseek, mmap, mprotect, munmap, brk, rt_sig*, sched_yield, mremap, madvise,
    # nanosleep, getpid, sendto, recvfrom (the loop's own socket pair), exit, gettimeofday, sigaltstack, gettid, futex,
    # restart_syscall, clock_*, exit_group, epoll_*, set_robust_list, getrandom, rseq
    "x86_64": (0xC000003E, (0, 1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 28, 35, 39, 44, 45, 60, 96, 131, 186,
                            202, 219, 228, 229, 230, 231, 232, 233, 273, 281, 318, 334, 441)),
    "aarch64": (0xC00000B7, (63, 64, 57, 80, 73, 62, 222, 226, 215, 214, 134, 135, 139, 124, 216, 233, 101, 172, 206,
                             207, 93, 169, 132, 178, 98, 128, 113, 114, 115, 94, 21, 22, 99, 278, 293, 441)),
}  # fmt: skip
"""The identifier of each architecture (linux/audit.h) and the system calls that are allowed on it; every other one
fails with EPERM."""
_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001
_X32_BIT = 0x40000000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER_MODE = 38, 22, 2


def build_filter(machine: str) -> bytes:
    """Build the program of the filter: classic BPF over `struct seccomp_data` (number, architecture, …)."""
    architecture, numbers = _SYSCALLS[machine]
    count = len(numbers)
    steps = [
        (_LOAD, 0, 0, 4),
        (_JUMP_EQUAL, 0, count + 2, architecture),
        (_LOAD, 0, 0, 0),
        (_JUMP_GREATER, count, 0, _X32_BIT),
        *((_JUMP_EQUAL, count - index, 0, number) for index, number in enumerate(numbers)),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(
        code.to_bytes(2, "little") + bytes((yes, no)) + value.to_bytes(4, "little") for code, yes, no, value in steps
    )


def lock_down(cpu_s: float, memory_bytes: int) -> None:
    """Limit this process and install the filter.

    Raises:
        OSError: The filter is refused, or unknown for this machine.
    """
    seconds, space = math.ceil(cpu_s), memory_bytes + _BASE_BYTES
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, space),
    ):
        resource.setrlimit(kind, (limit, limit))
    program = ctypes.create_string_buffer(build_filter(platform.machine()))

    class FilterProgram(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))

    described = FilterProgram((len(program) - 1) // 8, ctypes.addressof(program))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    address = ctypes.c_ulong(ctypes.addressof(described))
    if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or prctl(_PR_SET_SECCOMP, _FILTER_MODE, address, 0, 0):
        raise OSError(ctypes.get_errno(), "the system call filter is refused")


class CPythonHost:
    """The script, its calls and its output."""

    def __init__(self) -> None:
        self._rest = b""
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; raises TypeError, ValueError or RecursionError if JSON cannot carry it."""
        data = json.dumps(message, allow_nan=False).encode("ascii") + b"\n"
        while data:
            data = data[os.write(1, data) :]

    def read_lines(self) -> Sequence[dict[str, Any]]:
        """Wait for messages; ends the process at the end of its input."""
        data = os.read(0, 65_536)
        if not data:
            os._exit(1)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def read_request(self) -> dict[str, Any]:
        """Wait for the script."""
        while not (lines := self.read_lines()):
            continue
        return lines[0]

    # -- what the script sees ---------------------------------------------------------------

    def build_function(self, name: str) -> Callable[..., Any]:
        """Build the function of a tool."""

        def function(*args: Any, **kwargs: Any) -> Any:
            self._number += 1
            number = self._number
            try:
                self.send({"op": "call", "id": number, "name": name, "args": args, "kwargs": kwargs})
            except (TypeError, ValueError, RecursionError) as exc:
                raise TypeError(f"{name}: the arguments are no JSON: {exc}") from None
            if self._loop is not None:
                future = self._futures[number] = self._loop.create_future()
                return future
            while number not in self._answers:
                self._answers.update({message["id"]: message for message in self.read_lines()})
            return _to_value(self._answers.pop(number))

        function.__name__ = function.__qualname__ = name
        return function

    def print_text(self, *values: object, sep: str = " ", end: str = "\n", **_: object) -> None:
        """Send printed text."""
        text = (" " if sep is None else sep).join(map(str, values)) + ("\n" if end is None else end)  # pyright: ignore[reportUnnecessaryComparison] — as Python's own
        for start in range(0, len(text), _PRINT_CHARS):
            self.send({"op": "print", "text": text[start : start + _PRINT_CHARS]})

    def build_globals(self, names: Sequence[str]) -> dict[str, Any]:
        """Build the names that the script finds."""
        shown = {name: value for name, value in vars(builtins).items() if name not in _HIDDEN}

        def import_module(name: str, *_: object, **__: object) -> types.ModuleType:
            if name not in MODULES:
                raise ModuleNotFoundError(f"no module named {name!r} here; there are: {', '.join(sorted(MODULES))}")
            return MODULES[name]

        shown |= {"print": self.print_text, "__import__": import_module}
        functions = {name: self.build_function(name) for name in names}
        return {"__name__": "__main__", "__builtins__": shown, **functions}

    # -- running ----------------------------------------------------------------------------

    def run(self, request: dict[str, Any]) -> None:
        """Run the script, and send its end."""
        code: str = request["code"]
        linecache.cache[_FILE] = (len(code), None, code.splitlines(keepends=True), _FILE)
        loop = asyncio.new_event_loop()  # made before the filter, which permits no new one
        loop.add_reader(0, self._take_answers)

        def run_coroutine(main: Coroutine[Any, Any, Any], **_: Any) -> Any:
            return loop.run_until_complete(main)

        asyncio.run = run_coroutine
        lock_down(request["cpu_s"], request["memory_bytes"])
        try:
            parts, uses_await = compile_script(code)
        except (SyntaxError, ValueError, MemoryError, RecursionError) as exc:
            line = {"number": getattr(exc, "lineno", None) or 1, "text": "", "function": ""}
            self._fail("syntax", f"{type(exc).__name__}: {getattr(exc, 'msg', exc)}", [line])
            return
        self._loop = loop if uses_await else None
        value: Any = None
        names = self.build_globals(request["names"])
        try:
            for part in parts:
                value = self._execute(part, names)
        except BaseException as exc:  # noqa: BLE001 — boundary: the script, whatever it raises
            self._fail_at_runtime(exc)
            return
        self._finish(value, request["value_bytes"])

    def _execute(self, part: types.CodeType, names: dict[str, Any]) -> Any:
        result = eval(part, names)
        if not inspect.iscoroutine(result):
            return result
        assert self._loop is not None
        return self._loop.run_until_complete(result)

    def _take_answers(self) -> None:
        for message in self.read_lines():
            future = self._futures.pop(message["id"], None)
            if future is None or future.done():
                continue
            try:
                future.set_result(_to_value(message))
            except Exception as exc:  # noqa: BLE001 — passed on to the script
                future.set_exception(exc)

    def _finish(self, value: Any, limit: int) -> None:
        if _holds_unawaited(value):
            self._fail("exception", f"TypeError: its value is no result but a call. {_NEEDS_AWAIT}", [])
            return
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            text = json.dumps(_describe(value))
        if len(text) > limit:
            self._fail("limit", f"MemoryError: its value has {len(text):,} bytes, and {limit:,} are the limit", [])
            return
        self.send({"op": "done", "value": json.loads(text)})

    def _fail_at_runtime(self, exc: BaseException) -> None:
        frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if frame.filename == _FILE]
        lines = [
            {"number": frame.lineno or 1, "text": (frame.line or "")[:_LONGEST_LINE], "function": frame.name}
            for frame in frames[-_LINES:]
        ]
        message = f"{type(exc).__name__}: {_describe_message(exc)}"
        if isinstance(exc, TypeError) and "Future" in message:
            message += f". {_NEEDS_AWAIT}"
        self._fail("limit" if isinstance(exc, (MemoryError, RecursionError)) else "exception", message, lines)

    def _fail(self, kind: str, message: str, lines: Sequence[Mapping[str, Any]]) -> None:
        self.send({"op": "failed", "kind": kind, "message": message[:4_000], "lines": [*lines]})


def compile_script(code: str) -> tuple[list[types.CodeType], bool]:
    """Compile a script, and tell whether it awaits anything.

    The value of its last part is that of its last expression, if it ends with one.
    """
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = ast.parse(code, _FILE)
    uses_await = any(isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith)) for node in ast.walk(tree))
    uses_await = uses_await or any(isinstance(node, ast.comprehension) and node.is_async for node in ast.walk(tree))
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return [compile(tree, _FILE, "exec", flags)], uses_await
    first = ast.Module(tree.body[:-1], tree.type_ignores)
    parts = [compile(first, _FILE, "exec", flags), compile(ast.Expression(last.value), _FILE, "eval", flags)]
    return parts, uses_await


def _holds_unawaited(value: Any) -> bool:
    """Tell whether a value, or an item of it, is a call that was not awaited."""
    some: list[Any] = [value]
    if isinstance(value, dict):
        some += cast("dict[Any, Any]", value).values()
    elif isinstance(value, (list, tuple)):
        some += cast("list[Any]", value)
    return any(isinstance(one, asyncio.Future) for one in some)


def _to_value(answer: Mapping[str, Any]) -> Any:
    if "error" not in answer:
        return answer["value"]
    error = getattr(builtins, str(answer["error"]), RuntimeError)
    raise error(answer["message"])


def _describe(value: Any) -> str:
    try:
        return repr(value)
    except BaseException as exc:  # noqa: BLE001 — the script's own class
        return f"a {type(value).__name__}, whose repr raises {type(exc).__name__}"


def _describe_message(exc: BaseException) -> str:
    try:
        return str(exc)
    except BaseException:  # noqa: BLE001 — the script's own class
        return "its text cannot be shown"


def main() -> None:
    """Run the script that comes on standard input."""
    host = CPythonHost()
    host.send({"op": "ready"})
    host.run(host.read_request())
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
