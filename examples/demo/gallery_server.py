"""A small MCP server without any library; its result has a text, an image and a resource."""

import json
import sys

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
TOOL = {
    "name": "show",
    "description": "Show the gallery: its catalogue, a picture and its rules.",
    "inputSchema": {"type": "object", "properties": {}},
}
CONTENT = [
    {"type": "text", "text": "\n".join(f"room {number}: picture {number}" for number in range(1, 21))},
    {"type": "image", "data": PICTURE, "mimeType": "image/png"},
    {"type": "resource", "resource": {"uri": "gallery://rules", "mimeType": "text/plain", "text": "Do not touch."}},
]


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
