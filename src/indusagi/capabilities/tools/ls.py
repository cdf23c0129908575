"""`ls`: list a directory and its subdirectories up to a depth."""

from __future__ import annotations

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.budget import MOST_ENTRIES
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool, run_lazily
from indusagi.capabilities.tools.paths import PATH_ALIASES
from indusagi.runtime.contract import JsonSchema

_MAX_DEPTH = 3
_ALIASES = {
    **PATH_ALIASES,
    "directory": "path",
    "dir": "path",
    "dir_path": "path",
    "show_hidden": "showHidden",
    "hidden": "showHidden",
    "all": "showHidden",
    "exclude": "ignore",
}
_PARAMETERS: JsonSchema = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "Default: the workspace."},
        "showHidden": {"type": "boolean", "description": "List dot files too."},
        "depth": {
            "type": "integer",
            "minimum": 1,
            "maximum": _MAX_DEPTH,
            "description": f"Levels: 1 (default) to {_MAX_DEPTH}.",
        },
        "ignore": {"type": "array", "items": {"type": "string"}, "description": "Names to leave out: *.log, dist/."},
    },
    "additionalProperties": False,
}
_DESCRIPTION = (
    "List a directory, with sizes. Dot files are counted, what git ignores is marked and not "
    f"entered. {MOST_ENTRIES:,} entries at most. Use find to search for names."
)


def ls_tool() -> DefinedTool:
    """Create the `ls` tool."""
    return define_tool(
        ToolSpec(
            "ls",
            _DESCRIPTION,
            _PARAMETERS,
            run_lazily("indusagi.capabilities.tools.runs.ls"),
            title="List directory",
            read_only=True,
            prepare=coerce_to(_PARAMETERS, _ALIASES),
            terse=True,
        )
    )
