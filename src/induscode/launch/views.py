"""Views of a gateway: what a client sees, under which names and descriptions (the setting `serve.views`).

A view selects tools, prompts and resources in one way: by server, and by the names or URIs that clients use. It only
takes away and renames: what a client may use is still decided by consent, pins and rules. The view of a token or of a
principal is a limit. The view of a client's name is a convenience, since a client names itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field, fields
from typing import Literal, TypeAlias

from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.text import matches_parts

Schemas: TypeAlias = Literal["raw", "model"]
"""The definitions of servers' tools in `tools/list`: the server's own, or the model view."""
NATIVE = "native"
"""The name under which a view lists the tools that belong to no server."""


class InvalidPartError(ValueError):
    """A part of a setting's value is invalid; the message names the part, so that the whole value need not be shown."""


@record(kw_only=True)
class View:
    """One view: whose it is, and what it shows. Names may have `*` for any text."""

    name: str
    clients: tuple[str, ...] = ()
    """The names that clients give themselves."""
    principals: tuple[str, ...] = ()
    token_env: str = ""
    """The variable with a token of its own for `indus serve --http`."""
    servers: tuple[str, ...] = ("*",)
    """Servers of which something is shown; `native` for tools without a server."""
    tools: tuple[str, ...] | None = None
    """Tools that are shown, by the names that clients call."""
    prompts: tuple[str, ...] | None = None
    """Prompts that are shown, by the names that clients use."""
    resources: tuple[str, ...] | None = None
    """Resources, templates and skills that are shown, by the URIs that clients use."""
    read_only: bool = False
    """Whether only tools are shown that change nothing; of a server's tool its own annotation says so."""
    rename: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    describe: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    schemas: Schemas | None = None

    def shows(self, name: str, server: str, *, kind: str = "tool", reads_only: bool = True) -> bool:
        """Tell whether an item is shown. A view that names no tools, prompts or resources shows all of its servers."""
        named = {"tool": self.tools, "prompt": self.prompts}.get(kind, self.resources)
        if named is None:
            named = ("*",) if self.tools is self.prompts is self.resources is None else ()
        return matches(server or NATIVE, self.servers) and matches(name, named) and (reads_only or not self.read_only)

    def to_json(self) -> JsonObject:
        """Convert to what a settings file says: the fields that are not those of a view that shows everything."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "name"}
        plain = View(name=self.name)
        return {
            key: [*value] if isinstance(value, tuple) else value
            for key, value in given.items()
            if value != getattr(plain, key)
        }

    def choose_name(self, name: str, taken: Collection[str]) -> str:
        """Choose the name under which an item is shown: the new one, unless another item has it."""
        wanted = self.rename.get(name, name)
        return name if wanted in taken else wanted

    def list_originals(self, name: str) -> Collection[str]:
        """List what an item may be called that the view would show under a name."""
        return [original for original, wanted in self.rename.items() if wanted == name] + [name]


def matches(name: str, patterns: Collection[str]) -> bool:
    """Tell whether a name matches one of several patterns, in which `*` stands for any text."""
    # No other character is special: `?` and `[` are part of URIs.
    return any(matches_parts(name, pattern.split("*")) for pattern in patterns)


def find_view(views: Mapping[str, View], *, token: str = "", principal: str = "", client: str = "") -> View | None:
    """Find the view of a client: that of its token, then of its principal, then of its name.

    `token` is the name of the view whose token it has presented.
    """
    if token in views:
        return views[token]
    for view in views.values():
        if principal and matches(principal, view.principals):
            return view
    return next((view for view in views.values() if matches(client, view.clients)), None)


def parse_views(value: JsonValue) -> dict[str, View]:
    """Parse the views of a settings file.

    Raises:
        ValueError: A view is invalid; the message says what it takes.
    """
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


def _is_text(value: JsonValue) -> bool:
    return isinstance(value, str) and bool(value)


def _is_list(value: JsonValue) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_map(value: JsonValue) -> bool:
    return is_json_object(value) and all(map(_is_text, value.values()))


def _is_renaming(value: JsonValue) -> bool:
    return is_json_object(value) and _is_map(value) and len({*map(str, value.values())}) == len(value)


_FIELDS: Mapping[str, tuple[str, Callable[[JsonValue], bool]]] = {
    "clients": ("a list of names", _is_list),
    "principals": ("a list of names", _is_list),
    "token_env": ("the name of a variable", _is_text),
    "servers": ("a list of names", _is_list),
    "tools": ("a list of names", _is_list),
    "prompts": ("a list of names", _is_list),
    "resources": ("a list of URIs", _is_list),
    "read_only": ("true or false", lambda value: isinstance(value, bool)),
    "rename": ("an object of different names", _is_renaming),
    "describe": ("an object of texts", _is_map),
    "schemas": ("raw or model", lambda value: value in ("raw", "model")),
}
"""What each field takes, in words and as a check."""
