"""Checkpoints: records the content of a file before `write` or `edit` changes it, so that it can be restored.

The wrapped card has the same name and schema as the inner card. A content that cannot be read or stored never prevents
the change; the result's details report it.
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
"""A larger file is not recorded."""


@runtime_checkable
class SettlingStore(Protocol):
    """A store that also takes the content after a change, to detect later changes by others."""

    def settle(self, path: str, content: bytes | None) -> None:
        """Take the content of a file after the deck has changed it."""
        ...


class CheckpointingCard(CardWrapper):
    """A card that records the content of a file before it changes it."""

    def __init__(self, inner: Capability, store: CheckpointStore) -> None:
        super().__init__(inner)
        self._store = store

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Record the content, then run the inner card."""
        path, missed = await self._record(arguments, ctx)
        result = await self.inner.run(arguments, ctx)
        if path is not None and not result.is_error:
            await self._settle(path, ctx)
        if missed is None:
            return result
        return replace(result, details={**result.details, "notCheckpointed": missed})

    async def _settle(self, path: str, ctx: ToolContext) -> None:
        """Pass the new content to a store that takes it."""
        from anyio import to_thread  # noqa: PLC0415 — a running card has loaded it already

        store = self._store
        if not isinstance(store, SettlingStore):
            return
        try:
            content = await _content(ctx, path)
            await to_thread.run_sync(store.settle, path, content)
        except Exception:  # noqa: BLE001 — boundary: the store is the host's, the change is made
            return

    async def _record(self, arguments: JsonValue, ctx: ToolContext) -> tuple[str | None, str | None]:
        """Record the content; returns the path, or the reason why it was not recorded."""
        from anyio import to_thread  # noqa: PLC0415 — a running card has loaded it already

        path = path_of(arguments)
        if path is None:
            return None, None  # the inner card reports invalid arguments
        try:
            resolved = await ctx.fs.resolve(path, writing=True)
            previous = await _content(ctx, resolved)
            await to_thread.run_sync(self._store.record, resolved, previous)
        except Exception as exc:  # noqa: BLE001 — boundary: the store is the host's
            return None, f"what {path} held before was not kept: {describe_error(exc)}"
        return resolved, None


def path_of(arguments: JsonValue) -> str | None:
    """Find the path in arguments under any of its names; None if there is none."""
    if not is_json_object(arguments):
        return None
    for name in ("path", *PATH_ALIASES):
        if isinstance(arguments.get(name), str):
            return path_given(arguments, name)
    return None


async def _content(ctx: ToolContext, path: str) -> bytes | None:
    """Read a file; None if it is absent.

    Raises:
        OSError: It is unreadable or too large.
    """
    if not await ctx.fs.exists(path):
        return None
    size = (await ctx.fs.stat(path)).size
    if size > LARGEST_BYTES:
        raise OSError(f"it has {size:,} bytes, and at most {LARGEST_BYTES:,} are kept")
    return await ctx.fs.read_bytes(path)


def maybe_wrap_checkpoint(card: Capability, ctx: DeckContext) -> Capability:
    """Wrap a card that changes files, if there is a store; otherwise return it unchanged."""
    store = ctx.framework.checkpoint
    if store is None or card.name not in CHECKPOINTED_TOOLS:
        return card
    return CheckpointingCard(card, store)
