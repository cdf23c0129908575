"""Checkpoints: records a file's content before `write` or `edit` changes it, so it can be restored.

The wrapped card has the name and schema of the inner card. Failing to read or store the content never prevents the
change; the result's details report it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from anyio import CancelScope, to_thread

from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.jobs import list_jobs
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given
from indusagi.core.faults import describe_error
from indusagi.core.json import JsonValue, is_json_object
from indusagi.core.protocols import offers
from indusagi.runtime.contract import ToolResult
from induscode.deck.contract import Capability, CardWrapper, CheckpointStore, DeckContext

CHECKPOINTED_TOOLS = ("write", "edit")
LARGEST_BYTES = 20 * 1024 * 1024
"""Larger files aren't recorded."""


class SettlingStore(Protocol):
    """A store that also records the content after a change, to detect later changes by others."""

    def settle(self, path: str, content: bytes | None) -> None:
        """Record a file's content after the deck has changed it."""
        ...


class CheckpointingCard(CardWrapper):
    """A card that records a file's content before changing it."""

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
        """Pass the new content to a settling store."""
        store = self._store
        if not offers(store, SettlingStore):
            return
        try:
            content = await _content(ctx, path)
            await to_thread.run_sync(store.settle, path, content)
        except Exception:  # noqa: BLE001 — boundary: the store is the host's, the change is made
            return

    async def _record(self, arguments: JsonValue, ctx: ToolContext) -> tuple[str | None, str | None]:
        """Record the content. Returns the path, or the reason it couldn't be recorded."""
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
    """Find the path in arguments under any of its names."""
    if not is_json_object(arguments):
        return None
    for name in ("path", *PATH_ALIASES):
        if isinstance(arguments.get(name), str):
            return path_given(arguments, name)
    return None


async def _content(ctx: ToolContext, path: str) -> bytes | None:
    """Read a file, or return `None` if it doesn't exist; raises `OSError` if it's unreadable or too large."""
    if not await ctx.fs.exists(path):
        return None
    size = (await ctx.fs.stat(path)).size
    if size > LARGEST_BYTES:
        raise OSError(f"it has {size:,} bytes, and at most {LARGEST_BYTES:,} are kept")
    return await ctx.fs.read_bytes(path)


def maybe_wrap_checkpoint(card: Capability, ctx: DeckContext) -> Capability:
    """Wrap a card that changes files, if the deck has a store."""
    store = ctx.framework.checkpoint
    if store is None or card.name not in CHECKPOINTED_TOOLS:
        return card
    return CheckpointingCard(card, store)


# -- commands ---------------------------------------------------------------------------------
#
# Snapshots of the work tree before and after a command yield its changes, which go to the checkpoint store next to the
# files `write` and `edit` change. A failure never prevents the command: the result's details report anything not
# covered.

COMMAND_TOOLS = ("bash", "process", "bg-process")
_STARTING = "start"
_COMMAND_NAMES = ("command", "cmd", "script")
_READING = re.compile(r"\s*([\w.:-]+)(?:[ \t]+(?:'[^'\n]*'|\"[^\"$`\\\n!]*\"|[\w@%+=:,./-]+))*\s*")
"""A program with literal words: no expansion, redirection or second command."""
_SHOWN_FILES = 50


class CommandStore(Protocol):
    """A checkpoint store that also records changes by commands. Methods block."""

    def begin_command(self) -> Any:
        """Take a snapshot before a command, or return `None` if it doesn't record commands."""
        ...

    def end_command(self, before: Any) -> tuple[Sequence[str], Sequence[str]]:
        """Record the changes since; return the changed paths, and notes on anything not covered."""
        ...

    def add_note(self, text: str) -> None:
        """Record something a restore doesn't cover."""
        ...


class CommandCheckpointingCard(CardWrapper):
    """A card that records its command's changes."""

    def __init__(self, inner: Capability, store: CommandStore) -> None:
        super().__init__(inner)
        self._store = store

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Run the inner card between two snapshots, unless the command only reads."""
        if not may_change_files(self.name, arguments):
            return await self.inner.run(arguments, ctx)
        before, missed = None, ""
        try:
            before = await to_thread.run_sync(self._store.begin_command)
        except Exception as exc:  # noqa: BLE001 — boundary: the store is the host's
            missed = f"what the command changes is not kept: {describe_error(exc)}"
        if before is None:
            result = await self.inner.run(arguments, ctx)
            return replace(result, details={**result.details, "notCheckpointed": missed}) if missed else result
        try:
            result = await self.inner.run(arguments, ctx)
        except BaseException:
            await self._record_changes(before, None, ctx)  # even if cancelled
            raise
        facts = await self._record_changes(before, find_job(self.name, result), ctx)
        return replace(result, details={**result.details, **facts}) if facts else result

    async def _record_changes(self, before: Any, job: str | None, ctx: ToolContext) -> dict[str, JsonValue]:
        """Record the changes since a snapshot and return details. A job is tracked until it ends."""
        facts: dict[str, JsonValue] = {}
        missed: list[str] = []
        try:
            with CancelScope(shield=True):
                end = partial(self._store.end_command, before)
                running = next((one for one in list_jobs(ctx) if one.id == job), None)
                follow = getattr(self._store, "follow_command", None)
                if running is not None and follow is not None:
                    process = running.process
                    # Running, or with running descendants.
                    end = partial(follow, before, lambda: process.exit_code is None or bool(process.survivors()))
                changed, notes = await to_thread.run_sync(end)
                missed += notes
                facts |= {"changedFiles": [*changed[:_SHOWN_FILES]]} if changed else {}
                if job is not None and (running is None or follow is None):
                    missed.append(f"{job} runs on: what it changes from now on is not covered")
                    await to_thread.run_sync(self._store.add_note, missed[-1])
        except Exception as exc:  # noqa: BLE001 — boundary: the store is the host's, the command has run
            missed.append(f"what the command changed is not kept: {describe_error(exc)}")
        return facts | ({"notCheckpointed": "; ".join(missed)} if missed else {})


def may_change_files(tool: str, arguments: JsonValue) -> bool:
    """Tell whether a call starts a command that isn't known to be read-only."""
    if not is_json_object(arguments) or (tool != "bash" and arguments.get("action") != _STARTING):
        return False
    command = next((arguments[name] for name in _COMMAND_NAMES if isinstance(arguments.get(name), str)), None)
    if not isinstance(command, str):
        return False
    from induscode.deck.programs.table import ONLY_READ  # noqa: PLC0415 — a large table, for the first command

    match = _READING.fullmatch(command)
    return match is None or match[1] not in ONLY_READ


def find_job(tool: str, result: ToolResult) -> str | None:
    """Find the id of the job a command turned into."""
    job = result.details.get("job" if tool == "bash" else "id")
    return job if isinstance(job, str) and not result.is_error else None


def maybe_wrap_commands(card: Capability, ctx: DeckContext) -> Capability:
    """Wrap a card that runs commands, if the deck's store records them."""
    store = ctx.framework.checkpoint
    if card.name not in COMMAND_TOOLS or not offers(store, CommandStore):
        return card
    return CommandCheckpointingCard(card, store)
