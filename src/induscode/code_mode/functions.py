"""Functions of a script: for every tool a name that Python accepts, and its parameters in the order of its stub.

Names are mapped by a table, in both directions: two tools never share a function, and the name of a tool is never
derived from that of a function.
"""

from __future__ import annotations

import builtins
import keyword
import re
from typing import TYPE_CHECKING, cast

from indusagi.capabilities.arguments import find_similar_name
from indusagi.core.json import is_json_object
from indusagi.core.records import record
from induscode.code_mode.contract import RUN_CODE, ScriptCallError
from induscode.deck.contract import describe
from induscode.deck.provision import DeckToolBox
from induscode.search.names import FIND_TOOLS, SEARCH_CARDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ToolBox, ToolDescriptor
    from induscode.code_mode.contract import FunctionCall

_FOREIGN = re.compile(r"[^A-Za-z0-9_]")
_TAKEN = frozenset({*dir(builtins), *keyword.kwlist, *keyword.softkwlist, FIND_TOOLS, RUN_CODE, "asyncio", "json"})


@record
class ToolFunction:
    """One tool as a function."""

    name: str
    """The name in a script."""
    descriptor: ToolDescriptor
    parameters: Mapping[str, str]
    """The name of each argument by that of its parameter; required ones first, then in the order of the schema."""

    def bind(self, call: FunctionCall) -> JsonObject:
        """Build the arguments of the tool from those of a call.

        Raises:
            ScriptCallError: An argument is given twice, or there are too many.
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
    """The functions of a script by name."""

    def __init__(self, descriptors: Iterable[ToolDescriptor]) -> None:
        self._functions: dict[str, ToolFunction] = {}
        # Tools whose own name is a function's come first: another one never takes it from them.
        for descriptor in sorted(descriptors, key=lambda one: (to_identifier(one.name) != one.name, one.name)):
            if descriptor.name == RUN_CODE or descriptor.name in SEARCH_CARDS:
                continue  # a script starts no script, finds tools by a function, and calls each by its own name
            name = make_unique(to_identifier(descriptor.name), self._functions)
            self._functions[name] = ToolFunction(
                name, descriptor, map_parameters(cast("JsonObject", descriptor.parameters))
            )

    @property
    def names(self) -> Sequence[str]:
        """The names of all functions."""
        return (FIND_TOOLS, *self._functions)

    @property
    def functions(self) -> Sequence[ToolFunction]:
        """The functions of the tools."""
        return tuple(self._functions.values())

    def get(self, name: str) -> ToolFunction:
        """Return the function of a name.

        Raises:
            ScriptCallError: There is none.
        """
        function = self._functions.get(name)
        if function is None:
            similar = find_similar_name(name, self._functions)
            hint = f". Did you mean {similar!r}?" if similar else f"; {FIND_TOOLS}('words') lists functions"
            raise ScriptCallError("NameError", f"name {name!r} is not defined{hint}")
        return function


def list_descriptors(box: ToolBox) -> Sequence[ToolDescriptor]:
    """List the tools that a script may call through a toolbox."""
    if isinstance(box, DeckToolBox):  # with the cards that search hides
        cards, second = box.runner.cards, box.runner.second_names
        return [describe(card) for name, card in cards.items() if name not in second]
    return box.descriptors()


def to_identifier(name: str) -> str:
    """Build the nearest name that Python accepts and that hides no builtin."""
    text = _FOREIGN.sub("_", name)
    if not text or text[0].isdigit():
        text = f"_{text}"
    return f"{text}_" if text in _TAKEN else text


def make_unique(name: str, taken: Iterable[str]) -> str:
    """Number a name if it is taken: `name_2`, `name_3`."""
    others, unique, number = set(taken), name, 1
    while unique in others:
        number += 1
        unique = f"{name}_{number}"
    return unique


def map_parameters(schema: Mapping[str, JsonValue]) -> Mapping[str, str]:
    """Map parameters to the arguments of a schema, the required ones first."""
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
