"""The twelve native tools, in one table. First use imports a tool's module, but not the libraries it needs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from indusagi.capabilities.tool import DefinedTool

if TYPE_CHECKING:
    from indusagi.capabilities.tools.bash import bash_tool as bash_tool
    from indusagi.capabilities.tools.edit import edit_tool as edit_tool
    from indusagi.capabilities.tools.edit import write_tool as write_tool
    from indusagi.capabilities.tools.find import find_tool as find_tool
    from indusagi.capabilities.tools.grep import grep_tool as grep_tool
    from indusagi.capabilities.tools.ls import ls_tool as ls_tool
    from indusagi.capabilities.tools.process import process_tool as process_tool
    from indusagi.capabilities.tools.read import read_tool as read_tool
    from indusagi.capabilities.tools.todo import todo_read_tool as todo_read_tool
    from indusagi.capabilities.tools.todo import todo_set_tool as todo_set_tool
    from indusagi.capabilities.tools.web import webfetch_tool as web_fetch_tool
    from indusagi.capabilities.tools.web import webfetch_tool as webfetch_tool
    from indusagi.capabilities.tools.web import websearch_tool as web_search_tool
    from indusagi.capabilities.tools.web import websearch_tool as websearch_tool


# In catalog order: read-only tools first, each with its module.
_READING = {
    "read": "read",
    "ls": "ls",
    "grep": "grep",
    "find": "find",
    "websearch": "web",
    "webfetch": "web",
    "todo_read": "todo",
}
_MUTATING = {"write": "edit", "edit": "edit", "bash": "bash", "process": "process", "todo_set": "todo"}
_HOMES = {f"{name}_tool": home for name, home in (_READING | _MUTATING).items()}
_ALIASES = {"web_fetch_tool": "webfetch_tool", "web_search_tool": "websearch_tool"}
"""Alternative names of factories, with an underscore."""
READ_ONLY_NAMES = tuple(_READING)
MUTATING_NAMES = tuple(_MUTATING)
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
    """Create the twelve tools, in table order."""
    return tuple(_load_factory(name)() for name in _HOMES)


def native_tool(name: str) -> DefinedTool:
    """Create one of the tools. Raises `KeyError` if there's no such tool."""
    return _load_factory(f"{name}_tool")()


def _load_factory(name: str) -> Callable[[], DefinedTool]:
    home = import_module(f"{__name__}.{_HOMES[name]}")
    return cast("Callable[[], DefinedTool]", getattr(home, name))


def __getattr__(name: str) -> object:
    name = _ALIASES.get(name, name)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _load_factory(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
