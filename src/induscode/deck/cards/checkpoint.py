"""Keeps what a file held before `write` or `edit` changes it, so that it can be put back.

The wrapped card looks exactly like the card inside. Keeping is done as well as it can be: what
cannot be read or kept never stands in the way of the change, but the answer says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, runtime_checkable

from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given
from indusagi.core.faults import describe_error
from indusagi.core.json import JsonValue, is_json_object
from indusagi.runtime.contract import ToolResult
from induscode.deck.contract import Capability, CardWrapper, CheckpointStore, DeckContext

CHECKPOINTED_TOOLS = ("write", "edit")
LARGEST_BYTES = 20 * 1024 * 1024
"""A larger file is not kept."""


@runtime_checkable
class SettlingStore(Protocol):
    """A store that also wants to know what became of a file, to tell later who changed it since."""

    def settle(self, path: str, content: bytes | None) -> None:
        """Take what stands at a path after the deck has changed it."""
        ...


class CheckpointingCard(CardWrapper):
    """A card that changes a file, and first has its content kept."""

    def __init__(self, inner: Capability, store: CheckpointStore) -> None:
        super().__init__(inner)
        self._store = store

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Keep what is there, then let the card inside do its work."""
        path, missed = await self._keep(arguments, ctx)
        result = await self.inner.run(arguments, ctx)
        if path is not None and not result.is_error:
            await self._settle(path, ctx)
        if missed is None:
            return result
        return replace(result, details={**result.details, "notCheckpointed": missed})

    async def _settle(self, path: str, ctx: ToolContext) -> None:
        """Tell a store that wants to know it what became of the file."""
        from anyio import to_thread  # noqa: PLC0415 — loaded wherever a card runs

        store = self._store
        if not isinstance(store, SettlingStore):
            return
        try:
            content = await _content(ctx, path)
            await to_thread.run_sync(store.settle, path, content)
        except Exception:  # noqa: BLE001 — boundary: the store is the host's, the change is made
            return

    async def _keep(self, arguments: JsonValue, ctx: ToolContext) -> tuple[str | None, str | None]:
        """Keep the file as it is: where it is, and why that was not possible."""
        from anyio import to_thread  # noqa: PLC0415 — loaded wherever a card runs

        path = path_of(arguments)
        if path is None:
            return None, None  # the card inside says what is wrong with such arguments
        try:
            resolved = await ctx.fs.resolve(path, writing=True)
            previous = await _content(ctx, resolved)
            await to_thread.run_sync(self._store.record, resolved, previous)
        except Exception as exc:  # noqa: BLE001 — boundary: the store is the host's
            return None, f"what {path} held before was not kept: {describe_error(exc)}"
        return resolved, None


def path_of(arguments: JsonValue) -> str | None:
    """Find the file that arguments name, under whatever key; None if they name none."""
    if not is_json_object(arguments):
        return None
    for name in ("path", *PATH_ALIASES):
        if isinstance(arguments.get(name), str):
            return path_given(arguments, name)
    return None


async def _content(ctx: ToolContext, path: str) -> bytes | None:
    """Read a file; None if there is none.

    Raises:
        OSError: It cannot be read, or is too large to be kept.
    """
    if not await ctx.fs.exists(path):
        return None
    size = (await ctx.fs.stat(path)).size
    if size > LARGEST_BYTES:
        raise OSError(f"it has {size:,} bytes, and at most {LARGEST_BYTES:,} are kept")
    return await ctx.fs.read_bytes(path)


def maybe_wrap_checkpoint(card: Capability, ctx: DeckContext) -> Capability:
    """Wrap a card that changes files, if there is a store to keep them in; else give it back."""
    store = ctx.framework.checkpoint
    if store is None or card.name not in CHECKPOINTED_TOOLS:
        return card
    return CheckpointingCard(card, store)
