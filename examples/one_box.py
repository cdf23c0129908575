"""Put native tools, a card of your own and the tools of a server into one tool box."""

import asyncio
import sys
from pathlib import Path

from indusagi.capabilities import ToolSpec, define_tool
from indusagi.interop import BridgeConfig, StdioServerConfig
from indusagi.runtime import ToolCall
from induscode.deck import DeckContext, Profile
from induscode.deck.mcp import attach_bridge_capabilities
from induscode.deck.mcp.ledger import BridgeLedger
from induscode.deck.provision import provision_deck

HERE = Path(__file__).parent


async def shout(arguments, ctx):
    return arguments["text"].upper()


TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTES = StdioServerConfig(id="notes", command=sys.executable, args=(str(HERE / "notes_server.py"),))


async def main() -> None:
    deck = provision_deck(Profile.AUTHORING, DeckContext(str(HERE)))  # the read-only native tools
    deck = deck.graft([define_tool(ToolSpec("shout", "Repeat a text in capitals.", TEXT, shout))])
    attached = await attach_bridge_capabilities(BridgeLedger.empty(), BridgeConfig((NOTES,)))
    deck = deck.graft(attached.ledger.live_capabilities())
    try:
        async with deck.context:
            box = deck.into_tool_box()
            print(*(descriptor.name for descriptor in box.descriptors()))
            for name in ("shout", "notes__add"):
                outcome = await box.runner.run(ToolCall(name, name, {"text": "buy bread"}))
                print(name, outcome.is_error, outcome.output)
    finally:
        if attached.fleet is not None:
            await attached.fleet.tear_down()


asyncio.run(main())
# Prints:
# read ls grep find websearch webfetch todo_read shout notes__add
# shout False BUY BREAD
# notes__add False 1 note(s)
