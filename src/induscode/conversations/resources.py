"""Resources of a session: the stores that its cards use, and the jobs that earlier sessions have left running."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.ids import new_ulid
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text, format_count
from induscode.conversations.agents.delegate import SubSessions
from induscode.conversations.transcript import ConversationReadState
from induscode.deck.cards.memory import MEMORY_NAME, FileMemory
from induscode.deck.stores import FileCheckpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.capabilities.receipts import Receipt
    from induscode.conversations.agents.files import AgentFiles
    from induscode.conversations.transcript import Transcript

_SHOWN_COMMAND = 60


@record
class SessionResources:
    """Stores that the session gives to the cards of its deck."""

    memory: FileMemory
    checkpoints: FileCheckpoints
    """Closed by the caller of `build_resources`."""
    delegate: SubSessions
    read_state: ConversationReadState

    async def begin_node(self, note: Callable[[str], None]) -> str:
        """Begin a point to which a rewind can return; `note` hears of a failure."""
        node = new_ulid()
        try:
            await to_thread.run_sync(self.checkpoints.begin, node)
        except OSError as exc:
            note(f"what files held before isn't kept, so a rewind can't restore it: {exc}")
        return node


def build_resources(cwd: str, transcript: Transcript, agents: AgentFiles) -> SessionResources:
    """Build the resources of a session in `cwd`; files are opened at first use."""
    return SessionResources(
        FileMemory(os.path.join(cwd, MEMORY_NAME)),
        FileCheckpoints(os.path.join(transcript.directory, "checkpoints"), cwd),
        SubSessions(os.path.join(transcript.directory, "tasks"), cwd, agents),
        ConversationReadState(transcript),
    )


def find_leftovers() -> Sequence[Receipt]:
    """Find the jobs that still run without a session; none if the state directory is unusable. It blocks."""
    from indusagi.capabilities.receipts import find_leftover_jobs  # noqa: PLC0415 — loaded with the tools

    try:
        return find_leftover_jobs()
    except OSError:  # the ledger store reports an unusable state directory
        return []


def list_leftover_jobs() -> list[str]:
    """Describe the jobs that still run after a crash, with the command that ends them. It blocks."""
    jobs = find_leftovers()
    if not jobs:
        return []
    command = cut_text(" ".join(clean_text(jobs[0].command)[0].split()), _SHOWN_COMMAND)
    count = format_count(len(jobs), "job of a run that crashed runs", "jobs of runs that crashed run")
    return [f"{count} on, such as {command!r}: `indus mcp doctor --end-leftovers` ends it"]
