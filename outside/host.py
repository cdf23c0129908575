"""The person and the model behind our client, for servers that ask: both always say yes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object
from indusagi.interop import Handlers

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.core.json import JsonObject, JsonValue

SAMPLED = "said by the model"
_BY_TYPE: dict[str, JsonValue] = {
    "string": "text",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


def agreeable(on_notification: Callable[[str, JsonObject], None] | None = None) -> Handlers:
    """Give handlers that answer whatever a server may ask."""
    return Handlers(elicit=_fill_in, sample=_speak, roots=_roots, on_notification=on_notification)


def fill_command(schema: JsonValue) -> JsonObject:
    """Make an object for a schema: the defaults it names, and something for what it requires."""
    asked = schema if is_json_object(schema) else {}
    properties, required = asked.get("properties"), asked.get("required")
    wanted = required if isinstance(required, list) else []
    known = properties if is_json_object(properties) else {}
    return {
        name: _value(rule)
        for name, rule in known.items()
        if name in wanted or (is_json_object(rule) and "default" in rule)
    }


def _value(rule: JsonValue) -> JsonValue:
    if not is_json_object(rule):
        return "text"
    if "default" in rule:
        return rule["default"]
    choices = rule.get("enum")
    if isinstance(choices, list) and choices:
        return choices[0]
    return _BY_TYPE.get(str(rule.get("type")), "text")


async def _fill_in(params: JsonObject) -> JsonObject:
    return {"action": "accept", "content": fill_command(params.get("requestedSchema"))}


async def _speak(params: JsonObject) -> JsonObject:
    text: JsonObject = {"type": "text", "text": SAMPLED}
    return {"role": "assistant", "content": text, "model": "none", "stopReason": "endTurn"}


async def _roots(params: JsonObject) -> JsonObject:
    return {"roots": [{"uri": "file:///", "name": "everything"}]}
