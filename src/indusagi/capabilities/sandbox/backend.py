"""Sandbox backend: picks bubblewrap, Landlock or nothing, and builds the command line to run a command in it."""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import sys
from contextlib import suppress
from functools import cache
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING

from indusagi.capabilities.leftovers import make_owned_dir
from indusagi.capabilities.ports import SandboxMissing, SandboxState
from indusagi.capabilities.sandbox.bubblewrap import (
    MASKS,
    PrivateDir,
    bubblewrap_argv,
    bubblewrap_lacks,
    can_scope,
    find_bubblewrap,
)
from indusagi.capabilities.sandbox.policy import LOCAL_SOCKETS, UNPROTECTED, resolve_layout
from indusagi.capabilities.sandbox.profile import ENGINES
from indusagi.core.app_dirs import create_private_file, is_within, read_small_file
from indusagi.core.ids import new_ulid
from indusagi.core.records import record
from indusagi.core.secrets import find_named_sockets, holds_secret, is_provider_key, is_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from indusagi.capabilities.sandbox.policy import Sandbox, SandboxLayout

_REMEDY = "install bubblewrap, or let commands run without (Sandbox(mode='auto'))"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm")
_DEVICES = (*DEVICES, "/dev/tty", "/dev/ptmx", "/dev/pts")
_ABI_WITH_TRUNCATE = 3
_ABI_WITH_TCP = 4


@record
class SandboxedCommand:
    """A sandboxed command line; call `clean_up` when the command is done."""

    argv: list[str]
    env: dict[str, str]
    state: SandboxState
    cwd_file: str
    """The file the shell writes its final directory to."""
    masked: tuple[str, ...]
    """Protected paths hidden while it runs."""
    unwelcome: tuple[str, ...] = ()
    """Files it mustn't leave behind."""
    confine: Callable[[], None] | None = None
    """Restricts the thread that starts the command."""

    def clean_up(self) -> None:
        """Clean up after the sandbox and the shell."""
        MASKS.release(self.masked)
        for path in self.unwelcome:
            with suppress(OSError):
                os.unlink(path)
        read_final_cwd(self.cwd_file)


class SandboxBackend:
    """Runs the commands of one shell in sandboxes. All methods block: call them in a worker thread."""

    def __init__(self, sandbox: Sandbox, workspace: str, allowed: frozenset[str]) -> None:
        self._sandbox = sandbox
        self._workspace = workspace
        self._allowed = allowed
        self._lock = Lock()
        self._private: PrivateDir | None = None

    def state(self) -> SandboxState:
        """Return the sandbox for commands; the first call runs a program to find out."""
        return self._choose(resolve_layout(self._sandbox, self._workspace, self._allowed))

    def wrap(self, shell: str, command: str, folder: str, env: Mapping[str, str]) -> SandboxedCommand:
        """Build the command line that runs `command` in the sandbox.

        Raises `SandboxMissing` if a sandbox is required, but none works on this machine, and `OSError` if we couldn't
        create the private directory.
        """
        layout = resolve_layout(self._sandbox, self._workspace, self._allowed)
        state = self._choose(layout)
        has_open_network = state.network and not layout.network
        if self._sandbox.mode == "required" and (state.kind == "none" or has_open_network):
            raise SandboxMissing(
                f"commands may only run in a sandbox, and there is none that will do ({state}): {_REMEDY}"
            )
        with self._lock:
            if self._private is None or not os.path.isdir(self._private.root):
                private = PrivateDir(make_owned_dir())
                os.mkdir(private.tmp, 0o700)
                os.mkdir(private.notes, 0o700)
                with os.fdopen(create_private_file(private.preamble), "w", encoding="utf-8") as file:
                    file.write(PREAMBLE)
                atexit.register(private.remove)
                self._private = private
            private = self._private
        cwd_file = os.path.join(private.notes, new_ulid())
        inherited = command_environment(os.environ, self._allowed) | dict(env)
        if shell.endswith("bash"):
            inherited |= final_cwd_variables(private.preamble, cwd_file, inherited)
        plain = [shell, "-c", command]
        if state.kind == "bubblewrap":
            start, _ = _find_bubblewrap(layout.workspace)
            masked = MASKS.acquire(layout.protected)
            argv = [*bubblewrap_argv(start, layout, masked, private, folder), *plain]
            inherited |= _temporary_dirs("/tmp")
            confine = None
            if layout.network and can_scope(start):
                from indusagi.capabilities.sandbox.landlock_run import scope_thread as confine  # noqa: PLC0415 — loads ctypes
            return SandboxedCommand(argv, inherited, state, cwd_file, masked, layout.unwelcome, confine)
        if state.kind == "landlock":
            plain = [*landlock_argv(layout, private), *plain]
            inherited |= _temporary_dirs(private.tmp)
        return SandboxedCommand(plain, inherited, state, cwd_file, ())

    def _choose(self, layout: SandboxLayout) -> SandboxState:
        if self._sandbox.mode == "off":
            return SandboxState(kind="off", detail="switched off")
        reasons: list[str] = []
        for mechanism in self._sandbox.mechanisms:
            if mechanism == "bubblewrap":
                start, why = _find_bubblewrap(layout.workspace)
                if start:
                    lacks = bubblewrap_lacks(layout, scoped=layout.network and can_scope(start))
                    return SandboxState(kind="bubblewrap", network=layout.network, lacks=lacks)
            else:
                abi, why = _find_landlock()
                if abi:
                    lacks = landlock_lacks(abi, layout)
                    network = layout.network or "guard of the network" in lacks
                    return SandboxState(kind="landlock", detail=f"abi {abi}", network=network, lacks=lacks)
            reasons.append(why)
        return SandboxState(kind="none", detail="; ".join(reasons) or "no mechanism is allowed")

    def remove(self) -> None:
        """Remove the private directory; a later command creates a new one."""
        with self._lock:
            private, self._private = self._private, None
        if private is not None:
            atexit.unregister(private.remove)
            private.remove()


