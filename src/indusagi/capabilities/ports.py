"""Ports: the interfaces through which tools reach files, commands and the web. Types only.

Tools use `ctx.fs` and `ctx.shell` and nothing else, so a host can provide another root, a sandbox, a recording, or
nothing. Ports raise `OSError`; the tool turns that into an error result.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol, TypeAlias, TypeVar

from indusagi import __version__
from indusagi.core.cancel import CancelToken
from indusagi.core.records import record

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable

    from indusagi.core.json import JsonValue


WorkT = TypeVar("WorkT")
Refusal: TypeAlias = Literal["outside", "protected", "special"]
"""Why a path is refused: outside the workspace, protected, or a pipe, socket or device."""

DEFAULT_TIMEOUT_MS = 120_000
"""How long a command may run, unless told otherwise."""
LONGEST_WAIT_MS = 30_000
"""How long one call of `process` waits for output of a job."""
STOP_GRACE_MS = 3_000
"""Grace period between SIGTERM and SIGKILL."""


class FileKind(StrEnum):
    """The kind of a path; `OTHER` is a pipe, a socket or a device."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@record(kw_only=True)
class FileStat:
    """The status of a path."""

    kind: FileKind
    size: int
    mode: int
    """The permission bits."""
    mtime_ns: int

    def __post_init__(self) -> None:
        if type(self.kind) is not FileKind:  # a host's own implementation may pass the string
            object.__setattr__(self, "kind", FileKind(self.kind))


@record
class DirEntry:
    """One entry of a directory; links are not followed."""

    name: str
    kind: FileKind
    size: int | None = field(default=None, compare=False)
    """Bytes of a regular file."""
    target: str | None = field(default=None, compare=False)
    """The text of a symbolic link."""

    def __post_init__(self) -> None:
        if type(self.kind) is not FileKind:  # a host's own implementation may pass the string
            object.__setattr__(self, "kind", FileKind(self.kind))


class PathRefused(PermissionError):
    """A path that the policy refuses."""

    def __init__(self, given: str, resolved: str, refusal: Refusal, why: str) -> None:
        super().__init__(errno.EACCES, why, given)
        self.given = given
        self.resolved = resolved
        """The path with links followed."""
        self.refusal: Refusal = refusal


