"""The two doors through which a tool reaches the machine: files and commands. Shapes only.

Tools touch the machine through `ctx.fs` and `ctx.shell` and nowhere else, so that a host can put
something else behind a door: another root, a sandbox, a recording, or nothing at all.
Doors raise `OSError`; the tool turns that into an answer.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol, TypeAlias, TypeVar

from indusagi import __version__
from indusagi.core.cancel import CancelToken

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable

    from indusagi.core.json import JsonValue


WorkT = TypeVar("WorkT")
Refusal: TypeAlias = Literal["outside", "protected", "special"]
"""Why a door did not open: out of the workspace, not to be written to, or no ordinary file."""

STOP_GRACE_MS = 3_000
"""Between SIGTERM and SIGKILL: time for a program to put its affairs in order."""


class FileKind(StrEnum):
    """What stands at a path; `OTHER` is a pipe, a socket or a device."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStat:
    """What is known of a path without opening it."""

    kind: FileKind
    size: int
    mode: int
    """The permission bits."""
    mtime_ns: int

    def __post_init__(self) -> None:
        if type(self.kind) is not FileKind:  # a host's own backend may give the value
            object.__setattr__(self, "kind", FileKind(self.kind))


@dataclass(frozen=True, slots=True)
class DirEntry:
    """One name in a directory; a symbolic link is told as such, not as what it points to."""

    name: str
    kind: FileKind
    size: int | None = field(default=None, compare=False)
    """Bytes of a regular file."""
    target: str | None = field(default=None, compare=False)
    """What a symbolic link says; it may lead anywhere, or nowhere."""

    def __post_init__(self) -> None:
        if type(self.kind) is not FileKind:  # as above
            object.__setattr__(self, "kind", FileKind(self.kind))


class PathRefused(PermissionError):
    """A path that the door does not lead to, whoever asks."""

    def __init__(self, given: str, resolved: str, refusal: Refusal, why: str) -> None:
        super().__init__(errno.EACCES, why, given)
        self.given = given
        self.resolved = resolved
        """Where it really leads, links followed."""
        self.refusal: Refusal = refusal


class Folder:
    """A directory of this machine, held open: what is done through its handle stays in it."""

    def __init__(self, path: str, handle: int) -> None:
        self.path = path
        """Absolute, links followed."""
        self.handle = handle

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.handle)


class Fs(Protocol):
    """Files. A relative path starts at the working directory of whoever made the door.

    Every operation may raise `PathRefused`.
    """

    async def resolve(self, path: str, *, writing: bool = False) -> str:
        """Give the absolute path that this one leads to, links followed, if the door opens there.

        What does not exist is resolved as far as it does. It is the name to show, and the key for
        whatever is remembered of a file.
        """
        ...

    async def stat(self, path: str, *, follow: bool = True) -> FileStat:
        """Look at a path; a dangling link is not found unless `follow` is off."""
        ...

    async def exists(self, path: str) -> bool:
        """Tell whether `stat` would find something; where one may not look, that is an error."""
        ...

    async def read_bytes(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Read a regular file from `offset`, `limit` bytes at most; nothing else is ever opened."""
        ...

    async def reading(self, path: str, work: Callable[[BinaryIO], WorkT]) -> WorkT:
        """Open a regular file and do `work` on it in a thread; one opening, so one version of it.

        A caller that is cancelled leaves at once: `work` must be bounded, and is not waited for.
        """
        ...

    async def folder(self, path: str) -> Folder:
        """Open a directory for whoever walks in it or runs a program there; the caller closes it.

        Raises:
            OSError: With ENOTSUP where the files are not this machine's.
        """
        ...

    async def read_text(self, path: str) -> str:
        """Read a whole file as strict UTF-8."""
        ...

    async def write_file(self, path: str, data: bytes | str) -> None:
        """Replace or create a file in one step: a reader sees the old content or the new.

        A file that has several names is written where it is, so that all of them see it.
        """
        ...

    async def mkdir(self, path: str) -> None:
        """Make a directory and those above it; one that is there is fine."""
        ...

    async def readdir(self, path: str) -> Sequence[DirEntry]:
        """List a directory, sorted by name."""
        ...

    async def rm(self, path: str) -> None:
        """Remove a file, a link or an empty directory."""
        ...


class Ended(StrEnum):
    """Why a command is no longer running."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    OUTPUT_LIMIT = "output_limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult:
    """How a command went."""

    ended: Ended
    exit_code: int
    """Negative for a signal, as Python has it. That of SIGKILL is also told of a command that
    could not be ended, because it may not be signalled or because the kernel holds it."""
    output: bytes
    """Standard output and error in the order they came; the middle is left out when it is long."""
    output_bytes: int
    """How many bytes the command wrote; after an `OUTPUT_LIMIT`, how many were taken."""

    def __post_init__(self) -> None:
        if type(self.ended) is not Ended:
            object.__setattr__(self, "ended", Ended(self.ended))


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxState:
    """What really holds a command in, as far as the machine could be made to."""

    kind: Literal["bubblewrap", "landlock", "none", "off"]
    """`none`: wanted, and not to be had here. `off`: not wanted."""
    detail: str = ""
    """The version of the mechanism, or why there is none."""
    network: bool = True
    """Whether the command reaches the network."""
    lacks: tuple[str, ...] = ()
    """What was asked for and is not guarded, each as a phrase for people."""

    def __str__(self) -> str:
        if self.kind in {"none", "off"}:
            return f"none: {self.detail}"
        detail = f" ({self.detail})" if self.detail else ""
        lacks = f", without {', '.join(self.lacks)}" if self.lacks else ""
        return f"{self.kind}{detail}, network {'open' if self.network else 'off'}{lacks}"


class SandboxMissing(PermissionError):
    """A command that was not run, because it may only run in a sandbox and there is none."""


class ShellProcess(Protocol):
    """A command that was started and is still somebody's to stop."""

    @property
    def sandbox(self) -> SandboxState:
        """What holds it in."""
        ...

    @property
    def mark(self) -> str:
        """What the environment of every process that it has started carries; "" for nothing."""
        ...

    @property
    def pid(self) -> int:
        """The process, which leads a session and a process group of its own."""
        ...

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        ...

    async def wait(self) -> int:
        """Wait for the command itself to exit, not for what it left in the background."""
        ...

    async def stop(self, *, grace_ms: int = STOP_GRACE_MS) -> int:
        """End all that the command has started: SIGTERM, then SIGKILL; safe to call twice.

        A caller that is cancelled meanwhile waits for the end all the same.
        """
        ...

    async def aclose(self) -> None:
        """End all that the command has started and give the output up; safe to call twice."""
        ...

    def read_output(self, offset: int = 0, limit: int | None = None) -> bytes:
        """Read what it wrote so far, from a byte offset.

        Of a very long output the middle is given up: what comes after it is read instead.
        """
        ...

    def follow(self, sink: Callable[[bytes], None]) -> None:
        """Hand everything it writes, from the first byte on, to `sink`, in a worker thread."""
        ...

    def output_size(self) -> int:
        """Tell how many bytes it wrote so far."""
        ...

    async def write_input(self, data: bytes, *, close: bool = False) -> None:
        """Write to its standard input, if it was started with one; `close` ends the input."""
        ...

    def survivors(self) -> Sequence[int]:
        """List the processes it has started that are still there, itself not among them.

        This looks at every process of the machine: not for the event loop.
        """
        ...

    async def final_cwd(self) -> str | None:
        """Tell where the shell stood when it exited; None if that is not known."""
        ...


class Shell(Protocol):
    """Commands. Output and errors are captured as one stream."""

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
        cancel: CancelToken | None = None,
    ) -> ShellResult:
        """Run a command to its end and leave nothing behind of what it started."""
        ...

    async def spawn(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        output_path: str | None = None,
        with_input: bool = False,
    ) -> ShellProcess:
        """Start a command and return at once; the caller must `aclose` it.

        Its standard input is empty unless it is started `with_input`.
        """
        ...


