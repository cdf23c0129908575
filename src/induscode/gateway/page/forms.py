"""Forms from JSON Schemas: a field for each property, and the arguments that a filled form gives.

Texts, numbers, booleans, enumerations and lists of texts have fields of their own; every other schema is a text area
with JSON. An empty optional field is left out of the arguments.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

from indusagi.core.json import is_json_object
from induscode.gateway.page.html import Html, tag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue

_PREFIX: Final = "arg."
_UNSET: Final = "(not given)"
_LONG: Final = ("content", "text", "body", "code", "query", "prompt", "message", "command", "oldText", "newText")
"""Properties whose texts are mostly longer than a line."""


def build_fields(schema: Mapping[str, JsonValue], values: Mapping[str, str]) -> list[Html]:
    """Build the fields of a schema; `values` are those of a form that was sent before."""
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else []
    rows: list[Html] = []
    for name, part in properties.items() if is_json_object(properties) else ():
        part = part if is_json_object(part) else {}
        field, label = _PREFIX + name, f"{name}{' *' if name in needed else ''}"
        about = part.get("description")
        hint = tag("small", about, id=f"about.{field}") if isinstance(about, str) and about else None
        control = _build_control(
            field, name, part, values.get(field), required=name in needed, described=hint is not None
        )
        rows.append(tag("div", tag("label", label, for_=field), control, hint, cls="field"))
    return rows


def _build_control(
    field: str, name: str, part: JsonObject, value: str | None, *, required: bool, described: bool
) -> Html:
    about = f"about.{field}" if described else None
    default = part.get("default")
    shown = value if value is not None else "" if default is None else _to_text(default, part)
    choices = [True, False] if part.get("type") == "boolean" else part.get("enum")
    if isinstance(choices, list):
        texts = [_to_text(choice, part) for choice in choices]
        options = [*([] if required else [""]), *texts]
        marked = [tag("option", text or _UNSET, value=text, selected=text == shown) for text in dict.fromkeys(options)]
        return tag("select", marked, id=field, name=field, aria_describedby=about)
    kind = part.get("type")
    if kind in {"integer", "number"}:
        step = "1" if kind == "integer" else "any"
        return tag("input", id=field, name=field, type_="number", step=step, value=shown, required=required,
                   aria_describedby=about)  # fmt: skip
    if kind == "string" and name not in _LONG:
        return tag("input", id=field, name=field, value=shown, aria_describedby=about, autocomplete="off")
    rows = 3 if kind == "string" or _is_list_of_texts(part) else 4
    place = None if kind == "string" else "one per line" if _is_list_of_texts(part) else "JSON"
    return tag("textarea", shown, id=field, name=field, rows=rows, placeholder=place, aria_describedby=about)


def read_arguments(schema: Mapping[str, JsonValue], form: Mapping[str, str]) -> JsonObject:
    """Read the arguments of a sent form.

    Raises:
        ValueError: A field cannot be read; the message names it.
    """
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else []
    arguments: JsonObject = {}
    for name, part in properties.items() if is_json_object(properties) else ():
        text = form.get(_PREFIX + name, "")
        part = part if is_json_object(part) else {}
        if text or (name in needed and part.get("type") == "string"):
            arguments[name] = _parse(name, text.replace("\r\n", "\n"), part)
    return arguments


def _parse(name: str, text: str, part: JsonObject) -> JsonValue:
    choices = part.get("enum")
    if isinstance(choices, list):
        for choice in choices:
            if _to_text(choice, part) == text:
                return choice
    if part.get("type") == "string":
        return text
    if _is_list_of_texts(part) and not text.lstrip().startswith("["):
        return [line for line in text.split("\n") if line]
    try:
        return cast("JsonValue", json.loads(text))
    except ValueError as exc:
        if "type" not in part:  # any value is valid: a text without quotes is one
            return text
        raise ValueError(f"{name} is not valid JSON: {exc}") from None


def _is_list_of_texts(part: JsonObject) -> bool:
    items = part.get("items")
    return part.get("type") == "array" and is_json_object(items) and items.get("type") == "string"


def _to_text(value: JsonValue, part: JsonObject) -> str:
    if isinstance(value, str) and part.get("type", "string") == "string":
        return value
    if isinstance(value, list) and _is_list_of_texts(part):
        return "\n".join(map(str, cast("Sequence[object]", value)))
    return json.dumps(value, ensure_ascii=False)
