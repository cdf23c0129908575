"""Search items: a tool, prompt, resource or connector action with its identity, texts and digest.

Items are built from descriptors and from the ledger's cards, without starting a server. Callers only index items a
client may use: quarantined, disabled or denied ones never become items.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.json import JsonLike, content_hash
from indusagi.core.records import record
from indusagi.core.text import make_visible

if TYPE_CHECKING:
    from indusagi.runtime.contract import JsonSchema, ToolDescriptor

SearchKind: TypeAlias = Literal["tool", "prompt", "resource", "template", "skill", "action"]
"""Kinds of items; `action` is a connector operation."""
SEARCH_KINDS: tuple[SearchKind, ...] = ("tool", "prompt", "resource", "template", "skill", "action")
HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""The places inside camel-case words: `createIssue`, `GitHub`."""
_MAX_PARAMETERS = 64
"""Indexed parameters per item."""


@record
class SearchParameter:
    """A parameter of an item, as needed for search and signatures."""

    name: str
    type: str
    """In Python notation: `str`, `list[int]`, `"open"|"closed"`."""
    description: str
    required: bool


@record(kw_only=True)
class SearchItem:
    """One searchable thing."""

    server: str
    """Server id or connector name; empty for a native tool."""
    name: str
    """Its name at the server, or its URI."""
    kind: SearchKind = "tool"
    qualified_name: str
    """The name a model calls it by; unique among items of one kind."""
    title: str = ""
    description: str = ""
    keywords: str = ""
    """Other descriptive words: tags, a path."""
    parameters: Sequence[SearchParameter] = ()
    """The first parameters, required ones before the others."""
    more_parameters: int = 0
    """Number of further ones."""
    digest: str = ""
    """Digest of the definition. Items with the same digest have the same texts."""
    schema: JsonSchema | None = field(default=None, compare=False, repr=False)
    """The arguments' schema as a model gets it."""


def build_tool_item(descriptor: ToolDescriptor, server: str = "", name: str | None = None) -> SearchItem:
    """Build a tool's item from its descriptor. `server` and `name` identify it at a server."""
    return build_item(
        "tool",
        server,
        name or descriptor.name,
        descriptor.name,
        title=descriptor.title or "",
        description=descriptor.description,
        schema=descriptor.parameters,
    )


def build_content_item(
    kind: SearchKind, server: str, qualified_name: str, definition: Mapping[str, JsonLike]
) -> SearchItem:
    """Build the item of a prompt, resource, template or skill from its server's definition."""
    texts = {key: value for key, value in definition.items() if isinstance(value, str)}
    address = texts.get("uri") or texts.get("uriTemplate", "")
    arguments = definition.get("arguments")
    properties: dict[str, JsonLike] = {}
    required: list[str] = []
    for argument in map(_to_mapping, _to_list(arguments)):
        name = str(argument.get("name", ""))
        properties[name] = {"type": "string", "description": argument.get("description", "")}
        if argument.get("required") is True:
            required.append(name)
    name = texts.get("name", "")
    # A resource's name is its URI, and its server's label for it is a title.
    title = " ".join(dict.fromkeys(text for text in (texts.get("title", ""), name if address else "") if text))
    return build_item(
        kind,
        server,
        address or name,
        qualified_name,
        title=title,
        description=texts.get("description", ""),
        schema={"type": "object", "properties": properties, "required": required} if properties else None,
    )


def build_item(
    kind: SearchKind,
    server: str,
    name: str,
    qualified_name: str,
    *,
    title: str = "",
    description: str = "",
    keywords: str = "",
    schema: JsonSchema | None = None,
) -> SearchItem:
    """Build an item of any kind, with the digest of everything that describes it."""
    definition: list[JsonLike] = [kind, server, name, qualified_name, title, description, keywords, schema]
    count = len(_to_mapping((schema or {}).get("properties")))
    return SearchItem(
        server=server,
        name=name,
        kind=kind,
        qualified_name=qualified_name,
        title=title,
        description=description,
        keywords=keywords,
        parameters=tuple(_list_parameters(schema or {})),
        more_parameters=max(0, count - _MAX_PARAMETERS),
        digest=content_hash(definition),
        schema=schema,
    )


def _list_parameters(schema: JsonSchema) -> Iterator[SearchParameter]:
    """List a schema's parameters, required ones first, otherwise in schema order."""
    required = {name for name in _to_list(schema.get("required")) if isinstance(name, str)}
    rows = sorted(_to_mapping(schema.get("properties")).items(), key=lambda row: row[0] not in required)
    for name, value in rows[:_MAX_PARAMETERS]:
        part = _to_mapping(value)
        description = part.get("description")
        text = description if isinstance(description, str) else ""
        yield SearchParameter(name, _name_type(part), text, name in required)


