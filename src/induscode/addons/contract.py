"""Types of addons: what an addon contributes, what an interceptor sees, and what it may answer.

An addon is made by a function that takes an `AddonContext`. Its interceptors stand around every call of every card:
`before` may allow the call, deny it or replace its arguments; `after` may replace the result.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field, replace
from time import monotonic
from typing import TypeAlias, cast

from indusagi.core.app_dirs import make_private_dir
from indusagi.core.faults import CoreError
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.runtime.contract import JsonContentBlock, TextContentBlock, ToolContentBlock, ToolResult
from induscode.deck.contract import Capability

DEADLINE_S = 5.0
"""Time for one hook of an interceptor."""


class AddonError(CoreError):
    """An addon that cannot be used as it is."""


# -- what an interceptor sees -----------------------------------------------------------------


@record(kw_only=True)
class InterceptedCall:
    """One call of a card, as an interceptor sees it. The arguments are a copy: changing them changes nothing."""

    tool: str
    """The name of the card that a model calls."""
    arguments: JsonValue
    """As the tool will run with them: corrected and checked. Any JSON value if they don't fit the tool."""
    read_only: bool
    server: str | None = None
    """The server of the tool; None for a card of this machine."""
    cwd: str
    agent: str
    """The identity of the conversation: sub-agents have their own."""
    is_sub_agent: bool = False
    number: int
    """Counts the calls of the session from 1."""
    started: float = field(default_factory=monotonic)
    """The time of the monotonic clock at which the call arrived."""

    @property
    def elapsed_s(self) -> float:
        """The seconds since the call arrived."""
        return monotonic() - self.started


# -- what an interceptor answers --------------------------------------------------------------


@record
class Allow:
    """The call goes on as it is."""


@record
class Deny:
    """The call does not run. The reason is shown to the model and the person."""

    reason: str


@record
class Replace:
    """The call goes on with these arguments, which the permissions and the tool check."""

    arguments: JsonObject


InterceptorDecision: TypeAlias = Allow | Deny | Replace


class Interceptor:
    """Hooks around every call; subclasses override one or both.

    A hook may be `async def`, which is cancelled at its deadline and must not block, or a plain function, which runs in
    a thread of its own and is abandoned at its deadline.
    """

    def before(self, call: InterceptedCall, /) -> InterceptorDecision | Awaitable[InterceptorDecision | None] | None:
        """Decide about a call before the permissions see it; None allows it."""

    def after(self, call: InterceptedCall, result: ToolResult, /) -> ToolResult | Awaitable[ToolResult | None] | None:
        """Return the result to give instead, or None to keep it. Denied and failed calls arrive here too."""


# -- what an addon is -------------------------------------------------------------------------


@record(kw_only=True)
class AddonContext:
    """What an addon is made from."""

    name: str
    cwd: str
    """The workspace of the session."""
    state_dir: str
    """A directory of this user for the files of this addon; see `make_state_dir`."""

    def make_state_dir(self) -> str:
        """Create the directory for the addon's files, readable by this user only, and return its path.

        Raises:
            OSError: It cannot be created.
        """
        make_private_dir(os.path.dirname(self.state_dir))
        return make_private_dir(self.state_dir)


@record(kw_only=True)
class Addon:
    """What an addon contributes to a session."""

    interceptors: Sequence[Interceptor] = ()
    """In order: `before` from the first to the last, `after` from the last to the first."""
    cards: Sequence[Capability] = ()
    required: bool = False
    """Whether a call is refused if a hook fails. Otherwise the addon is skipped for the rest of the session."""
    deadline_s: float = DEADLINE_S
    """Time for one hook: more than 0 and at most 60 seconds."""
    close: Callable[[], object] | None = None
    """Called at the end of the session, under the same deadline."""


AddonFactory: TypeAlias = Callable[[AddonContext], Addon]
"""What an entry point names, and what a project's file defines as `addon`."""


# -- results ----------------------------------------------------------------------------------


def annotate(result: ToolResult, text: str) -> ToolResult:
    """Add a line of text for the model to a result."""
    return replace(result, content=(*result.content, TextContentBlock(text)))


def replace_texts(result: ToolResult, change: Callable[[str], str]) -> ToolResult:
    """Replace every string of a result: in its blocks, its structured content and its details.

    Keys in content are replaced too. Of the details, names and the error `code` stay.
    """

    def walk(value: JsonValue) -> JsonValue:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, list):
            return [walk(item) for item in value]
        if isinstance(value, dict):
            return {change(key): walk(item) for key, item in value.items()}
        return value

    def convert(block: ToolContentBlock) -> ToolContentBlock:
        if isinstance(block, JsonContentBlock):
            return JsonContentBlock(walk(block.value))
        return TextContentBlock(change(block.text), cast("JsonObject | None", walk(block.extra)))

    details = {name: value if name == "code" else walk(value) for name, value in result.details.items()}
    content = [convert(block) for block in result.content]
    return replace(result, content=content, structured=walk(result.structured), details=details)
