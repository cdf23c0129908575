"""A server that repeats what it was given wherever a server can write: `gossip.py MODE DIARY [WORD …]`.

Given are its words, and the variables that start with `TELL_`. It writes them to the diary as they came, and says them
plainly, as JSON, percent-encoded and in base64. Modes: `talks` (its tools fail, or answer, with all of it), `dies`
before the handshake, `babbles` (what it writes isn't JSON-RPC).
"""

from __future__ import annotations

import base64
import json
import os
import sys
from urllib.parse import quote

# Started with -I as well, when Python does not look beside the script by itself.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from peer import Call, Peer, RpcError, complain, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from peer import Json

MODE, DIARY, *WORDS = sys.argv[1:]
GIVEN = [*WORDS, *(value for name, value in sorted(os.environ.items()) if name.startswith("TELL_"))]


def tell(given: str) -> str:
    data = given.encode()
    return f"{given} {json.dumps(given)} {quote(given, safe='')} {base64.b64encode(data).decode()} {data!r}"


GOSSIP = "\n".join(f"I was given {tell(given)}" for given in GIVEN)


def answer(call: Call) -> Json:
    """Answer with it."""
    peer.notify("notifications/message", {"level": "error", "data": GOSSIP})
    call.progress(1, 2, GOSSIP)
    return text(GOSSIP, structuredContent={"said": GOSSIP})


def err(call: Call) -> Json:
    """Answer that it failed, and why."""
    complain(GOSSIP + "\n")
    return text(GOSSIP, isError=True)


def fail(call: Call) -> Json:
    """Refuse the request, and say why."""
    raise RpcError(-32000, GOSSIP, {"given": GIVEN, "said": GOSSIP})


def end(call: Call) -> Json:
    """End in the middle of the call."""
    complain(GOSSIP + "\n")
    os._exit(1)


with open(DIARY, "a", encoding="utf-8") as diary:
    diary.write("".join(f"{given}\n" for given in GIVEN))
complain(GOSSIP + "\n")
if MODE == "dies":
    sys.exit(GOSSIP)
if MODE == "babbles":
    sys.stdout.write(GOSSIP + "\n")
    sys.stdout.flush()
peer = Peer("gossip", {"era": "legacy"})
for run in (answer, err, fail, end):
    peer.add(run.__name__, run)
peer.add("confide", answer)
peer.tools[-1]["description"] = GOSSIP
peer.serve()
