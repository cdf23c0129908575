"""`/memory`: the notes that the model keeps for later sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.text import format_count
from induscode.cli.dialog import Choice, Question
from induscode.cli.terminal import escape_controls
from induscode.deck.cards.memory import LARGEST_BYTES, MEMORY_NAME, append_note_line
from induscode.frontends.terminal.slash import SlashCommand, SlashError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.frontends.terminal.slash import SlashHost


def list_memory_commands() -> Sequence[SlashCommand]:
    """List the commands."""
    describe = "show the notes for later sessions, add to them, clear them"
    return (SlashCommand(name="memory", usage="[add TEXT|clear]", describe=describe, run=_run),)


async def _run(host: SlashHost, rest: str) -> None:
    action, _, text = rest.partition(" ")
    text = text.strip()
    if action not in {"", "add", "clear"} or (action != "add" and text):
        raise SlashError("write /memory, /memory add TEXT, or /memory clear")
    memory = host.conversation.resources.memory
    notes = await memory.read()
    if action == "add":
        if not text:
            raise SlashError("write what is to be noted: /memory add TEXT")
        size = len(append_note_line(notes, text).encode())
        if size > LARGEST_BYTES:
            raise SlashError(f"the notes would have {size:,} bytes, and hold {LARGEST_BYTES:,}: clear or edit them")
        await memory.append(text)
        host.screen.show(f"added to {MEMORY_NAME}")
    elif not notes.strip():
        host.screen.show(f"there are no notes ({MEMORY_NAME})")
    elif action == "clear":
        count = format_count(len(notes.splitlines()), "line")
        choices = (Choice(key="y", label="yes, remove them"), Choice(key="n", label="no"))
        reply = await host.screen.ask(
            Question(title=f"Remove all notes of {MEMORY_NAME} ({count})?", choices=choices, default="n")
        )
        if reply.key == "y" and not reply.cancelled:
            await memory.replace("")
            host.screen.show("the notes are empty now")
    else:
        host.screen.print(escape_controls(notes))
