"""Faults that any package may raise; `induscode.deck.contract` is their public location."""

from __future__ import annotations

from indusagi.core.faults import CoreError


class DeckFault(CoreError):
    """A fault of the deck."""


class UnknownCapability(DeckFault):
    """No card has this id."""

    def __init__(self, identity: str, hint: str | None = None) -> None:
        meant = f"; did you mean {hint!r}?" if hint else ""
        super().__init__(f"there is no capability {identity!r}{meant}")
        self.id = identity


class BuildFailed(DeckFault):
    """Building a card failed."""

    def __init__(self, identity: str, message: str) -> None:
        super().__init__(f"capability {identity!r} could not be built: {message}")
        self.id = identity
        self.message = message


class BridgeFault(DeckFault):
    """An invalid MCP configuration, key or ledger operation."""


class BackendFault(DeckFault):
    """An injected handle is unusable."""
