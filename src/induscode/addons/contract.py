"""Addon types: an addon's contributions, and the calls and decisions of its interceptors.

A function that takes an `AddonContext` builds an addon. Its interceptors wrap every call of every card: `before` may
allow the call, deny it or replace its arguments; `after` may replace the result.
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
"""Time for one interceptor hook."""


class AddonError(CoreError):
    """An addon can't be used as it is."""


# -- calls ------------------------------------------------------------------------------------


@record(kw_only=True)
class InterceptedCall:
    """A card's call as an interceptor sees it. The arguments are a copy: changing them has no effect."""

    tool: str
    """The card's name for models."""
    arguments: JsonValue
    """The corrected and checked arguments the tool will run with. Any JSON value if they don't fit the tool."""
    read_only: bool
    server: str | None = None
    """The tool's server; None for a local card."""
    cwd: str
    agent: str
    """Identity of the conversation. Sub-agents have different ones."""
    is_sub_agent: bool = False
    number: int
    """Counts the session's calls from 1."""
    started: float = field(default_factory=monotonic)
    """Monotonic time at which the call arrived."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the call arrived."""
        return monotonic() - self.started


# -- decisions --------------------------------------------------------------------------------


@record
class Allow:
    """Continue with the call unchanged."""


@record
class Deny:
    """Don't run the call. The model and the user see the reason."""

    reason: str


@record
class Ask:
    """Ask the user before the call runs, whatever rules allow. Without a user to ask, it's denied."""

    reason: str


@record
class Replace:
    """Continue with these arguments, which the permissions and the tool check."""

    arguments: JsonObject
    ask: str = ""
    """Why the user must be asked, as with `Ask`; empty if not."""


InterceptorDecision: TypeAlias = Allow | Deny | Ask | Replace


class Interceptor:
    """Hooks around every call; subclasses override one or both.

    A hook may be `async def`, which is cancelled at its deadline and must not block, or a plain function, which runs in
    a separate thread and is abandoned at its deadline.
    """

    def before(self, call: InterceptedCall, /) -> InterceptorDecision | Awaitable[InterceptorDecision | None] | None:
        """Decide about a call before permissions see it. None allows it."""

    def after(self, call: InterceptedCall, result: ToolResult, /) -> ToolResult | Awaitable[ToolResult | None] | None:
        """Return a replacement for the result, or None to keep it. Denied and failed calls arrive here too."""


# -- addons -----------------------------------------------------------------------------------


@record(kw_only=True)
class AddonContext:
    """The input of an addon's factory."""

    name: str
    cwd: str
    """The session's workspace."""
    state_dir: str
    """This user's directory for the addon's files; see `make_state_dir`."""

    def make_state_dir(self) -> str:
        """Create the directory for the addon's files, readable only by this user, and return its path.

        Raises `OSError` if it can't be created.
        """
        make_private_dir(os.path.dirname(self.state_dir))
        return make_private_dir(self.state_dir)


@record(kw_only=True)
class Addon:
    """An addon's contributions to a session."""

    interceptors: Sequence[Interceptor] = ()
    """In order: `before` runs from first to last, `after` from last to first."""
    cards: Sequence[Capability] = ()
    required: bool = False
    """Whether a failing hook fails the call. Otherwise the addon is skipped for the rest of the session."""
    deadline_s: float = DEADLINE_S
    """Time for one hook: more than 0 and at most 60 seconds."""
    close: Callable[[], object] | None = None
    """Called at the end of the session, under the same deadline."""


# -- results ----------------------------------------------------------------------------------


def annotate(result: ToolResult, text: str) -> ToolResult:
    """Add a line of text for the model to a result."""
    return replace(result, content=(*result.content, TextContentBlock(text)))


def replace_texts(result: ToolResult, change: Callable[[str], str]) -> ToolResult:
    """Replace every string of a result: in its blocks, its structured content and its details.

    Keys in content are replaced too. In details, names and the error `code` stay.
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