class Folder:
    """An open directory of this machine: work through its handle stays in it."""

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
    """Files. A relative path starts at the workspace. Every operation may raise `PathRefused`."""

    async def resolve(self, path: str, *, writing: bool = False) -> str:
        """Return the absolute path with links followed, if the policy allows it.

        An absent path is resolved as far as it exists. The result is the name to show, and the key for stored facts.
        """
        ...

    async def stat(self, path: str, *, follow: bool = True) -> FileStat:
        """Read the status of a path; a dangling link is absent unless `follow` is off."""
        ...

    async def exists(self, path: str) -> bool:
        """Tell whether `stat` finds the path; a directory that may not be searched is an error."""
        ...

    async def read_bytes(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Read at most `limit` bytes of a regular file from `offset`; pipes and devices are refused."""
        ...

    async def reading(self, path: str, work: Callable[[BinaryIO], WorkT]) -> WorkT:
        """Open a regular file and run `work` with it in a thread: one open file, one version.

        A cancelled caller returns at once and does not wait for `work`, which must be bounded.
        """
        ...

    async def folder(self, path: str) -> Folder:
        """Open a directory, to walk in it or to run a program there; the caller closes it.

        Raises:
            OSError: With ENOTSUP if the files are not on this machine.
        """
        ...

    async def read_text(self, path: str) -> str:
        """Read a whole file as strict UTF-8."""
        ...

    async def write_file(self, path: str, data: bytes | str) -> None:
        """Replace or create a file in one step: a reader sees the old content or the new.

        Of a file with several hard links the implementation says which of them change.
        """
        ...

    async def mkdir(self, path: str) -> None:
        """Make a directory and its missing parents; an existing one is fine."""
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


@record(kw_only=True)
class ShellResult:
    """The result of a command."""

    ended: Ended
    exit_code: int
    """Negative for a signal, as in `subprocess`; also -SIGKILL for a command that could not be ended."""
    output: bytes
    """Standard output and error in the order they came; the middle of a long output is left out."""
    output_bytes: int
    """How many bytes the command wrote; after `OUTPUT_LIMIT`, how many were read."""

    def __post_init__(self) -> None:
        if type(self.ended) is not Ended:
            object.__setattr__(self, "ended", Ended(self.ended))


@record(kw_only=True)
class SandboxState:
    """The sandbox that a command runs in."""

    kind: Literal["bubblewrap", "landlock", "none", "off"]
    """`none`: requested, but no mechanism works here. `off`: not requested."""
    detail: str = ""
    """The version of the mechanism, or the reason for `none`."""
    network: bool = True
    """Whether the command reaches the network."""
    lacks: tuple[str, ...] = ()
    """Requested restrictions that the mechanism cannot enforce, as phrases for people."""

    def __str__(self) -> str:
        if self.kind in {"none", "off"}:
            return f"none: {self.detail}"
        detail = f" ({self.detail})" if self.detail else ""
        lacks = f", without {', '.join(self.lacks)}" if self.lacks else ""
        return f"{self.kind}{detail}, network {'open' if self.network else 'off'}{lacks}"


class SandboxMissing(PermissionError):
    """A command that was not run, because it requires a sandbox and none works here."""


class ShellProcess(Protocol):
    """A started command."""

    @property
    def sandbox(self) -> SandboxState:
        """The sandbox it runs in."""
        ...

    @property
    def mark(self) -> str:
        """The marker in the environment of its descendants; "" without one."""
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
        """Wait for the command itself to exit, not for its background processes."""
        ...

    async def stop(self, *, grace_ms: int = STOP_GRACE_MS) -> int:
        """End the process tree: SIGTERM, then SIGKILL; safe to call twice.

        A caller that is cancelled meanwhile still waits for the end.
        """
        ...

    async def aclose(self) -> None:
        """End the process tree and close the output; safe to call twice."""
        ...

    def read_output(self, offset: int = 0, limit: int | None = None) -> bytes:
        """Read its output so far, from a byte offset.

        The middle of a very long output is not kept: an offset in it reads from the next kept byte.
        """
        ...

    def follow(self, sink: Callable[[bytes], None]) -> None:
        """Call `sink` in a worker thread with all its output, from the first byte on."""
        ...

    def output_size(self) -> int:
        """Return how many bytes it wrote so far."""
        ...

    async def write_input(self, data: bytes, *, close: bool = False) -> None:
        """Write to its standard input, if it was started with one; `close` ends the input.

        Returns when the command has room for the data. What's left when the caller is cancelled stays queued.
        """
        ...

    def unread_input(self) -> int:
        """Return how many bytes of its input are still queued."""
        ...

    def survivors(self) -> Sequence[int]:
        """List the pids of its running descendants; reads the process list: blocks."""
        ...

    async def final_cwd(self) -> str | None:
        """Return the working directory of the shell at its exit; None if it is unknown."""
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
        """Run a command to its end, and end its descendants."""
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
"""Resolves a host name and a port to addresses; raises `OSError` without any."""
Freshness: TypeAlias = Literal["day", "week", "month", "year"]
"""The oldest age of a search result."""

_MIB = 1024 * 1024


@record(kw_only=True)
class WebSettings:
    """What may be fetched from the web, and the limits."""

    allow_private: Sequence[str] = ()
    """Servers with private addresses that may be reached: `host:port`, or `host` for all of its ports."""
    ports: Sequence[int] = (80, 443, 8080, 8443)
    """Ports that may be connected to, besides those in `allow_private`."""
    default_bytes: int = _MIB
    """How much of a text is read by default."""
    hard_bytes: int = 5 * _MIB
    """The most bytes of one response, compressed or not."""
    ratio: int = 20
    """The largest factor of decompression; short bodies are exempt."""
    redirects: int = 5
    connect_s: float = 10.0
    """Time limit of the name resolution, and again of the connection."""
    total_s: float = 30.0
    """Time limit of one fetch with all its redirects."""
    user_agent: str = f"indus/{__version__}"
    resolver: Resolver | None = None
    """Instead of the system's resolver."""
    proxy: str | None = None
    """An HTTP proxy, as `http://host:port`, which resolves names and connects instead of us.

    Proxies of the environment are not used. The proxy must check what a name resolves to: here only private addresses
    and names are refused. Servers in `allow_private` are reached directly.
    """
    proxy_auth: tuple[str, str] | None = None
    """The user name and password for the proxy."""
    tls: ssl.SSLContext | None = None
    """Instead of the system's certificates."""
    cache_s: float = 15 * 60.0
    cache_bytes: int = 50_000_000
    searxng_url: str | None = None
    """A SearXNG instance with JSON output; None reads `INDUS_SEARXNG_URL`."""
    search_each_s: float = 10.0
    search_total_s: float = 20.0


class FetchError(OSError):
    """A page that could not be fetched: a message, and a code and facts for programs."""

    def __init__(self, message: str, *, code: str, **facts: JsonValue) -> None:
        super().__init__(message)
        self.code = code
        self.facts: Mapping[str, JsonValue] = facts


@record(kw_only=True)
class SearchQuery:
    """A search. A provider may ignore everything but the text; the tool filters the results."""

    text: str
    limit: int
    domains: Sequence[str] = ()
    exclude_domains: Sequence[str] = ()
    freshness: Freshness | None = None


@record
class SearchHit:
    """One result of a provider."""

    title: str
    url: str
    snippet: str = ""
    published: str | None = field(default=None, kw_only=True)


class SearchError(OSError):
    """A search that failed: a message, and a code for programs."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class SearchProvider(Protocol):
    """A web search service."""

    @property
    def name(self) -> str:
        """Its name for people."""
        ...

    async def search(self, query: SearchQuery) -> Sequence[SearchHit]:
        """Return results, the best first.

        Raises:
            SearchError: The search failed.
        """
        ...
