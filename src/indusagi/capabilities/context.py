"""Tool context: everything a tool receives in addition to its arguments.

A context lives as long as its toolbox. Each call gets a copy with its own cancel token and progress sink, but the same
id, so per-session stores keyed by it persist.

The read state tracks which files a session has read, for read-before-edit. It uses content digests instead of times: a
file that was touched but not changed still counts as read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field, replace
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from indusagi.capabilities.budget import OutputBudget, SessionDir
from indusagi.capabilities.ports import Fs, SearchProvider, Shell, WebSettings
from indusagi.core.cancel import CancelToken
from indusagi.core.records import record
from indusagi.core.text import CleanText, make_visible
from indusagi.runtime.calls import CallObserver
from indusagi.runtime.contract import ProgressSink, ToolProgress

_log = logging.getLogger(__name__)
StoreT = TypeVar("StoreT")


class ReadState:
    """The content a session has read, in memory. Paths are absolute and resolved."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}

    def record(self, path: str, digest: str) -> None:
        """Record the digest of content read from or written to `path`."""
        self._digests[path] = digest

    def digest(self, path: str) -> str | None:
        """Return the last recorded digest of `path`, or None if it hasn't been read."""
        return self._digests.get(path)

    def forget(self, path: str) -> None:
        """Forget `path`, which may be unknown."""
        self._digests.pop(path, None)


ReadStateHandle = ReadState
"""The name of the specification."""


class ContextId(str):
    """The identity of a context. Stores keyed by it go away when it's garbage collected."""

    __slots__ = ("__weakref__",)


@record(kw_only=True)
class Framework:
    """Optional handles supplied by the host."""

    read_state: ReadStateHandle | None = None
    web: WebSettings | None = None
    search: Sequence[SearchProvider] = ()
    observer: CallObserver | None = None


class CleanupStack:
    """Closers of a context, run in reverse order."""

    def __init__(self) -> None:
        self._closers: list[Callable[[], Awaitable[None]]] = []

    def add(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Await `closer` when the context closes."""
        self._closers.append(closer)

    async def run(self) -> None:
        """Run all closers, even if some fail; a second call does nothing.

        The closers' exceptions are raised as an `ExceptionGroup` after all of them ran.
        """
        failures: list[Exception] = []
        while self._closers:
            try:
                await self._closers.pop()()
            except Exception as exc:  # noqa: BLE001 — boundary: close the others first
                failures.append(exc)
        if failures:
            raise ExceptionGroup("some of a context could not be closed", failures)


@record(kw_only=True)
class ToolContext:
    """The workspace, the `Fs` and `Shell` ports, and the link between a call and its session.

    Closing it (`async with`) terminates the jobs its tools have started.
    """

    cwd: str
    fs: Fs
    shell: Shell
    cancel: CancelToken
    budget: OutputBudget
    clean_foreign: CleanText = make_visible
    """How the runner cleans third-party results; a gateway removes characters instead."""
    framework: Framework = field(default_factory=Framework)
    session_dir: SessionDir = field(default_factory=SessionDir)
    on_progress: ProgressSink | None = None
    context_id: ContextId = field(default_factory=lambda: ContextId(f"ctx_{os.urandom(10).hex()}"))
    closing: CleanupStack = field(default_factory=CleanupStack)
    keeps_jobs: bool = True
    """Whether jobs can outlive the call. False for a command that makes one call and exits."""

    async def __aenter__(self) -> ToolContext:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Terminate the jobs of this context; safe to call twice."""
        await self.closing.run()

    def with_cancel(self, cancel: CancelToken) -> ToolContext:
        """Return a copy with another cancel token and the same identity."""
        return replace(self, cancel=cancel)

    def report(self, progress: ToolProgress) -> None:
        """Report progress, if there is a sink."""
        if self.on_progress is None:
            return
        try:
            self.on_progress(progress)
        except Exception:  # noqa: BLE001 — boundary: a failing sink must not fail the tool
            _log.exception("a progress listener failed")


class PerContext(Generic[StoreT]):
    """One store per context, created on first use and freed with the context."""

    def __init__(self, make: Callable[[], StoreT]) -> None:
        self._make = make
        self._stores: WeakKeyDictionary[ContextId, StoreT] = WeakKeyDictionary()

    def of(self, ctx: ToolContext) -> StoreT:
        """Return the store of a context."""
        if ctx.context_id not in self._stores:
            self._stores[ctx.context_id] = self._make()
        return self._stores[ctx.context_id]

    def __len__(self) -> int:
        return len(self._stores)
