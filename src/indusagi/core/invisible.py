"""Invisible characters in JSON values: the one function for all that goes to a model or a client.

`clean_json` walks a value of any depth, the names in its objects included. Definitions of tools are
cleaned by removal (`clean_text`), answers of tools in a session by writing the characters out
(`make_visible`). Two names of one object stay two: where cleaning would make them equal, or leave
nothing of a name, the characters of the changed name are written out instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeGuard, cast

from indusagi.core.json import JsonValue
from indusagi.core.text import clean_text, escape_invisible

CleanText: TypeAlias = Callable[[str], tuple[str, int]]
"""Gives the cleaned text, and how many characters were changed."""


def clean_json(value: JsonValue, clean: CleanText = clean_text) -> tuple[JsonValue, int]:
    """Clean every string of a value, names included, and count the characters changed.

    The argument is not touched; it is returned itself when nothing has to change.
    """
    if isinstance(value, str):
        return clean(value)
    found = sum(clean(text)[1] for text in iter_strings(value))
    return (_rebuild(value, clean), found) if found else (value, 0)


def clean_names(names: Iterable[str], clean: CleanText = clean_text) -> dict[str, str]:
    """Clean the names of one object, each to a name of its own; in the order given."""
    given = list(names)
    shown = {name: clean(name)[0] for name in given}
    uses: dict[str, int] = {}
    for name in shown.values():
        uses[name] = uses.get(name, 0) + 1
    taken = {name for name in given if shown[name] == name}
    for name in given:
        if shown[name] == name:
            continue
        if not shown[name] or uses[shown[name]] > 1:
            shown[name] = _free_name(_written_out(name), taken)
        taken.add(shown[name])
    return shown


def _written_out(name: str) -> str:
    # An end of line is seen in a text, but not in a name.
    return escape_invisible(name.replace("\r", "<U+000D>"))[0]


def _free_name(name: str, taken: set[str]) -> str:
    free, number = name, 2
    while free in taken:
        free, number = f"{name} ({number})", number + 1
    return free


def iter_strings(value: JsonValue) -> Iterator[str]:
    """Give every string in a value, the names in its objects included.

    What stands in several places, or holds itself, is looked at once.
    """
    pending: list[object] = [value]
    seen: set[int] = set()
    while pending:
        inner = pending.pop()
        if isinstance(inner, str):
            yield inner
        elif _is_container(inner) and id(inner) not in seen:
            seen.add(id(inner))
            pending.extend(inner)
            if isinstance(inner, dict):
                pending.extend(inner.values())


def _is_container(value: object) -> TypeGuard[dict[object, object] | list[object]]:
    return isinstance(value, (dict, list))


def _rebuild(root: JsonValue, clean: CleanText) -> JsonValue:
    """Copy a value with its strings cleaned; without recursion, since depth is the sender's."""
    frame: dict[object, object] = {}
    pending: list[tuple[object, dict[object, object], object]] = [(root, frame, "")]
    copies: dict[int, dict[object, object]] = {}
    while pending:
        source, target, step = pending.pop()
        if _is_container(source):
            if id(source) not in copies:
                copies[id(source)], children = _open(source, clean)
                pending.extend((inner, copies[id(source)], at) for at, inner in children)
            target[step] = copies[id(source)]
        else:
            target[step] = clean(source)[0] if isinstance(source, str) else source
    return cast("JsonValue", frame[""])


def _open(
    source: dict[object, object] | list[object], clean: CleanText
) -> tuple[dict[object, object], Iterable[tuple[object, object]]]:
    """Make the copy of a container with a place for each child, in the order they have.

    A list is typed as a dict here: both take a value at a place.
    """
    if isinstance(source, list):
        return cast("dict[object, object]", [None] * len(source)), enumerate(source)
    # A key that is no string is none of JSON, and for others to refuse.
    names = clean_names([name for name in source if isinstance(name, str)], clean)
    places = {name: names.get(cast("str", name), name) for name in source}
    children = [(places[name], inner) for name, inner in source.items()]
    copy: dict[object, object] = {place: None for place in places.values()}  # noqa: C420 — typed
    return copy, children
