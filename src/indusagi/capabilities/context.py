"""What a tool is given besides its arguments.

A context lives as long as the box it was made for. Each call gets a copy with its own cancel
token and progress sink; the id stays, so that a store keyed on it lives through the session.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from indusagi.capabilities.budget import OutputBudget
from indusagi.capabilities.overflow import SessionDir
from indusagi.capabilities.ports import Fs, SearchProvider, Shell, WebSettings
from indusagi.capabilities.read_state import ReadStateHandle
from indusagi.core.cancel import CancelToken
from indusagi.core.invisible import CleanText
from indusagi.core.text import make_visible
from indusagi.runtime.contract import ProgressSink, ToolProgress

_log = logging.getLogger(__name__)
StoreT = TypeVar("StoreT")


class ContextId(str):
    """The identity of a context: text to show, and an object whose end frees what hangs on it."""

    __slots__ = ("__weakref__",)


def _new_context_id() -> ContextId:
    return ContextId(f"ctx_{os.urandom(10).hex()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Handles that a host may inject; a tool does without those that are None."""

    read_state: ReadStateHandle | None = None
    web: WebSettings | None = None
    search: Sequence[SearchProvider] = ()


class CleanupStack:
    """What is to be closed with a context, the last first."""

    def __init__(self) -> None:
        self._closers: list[Callable[[], Awaitable[None]]] = []

    def add(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Have `closer` awaited when the context is closed."""
        self._closers.append(closer)

    async def run(self) -> None:
        """Close everything, also when some of it fails; a second time does nothing.

        Raises:
            ExceptionGroup: What the closers raised, after all of them had their turn.
        """
        failures: list[Exception] = []
        while self._closers:
            try:
                await self._closers.pop()()
            except Exception as exc:  # noqa: BLE001 — boundary: the others are closed first
                failures.append(exc)
        if failures:
            raise ExceptionGroup("some of a context could not be closed", failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The working directory, the two doors, and what binds a call to its session.

    `async with` it where tools may leave something running: whatever they started ends with it.
    """

    cwd: str
    fs: Fs
    shell: Shell
    cancel: CancelToken
    budget: OutputBudget
    clean_foreign: CleanText = make_visible
    """What the runner does to answers that another party wrote; a gateway removes instead."""
    framework: Framework = field(default_factory=Framework)
    session_dir: SessionDir = field(default_factory=SessionDir)
    on_progress: ProgressSink | None = None
    context_id: ContextId = field(default_factory=_new_context_id)
    closing: CleanupStack = field(default_factory=CleanupStack)
    keeps_jobs: bool = True
    """Whether what is started in the background has a session to be looked after in. A command that
    makes one call and ends has none: its jobs would end before anybody could ask for them."""

    async def __aenter__(self) -> ToolContext:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End what the tools of this context have left running; safe to call twice."""
        await self.closing.run()

    def with_cancel(self, cancel: CancelToken) -> ToolContext:
        """Give the context for one call; the identity stays."""
        return replace(self, cancel=cancel)

    def with_progress(self, on_progress: ProgressSink | None) -> ToolContext:
        """Give the context for one call whose progress somebody follows."""
        return replace(self, on_progress=on_progress)

    def report(self, progress: ToolProgress) -> None:
        """Tell whoever follows how far the call has come; nobody may be there."""
        if self.on_progress is None:
            return
        try:
            self.on_progress(progress)
        except Exception:  # noqa: BLE001 — boundary: a listener's defect is not the tool's failure
            _log.exception("a progress listener failed")


class PerContext(Generic[StoreT]):
    """One store for each context, made on first use and freed with the context."""

    def __init__(self, make: Callable[[], StoreT]) -> None:
        self._make = make
        self._stores: WeakKeyDictionary[ContextId, StoreT] = WeakKeyDictionary()

    def of(self, ctx: ToolContext) -> StoreT:
        """Give the store of this context; calls on one box share one."""
        if ctx.context_id not in self._stores:
            self._stores[ctx.context_id] = self._make()
        return self._stores[ctx.context_id]

    def __len__(self) -> int:
        return len(self._stores)
