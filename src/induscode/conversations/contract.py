"""Types shared by the parts of a session: the plan of a run, its events, result and exit code."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.records import record

if TYPE_CHECKING:
    from indusagi.adapters.calls import Attachment
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
    """Whether the piece starts a new passage."""


@record
class ThinkingDelta:
    """A piece of the model's reasoning."""

    text: str


@record
class RetryScheduled:
    """A request to the model failed and will be sent again."""

    reason: str
    delay_s: float
    attempt: int
    """Number of the coming attempt."""
    attempts: int

    def describe(self, left_s: float) -> str:
        """Describe the retry in one line, `left_s` seconds before it."""
        pause = f"in {left_s:.0f} s" if left_s >= 1 else "now"
        return f"{self.reason}. Retrying {pause} ({self.attempt} of {self.attempts})"


@record
class ToolCalled:
    """The model requested a tool call."""

    id: str
    name: str
    arguments: JsonValue
    server: str = field(default="", compare=False)
    """The server of the tool; empty for a native one."""
    tool: str = field(default="", compare=False)
    """The server's name for it."""


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
    """Media types of the attachments that the model receives with the text."""
    code: str | None = None
    """Error code, for programs."""
    details: Mapping[str, JsonValue] = field(default_factory=dict[str, "JsonValue"], compare=False, repr=False)
    """Details of the result for users and programs, such as the diff of an edit."""
    waited_s: float = field(default=0.0, compare=False, repr=False)
    """Time the call spent waiting for the user's answer."""


@record
class Usage:
    """Requests, tokens and cost of a run."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None
    """`None` if the model's price is unknown."""

    def add(self, other: Usage) -> Usage:
        """Add two usages. The total cost is known if both costs are."""
        return self._combine(other, 1)

    def subtract(self, other: Usage) -> Usage:
        """Return the usage since an earlier one."""
        return self._combine(other, -1)

    def _combine(self, other: Usage, sign: int) -> Usage:
        known = self.cost_usd is not None and other.cost_usd is not None
        return Usage(
            self.requests + sign * other.requests,
            self.input_tokens + sign * other.input_tokens,
            self.output_tokens + sign * other.output_tokens,
            self.cache_read_tokens + sign * other.cache_read_tokens,
            self.cache_write_tokens + sign * other.cache_write_tokens,
            (self.cost_usd or 0) + sign * (other.cost_usd or 0) if known else None,
        )

    def to_json(self) -> JsonObject:
        """Return the counts as a JSON object, without the cost."""
        return {
            "requests": self.requests,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cache_write_tokens": self.cache_write_tokens,
        }


AnswerEvent: TypeAlias = "TextDelta | ToolCalled | ToolAdvanced | ToolAnswered | Usage"
RunEvent: TypeAlias = "AnswerEvent | ThinkingDelta | RetryScheduled"
EventSink: TypeAlias = "Callable[[RunEvent], Awaitable[None]]"
MessageSource: TypeAlias = "Callable[[], Awaitable[Sequence[str]]]"

# -- the input of a run -------------------------------------------------------------------------


@dataclass(slots=True)
class SpendLimit:
    """Limits for a session's tokens and cost, over all its turns, sub-agents and summaries."""

    tokens: int | None = None
    cost_usd: float | None = None
    used: Usage = field(default_factory=lambda: Usage(cost_usd=0.0))

    def find_reached(self) -> str:
        """Name the limit that's reached, with the figures; empty if none is."""
        tokens, cost = self.used.input_tokens + self.used.output_tokens, self.used.cost_usd
        if self.tokens is not None and tokens >= self.tokens:
            return f"--max-tokens {self.tokens:,} is reached: {tokens:,} tokens were used"
        if self.cost_usd is None or not self.used.requests:
            return ""
        if cost is None:
            return "--max-cost can't be checked, because the model's price is unknown: use --max-tokens"
        return f"--max-cost ${self.cost_usd:g} is reached: ${cost:.6g} was spent" if cost >= self.cost_usd else ""


@dataclass(slots=True)
class RequestBudget:
    """Limit for the model requests of a run, including its sub-sessions."""

    limit: int
    used: int = 0
    above: RequestBudget | None = None
    """The parent's budget, which every request counts against too."""
    session: SpendLimit | None = None
    """The session's limits."""

    @property
    def left(self) -> int:
        """Number of remaining requests."""
        left = max(0, self.limit - self.used)
        return left if self.above is None else min(left, self.above.left)

    def find_end(self) -> str:
        """Name the limit that forbids another request; empty if none does."""
        if self.left == 0:
            return f"the limit of {self.limit} requests to the model is reached"
        if self.session is not None:
            return self.session.find_reached()
        return "" if self.above is None else self.above.find_end()

    def charge(self, usage: Usage) -> None:
        """Count the tokens and the cost of a request."""
        if self.session is not None:
            self.session.used = self.session.used.add(usage)
        elif self.above is not None:
            self.above.charge(usage)

    def spend(self) -> None:
        """Count one request."""
        self.used += 1
        if self.above is not None:
            self.above.spend()


@record(kw_only=True)
class RunPlan:
    """Everything the model loop needs for a run, except the prompt."""

    toolbox: Callable[[], DeckToolBox]
    """Returns the current deck. Called before every request."""
    system_prompt: Callable[[], str]
    cancel: CancelToken
    budget: RequestBudget
    history: Sequence[JsonObject]
    sink: EventSink
    on_turn: Callable[[Sequence[ToolDescriptor]], Awaitable[None]]
    """Called before every request with its tools."""
    on_message: Callable[[JsonObject], Awaitable[None]]
    """Called with every complete message."""
    attachments: Sequence[Attachment] = ()
    """Images to send with the prompt."""
    time_s: float | None = None
    notices: Callable[[], Sequence[str]] = tuple
    """Returns notices to send with the next tool result, such as the end of a background task."""
    take_messages: MessageSource | None = None
    """Returns the user's messages since the last request, to send with the tool results."""


# -- the outcome of a run -----------------------------------------------------------------------


@record
class ModelFault:
    """The reason a model request failed, in one line."""

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
    """The model's last passage, which is incomplete if the run ended early."""
    passages: Sequence[str] = ()
    """All passages of the model, including the last."""
    message: str = ""
    """The reason for an early end, for users."""
    note: str = ""
    """A warning about a complete answer."""
    finish: str = ""
    """The finish reason of the last answer, such as `stop`, `length` or `content_filter`; empty if unknown."""
    fault: ModelFault | None = None
    usage: Usage = field(default_factory=Usage)
    context_tokens: int = 0
    """Tokens of the last request and its response; 0 if unknown."""


class ExitCode(IntEnum):
    """Exit codes of a session. Signal n gives 128 + n, as in POSIX shells."""

    OK = 0
    """The model answered. Denied calls don't fail the run, except with `--fail-on-denied`."""
    FAILED = 1
    """Any other failure."""
    USAGE = 2
    """An invalid flag, file or conversation id."""
    SERVER_MISSING = 3
    """A server with `required: true` wasn't ready, so no request was made."""
    MODEL = 4
    """No model, or its server rejected the request: key, limit, context window, connection."""
    LIMIT = 5
    """The run reached a limit (requests, tokens, cost), repeated a call too often, or `--fail-on-denied` applies."""
    INTERRUPTED = 128 + signal.SIGINT
    READER_LEFT = 128 + signal.SIGPIPE
