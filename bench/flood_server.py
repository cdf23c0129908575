"""An MCP server over stdio that floods: it writes lines without end, soon after its start.

Its argument says what it floods with: `log`, `progress`, `list` (list_changed), `junk` (lines that
are not JSON) or `stderr`. It answers as `echo_server` does.
"""

from __future__ import annotations

import os
import sys
import threading

# Beside it: a server is started as a file, without the package.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import echo_server

NOTICE = '{"jsonrpc": "2.0", "method": "notifications/%s", "params": %s}\n'
LINES = {
    "log": NOTICE % ("message", '{"level": "info", "data": "a line of a log, of common length"}'),
    "progress": NOTICE % ("progress", '{"progressToken": 7, "progress": 1, "message": "on"}'),
    "list": NOTICE % ("tools/list_changed", "{}"),
    "junk": "a line that a library printed where only the protocol may stand\n",
    "stderr": "a line of a log, of common length\n",
}
BLOCK = 64 * 1024


def flood(kind: str) -> None:
    """Write whole lines as fast as the pipe takes them."""
    line = LINES[kind].encode()
    block = line * (BLOCK // len(line))
    target = 2 if kind == "stderr" else 1
    while True:
        os.write(target, block)


def main() -> None:
    """Serve as the echo server does, and flood in a thread."""
    kind = sys.argv.pop(1)
    # Not at once: the handshake is not what is measured.
    threading.Timer(0.5, flood, [kind]).start()
    echo_server.main()


if __name__ == "__main__":
    main()
