"""Ports: the interfaces tools use to reach files, commands and the web. Types only.

Tools go through `ctx.fs` and `ctx.shell` exclusively, so a host can substitute another root, a sandbox, a recording, or
nothing at all. Ports raise `OSError`; the tool turns it into an error result.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import BinaryIO, Literal, Protocol, TypeAlias, TypeVar

from indusagi.core.cancel import CancelToken
from indusagi.core.records import record
from indusagi.net.address import HttpPolicy

WorkT = TypeVar("WorkT")
Refusal: TypeAlias = Literal["outside", "protected", "special"]
"""Why the policy refuses a path: outside the workspace, protected, or a pipe, socket or device."""

DEFAULT_TIMEOUT_MS = 120_000
"""Default time limit of a command."""
LONGEST_WAIT_MS = 30_000
"""How long one `process` call waits for output of a job."""
STOP_GRACE_MS = 3_000
"""Grace period between SIGTERM and SIGKILL."""


class FileKind(StrEnum):
    """The kind of a path; `OTHER` means pipe, socket or device."""

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


@record
class DirEntry:
    """A directory entry. Doesn't follow links."""

    name: str
    kind: FileKind
    size: int | None = field(default=None, compare=False)
    """Size in bytes of a regular file."""
    target: str | None = field(default=None, compare=False)
    """Target of a symbolic link."""


class PathRefused(PermissionError):
    """The policy refuses this path."""

    def __init__(self, given: str, resolved: str, refusal: Refusal, why: str) -> None:
        super().__init__(errno.EACCES, why, given)
        self.given = given
        self.resolved = resolved
        """The path with links resolved."""
        self.refusal: Refusal = refusal


class Folder:
    """An open local directory. Going through its handle stays inside it."""

    def __init__(self, path: str, handle: int) -> None:
        self.path = path
        """Absolute, with links resolved."""
        self.handle = handle

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self.handle)


