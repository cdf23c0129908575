"""`bg-process`: background commands of the deck, beside the jobs of the `process` tool.

Both use one engine with separate tables: neither lists the other's commands. The output of every command also goes to a
file in the project, where people look for it.
"""

from __future__ import annotations

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.jobs.table import JobTable
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
    """The background commands of one card; two cards never share one."""

    def __init__(self) -> None:
        self._table: JobTable | None = None

    def of(self, ctx: ToolContext) -> JobTable:
        """Return the table, which ends with the context it is first used in."""
        from indusagi.capabilities.jobs.table import JobTable  # noqa: PLC0415 — loaded when a command is started

        if self._table is None:
            self._table = JobTable("bg", capture_dir=CAPTURE_DIRNAME)
        self._table.bind(ctx)
        return self._table


def daemon_card() -> CapabilityCard:
    """Return the row of the catalog."""
    identity, summary = capability_id("bg-process"), "Run commands in the background"
    return CapabilityCard(identity, "Background process", summary, (Profile.ALL,), _build)


def _build(_: DeckContext) -> Capability:
    daemons = DaemonTable()

    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        from indusagi.capabilities.tools.runs.process import run_action  # noqa: PLC0415 — loaded when the card is used

        return await run_action(daemons.of(ctx), arguments, ctx)

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
