"""Observing calls: who makes a call, and who watches it from start to outcome.

A runner passes every call to its context's observer. Observers see calls but don't change them. A call's client and
agent are context variables (https://docs.python.org/3/library/contextvars.html), set by a host and by a sub-agent, so
code in between needs no parameters for them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple, Protocol

from indusagi.core.json import JsonObject
from indusagi.core.records import record
from indusagi.runtime.contract import ToolBox, ToolCall, ToolOutcome, ToolResult


@record
class CallingClient:
    """A client of a host. Name and version are self-reported; the principal is authenticated."""

    name: str = ""
    version: str = ""
    principal: str = ""
    """The client's authenticated user; empty if the host only knows its clients by a shared token."""


@record
class SubjectToken:
    """A client's access token, as the subject of a token exchange (RFC 8693). Never sent to a server."""

    token: str = field(repr=False)
    issuer: str
    """The token's issuer; no other issuer may see it."""


current_subject: ContextVar[SubjectToken | None] = ContextVar("current_subject", default=None)
"""Access token of the client that this task works for."""
acting_subject: ContextVar[SubjectToken | None] = ContextVar("acting_subject", default=None)
"""The same, while sending the client's call to a server. A handshake or listing in the same task is our own."""
current_user: ContextVar[str] = ContextVar("current_user", default="")
"""The host's user that this task works for, by issuer and subject (`ClientIdentity.user`); empty without access tokens.
Servers that every user signs in to are called over this user's own session."""
current_client: ContextVar[CallingClient | None] = ContextVar("current_client", default=None)
"""The host's client that this task works for."""
current_agent: ContextVar[str] = ContextVar("current_agent", default="")
"""The sub-agent that this task works for, or empty."""

current_conversation: ContextVar[str] = ContextVar("current_conversation", default="")
"""The conversation that this task works for: what one call returned may be in the arguments of the next. Set by a host;
empty where a process has only one."""


@record
class CallEntry:
    """How a call came in: through which toolbox, and under which id."""

    box: ToolBox
    """The caller's view. Calls that a tool makes in turn go through it too, so they can do no more than the caller."""
    call_id: str
    is_whole: bool = False
    """Whether the caller reads whole results, without a model's output budget, as a script does."""
    find_denied: Callable[[Collection[str]], Collection[str]] = lambda _names: ()
    """Finds the tools that a rule denies to the caller whatever the arguments, so that a search can omit them."""


current_entry: ContextVar[CallEntry | None] = ContextVar("current_entry", default=None)
"""The call that this task runs, set where calls come in: by a model loop, a command, a gateway for its scripts."""
current_check: ContextVar[Callable[[ToolCall], Awaitable[ToolResult | None]] | None] = ContextVar(
    "current_check", default=None
)
"""Checks a call of this task again after an interceptor changed its arguments; returns None if it may run."""


@dataclass(slots=True, eq=False)
class UserWait:
    """How long a call has waited for the user, and what allowed it. Concurrent questions count once."""

    _parent: UserWait | None = None
    """Wait of the call that made this one: a script waits while its calls do."""
    _open: int = 0
    _since: float = 0.0
    _total: float = 0.0
    allowed_by: str = ""
    """The rules, the flag or the user, whichever allowed the call."""

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._total + (perf_counter() - self._since if self._open else 0.0)

    @contextmanager
    def hold(self) -> Generator[None]:
        """Count the time of the block."""
        if not self._open:
            self._since = perf_counter()
        self._open += 1
        try:
            with nullcontext() if self._parent is None else self._parent.hold():
                yield
        finally:
            self._open -= 1
            if not self._open:
                self._total += perf_counter() - self._since


current_wait: ContextVar[UserWait | None] = ContextVar("current_wait", default=None)
"""Records how long this task's call waits for the user."""


