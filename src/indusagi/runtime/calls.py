"""Observation of calls: who makes a call, and what watches it from its start to its outcome.

A runner hands every call to the observer of its context. An observer sees calls and changes nothing about them. The
client and the agent of a call are context variables (https://docs.python.org/3/library/contextvars.html), set by a host
and by a sub-agent: code in between needs no parameter for them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import field
from time import perf_counter
from typing import Protocol

from indusagi.core.json import JsonObject
from indusagi.core.records import record
from indusagi.runtime.contract import ToolBox, ToolCall, ToolOutcome, ToolResult


@record
class CallingClient:
    """A client of a host. Its name and version are its own words; the principal was authenticated."""

    name: str = ""
    version: str = ""
    principal: str = ""
    """The authenticated user of the client; empty if the host knows its clients by a shared token alone."""


@record
class SubjectToken:
    """The access token of a client, as the subject of a token exchange (RFC 8693); it is never sent to a server."""

    token: str = field(repr=False)
    issuer: str
    """Whose token it is: it is shown to no other issuer."""


current_subject: ContextVar[SubjectToken | None] = ContextVar("current_subject", default=None)
"""The access token of the client for which this task works."""
acting_subject: ContextVar[SubjectToken | None] = ContextVar("acting_subject", default=None)
"""The same while a call of the client is sent to a server. A handshake or a listing in the same task is our own."""
current_client: ContextVar[CallingClient | None] = ContextVar("current_client", default=None)
"""The client of a host for which this task works."""
current_agent: ContextVar[str] = ContextVar("current_agent", default="")
"""The sub-agent for which this task works; empty outside of one."""


@record
class CallEntry:
    """How a call came in: through which toolbox, and under which id."""

    box: ToolBox
    """As the caller sees it. What a tool calls in turn goes through it too, and so can do no more than the caller."""
    call_id: str
    is_whole: bool = False
    """Whether the caller reads results whole, without the output budget of a model: a script does."""
    find_denied: Callable[[Collection[str]], Collection[str]] = lambda _names: ()
    """Tells which tools of the box a rule denies to the caller, whatever the arguments: a search leaves them out."""


current_entry: ContextVar[CallEntry | None] = ContextVar("current_entry", default=None)
"""The call that this task runs, set where calls come in: by a model loop, a command, a gateway for its scripts."""
current_check: ContextVar[Callable[[ToolCall], Awaitable[ToolResult | None]] | None] = ContextVar(
    "current_check", default=None
)
"""Checks a call of this task again after an interceptor changed its arguments; returns None if it may run."""


class UserWait:
    """How long a call has waited for the user. Questions that are open at the same time count once."""

    __slots__ = ("_open", "_parent", "_since", "_total")

    def __init__(self, parent: UserWait | None = None) -> None:
        self._parent = parent
        """Of the call that made this one: a script waits while a call of it does."""
        self._open, self._since, self._total = 0, 0.0, 0.0

    @property
    def seconds(self) -> float:
        """The seconds until now."""
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
"""Where this task counts how long its call waits for the user."""


def waiting_for_user() -> AbstractContextManager[None]:
    """Count the time of a block as waiting for the user, apart from the time that the call of this task runs."""
    wait = current_wait.get()
    return nullcontext() if wait is None else wait.hold()


current_trace: ContextVar[Mapping[str, str] | None] = ContextVar("current_trace", default=None)
"""The trace context that requests of this task carry: `traceparent`, `tracestate` and `baggage`.

https://www.w3.org/TR/trace-context/, https://modelcontextprotocol.io/seps/414
"""


_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_TRACE_LIMITS = {"tracestate": 512, "baggage": 8_192}
"""Characters that must be passed on: https://www.w3.org/TR/trace-context/#tracestate-limits,
https://www.w3.org/TR/baggage/#limits. Longer values are left out."""


def read_trace(meta: JsonObject) -> Mapping[str, str] | None:
    """Read the trace context of a request from its `_meta`; None if there is none or it is invalid."""
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
    """One request to a server that was sent."""

    def finish(self, error: BaseException | None, result: JsonObject) -> None:
        """Note the end of the request, in the task that sent it. Raises nothing."""
        ...


class RequestObserver(Protocol):
    """Watches the requests to servers that a call makes."""

    def start_request(self, method: str, target: str, version: str) -> ObservedRequest:
        """Note a request that is sent next, with the revision of the protocol; it may set `current_trace`."""
        ...


current_requests: ContextVar[RequestObserver | None] = ContextVar("current_requests", default=None)
"""Watches the requests that this task sends to servers."""


class CallCompletion:
    """The true end of a call that is answered before it ends, such as one that became a task of its server."""

    def __init__(self) -> None:
        self.is_deferred = False
        """Whether the call goes on after its answer."""
        self._listeners: list[Callable[[ToolOutcome, float | None], None]] = []

    def listen(self, listener: Callable[[ToolOutcome, float | None], None]) -> None:
        """Call `listener` once with the true outcome, and how many seconds the call took if that is known."""
        self._listeners.append(listener)

    def finish(self, outcome: ToolOutcome, seconds: float | None = None) -> None:
        """Tell the listeners; a second call does nothing."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(outcome, seconds)


current_completion: ContextVar[CallCompletion | None] = ContextVar("current_completion", default=None)
"""Where the call of this task reports its end, if its host may answer it earlier."""


UNLISTED = "(unlisted)"
"""Stands for the name of a resource or prompt that its server does not list: such a name is the caller's own."""


class ObservedCall(Protocol):
    """One call that has started."""

    def finish(self, outcome: ToolOutcome | None) -> None:
        """Note the end of the call; None if its task was cancelled. Raises nothing."""
        ...


class CallObserver(Protocol):
    """Watches the calls of a runner, and uses of resources and prompts."""

    def start(self, call: ToolCall, tool: object) -> ObservedCall:
        """Note the start of a call of `tool`, which is None if its name is unknown. Raises nothing.

        A resource or prompt stands in the place of a tool, and the kind of its reference tells them apart.
        """
        ...


class ObserverChain:
    """Several observers as one. The last one sees a call first when it ends, as layers do."""

    def __init__(self, observers: Sequence[CallObserver]) -> None:
        self._observers = tuple(observers)

    def start(self, call: ToolCall, tool: object) -> ObservedCall:
        """Note the start of a call."""
        return _ObservedByAll([observer.start(call, tool) for observer in self._observers])


class _ObservedByAll:
    __slots__ = ("_observed",)

    def __init__(self, observed: Sequence[ObservedCall]) -> None:
        self._observed = observed

    def finish(self, outcome: ToolOutcome | None) -> None:
        for observed in reversed(self._observed):
            observed.finish(outcome)
