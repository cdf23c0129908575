"""An MCP server with many tools, without a library: `[FILE [COUNT [KIND]]]`. FILE has the text of its first tool."""

from __future__ import annotations

import json
import os
import sys

COUNT = 500
NAMED = {
    "gallery": {
        "count_photos": "Count the photos of an album.",
        "search_photos": "Search photos by place, date and people.",
        "list_albums": "List the albums, newest first.",
        "create_album": "Create an album of photos.",
        "share_album": "Share an album by a link.",
        "add_caption": "Write the caption of a photo.",
        "find_duplicates": "Find photos that are there twice.",
        "rotate_photo": "Rotate a photo by 90 degrees.",
        "read_exif": "Read when and where a photo was taken.",
        "list_people": "List the people that photos show.",
        "export_album": "Export an album as a ZIP file.",
        "delete_photo": "Delete a photo.",
    },
    "notes": {
        "add_note": "Add a note.",
        "search_notes": "Search notes by words and tags.",
        "read_note": "Read a note as Markdown.",
    },
    "weather": {
        "forecast": "Forecast the weather of a place for ten days.",
        "current": "Report the weather of a place right now.",
        "alerts": "List warnings of storms and floods.",
        "history": "Look up the weather of a day in the past.",
        "find_place": "Find a place by its name.",
    },
}
"""The tools of a server as someone would write it, by its kind."""
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+M8AAAMBAQDJ/pLvAAAAAElFTkSuQmCC"  # one pixel


def main() -> None:
    """Answer requests on standard input."""
    state = sys.argv[1] if len(sys.argv) > 1 else ""
    kind = sys.argv[3] if len(sys.argv) > 3 else ""
    named = [*NAMED[kind].items()] if kind else [("tool_0", "Count the files of a directory.")]
    first = named[0][1]
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
    long = "a_tool_with_a_name_that_is_longer_than_a_narrow_window_is_wide"
    listed = [
        named[number] if number < len(named) else (long if number == 3 else f"tool_{number}", f"Tool {number} of many.")
        for number in range(int(sys.argv[2]) if len(sys.argv) > 2 else COUNT)
    ]
    tools = [
        {"name": name, "description": text if number else first, "inputSchema": schema}
        for number, (name, text) in enumerate(listed)
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
