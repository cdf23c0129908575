"""A toolbox for code without an event loop.

Its tools and servers live in the event loop of a separate thread. Call `run_sync` from any thread, or `run` from any
other event loop. Leaving the block closes them in the task that opened them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any, ParamSpec, TypeVar, cast

from anyio import to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal

from indusagi.core.cancel import CancelToken
from indusagi.core.faults import Note
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonLike, JsonObject
from indusagi.runtime.contract import ProgressSink, ToolBox, ToolCall, ToolDescriptor, ToolOutcome

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")


class BlockingToolBox:
    """A toolbox in the event loop of another thread."""

    def __init__(self, toolbox: ToolBox, portal: BlockingPortal) -> None:
        self.toolbox = toolbox
        """The toolbox itself; only for code in its own event loop."""
        self._portal = portal

    @property
    def is_gated(self) -> bool:
        """Whether the toolbox decides about its calls itself."""
        return getattr(self.toolbox, "is_gated", False) is True

    @property
    def notes(self) -> Sequence[Note]:
        """Everything left out, with the reason; empty if the toolbox has no notes."""
        return self.wait_for(getattr, self.toolbox, "notes", ())

    @property
    def runner(self) -> BlockingToolBox:
        """The runner for calls with `await` from any event loop: this object."""
        return self

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the tools in a stable order."""
        return self.wait_for(self.toolbox.descriptors)

    async def read_descriptors(self) -> Sequence[ToolDescriptor]:
        """List the tools from another event loop."""
        return await self.call_async(self.toolbox.descriptors)

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run one call from another event loop; cancelling the task cancels the call."""
        return await self.call_async(self._run, call, cancel, on_progress)

    def run_sync(self, call: ToolCall, cancel: CancelToken | None = None) -> ToolOutcome:
        """Run one call from a thread without an event loop; an interrupt cancels the call."""
        return self.wait_for(self._run, call, cancel, None)

    def call(
        self,
        name: str,
        arguments: Mapping[str, JsonLike] | None = None,
        /,
        *,
        cancel: CancelToken | None = None,
        **more: JsonLike,
    ) -> ToolOutcome:
        """Call a tool from a thread without an event loop: `box.call("read", path="a.txt")`."""
        given = cast("JsonObject", {**(arguments or {}), **more})
        return self.run_sync(ToolCall(f"call_{new_ulid()}", name, given), cancel)

    def wait_for(self, work: Callable[..., Awaitable[ResultT] | ResultT], *arguments: Any) -> ResultT:
        """Run `work` in the toolbox's loop, and wait for it in this thread."""
        future = cast("Future[ResultT]", self._portal.start_task_soon(work, *arguments))
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def call_async(self, work: Callable[..., Awaitable[ResultT] | ResultT], *arguments: Any) -> ResultT:
        """Run `work` in the toolbox's loop, and wait for it in this task."""
        futures: list[Future[ResultT]] = []

        def start() -> None:
            futures.append(cast("Future[ResultT]", self._portal.start_task_soon(work, *arguments)))

        try:
            await to_thread.run_sync(start)  # waits until the other loop has started the task
            # Cancelling this task cancels the wrapped future, and with it the task in the other loop.
            return await asyncio.wrap_future(futures[0])
        except asyncio.CancelledError:
            for future in futures:
                future.cancel()
            raise

    async def _run(self, call: ToolCall, cancel: CancelToken | None, on_progress: ProgressSink | None) -> ToolOutcome:
        return await self.toolbox.runner.run(call, cancel, on_progress=on_progress)


@contextmanager
def open_blocking(opening: AbstractAsyncContextManager[ToolBox]) -> Generator[BlockingToolBox]:
    """Open a toolbox in the event loop of a new thread, for the block."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opening) as toolbox:
        yield BlockingToolBox(toolbox, portal)


def make_blocking(
    open_box: Callable[ParamsT, AbstractAsyncContextManager[ToolBox]],
) -> Callable[ParamsT, AbstractContextManager[BlockingToolBox]]:
    """Make a version without `await` of a function that opens a toolbox."""

    def open_it(*args: ParamsT.args, **kwargs: ParamsT.kwargs) -> AbstractContextManager[BlockingToolBox]:
        return open_blocking(open_box(*args, **kwargs))

    return open_it
