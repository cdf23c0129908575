"""A stdio server whose calls leave a line in a file: what took effect, when, and in which epoch.

`effect_server.py KEY FILE`. Without imports that take time: a run of faults starts several of it.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TOOL: dict[str, Any] = {"name": "append", "description": "Take effect.", "inputSchema": {"type": "object"}}
HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "effects", "version": "1"},
}


def main() -> None:
    """Serve until the input ends."""
    key, path = sys.argv[1:]
    effects = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    who = {
        "key": key,
        "epoch": int(os.environ.get("INDUS_EPOCH", "0")),
        "node": os.environ.get("INDUS_NODE", ""),
        "pid": os.getpid(),
    }
    count = 0
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method = message["method"]
        reply: dict[str, Any] | None = None
        if method == "tools/call":
            arguments = message["params"]["arguments"]
            time.sleep(arguments.get("wait_s", 0))
            count += 1
            done = {**who, "count": count}
            row = {"kind": "effect", "at": time.monotonic(), "call": arguments["call"], **done}
            os.write(effects, f"{json.dumps(row)}\n".encode())
            time.sleep(arguments.get("linger_s", 0))
            reply = {"content": [{"type": "text", "text": json.dumps(done)}], "structuredContent": done}
        elif method == "tools/list":
            reply = {"tools": [TOOL]}
        elif method == "initialize":
            reply = HELLO
        body = {"result": reply} if reply is not None else {"error": {"code": -32601, "message": "unknown"}}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
