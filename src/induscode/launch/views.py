"""Views of a gateway (`serve.views`): filter and rename the items a client sees.

A view selects tools, prompts and resources by server, and by the names or URIs that clients use. It can only hide and
rename: consent, pins and rules still decide whether a client may use an item. A view bound to a token or principal is a
limit. A view bound to a client's name is only a convenience, since clients choose their names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field, fields
from typing import Literal, TypeAlias

from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.text import matches_parts

Schemas: TypeAlias = Literal["raw", "model"]
"""Definitions of server tools in `tools/list`: as the server defines them, or the model view."""
NATIVE = "native"
"""How a view names the "server" of native tools."""


class InvalidPartError(ValueError):
    """Part of a setting's value is invalid. The message names the part, so callers needn't print the whole value."""


@record(kw_only=True)
class View:
    """Who a view applies to, and which items it shows. In names, `*` matches any text."""

    name: str
    clients: tuple[str, ...] = ()
    """Client names, as clients report them."""
    principals: tuple[str, ...] = ()
    token_env: str = ""
    """The environment variable with the view's token for `indus serve --http`, or a reference to a secret."""
    servers: tuple[str, ...] = ("*",)
    """Servers to show items from; `native` for native tools."""
    tools: tuple[str, ...] | None = None
    """Tools to show, by the names that clients call."""
    prompts: tuple[str, ...] | None = None
    """Prompts to show, by the names that clients use."""
    resources: tuple[str, ...] | None = None
    """Resources, templates and skills to show, by the URIs that clients use."""
    read_only: bool = False
    """Show only read-only tools; for server tools, this relies on the server's annotation."""
    rename: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    describe: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    schemas: Schemas | None = None

    def shows(self, name: str, server: str, *, kind: str = "tool", reads_only: bool = True) -> bool:
        """Return whether to show an item. A view that lists no items at all shows everything from its servers."""
        named = {"tool": self.tools, "prompt": self.prompts}.get(kind, self.resources)
        if named is None:
            named = ("*",) if self.tools is self.prompts is self.resources is None else ()
        return matches(server or NATIVE, self.servers) and matches(name, named) and (reads_only or not self.read_only)

    def to_json(self) -> JsonObject:
        """Convert to the form in a settings file, omitting defaults."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "name"}
        plain = View(name=self.name)
        return {
            key: [*value] if isinstance(value, tuple) else value
            for key, value in given.items()
            if value != getattr(plain, key)
        }

    def choose_name(self, name: str, taken: Collection[str]) -> str:
        """Return the item's new name, or its old one if another item already uses the new name."""
        wanted = self.rename.get(name, name)
        return name if wanted in taken else wanted

    def list_originals(self, name: str) -> Collection[str]:
        """List the original names of items that the view might show under this name."""
        return [original for original, wanted in self.rename.items() if wanted == name] + [name]


def matches(name: str, patterns: Collection[str]) -> bool:
    """Return whether a name matches one of the patterns, in which `*` stands for any text."""
    # Only `*` is special: `?` and `[` occur in URIs.
    return any(matches_parts(name, pattern.split("*")) for pattern in patterns)


def find_view(views: Mapping[str, View], *, named: str = "", principal: str = "", client: str = "") -> View | None:
    """Find a client's view: the one `named` by its token or path, or by its principal, or by its client's name."""
    if named:
        return views[named]
    for view in views.values():
        if principal and matches(principal, view.principals):
            return view
    return next((view for view in views.values() if matches(client, view.clients)), None)


def parse_views(value: JsonValue) -> dict[str, View]:
    """Parse `serve.views`; raise ValueError, with a message about valid values, if a view is invalid."""
    if not is_json_object(value):
        raise ValueError("takes an object of views by name")
    return {name: _parse_view(name, one) for name, one in value.items()}


def _parse_view(name: str, value: JsonValue) -> View:
    if not name:
        raise InvalidPartError("takes a name for each view, not ''")
    if not is_json_object(value):
        raise InvalidPartError(f"takes an object for the view {name!r}, not {compact_json(value)[:80]}")
    given: dict[str, object] = {}
    for key, one in value.items():
        if key not in _FIELDS:
            raise InvalidPartError(f"takes {', '.join(_FIELDS)} in the view {name!r}, and {key!r} is none of them")
        what, is_valid = _FIELDS[key]
        if not is_valid(one):
            raise InvalidPartError(f"takes {what} for {key!r} of the view {name!r}, not {compact_json(one)[:80]}")
        given[key] = tuple(one) if isinstance(one, list) else one
    return View(name=name, **given)  # type: ignore[arg-type] — `_FIELDS` has checked each value


def is_text(value: JsonValue) -> bool:
    """Return whether a value is a text that isn't empty."""
    return isinstance(value, str) and bool(value)


def is_list(value: JsonValue) -> bool:
    """Return whether a value is a list of texts."""
    return isinstance(value, list) and all(map(is_text, value))


def is_map(value: JsonValue) -> bool:
    """Return whether a value is an object of texts."""
    return is_json_object(value) and all(map(is_text, value.values()))


def _is_renaming(value: JsonValue) -> bool:
    return is_json_object(value) and is_map(value) and len({*map(str, value.values())}) == len(value)


_FIELDS: Mapping[str, tuple[str, Callable[[JsonValue], bool]]] = {
    "clients": ("a list of names", is_list),
    "principals": ("a list of names", is_list),
    "token_env": ("the name of a variable", is_text),
    "servers": ("a list of names", is_list),
    "tools": ("a list of names", is_list),
    "prompts": ("a list of names", is_list),
    "resources": ("a list of URIs", is_list),
    "read_only": ("true or false", lambda value: isinstance(value, bool)),
    "rename": ("an object of different names", _is_renaming),
    "describe": ("an object of texts", is_map),
    "schemas": ("raw or model", lambda value: value in ("raw", "model")),
}
"""The valid values of each field, in words and as a check."""
