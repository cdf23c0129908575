"""An MCP server with many tools, without a library. `--state FILE` changes the description of its first tool."""

from __future__ import annotations

import json
import os
import sys

COUNT = 500


def main() -> None:
    """Answer requests on standard input."""
    state = sys.argv[1] if len(sys.argv) > 1 else ""
    first = "Count the files of a directory."
    if os.path.exists(state):
        with open(state, encoding="utf-8") as file:
            first = file.read()
    schema = {"type": "object", "properties": {"path": {"type": "string", "description": "The directory."}}}
    tools = [
        {
            "name": f"tool_{number}",
            "description": first if not number else f"Tool {number} of many.",
            "inputSchema": schema,
        }
        for number in range(COUNT)
    ]
    results: dict[str, object] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "many", "version": "1"},
        },
        "tools/list": {"tools": tools},
        "tools/call": {"content": [{"type": "text", "text": "42 files"}]},
        "ping": {},
    }
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            known = message["method"] in results
            error = {"code": -32601, "message": "unknown method"}
            answer: dict[str, object] = {"result": results[message["method"]]} if known else {"error": error}
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
            sys.stdout.flush()


main()
