"""A command behind its walls: which ones there are here, and the command line that raises them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

from indusagi.capabilities.ports import SandboxMissing, SandboxState
from indusagi.capabilities.sandbox.bubblewrap import (
    MASKS,
    PrivateDir,
    bubblewrap_argv,
    bubblewrap_lacks,
    find_bubblewrap,
)
from indusagi.capabilities.sandbox.environment import command_environment
from indusagi.capabilities.sandbox.final_cwd import PREAMBLE, final_cwd_variables, read_final_cwd
from indusagi.capabilities.sandbox.policy import resolve_layout
from indusagi.core.app_dirs import create_private_file
from indusagi.core.ids import new_ulid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from indusagi.capabilities.sandbox.policy import Sandbox, SandboxLayout

_REMEDY = "install bubblewrap, or let commands run without (Sandbox(mode='auto'))"


@dataclass(frozen=True, slots=True)
class SandboxedCommand:
    """A command line behind its walls; `leave` it when the command is over."""

    argv: list[str]
    env: dict[str, str]
    state: SandboxState
    note: str
    """Where the shell leaves word of the directory it ended in."""
    masked: tuple[str, ...]
    """Protected paths that are covered as long as it runs."""
    unwelcome: tuple[str, ...] = ()
    """Files that it must not leave behind."""

    def leave(self) -> None:
        """Remove what the walls and the shell have left on the machine."""
        MASKS.release(self.masked)
        for path in self.unwelcome:
            with suppress(OSError):
                os.unlink(path)
        read_final_cwd(self.note)


class SandboxBackend:
    """What the commands of one shell are held in by. None of this is for the event loop."""

    def __init__(self, sandbox: Sandbox, workspace: str, allowed: frozenset[str]) -> None:
        self._sandbox = sandbox
        self._workspace = workspace
        self._allowed = allowed
        self._lock = Lock()
        self._private: PrivateDir | None = None

    def state(self) -> SandboxState:
        """Tell what holds a command in; the first time, this starts a program to find out."""
        return self._choose(resolve_layout(self._sandbox, self._workspace))

    def enclose(self, shell: str, command: str, folder: str, env: Mapping[str, str]) -> SandboxedCommand:
        """Put a command behind the walls.

        Raises:
            SandboxMissing: A sandbox is required, and there is none.
            OSError: The private folder cannot be made.
        """
        layout = resolve_layout(self._sandbox, self._workspace)
        state = self._choose(layout)
        if self._sandbox.mode == "required" and (state.kind == "none" or _leaks(state, layout)):
            raise SandboxMissing(
                f"commands may only run in a sandbox, and there is none that will do ({state}): {_REMEDY}"
            )
        private = self._make_private()
        note = os.path.join(private.notes, new_ulid())
        inherited = command_environment(os.environ, self._allowed) | dict(env)
        if shell.endswith("bash"):
            inherited |= final_cwd_variables(private.preamble, note, inherited)
        plain = [shell, "-c", command]
        if state.kind == "bubblewrap":
            return self._wrapped(layout, state, private, note, plain, inherited, folder)
        if state.kind == "landlock":
            from indusagi.capabilities.sandbox.landlock import landlock_argv  # noqa: PLC0415 — loads ctypes

            argv = [*landlock_argv(layout, private), *plain]
            inherited |= _caches(private.tmp) | {"TMPDIR": private.tmp}
            return SandboxedCommand(argv, inherited, state, note, ())
        return SandboxedCommand(plain, inherited, state, note, ())

    def _wrapped(
        self,
        layout: SandboxLayout,
        state: SandboxState,
        private: PrivateDir,
        note: str,
        plain: list[str],
        env: dict[str, str],
        folder: str,
    ) -> SandboxedCommand:
        start, _ = _find(layout.workspace)
        masked = MASKS.hold(layout.protected)
        argv = [*bubblewrap_argv(start, layout, masked, private, folder), *plain]
        return SandboxedCommand(argv, env | _caches("/tmp") | {"TMPDIR": "/tmp"}, state, note, masked, layout.unwelcome)

    def _choose(self, layout: SandboxLayout) -> SandboxState:
        if self._sandbox.mode == "off":
            return SandboxState(kind="off", detail="switched off")
        reasons: list[str] = []
        for mechanism in self._sandbox.mechanisms:
            if mechanism == "bubblewrap":
                start, why = _find(layout.workspace)
                if start:
                    return SandboxState(kind="bubblewrap", network=layout.network, lacks=bubblewrap_lacks(layout))
            else:
                abi, why = _landlock()
                if abi:
                    return _landlock_state(abi, layout)
            reasons.append(why)
        return SandboxState(kind="none", detail="; ".join(reasons) or "no mechanism is allowed")

    def _make_private(self) -> PrivateDir:
        with self._lock:
            if self._private is None or not os.path.isdir(self._private.root):
                self._private = _made_private()
            return self._private

    def remove(self) -> None:
        """Remove the private folder; another is made should a command need one."""
        import atexit  # noqa: PLC0415 — see _made_private

        with self._lock:
            private, self._private = self._private, None
        if private is not None:
            atexit.unregister(private.remove)
            private.remove()


def _made_private() -> PrivateDir:
    # A folder that nobody could have prepared; with the process it goes at the latest.
    import atexit  # noqa: PLC0415 — for those who run commands
    from tempfile import mkdtemp  # noqa: PLC0415 — for those who run commands

    private = PrivateDir(os.path.realpath(mkdtemp(prefix="indus-")))
    os.mkdir(private.tmp, 0o700)
    os.mkdir(private.notes, 0o700)
    with os.fdopen(create_private_file(private.preamble), "w", encoding="utf-8") as file:
        file.write(PREAMBLE)
    atexit.register(private.remove)
    return private


def _find(workspace: str) -> tuple[tuple[str, ...], str]:
    if _is_of_another_user(workspace):
        return (), "in bubblewrap root could not write to a workspace of another user"
    return find_bubblewrap(os.environ.get("PATH", os.defpath), workspace)


def _is_of_another_user(workspace: str) -> bool:
    """Tell whether only root's power over the files of others lets us write here.

    In a container that is common. The user namespace of bubblewrap ends that power, and without
    one root could change the settings of the kernel.
    """
    try:
        return os.geteuid() == 0 != os.stat(workspace).st_uid
    except OSError:
        return False


@cache
def _landlock() -> tuple[int, str]:
    from indusagi.capabilities.sandbox.landlock_run import landlock_abi  # noqa: PLC0415 — loads ctypes

    abi = landlock_abi()
    return abi, "" if abi else "this system has no Landlock"


def _landlock_state(abi: int, layout: SandboxLayout) -> SandboxState:
    from indusagi.capabilities.sandbox.landlock import landlock_lacks  # noqa: PLC0415 — see above

    lacks = landlock_lacks(abi, layout)
    return SandboxState(
        kind="landlock", detail=f"abi {abi}", network=layout.network or "guard of the network" in lacks, lacks=lacks
    )


def _leaks(state: SandboxState, layout: SandboxLayout) -> bool:
    """Tell whether the network is open although it was to be closed."""
    return state.network and not layout.network


def _caches(tmp: str) -> dict[str, str]:
    """Send caches to where they can be written: those of the user are read-only."""
    cache_dir = os.path.join(tmp, ".cache")
    return {"XDG_CACHE_HOME": cache_dir, "npm_config_cache": os.path.join(cache_dir, "npm")}
