"""Invisible characters in JSON values, for everything that goes to a model or client.

`clean_json` walks a value of any depth, including object keys. Tool definitions are cleaned by removal (`clean_text`),
tool results in a session by escaping (`make_visible`). Keys stay distinct: if cleaning would make two keys equal, or
one empty, the changed key's characters are escaped instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeGuard, cast

from indusagi.core.json import JsonValue
from indusagi.core.text import clean_text, escape_invisible

CleanText: TypeAlias = Callable[[str], tuple[str, int]]
"""Returns the cleaned text and the number of changed characters."""


def clean_json(value: JsonValue, clean: CleanText = clean_text) -> tuple[JsonValue, int]:
    """Clean every string in a value, including keys; return it with the number of changed characters.

    Doesn't modify the argument, and returns it if nothing changes.
    """
    if not value:
        return value, 0
    if isinstance(value, str):
        return clean(value)
    count = sum(clean(text)[1] for text in iter_strings(value))
    if not count:
        return value, 0
    # Copy with cleaned strings; without recursion, since the sender controls the depth.
    frame: dict[object, object] = {}
    pending: list[tuple[object, dict[object, object], object]] = [(value, frame, "")]
    copies: dict[int, dict[object, object]] = {}
    while pending:
        source, target, step = pending.pop()
        if _is_container(source):
            if id(source) not in copies:
                copies[id(source)], children = _open(source, clean)
                pending.extend((inner, copies[id(source)], key) for key, inner in children)
            target[step] = copies[id(source)]
        else:
            target[step] = clean(source)[0] if isinstance(source, str) else source
    return cast("JsonValue", frame[""]), count


def clean_names(names: Iterable[str], clean: CleanText = clean_text) -> dict[str, str]:
    """Clean the keys of one object and keep them distinct, in the given order."""
    keys = list(names)
    shown = {name: clean(name)[0] for name in keys}
    uses: dict[str, int] = {}
    for name in shown.values():
        uses[name] = uses.get(name, 0) + 1
    taken = {name for name in keys if shown[name] == name}
    for name in keys:
        if shown[name] == name:
            continue
        if not shown[name] or uses[shown[name]] > 1:
            # A line ending is visible in a text, but not in a key.
            escaped = free = escape_invisible(name.replace("\r", "<U+000D>"))[0]
            number = 2
            while free in taken:
                free, number = f"{escaped} ({number})", number + 1
            shown[name] = free
        taken.add(shown[name])
    return shown


def iter_strings(value: JsonValue) -> Iterator[str]:
    """Yield every string in a value, including keys; visit a shared or cyclic container once."""
    pending: list[object] = [value]
    visited: set[int] = set()
    while pending:
        inner = pending.pop()
        if isinstance(inner, str):
            yield inner
        elif _is_container(inner) and id(inner) not in visited:
            visited.add(id(inner))
            pending.extend(inner)
            if isinstance(inner, dict):
                pending.extend(inner.values())


def _is_container(value: object) -> TypeGuard[dict[object, object] | list[object]]:
    return isinstance(value, (dict, list))


def _open(
    source: dict[object, object] | list[object], clean: CleanText
) -> tuple[dict[object, object], Iterable[tuple[object, object]]]:
    """Create a copy of a container with a slot for each child, in order.

    A list is typed as a dict here: both support assignment to an index.
    """
    if isinstance(source, list):
        return cast("dict[object, object]", [None] * len(source)), enumerate(source)
    # Non-string keys are invalid JSON, which other code rejects.
    names = clean_names([name for name in source if isinstance(name, str)], clean)
    places = {name: names.get(cast("str", name), name) for name in source}
    children = [(places[name], inner) for name, inner in source.items()]
    copy: dict[object, object] = {place: None for place in places.values()}  # noqa: C420 — typed
    return copy, children