Resolver: TypeAlias = "Callable[[str, int], Awaitable[Sequence[str]]]"
"""Turns a host name and a port into addresses as text; raises `OSError` when there are none."""
Freshness: TypeAlias = Literal["day", "week", "month", "year"]
"""How old a search result may be."""

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """What may be fetched from the web, and at what cost."""

    allow_private: Sequence[str] = ()
    """Servers of one's own that may be reached though their address is private.

    Each is a `host:port`, or a `host` for all of its ports.
    """
    ports: Sequence[int] = (80, 443, 8080, 8443)
    """Ports that may be dialled; those in `allow_private` come on top."""
    default_bytes: int = _MIB
    """How much of a text is read unless the caller asks for another size."""
    hard_bytes: int = 5 * _MIB
    """The most that is ever read of one answer, packed or unpacked."""
    ratio: int = 20
    """How many times its packed size a body may grow; short bodies are let be."""
    redirects: int = 5
    connect_s: float = 10.0
    """For the look-up of a name, and again for the connection."""
    total_s: float = 30.0
    """For one fetch with all its redirects."""
    user_agent: str = f"indus/{__version__}"
    resolver: Resolver | None = None
    """In place of the system's."""
    proxy: str | None = None
    """An HTTP proxy, as `http://host:port`, that looks up names and dials in our place.

    None is taken from the environment. What a name leads to is then for the proxy to check: here
    only addresses and names of one's own network are refused. `allow_private` goes past it.
    """
    proxy_auth: tuple[str, str] | None = None
    """The user name and password for the proxy."""
    tls: ssl.SSLContext | None = None
    """In place of the system's certificates."""
    cache_s: float = 15 * 60.0
    cache_bytes: int = 50_000_000
    searxng_url: str | None = None
    """A SearXNG instance that answers with JSON; `INDUS_SEARXNG_URL` is read when this is None."""
    search_each_s: float = 10.0
    search_total_s: float = 20.0


class FetchError(OSError):
    """A page that could not be fetched: why in words, and a code and facts for programs."""

    def __init__(self, message: str, *, code: str, **facts: JsonValue) -> None:
        super().__init__(message)
        self.code = code
        self.facts: Mapping[str, JsonValue] = facts


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """What is looked for. A provider may ignore all but the text; the tool filters once more."""

    text: str
    limit: int
    domains: Sequence[str] = ()
    exclude_domains: Sequence[str] = ()
    freshness: Freshness | None = None


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One result, as the provider gave it."""

    title: str
    url: str
    snippet: str = ""
    published: str | None = field(default=None, kw_only=True)


class SearchError(OSError):
    """A provider that could not answer: why in words, and a code for programs."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class SearchProvider(Protocol):
    """Whoever can search the web."""

    @property
    def name(self) -> str:
        """The name a person knows it by."""
        ...

    async def search(self, query: SearchQuery) -> Sequence[SearchHit]:
        """Give results, the best first.

        Raises:
            SearchError: It cannot answer.
        """
        ...
