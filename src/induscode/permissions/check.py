"""Permission checks, which every call of a card must pass.

A check gathers the facts about the call, applies the policy and all rules, asks the user if necessary, and runs the
card with exactly the checked arguments and a file system limited to the checked paths.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.capabilities.context import PerContext, ToolContext
from indusagi.capabilities.tool import approved_change
from indusagi.core.faults import Note
from indusagi.core.protocols import offers
from indusagi.core.records import record
from indusagi.core.text import escape_invisible
from indusagi.runtime.calls import current_wait, waiting_for_user
from indusagi.runtime.contract import ToolResult, project_content
from induscode.addons.chain import InterceptedCard, current_question
from induscode.deck.contract import Capability, CardWrapper, iter_layers
from induscode.permissions import UnansweredError
from induscode.permissions.call_facts import (
    CallFacts,
    ConfinableShell,
    PathGrant,
    gather_facts,
    identify_card,
    prepare_arguments,
    preview_change,
    restrict_context,
)
from induscode.permissions.confirm import (
    ApprovalScope,
    Approver,
    InstantApprover,
    ParallelApprover,
    PermissionAnswer,
    build_request,
    build_rules,
    build_server_rule,
    suggest_remedy,
)
from induscode.permissions.flow import FlowCard, FlowGuard, run_admitted
from induscode.permissions.policy import (
    ApprovalMode,
    Decision,
    PolicyContext,
    decide_call,
    find_denying_rule,
    find_total_denial,
    find_total_permission,
)
from induscode.permissions.rules import Effect, Rule, RuleOrigin, RuleStore

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.permissions.plan_mode import PlanMode

PLAN = "plan"
_MAX_ATTEMPTS = 3
"""Questions about a call whose paths change while the user answers."""
_UNDECIDED_REMEDY = "Write the command plainly, so that it can be compared with the rule, or start without that rule."


@record(kw_only=True)
class CheckResult:
    """Result of a permission check."""

    allowed: bool
    by: str = ""
    """The rules with their origins, the user or a flag, whichever allowed the call; empty if it needs no permission."""
    reason: str = ""
    """The reason for a denial and a remedy, for the model and the user."""
    code: str = "denied"
    facts: CallFacts | None = None
    """The checked facts, with the arguments to run with."""
    confined: bool = False
    """Whether it must run without writes and network, as a harmless command."""
    answer: ToolResult | None = None
    """The result of a call that needs no answer of the user, because it changes nothing."""

    def to_result(self) -> ToolResult:
        """Return the result of a call that doesn't run."""
        is_new = self.facts is not None and self.facts.change is not None and self.facts.change.before is None
        return self.answer or ToolResult.error(self.reason, code=self.code, **({"created": True} if is_new else {}))


class _ShellFolder:
    """The shell's directory in one context."""

    path: str | None = None


