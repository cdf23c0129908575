"""`ls`: what is in a directory, and in those below it as far as asked for."""

from __future__ import annotations

from indusagi.capabilities.backends import FileKind, FileStat
from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.files.shown import shown_name
from indusagi.capabilities.lenient import lenient
from indusagi.capabilities.tool import DefinedTool, ToolSpec, define_tool
from indusagi.capabilities.tools._ls_lines import render, sized
from indusagi.capabilities.tools._ls_tree import MOST_ENTRIES, Choice, Tree
from indusagi.capabilities.tools._read_folder import not_there
from indusagi.capabilities.tools.paths import PATH_ALIASES, path_given, path_trouble
from indusagi.core.json import JsonObject
from indusagi.core.within import is_within, parts_below
from indusagi.runtime.contract import JsonSchema, ToolResult

_DEEPEST = 3
_MOST_PATTERNS = 100
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
            "maximum": _DEEPEST,
            "description": f"Levels: 1 (default) to {_DEEPEST}.",
        },
        "ignore": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Names to leave out: *.log, dist/.",
        },
    },
    "additionalProperties": False,
}
_DESCRIPTION = (
    "List a directory, with sizes. Dot files are counted, what git ignores is marked and not "
    f"entered. {MOST_ENTRIES:,} entries at most. Use find to search for names."
)


def ls_tool() -> DefinedTool:
    """Make the tool that lists directories."""
    return define_tool(
        ToolSpec(
            "ls",
            _DESCRIPTION,
            _PARAMETERS,
            _run,
            title="List directory",
            read_only=True,
            prepare=lenient(_PARAMETERS, _ALIASES),
            terse=True,
        )
    )


async def _run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    path = path_given(arguments)
    patterns = _patterns(arguments)
    if len(patterns) > _MOST_PATTERNS:
        return ToolResult.error(
            f"ignore holds {len(patterns):,} patterns, {_MOST_PATTERNS} at most are accepted: use"
            " fewer and wider ones",
            code="invalid_pattern",
        )
    try:
        found = await ctx.fs.stat(path)
        resolved = await ctx.fs.resolve(path)
    except OSError as exc:
        return await not_there(exc, path, ctx)
    name = shown_name(await _name(resolved, ctx))
    if found.kind is not FileKind.DIRECTORY:
        return _one(found, name, resolved)
    depth = arguments.get("depth")
    choice = Choice(
        depth=depth if isinstance(depth, int) else 1,
        show_hidden=arguments.get("showHidden") is True,
        patterns=patterns,
    )
    try:
        tree = await Tree.grow(ctx.fs, path, choice)
    except OSError as exc:
        return path_trouble(exc, path)
    return ToolResult.text(render(name, tree), path=resolved, **tree.counts())


async def _name(resolved: str, ctx: ToolContext) -> str:
    """Give the name under which a model knows a path: relative where it lies in the cwd."""
    try:
        cwd = await ctx.fs.resolve(ctx.cwd)
    except OSError:
        return resolved
    return "/".join(parts_below(resolved, cwd)) or "." if is_within(resolved, cwd) else resolved


def _patterns(arguments: JsonObject) -> tuple[str, ...]:
    given = arguments.get("ignore")
    listed = given if isinstance(given, list) else []
    return tuple(pattern for pattern in listed if isinstance(pattern, str))


def _one(found: FileStat, name: str, resolved: str) -> ToolResult:
    line = f"{name}  {sized(found.size)}" if found.kind is FileKind.FILE else f"{name} (special)"
    return ToolResult.text(line, path=resolved, kind=str(found.kind), size=found.size)
