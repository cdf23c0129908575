"""Contract between an agent loop and a toolbox: descriptors, calls, content, outcomes, the runner."""

from indusagi.runtime.contract import JsonContentBlock as JsonContentBlock
from indusagi.runtime.contract import JsonSchema as JsonSchema
from indusagi.runtime.contract import Keep as Keep
from indusagi.runtime.contract import ProgressSink as ProgressSink
from indusagi.runtime.contract import TextContentBlock as TextContentBlock
from indusagi.runtime.contract import ToolBox as ToolBox
from indusagi.runtime.contract import ToolCall as ToolCall
from indusagi.runtime.contract import ToolContentBlock as ToolContentBlock
from indusagi.runtime.contract import ToolDescriptor as ToolDescriptor
from indusagi.runtime.contract import ToolOutcome as ToolOutcome
from indusagi.runtime.contract import ToolProgress as ToolProgress
from indusagi.runtime.contract import ToolResult as ToolResult
from indusagi.runtime.contract import ToolRunner as ToolRunner
from indusagi.runtime.contract import project_content as project_content

__all__ = [
    "JsonContentBlock",
    "TextContentBlock",
    "ToolContentBlock",
    "project_content",
    "JsonSchema",
    "Keep",
    "ProgressSink",
    "ToolBox",
    "ToolCall",
    "ToolDescriptor",
    "ToolOutcome",
    "ToolProgress",
    "ToolResult",
    "ToolRunner",
]
