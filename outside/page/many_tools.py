"""An MCP server with many tools, without a library: `[FILE [COUNT]]`. The file has the text of its first tool."""

from __future__ import annotations

import json
import os
import sys

COUNT = 500
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+M8AAAMBAQDJ/pLvAAAAAElFTkSuQmCC"  # one pixel


def main() -> None:
    """Answer requests on standard input."""
    state = sys.argv[1] if len(sys.argv) > 1 else ""
    first = "Count the files of a directory."
    if os.path.exists(state):
        with open(state, encoding="utf-8") as file:
            first = file.read()
    schema = {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The directory."},
            "kind": {"enum": ["files", "directories"], "default": "files"},
            "patterns": {"type": "array", "items": {"type": "string"}},
            "hidden": {"type": "boolean"},
        },
    }
    tools = [
        {
            "name": f"tool_{number}"
            if number != 3
            else "a_tool_with_a_name_that_is_longer_than_a_narrow_window_is_wide",
            "description": first if not number else f"Tool {number} of many.",
            "inputSchema": schema,
        }
        for number in range(int(sys.argv[2]) if len(sys.argv) > 2 else COUNT)
    ]
    blocks = [{"type": "text", "text": "42 files"}, {"type": "image", "mimeType": "image/png", "data": PICTURE}]
    message = {"role": "user", "content": {"type": "text", "text": "Please count the files."}}
    results: dict[str, object] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
            "serverInfo": {"name": "many", "version": "1"},
        },
        "tools/list": {"tools": tools},
        "tools/call": {"content": blocks},
        "resources/list": {
            "resources": [{"uri": "count://today", "name": "today", "description": "The count of today."}]
        },
        "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "count://{day}", "name": "day"}]},
        "resources/read": {"contents": [{"uri": "count://today", "text": "42 files today"}]},
        "prompts/list": {"prompts": [{"name": "count", "arguments": [{"name": "path", "required": True}]}]},
        "prompts/get": {"messages": [message]},
        "ping": {},
    }
    sys.stderr.write("counting\n")
    sys.stderr.flush()
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            known = message["method"] in results
            error = {"code": -32601, "message": "unknown method"}
            answer: dict[str, object] = {"result": results[message["method"]]} if known else {"error": error}
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
            sys.stdout.flush()


main()
