"""A server with HTML in everything it says: names, descriptions, schemas, results, resources, prompts, its log.

Options: those of `peer`, `--state FILE`: a JSON object with another `description` of the tool.
"""

from __future__ import annotations

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from peer import Call, Peer, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from peer import Json

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+M8AAAMBAQDJ/pLvAAAAAElFTkSuQmCC"  # one pixel


def main() -> None:
    _, options = split(sys.argv[1:])
    peer = Peer("markup", options)
    path = options.get("state", "")

    def show(call: Call) -> Json:
        blocks = [
            {"type": "text", "text": f"{EVIL} {json.dumps(call.arguments)}"},
            {"type": "image", "mimeType": "image/png", "data": PNG},
            {"type": "image", "mimeType": "image/svg+xml", "data": EVIL},
            {"type": "image", "mimeType": "image/png", "data": '"onload="alert(3)'},
        ]
        return {"content": blocks, "structuredContent": {EVIL: EVIL}}

    properties: Json = {
        "text": {"type": "string", "description": EVIL, "default": EVIL},
        EVIL: {"enum": [EVIL, "plain"], "description": EVIL},
        "count": {"type": "integer"},
        "labels": {"type": "array", "items": {"type": "string"}},
        "options": {"type": "object"},
        "loud": {"type": "boolean"},
    }
    peer.add("show", show, properties, title=EVIL, annotations={"readOnlyHint": True})
    peer.tools[-1]["description"] = EVIL
    peer.add(f"tool {EVIL}", show)
    if path and os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            peer.tools[0]["description"] = json.load(file)["description"]
    peer.capabilities |= {"resources": {}, "prompts": {}}
    resource = {"uri": f"note:///{EVIL}", "name": EVIL, "description": EVIL}
    prompt = {"name": EVIL, "description": EVIL, "arguments": [{"name": EVIL, "description": EVIL}]}
    said = {"role": "user", "content": {"type": "text", "text": EVIL}}
    peer.methods |= {
        "resources/list": lambda call: {"resources": [resource]},
        "resources/templates/list": lambda call: {"resourceTemplates": []},
        "resources/read": lambda call: {"contents": [{"uri": call.params["uri"], "text": EVIL}]},
        "prompts/list": lambda call: {"prompts": [prompt]},
        "prompts/get": lambda call: {"messages": [said]},
    }
    sys.stderr.write(f"{EVIL}\n")
    peer.serve()


main()
