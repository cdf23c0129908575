"""What a session gives to the cards of its deck: notes, the way back, somebody to delegate to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from induscode.deck.contract import DeckFramework
from induscode.deck.stores import FileCheckpoints, FileMemory
from induscode.deck.stores.memory_file import MEMORY_NAME
from induscode.session.delegate import SubSessions
from induscode.session.reads import ConversationReads

if TYPE_CHECKING:
    from induscode.session.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Handles:
    """The handles of one session. The checkpoints are closed by whoever made this."""

    memory: FileMemory
    checkpoints: FileCheckpoints
    delegate: SubSessions
    reads: ConversationReads

    def framework(self) -> DeckFramework:
        """Give them the way a deck takes them."""
        return DeckFramework(
            read_state=self.reads, checkpoint=self.checkpoints, delegate=self.delegate, memory=self.memory
        )


def make_handles(cwd: str, transcript: Transcript) -> Handles:
    """Make the handles of a session that works in `cwd`; nothing is opened yet."""
    return Handles(
        FileMemory(os.path.join(cwd, MEMORY_NAME)),
        FileCheckpoints(os.path.join(transcript.directory, "checkpoints")),
        SubSessions(os.path.join(transcript.directory, "tasks"), cwd),
        ConversationReads(transcript),
    )