class Fs(Protocol):
    """Files. Relative paths start at the workspace. Every operation may raise `PathRefused`."""

    async def resolve(self, path: str, *, writing: bool = False) -> str:
        """Return the absolute path with links resolved, if the policy allows it.

        Resolves a missing path as far as it exists. Use the result for display and as the key for stored facts.
        """
        ...

    async def stat(self, path: str, *, follow: bool = True) -> FileStat:
        """Stat a path. A dangling link counts as missing unless `follow` is off."""
        ...

    async def exists(self, path: str) -> bool:
        """Return whether `stat` finds the path; raise if a directory isn't searchable."""
        ...

    async def read_bytes(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Read up to `limit` bytes of a regular file from `offset`. Refuses pipes and devices."""
        ...

    async def reading(self, path: str, work: Callable[[BinaryIO], WorkT]) -> WorkT:
        """Open a regular file and run `work` on it in a thread, so that all reads see the same version.

        If cancelled, returns immediately without waiting for `work`, so `work` must be bounded.
        """
        ...

    async def folder(self, path: str) -> Folder:
        """Open a directory to walk it or run a program in it; the caller closes it.

        Raises `OSError` with ENOTSUP if the files aren't local.
        """
        ...

    async def read_text(self, path: str) -> str:
        """Read a whole file as strict UTF-8."""
        ...

    async def write_file(self, path: str, data: bytes | str) -> None:
        """Create or replace a file atomically: readers see the old content or the new.

        If the file has several hard links, the implementation decides which of them change.
        """
        ...

    async def mkdir(self, path: str) -> None:
        """Create a directory and any missing parents; it may already exist."""
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
    """Negative for a signal, as in `subprocess`; -SIGKILL if the command survived every signal."""
    output: bytes
    """Interleaved stdout and stderr, with the middle of a long output omitted."""
    output_bytes: int
    """Bytes written by the command, or bytes read after `OUTPUT_LIMIT`."""


@record(kw_only=True)
class SandboxState:
    """The sandbox a command runs in."""

    kind: Literal["bubblewrap", "landlock", "none", "off"]
    """`none`: requested, but no mechanism works on this machine. `off`: not requested."""
    detail: str = ""
    """Version of the mechanism, or the reason for `none`."""
    network: bool = True
    """Whether the command can reach the network."""
    lacks: tuple[str, ...] = ()
    """Requested restrictions the mechanism can't enforce, as human-readable phrases."""

    def __str__(self) -> str:
        if self.kind in {"none", "off"}:
            return f"none: {self.detail}"
        detail = f" ({self.detail})" if self.detail else ""
        lacks = f", without {', '.join(self.lacks)}" if self.lacks else ""
        return f"{self.kind}{detail}, network {'open' if self.network else 'off'}{lacks}"


class SandboxMissing(PermissionError):
    """The command didn't run because it requires a sandbox and none works on this machine."""


class ShellProcess(Protocol):
    """A started command."""

    @property
    def sandbox(self) -> SandboxState:
        """The sandbox it runs in."""
        ...

    @property
    def mark(self) -> str:
        """Marker in the environment of its descendants; empty if it has no marker."""
        ...

    @property
    def pid(self) -> int:
        """The process id, which is also its session and process group id."""
        ...

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        ...

    async def wait(self) -> int:
        """Wait for the command itself to exit, not for its background processes."""
        ...

    async def stop(self, *, grace_ms: int = STOP_GRACE_MS) -> int:
        """Terminate the process tree with SIGTERM, then SIGKILL; safe to call twice.

        Waits for the end even if the caller is cancelled.
        """
        ...

    async def aclose(self) -> None:
        """Terminate the process tree and close the output; safe to call twice."""
        ...

    def read_output(self, offset: int = 0, limit: int | None = None) -> bytes:
        """Read the output so far, from a byte offset.

        The middle of a very long output isn't stored: an offset inside it reads from the next stored byte.
        """
        ...

    def follow(self, sink: Callable[[bytes], None]) -> None:
        """Call `sink` in a worker thread with all output, starting at the first byte."""
        ...

    def output_size(self) -> int:
        """Return the number of bytes written so far."""
        ...

    async def write_input(self, data: bytes, *, close: bool = False) -> None:
        """Write to stdin, if the command has one; `close` sends EOF.

        Returns once the command has room for the data. If the caller is cancelled, unsent data stays queued.
        """
        ...

    def unread_input(self) -> int:
        """Return the number of queued input bytes."""
        ...

    def survivors(self) -> Sequence[int]:
        """List the pids of its running descendants. Blocks while reading the process list."""
        ...

    async def final_cwd(self) -> str | None:
        """Return the shell's working directory at exit, or None if unknown."""
        ...


class Shell(Protocol):
    """Commands. Captures stdout and stderr as one stream."""

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
        cancel: CancelToken | None = None,
    ) -> ShellResult:
        """Run a command to completion, then terminate its descendants."""
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
        """Start a command and return immediately; the caller must `aclose` it.

        Stdin is empty unless you pass `with_input`.
        """
        ...


Freshness: TypeAlias = Literal["day", "week", "month", "year"]
"""Maximum age of a search result."""


@record(kw_only=True)
class WebSettings(HttpPolicy):
    """Limits on web access."""

    default_bytes: int = 1024 * 1024
    """How much of a text to read by default."""
    cache_s: float = 15 * 60.0
    cache_bytes: int = 50_000_000
    searxng_url: str | None = None
    """A SearXNG instance with JSON output; None reads `INDUS_SEARXNG_URL`."""
    search_each_s: float = 10.0
    search_total_s: float = 20.0


@record(kw_only=True)
class SearchQuery:
    """A search. Providers may ignore everything but the text, since the tool filters the results."""

    text: str
    limit: int
    domains: Sequence[str] = ()
    exclude_domains: Sequence[str] = ()
    freshness: Freshness | None = None


@record
class SearchHit:
    """A search result."""

    title: str
    url: str
    snippet: str = ""
    published: str | None = field(default=None, kw_only=True)


class SearchError(OSError):
    """A failed search: a message for humans, a code for programs."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class SearchProvider(Protocol):
    """A web search service."""

    @property
    def name(self) -> str:
        """Display name."""
        ...

    async def search(self, query: SearchQuery) -> Sequence[SearchHit]:
        """Return results, best first. Raises `SearchError` if the search failed."""
        ...
