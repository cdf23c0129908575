"""`process`: manage jobs, the background commands of a session."""

from __future__ import annotations

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.ports import LONGEST_WAIT_MS
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool, run_lazily
from indusagi.runtime.contract import JsonSchema

_SIGNALS = ("TERM", "INT", "HUP", "QUIT", "KILL")
_DESCRIPTION = (
    "Jobs in the background: servers, watchers, long builds. `start` {command} gives an id; "
    "`poll` {id} the lines since the last poll; `stop` {id} ends all it has started; `write` "
    "{id, input} types into it; `list`. Jobs end with the session. What bash left running is "
    "a job too."
)
_SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": ["start", "list", "poll", "stop", "write"]},
        "command": {"type": "string"},
        "cwd": {"type": "string", "description": "start: where."},
        "id": {"type": "string", "description": "Such as job-1."},
        "sinceLast": {"type": "boolean", "description": "poll: false gives all lines kept."},
        "lines": {"type": "integer", "minimum": 1, "maximum": 2_000, "description": "poll: the last so many."},
        "waitMs": {
            "type": "integer",
            "minimum": 0,
            "maximum": LONGEST_WAIT_MS,
            "description": f"poll: wait for output, {LONGEST_WAIT_MS} at most.",
        },
        "match": {"type": "string", "description": "poll: wait for a line with this."},
        "input": {"type": "string", "description": "write: end a line with \\n."},
        "eof": {"type": "boolean", "description": "write: end its input."},
        "signal": {"type": "string", "enum": [*_SIGNALS], "description": "stop: default TERM; KILL follows after 3 s."},
    },
    "required": ["action"],
    "additionalProperties": False,
}
_ALIASES = {
    "cmd": "command",
    "job": "id",
    "jobId": "id",
    "job_id": "id",
    "since_last": "sinceLast",
    "wait_ms": "waitMs",
    "timeoutMs": "waitMs",
    "text": "input",
}


def process_tool() -> DefinedTool:
    """Create the `process` tool."""
    return define_tool(
        ToolSpec(
            "process",
            _DESCRIPTION,
            _SCHEMA,
            run_lazily("indusagi.capabilities.tools.runs.process"),
            title="Background processes",
            prepare=coerce_to(_SCHEMA, _ALIASES),
            terse=True,
        )
    )
