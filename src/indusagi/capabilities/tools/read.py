"""`read`: show a file to the model as numbered lines, an image, pages, cells or a directory listing.

We read a text once and never load it as a whole. The result says which lines it shows, of how many, and how to
continue. We record the lines shown with a digest of the whole file, which `edit` and `write` check.
"""

from __future__ import annotations

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.budget import DEFAULT_PAGES, MAX_PAGES, STANDARD_BYTES, STANDARD_LINES
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool, run_lazily
from indusagi.capabilities.tools.paths import PATH_ALIASES
from indusagi.runtime.contract import JsonSchema

_ALIASES = {**PATH_ALIASES, "line": "offset", "start_line": "offset", "startLine": "offset"}
_PARAMETERS: JsonSchema = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1, "description": "Absolute, or relative to the workspace."},
        "offset": {"type": "integer", "description": "First line, from 1; negative: from the end."},
        "limit": {"type": "integer", "minimum": 1, "description": "How many lines."},
        "pages": {
            "type": "string",
            "description": f"Of a PDF: '3' or '3-5', {MAX_PAGES} at most; default: the first {DEFAULT_PAGES}.",
        },
    },
    "required": ["path"],
    "additionalProperties": False,
}
_DESCRIPTION = (
    "Read a file, a picture, a PDF, a notebook or a directory. Text comes as number, tab, "
    f"line (the number is not part of the file), {STANDARD_LINES:,} lines or "
    f"{STANDARD_BYTES // 1024} KiB at most; the last line names the next offset. Read a file "
    "before you edit it."
)


def read_tool() -> DefinedTool:
    """Create the `read` tool."""
    return define_tool(
        ToolSpec(
            "read",
            _DESCRIPTION,
            _PARAMETERS,
            run_lazily("indusagi.capabilities.tools.runs.read"),
            title="Read file",
            read_only=True,
            prepare=coerce_to(_PARAMETERS, _ALIASES),
            terse=True,
        )
    )
