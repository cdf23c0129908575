"""Prompts of servers as slash commands: `/server:prompt` sends the messages of a prompt to the model.

https://modelcontextprotocol.io/specification/2025-11-25/server/prompts. Arguments are `name=value`, or values in the
order of the prompt's own list.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object
from indusagi.core.text import cut_text
from indusagi.interop.protocol_bridge.contract import ProtocolFault
from induscode.conversations.mentions import open_server_content
from induscode.deck.mcp.content import ContentRefused, find_text
from induscode.frontends.terminal.slash import SlashCommand, SlashError, split_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef
    from induscode.conversations.conversation import Conversation
    from induscode.deck.mcp.capability import BridgeCapability
    from induscode.frontends.terminal.slash import SlashHost

_MAX_DESCRIPTION = 100


def list_prompt_commands(conversation: Conversation | None) -> Mapping[str, SlashCommand]:
    """List the prompts of a conversation's servers as they are now."""
    if conversation is None:
        return {}
    commands: dict[str, SlashCommand] = {}
    for item in open_server_content(conversation.session).list_items("prompt"):
        name = f"{item.ref.server}:{item.ref.name}"
        if not any(map(str.isspace, name)):
            arguments = _list_arguments(item)
            about = cut_text(" ".join(item.description.split()), _MAX_DESCRIPTION)
            commands[name] = SlashCommand(
                name=name,
                usage=" ".join(one if required else f"[{one}]" for one, required in arguments),
                describe=f"{about} (server {item.ref.server})",
                run=partial(_send_prompt, item.ref, arguments),
            )
    return commands


def _list_arguments(item: BridgeCapability) -> Sequence[tuple[str, bool]]:
    rows: JsonValue = item.raw.get("arguments")
    found = filter(is_json_object, rows if isinstance(rows, list) else ())
    return [(name, row.get("required") is True) for row in found if isinstance(name := row.get("name"), str)]


async def _send_prompt(ref: RemoteToolRef, arguments: Sequence[tuple[str, bool]], host: SlashHost, rest: str) -> None:
    names = [name for name, _ in arguments]
    given: JsonObject = {}
    for word in split_words(rest):
        key, mark, value = word.partition("=")
        if mark and key in names:
            given[key] = value
        else:
            free = [name for name in names if name not in given]
            if not free:
                raise SlashError(f"/{ref.server}:{ref.name} takes: {' '.join(names) or 'no arguments'}")
            given[free[0]] = word
    missing = [name for name, required in arguments if required and name not in given]
    if missing:
        raise SlashError(f"/{ref.server}:{ref.name} needs: {' '.join(missing)}")
    try:
        content = open_server_content(host.conversation.session)
        text = find_text(await content.get_prompt(ref.server, ref.name, given))
    except (ContentRefused, ProtocolFault) as exc:
        raise SlashError(str(exc)) from exc
    if not text:
        raise SlashError("the prompt has no text")
    host.prompt(text)
