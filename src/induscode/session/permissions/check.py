"""The gate itself: every call of a card passes here, whoever makes it.

It finds out what the call would do, compares that with all the rules, asks somebody if it must, and
lets the card run with what was looked at: those arguments, that door, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.capabilities.context import PerContext
from indusagi.core.notes import Note
from indusagi.core.text import escape_invisible
from indusagi.runtime.content import project_content
from indusagi.runtime.contract import ToolResult
from induscode.deck.contract import CardWrapper
from induscode.session.permissions.call_facts import gather_facts, prepare_arguments
from induscode.session.permissions.confirm import (
    ApprovalScope,
    PermissionAnswer,
    bind_call,
    build_request,
    build_rules,
    remedy,
    server_rule,
)
from induscode.session.permissions.path_grants import PathGrant, restrict_context
from induscode.session.permissions.policy import Approval, PolicyContext, decide_call, find_denying_rule
from induscode.session.permissions.rules import Effect, Rule, RuleOrigin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.deck.contract import Capability
    from induscode.session.permissions.call_facts import CallFacts
    from induscode.session.permissions.confirm import Approver
    from induscode.session.permissions.policy import Decision
    from induscode.session.permissions.store import RuleStore


_ATTEMPTS = 3
"""How often somebody is asked anew because a path leads elsewhere after the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What the gate says to a call."""

    allowed: bool
    by: str = ""
    """What allowed the call: the rules, the user, or a flag."""
    reason: str = ""
    """For a no: what is in the way, and what would help, in words for a model and a person."""
    code: str = "denied"
    facts: CallFacts | None = None
    """What was looked at; the arguments to run with are in it."""


def _never() -> bool:
    return False


class _Folders:
    """Where the shell of a context may stand."""

    def __init__(self) -> None:
        self.last: str | None = None


class Permissions:
    """Decides about calls; one for a session, with the rules that hold in it.

    Args:
        rules: From the command line, the user's store and the project.
        approver: Who can ask a person; without one, what would be asked is denied.
        approval: What becomes of calls that would be asked about.
        plan: Tells whether the session is in plan mode.
        plans_dir: Where plan mode may write.
        store: Where a person's "always" is kept; without one it holds for the session.
    """

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        *,
        approver: Approver | None = None,
        approval: Approval = Approval.ASK,
        plan: Callable[[], bool] = _never,
        plans_dir: str | None = None,
        store: RuleStore | None = None,
    ) -> None:
        self._rules = [*rules]
        self._asker = approver
        self._approval = approval
        self._plan = plan
        self._plans_dir = plans_dir
        self._store = store
        self._asking = anyio.Lock()
        self._folders: PerContext[_Folders] = PerContext(_Folders)
        self.notes: list[Note] = []
        """What went wrong besides."""

    @property
    def rules(self) -> Sequence[Rule]:
        """The rules that hold, those that were made in this session included."""
        return tuple(self._rules)

    async def check(self, card: Capability, arguments: JsonValue, ctx: ToolContext) -> CheckResult:
        """Decide about a call; a person may be asked."""
        given = await prepare_arguments(card, arguments)
        if isinstance(given, ToolResult):
            return CheckResult(
                allowed=False, reason=str(project_content(given.content)), code=str(given.details["code"])
            )
        for _ in range(_ATTEMPTS):
            verdict = await self._check_once(card, given, ctx)
            if verdict is not None:
                return verdict
        reason = f"{card.name} was not run: where its paths lead changes all the time"
        return CheckResult(allowed=False, reason=reason)

    async def run(
        self, card: Capability, arguments: JsonValue, ctx: ToolContext, also: Sequence[Permissions] = ()
    ) -> ToolResult:
        """Run a card if the gate and the others say yes; what one says otherwise is the answer."""
        for other in also:
            said = await other.check(card, arguments, ctx)
            if said.facts is None or not said.allowed:
                return ToolResult.error(said.reason, code=said.code)
            arguments = said.facts.arguments
        verdict = await self.check(card, arguments, ctx)
        facts = verdict.facts
        if facts is None or not verdict.allowed:
            return ToolResult.error(verdict.reason, code=verdict.code)
        leave = PathGrant(facts)
        try:
            own = restrict_context(ctx, facts, leave, _denier(facts, (self, *also)))
            result = await card.run(facts.arguments, own)
        finally:
            leave.end()
        self._follow_shell(facts, ctx, result)
        return result

    # -- deciding ---------------------------------------------------------------------------

    async def _check_once(self, card: Capability, given: JsonObject, ctx: ToolContext) -> CheckResult | None:
        """Decide about a call as it is now; None if it became another while somebody was asked."""
        facts = await self._gather(card, given, ctx)
        judgement = await self._judge(facts)
        if judgement.effect is not Effect.ASK:
            return self._settled(facts, judgement)
        if self._asker is None:
            return _denied(facts, judgement, f"nobody is there to ask. {_to_allow(facts, judgement)}")
        # One question at a time; the answer to the one before may have settled this one.
        async with self._asking:
            judgement = await self._judge(facts)
            if judgement.effect is not Effect.ASK:
                return self._settled(facts, judgement)
            answer = await self._ask(self._asker, facts, judgement)
            if answer.scope is None:
                said = f": {escape_invisible(answer.comment)[0]}" if answer.comment else ""
                return _denied(facts, judgement, f"the user said no{said}")
            again = await self._gather(card, given, ctx)
            if bind_call(again) != bind_call(facts):
                return None
            await self._remember(facts, judgement, answer.scope)
        return CheckResult(allowed=True, by="the user", facts=again)

    async def _gather(self, card: Capability, given: JsonObject, ctx: ToolContext) -> CallFacts:
        last = self._folders.of(ctx).last
        return await gather_facts(card, given, ctx, () if last is None else (last,))

    async def _judge(self, facts: CallFacts) -> Decision:
        return await to_thread.run_sync(self._judge_now, facts)

    def _judge_now(self, facts: CallFacts) -> Decision:
        store = self._store
        stance = PolicyContext(
            approval=self._approval,
            plan=self._plan(),
            plans_dir=self._plans_dir,
            unsandboxed=store is not None and store.unsandboxed(facts.workspace),
        )
        return decide_call(facts, tuple(self._rules), stance)

    def _settled(self, facts: CallFacts, judgement: Decision) -> CheckResult:
        if judgement.effect is Effect.DENY:
            return _denied(facts, judgement, "it is denied")
        by = f"--approval {self._approval.value}" if judgement.reasons else "the rules"
        return CheckResult(allowed=True, by=by, facts=facts)

    async def _ask(self, approver: Approver, facts: CallFacts, judgement: Decision) -> PermissionAnswer:
        question = build_request(facts, judgement)
        try:
            answer = await approver.ask(question)
        except Exception as exc:  # noqa: BLE001 — boundary: whoever asks is the host's
            return PermissionAnswer(None, f"asking failed: {type(exc).__name__}: {exc}")
        offered = answer.scope is None or answer.scope in question.scopes
        return answer if offered else PermissionAnswer(None, f"{answer.scope} was not one of the answers")

    # -- remembering ------------------------------------------------------------------------

    async def _remember(self, facts: CallFacts, judgement: Decision, scope: ApprovalScope) -> None:
        if scope is ApprovalScope.ONCE:
            return
        per_server = scope is ApprovalScope.ALWAYS_SERVER
        rules = (server_rule(facts),) if per_server else build_rules(facts, judgement)
        # A server, a path and a script of this name are something else in another project.
        here = [replace(rule, workspace=facts.workspace) for rule in rules]
        self._rules += here
        if scope is ApprovalScope.SESSION or self._store is None:
            return
        kept = [replace(rule, origin=RuleOrigin.USER) for rule in here]
        try:
            await to_thread.run_sync(self._store.add, kept)
        except OSError as exc:
            note = Note("a decision for always", f"holds for this session only: {exc}")
            self.notes.append(note)

    def _follow_shell(self, facts: CallFacts, ctx: ToolContext, result: ToolResult) -> None:
        """Note where bash stands now: the next command may name its files from there."""
        folder = result.details.get("cwd")
        if facts.tool == "bash" and isinstance(folder, str):
            self._folders.of(ctx).last = folder


def _denier(facts: CallFacts, gates: Sequence[Permissions]) -> Callable[[str], str | None]:
    def denies(resolved: str) -> str | None:
        given = [rule for gate in gates for rule in gate.rules]
        found = find_denying_rule(given, facts, resolved)
        return None if found is None else found.told

    return denies


def _denied(facts: CallFacts, judgement: Decision, why: str) -> CheckResult:
    reasons = "".join(f"\n- {escape_invisible(reason)[0]}" for reason in judgement.reasons)
    return CheckResult(allowed=False, reason=f"{facts.tool} was not run: {why}{reasons}", facts=facts)


def _to_allow(facts: CallFacts, judgement: Decision) -> str:
    if judgement.undecided:
        return (
            "Write the command plainly, so that it can be compared with the rule, or start without"
            " that rule. Why it would be asked:"
        )
    return f"To allow it, start with {remedy(facts, judgement)}. Why it would be asked:"


# -- cards ------------------------------------------------------------------------------------


class CheckedCard(CardWrapper):
    """A card behind one gate or several, all of which must say yes."""

    def __init__(self, inner: Capability, *gates: Permissions) -> None:
        super().__init__(inner)
        self.gates = gates

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Run the card inside if the gates say yes."""
        gate, *others = self.gates
        return await gate.run(self.inner, arguments, ctx, others)


def require_permission(card: Capability, gate: Permissions) -> CheckedCard:
    """Put a card behind a gate, and leave it behind those it is behind already.

    For `ToolDeck.map_capabilities`. A sub-session that is given require_permission cards and a gate of its own
    may do what both allow.
    """
    if not isinstance(card, CheckedCard):
        return CheckedCard(card, gate)
    return card if gate in card.gates else CheckedCard(card.inner, gate, *card.gates)