class Permissions:
    """Permissions of a session: its rules, its approval mode, and a way to ask the user.

    Args:
        rules: From the command line, the user's store and the project.
        approver: Asks the user. Without one, calls that need a question fail.
        approval: The policy for calls that need a question. Only the user may request a change.
        plan: Plan mode, if the session has it.
        store: Stores answers given for "always". Without it, they last for the session.
        limits: Makes these permissions purely restrictive, used in addition to others, which check the sandbox.
            Without an approver, a denial gives this sentence as the cause.
        harmless: Whether commands that only read run without a question, in a sandbox without writes and network.
        flow: Knows what the conversation has read, if calls that send data out are guarded.
        entry: The function with `allow` and `approval` parameters to name in remedies, instead of flags.
    """

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        *,
        approver: Approver | None = None,
        approval: ApprovalMode = ApprovalMode.ASK,
        plan: PlanMode | None = None,
        store: RuleStore | None = None,
        limits: str | None = None,
        harmless: bool = False,
        entry: str = "",
        flow: FlowGuard | None = None,
    ) -> None:
        self._entry = entry
        self.flow = flow
        self.rules: Sequence[Rule] = tuple(rules)
        """All rules in force, including this session's."""
        self._limits, self._harmless = limits, harmless
        self.approver = approver
        self.approval = self._first_approval = approval
        self._plan = plan
        self._store = store
        self._asking = anyio.Lock()
        self._waiting = self._answered = 0
        """Questions that wait or are open, and those answered since none was."""
        self._workspaces: dict[str, str] = {}
        """Resolved working directories by context directory, which are stable within a session."""
        self.session_rules: Sequence[Rule] = ()
        """The rules that the user added for this session only."""
        self._shell_folders: PerContext[_ShellFolder] = PerContext(_ShellFolder)
        self.notes: list[Note] = []
        """Problems with the store."""

    def restore_rules(self, rules: Iterable[Rule]) -> None:
        """Add rules that the user gave earlier in this session."""
        added = [rule for rule in rules if rule not in self.session_rules]
        self.session_rules = (*self.session_rules, *added)
        self.rules = (*self.rules, *added)

    async def store_rule(self, rule: Rule) -> None:
        """Add and store a rule that the user gave for "always". If that raises `OSError`, the rule isn't added."""
        if self._store is None:
            raise OSError("there is no store for rules")
        stored = replace(rule, origin=RuleOrigin.USER, file=self._store.path)
        await to_thread.run_sync(self._store.add, [stored])
        if stored not in self.rules:
            self.rules = (*self.rules, stored)

    async def remove_rule(self, rule: Rule) -> bool:
        """Remove a rule that the user gave for this session or for "always". Return whether it existed.

        Raises `OSError` if the store can't be written.
        """
        if rule not in self.rules or rule.origin not in {RuleOrigin.SESSION, RuleOrigin.USER}:
            return False
        if rule.origin is RuleOrigin.USER:
            # The rule that stands in for unreadable ones has no row, and stays.
            if self._store is None or not await to_thread.run_sync(self._store.remove, rule):
                return False
        self.rules = tuple(other for other in self.rules if other != rule)
        self.session_rules = tuple(other for other in self.session_rules if other != rule)
        return True

    @property
    def mode(self) -> str:
        """The current mode: `plan`, or the approval mode."""
        return PLAN if self._plan is not None and self._plan.active else self.approval.value

    @property
    def modes(self) -> Sequence[str]:
        """The modes to choose from. `all` requires a session that started with it."""
        all_modes = (ApprovalMode.ALL.value,) if self._first_approval is ApprovalMode.ALL else ()
        return (ApprovalMode.ASK.value, ApprovalMode.AUTO_EDIT.value, PLAN, *all_modes)

    def change_mode(self, name: str = "") -> None:
        """Change the mode, by default to the next one. Raises `ValueError` if there's no such mode."""
        modes = self.modes
        name = name or modes[(modes.index(self.mode) + 1) % len(modes)]
        if name not in modes:
            raise ValueError(f"there is no mode {name!r}: {', '.join(modes)}")
        if self._plan is not None:
            self._plan.active = name == PLAN
        if name != PLAN:
            self.approval = ApprovalMode(name)

    def accept_edits(self) -> None:
        """Allow writes in the workspace without asking from now on, as with `--approval auto-edit`."""
        if self.approval is ApprovalMode.ASK:
            self.approval = ApprovalMode.AUTO_EDIT

    async def check(self, card: Capability, arguments: JsonValue, ctx: ToolContext) -> CheckResult:
        """Check a call, asking the user if necessary."""
        prepared = await prepare_arguments(card, arguments)
        if isinstance(prepared, ToolResult):
            reason = str(project_content(prepared.content))
            return CheckResult(allowed=False, reason=reason, code=str(prepared.details["code"]))
        for _ in range(_MAX_ATTEMPTS):
            facts = await self._gather(card, prepared, ctx)
            if self.flow is not None and self.flow.shared is not None:
                await self.flow.refresh(self.flow.describe_call(facts))
            decision = await self._decide(facts)
            if decision.effect is not Effect.ASK:
                return _to_result(facts, decision, self.approval)
            if self.approver is None:
                if self._limits is not None:
                    return _deny(facts, decision, f"{self._limits}. What it would do:")
                return self._deny_unanswered(facts, decision, "this run cannot ask the user")
            with nullcontext() if isinstance(self.approver, InstantApprover) else waiting_for_user():
                result = await self._ask(self.approver, card, facts, ctx)
            if result is not None:
                return result
        reason = f"{card.name} was not run: its paths keep changing"
        return CheckResult(allowed=False, reason=reason)

    def find_free_rule(self, card: Capability) -> Rule | None:
        """Return the rule that allows every call of a server's card, if no other rule could name the tool."""
        if self._plan is not None or self._limits is not None:
            return None
        facts = identify_card(card, "")
        return None if facts.remote is None else find_total_permission(facts, self.rules)

    async def preview(self, card: Capability, arguments: JsonValue, ctx: ToolContext) -> Decision | ToolResult:
        """Return the decision on a call without asking the user, or an error result for invalid arguments."""
        prepared = await prepare_arguments(card, arguments)
        return (
            prepared
            if isinstance(prepared, ToolResult)
            else await self._decide(await self._gather(card, prepared, ctx))
        )

    async def run(
        self, card: Capability, arguments: JsonValue, ctx: ToolContext, also: Sequence[Permissions] = ()
    ) -> ToolResult:
        """Run a card if these permissions and all in `also` allow the call. A denial is an error result."""
        for other in also:
            result = await other.check(card, arguments, ctx)
            if result.facts is None or not result.allowed:
                return result.to_result()
            arguments = result.facts.arguments
        result = await self.check(card, arguments, ctx)
        facts = result.facts
        if facts is None or not result.allowed:
            return result.to_result()
        if (wait := current_wait.get()) is not None:
            wait.allowed_by = result.by
        if result.confined:
            assert offers(ctx.shell, ConfinableShell)
            ctx = replace(ctx, shell=ctx.shell.confine())
        call = None if self.flow is None else self.flow.describe_call(facts)
        if not facts.paths and facts.script is None:
            return await run_admitted(self.flow, call, card, facts.arguments, ctx)

        token = approved_change.set(facts.change)
        try:
            with self._restrict(ctx, facts, also) as restricted:
                answer = await run_admitted(self.flow, call, card, facts.arguments, restricted)
        finally:
            approved_change.reset(token)
        folder = answer.details.get("cwd")
        if facts.tool == "bash" and isinstance(folder, str):
            # The next command may use paths relative to this directory.
            self._shell_folders.of(ctx).path = folder
        return answer

    @contextmanager
    def _restrict(self, ctx: ToolContext, facts: CallFacts, also: Sequence[Permissions] = ()) -> Generator[ToolContext]:
        """Limit the files of a context to the checked paths, inside the block."""

        def find_denial(resolved: str) -> str | None:
            rules = [rule for permissions in (self, *also) for rule in permissions.rules]
            rule = find_denying_rule(rules, facts, resolved)
            return None if rule is None else rule.reason

        grant = PathGrant(facts)
        try:
            yield restrict_context(ctx, facts, grant, find_denial)
        finally:
            grant.end()

    async def _preview(self, card: Capability, facts: CallFacts, ctx: ToolContext) -> CallFacts | CheckResult:
        """Add the change that a call would make to its facts. One that fails or changes nothing needs no question."""
        with self._restrict(ctx, facts) as restricted:
            preview = await preview_change(card, facts, restricted)
        if preview is None:
            return facts
        result = preview.result
        if not result.is_error and result.details.get("changed") is not False:
            return replace(facts, change=preview)
        # An error may quote the file: the model sees it only if it may read the file.
        paths = tuple(replace(path, writing=False) for path in facts.paths)
        reading = await self._decide(replace(facts, tool="read", paths=paths))
        if reading.effect is not Effect.ALLOW:
            return facts
        return CheckResult(allowed=False, answer=result, facts=facts)

    async def _gather(self, card: Capability, arguments: JsonObject, ctx: ToolContext) -> CallFacts:
        known = self._workspaces.get(ctx.cwd)
        facts = await gather_facts(
            card, arguments, ctx, workspace=known, find_shell_folder=lambda: self._shell_folders.of(ctx).path
        )
        self._workspaces[ctx.cwd] = facts.workspace
        return facts

    async def _decide(self, facts: CallFacts) -> Decision:
        is_planning = self._plan is not None and self._plan.active
        context = PolicyContext(
            approval=self.approval,
            plan=is_planning,
            harmless=self._harmless and self._limits is None,
            limits=self._limits is not None,
        )
        rules = self.rules
        if not facts.paths and facts.script is None:
            return self._guard_flow(facts, decide_call(facts, rules, context))
        # In a thread: it resolves symbolic links in the paths of rules, and compares long scripts with them.
        return self._guard_flow(facts, await to_thread.run_sync(decide_call, facts, rules, context))

    def _guard_flow(self, facts: CallFacts, decision: Decision) -> Decision:
        """Add an addon's wish for a question, and the objection of the flow guard, to a decision."""
        if (question := current_question.get()) and decision.effect is not Effect.DENY:
            reasons = (question, *decision.reasons)
            decision = replace(decision, effect=Effect.ASK, reasons=reasons, asked_by_rule=True)
        objection = None if self.flow is None else self.flow.find_objection(self.flow.describe_call(facts))
        if objection is None or decision.effect is Effect.DENY:
            return decision
        reason = objection.reason
        if objection.mode == "deny":
            return Decision(effect=Effect.DENY, reasons=(reason,))
        if objection.mode == "note" or self.approval is ApprovalMode.ALL:
            return replace(decision, noted=reason)
        reasons = (reason, *decision.reasons)
        return replace(decision, effect=Effect.ASK, reasons=reasons, flow=reason, asked_by_rule=True)

    async def _ask(
        self, approver: Approver, card: Capability, facts: CallFacts, ctx: ToolContext
    ) -> CheckResult | None:
        """Ask the user. Return `None` if the facts changed before the answer."""
        if isinstance(approver, ParallelApprover):
            return await self._ask_next(approver, card, facts, ctx)
        self._waiting += 1
        try:
            # Ask one question at a time, because the previous answer may settle this one.
            async with self._asking:
                return await self._ask_next(approver, card, facts, ctx)
        finally:
            self._waiting -= 1
            self._answered = self._answered + 1 if self._waiting else 0

    def _find_place(self) -> str:
        """Return the open question's place among those that wait."""
        count = self._answered + self._waiting
        return f"{self._answered + 1} of {count}" if count > 1 else ""

    async def _ask_next(
        self, approver: Approver, card: Capability, facts: CallFacts, ctx: ToolContext
    ) -> CheckResult | None:
        decision = await self._decide(facts)
        if decision.effect is not Effect.ASK:
            return _to_result(facts, decision, self.approval)
        previewed = await self._preview(card, facts, ctx)
        if isinstance(previewed, CheckResult):
            return previewed
        facts = previewed
        request = build_request(facts, decision, ctx.on_progress, mode=self.approval, place=self._find_place)
        answer = PermissionAnswer(None, "the call was cancelled")
        try:
            with ctx.cancel.guard() if isinstance(approver, ParallelApprover) else nullcontext():
                answer = await approver.ask(request)
        except UnansweredError as exc:
            return self._deny_unanswered(facts, decision, str(exc))
        except Exception as exc:  # noqa: BLE001 — boundary: the approver is the host's code
            answer = PermissionAnswer(None, f"asking failed: {type(exc).__name__}: {exc}")
        scope, comment = answer.scope, answer.comment
        if scope is not None and scope not in request.scopes:
            scope, comment = None, f"{scope} was not one of the answers"
        if scope is None:
            suffix = f": {escape_invisible(comment)[0]}" if comment else ""
            return _deny(facts, decision, f"{answer.by} declined{suffix}")
        # If the same arguments now lead elsewhere, it's a different call.
        current = await self._gather(card, facts.arguments, ctx)
        if current != facts:
            return None
        await self._remember(facts, decision, scope)
        current = replace(current, change=facts.change)
        by = f"{answer.by}, asked by the flow guard" if decision.flow else answer.by
        return CheckResult(allowed=True, by=by, facts=current)

    def _deny_unanswered(self, facts: CallFacts, decision: Decision, cause: str) -> CheckResult:
        """Deny a call that nobody answered, with the remedy."""
        if self._limits is not None:
            return _deny(facts, decision, f"{self._limits}, and {cause}. What it would do:")
        remedy = f"To allow it, {suggest_remedy(facts, decision, self._entry)}."
        if decision.undecided:
            remedy = _UNDECIDED_REMEDY
        if current_question.get():
            remedy = "Run it in a session, where you're asked."
        return _deny(facts, decision, f"{cause}. {remedy} Why it would be asked:")

    async def _remember(self, facts: CallFacts, decision: Decision, scope: ApprovalScope) -> None:
        """Add the rules of an answer to the session, and to the store if it's for "always"."""
        if scope is ApprovalScope.ONCE:
            return
        if scope is ApprovalScope.EDITS:
            self.accept_edits()
            return
        if self.flow is not None and decision.flow:
            self.flow.allow(self.flow.describe_call(facts))
        is_server = scope is ApprovalScope.ALWAYS_SERVER
        rules = (build_server_rule(facts),) if is_server else build_rules(facts, decision)
        # In another project, the same name means another server, path or script.
        local = [replace(rule, workspace=facts.workspace) for rule in rules]
        if scope is ApprovalScope.SESSION or self._store is None:
            self.restore_rules(local)
            return
        for rule in local:
            try:
                await self.store_rule(rule)
            except OSError as exc:
                self.restore_rules([rule])
                self.notes.append(Note("a decision for always", f"holds for this session only: {exc}"))