_TYPES = {
    "string": "str", "integer": "int", "number": "float", "boolean": "bool", "object": "dict", "array": "list",
    "null": "None",
}  # fmt: skip
_MAX_CHOICES = 4
_MAX_CHOICE_CHARS = 24
_MAX_DEPTH = 2
"""One nested type is enough for a signature."""


def _name_type(schema: JsonSchema, depth: int = 0) -> str:
    """Name a type in Python notation, or `any` if it has no short name."""
    choices = _to_list(schema.get("enum"))
    if choices and all(isinstance(choice, str) for choice in choices):
        shown = [f'"{choice}"' for choice in choices[:_MAX_CHOICES] if len(str(choice)) <= _MAX_CHOICE_CHARS]
        return _join_types([*shown, *(["…"] if len(shown) < len(choices) else [])])
    variants = _to_list(schema.get("anyOf")) or _to_list(schema.get("oneOf"))
    if variants and depth < _MAX_DEPTH:
        return _join_types(_name_type(_to_mapping(variant), depth + 1) for variant in variants)
    kind = schema.get("type")
    if isinstance(kind, str):
        items = _to_mapping(schema.get("items"))
        if kind == "array" and items and depth < _MAX_DEPTH:
            return f"list[{_name_type(items, depth + 1)}]"
        return _TYPES.get(kind, "any")
    return _join_types(_TYPES.get(str(name), "any") for name in _to_list(kind)) or "any"


def _join_types(names: Iterable[str]) -> str:
    return "|".join(dict.fromkeys(names))


def _to_mapping(value: JsonLike) -> JsonSchema:
    """Return a part of a foreign schema if it's an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _to_list(value: JsonLike) -> Sequence[JsonLike]:
    return value if isinstance(value, (list, tuple)) else ()


# -- signatures -------------------------------------------------------------------------------


LONGEST_SIGNATURE = 230
"""In characters: five such lines with line ends take fewer than 300 tokens of four bytes."""
_MIN_DESCRIPTION_CHARS = 60
"""Characters that optional parameters leave for the description."""


def format_signature(item: SearchItem, limit: int = LONGEST_SIGNATURE) -> str:
    """Format an item as one line: `server__tool(owner: str, body?: str) — Create an issue`.

    The name is complete. Required parameters come before optional ones, and take precedence over the description: types
    are dropped first, then parameters, replaced by their number.
    """
    head = _clean(item.qualified_name)
    if item.kind != "tool":
        head = f"{item.kind} {head}"
    about = _clean(item.description or item.title).partition(". ")[0]
    required = [parameter for parameter in item.parameters if parameter.required]
    optional = [parameter for parameter in item.parameters if not parameter.required]
    room = limit - len(head) - min(len(about), _MIN_DESCRIPTION_CHARS) - 3
    text = head
    if item.parameters or item.kind in {"tool", "prompt", "action"}:
        text = f"{head}({_format_parameters(required, optional, item.more_parameters, room)})"
    left = limit - len(text) - 3
    if not about or left < _MIN_DESCRIPTION_CHARS // 4:
        return text
    return f"{text} — {about if len(about) <= left else about[: left - 1].rstrip() + '…'}"


def _format_parameters(
    required: Sequence[SearchParameter], optional: Sequence[SearchParameter], more: int, room: int
) -> str:
    """Format as many parameters as fit, and count the rest, with `more` others, at the end."""
    typed = [f"{_clean(parameter.name)}: {_clean(parameter.type)}" for parameter in required]
    shown = typed if len(", ".join(typed)) <= room else [_clean(parameter.name) for parameter in required]
    shown += [f"{_clean(parameter.name)}?: {_clean(parameter.type)}" for parameter in optional]
    kept: list[str] = []
    for number, text in enumerate(shown, 1):
        rest = len(shown) - number + more
        mark = len(f", … +{rest}") if rest else 0
        if len(", ".join([*kept, text])) + mark > room:
            break
        kept.append(text)
    missing = len(shown) - len(kept) + more
    return ", ".join([*kept, *([f"… +{missing}"] if missing else [])])


def _clean(text: str) -> str:
    """Put a foreign text on one line without invisible characters."""
    return make_visible(" ".join(text.split()))[0]
