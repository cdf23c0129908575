"""Put native tools, a tool of your own and the tools of a server into one tool box, with a gate in front."""

import asyncio
import sys
from pathlib import Path

from indusagi.capabilities import ToolSpec, define_tool
from indusagi.runtime import ToolCall
from induscode import open_deck

HERE = Path(__file__).parent
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTES = {"command": sys.executable, "args": [str(HERE / "notes_server.py")]}


async def shout(arguments, ctx):
    return arguments["text"].upper()


def gate(request):
    """Decide about each call that your rules leave open; a real program would ask a person."""
    print("asked:", request.title)
    return request.tool != "shout" or "no shouting"


async def main() -> None:
    shouting = define_tool(ToolSpec("shout", "Repeat a text in capitals.", TEXT, shout))
    async with open_deck(
        servers={"notes": NOTES}, cards=[shouting], tools=["read", "grep"], cwd=HERE, gate=gate
    ) as box:
        print(*(descriptor.name for descriptor in box.descriptors()))
        for name in ("shout", "notes__add"):
            outcome = await box.runner.run(ToolCall(name, name, {"text": "buy bread"}))
            print(name, outcome.is_error, str(outcome.output).splitlines()[0])


asyncio.run(main())
# Prints:
# read grep shout notes__add
# asked: shout {"text": "buy bread"}
# shout True shout was not run: the user declined: no shouting
# asked: notes → add {"text": "buy bread"}
# notes__add False 1 note(s)
