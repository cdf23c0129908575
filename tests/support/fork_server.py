"""A process that has loaded `indus` and forks for each command: a fork is many times as fast as a start.

Started by `tests.support.forked`, with a listening socket as its standard input, which the workers of a run connect to.
Each is greeted by a byte. Each byte from them brings four descriptors: a connection,
and the standard input, output and error of the new process. The new process reads its request from the
connection (JSON: arguments, directory, variables, session, constants), this one writes the process id to it, and at the
end the wait status (https://man7.org/linux/man-pages/man2/waitpid.2.html).

With words (`fork_server.py CONSTANTS indus WORDS...`) it's the command itself, started with other constants.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import sys
import termios
import threading
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

import indusagi
import induscode
from induscode.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_FORMER = dict(os.environ)
_ABSENT = (".adapters.langchain", ".adapters.openai_agents")
"""Modules whose libraries are not installed here."""
_LAZY = ("anyio._backends._asyncio", "chardet", "jsonschema.validators")
_HUGE_PAGE = 2 * 1024 * 1024
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # https://man7.org/linux/man-pages/man2/madvise.2.html


def load_program() -> Iterator[None]:
    """Import everything that a command may load, module by module, and let libraries build what they build once."""
    for package in (indusagi, induscode):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith((".__main__", *_ABSENT)):
                importlib.import_module(module.name)
            yield
    for name in _LAZY:
        importlib.import_module(name)
        yield
    from pydantic_ai._genai_prices import lookup_context_window  # noqa: PLC0415 — a started command need not load it
    from pydantic_ai.messages import ModelMessagesTypeAdapter  # noqa: PLC0415

    # The validator of messages and the patterns of model names take longer than all else that a prompt does.
    ModelMessagesTypeAdapter.validate_python([])
    yield
    lookup_context_window("scripted", provider_name="openai", provider_api_url="http://127.0.0.1/v1")
    yield
    gc.collect()
    gc.freeze()
    _take_huge_pages()


def _take_huge_pages() -> None:
    """Move the memory to huge pages if the kernel has them (Linux 6.1): a fork has far fewer entries to copy."""
    import ctypes  # noqa: PLC0415

    libc, maps = ctypes.CDLL(None), Path("/proc/self/maps")
    for line in maps.read_text("utf-8").splitlines() if maps.is_file() else ():
        addresses, access, _, _, _, *name = line.split()
        if "w" not in access or name not in ([], ["[heap]"]):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        start, end = -(-start // _HUGE_PAGE) * _HUGE_PAGE, end // _HUGE_PAGE * _HUGE_PAGE
        for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE) if start < end else ():
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)


class ConstantSetter:
    """Sets constants of modules and defaults of fields: of loaded modules at once, of others as they load (PEP 451)."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self._wanted: dict[str, dict[str, Any]] = {}
        for name, value in constants.items():
            module, _, constant = name.partition(":")
            self._wanted.setdefault(module, {})[constant] = value
        for module in self._wanted:
            if module in sys.modules:
                self._set(sys.modules[module])
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module whose constants are set once it has run; leave all others to the next finder."""
        spec = PathFinder.find_spec(name, path, target) if name in self._wanted else None
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_set(module: ModuleType) -> None:
                run(module)
                self._set(module)

            spec.loader.exec_module = run_and_set
        return spec

    def _set(self, module: ModuleType) -> None:
        for constant, value in self._wanted[module.__name__].items():
            *classes, name = constant.split(".")
            owner: Any = functools.reduce(getattr, classes, module)
            getattr(owner, name)  # a misspelt one is an error
            if hasattr(owner, "__dataclass_fields__"):
                owner.__init__.__kwdefaults__[name] = value
            else:
                setattr(owner, name, value)


def serve(listening: socket.socket) -> None:
    """Fork for each byte, and load the program in between; return in the new process, and end with the last sender."""
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, _ignore)
    signal.set_wakeup_fd(wake.fileno())
    controls: list[socket.socket] = []
    connections: dict[int, socket.socket] = {}
    loading = load_program()
    is_loaded = False
    while True:
        ready, _, _ = select.select([listening, woken, *controls], [], [], None if is_loaded else 0)
        is_loaded = is_loaded or next(loading, True) is not None
        if woken in ready:
            woken.recv(4096)
            _tell_ends(connections)
        if listening in ready:
            controls += _greet(listening)
        for control in [one for one in controls if one in ready]:
            data, descriptors, _, _ = socket.recv_fds(control, 1, 4)
            if not data:
                control.close()
                controls.remove(control)
                if not controls:
                    sys.exit()
                continue
            connection = socket.socket(fileno=descriptors[0])
            pid = os.fork()
            if not pid:
                _begin(connection, descriptors[1:], [listening, *controls, woken, wake, *connections.values()])
                return
            connections[pid] = connection
            _send(connection, pid)
            for descriptor in descriptors[1:]:
                os.close(descriptor)


def _begin(connection: socket.socket, descriptors: list[int], others: list[socket.socket]) -> None:
    """Become the command that a connection asks for, in the new process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = json.loads(_receive(connection))
    for open_socket in (connection, *others):
        open_socket.close()
    _become(request, descriptors)