def waiting_for_user() -> AbstractContextManager[None]:
    """Count a block's time as waiting for the user, separate from the run time of this task's call."""
    wait = current_wait.get()
    return nullcontext() if wait is None else wait.hold()


current_trace: ContextVar[Mapping[str, str] | None] = ContextVar("current_trace", default=None)
"""Trace context for this task's requests: `traceparent`, `tracestate` and `baggage`.

https://www.w3.org/TR/trace-context/, https://modelcontextprotocol.io/seps/414
"""


_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_TRACE_LIMITS = {"tracestate": 512, "baggage": 8_192}
"""Characters that we must pass on: https://www.w3.org/TR/trace-context/#tracestate-limits,
https://www.w3.org/TR/baggage/#limits. Longer values are dropped."""


def read_trace(meta: JsonObject) -> Mapping[str, str] | None:
    """Read a request's trace context from its `_meta`; None if missing or invalid."""
    parent = meta.get("traceparent")
    if not isinstance(parent, str) or _TRACEPARENT.fullmatch(parent) is None:
        return None
    trace = {"traceparent": parent}
    for key, limit in _TRACE_LIMITS.items():
        value = meta.get(key)
        if isinstance(value, str) and 0 < len(value) <= limit and value.isascii() and value.isprintable():
            trace[key] = value
    return trace


class ObservedRequest(Protocol):
    """One request sent to a server."""

    def finish(self, error: BaseException | None, result: JsonObject) -> None:
        """Record the end of the request, in the task that sent it. Raises nothing."""
        ...


class RequestObserver(Protocol):
    """Watches a call's requests to servers."""

    def start_request(self, method: str, target: str, version: str) -> ObservedRequest:
        """Record a request about to be sent, with the protocol revision; may set `current_trace`."""
        ...


current_requests: ContextVar[RequestObserver | None] = ContextVar("current_requests", default=None)
"""Watches this task's requests to servers."""


class CallCompletion:
    """The actual end of a call that's answered earlier, such as one that became a task of its server."""

    def __init__(self) -> None:
        self.is_deferred = False
        """Whether the call continues after its answer."""
        self._listeners: list[Callable[[ToolOutcome, float | None], None]] = []

    def listen(self, listener: Callable[[ToolOutcome, float | None], None]) -> None:
        """Call `listener` once with the actual outcome, and the call's duration in seconds if known."""
        self._listeners.append(listener)

    def finish(self, outcome: ToolOutcome, seconds: float | None = None) -> None:
        """Notify the listeners; a second call does nothing."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(outcome, seconds)


current_completion: ContextVar[CallCompletion | None] = ContextVar("current_completion", default=None)
"""Where this task's call reports its end, if its host may answer it earlier."""


UNLISTED = "(unlisted)"
"""Replaces the name of a resource or prompt that its server doesn't list: such a name is the caller's own."""


class ObservedCall(Protocol):
    """A started call."""

    def finish(self, outcome: ToolOutcome | None) -> None:
        """Record the end of the call; None if its task was cancelled. Raises nothing."""
        ...


class CallObserver(Protocol):
    """Watches a runner's calls, and uses of resources and prompts."""

    def start(self, call: ToolCall, tool: object) -> ObservedCall:
        """Record the start of a call of `tool`, which is None if its name is unknown. Raises nothing.

        `tool` can also be a resource or prompt; the kind of its reference tells them apart.
        """
        ...


class ObserverChain:
    """Several observers as one. The last one sees the end of a call first, like layers."""

    def __init__(self, observers: Sequence[CallObserver]) -> None:
        self._observers = tuple(observers)

    def start(self, call: ToolCall, tool: object) -> ObservedCall:
        """Record the start of a call."""
        return _ObservedByAll([observer.start(call, tool) for observer in self._observers])


class _ObservedByAll(NamedTuple):
    observed: Sequence[ObservedCall]

    def finish(self, outcome: ToolOutcome | None) -> None:
        for observed in reversed(self.observed):
            observed.finish(outcome)
