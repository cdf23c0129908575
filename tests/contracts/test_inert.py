"""Doors that lead nowhere: complete, harmless until used, and plain when used."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, cast

import pytest

from indusagi.capabilities.budget import UNLIMITED
from indusagi.capabilities.ports import Fs, Shell
from indusagi.interop.protocol_bridge.bridge import UnavailableFs, UnavailableShell, make_inert_context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.anyio

FS = cast("Fs", UnavailableFs())
SHELL = cast("Shell", UnavailableShell())


def methods_of(shape: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(shape, callable) if not name.startswith("_")}


FS_CALLS: dict[str, Callable[[Fs], Awaitable[object]]] = {
    "resolve": lambda fs: fs.resolve("a", writing=True),
    "reading": lambda fs: fs.reading("a", lambda file: file.read()),
    "folder": lambda fs: fs.folder("a"),
    "stat": lambda fs: fs.stat("a", follow=False),
    "exists": lambda fs: fs.exists("a"),
    "read_bytes": lambda fs: fs.read_bytes("a", offset=1, limit=2),
    "read_text": lambda fs: fs.read_text("a"),
    "write_file": lambda fs: fs.write_file("a", b""),
    "mkdir": lambda fs: fs.mkdir("a"),
    "readdir": lambda fs: fs.readdir("a"),
    "rm": lambda fs: fs.rm("a"),
}
SHELL_CALLS: dict[str, Callable[[Shell], Awaitable[object]]] = {
    "exec": lambda shell: shell.exec("true", cwd="/", env={}, timeout_ms=1, cancel=None),
    "spawn": lambda shell: shell.spawn("true", cwd="/", env={}, output_path="a"),
}


def test_every_method_of_the_ports_is_tested() -> None:
    assert FS_CALLS.keys() == methods_of(Fs)
    assert SHELL_CALLS.keys() == methods_of(Shell)


@pytest.mark.parametrize("name", list(FS_CALLS))
async def test_unavailable_files_refuse_every_operation(name: str) -> None:
    with pytest.raises(OSError, match="a remote tool has no files or commands of this machine"):
        await FS_CALLS[name](FS)


@pytest.mark.parametrize("name", list(SHELL_CALLS))
async def test_unavailable_shell_refuses_every_operation(name: str) -> None:
    with pytest.raises(OSError, match="a remote tool has no files or commands of this machine"):
        await SHELL_CALLS[name](SHELL)


def test_context_without_ports_has_an_unlimited_budget() -> None:
    context = make_inert_context()
    assert isinstance(context.fs, UnavailableFs)
    assert isinstance(context.shell, UnavailableShell)
    assert context.budget is UNLIMITED
    assert not context.cancel.cancelled
    assert make_inert_context().context_id != context.context_id
