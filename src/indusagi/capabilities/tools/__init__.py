"""The twelve native tools: one table, and every view of it derived.

Importing this loads none of the libraries that the tools work with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.capabilities.tools.bash import bash_tool as bash_tool
from indusagi.capabilities.tools.edit import edit_tool as edit_tool
from indusagi.capabilities.tools.find import find_tool as find_tool
from indusagi.capabilities.tools.grep import grep_tool as grep_tool
from indusagi.capabilities.tools.ls import ls_tool as ls_tool
from indusagi.capabilities.tools.process import process_tool as process_tool
from indusagi.capabilities.tools.read import read_tool as read_tool
from indusagi.capabilities.tools.todo import todo_read_tool as todo_read_tool
from indusagi.capabilities.tools.todo import todo_set_tool as todo_set_tool
from indusagi.capabilities.tools.webfetch import webfetch_tool as webfetch_tool
from indusagi.capabilities.tools.websearch import websearch_tool as websearch_tool
from indusagi.capabilities.tools.write import write_tool as write_tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.capabilities.tool import DefinedTool

TOOL_FACTORIES: tuple[Callable[[], DefinedTool], ...] = (
    read_tool,
    ls_tool,
    grep_tool,
    find_tool,
    websearch_tool,
    webfetch_tool,
    todo_read_tool,
    write_tool,
    edit_tool,
    bash_tool,
    process_tool,
    todo_set_tool,
)
"""Everything, in the order a catalog shows it: those that only look come first."""


def native_tools() -> tuple[DefinedTool, ...]:
    """Make the twelve tools, in the order of the table."""
    return tuple(make() for make in TOOL_FACTORIES)


def native_tool(name: str) -> DefinedTool:
    """Make one of the tools.

    Raises:
        KeyError: There is none of this name.
    """
    return _FACTORIES[name]()


_DEFINED = native_tools()
_FACTORIES = dict(zip((tool.name for tool in _DEFINED), TOOL_FACTORIES, strict=True))
READ_ONLY_NAMES = tuple(tool.name for tool in _DEFINED if tool.read_only)
MUTATING_NAMES = tuple(tool.name for tool in _DEFINED if not tool.read_only)
