"""Data types of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.records import record

if TYPE_CHECKING:
    from indusagi.runtime.contract import ToolOutcome
    from induscode.gateway.page.html import Html
    from induscode.permissions.confirm import PermissionRequest

ServerAction: TypeAlias = Literal["start", "stop", "restart", "sign-in", "trust"]
Topic: TypeAlias = Literal["servers", "items", "calls", "cluster"]
"""A section's dependency; the section is refetched when it changes."""


@record(kw_only=True)
class ServerSummary:
    """A configured server."""

    name: str
    transport: str
    state: str
    """Its phase, or the reason it isn't started: `untrusted`, `changed`, `unresolved`."""
    scope: str
    file: str
    tools: int
    tokens: int
    """Estimated tokens of its tool definitions."""
    answer_s: float | None
    restarts: int
    message: str = ""
    """Its problem, if any."""
    remedy: str = ""
    actions: tuple[ServerAction, ...] = ()
    disabled: int = 0


@record
class ActionReply:
    """Result of an action, for the user."""

    message: str
    url: str = ""
    """An address for the user to open: an issuer's sign-in page, checked."""


@record
class CallReply:
    """Answer to a call from the page: an outcome, or a question for the user."""

    outcome: ToolOutcome | None = None
    question: PermissionRequest | None = None
    key: str = ""
    """Identifies the question: a repeated call with this key runs if it raises the same question."""


@record
class PageView:
    """A view: title, content and navigation entry."""

    title: str
    content: Html
    section: str
    status: int = 200


class PageError(Exception):
    """A view that can't be shown; the message is for the user."""

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(message)
        self.status = status
