"""The engines of code mode: pydantic-monty, and CPython inside bubblewrap.

An engine that cannot run here is refused with what to install; a script never runs without a sandbox.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.capabilities.sandbox.bubblewrap import find_bubblewrap
from induscode.code_mode import cpython_host, monty_host
from induscode.code_mode.contract import EngineUnavailable
from induscode.code_mode.process import ScriptProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.code_mode.contract import CallFunction, CodeLimits, EngineName, ScriptEngine, ScriptResult

INSTALL = "pip install 'indus-deck[code]'"
MOST_PROCESSES = 4
"""Scripts that run at once; further ones wait."""
_MOST_IDLE = 1
"""Processes that are kept for the next script."""
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")


def find_engine_problem(name: EngineName) -> str:
    """Say why an engine cannot run here, with the remedy; "" if it can. It blocks: bubblewrap is tried."""
    if name == "monty":
        return "" if find_spec("pydantic_monty") else f"code mode needs the interpreter monty: {INSTALL}"
    start, reason = find_bubblewrap(os.environ.get("PATH", os.defpath), os.getcwd())
    if start:
        return ""
    return (
        f"the engine cpython runs in bubblewrap only, and {reason}; install bubblewrap, or use the engine monty "
        "(the setting code.engine)"
    )


def build_engine(name: EngineName) -> ScriptEngine:
    """Build an engine; its processes start with its first script."""
    return MontyEngine() if name == "monty" else CPythonEngine()


class MontyEngine:
    """Runs scripts with pydantic-monty. Processes are kept for the next script; its workers are not."""

    name: EngineName = "monty"

    def __init__(self) -> None:
        self._idle: list[ScriptProcess] = []
        self._limiter = anyio.CapacityLimiter(MOST_PROCESSES)

    async def run(self, code: str, names: Sequence[str], call: CallFunction, limits: CodeLimits) -> ScriptResult:
        """Run a script in an interpreter that ran nothing before."""
        if problem := await to_thread.run_sync(find_engine_problem, self.name):
            raise EngineUnavailable(problem)
        async with self._limiter:
            is_known = bool(self._idle)
            # It ends with its standard input, and takes its worker along: killed by the kernel, it would leave that.
            command = [sys.executable, "-I", monty_host.__file__]
            process = self._idle.pop() if is_known else ScriptProcess(command, ends_with_us=False)
            try:
                if not is_known:
                    await process.start()
                return await process.run(code, names, call, limits)
            finally:
                if process.is_idle and len(self._idle) < _MOST_IDLE:
                    self._idle.append(process)
                else:
                    await process.end()

    async def aclose(self) -> None:
        """End the processes that wait for a script."""
        while self._idle:
            await self._idle.pop().end()


class CPythonEngine:
    """Runs each script with CPython in a process of its own, inside bubblewrap and under a system call filter."""

    name: EngineName = "cpython"

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(MOST_PROCESSES)

    async def run(self, code: str, names: Sequence[str], call: CallFunction, limits: CodeLimits) -> ScriptResult:
        """Run a script."""
        argv = await to_thread.run_sync(build_sandboxed_command)
        async with self._limiter:
            process = ScriptProcess(argv, ends_with_us=True)
            try:
                await process.start()
                return await process.run(code, names, call, limits)
            finally:
                await process.end()

    async def aclose(self) -> None:
        """Do nothing: no process outlives its script."""


def build_sandboxed_command() -> list[str]:
    """Build the command line of CPython in bubblewrap; it blocks.

    The process sees the standard library, the libraries of the system and its own program, all read-only. It has no
    network, no other process, no user's file, no variable and no capability.

    Raises:
        EngineUnavailable: There is no bubblewrap that works.
    """
    start, _ = find_bubblewrap(os.environ.get("PATH", os.defpath), os.getcwd())
    if not start:
        raise EngineUnavailable(find_engine_problem("cpython"))
    program = os.path.realpath(sys.executable)
    library = str(sysconfig.get_config_var("LIBDIR") or "")
    shared = os.path.join(library, str(sysconfig.get_config_var("INSTSONAME") or ""))
    argv = [*start, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"]
    argv += ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    for path in (*_LIBRARIES, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), program, shared):
        if os.path.lexists(path) and not any(path.startswith(f"{parent}/") for parent in _LIBRARIES):
            argv += ["--ro-bind", path, path]
    if os.path.isfile(shared):
        argv += ["--setenv", "LD_LIBRARY_PATH", library]
    argv += ["--ro-bind", os.path.realpath(cpython_host.__file__), "/host.py", "--remount-ro", "/", "--chdir", "/"]
    return [*argv, "--", program, "-I", "-S", "-B", "/host.py"]
