"""Typed stubs: the function signatures a model reads before it calls tools in a script.

A stub is valid Python (https://typing.python.org/en/latest/spec/distributing.html#stub-files) whatever the schema
contains, since names and texts come from servers. Objects with known keys become a `TypedDict` before the function.
"""

from __future__ import annotations

import builtins
import json
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from indusagi.capabilities.arguments import find_similar_name
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.text import make_visible
from indusagi.runtime.contract import JsonSchema, ToolBox, ToolDescriptor
from induscode.code_mode.contract import RUN_CODE, FunctionCall, ScriptCallError
from induscode.deck.provision import DeckToolBox
from induscode.search.options import FIND_TOOLS, SEARCH_CARDS

_MAX_DEPTH = 5
_MAX_CHOICES = 20
_MAX_CLASSES = 12
_MAX_TEXT_CHARS = 300
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_CHOICES = {"str": "str", "int": "int", "float": "float", "bool": "bool", "NoneType": "None"}
_WORD = re.compile(r"[A-Za-z0-9]+")


def format_stub(function: ToolFunction) -> str:
    """Write a function's stub: its classes, signature and the first paragraph of its description."""
    return StubWriter(function).write()


class StubWriter:
    """Writes one stub."""

    def __init__(self, function: ToolFunction) -> None:
        self._function = function
        self._classes: dict[str, str] = {}
        self._schema: JsonSchema = {}

    def write(self) -> str:
        """Write the stub."""
        function, descriptor = self._function, self._function.descriptor
        self._schema = descriptor.parameters
        parameters, base = self._format_parameters(), _to_class_name(function.name)
        returned = "Any"
        if descriptor.output_schema is not None:
            self._schema = descriptor.output_schema
            returned = self._format_type(descriptor.output_schema, f"{base}Result", 0)
        text = make_visible(" ".join(descriptor.description.partition("\n\n")[0].split()))[0]
        about = json.dumps(text[:_MAX_TEXT_CHARS], ensure_ascii=False)
        signature = f"async def {function.name}({parameters}) -> {returned}:\n    {about}\n"
        return "".join([*self._classes.values(), signature])

    def _format_parameters(self) -> str:
        schema = self._function.descriptor.parameters
        properties, listed = schema.get("properties"), schema.get("required")
        required = listed if isinstance(listed, list) else ()
        parts: list[str] = []
        for name, key in self._function.parameters.items():
            value = properties.get(key) if is_json_object(properties) else None
            kind = self._format_type(value, _to_class_name(f"{self._function.name} {name}"), 0)
            parts.append(f"{name}: {kind}" if key in required else f"{name}: {kind} = ...")
        return ", ".join(parts)

    def _format_type(self, schema: object, name: str, depth: int) -> str:
        """Write a schema's type; `Any` if Python has none for it."""
        if not is_json_object(schema) or depth > _MAX_DEPTH:
            return "Any"
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._format_type(self._resolve(reference), _to_class_name(reference.rpartition("/")[2]), depth + 1)
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(choices, list):
            return _format_choices(choices)
        variants = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(variants, list):
            return _join_types([self._format_type(variant, name, depth + 1) for variant in variants])
        kinds = schema.get("type")
        names = kinds if isinstance(kinds, list) else [kinds]
        return _join_types([self._format_kind(kind, schema, name, depth) for kind in names])

    def _format_kind(self, kind: object, schema: Mapping[str, JsonValue], name: str, depth: int) -> str:
        if kind == "array":
            return f"list[{self._format_type(schema.get('items'), f'{name}Item', depth + 1)}]"
        properties = schema.get("properties")
        if is_json_object(properties) and properties:
            return self._format_class(schema, properties, name, depth)
        if kind == "object":
            return f"dict[str, {self._format_type(schema.get('additionalProperties'), f'{name}Value', depth + 1)}]"
        return _TYPES.get(str(kind), "Any")

    def _format_class(
        self, schema: Mapping[str, JsonValue], properties: Mapping[str, JsonValue], name: str, depth: int
    ) -> str:
        fields = map_parameters(schema)
        if len(self._classes) >= _MAX_CLASSES or any(key != field for field, key in fields.items()):
            return "dict[str, Any]"  # too many classes, or keys that a class can't have
        listed = schema.get("required")
        required = listed if isinstance(listed, list) else ()
        unique = make_unique(name, self._classes)
        self._classes[unique] = ""
        lines = [f"class {unique}(TypedDict):\n"]
        for key in fields:
            kind = self._format_type(properties[key], f"{name}{_to_class_name(key)}", depth + 1)
            lines.append(f"    {key}: {kind if key in required else f'NotRequired[{kind}]'}\n")
        del self._classes[unique]  # goes behind the classes of its fields
        fields_text = "".join(lines[1:])
        same = next((other for other, known in self._classes.items() if known.partition("\n")[2] == fields_text), None)
        if same is None:
            self._classes[unique] = "".join(lines)
        return same or unique

    def _resolve(self, reference: str) -> JsonValue:
        """Resolve a reference inside the schema (RFC 6901). None if it leads elsewhere."""
        part: JsonValue = dict(cast("JsonObject", self._schema))
        for word in reference.removeprefix("#").split("/")[1:]:
            key = word.replace("~1", "/").replace("~0", "~")
            part = part.get(key) if is_json_object(part) else None
        return part if reference.startswith("#") else None


