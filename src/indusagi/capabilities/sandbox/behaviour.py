"""Behaviour of a server: the hosts, paths and programs it used while somebody watched, and the profile that fits.

It's pinned like a definition: its JSON form goes into the ledger and the lock file, so paths are relative to the
workspace or start with `~`, and programs have no path. The egress proxy tells the hosts, the trace the rest.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from indusagi.capabilities.sandbox.policy import PROTECTED
from indusagi.capabilities.sandbox.trace import SandboxTrace
from indusagi.core.app_dirs import is_within, state_dir
from indusagi.core.records import record
from indusagi.core.secrets import find_credential_places

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from indusagi.capabilities.sandbox.trace import Sighting
    from indusagi.core.json import JsonObject

Key: TypeAlias = Literal["read", "write", "hosts"]

_SYSTEM: Final = (
    "/usr",
    "/nix",
    "/gnu",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/run",
    "/var",
)
_KERNEL: Final = ("/proc", "/sys", "/dev", "/tmp")
_MAX_SIBLINGS = 8
"""More files of one directory than this are written as the directory."""


@record(kw_only=True)
class Behaviour:
    """What a server used, sorted."""

    hosts: tuple[str, ...] = ()
    """`host:port` it asked for."""
    read: tuple[str, ...] = ()
    """Paths outside the system, its own package and the workspace."""
    write: tuple[str, ...] = ()
    """Paths outside its home and `/tmp`."""
    programs: tuple[str, ...] = ()
    """Names of the programs it ran, itself included."""

    def as_json(self) -> JsonObject:
        """Return the definition that's pinned."""
        return {one.name: [*getattr(self, one.name)] for one in fields(self)}

    def __or__(self, other: Behaviour) -> Behaviour:
        """Return everything either one used."""
        return Behaviour(
            **{one.name: _sort((*getattr(self, one.name), *getattr(other, one.name))) for one in fields(self)}
        )


