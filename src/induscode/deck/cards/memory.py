"""`memory`: notes that outlive a conversation, in the host's store."""

from __future__ import annotations

import os
from functools import partial

from anyio import to_thread

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.tool import ToolSpec, define_tool
from indusagi.core.app_dirs import locked_directory, make_dirs, read_small_file, replace_file
from indusagi.core.json import JsonObject
from indusagi.core.secrets import holds_secret
from indusagi.runtime.contract import JsonSchema, ToolResult
from induscode.deck.contract import Capability, CapabilityCard, DeckContext, MemoryStore, Profile, capability_id

MEMORY_NAME = os.path.join(".indusvx", "memory.md")
"""A project's notes file, which users can read and edit too."""
LARGEST_BYTES = 32 * 1024
_MAX_FILE_BYTES = 1024 * 1024
_DIFF_LINES = 80
_PARAMETERS: JsonSchema = {
    "type": "object",
    "properties": {"action": {"type": "string", "enum": ["read", "replace", "append"]}, "content": {"type": "string"}},
    "required": ["action"],
    "additionalProperties": False,
}


class InMemoryStore:
    """Notes that live as long as the card."""

    def __init__(self) -> None:
        self._content = ""

    async def read(self) -> str:
        """Return the notes."""
        return self._content

    async def replace(self, content: str) -> None:
        """Replace the notes."""
        self._content = content

    async def append(self, content: str) -> None:
        """Append to the notes, on a new line."""
        self._content = append_note_line(self._content, content)


class FileMemory:
    """Notes in a project's Markdown file, safe for several processes. A missing file is empty. Raises `OSError`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)

    async def read(self) -> str:
        """Return the notes."""
        return await to_thread.run_sync(self._read)

    async def replace(self, content: str) -> None:
        """Replace the notes atomically."""
        await to_thread.run_sync(partial(self._write_file, content, append=False))

    async def append(self, content: str) -> None:
        """Append to the notes, on a new line."""
        await to_thread.run_sync(partial(self._write_file, content, append=True))

    def _read(self) -> str:
        try:
            data = read_small_file(self._path, _MAX_FILE_BYTES, follow=False)
        except FileNotFoundError:
            return ""
        return data.decode("utf-8", "replace")

    def _write_file(self, content: str, *, append: bool) -> None:
        folder = os.path.dirname(self._path)
        make_dirs(folder)
        with locked_directory(folder):
            if append:
                content = append_note_line(self._read(), content)
            replace_file(self._path, content.encode("utf-8", "backslashreplace"))


def append_note_line(notes: str, content: str) -> str:
    """Append `content` on a new line, unless the notes already end with it."""
    content = content.removesuffix("\n")
    last_lines = "\n" + notes.removesuffix("\n")
    if content and last_lines.endswith(f"\n{content}"):
        return notes
    between = "" if not notes or notes.endswith("\n") else "\n"
    return f"{notes}{between}{content}\n"


def memory_card() -> CapabilityCard:
    """Return the row of the catalog."""
    summary = "Keep notes from one conversation to the next"
    return CapabilityCard(capability_id("memory"), "Memory", summary, (Profile.ALL,), _build)


def _build(deck: DeckContext) -> Capability:
    store: MemoryStore = deck.framework.memory or InMemoryStore()

    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        action, content = arguments["action"], arguments.get("content")
        if action == "read":
            notes = await store.read()
            return ToolResult.text(notes or "The notes are empty.", bytes=len(notes.encode()))
        if not isinstance(content, str):
            return ToolResult.error(f"To {action} the notes, send `content`.", code="invalid_arguments")
        return await _write(store, content, append=action == "append")

    description = (
        "Notes for later sessions: `read`, `append` a line, or `replace` all of them "
        f"({LARGEST_BYTES // 1024} KiB). No secrets."
    )
    return define_tool(
        ToolSpec(
            "memory",
            description,
            _PARAMETERS,
            run,
            title="Memory",
            prepare=coerce_to(_PARAMETERS, {"text": "content"}),
            terse=True,
        )
    )


async def _write(store: MemoryStore, content: str, *, append: bool) -> ToolResult:
    before = await store.read()
    after = append_note_line(before, content) if append else content
    size = len(after.encode("utf-8", "backslashreplace"))
    if size > LARGEST_BYTES:
        message = (
            f"The notes would have {size:,} bytes, and hold {LARGEST_BYTES:,}. They were left as "
            "they were: replace them with something shorter."
        )
        return ToolResult.error(message, code="too_large")
    if after == before:
        return ToolResult.text("The notes say so already.", bytes=size)
    await (store.append(content) if append else store.replace(content))
    if append:
        lines = ["Added."]
    else:
        from difflib import unified_diff  # noqa: PLC0415 — used only to replace notes

        diff = list(unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm=""))
        lines = ["Replaced:", *diff[:_DIFF_LINES]]
        if len(diff) > _DIFF_LINES:
            lines.append(f"[{len(diff) - _DIFF_LINES} more lines]")
    if holds_secret(content):
        lines.append("This looks like a secret. It was kept: replace the notes if it should not be.")
    return ToolResult.text("\n".join(lines), bytes=size)
