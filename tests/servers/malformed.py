"""Answers and tool definitions that are wrong on purpose, by the name of what is wrong with them.

Nothing but values, so that tests can import the tables and go through all of them.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b]52;c;aGFja2Vk\x07"
"""Colours, a window title, and a write to the clipboard."""
BIDI = "\u202eleft\u2066 right\u2069"
TAGS = "".join(chr(0xE0000 + ord(letter)) for letter in "obey")
"""Letters that no terminal shows and a model may read."""
DIRTY = f"clean {ESCAPES} {BIDI} {TAGS} a\u200bb\x00c \ufeff\x9b2J end"
GOOD: dict[str, Any] = {"content": [{"type": "text", "text": "good"}]}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


def frame(identity: Any, **rest: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": identity, **rest}).encode() + b"\n"


def _result(result: Any) -> Callable[[int], bytes]:
    return lambda identity: frame(identity, result=result)


def _error(error: Any) -> Callable[[int], bytes]:
    return lambda identity: frame(identity, error=error)


def _content(*blocks: Any) -> Callable[[int], bytes]:
    return _result({"content": list(blocks)})


def _nested(levels: int) -> Callable[[int], bytes]:
    head = '{"jsonrpc":"2.0","id":%d,"result":{"content":'
    body = "[" * levels + "]" * levels + "}}\n"
    return lambda identity: (head % identity + body).encode()


ANSWERS: dict[str, Callable[[int], bytes]] = {
    "null": _result(None),
    "list": _result([1, 2]),
    "string": _result("text"),
    "batch": lambda identity: b"[" + frame(identity, result=GOOD).rstrip() + b"]\n",
    "batch-empty": lambda identity: b"[]\n" + frame(identity, result=GOOD),
    "unknown-type": _content({"type": "hologram", "layers": [1]}),
    "no-type": _content({"text": "typeless"}),
    "block-string": _content("bare"),
    "content-string": _result({"content": "bare"}),
    "content-object": _result({"content": {"type": "text", "text": "alone"}}),
    "content-null": _result({"content": None}),
    "content-missing": _result({"isError": False}),
    "text-null": _content({"type": "text", "text": None}),
    "image-without-type": _content({"type": "image", "data": "AAAA"}),
    "image-not-base64": _content({"type": "image", "data": "?!", "mimeType": "image/png"}),
    "error-flag-string": _result({**GOOD, "isError": "yes"}),
    "structured-list": _result({**GOOD, "structuredContent": [1, None]}),
    "meta-null": _result({**GOOD, "_meta": None, "isError": None, "structuredContent": None}),
    "result-type": _result({**GOOD, "resultType": "vendor/odd"}),
    "both": lambda identity: frame(identity, result=GOOD, error={"code": 1, "message": "too"}),
    "neither": lambda identity: frame(identity) + frame(identity, result=GOOD),
    "error-string": _error("bare"),
    "error-null": _error(None),
    "error-empty": _error({}),
    "error-code-string": _error({"code": "E1", "message": 5}),
    "float-id": lambda identity: frame(float(identity), result=GOOD),
    "string-id": lambda identity: frame(str(identity), result=GOOD),
    "null-id": lambda identity: frame(None, result=GOOD) + frame(identity, result=GOOD),
    "strange-id": lambda identity: frame(identity + 10**6, result=None) + frame(identity, result=GOOD),
    "object-id": lambda identity: frame({"n": 1}, result=GOOD) + frame(identity, result=GOOD),
    "no-version": lambda identity: json.dumps({"id": identity, "result": GOOD}).encode() + b"\n",
    "twice": lambda identity: frame(identity, result=GOOD) + frame(identity, result=None),
    "crlf": lambda identity: b"\r\n" + frame(identity, result=GOOD).rstrip() + b"\r\n\r\n",
    "byte-order-mark": lambda identity: b"\xef\xbb\xbf" + frame(identity, result=GOOD),
    "truncated": lambda identity: frame(identity, result=GOOD)[:-12] + b"\n",
    "bad-utf8": lambda identity: frame(identity, result=GOOD).replace(b"good", b"\xc3\x28 \xff"),
    "nan": _result({**GOOD, "structuredContent": {"n": float("nan"), "far": float("-inf")}}),
    "huge-number": lambda identity: frame(identity, result=GOOD).replace(
        b'"good"', b'"good", "n": ' + b"9" * 5000 + b', "e": 1e999'
    ),
    "surrogate": lambda identity: frame(identity, result=GOOD).replace(b"good", b"\\ud800 lone"),
    "dirty": _content({"type": "text", "text": DIRTY}),
    "deep": _nested(50_000),
    "collision": lambda identity: frame(identity, method="ping") + frame(identity, result=GOOD),
}
"""What a server may write instead of an answer to the request with that id."""

READABLE = {
    "batch", "batch-empty", "neither", "float-id", "string-id", "null-id", "strange-id",
    "object-id", "no-version", "twice", "crlf", "collision", "meta-null",
}  # fmt: skip
"""Those that leave no doubt about what was meant: the text "good"."""


def _tool(name: Any, **rest: Any) -> dict[str, Any]:
    return {"name": name, "description": "A tool.", "inputSchema": SCHEMA, **rest}


def _deep_schema(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"inner": schema}}
    return schema


TOOLS: dict[str, Any] = {
    "not-an-object": "tool",
    "null-row": None,
    "no-name": {"description": "A tool.", "inputSchema": SCHEMA},
    "integer-name": _tool(7),
    "empty-name": _tool(""),
    "duplicate": _tool("good_0", description="Another one of this name."),
    "spaces": _tool("has some spaces"),
    "dots": _tool("dotted.name/part"),
    "long-name": _tool("n" * 70),
    "emoji": _tool("party_🎉"),
    "qualifier": _tool("a__b"),
    "dirty-name": _tool(f"bad{ESCAPES}{TAGS}"),
    "no-schema": {"name": "odd", "description": "A tool."},
    "null-schema": _tool("odd", inputSchema=None),
    "list-schema": _tool("odd", inputSchema=["object"]),
    "empty-schema": _tool("odd", inputSchema={}),
    "string-type": _tool("odd", inputSchema={"type": "string"}),
    "broken-schema": _tool("odd", inputSchema={"type": 5, "properties": [], "required": "x"}),
    "remote-ref": _tool("odd", inputSchema={"$ref": "http://127.0.0.1:9/schema.json"}),
    "deep-schema": _tool("odd", inputSchema=_deep_schema(200)),
    "large-schema": _tool("odd", inputSchema={**SCHEMA, "$comment": "c" * 100_000}),
    "null-description": _tool("odd", description=None),
    "integer-description": _tool("odd", description=5),
    "no-description": {"name": "odd", "inputSchema": SCHEMA},
    "long-description": _tool("odd", description="d" * 5_000_000),
    "dirty-text": _tool("odd", title=DIRTY, description=DIRTY, annotations={"title": DIRTY}),
    "list-annotations": _tool("odd", annotations=["readOnlyHint"]),
    "odd-annotations": _tool("odd", annotations={"readOnlyHint": "yes", "title": 5}),
    "string-output-schema": _tool("odd", outputSchema="object"),
}
"""One row of a list of tools. The others of that list are `good_0` to `good_8`."""

LISTS: dict[str, Any] = {
    "missing": {},
    "null": {"tools": None},
    "object": {"tools": {"name": "odd"}},
    "string": {"tools": "odd"},
    "empty": {"tools": []},
    "integer-cursor": {"tools": [_tool("good_0")], "nextCursor": 5},
    "empty-cursor": {"tools": [_tool("good_0")], "nextCursor": ""},
    "null-cursor": {"tools": [_tool("good_0")], "nextCursor": None},
}
"""What may come as the whole result of `tools/list`."""