def _find_bubblewrap(workspace: str) -> tuple[tuple[str, ...], str]:
    # Root writes to other users' files by virtue of capabilities that bubblewrap's user namespace drops; without that
    # namespace, root could change kernel settings. Such workspaces are common in containers.
    with suppress(OSError):
        if os.geteuid() == 0 != os.stat(workspace).st_uid:
            return (), "in bubblewrap root could not write to a workspace of another user"
    return find_bubblewrap(os.environ.get("PATH", os.defpath), workspace)


@cache
def _find_landlock() -> tuple[int, str]:
    from indusagi.capabilities.sandbox.landlock_run import landlock_abi  # noqa: PLC0415 — loads ctypes

    abi = landlock_abi()
    return abi, "" if abi else "this system has no Landlock"


def choose_mechanism(workspace: str) -> tuple[str, tuple[str, ...]]:
    """Return the mechanism for a server on this machine, empty for none, and the start of its command line."""
    start, _ = _find_bubblewrap(workspace)
    if start:
        return "bubblewrap", start
    return ("landlock" if _find_landlock()[0] else ""), ()


def list_server_sandboxes(workspace: str) -> tuple[str, ...]:
    """List what servers can run in here: profiles, rules about hosts, engines of containers. Blocks."""
    mechanism, _ = choose_mechanism(workspace)
    held = {"bubblewrap": ("standard", "strict", "hosts"), "landlock": ("standard",)}
    return (*held.get(mechanism, ()), *(engine for engine in ENGINES if shutil.which(engine)))


def landlock_launcher(
    *, write: list[str], hidden: list[str], read: list[str], network: bool, devices: Sequence[str] = _DEVICES
) -> list[str]:
    """Build the command prefix that applies these rules via `landlock_run`."""
    # Other devices could hold what is hidden, as a disk or memory does.
    rules = json.dumps({"write": [*write, *devices], "hidden": [*hidden, "/dev"], "read": read, "network": network})
    return [sys.executable, "-I", "-S", os.path.join(os.path.dirname(__file__), "landlock_run.py"), rules]


def landlock_argv(layout: SandboxLayout, private: PrivateDir) -> list[str]:
    """Build the command prefix that applies Landlock via `landlock_run`."""
    write = [*layout.writable, private.tmp, private.notes]
    if not layout.read_only:
        write.append(layout.workspace)
    # The child lists the readable paths itself: they might not fit on a command line.
    hidden = [*layout.hidden]
    read = [private.root] if any(is_within(private.root, path) for path in hidden) else []
    return landlock_launcher(write=write, hidden=hidden, read=read, network=layout.network)


def landlock_lacks(abi: int, layout: SandboxLayout) -> tuple[str, ...]:
    """List the requested restrictions this version of Landlock can't enforce.

    Rules grant rights to whole directory trees, so we can't exclude parts of the workspace; commands can change modes,
    owners and times of files anywhere and connect to sockets in the file system
    (https://docs.kernel.org/userspace-api/landlock.html#current-limitations).
    """
    lacks = [LOCAL_SOCKETS, "guard of modes and times of files"]
    if layout.protected:
        lacks.append(UNPROTECTED)
    if abi < _ABI_WITH_TRUNCATE:
        lacks.append("guard against truncation of files")
    if not layout.network:
        lacks.append("guard of the network" if abi < _ABI_WITH_TCP else "guard of UDP")
    return tuple(lacks)


def _temporary_dirs(tmp: str) -> dict[str, str]:
    """Redirect temporary files and caches to a writable directory, since the user's caches are read-only."""
    cache_dir = os.path.join(tmp, ".cache")
    return {"TMPDIR": tmp, "XDG_CACHE_HOME": cache_dir, "npm_config_cache": os.path.join(cache_dir, "npm")}


# -- environment ------------------------------------------------------------------------------
#
# The model writes the command and reads its output. So commands don't inherit variables that look like a secret or
# point to a socket (`core.secrets`), unless the user allows the variable; keys of model providers never get through.
# The variables we add stop programs from paging, coloring, opening an editor or prompting.


