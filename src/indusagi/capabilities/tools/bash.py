"""`bash`: run a command and return its output.

The command ends when the shell exits. Processes it leaves in the background become a job of the session. We terminate
the process tree of a command that's cancelled or exceeds its time limit.
"""

from __future__ import annotations

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.ports import DEFAULT_TIMEOUT_MS
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool, run_lazily
from indusagi.runtime.contract import JsonSchema

LONGEST_TIMEOUT_MS = 600_000
_DESCRIPTION = (
    "Run a command with bash; answers with stdout and stderr. Standard input is empty, there "
    "is no terminal. The working directory carries over while it stays in the workspace; "
    "variables do not. Of long output both ends are shown and the whole is kept in a file. In "
    "a sandbox /tmp is for commands alone. What is left running is a job: see `process`. To "
    "read, search and edit files use the other tools."
)
_SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {
        "command": {"type": "string"},
        "timeoutMs": {
            "type": "integer",
            "minimum": 1,
            "maximum": LONGEST_TIMEOUT_MS,
            "description": f"Default {DEFAULT_TIMEOUT_MS}, at most {LONGEST_TIMEOUT_MS}.",
        },
        "cwd": {"type": "string", "description": "Where this one command starts."},
        "description": {"type": "string", "description": "What it is for."},
        "background": {"type": "boolean", "description": "Start it as a job: servers, watchers."},
    },
    "required": ["command"],
    "additionalProperties": False,
}
_ALIASES = {
    "cmd": "command",
    "script": "command",
    "timeout_ms": "timeoutMs",
    "workdir": "cwd",
    "working_directory": "cwd",
    "run_in_background": "background",
    "is_background": "background",
}


def bash_tool() -> DefinedTool:
    """Create the `bash` tool."""
    return define_tool(
        ToolSpec(
            "bash",
            _DESCRIPTION,
            _SCHEMA,
            run_lazily("indusagi.capabilities.tools.runs.bash"),
            title="Run a command",
            prepare=coerce_to(_SCHEMA, _ALIASES),
            terse=True,
        )
    )
