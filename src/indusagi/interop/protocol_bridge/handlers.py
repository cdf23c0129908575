"""What a server may ask of us. Off unless somebody is there to answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from indusagi.core.json import JsonObject

Handler: TypeAlias = Callable[[JsonObject], Awaitable[JsonObject]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """What a server may ask of us, and hear of. All off unless given."""

    elicit: Handler | None = None
    """Answers `elicitation/create`."""
    sample: Handler | None = None
    """Answers `sampling/createMessage`."""
    roots: Handler | None = None
    """Answers `roots/list`."""
    on_notification: Callable[[str, JsonObject], None] | None = None
    """Hears every notification that is not part of a request of ours (logging, changes, …)."""

    def by_method(self) -> dict[str, Handler]:
        """Map the method a server calls to whoever answers it."""
        table = {
            "elicitation/create": self.elicit,
            "sampling/createMessage": self.sample,
            "roots/list": self.roots,
        }
        return {method: handler for method, handler in table.items() if handler is not None}

    def capabilities(self) -> JsonObject:
        """Say to a server what it may ask."""
        said: JsonObject = {}
        if self.elicit is not None:
            said["elicitation"] = {"form": {}, "url": {}}
        if self.sample is not None:
            said["sampling"] = {}
        if self.roots is not None:
            said["roots"] = {"listChanged": True}
        return said
