"""Worker processes: run a CPU-bound function in a separate Python process, with limits.

A call into a C extension may hold the GIL until it returns. Every other thread waits, including the event loop, and the
only way to stop it is to kill the process. `run_in_worker` runs such a function in a new process, at the cost of
starting Python. The process sees neither the working directory nor `PYTHON*` variables (it starts with `-I`, see
https://docs.python.org/3/using/cmdline.html#cmdoption-I), inherits no secrets from the environment, and ends with the
call: on return, at the deadline and on cancellation.

A message is JSON (RFC 8259) followed by its large texts and bytes. We never unpickle results, because a parser
compromised by a hostile document could then run code in this process.

The worker imports this module too, so heavy imports go inside functions.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, Literal, TypeVar, TypeVarTuple, cast

from indusagi.core.records import record

T = TypeVar("T")
ArgumentsT = TypeVarTuple("ArgumentsT")

_BOOTSTRAP = """
import sys, types
for name, path in zip(("indusagi", "indusagi.core", "indusagi.capabilities"), sys.argv[1:4]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
sys.path.extend(filter(None, sys.argv[4:5]))
from indusagi.capabilities.worker import main
main(*sys.argv[5:])
"""
"""Registers our packages without running their `__init__`, which takes four times as long as starting Python. An empty
entry on `sys.path` would mean the working directory, which may contain a third party's module."""
_CAPABILITIES = os.path.dirname(__file__)
_PACKAGE = os.path.dirname(_CAPABILITIES)
_PASSED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")
"""Variables needed to load libraries; any other may contain a secret."""
_WRITE_BYTES = 256 * 1024
_MAX_RESULT_BYTES = 64 * 1024 * 1024
"""A longer result gets cut, which makes it invalid."""
_LENGTH_BYTES = 8
"""Size of the length prefix of the JSON."""
_SHORT_TEXT = 4096
"""Longer texts aren't escaped as JSON."""


class WorkerError(Exception):
    """A worker returned no result. The message continues a sentence whose subject is the worker."""

    def __init__(self, code: Literal["timeout", "spawn", "failed"], message: str) -> None:
        super().__init__(message)
        self.code = code


@record
class WorkerLimits:
    """Limits on the process (https://man7.org/linux/man-pages/man2/setrlimit.2.html), set before it loads a library."""

    cpu_s: int
    memory_bytes: int


async def run_in_thread(function: Callable[[*ArgumentsT], T], *arguments: *ArgumentsT) -> T:
    """Call a function in a thread, abandoning the thread on cancellation."""
    from anyio import to_thread  # noqa: PLC0415 — the worker process does without it

    return await to_thread.run_sync(function, *arguments, abandon_on_cancel=True)


async def run_in_worker(
    function: Callable[[*ArgumentsT], T],
    *arguments: *ArgumentsT,
    returns: Sequence[type] = (),
    library: str = "",
    limits: WorkerLimits | None = None,
    deadline_s: float,
) -> T:
    """Call one of our functions in a process that ends with this call.

    Args:
        function: A module-level function; the worker imports it by name.
        arguments: JSON values, bytes, and tuples and dataclasses of these.
        returns: The dataclasses the result may contain.
        library: A package the function imports, in case it's installed outside the interpreter's own paths.
        limits: Limits on the process.
        deadline_s: Kill the process after this many seconds.

    Raises:
        WorkerError: It failed to start, exceeded the deadline, or ended without a result.
    """
    from anyio import fail_after, to_thread  # noqa: PLC0415 — the worker process does without them

    from indusagi.core.process.child import ChildProcess, KeptOutput  # noqa: PLC0415 — the worker process does without

    command = await to_thread.run_sync(build_command, function, library, limits)
    message = await to_thread.run_sync(encode_message, arguments)
    environment = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    output = KeptOutput(_MAX_RESULT_BYTES)
    child = ChildProcess(output)
    try:
        with fail_after(deadline_s):
            # The worker reads all input before working and writes at the end, so it soon ends if we die.
            await child.start(command, environment, None, die_with_parent=False)
            for part in message:
                for start in range(0, len(part), _WRITE_BYTES):
                    await child.writable.wait()
                    child.write(part[start : start + _WRITE_BYTES])
            child.close_input()
            await child.output_ended.wait()
    except TimeoutError:
        raise WorkerError("timeout", f"took longer than {deadline_s:g} seconds") from None
    except OSError as exc:
        raise WorkerError("spawn", f"cannot be started: {exc.strerror or exc}") from exc
    finally:
        await child.end(0)
    types = {_name_type(returned): returned for returned in returns}
    try:
        return cast("T", await to_thread.run_sync(decode_message, [output.data], types))
    except ValueError:
        raise WorkerError("failed", "ended without a result") from None


def build_command(function: Callable[..., object], library: str, limits: WorkerLimits | None) -> list[str]:
    """Build the command line of a worker, locating `library` on disk."""
    from importlib.util import find_spec  # noqa: PLC0415 — the worker process does without it

    spec = find_spec(library) if library else None
    library_path = os.path.dirname(os.path.dirname((spec and spec.origin) or ""))
    target = f"{function.__module__}:{function.__qualname__}"
    numbers = (str(limits.cpu_s), str(limits.memory_bytes)) if limits else ()
    paths = (_PACKAGE, os.path.join(_PACKAGE, "core"), _CAPABILITIES, library_path)
    return [sys.executable, "-I", "-c", _BOOTSTRAP, *paths, target, *numbers]


# -- in the worker process ----------------------------------------------------------------------


def main(target: str, *limits: str) -> None:
    """Call the function `target` with the arguments from stdin and write its result to stdout."""
    if limits:
        set_rlimits(WorkerLimits(*map(int, limits)))
    module, _, name = target.partition(":")
    function = getattr(import_module(module), name)
    arguments = cast("Sequence[object]", decode_message([sys.stdin.buffer.read()]))
    for piece in encode_message(function(*arguments)):
        sys.stdout.buffer.write(piece)


def set_rlimits(limits: WorkerLimits) -> None:
    """Limit the CPU time and address space of this process, as far as possible."""
    import resource  # noqa: PLC0415 — absent on Windows

    for kind, limit in ((resource.RLIMIT_AS, limits.memory_bytes), (resource.RLIMIT_CPU, limits.cpu_s)):
        try:
            resource.setrlimit(kind, (limit, limit))
        except (OSError, ValueError):  # there's already a stricter limit, or the system doesn't support it
            continue


# -- messages -----------------------------------------------------------------------------------


def encode_message(value: object) -> list[bytes]:
    """Encode a value as a list of chunks, without copying large bytes."""
    parts: list[bytes] = []
    tree = _to_tree(value, parts)
    head = json.dumps([tree, [len(part) for part in parts]]).encode("ascii")
    return [len(head).to_bytes(_LENGTH_BYTES, "big"), head, *parts]


def decode_message(pieces: Sequence[bytes | bytearray], types: Mapping[str, type] | None = None) -> object:
    """Decode a message that may contain the dataclasses of `types`, by name; None allows all, from our own process.

    Raises `ValueError` if the message is invalid or incomplete.
    """
    data = b"".join(pieces)
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big")
    try:
        tree, sizes = json.loads(data[_LENGTH_BYTES:start])
        parts: list[bytes] = []
        for size in sizes:
            parts.append(data[start : start + size])
            start += size
        if start != len(data):
            raise ValueError(f"{len(data)} bytes instead of {start}")
        return _from_tree(tree, parts, types)
    except (TypeError, LookupError, AttributeError, RecursionError) as exc:
        raise ValueError("invalid message") from exc


def _to_tree(value: Any, parts: list[bytes]) -> Any:
    """Convert a value to JSON, representing objects as a single key that tags the type."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list):
        return [_to_tree(item, parts) for item in cast("list[object]", value)]
    if isinstance(value, tuple):
        return {"tuple": [_to_tree(item, parts) for item in cast("tuple[object, ...]", value)]}
    if isinstance(value, dict):
        return {"dict": {name: _to_tree(item, parts) for name, item in cast("dict[str, object]", value).items()}}
    if is_dataclass(value):
        members = {field.name: _to_tree(getattr(value, field.name), parts) for field in fields(value)}
        return {"object": [_name_type(type(value)), members]}
    if isinstance(value, str) and len(value) <= _SHORT_TEXT and value.isascii():
        return value
    # JSON would join two halves of a surrogate pair; bytes keep them apart.
    is_text = isinstance(value, str)
    parts.append(value.encode("utf-8", "surrogatepass") if is_text else value)
    return {"text" if is_text else "bytes": len(parts) - 1}


def _from_tree(tree: Any, parts: list[bytes], types: Mapping[str, type] | None) -> Any:
    if isinstance(tree, list):
        return [_from_tree(item, parts, types) for item in cast("list[object]", tree)]
    if not isinstance(tree, dict):
        return tree
    [(kind, value)] = cast("dict[str, Any]", tree).items()
    if kind in {"text", "bytes"}:
        part = parts[int(value)]
        return part.decode("utf-8", "surrogatepass") if kind == "text" else part
    if kind == "tuple":
        return tuple(_from_tree(item, parts, types) for item in value)
    if kind == "dict":
        return {name: _from_tree(item, parts, types) for name, item in value.items()}
    name, members = value
    if types is None:
        module, _, qualified = name.partition(":")
        found = getattr(import_module(module), qualified)
    else:
        found = types[name]
    return found(**{field: _from_tree(item, parts, types) for field, item in members.items()})


def _name_type(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
