"""Resources of a session: server resources that a message mentions as `@server:uri`, and the deck's stores.

A mention must name a configured server, so other words with an `@` are just text. The permission check treats a read as
a call of the server's `read_resource`. Server text is untrusted, so it goes into a block that it can't close.
"""

from __future__ import annotations

import html
import os
import re
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.ids import new_ulid
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text, format_count, make_visible
from indusagi.interop.protocol_bridge.contract import ProtocolFault
from induscode.conversations.agents.delegate import SubSessions
from induscode.conversations.transcript import ConversationReadState
from induscode.deck.cards.memory import MEMORY_NAME, FileMemory
from induscode.deck.mcp.content import ContentRefused, ServerContent, find_text
from induscode.deck.stores import FileCheckpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.capabilities.leftovers import Receipt
    from induscode.boot.session import Session
    from induscode.conversations.agents.files import AgentFiles
    from induscode.conversations.transcript import Transcript

MAX_RESOURCE_CHARS = 50 * 1024
MAX_MENTIONS = 20
_PUNCTUATION = ".,;:!?)]}>'"
_MENTION = re.compile(r"(?<![^\s(\[{<,;\"'])@(?:\"(?P<quoted>[^\"\n]+)\"|(?P<bare>[^\s\"]+))")


def open_server_content(session: Session) -> ServerContent:
    """Open the resources and prompts of a session's servers, subject to its permission check."""
    return ServerContent(session.mcp, session.wrap, session.native.context)


async def attach_resources(text: str, session: Session) -> tuple[str, Sequence[str]]:
    """Attach the resources that a message mentions. Return the message for the model, and notes for the user.

    Each resource follows the unchanged message as a block `<resource server="…" uri="…">`, cut to 50 KiB. An unreadable
    one leaves a note.
    """
    servers = sorted((row.id for row in session.mcp.plan.rows), key=len, reverse=True)
    blocks: dict[tuple[str, str], str] = {}
    notes: list[str] = []
    for match in [*_MENTION.finditer(text)][:MAX_MENTIONS]:
        mention = match["quoted"] or match["bare"].rstrip(_PUNCTUATION)
        server = next((server for server in servers if mention.startswith(f"{server}:")), None)
        uri = "" if server is None else mention[len(server) + 1 :]
        if server is None or not uri or (server, uri) in blocks:
            continue
        try:
            result = await open_server_content(session).read_resource(server, uri)
        except (ContentRefused, ProtocolFault) as exc:
            notes.append(f"@{mention} is not attached: {exc}")
            continue
        body = make_visible(cut_text(find_text(result), MAX_RESOURCE_CHARS))[0]
        # If it could close its own block, the rest would pass for the user's message.
        body = re.sub(r"</(?=resource\b)", r"<\\/", body, flags=re.IGNORECASE)
        named = f'server="{html.escape(server)}" uri="{html.escape(uri)}"'
        blocks[server, uri] = f"<resource {named}>\n{body}\n</resource>"
    return "\n\n".join([text, *blocks.values()]), tuple(notes)


# -- the deck's stores --------------------------------------------------------------------------

_MAX_COMMAND_CHARS = 60


@record
class SessionResources:
    """A session's stores for the cards of its deck."""

    memory: FileMemory
    checkpoints: FileCheckpoints
    """Closed by the caller of `build_resources`."""
    delegate: SubSessions
    read_state: ConversationReadState

    async def begin_node(self, note: Callable[[str], None]) -> str:
        """Start a rewind point and return its id, reporting a failure to `note`."""
        node = new_ulid()
        try:
            await to_thread.run_sync(self.checkpoints.begin, node)
        except OSError as exc:
            note(f"what files held before isn't kept, so a rewind can't restore it: {exc}")
        return node


def build_resources(
    cwd: str, transcript: Transcript, agents: AgentFiles, on_task_end: Callable[[str], None]
) -> SessionResources:
    """Build the resources of a session in `cwd`. Files open on first use."""
    return SessionResources(
        FileMemory(os.path.join(cwd, MEMORY_NAME)),
        FileCheckpoints(os.path.join(transcript.directory, "checkpoints"), cwd),
        SubSessions(os.path.join(transcript.directory, "tasks"), cwd, agents, on_end=on_task_end),
        ConversationReadState(transcript),
    )


def find_leftovers() -> Sequence[Receipt]:
    """Find jobs that still run without a session. An unusable state directory yields none. Blocks."""
    from indusagi.capabilities.leftovers import find_leftover_jobs  # noqa: PLC0415 — loaded with the tools

    try:
        return find_leftover_jobs()
    except OSError:  # the ledger store reports an unusable state directory
        return []


def list_leftover_jobs() -> list[str]:
    """Describe jobs that still run after a crash, and how to end them. Blocks."""
    jobs = find_leftovers()
    if not jobs:
        return []
    command = cut_text(" ".join(clean_text(jobs[0].command)[0].split()), _MAX_COMMAND_CHARS)
    count = format_count(len(jobs), "job of a run that crashed runs", "jobs of runs that crashed run")
    return [f"{count} on, such as {command!r}: `indus mcp doctor --end-leftovers` ends it"]
