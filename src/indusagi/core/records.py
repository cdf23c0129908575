"""Immutable value classes that are cheap to define.

`@record` is `@dataclass(frozen=True, slots=True)`: assigning to a field raises, `dataclasses.replace` and `fields`
work, and equality, hash and repr are the same. The standard decorator compiles six methods per class
(https://docs.python.org/3/library/dataclasses.html#frozen-instances), which took a quarter of a command's startup.
`@record` only compiles `__init__`, for the first instance: defining a class is ten times as fast, and
creating an instance twice as fast.

The rule: use `@record` for values, and `@dataclass(slots=True)` for state that changes.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, cast, dataclass_transform, overload

T = TypeVar("T")


@overload
def record(cls: type[T], /) -> type[T]: ...
@overload
def record(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T] | None = None, /, *, kw_only: bool = False) -> type[T] | Callable[[type[T]], type[T]]:
    """Turn an annotated class into an immutable value class with slots."""

    def decorate(plain: type[T]) -> type[T]:
        made: Any = dataclass(init=False, eq=False, repr=False, slots=True, kw_only=kw_only)(plain)
        names = [one.name for one in fields(made) if one.repr]
        compared = [one.name for one in fields(made) if one.compare]
        # `attrgetter` returns the bare value for a single name, and fails without any.
        key: Callable[[object], object] = attrgetter(*compared) if compared else type

        def is_equal(self: object, other: object) -> bool:
            return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

        def hash_fields(self: object) -> int:
            return hash(key(self))

        def format_fields(self: object) -> str:
            shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
            return f"{self.__class__.__qualname__}({shown})"

        methods: dict[str, object] = {"__eq__": is_equal, "__hash__": hash_fields, "__repr__": format_fields}
        for name, method in (methods | _FROZEN).items():
            if plain.__dict__.get(name) is None:  # Python sets `__hash__` to None next to a custom `__eq__`
                setattr(made, name, method)
        if "__init__" not in plain.__dict__:
            made.__init__ = _LazyInit(made)
        return made

    return decorate if cls is None else decorate(cls)


class _LazyInit:
    """An `__init__` that's compiled when it's first looked up: most classes of a program never get an instance."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        init = _compile_init(self._made)
        self._made.__init__ = init
        return init.__get__(instance, owner)


def _compile_init(made: Any) -> Any:
    """Compile `__init__`, which fills the slots through their descriptors, since assignment would raise."""
    scope: dict[str, Any] = {"__name__": made.__module__, "_missing": MISSING}
    positional, keywords, body = ["self"], ["*"], list[str]()
    for one in fields(made):
        name, parameter, value = one.name, one.name, one.name
        scope[f"_set_{name}"] = getattr(made, name).__set__
        if one.default_factory is not MISSING:
            scope[f"_make_{name}"] = one.default_factory
            parameter = f"{name}=_missing"
            value = f"_make_{name}() if {name} is _missing else {name}" if one.init else f"_make_{name}()"
        elif one.default is not MISSING:
            scope[f"_of_{name}"] = one.default
            parameter, value = f"{name}=_of_{name}", name if one.init else f"_of_{name}"
        elif not one.init:
            continue  # `__post_init__` sets it
        if one.init:
            (keywords if one.kw_only else positional).append(parameter)
        body.append(f"_set_{name}(self, {value})")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(positional + (keywords if len(keywords) > 1 else []))
    text = "\n ".join([f"def __init__({parameters}):", *(body or ["pass"])])
    exec(text, scope)  # noqa: S102 — as `dataclass` does; the text consists of field names
    init = scope["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    return init


def _refuse_change(self: object, name: str, _value: object = None) -> NoReturn:
    raise FrozenInstanceError(f"{type(self).__qualname__}.{name} can't be changed: use dataclasses.replace")


def _get_state(self: Any) -> list[object]:
    return [getattr(self, one.name) for one in fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


_FROZEN = {
    "__setattr__": _refuse_change,
    "__delattr__": _refuse_change,
    "__getstate__": _get_state,
    "__setstate__": _set_state,
}
"""The last two are for copies and pickles: by default these set attributes one by one."""


# -- JSON inside values -----------------------------------------------------------------------------

_MAX_FROZEN_DEPTH = 64
"""Levels to freeze. Python's recursion limit depends on the caller, and a value must not."""


class FrozenDict(dict[str, Any]):
    """An immutable JSON object. `copy.copy` and `copy.deepcopy` return plain, mutable ones."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        return dict, ({**self},)


class FrozenList(list[Any]):
    """An immutable JSON array. `copy.copy` and `copy.deepcopy` return plain, mutable ones."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        return list, ((*self,),)


def freeze_json(value: Any, _depth: int = 0) -> Any:
    """Copy a JSON value's objects and arrays into immutable ones. Frozen ones are returned as is."""
    if _depth >= _MAX_FROZEN_DEPTH:
        return value
    kind = cast("object", type(value))
    if kind is dict:
        # Most members are text or numbers: copy them all at once, then replace the others.
        frozen = FrozenDict(value)
        for key, one in value.items():
            if type(one) in _PLAIN:
                _set_item(frozen, key, freeze_json(one, _depth + 1))
        return frozen
    if kind is list:
        return FrozenList([freeze_json(one, _depth + 1) if type(one) in _PLAIN else one for one in value])
    return value


def _refuse_item(self: object, *_args: object, **_kwargs: object) -> NoReturn:
    raise TypeError("this JSON value can't be changed: change a copy.deepcopy of it")


def _copy_items(self: Any, memo: dict[int, Any] | None = None) -> Any:
    if isinstance(self, dict):
        return {key: value if memo is None else deepcopy(value, memo) for key, value in cast("Any", self).items()}
    return [value if memo is None else deepcopy(value, memo) for value in self]


_PLAIN = frozenset({dict, list})
_set_item = dict[str, Any].__setitem__
_IN_PLACE = (
    *("__setitem__", "__delitem__", "__ior__", "__iadd__", "__imul__", "update", "setdefault", "pop", "popitem"),
    *("clear", "append", "extend", "insert", "remove", "sort", "reverse"),
)
for _frozen in (FrozenDict, FrozenList):
    for _name in _IN_PLACE:
        if hasattr(_frozen, _name):
            setattr(_frozen, _name, _refuse_item)
    for _name in ("__copy__", "__deepcopy__"):
        setattr(_frozen, _name, _copy_items)
