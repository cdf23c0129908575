"""Forms: the fields of an elicitation request as questions, and the answers as JSON.

The schema of a form is flat, with one primitive type for each field:
https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation#requested-schema. Every answer is checked
before it is accepted. A form that asks for a secret is recognised by the names of its fields.
"""

from __future__ import annotations

import math
import re
from datetime import date, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from indusagi.core.faults import CoreError
from indusagi.core.json import compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets.names import asks_for_secret
from induscode.cli.dialog import Choice, Question
from induscode.cli.terminal import escape_unprintable

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.cli.dialog import Reply

_MOST_FIELDS = 50
_KEYS = "123456789abcdefghijklmnopqrstuvwxyz"
_SKIP = "-"
_KINDS = {"string": "text", "number": "a number", "integer": "a whole number", "boolean": "yes or no"}
_OPTION_KINDS = {"enum": "one of the values", "list": "any of the values"}
_LIMITS = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minimum": "not below {}",
    "maximum": "not above {}",
    "format": "format: {}",
}


class InvalidFormError(CoreError):
    """The schema of a form is not one that MCP allows."""


@record(kw_only=True)
class FormField:
    """One field of a form."""

    name: str
    label: str
    kind: str
    """`string`, `number`, `integer`, `boolean`, `enum` or `list`."""
    schema: JsonObject
    required: bool
    options: tuple[tuple[str, str], ...] = ()
    """Values of an enumeration with their labels."""

    @property
    def default(self) -> JsonValue:
        """The value of an empty answer; None if there is none."""
        return self.schema.get("default")

    @property
    def is_secret(self) -> bool:
        """Whether the field asks for a secret, which a form must not."""
        names = " ".join((self.name, self.label, str(self.schema.get("format", ""))))
        return asks_for_secret(names)

    def build_question(self, server: str) -> Question:
        """Build the question for this field."""
        need = "required" if self.required else "optional"
        title = f"server {server} asks for {self.label} ({(_KINDS | _OPTION_KINDS)[self.kind]}, {need})"
        lines = list_lines(self.schema.get("description"))
        lines += [text.format(self.schema[key]) for key, text in _LIMITS.items() if key in self.schema]
        choices: list[Choice] = []
        default = ""
        if self.kind in {"enum", "boolean"} and len(self.options) <= len(_KEYS):
            keys, values = self._keys, self._values
            choices = [
                Choice(key=keys[i], label=escape_unprintable(label)) for i, (_, label) in enumerate(self.options)
            ]
            default = keys[values.index(self.default)] if self.default in values else ""
            if not self.required:
                choices.append(Choice(key=_SKIP, label="leave it out"))
                default = default or _SKIP
        else:
            if self.options:
                numbers = "a number" if self.kind == "enum" else "numbers, separated by commas"
                lines += [f"{index}: {label}" for index, (_, label) in enumerate(self.options, 1)]
                lines.append(f"answer with {numbers}")
            if self.default is not None:
                lines.append(f"Enter: {compact_json(self.default)}")
            elif not self.required:
                lines.append("Enter: leave it out")
        return Question(
            title=escape_unprintable(title),
            lines=tuple(map(escape_unprintable, lines)),
            choices=tuple(choices),
            default=default,
            check=None if choices else self.find_problem,
        )

    @property
    def _keys(self) -> str:
        return "yn" if self.kind == "boolean" else _KEYS

    @property
    def _values(self) -> list[JsonValue]:
        return [True, False] if self.kind == "boolean" else [value for value, _ in self.options]

    def find_problem(self, text: str) -> str | None:
        """Describe what is wrong with an answer; None if it is valid."""
        try:
            self._parse_text(text)
        except ValueError as exc:
            return f"{exc}."
        return None

    def parse_reply(self, reply: Reply) -> JsonObject:
        """Convert an answer to the part of the form's content that it gives; empty for a field that is left out.

        Raises:
            ValueError: The answer is invalid.
        """
        if reply.key == _SKIP:
            return {}
        if reply.key:
            return {self.name: self._values[self._keys.index(reply.key)]}
        value = self._parse_text(reply.text)
        return {} if value is None else {self.name: value}

    def _parse_text(self, text: str) -> JsonValue:
        if not text.strip():
            if self.default is not None:
                return self.default
            if self.required:
                raise ValueError("An answer is required")
            return None
        if self.kind == "string":
            self._check_string(text)
            return text
        if self.options:
            return self._parse_options(text)
        try:
            number = int(text) if self.kind == "integer" else float(text)
        except ValueError:
            raise ValueError(f"Type {_KINDS[self.kind]}") from None
        if not math.isfinite(number):
            raise ValueError("Type a finite number")
        low, high = self.schema.get("minimum"), self.schema.get("maximum")
        if isinstance(low, (int, float)) and number < low:
            raise ValueError(f"It must not be below {low}")
        if isinstance(high, (int, float)) and number > high:
            raise ValueError(f"It must not be above {high}")
        return number

    def _check_string(self, text: str) -> None:
        shortest, longest = self.schema.get("minLength"), self.schema.get("maxLength")
        if isinstance(shortest, int) and len(text) < shortest:
            raise ValueError(f"It needs at least {shortest} characters")
        if isinstance(longest, int) and len(text) > longest:
            raise ValueError(f"It may have at most {longest} characters")
        match self.schema.get("format"):
            case "email" if not re.fullmatch(r"[^@\s]+@[^@\s]+", text):
                raise ValueError("Type an address such as ada@example.org")
            case "uri" if not urlsplit(text).scheme:
                raise ValueError("Type an address such as https://example.org")
            case "date":
                _parse_time(date.fromisoformat, text, "2026-07-28")
            case "date-time":
                _parse_time(datetime.fromisoformat, text, "2026-07-28T12:00:00Z")
            case _:
                pass

    def _parse_options(self, text: str) -> JsonValue:
        values: list[JsonValue] = []
        for part in text.split(","):
            word = part.strip()
            if word.isdecimal() and 1 <= int(word) <= len(self.options):
                values.append(self.options[int(word) - 1][0])
            elif word in {value for value, _ in self.options}:
                values.append(word)
            else:
                raise ValueError(f"There is no {word!r} among the values")
        if self.kind == "enum":
            if len(values) != 1:
                raise ValueError("Choose one value")
            return values[0]
        values = [*dict.fromkeys(map(str, values))]
        fewest, most = self.schema.get("minItems"), self.schema.get("maxItems")
        if isinstance(fewest, int) and len(values) < fewest:
            raise ValueError(f"Choose at least {fewest} values")
        if isinstance(most, int) and len(values) > most:
            raise ValueError(f"Choose at most {most} values")
        return values


