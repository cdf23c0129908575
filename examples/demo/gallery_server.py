"""A small MCP server without any library. Its description comes from a file beside it, if there is one.

So the demo can publish another release of it, as servers that are started with `npx` or `uvx` change between two starts.
"""

import json
import sys
from pathlib import Path

RELEASE = Path(__file__).with_name("gallery_release.txt")
TOOL = {
    "name": "show",
    "description": RELEASE.read_text(encoding="utf-8") if RELEASE.exists() else "Show the pictures of the gallery.",
    "inputSchema": {"type": "object", "properties": {}},
}
CONTENT = [{"type": "text", "text": "\n".join(f"room {number}: picture {number}" for number in range(1, 21))}]


def answer(method):
    if method == "initialize":
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "gallery", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    return {"content": CONTENT} if method == "tools/call" else None


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"])
        error = {"code": -32601, "message": f"{message['method']} is unknown"}
        reply = {"result": result} if result is not None else {"error": error}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
