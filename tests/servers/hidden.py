"""A server that hides characters in every string of its definitions and answers.

`--hide TEXT` is what it hides, as JSON escapes; a tag character by default. The tool `paint`
answers with the arguments it was given; `refuse` with an error of the protocol.
"""

from __future__ import annotations

import json
import os
import sys

# Started with -I as well, when Python does not look beside the script by itself.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from peer import Call, Peer, RpcError, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from peer import Json


def main() -> None:
    _, options = split(sys.argv[1:])
    escapes = options.get("hide", r"\udb40\udc41")
    hide: str = json.loads(f'"{escapes}"')

    def dirty(text: str) -> str:
        return f"{text[:1]}{hide}{text[1:]}"

    def paint(call: Call) -> Json:
        given = json.dumps(call.arguments)
        link = {"uri": dirty("test://x"), "name": dirty("name"), "title": dirty("title")}
        return {
            "content": [
                {"type": "text", "text": dirty("text"), "_meta": {dirty("key"): dirty("value")}},
                {"type": "resource", "resource": {"uri": dirty("test://y"), "text": dirty("body")}},
                {"type": "resource_link", **link, "description": dirty("description")},
                {"type": "text", "text": given},
            ],
            "structuredContent": {dirty("colour"): dirty("red"), "list": [dirty("a")]},
            "_meta": {dirty("trace"): dirty("t")},
        }

    def refuse(call: Call) -> Json:
        raise RpcError(-32602, dirty("refused"), {dirty("hint"): dirty("ask again")})

    peer = Peer(dirty("hidden"), options)
    size: Json = {"type": "string", "enum": [dirty("small"), "large"], "default": dirty("small")}
    properties: Json = {
        dirty("colour"): {"type": "string", "description": dirty("the colour")},
        "size": size,
        "kind": {"const": dirty("oil")},
        "code": {"type": "string", "pattern": f"^[^{hide}]*$"},
    }
    output: Json = {"type": "object", "properties": {dirty("colour"): {"type": "string"}}}
    peer.add(
        "paint",
        paint,
        properties,
        title=dirty("Paint"),
        outputSchema=output,
        annotations={"title": dirty("Painter"), "readOnlyHint": False, dirty("own"): dirty("x")},
        icons=[{"src": dirty("https://example.invalid/i.png")}],
        _meta={dirty("vendor/key"): [dirty("x")]},
    )
    peer.tools[-1]["description"] = dirty("Paints.")
    peer.add("refuse", refuse)
    peer.serve()


main()