def parse_behaviour(raw: JsonObject) -> Behaviour:
    """Parse a pinned behaviour, skipping whatever isn't one."""
    lists = {one.name: raw.get(one.name) for one in fields(Behaviour)}
    return Behaviour(
        **{
            name: _sort(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()
            for name, value in lists.items()
        }
    )


class RefusedUse(NamedTuple):
    """Something the sandbox refused that the behaviour doesn't include."""

    target: str
    key: Key
    """The list of the row's `sandbox` that would allow it."""
    reason: str = ""
    """Why we don't propose it."""

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f'{self.target}{reason}; to allow it, add "{self.target}" to "{self.key}" of its "sandbox"'


@record(kw_only=True)
class SandboxPlaces:
    """The directories of one sandbox, resolved."""

    home: str
    workspace: str | None
    package: tuple[str, ...]
    """What the server needs to run, and paths its row names."""
    read: tuple[tuple[str, str], ...]
    """Further paths of the profile, each as resolved and as written."""
    write: tuple[tuple[str, str], ...]

    def format(self, path: str) -> str:
        """Format a path the way a row names it."""
        if self.workspace is not None and is_within(path, self.workspace):
            return os.path.relpath(path, self.workspace)
        return f"~{path[len(self.home) :]}" if is_within(path, self.home) else path


class SortedSightings:
    """What a trace saw, sorted into behaviour and refusals.

    A path counts as read or written if the server opened it, exists and would be yours to give: no credentials, and
    nothing that runtimes look for everywhere (`~/.config`, `/etc`). Those others are `asked`.
    """

    def __init__(self, sightings: Iterable[Sighting], places: SandboxPlaces) -> None:
        self._places = places
        self._read: dict[str, None] = {}
        self._write: dict[str, None] = {}
        self._programs: dict[str, None] = {}
        self.asked: dict[RefusedUse, None] = {}
        """Refused, and perhaps not needed."""
        self.withheld: dict[RefusedUse, None] = {}
        """Refused, and never proposed."""
        self.addresses: dict[str, None] = {}
        """Connected to without the proxy."""
        self._credentials = [os.path.realpath(path) for path in find_credential_places(os.environ, places.home)]
        for one in sightings:
            if one.use == "address":
                self.addresses[one.target] = None
            elif one.use == "program" and one.allowed:
                self._programs[os.path.basename(one.target)] = None
            else:
                self._sort_path(one)

    def build_behaviour(self, hosts: Iterable[str], *, with_asked: str | None = None) -> Behaviour:
        """Build the behaviour; `with_asked` counts the refused paths that start with it as needed."""
        read, write = {**self._read}, {**self._write}
        for one in self.asked:
            if with_asked is not None and one.target.startswith(with_asked):
                (write if one.key == "write" else read)[one.target] = None
        return Behaviour(
            hosts=_sort(hosts), read=_join_siblings(read), write=_join_siblings(write), programs=_sort(self._programs)
        )

    def _sort_path(self, one: Sighting) -> None:
        path, places = one.target, self._places
        for key, named, into in (("write", places.write, self._write), ("read", places.read, self._read)):
            text = next((text for folder, text in named if is_within(path, folder)), None)
            if text is not None and (one.use == "write") == (key == "write"):
                into[text] = None
                return
            if text is not None and one.use != "write":
                return
        if is_within(path, *_KERNEL) and not is_within(path, places.home, places.workspace or places.home):
            return
        if one.use == "write":
            self._sort_write(path, allowed=one.allowed)
        elif one.allowed:
            if one.use == "read" and not self._is_own(path) and not self._is_above(path):
                self._read[places.format(path)] = None
        elif os.path.lexists(path) and not self._is_above(path):
            is_plain = one.use == "read" and not self._is_usual(path)
            self._refuse(path, "read", needed=is_plain, is_socket=one.use == "socket")

    def _sort_write(self, path: str, *, allowed: bool) -> None:
        places = self._places
        in_workspace = places.workspace is not None and is_within(path, places.workspace)
        if allowed and in_workspace:
            self._write[places.format(_find_folder(path, places))] = None
        elif allowed and (not is_within(path, places.home) or self._is_usual(path)):
            return
        else:
            folder = _find_folder(path, places)
            # A directory of yours that the server's own home lacks, and one it could write to without a sandbox.
            if not is_within(places.home, folder) and os.access(folder, os.W_OK):
                if not allowed or os.path.lexists(path):
                    self._refuse(folder, "write", needed=in_workspace or not self._is_usual(folder))

    def _refuse(self, path: str, key: Key, *, needed: bool, is_socket: bool = False) -> None:
        shown = self._places.format(path)
        reason = ""
        if is_socket:
            reason = "a socket: whoever listens there acts with all your rights"
        elif self._holds_credentials(path):
            reason = "credentials"
        elif key == "write" and is_within(shown, *PROTECTED):
            reason = "programs outside the sandbox run what's there"
        if reason:
            self.withheld[RefusedUse(shown, key, reason)] = None
        elif needed:
            (self._write if key == "write" else self._read)[shown] = None
        else:
            self.asked[RefusedUse(shown, key)] = None

    def _is_above(self, path: str) -> bool:
        return is_within(self._places.home, path) or is_within(self._places.workspace or "/", path)

    def _is_own(self, path: str) -> bool:
        places = self._places
        own = (*_SYSTEM, *places.package, places.home, *(() if places.workspace is None else (places.workspace,)))
        return is_within(path, *own)

    def _is_usual(self, path: str) -> bool:
        """Tell whether runtimes look there on their own: the system, its package, and hidden files of a home."""
        if is_within(path, *_SYSTEM, *self._places.package):
            return True
        return is_within(path, self._places.home) and path[len(self._places.home) :].startswith("/.")

    def _holds_credentials(self, path: str) -> bool:
        real = os.path.realpath(path)
        is_environment = any(part == ".env" or part.startswith(".env.") for part in real.split("/"))
        return is_environment or is_within(real, *self._credentials, os.path.realpath(state_dir()))


def _find_folder(path: str, places: SandboxPlaces) -> str:
    """Return the directory to make writable for a path: files are often replaced by renaming another one."""
    folder = path
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return path if folder == places.home and os.path.lexists(path) else folder


def _join_siblings(paths: Iterable[str]) -> tuple[str, ...]:
    """Sort paths, dropping those inside others, and joining many of one directory."""
    counted: dict[str, int] = {}
    for path in paths:
        counted[os.path.dirname(path)] = counted.get(os.path.dirname(path), 0) + 1
    full = {folder for folder, count in counted.items() if count > _MAX_SIBLINGS and folder not in {"", "~", "/"}}
    wanted = _sort(folder if (folder := os.path.dirname(path)) in full else path for path in paths)
    return tuple(one for one in wanted if not any(other != one and is_within(one, other) for other in wanted))


def _sort(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*texts}))


class SandboxObserver:
    """Records what a server does in a sandbox whose profile names it, which also lets it reach every public host."""

    def __init__(self) -> None:
        self.trace = SandboxTrace()
        self.hosts: Collection[str] = ()
        """What it asked the proxy for; set, like the others, by the start of the sandbox."""
        self.blocked: Collection[str] = ()
        """What the proxy refused."""
        self.places = SandboxPlaces(home="/nonexistent", workspace=None, package=(), read=(), write=())

    def find_behaviour(self, *, with_asked: str | None = None) -> Behaviour:
        """Return what it has used so far.

        `with_asked` also counts what runtimes look for on their own, if it starts with this text.
        """
        return self._sort().build_behaviour(self.hosts, with_asked=with_asked)

    def find_refusals(self) -> list[RefusedUse]:
        """List what it asked for and was refused, beyond its behaviour."""
        found = self._sort()
        direct = [one for one in found.addresses if not one.startswith(("127.", "[::1]"))]
        refusals = [RefusedUse(host, "hosts", "an address of this machine or network") for host in sorted(self.blocked)]
        if direct:
            reason = f"it connects to {direct[0]} without the proxy, so it can't be limited to hosts"
            refusals.append(RefusedUse("*", "hosts", reason))
        return [*found.withheld, *refusals, *found.asked]

    @property
    def note(self) -> str:
        """What couldn't be observed, or an empty string."""
        return f"the paths and programs it used are unknown: {self.trace.missing}" if self.trace.missing else ""

    def _sort(self) -> SortedSightings:
        return SortedSightings(self.trace.sightings, self.places)
