"""Listeners are called in order, and each one only until it's removed."""

from __future__ import annotations

from indusagi.core.tasks import Listeners


def test_every_listener_is_called_in_order_until_it_is_removed() -> None:
    listeners: Listeners[[str]] = Listeners()
    heard: list[str] = []
    remove = listeners.add(lambda text: heard.append(f"first {text}"))
    listeners.add(lambda text: heard.append(f"second {text}"))
    listeners("a")
    remove()
    remove()
    listeners("b")
    assert heard == ["first a", "second a", "second b"]


def test_a_listener_may_remove_itself_while_it_is_called() -> None:
    listeners: Listeners[[]] = Listeners()
    heard: list[str] = []

    def hear_once() -> None:
        heard.append("once")
        remove()

    remove = listeners.add(hear_once)
    listeners.add(lambda: heard.append("always"))
    listeners()
    listeners()
    assert heard == ["once", "always", "always"]