QUIET: Mapping[str, str] = MappingProxyType(
    {
        "NO_COLOR": "1",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "MANPAGER": "cat",
        "GH_PAGER": "cat",
        "SYSTEMD_PAGER": "cat",
        "AWS_PAGER": "",
        "EDITOR": "true",
        "VISUAL": "true",
        "GIT_EDITOR": "true",
        # `true` would run an interactive rebase with an unchanged todo list; `false` aborts it.
        "GIT_SEQUENCE_EDITOR": "false",
        # Without a terminal, vim waits for keys on stderr; `-c` commands run first.
        "VIMINIT": "autocmd VimEnter * cquit",
        "GIT_TERMINAL_PROMPT": "0",
        "GH_PROMPT_DISABLED": "1",
        "DEBIAN_FRONTEND": "noninteractive",
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "npm_config_yes": "true",
        "PYTHONUNBUFFERED": "1",
    }
)
"""Set for every command, overriding existing values."""

_GIT_SETTING = re.compile(r"GIT_CONFIG_(KEY|VALUE)_\d+|GIT_CONFIG_COUNT")
_GIT_CREDENTIALS = re.compile(r"extraheader|password|@.*insteadof", re.IGNORECASE)
"""Git settings with credentials, such as an authorization header."""


def command_environment(ours: Mapping[str, str], allowed: Collection[str] = ()) -> dict[str, str]:
    """Build the environment of a command from `ours`.

    Passes on `allowed` variables even though they look like secrets or point to a socket.
    """
    kept = {
        name: value
        for name, value in ours.items()
        if name in allowed
        or _GIT_SETTING.fullmatch(name)
        or not (is_secret(name, value) or any(find_named_sockets(value)))
    }
    if any(
        _GIT_SETTING.fullmatch(name) and (holds_secret(value) or _GIT_CREDENTIALS.search(value))
        for name, value in ours.items()
    ):
        # GIT_CONFIG_COUNT counts them: removing one would break the others (git-config(1)).
        kept = {name: value for name, value in kept.items() if not _GIT_SETTING.fullmatch(name)}
    return {name: value for name, value in kept.items() if not is_provider_key(name)} | dict(QUIET)


# -- final cwd --------------------------------------------------------------------------------
#
# bash sources the preamble before the command (`BASH_ENV`,
# https://www.gnu.org/software/bash/manual/bash.html#Bash-Startup-Files). An EXIT trap writes the directory to a
# private file, even if the command sets its own EXIT trap or replaces the shell with `exec`.


FILE_VARIABLE = "INDUS_CWD_FILE"
_LONGEST_PATH = 16 * 1024

PREAMBLE = r"""
__indus_cwd_file=$INDUS_CWD_FILE
unset -v BASH_ENV INDUS_CWD_FILE
if [ -n "${INDUS_BASH_ENV-}" ]; then
  BASH_ENV=$INDUS_BASH_ENV
  export BASH_ENV
  unset -v INDUS_BASH_ENV
  . "$BASH_ENV"
fi
__indus_cwd() {
  local status=$?
  builtin pwd -P 2>/dev/null >|"$__indus_cwd_file"
  return $status
}
trap() {
  case ${1-} in '' ) [ $# -gt 0 ] || { builtin trap; return; } ;; esac
  case $1 in -[lp]*) builtin trap "$@"; return ;; --) shift ;; esac
  [ $# -gt 1 ] || set -- - "$@"
  local action=$1 name status=0
  shift
  for name; do
    case $name in
      EXIT|exit|0|SIGEXIT)
        case $action in
          -|'') builtin trap -- __indus_cwd EXIT ;;
          *) builtin trap -- "__indus_cwd"$'\n'"$action" EXIT ;;
        esac ;;
      *) builtin trap -- "$action" "$name" || status=1 ;;
    esac
  done
  return $status
}
builtin trap -- __indus_cwd EXIT
shopt -s expand_aliases
alias exec='INDUS_CWD_KEPT=$(__indus_cwd) exec'
"""
"""`exec` is an alias because a function would undo its redirections."""


def final_cwd_variables(preamble: str, cwd_file: str, env: dict[str, str]) -> dict[str, str]:
    """Return the variables that make bash source the preamble and write its directory to `cwd_file`."""
    own = {"INDUS_BASH_ENV": env["BASH_ENV"]} if env.get("BASH_ENV") else {}
    return {"BASH_ENV": preamble, FILE_VARIABLE: cwd_file, **own}


def read_final_cwd(cwd_file: str) -> str | None:
    """Read and remove the shell's file; None unless it contains an absolute path, since any process may write it."""
    try:
        data = read_small_file(cwd_file, _LONGEST_PATH, follow=False)
        os.unlink(cwd_file)
    except OSError:
        return None
    path = os.fsdecode(data.removesuffix(b"\n"))
    return path if os.path.isabs(path) and "\0" not in path else None
