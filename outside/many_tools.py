"""An MCP server with many tools that do nothing: `python -m outside.many_tools SERVER`, plain lines of JSON.

Its tools are those of the tests (`tests.support.searched`), 527 of six servers together.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.support.searched import make_tools


def main(server: str) -> None:
    """Answer until the end of the input."""
    tools = [
        {"name": tool.name.partition("__")[2], "description": tool.description, "inputSchema": tool.parameters}
        for tool in make_tools()
        if tool.name.startswith(f"{server}__")
    ]
    info = {"name": server, "version": "1"}
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        params: dict[str, Any] = asked.get("params", {})
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": params.get("protocolVersion"),
                "capabilities": {"tools": {}},
                "serverInfo": info,
            },
            "tools/list": {"tools": tools},
            "tools/call": {"content": [{"type": "text", "text": "done"}]},
            "ping": {},
        }
        if "id" in asked:
            answer = results.get(asked["method"])
            rest: dict[str, Any] = (
                {"error": {"code": -32601, "message": "unknown"}} if answer is None else {"result": answer}
            )
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **rest}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
