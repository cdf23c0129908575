"""Resources that a message mentions as `@server:uri`: their text is attached for the model.

A mention names a configured server, so that other words with an `@` stay as they are. The permission check sees a read
as a call of the server's `read_resource`. Text of a server is foreign: it stands in a block that it cannot end.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from indusagi.core.text import cut_text, make_visible
from indusagi.interop.protocol_bridge.contract import ProtocolFault
from induscode.deck.mcp.content import ContentRefused, ServerContent, find_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from induscode.boot.session import Session

MAX_RESOURCE_CHARS = 50 * 1024
MAX_MENTIONS = 20
_PUNCTUATION = ".,;:!?)]}>'"
_MENTION = re.compile(r"(?<![^\s(\[{<,;\"'])@(?:\"(?P<quoted>[^\"\n]+)\"|(?P<bare>[^\s\"]+))")


def open_server_content(session: Session) -> ServerContent:
    """Open the resources and prompts of a session's servers, behind its permission check."""
    return ServerContent(session.mcp, session.wrap, session.native.context)


async def attach_resources(text: str, session: Session) -> tuple[str, Sequence[str]]:
    """Attach the resources that a message mentions; return the message for the model, and notes for the person.

    The message is kept as typed, and each resource follows as a block `<resource server="…" uri="…">`, 50 KiB of one at
    most. One that cannot be read leaves a note.
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
        # It must not end its own block, and what follows it be taken for the message of the person.
        body = re.sub(r"</(?=resource\b)", r"<\\/", body, flags=re.IGNORECASE)
        named = f'server="{html.escape(server)}" uri="{html.escape(uri)}"'
        blocks[server, uri] = f"<resource {named}>\n{body}\n</resource>"
    return "\n\n".join([text, *blocks.values()]), tuple(notes)
