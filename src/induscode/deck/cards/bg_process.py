"""`bg-process`: background commands with output in project files.

In a deck, it's an alias for the jobs of `process`, which is the one models see.
"""

from __future__ import annotations

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.jobs import JobKind, JobTable, jobs_of
from indusagi.capabilities.ports import STOP_GRACE_MS as STOP_GRACE_MS
from indusagi.capabilities.tool import ToolSpec, define_tool
from indusagi.core.json import JsonObject
from indusagi.runtime.contract import JsonSchema, ToolResult
from induscode.deck.contract import Capability, CapabilityCard, DeckContext, Profile, capability_id

MAX_BUFFERED_LINES = 2_000
CAPTURE_DIRNAME = ".indusvx-bg"
_PARAMETERS: JsonSchema = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": ["start", "poll", "stop", "list"]},
        "command": {"type": "string"},
        "id": {"type": "string", "description": "Such as bg-1."},
        "sinceLast": {"type": "boolean", "description": "poll: false gives all lines kept."},
        "lines": {"type": "integer", "minimum": 1, "maximum": MAX_BUFFERED_LINES},
        "waitMs": {"type": "integer", "minimum": 0, "maximum": 30_000},
        "match": {"type": "string", "description": "poll: wait for a line with this."},
    },
    "required": ["action"],
    "additionalProperties": False,
}
_DESCRIPTION = (
    "Commands in the background of this project. `start` {command} gives an id and the file "
    "that takes the output; `poll` {id} the lines since the last poll; `stop` {id} ends all "
    "it has started; `list`."
)


class DaemonTable:
    """The background commands of a card: the session's jobs in a deck, otherwise a private table."""

    def __init__(self, *, in_deck: bool = False) -> None:
        self._in_deck = in_deck
        self._table: JobTable | None = None

    def of(self, ctx: ToolContext) -> JobTable:
        """Return the table. A private one ends with the context it's first used in."""
        if self._in_deck:
            return jobs_of(ctx)
        if self._table is None:
            self._table = JobTable()
        self._table.bind(ctx)
        return self._table


def daemon_card() -> CapabilityCard:
    """Return the row of the catalog."""
    identity, summary = capability_id("bg-process"), "Run commands in the background"
    return CapabilityCard(identity, "Background process", summary, (Profile.ALL,), _build)


def _build(deck: DeckContext) -> Capability:
    daemons = DaemonTable(in_deck=deck.in_deck)

    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        from indusagi.capabilities.tools.process import run_action  # noqa: PLC0415 — as above

        return await run_action(daemons.of(ctx), arguments, ctx, JobKind("bg", CAPTURE_DIRNAME))

    prepare = coerce_to(_PARAMETERS, {"cmd": "command", "since_last": "sinceLast"})
    spec = ToolSpec(
        "bg-process",
        " ".join(_DESCRIPTION.split()),
        _PARAMETERS,
        run,
        title="Background process",
        prepare=prepare,
        terse=True,
    )
    return define_tool(spec)
