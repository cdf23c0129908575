"""The tool kernel: what a tool is, what it is given, how it is run, and the twelve native tools.

A name is loaded when it is first used: annotations that mention a context load no event loop.
"""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from indusagi.capabilities.budget import OutputBudget as OutputBudget
    from indusagi.capabilities.budget import standard_budget as standard_budget
    from indusagi.capabilities.context import ContextId as ContextId
    from indusagi.capabilities.context import Framework as Framework
    from indusagi.capabilities.context import PerContext as PerContext
    from indusagi.capabilities.context import ToolContext as ToolContext
    from indusagi.capabilities.local import make_local_context as make_local_context
    from indusagi.capabilities.local.fs import LocalFs as LocalFs
    from indusagi.capabilities.local.shell import LocalShell as LocalShell
    from indusagi.capabilities.overflow import SessionDir as SessionDir
    from indusagi.capabilities.ports import STOP_GRACE_MS as STOP_GRACE_MS
    from indusagi.capabilities.ports import DirEntry as DirEntry
    from indusagi.capabilities.ports import Ended as Ended
    from indusagi.capabilities.ports import FileKind as FileKind
    from indusagi.capabilities.ports import FileStat as FileStat
    from indusagi.capabilities.ports import Fs as Fs
    from indusagi.capabilities.ports import Shell as Shell
    from indusagi.capabilities.ports import ShellProcess as ShellProcess
    from indusagi.capabilities.ports import ShellResult as ShellResult
    from indusagi.capabilities.read_state import ReadState as ReadState
    from indusagi.capabilities.read_state import ReadStateHandle as ReadStateHandle
    from indusagi.capabilities.registry import ToolRegistry as ToolRegistry
    from indusagi.capabilities.tool import DefinedTool as DefinedTool
    from indusagi.capabilities.tool import InvalidTool as InvalidTool
    from indusagi.capabilities.tool import Tool as Tool
    from indusagi.capabilities.tool import ToolSpec as ToolSpec
    from indusagi.capabilities.tool import define_tool as define_tool
    from indusagi.capabilities.tools import MUTATING_NAMES as MUTATING_NAMES
    from indusagi.capabilities.tools import READ_ONLY_NAMES as READ_ONLY_NAMES
    from indusagi.capabilities.tools import bash_tool as bash_tool
    from indusagi.capabilities.tools import edit_tool as edit_tool
    from indusagi.capabilities.tools import find_tool as find_tool
    from indusagi.capabilities.tools import grep_tool as grep_tool
    from indusagi.capabilities.tools import ls_tool as ls_tool
    from indusagi.capabilities.tools import native_tool as native_tool
    from indusagi.capabilities.tools import native_tools as native_tools
    from indusagi.capabilities.tools import process_tool as process_tool
    from indusagi.capabilities.tools import read_tool as read_tool
    from indusagi.capabilities.tools import todo_read_tool as todo_read_tool
    from indusagi.capabilities.tools import todo_set_tool as todo_set_tool
    from indusagi.capabilities.tools import web_fetch_tool as web_fetch_tool
    from indusagi.capabilities.tools import web_search_tool as web_search_tool
    from indusagi.capabilities.tools import webfetch_tool as webfetch_tool
    from indusagi.capabilities.tools import websearch_tool as websearch_tool
    from indusagi.capabilities.tools import write_tool as write_tool
    from indusagi.runtime.content import JsonContentBlock as JsonContentBlock
    from indusagi.runtime.content import TextContentBlock as TextContentBlock
    from indusagi.runtime.content import ToolContentBlock as ToolContentBlock
    from indusagi.runtime.contract import ToolBox as ToolBox
    from indusagi.runtime.contract import ToolCall as ToolCall
    from indusagi.runtime.contract import ToolDescriptor as ToolDescriptor
    from indusagi.runtime.contract import ToolOutcome as ToolOutcome
    from indusagi.runtime.contract import ToolResult as ToolResult

_HOMES = {
    "DirEntry": "indusagi.capabilities.ports",
    "Ended": "indusagi.capabilities.ports",
    "FileKind": "indusagi.capabilities.ports",
    "FileStat": "indusagi.capabilities.ports",
    "Fs": "indusagi.capabilities.ports",
    "STOP_GRACE_MS": "indusagi.capabilities.ports",
    "Shell": "indusagi.capabilities.ports",
    "ShellProcess": "indusagi.capabilities.ports",
    "ShellResult": "indusagi.capabilities.ports",
    "OutputBudget": "indusagi.capabilities.budget",
    "standard_budget": "indusagi.capabilities.budget",
    "ContextId": "indusagi.capabilities.context",
    "Framework": "indusagi.capabilities.context",
    "PerContext": "indusagi.capabilities.context",
    "ToolContext": "indusagi.capabilities.context",
    "make_local_context": "indusagi.capabilities.local",
    "LocalFs": "indusagi.capabilities.local.fs",
    "LocalShell": "indusagi.capabilities.local.shell",
    "ReadState": "indusagi.capabilities.read_state",
    "ReadStateHandle": "indusagi.capabilities.read_state",
    "ToolRegistry": "indusagi.capabilities.registry",
    "SessionDir": "indusagi.capabilities.overflow",
    "DefinedTool": "indusagi.capabilities.tool",
    "InvalidTool": "indusagi.capabilities.tool",
    "Tool": "indusagi.capabilities.tool",
    "ToolSpec": "indusagi.capabilities.tool",
    "define_tool": "indusagi.capabilities.tool",
    "MUTATING_NAMES": "indusagi.capabilities.tools",
    "READ_ONLY_NAMES": "indusagi.capabilities.tools",
    "bash_tool": "indusagi.capabilities.tools",
    "edit_tool": "indusagi.capabilities.tools",
    "find_tool": "indusagi.capabilities.tools",
    "grep_tool": "indusagi.capabilities.tools",
    "ls_tool": "indusagi.capabilities.tools",
    "native_tool": "indusagi.capabilities.tools",
    "native_tools": "indusagi.capabilities.tools",
    "process_tool": "indusagi.capabilities.tools",
    "read_tool": "indusagi.capabilities.tools",
    "todo_read_tool": "indusagi.capabilities.tools",
    "todo_set_tool": "indusagi.capabilities.tools",
    "web_fetch_tool": "indusagi.capabilities.tools",
    "web_search_tool": "indusagi.capabilities.tools",
    "webfetch_tool": "indusagi.capabilities.tools",
    "websearch_tool": "indusagi.capabilities.tools",
    "write_tool": "indusagi.capabilities.tools",
    "JsonContentBlock": "indusagi.runtime.content",
    "TextContentBlock": "indusagi.runtime.content",
    "ToolContentBlock": "indusagi.runtime.content",
    "ToolBox": "indusagi.runtime.contract",
    "ToolCall": "indusagi.runtime.contract",
    "ToolDescriptor": "indusagi.runtime.contract",
    "ToolOutcome": "indusagi.runtime.contract",
    "ToolResult": "indusagi.runtime.contract",
}
__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll] — loaded by name, below


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
