"""Decisions: about this call, with these arguments, leading there, and only once.

A yes is bound to everything that was looked at. If anything of it is different when the call runs,
it is another call, and nobody has said yes to it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from indusagi.core.json import compact_json

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from induscode.session.permissions.call_facts import Facts


class Scope(StrEnum):
    """For how long somebody says yes."""

    ONCE = "once"
    SESSION = "session"
    ALWAYS_TOOL = "always for this"
    ALWAYS_SERVER = "always for this server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Everything a decision is about."""

    tool: str
    server: str | None
    arguments: str
    """A digest of the arguments in one canonical form."""
    paths: tuple[tuple[str, bool, str | None], ...]
    """Where every path leads, whether it is written to, and why the door would not open."""
    cwd: str
    workspace: str
    pin: str | None
    sandbox: str


def binding_of(facts: Facts) -> Binding:
    """Give what a decision about a call is bound to."""
    return Binding(
        tool=facts.tool,
        server=facts.server,
        arguments=arguments_digest(facts.arguments),
        paths=tuple((path.resolved, path.writing, path.refusal) for path in facts.paths),
        cwd=facts.cwd,
        workspace=facts.workspace,
        pin=facts.pin,
        sandbox=str(facts.sandbox),
    )


def arguments_digest(arguments: JsonObject) -> str:
    """Digest arguments; the order of their keys makes no difference."""
    text = compact_json(arguments, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


class Decision:
    """A yes that can be used once."""

    def __init__(self, binding: Binding, scope: Scope, by: str) -> None:
        self.binding = binding
        self.scope = scope
        self.by = by
        """Who said yes: a person, or what the session was started with."""
        self._spent = False

    def spend(self, binding: Binding) -> bool:
        """Use it for a call; False if it is about another, or was used before."""
        if self._spent or binding != self.binding:
            return False
        self._spent = True
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a person is asked, in full: what is shown is what runs."""

    tool: str
    server: str | None
    lines: tuple[str, ...]
    """Every fact, whole, with nothing in it that a terminal would obey."""
    reasons: tuple[str, ...]
    """Why somebody is asked."""
    saves: tuple[str, ...]
    """The rules that `session` and `always` would keep; empty if there are none."""
    scopes: tuple[Scope, ...]
    """The answers that there are besides no, which is the default."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person said; without a scope it is no."""

    scope: Scope | None = None
    comment: str = ""
    """What the model is told with a no."""


class Asker(Protocol):
    """Somebody who can ask a person."""

    async def ask(self, question: Question) -> Answer:
        """Ask, and wait for the answer."""
        ...