def _format_choices(choices: Sequence[JsonValue]) -> str:
    if len(choices) > _MAX_CHOICES or not all(isinstance(choice, (str, int, type(None))) for choice in choices):
        return _join_types([_CHOICES.get(type(choice).__name__, "Any") for choice in choices])
    shown = ", ".join(repr(make_visible(choice)[0] if isinstance(choice, str) else choice) for choice in choices)
    return f"Literal[{shown}]" if choices else "Any"


def _join_types(names: Sequence[str]) -> str:
    unique = dict.fromkeys(names)
    return "Any" if "Any" in unique or not unique else " | ".join(unique)


def _to_class_name(text: str) -> str:
    name = "".join(word[:1].upper() + word[1:] for word in _WORD.findall(text))
    return name if name and not name[0].isdigit() else f"T{name}"


# -- functions --------------------------------------------------------------------------------
#
# A table maps names in both directions: two tools never share a function, and a tool's name is never derived from a
# function's.


_FOREIGN = re.compile(r"[^A-Za-z0-9_]")
_TAKEN = frozenset({*dir(builtins), *keyword.kwlist, *keyword.softkwlist, FIND_TOOLS, RUN_CODE, "asyncio", "json"})


@record
class ToolFunction:
    """A tool as a function."""

    name: str
    """Name in a script."""
    descriptor: ToolDescriptor
    parameters: Mapping[str, str]
    """Argument names by parameter name; required ones first, then in schema order."""

    def bind(self, call: FunctionCall) -> JsonObject:
        """Build the tool's arguments from a call.

        Raises `ScriptCallError` if an argument occurs twice, or there are too many.
        """
        order = [*self.parameters]
        if len(call.positional) > len(order):
            takes = ", ".join(order) or "no arguments"
            raise ScriptCallError("TypeError", f"{self.name}() got {len(call.positional)} arguments; it takes {takes}")
        arguments: JsonObject = {}
        for name, value in (*zip(order, call.positional, strict=False), *call.named.items()):
            key = self.parameters.get(name, name)
            if key in arguments:
                raise ScriptCallError("TypeError", f"{self.name}() got two values for {name!r}")
            arguments[key] = value
        return arguments


class FunctionTable:
    """A script's functions, by name."""

    def __init__(self, descriptors: Iterable[ToolDescriptor]) -> None:
        self._functions: dict[str, ToolFunction] = {}
        # Tools whose names are valid functions come first, so no other tool can take their name.
        for descriptor in sorted(descriptors, key=lambda one: (to_identifier(one.name) != one.name, one.name)):
            if descriptor.name == RUN_CODE or descriptor.name in SEARCH_CARDS:
                continue  # scripts can't start scripts, and search through a function
            name = make_unique(to_identifier(descriptor.name), self._functions)
            self._functions[name] = ToolFunction(
                name, descriptor, map_parameters(cast("JsonObject", descriptor.parameters))
            )

    @property
    def names(self) -> Sequence[str]:
        """Names of all functions."""
        return (FIND_TOOLS, *self._functions)

    @property
    def functions(self) -> Sequence[ToolFunction]:
        """Functions of the tools."""
        return tuple(self._functions.values())

    def get(self, name: str) -> ToolFunction:
        """Return a function by name; raises `ScriptCallError` if it doesn't exist."""
        function = self._functions.get(name)
        if function is None:
            similar = find_similar_name(name, self._functions)
            hint = f". Did you mean {similar!r}?" if similar else f"; {FIND_TOOLS}('words') lists functions"
            raise ScriptCallError("NameError", f"name {name!r} is not defined{hint}")
        return function


def list_descriptors(box: ToolBox) -> Sequence[ToolDescriptor]:
    """List the tools a script may call through a toolbox."""
    if isinstance(box, DeckToolBox):  # includes cards hidden by search
        traits, second = box.runner.traits, box.runner.second_names
        return [traits[name].descriptor for name in traits if name not in second]
    return box.descriptors()


def to_identifier(name: str) -> str:
    """Build the nearest valid Python name that doesn't hide a builtin."""
    text = _FOREIGN.sub("_", name)
    if not text or text[0].isdigit():
        text = f"_{text}"
    return f"{text}_" if text in _TAKEN else text


def make_unique(name: str, taken: Iterable[str]) -> str:
    """Number a taken name: `name_2`, `name_3`."""
    others, unique, number = set(taken), name, 1
    while unique in others:
        number += 1
        unique = f"{name}_{number}"
    return unique


def map_parameters(schema: Mapping[str, JsonValue]) -> Mapping[str, str]:
    """Map parameters to a schema's arguments, required ones first."""
    properties, listed = schema.get("properties"), schema.get("required")
    if not is_json_object(properties):
        return {}
    required = listed if isinstance(listed, list) else ()
    parameters: dict[str, str] = {}
    for name in sorted(properties, key=lambda name: name not in required):
        text = _FOREIGN.sub("_", name)
        text = f"_{text}" if not text or text[0].isdigit() else f"{text}_" if keyword.iskeyword(text) else text
        parameters[make_unique(text, parameters)] = name
    return parameters