def _greet(listening: socket.socket) -> list[socket.socket]:
    """Accept a sender, unless it is another user's: a name of this kind is open to all."""
    control = listening.accept()[0]
    if sys.platform == "linux":
        _, user, _ = struct.unpack("3i", control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.getuid():
            control.close()
            return []
    control.sendall(b"+")
    signal.alarm(0)
    return [control]


def _tell_ends(connections: dict[int, socket.socket]) -> None:
    while connections and (ended := os.waitpid(-1, os.WNOHANG))[0]:
        with connections.pop(ended[0]) as connection:
            _send(connection, ended[1])


def _ignore(*_: object) -> None:
    """Handle a signal: the descriptor for wake-ups has told the loop."""


def _receive(connection: socket.socket) -> bytes:
    text = b""
    while part := connection.recv(65_536):
        text += part
    return text


def _send(connection: socket.socket, number: int) -> None:
    try:
        connection.sendall(b"%d\n" % number)
    except OSError:  # the test waits no longer
        pass


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Take on what a request describes: all that a start would have given to this process."""
    if request["session"]:
        os.setsid()
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    if request["terminal"] is not None:
        fcntl.ioctl(request["terminal"], termios.TIOCSCTTY, 0)
    os.chdir(request["cwd"])
    set_by_imports = {name: value for name, value in os.environ.items() if value != _FORMER.get(name)}
    os.environ.clear()
    os.environ.update({**set_by_imports, **request["environ"]})
    sys.argv = request["argv"]
    ConstantSetter(request["constants"])
    # As the interpreter opens them: lines are written at once on a terminal.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        former: io.TextIOWrapper = getattr(sys, name)
        raw = open(number, "wb" if number else "rb", closefd=False)  # noqa: SIM115 — as long as the process
        stream = io.TextIOWrapper(
            raw, former.encoding, former.errors, line_buffering=number == 2 or raw.isatty(), newline="\n"
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    sys.path[0] = str(Path(sys.executable).parent)  # as for the script of a command
    if sys.argv[1:]:
        ConstantSetter(json.loads(sys.argv[1]))
        sys.argv = sys.argv[2:]
        sys.exit(main())
    if os.fork():  # a child of the tests would be there in each search for leaks
        os._exit(0)
    signal.alarm(60)  # until there is a sender: this process ends with the last one
    serve(socket.socket(fileno=os.dup(0)))
    code = main()
    # What the interpreter does at its end, except for taking all modules apart: that copies the memory of this process.
    threading._shutdown()  # type: ignore[attr-defined] — waits for the threads
    atexit._run_exitfuncs()
    for open_stream in (sys.stdout, sys.stderr):
        open_stream.flush()
    os._exit(code)
