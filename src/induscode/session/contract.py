"""What happens in a session, as values: for a terminal, for a program, for a test.

One question to a model, and everything around it: what a loop is given.

How a session ends, as the exit code of the program.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.toolbox import DeckToolBox


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


RunEvent: TypeAlias = "TextDelta | ToolCalled | ToolAdvanced | ToolAnswered | Usage"
Sink: TypeAlias = "Callable[[RunEvent], Awaitable[None]]"


@dataclass(frozen=True, slots=True)
class ModelFault:
    """Why a model did not answer, in one line."""

    kind: FaultKind
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
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


@dataclass(slots=True)
class RequestBudget:
    """How many requests a run may still make; those of its sub-sessions count too."""

    limit: int
    used: int = 0

    @property
    def left(self) -> int:
        """Give the number that is left."""
        return max(0, self.limit - self.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One question to a model, and everything around it."""

    box: Callable[[], DeckToolBox]
    """Gives the deck as it is; asked at every step."""
    briefing: Callable[[], str]
    cancel: CancelToken
    budget: RequestBudget
    history: Sequence[JsonObject]
    sink: Sink
    on_turn: Callable[[Sequence[ToolDescriptor]], Awaitable[None]]
    """Told what the model is shown, before every request."""
    on_message: Callable[[JsonObject], Awaitable[None]]
    """Told every message, once it is complete."""
    time_s: float | None = None


class ExitCode(IntEnum):
    """What a script is told; a signal n is 128 + n."""

    OK = 0
    """The model has answered. Denied calls are listed, and do not fail the run."""
    FAILED = 1
    """Something broke that is none of the others."""
    USAGE = 2
    """What was asked for makes no sense: a flag, a file, a conversation that is not there."""
    SERVER_MISSING = 3
    """A server with `required: true` was not ready; no request was made."""
    MODEL = 4
    """No model, or the model's server refused: key, limit, context window, connection."""
    LIMIT = 5
    """The most requests were made, or the same calls came back again and again."""
    INTERRUPTED = 128 + signal.SIGINT
    READER_LEFT = 128 + signal.SIGPIPE


def signal_code(name: str) -> int:
    """Give the exit code of a signal by its name, as a cancel token carries it."""
    return 128 + signal.Signals[name].value if name in signal.Signals.__members__ else ExitCode.FAILED
