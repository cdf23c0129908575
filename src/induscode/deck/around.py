"""A card around a card: to everybody else it looks like the one inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from indusagi.runtime.contract import JsonSchema, ToolDescriptor
from induscode.deck.contract import Capability, ForeignCard, describe


class CardWrapper:
    """Shows what the card inside shows; those who derive from it say what its run is."""

    def __init__(self, inner: Capability) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    @property
    def name(self) -> str:
        """The name of the card inside."""
        return self.inner.name

    @property
    def label(self) -> str:
        """The label of the card inside."""
        return self.inner.label

    @property
    def description(self) -> str:
        """The description of the card inside."""
        return self.inner.description

    @property
    def parameters(self) -> JsonSchema:
        """The parameters of the card inside."""
        return self.inner.parameters

    @property
    def read_only(self) -> bool:
        """What the card inside says."""
        return self.inner.read_only

    @property
    def foreign(self) -> bool:
        """Whether a stranger wrote the card inside."""
        return is_foreign(self.inner)

    @property
    def descriptor(self) -> ToolDescriptor:
        """What a model is told about the card inside."""
        return describe(self.inner)


@runtime_checkable
class _Wrapper(Protocol):
    @property
    def inner(self) -> Capability: ...


def layers(card: Capability) -> Iterator[Capability]:
    """Give a card and what it is wrapped around, the innermost last."""
    yield card
    while isinstance(card, _Wrapper):
        card = card.inner
        yield card


def is_foreign(card: Capability) -> bool:
    """Tell whether a stranger wrote the card, or one that it is wrapped around."""
    return any(isinstance(one, ForeignCard) and one.foreign for one in layers(card))
