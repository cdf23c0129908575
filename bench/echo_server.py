"""The quickest MCP server there can be in Python: one loop, one function, no thread.

A benchmark of clients needs a server that is no part of what it measures. It has one tool, or as
many as its argument says: `echo`, `echo1`, …
"""

from __future__ import annotations

import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TOOL: dict[str, Any] = {"name": "echo", "description": "Echo.", "inputSchema": {"type": "object"}}
HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "echo", "version": "1"},
}


def main() -> None:
    write, flush = sys.stdout.write, sys.stdout.flush
    more = range(1, int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    tools = [TOOL, *({**TOOL, "name": f"echo{number}"} for number in more)]
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method = message["method"]
        reply: dict[str, Any] = {}
        if method == "tools/call":
            text = message["params"]["arguments"]["text"]
            reply = {"content": [{"type": "text", "text": text}]}
        elif method == "tools/list":
            reply = {"tools": tools}
        elif method == "initialize":
            reply = HELLO
        error = {"code": -32601, "message": "unknown"}
        body = {"result": reply} if reply else {"error": error}
        write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}) + "\n")
        flush()


if __name__ == "__main__":
    main()
