"""What happens in a session, as values: for a terminal, for a program, for a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from indusagi.core.json import JsonObject, JsonValue

EndReason: TypeAlias = Literal["done", "limit", "repeat", "time", "cancelled", "error"]
FaultKind: TypeAlias = Literal[
    "auth", "rate_limit", "quota", "connection", "context_window", "not_found", "rejected", "server"
]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The model has said some more."""

    text: str
    starts: bool = False
    """Whether these are the first words of a passage."""


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """The model has asked for a tool."""

    id: str
    name: str
    arguments: JsonValue


@dataclass(frozen=True, slots=True)
class ToolAdvanced:
    """A tool tells how far it has come."""

    id: str
    name: str
    done: float
    total: float | None
    message: str


@dataclass(frozen=True, slots=True)
class ToolAnswered:
    """A tool has answered."""

    id: str
    name: str
    text: str
    is_error: bool
    attachments: Sequence[str] = ()
    """The media types of what was handed to the model beside the text."""
    code: str | None = None
    """Why it failed, in one word for programs."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the requests of a run have taken."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None
    """None where the price of the model is not known."""

    def plus(self, other: Usage) -> Usage:
        """Add another part; the cost of the whole is known if both are."""
        known = self.cost_usd is not None and other.cost_usd is not None
        return Usage(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            (self.cost_usd or 0) + (other.cost_usd or 0) if known else None,
        )

    def as_json(self) -> JsonObject:
        """Give it for a program."""
        return {
            "requests": self.requests,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cache_write_tokens": self.cache_write_tokens,
        }


Event: TypeAlias = "TextDelta | ToolCalled | ToolAdvanced | ToolAnswered | Usage"
Sink: TypeAlias = "Callable[[Event], Awaitable[None]]"


@dataclass(frozen=True, slots=True)
class ModelFault:
    """Why a model did not answer, in one line."""

    kind: FaultKind
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run of the loop came to its end."""

    reason: EndReason
    text: str
    """The last thing the model said; a part of it if the run ended early."""
    passages: Sequence[str] = ()
    """Everything it said on the way, the last included."""
    said: str = ""
    """Why it ended early, for people."""
    note: str = ""
    """What is odd about an answer that is there."""
    fault: ModelFault | None = None
    usage: Usage = field(default_factory=Usage)
