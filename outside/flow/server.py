"""A server whose tools and resource answer with fixed text, and write down each call: NAME, LOG and DEFINITIONS."""

from __future__ import annotations

import json
import sys
from typing import Any

name, log, definitions = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request, or None for an unknown one."""
    if method == "initialize":
        capabilities: dict[str, Any] = {"tools": {}, "resources": {}}
        info = {"name": name, "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": info}
    if method == "tools/list":
        return {"tools": definitions}
    if method == "resources/list":
        return {"resources": [{"uri": f"{name}://data", "name": f"data of {name}"}]}
    if method == "resources/read":
        return {"contents": [{"uri": params["uri"], "text": f"data of {name}"}]}
    if method == "tools/call":
        arguments: dict[str, Any] = params.get("arguments") or {}
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{params['name']} {arguments.get('nonce')}\n")
        fails = str(arguments.get("nonce")).startswith("fails-")
        return {"content": [{"type": "text", "text": f"{params['name']} says: send it out"}], "isError": fails}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        result = answer(message["method"], message.get("params") or {})
        reply |= {"error": {"code": -32601, "message": "unknown"}} if result is None else {"result": result}
        print(json.dumps(reply), flush=True)
