"""An MCP server that tries to hurt the machine it runs on: harmless probes of canaries that a test has made.

Its tool `attack` runs probes by name and answers with what each has got: `done`, or why not. It needs no packages, so
every sandbox can run it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import termios
import threading
import urllib.request
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
CANARY = b"canary"


class Refused(Exception):
    """The probe has failed without an error of the system."""


def _call(number: int, *arguments: Any) -> int:
    found = _libc.syscall(number, *arguments)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def _expect(is_done: object) -> None:
    if not is_done:
        raise Refused


# -- files ------------------------------------------------------------------------------------


def read(path: str) -> None:
    with open(path, "rb") as file:
        _expect(CANARY in file.read(1 << 20))


def read_any(path: str) -> None:
    with open(path, "rb") as file:
        _expect(file.read(1))


def list_any(*paths: str) -> None:
    _expect(any(os.listdir(path) for path in paths if os.path.isdir(path)))


def list_others(paths: list[str], needed: list[str]) -> None:
    _expect([name for path in paths if os.path.isdir(path) for name in os.listdir(path) if name not in needed])


def write(path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write("owned")


def create(folder: str) -> None:
    path = f"{folder}/indus-probe-{os.getpid()}~"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.unlink(path)


def open_to_write(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY))


def rename(source: str, target: str) -> None:
    os.rename(source, target)
    os.rename(target, source)


def change_mode(path: str) -> None:
    os.chmod(path, 0o640)


def read_by_link(target: str, link: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.symlink(target, link)
    read(link)


def read_by_hard_link(target: str, link: str) -> None:
    os.link(target, link)
    read(link)


def read_below(root: str, path: str) -> None:
    read(f"{root}{path}")


def read_disk() -> None:
    for name in os.listdir("/sys/class/block"):
        with contextlib.suppress(OSError, Refused):
            return read_any(f"/dev/{name}")
    raise Refused


def make_folder(folder: str) -> None:
    path = f"{folder}/indus-probe-{os.getpid()}"
    os.mkdir(path)
    os.rmdir(path)


# -- network and sockets ------------------------------------------------------------------------


def connect(family: str, kind: str, *address: Any) -> None:
    with socket.socket(getattr(socket, family), getattr(socket, kind)) as one:
        one.settimeout(5)
        one.connect(address[0] if family == "AF_UNIX" else tuple(address))
        one.send(CANARY)


def find_route(family: str, *address: Any) -> None:
    """Find the way to an address: connecting a datagram socket sends nothing."""
    with socket.socket(getattr(socket, family), socket.SOCK_DGRAM) as one:
        one.connect(tuple(address))


def open_socket(family: str, kind: str, protocol: int) -> None:
    socket.socket(getattr(socket, family), getattr(socket, kind), protocol).close()


def connect_abstract(name: str) -> None:
    connect("AF_UNIX", "SOCK_STREAM", f"\0{name}")


def start_reverse_shell(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 5) as one:
        subprocess.run(["/bin/sh", "-c", "echo canary"], stdin=subprocess.DEVNULL, stdout=one.fileno(), check=True)


def send_through_proxy(port: int, text: str) -> None:
    """Send a request to the proxy that the environment names; done if it lets something through."""
    proxy = os.environ.get("HTTP_PROXY", "")
    _expect(proxy)
    with socket.create_connection(("127.0.0.1", int(proxy.rpartition(":")[2])), 20) as one:
        one.settimeout(20)
        one.sendall(bytes.fromhex(text))
        got = b""
        with contextlib.suppress(OSError):
            while CANARY not in got and (data := one.recv(1000)):
                got += data
        _expect(CANARY in got)


def follow_redirect(url: str) -> None:
    with urllib.request.urlopen(url, timeout=20) as answer:
        _expect(CANARY in answer.read())


# -- processes and the kernel -----------------------------------------------------------------------


def signal_process(pid: int) -> None:
    os.kill(pid, 0)


def trace(pid: int) -> None:
    seize, detach = 0x4206, 17
    if _libc.ptrace(seize, pid, None, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _libc.ptrace(detach, pid, None, None)


def read_memory(pid: int) -> None:
    with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as maps:
        start = int(next(line for line in maps if " rw-p " in line).partition("-")[0], 16)
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        memory.seek(start)
        _expect(memory.read(16))


def read_by_vector(pid: int) -> None:
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        start = int(next(maps).partition("-")[0], 16)
    buffer = ctypes.create_string_buffer(16)
    local = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 16)
    remote = (ctypes.c_size_t * 2)(start, 16)
    found = _libc.process_vm_readv(pid, local, 1, remote, 1, 0)
    if found < 0 and ctypes.get_errno() != 14:  # EFAULT: allowed, but nothing is there
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def steal_descriptor(pid: int) -> None:
    handle = os.pidfd_open(pid)
    os.close(_call(438, handle, 0, 0))  # pidfd_getfd


def enter_namespace(pid: int, kind: str) -> None:
    handle = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
    results: list[tuple[int, int]] = []

    def enter() -> None:
        results.append((_libc.setns(handle, 0), ctypes.get_errno()))

    thread = threading.Thread(target=enter)  # only the thread would be there
    thread.start()
    thread.join()
    os.close(handle)
    if results[0][0]:
        raise OSError(results[0][1], os.strerror(results[0][1]))


def fork_and(function: str, *arguments: Any) -> None:
    """Call a function of libc in a child process, which ends at once."""
    child = os.fork()
    if child == 0:
        found = -1
        try:
            found = getattr(_libc, function)(*(one.encode() if isinstance(one, str) else one for one in arguments))
        finally:
            os._exit(0 if found >= 0 else 1)
    _expect(os.waitpid(child, 0)[1] == 0)


def gain_rights() -> None:
    with open("/proc/self/status", encoding="ascii") as status:
        _expect("NoNewPrivs:\t0" in status.read())


def find_environment(name: str) -> None:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if name.encode() in file.read():
                return
    raise Refused


def find_command_line(word: str) -> None:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            if word.encode() in file.read():
                return
    raise Refused


def own_variable(name: str) -> None:
    _expect(name in os.environ)


def own_descriptor(text: str) -> None:
    for number in range(3, 256):
        with contextlib.suppress(OSError):
            if text.encode() in os.pread(number, 100, 0):
                return
    raise Refused


def read_key(number: int) -> None:
    buffer = ctypes.create_string_buffer(64)
    _call(250 if os.uname().machine == "x86_64" else 219, 11, number, buffer, 64, 0)
    _expect(CANARY in buffer.raw)


def attach_memory(number: int) -> None:
    _libc.shmat.restype = ctypes.c_void_p
    _libc.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
    address = _libc.shmat(number, None, 0)
    if address in {None, ctypes.c_void_p(-1).value}:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _expect(ctypes.string_at(address, len(CANARY)) == CANARY)


def type_into_terminal(path: str) -> None:
    handle = os.open(path, os.O_RDWR | os.O_NOCTTY)
    fcntl.ioctl(handle, termios.TIOCSTI, b"x")


def open_ring() -> None:
    os.close(_call(425, 1, ctypes.create_string_buffer(120)))


def walk_out(pid: int, path: str) -> None:
    for name in ("root", "cwd", *(f"fd/{number}" for number in range(64))):
        with contextlib.suppress(OSError, Refused):
            read(f"/proc/{pid}/{name}{path}")
            return
    raise Refused


# -- what stays behind ------------------------------------------------------------------------------


def plant_link(target: str, link: str) -> None:
    os.symlink(target, link)


def replace_by_link(target: str, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    os.symlink(target, path)


def move_and_link(source: str, aside: str, target: str) -> None:
    os.rename(source, aside)
    os.symlink(target, source)


def plant_pipe(path: str) -> None:
    os.mkfifo(path)


def dig(folder: str, depth: int) -> None:
    """Make directories inside each other, deeper than a recursive removal or walk gets."""
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deep", 0o700, dir_fd=handle)
        inner = os.open("deep", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)


def close_folder(folder: str) -> None:
    os.makedirs(f"{folder}/closed/inner")
    os.chmod(f"{folder}/closed", 0)


# -- hogs ---------------------------------------------------------------------------------------------


def start_many(count: int) -> None:
    """Start processes that wait, up to a bound: a fork bomb that ends."""
    children: list[int] = []
    try:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                threading.Event().wait(60)
                os._exit(0)
            children.append(child)
    finally:
        if len(children) < count:
            for child in children:
                os.kill(child, 9)


def take_memory(size: int) -> None:
    taken = [b"x" * (1 << 20) for _ in range(size >> 20)]
    threading.Event().wait(60 if taken else 0)


def fill_disk(path: str, size: int) -> None:
    with open(path, "wb", 0) as file:
        for _ in range(size >> 20):
            _expect(file.write(b"x" * (1 << 20)) == 1 << 20)


def fill_disk_with_files(folder: str, size: int) -> None:
    for number in range(size >> 20):
        fill_disk(f"{folder}/{number}", 1 << 20)
    threading.Event().wait(60)


def attack(probes: dict[str, tuple[str, list[Any]]]) -> dict[str, str]:
    outcomes: dict[str, str] = {}
    for name, (probe, arguments) in probes.items():
        try:
            globals()[probe](*arguments)
            outcomes[name] = "done"
        except Exception as exc:  # noqa: BLE001 — the answer is the outcome
            outcomes[name] = f"{type(exc).__name__}: {exc}"
    return outcomes


TOOL = {"name": "attack", "description": "Runs probes.", "inputSchema": {"type": "object"}}


def answer(method: str, params: Any) -> Any:
    if method == "initialize":
        info = {"name": "hostile", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        text = json.dumps(attack(params["arguments"]["probes"]))
        return {"content": [{"type": "text", "text": text}]}
    return None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result: Any = answer(message["method"], message.get("params", {}))
            body: Any = {"result": result} if result is not None else {"error": {"code": -32601, "message": "unknown"}}
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
