"""A small MCP server without any library: it counts its calls, and writes the id of each into a file."""

import json
import os
import sys

TOOL = {
    "name": "count",
    "description": "Count a call.",
    "inputSchema": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
}
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "counter", "version": "1"},
}


def main():
    calls = 0
    journal = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method, reply = message["method"], None
        if method == "tools/call":
            calls += 1
            os.write(journal, message["params"]["arguments"]["id"].encode() + b"\n")
            found = {"calls": calls, "pid": os.getpid(), "node": os.getppid()}
            reply = {"content": [{"type": "text", "text": str(calls)}], "structuredContent": found}
        elif method == "tools/list":
            reply = {"tools": [TOOL]}
        elif method == "initialize":
            reply = HELLO
        body = {"error": {"code": -32601, "message": "unknown"}} if reply is None else {"result": reply}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)


if __name__ == "__main__":
    main()