def _parse_time(parse: Callable[[str], object], text: str, example: str) -> None:
    try:
        parse(text)
    except ValueError:
        raise ValueError(f"Type a time such as {example}") from None


def parse_form(schema: JsonValue) -> list[FormField]:
    """Parse the schema of a form.

    Raises:
        InvalidFormError: It is not flat, or a field has a type that MCP does not allow.
    """
    properties = schema.get("properties", {}) if is_json_object(schema) else None
    if not is_json_object(schema) or not is_json_object(properties):
        raise InvalidFormError("the form has no schema")
    if len(properties) > _MOST_FIELDS:
        raise InvalidFormError(f"the form has more than {_MOST_FIELDS} fields")
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    return [_parse_field(name, value, name in needed) for name, value in properties.items()]


def _parse_field(name: str, schema: JsonValue, required: bool) -> FormField:
    kind = schema.get("type") if is_json_object(schema) else None
    if not is_json_object(schema) or kind not in {*_KINDS, "array"}:
        raise InvalidFormError(f"field {name!r} of the form has a type that a form cannot have: {kind!r}")
    options: tuple[tuple[str, str], ...] = ()
    if kind == "boolean":
        options = (("true", "yes"), ("false", "no"))
    elif kind == "array":
        items = schema.get("items")
        options = _parse_enum(items) if is_json_object(items) else ()
        if not options:
            raise InvalidFormError(f"field {name!r} of the form is a list without values to choose from")
        kind = "list"
    elif kind == "string":
        options = _parse_enum(schema)
        kind = "enum" if options else kind
    title = schema.get("title")
    label = title if isinstance(title, str) and title.strip() else name
    return FormField(name=name, label=label, kind=str(kind), schema=schema, required=required, options=options)


def _parse_enum(schema: JsonObject) -> tuple[tuple[str, str], ...]:
    """Read the values of `enum` with `enumNames`, or of `oneOf` and `anyOf` with titles."""
    values, labels = schema.get("enum"), schema.get("enumNames")
    if isinstance(values, list):
        texts = [value for value in values if isinstance(value, str)]
        shown = labels if isinstance(labels, list) and len(labels) == len(texts) else texts
        return tuple((value, str(label)) for value, label in zip(texts, shown, strict=True))
    rows = schema.get("oneOf", schema.get("anyOf"))
    objects = [row for row in rows if is_json_object(row)] if isinstance(rows, list) else []
    return tuple((str(row["const"]), str(row.get("title", row["const"]))) for row in objects if "const" in row)


def list_lines(text: JsonValue) -> list[str]:
    """Split a text of a server into escaped lines; empty if it is no text."""
    if not isinstance(text, str):
        return []
    return [escape_unprintable(line.expandtabs(4)) for line in text.splitlines()]
