"""Listeners: how an object that exists first tells ones that are built on it about events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

_P = ParamSpec("_P")


class Listeners(Generic[_P]):
    """The functions to call on one kind of event, in the order they were added. Call this object to report one."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: tuple[Callable[_P, object], ...] = ()

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Call every listener. An error ends the loop: a listener that may fail handles that itself."""
        for listener in self._listeners:
            listener(*args, **kwargs)

    def add(self, listener: Callable[_P, object]) -> Callable[[], None]:
        """Call `listener` on each event until the returned function is called."""
        self._listeners = (*self._listeners, listener)
        return lambda: self._remove(listener)

    def _remove(self, listener: Callable[_P, object]) -> None:
        self._listeners = tuple(one for one in self._listeners if one is not listener)
