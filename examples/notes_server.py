"""A small MCP server without any library, used by the examples in this folder."""

import json
import sys

NOTES: list[str] = []
TOOL = {
    "name": "add",
    "description": "Add a note.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "notes", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call" and params["name"] == "add":
        NOTES.append(params["arguments"]["text"])
        return {"content": [{"type": "text", "text": f"{len(NOTES)} note(s)"}]}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params"))
        name = message.get("params", {}).get("name", message["method"])
        error = {"code": -32601, "message": f"unknown tool or method {name!r}"}
        reply = {"result": result} if result is not None else {"error": error}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
