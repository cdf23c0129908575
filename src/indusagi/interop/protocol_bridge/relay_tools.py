"""What a relay has seen of the tools behind it: which arguments are repeated in headers."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject

_REMEMBERED = 1_000
_MARK = "x-mcp-header"


class ToolSchemas:
    """The schemas of the tools that were listed, as far as they say something about headers."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, JsonObject] = OrderedDict()

    def learn(self, result: JsonObject) -> None:
        """Look at a list of tools on its way to a client."""
        tools = result.get("tools")
        for row in tools if isinstance(tools, list) else ():
            if not isinstance(row, dict):
                continue
            name, schema = row.get("name"), row.get("inputSchema")
            if not isinstance(name, str):
                continue
            self._known.pop(name, None)
            if isinstance(schema, dict) and _MARK in json.dumps(schema):
                self._known[name] = schema
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)

    def of(self, name: str) -> JsonObject | None:
        """Give the schema of a tool's arguments, if it matters."""
        return self._known.get(name)