def _to_result(facts: CallFacts, decision: Decision, approval: ApprovalMode) -> CheckResult:
    if decision.effect is Effect.DENY:
        return _deny(facts, decision, "it is denied")
    by = "harmless" if decision.confined else ", ".join(map(attrgetter("reason"), decision.rules))
    is_edit = approval is ApprovalMode.AUTO_EDIT and any(path.writing for path in facts.paths)
    if decision.reasons or (is_edit and not by):
        by = f"--approval {approval.value}"
    if decision.noted:
        by = f"{by}, noted: {decision.noted}".removeprefix(", ")
    return CheckResult(allowed=True, by=by, facts=facts, confined=decision.confined)


def _deny(facts: CallFacts, decision: Decision, cause: str) -> CheckResult:
    reasons = "".join(f"\n- {escape_invisible(reason)[0]}" for reason in decision.reasons)
    return CheckResult(allowed=False, reason=f"{facts.tool} was not run: {cause}{reasons}", facts=facts)


# -- cards --------------------------------------------------------------------------------------


class CheckedCard(CardWrapper):
    """A card whose calls must pass one or more permissions."""

    can_ask = True

    def __init__(self, inner: Capability, *permissions: Permissions) -> None:
        super().__init__(inner)
        self.permissions = permissions
        self._rules: Sequence[Rule] | None = None
        """The rules that `_free` was found for."""
        self._free: Rule | None = None
        self._guarded = inner

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Run the inner card if the permissions allow the call. A tool that no rule is about needs no look at each."""
        first, *others = self.permissions
        if self._rules is not first.rules:
            self._rules, self._free = first.rules, None if others else first.find_free_rule(self.inner)
            self._guarded = self.inner if first.flow is None else FlowCard(self.inner, first.flow, lambda: first)
        if self._free is not None and not current_question.get():
            if (wait := current_wait.get()) is not None:
                wait.allowed_by = self._free.reason
            return await self._guarded.run(arguments, ctx)
        return await first.run(self.inner, arguments, ctx, others)


async def preview_card(card: Capability, arguments: JsonValue, ctx: ToolContext) -> Sequence[Decision] | ToolResult:
    """Return the decision of each of a card's permissions, without asking, or an error result for invalid arguments."""
    decisions: list[Decision] = []
    checked = [layer for layer in iter_layers(card) if isinstance(layer, CheckedCard)]
    for layer in checked:
        for permissions in layer.permissions:
            decision = await permissions.preview(layer.inner, arguments, ctx)
            if isinstance(decision, ToolResult):
                return decision
            decisions.append(decision)
    return decisions


