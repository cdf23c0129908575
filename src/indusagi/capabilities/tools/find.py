"""`find`: find files and directories by name."""

from __future__ import annotations

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool, run_lazily
from indusagi.capabilities.tools.paths import PATH_ALIASES
from indusagi.core.json import JsonValue
from indusagi.runtime.contract import JsonSchema

_KINDS = {
    "any": None,
    "all": None,
    "f": "file",
    "files": "file",
    "d": "dir",
    "directory": "dir",
    "directories": "dir",
    "folder": "dir",
    "l": "link",
    "symlink": "link",
}
"""Names used by other tools."""
_SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "Part of a name, or a glob: *.py, src/**/*.{c,h}."},
        "path": {"type": "string", "description": "Default: the workspace."},
        "type": {"type": "string", "enum": ["file", "dir", "link"]},
        "limit": {"type": "integer", "minimum": 1, "description": "Default 500, at most 10000."},
        "sort": {"type": "string", "enum": ["path", "mtime"], "description": "Default: path."},
        "noIgnore": {"type": "boolean", "description": "Find ignored files too."},
        "hidden": {"type": "boolean", "description": "false: no dot files."},
    },
    "required": ["query"],
    "additionalProperties": False,
}
_ALIASES = {**PATH_ALIASES, "pattern": "query", "glob": "query", "name": "query", "no_ignore": "noIgnore"}
_DESCRIPTION = (
    "Find files and directories by name. Without glob characters the query is part of a name, "
    "in any case. Honours .gitignore. Use grep to search in files."
)


def find_tool() -> DefinedTool:
    """Create the `find` tool."""
    prepare = coerce_to(_SCHEMA, _ALIASES)

    def translate_kind(arguments: JsonValue) -> JsonValue:
        prepared = prepare(arguments)
        kind = prepared.get("type") if isinstance(prepared, dict) else None
        if isinstance(prepared, dict) and isinstance(kind, str) and kind in _KINDS:
            own_kind = _KINDS[kind]
            prepared = {name: value for name, value in prepared.items() if name != "type"}
            return prepared if own_kind is None else {**prepared, "type": own_kind}
        return prepared

    spec = ToolSpec(
        "find",
        _DESCRIPTION,
        _SCHEMA,
        run_lazily("indusagi.capabilities.tools.runs.find"),
        title="Find files",
        read_only=True,
        prepare=translate_kind,
        terse=True,
    )
    return define_tool(spec)
