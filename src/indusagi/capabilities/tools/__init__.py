"""The twelve native tools: one table, and every view of it derived.

A tool is loaded when it is asked for, and with it none of the libraries that it works with.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from indusagi.capabilities.tool import DefinedTool

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.capabilities.tools.bash import bash_tool as bash_tool
    from indusagi.capabilities.tools.edit import edit_tool as edit_tool
    from indusagi.capabilities.tools.find import find_tool as find_tool
    from indusagi.capabilities.tools.grep import grep_tool as grep_tool
    from indusagi.capabilities.tools.ls import ls_tool as ls_tool
    from indusagi.capabilities.tools.process import process_tool as process_tool
    from indusagi.capabilities.tools.read import read_tool as read_tool
    from indusagi.capabilities.tools.todo import todo_read_tool as todo_read_tool
    from indusagi.capabilities.tools.todo import todo_set_tool as todo_set_tool
    from indusagi.capabilities.tools.webfetch import webfetch_tool as web_fetch_tool
    from indusagi.capabilities.tools.webfetch import webfetch_tool as webfetch_tool
    from indusagi.capabilities.tools.websearch import websearch_tool as web_search_tool
    from indusagi.capabilities.tools.websearch import websearch_tool as websearch_tool
    from indusagi.capabilities.tools.write import write_tool as write_tool


class _Row(NamedTuple):
    name: str
    home: str
    only_looks: bool


# In the order a catalog shows it: those that only look come first.
_TABLE = (
    _Row("read", "read", only_looks=True),
    _Row("ls", "ls", only_looks=True),
    _Row("grep", "grep", only_looks=True),
    _Row("find", "find", only_looks=True),
    _Row("websearch", "websearch", only_looks=True),
    _Row("webfetch", "webfetch", only_looks=True),
    _Row("todo_read", "todo", only_looks=True),
    _Row("write", "write", only_looks=False),
    _Row("edit", "edit", only_looks=False),
    _Row("bash", "bash", only_looks=False),
    _Row("process", "process", only_looks=False),
    _Row("todo_set", "todo", only_looks=False),
)
_HOMES = {f"{row.name}_tool": row.home for row in _TABLE}
_ALIASES = {"web_fetch_tool": "webfetch_tool", "web_search_tool": "websearch_tool"}
"""The second name that a factory has: the parts of the tool's name set off."""
READ_ONLY_NAMES = tuple(row.name for row in _TABLE if row.only_looks)
MUTATING_NAMES = tuple(row.name for row in _TABLE if not row.only_looks)
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll] — factories are loaded by name, below
    *_HOMES,
    *_ALIASES,
    "READ_ONLY_NAMES",
    "MUTATING_NAMES",
    "native_tool",
    "native_tools",
    "web_fetch_tool",
    "web_search_tool",
]


def native_tools() -> tuple[DefinedTool, ...]:
    """Make the twelve tools, in the order of the table."""
    return tuple(_factory(name)() for name in _HOMES)


def native_tool(name: str) -> DefinedTool:
    """Make one of the tools.

    Raises:
        KeyError: There is none of this name.
    """
    return _factory(f"{name}_tool")()


def _factory(name: str) -> Callable[[], DefinedTool]:
    home = import_module(f"{__name__}.{_HOMES[name]}")
    return cast("Callable[[], DefinedTool]", getattr(home, name))


def __getattr__(name: str) -> object:
    name = _ALIASES.get(name, name)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _factory(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
