"""Values that the parts of a session exchange: the plan of a run, its events, its result and its exit code."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from indusagi.adapters.content import Attachment
    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.provision import DeckToolBox

EndReason: TypeAlias = Literal["done", "limit", "repeat", "time", "cancelled", "error"]
FaultKind: TypeAlias = Literal[
    "auth", "rate_limit", "quota", "connection", "context_window", "not_found", "rejected", "server"
]

# -- events -------------------------------------------------------------------------------------


@record
class TextDelta:
    """A piece of the model's text."""

    text: str
    starts: bool = False
    """Whether the piece begins a new passage."""


@record
class ToolCalled:
    """The model requested a tool call."""

    id: str
    name: str
    arguments: JsonValue


@record
class ToolAdvanced:
    """A running tool reported progress."""

    id: str
    name: str
    done: float
    total: float | None
    message: str


@record
class ToolAnswered:
    """A tool call ended."""

    id: str
    name: str
    text: str
    is_error: bool
    attachments: Sequence[str] = ()
    """Media types of the attachments that the model receives beside the text."""
    code: str | None = None
    """Error code, for programs."""
    details: Mapping[str, JsonValue] = field(default_factory=dict[str, "JsonValue"], compare=False, repr=False)
    """Details of the result for people and programs, such as the diff of an edit."""
    waited_s: float = field(default=0.0, compare=False, repr=False)
    """How long the call waited for the user, who was asked about it."""


@record
class Usage:
    """Requests, tokens and cost of a run."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None
    """None if the price of the model is unknown."""

    def add(self, other: Usage) -> Usage:
        """Add two usages; the total cost is known if both costs are."""
        known = self.cost_usd is not None and other.cost_usd is not None
        return Usage(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            (self.cost_usd or 0) + (other.cost_usd or 0) if known else None,
        )

    def subtract(self, other: Usage) -> Usage:
        """Give the part of this usage that was added to an earlier one."""
        known = self.cost_usd is not None and other.cost_usd is not None
        return Usage(
            self.requests - other.requests,
            self.input_tokens - other.input_tokens,
            self.output_tokens - other.output_tokens,
            self.cache_read_tokens - other.cache_read_tokens,
            self.cache_write_tokens - other.cache_write_tokens,
            (self.cost_usd or 0) - (other.cost_usd or 0) if known else None,
        )

    def to_json(self) -> JsonObject:
        """Give the counts as a JSON object, without the cost."""
        return {
            "requests": self.requests,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cache_write_tokens": self.cache_write_tokens,
        }


RunEvent: TypeAlias = "TextDelta | ToolCalled | ToolAdvanced | ToolAnswered | Usage"
EventSink: TypeAlias = "Callable[[RunEvent], Awaitable[None]]"

# -- the input of a run -------------------------------------------------------------------------


@dataclass(slots=True)
class RequestBudget:
    """Number of model requests a run may make, those of its sub-sessions included."""

    limit: int
    used: int = 0
    above: RequestBudget | None = None
    """The budget of the parent, from which every request is taken too."""

    @property
    def left(self) -> int:
        """Requests that are left."""
        left = max(0, self.limit - self.used)
        return left if self.above is None else min(left, self.above.left)

    def spend(self) -> None:
        """Take one request."""
        self.used += 1
        if self.above is not None:
            self.above.spend()


@record(kw_only=True)
class RunPlan:
    """Everything the model loop needs for one run beside the prompt."""

    toolbox: Callable[[], DeckToolBox]
    """Gives the current deck; called before every request."""
    system_prompt: Callable[[], str]
    cancel: CancelToken
    budget: RequestBudget
    history: Sequence[JsonObject]
    sink: EventSink
    on_turn: Callable[[Sequence[ToolDescriptor]], Awaitable[None]]
    """Called before every request with the tools that the model is shown."""
    on_message: Callable[[JsonObject], Awaitable[None]]
    """Called with every complete message."""
    attachments: Sequence[Attachment] = ()
    """Images that the model receives with the prompt."""
    time_s: float | None = None
    notices: Callable[[], Sequence[str]] = tuple
    """Gives what the model is told with the next result of a tool, such as the end of a background task."""


# -- the outcome of a run -----------------------------------------------------------------------


@record
class ModelFault:
    """Why a request to a model failed, in one line."""

    kind: FaultKind
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


@record(kw_only=True)
class RunResult:
    """Outcome of a run."""

    reason: EndReason
    text: str = ""
    """The last passage of the model; incomplete if the run ended early."""
    passages: Sequence[str] = ()
    """All passages of the model, the last included."""
    message: str = ""
    """Why the run ended early, for people."""
    note: str = ""
    """A warning about a complete answer."""
    finish: str = ""
    """Why the last answer ended, such as `stop`, `length` or `content_filter`; empty if that is unknown."""
    fault: ModelFault | None = None
    usage: Usage = field(default_factory=Usage)
    context_tokens: int = 0
    """Tokens of the last request and its response; 0 if they are unknown."""


class ExitCode(IntEnum):
    """Exit codes of a session; a signal n gives 128 + n, as a POSIX shell reports it."""

    OK = 0
    """The model answered. Denied calls are listed, and do not fail the run."""
    FAILED = 1
    """A failure that has no code of its own."""
    USAGE = 2
    """An invalid flag, file or conversation id."""
    SERVER_MISSING = 3
    """A server with `required: true` was not ready; no request was made."""
    MODEL = 4
    """No model, or its server refused the request: key, limit, context window, connection."""
    LIMIT = 5
    """The request limit was reached, or the same call was repeated too often."""
    INTERRUPTED = 128 + signal.SIGINT
    READER_LEFT = 128 + signal.SIGPIPE