def is_denied(card: Capability, arguments: JsonObject | None = None, /, *, workspace: str) -> bool:
    """Return whether a rule denies the current caller every call of a card, or the one with all `arguments`.

    `workspace` must be resolved.
    """
    for layer in iter_layers(card):
        if isinstance(layer, CheckedCard):
            facts = identify_card(layer.inner, workspace, arguments)
            rules = (rule for permissions in layer.permissions for rule in permissions.rules)
            return find_total_denial(facts, rules, is_whole=arguments is not None) is not None
    return False


def require_permission(card: Capability, permissions: Permissions) -> CheckedCard | InterceptedCard:
    """Add permissions to a card, for `ToolDeck.map_capabilities`."""
    if isinstance(card, InterceptedCard):  # interceptors stay outside, so that permissions see the final call
        return card.with_inner(require_permission(card.inner, permissions))
    if not isinstance(card, CheckedCard):
        return CheckedCard(card, permissions)
    return card if permissions in card.permissions else CheckedCard(card.inner, permissions, *card.permissions)


def limit_card(card: Capability, limits: Permissions) -> CheckedCard:
    """Add purely restrictive permissions to a card, to check before asking the user."""
    if isinstance(card, CheckedCard):
        return CheckedCard(card.inner, *card.permissions, limits)
    return CheckedCard(card, limits)
