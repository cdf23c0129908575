"""`grep`: search file contents for a pattern."""

from __future__ import annotations

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool, run_lazily
from indusagi.capabilities.tools.paths import PATH_ALIASES
from indusagi.core.json import JsonValue
from indusagi.runtime.contract import JsonSchema

ALIASES = {
    **PATH_ALIASES,
    "query": "pattern",
    "regex": "pattern",
    "output_mode": "mode",
    "include": "glob",
    "max_matches": "maxMatches",
    "head_limit": "maxMatches",
    "no_ignore": "noIgnore",
    "fixed_strings": "literal",
    "-A": "after",
    "-B": "before",
    "-C": "context",
}
_MODES = {"files_with_matches": "files", "filesWithMatches": "files"}
_ANY_CASE = {
    **dict.fromkeys(("-i", "ignoreCase", "ignore_case"), True),
    **dict.fromkeys(("caseInsensitive", "case_insensitive"), True),
    **dict.fromkeys(("caseSensitive", "case_sensitive"), False),
}
"""Boolean arguments about case, with the value that means case-insensitive."""
_ALWAYS = ("-n", "lineNumbers", "line_numbers")
"""Arguments for behavior that's always on."""
_SCHEMA: JsonSchema = {
    "type": "object",
    "properties": {
        "pattern": {"type": "string", "description": "Regular expression."},
        "path": {"type": "string", "description": "Directory or file. Default: the workspace."},
        "glob": {"type": "string", "description": "Only files like *.ts, src/**, !*.min.js."},
        "type": {"type": "string", "description": "Only py, js, rust, md, ..."},
        "mode": {
            "type": "string",
            "enum": ["content", "files", "count"],
            "description": "Lines (default), names of files, or counts.",
        },
        "flags": {"type": "string", "description": "i: any case; s: dot matches newlines; x: ignore spaces."},
        "before": {"type": "integer", "minimum": 0, "description": "Lines before a match."},
        "after": {"type": "integer", "minimum": 0},
        "context": {"type": "integer", "minimum": 0, "description": "Lines before and after."},
        "literal": {"type": "boolean", "description": "Pattern is plain text."},
        "multiline": {"type": "boolean", "description": "Match across lines."},
        "noIgnore": {"type": "boolean", "description": "Search ignored files too."},
        "maxMatches": {"type": "integer", "minimum": 1, "description": "Default 200, at most 5000."},
        "offset": {"type": "integer", "minimum": 0, "description": "Matches to skip."},
    },
    "required": ["pattern"],
    "additionalProperties": False,
}
_DESCRIPTION = (
    "Search file contents with ripgrep: case-sensitive, honours .gitignore, skips binary files. "
    "Answers path:line: text. Prefer this to grep in a shell."
)


def rename_arguments(arguments: JsonValue) -> JsonValue:
    """Translate the names and values of other search tools."""
    if not isinstance(arguments, dict):
        return arguments
    renamed = {name: value for name, value in arguments.items() if name not in _ALWAYS}
    mode, flags = renamed.get("mode"), renamed.get("flags")
    if isinstance(mode, str):
        renamed["mode"] = _MODES.get(mode, mode)
    flags = flags.replace("-", "") if isinstance(flags, str) else flags
    case = {name: renamed.pop(name) for name in _ANY_CASE if isinstance(renamed.get(name), bool)}
    if any(value is _ANY_CASE[name] for name, value in case.items()) and isinstance(flags or "", str):
        flags = f"{flags or ''}i"
    return renamed if flags is None else {**renamed, "flags": flags}


def grep_tool() -> DefinedTool:
    """Create the `grep` tool."""
    prepare = coerce_to(_SCHEMA, ALIASES)
    spec = ToolSpec(
        "grep",
        _DESCRIPTION,
        _SCHEMA,
        run_lazily("indusagi.capabilities.tools.runs.grep"),
        title="Search in files",
        read_only=True,
        prepare=lambda arguments: rename_arguments(prepare(arguments)),
        terse=True,
    )
    return define_tool(spec)
