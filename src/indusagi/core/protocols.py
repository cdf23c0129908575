"""A quick check of optional members, for the paths of calls.

`isinstance` with a `@runtime_checkable` protocol takes ten microseconds on Python 3.11, as long as the rest of a layer.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing_extensions import TypeIs

T = TypeVar("T")


def offers(value: object, protocol: type[T]) -> TypeIs[T]:
    """Return whether an object has all public members of a protocol."""
    for name in _list_members(protocol):  # noqa: SIM110 — a loop takes a third of the time of a generator
        if not hasattr(value, name):
            return False
    return True


@cache
def _list_members(protocol: type) -> tuple[str, ...]:
    names: set[str] = set()
    for base in protocol.__mro__:
        names.update(vars(base), vars(base).get("__annotations__", ()))
    return tuple(name for name in sorted(names) if not name.startswith("_"))
