"""The chain of interceptors around every card of a session.

A call passes each addon's `before` in order, then permissions and the tool with the resulting arguments, then each
addon's `after` in reverse order. `after` also runs for denied, failed and cancelled calls. If a hook raises, times out
or returns something unexpected, `details["notes"]` of the result says so and its addon is skipped for the rest of the
session. If that addon is required, the call is rejected instead.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import cast

import anyio

from indusagi.capabilities.context import ContextId, ToolContext
from indusagi.capabilities.registry import prepare_arguments, run_tool
from indusagi.core.faults import CoreError, Note, describe_error
from indusagi.core.json import JsonObject, JsonValue, NotJson, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.tasks import run_in_daemon_thread
from indusagi.core.text import clean_text, cut_text
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.runtime.calls import current_check, waiting_for_user
from indusagi.runtime.contract import ToolCall, ToolResult, clean_result
from induscode.addons.contract import Addon, AddonError, Allow, Ask, Deny, InterceptedCall, Interceptor, Replace
from induscode.deck.contract import Capability, CardWrapper, is_foreign, iter_layers

DENIED = "denied"
REFUSED = "addon_failed"
"""Code of a call that was rejected, or whose result was withheld, because a required addon failed."""
current_question: ContextVar[str] = ContextVar("current_question", default="")
"""Why an addon wants the user to be asked about this task's call; empty if none does."""
_CLOSING_S = 1.0
"""Time for all `after` hooks of a call whose task was cancelled."""


@record
class LoadedAddon:
    """An addon of a session, with its name and source."""

    name: str
    source: str
    """A distribution, or a file of the project."""
    addon: Addon
    required: bool = False
    """Required by itself or by a setting."""


class InterceptorChain:
    """The interceptors of one session, in order.

    Calls in a context other than `main` come from sub-agents. Any `missing` required addon makes every call fail.
    `report` receives a note about each addon that starts being skipped.
    """

    def __init__(
        self,
        addons: Sequence[LoadedAddon],
        main: ContextId | None = None,
        missing: Mapping[str, str] | None = None,
        report: Callable[[Note], None] = lambda _: None,
    ) -> None:
        self._addons = [loaded for loaded in addons if loaded.addon.interceptors]
        self._main = main
        self._missing = dict(missing or {})
        self._report = report
        self.skipped: set[str] = set()
        """Failed addons, whose hooks aren't called any more."""
        self._calls = 0

    def wrap(self, card: Capability) -> Capability:
        """Put the interceptors around a card, which must already have its permission checks."""
        return InterceptedCard(card, self)

    async def run(self, card: Capability, arguments: JsonValue, ctx: ToolContext) -> ToolResult:
        """Run a call of a card between the interceptors. Raises only if its task is cancelled."""
        self._calls += 1
        refs = (getattr(layer, "ref", None) for layer in iter_layers(card))
        call = InterceptedCall(
            tool=card.name,
            arguments=await _prepare(card, arguments),
            read_only=card.read_only,
            server=next((ref.server for ref in refs if isinstance(ref, RemoteToolRef)), None),
            cwd=ctx.cwd,
            agent=str(ctx.context_id),
            is_sub_agent=ctx.context_id != self._main,
            number=self._calls,
        )
        notes: list[str] = []
        questions: list[str] = []
        result: ToolResult | None = None
        try:
            with ctx.cancel.guard():
                prepared = await self._run_before(card, call, notes, questions)
                if isinstance(prepared, ToolResult):
                    result = prepared
                else:
                    call = prepared
            if (
                result is None
                and questions
                and not any(getattr(layer, "can_ask", False) for layer in iter_layers(card))
            ):
                result = ToolResult.error(
                    f"{call.tool} was not run: {questions[0]}, and this run can't ask", code=DENIED
                )
            if result is None:
                current_question.set("; ".join(questions))
                result = await run_tool(card.name, card, call.arguments, ctx)
                if is_foreign(card):
                    # Clean it before the hooks see it: an invisible character could hide something from them.
                    result = clean_result(result, ctx.clean_foreign)
        except BaseException:
            # The task is cancelled, but an audit log must see this call too.
            stopped = ToolResult.error(f"{card.name} was cancelled", code="cancelled")
            with anyio.move_on_after(_CLOSING_S, shield=True):
                await self._run_after(call, stopped, notes)
            raise
        result = await self._run_after(call, result, notes)
        if not notes:
            return result
        known = result.details.get("notes")
        return replace(
            result, details={**result.details, "notes": [*(known if isinstance(known, list) else ()), *notes]}
        )

    async def _run_before(
        self, card: Capability, call: InterceptedCall, notes: list[str], questions: list[str]
    ) -> InterceptedCall | ToolResult:
        """Return the call with its final arguments, or the result of a denied or rejected call."""
        given = call.arguments
        for name, reason in self._missing.items():
            message = f"{call.tool} was not run: the required addon {name!r} is missing: {reason}"
            return ToolResult.error(message, code=REFUSED, addon=name)
        for loaded, interceptor in self._iter_hooks():
            try:
                decision = await _ask_before(interceptor, call, loaded.addon.deadline_s)
            except AddonError as exc:
                if loaded.required:
                    message = f"{call.tool} was not run: the required addon {loaded.name!r} failed before it: {exc}"
                    return ToolResult.error(message, code=REFUSED, addon=loaded.name)
                self._skip(loaded, f"failed before {call.tool}: {exc}", notes)
                continue
            if isinstance(decision, Deny):
                reason = clean_text(decision.reason)[0]
                message = f"{call.tool} was not run: the addon {loaded.name!r} denies it: {reason}"
                return ToolResult.error(message, code=DENIED, addon=loaded.name)
            if isinstance(decision, Ask):
                questions.append(clean_text(decision.reason)[0])
            if isinstance(decision, Replace):
                questions += [clean_text(decision.ask)[0]] if decision.ask else []
                call = replace(call, arguments=await _prepare(card, copy.deepcopy(decision.arguments)))
        check = current_check.get()
        if check is None or call.arguments == given:
            return call
        with waiting_for_user():
            return await check(ToolCall(f"{call.tool}-{call.number}", call.tool, call.arguments)) or call

    async def _run_after(self, call: InterceptedCall, result: ToolResult, notes: list[str]) -> ToolResult:
        for loaded, interceptor in reversed([*self._iter_hooks()]):
            try:
                result = await _ask_after(interceptor, call, result, loaded.addon.deadline_s)
            except AddonError as exc:
                if loaded.required:
                    message = (
                        f"the result of {call.tool} is withheld: the required addon {loaded.name!r} failed after it: "
                        f"{exc}. The call itself may have had an effect."
                    )
                    result = ToolResult.error(message, code=REFUSED, addon=loaded.name)
                else:
                    self._skip(loaded, f"failed after {call.tool}: {exc}", notes)
        return result

    def _iter_hooks(self) -> Iterator[tuple[LoadedAddon, Interceptor]]:
        for loaded in self._addons:
            for interceptor in loaded.addon.interceptors:
                if loaded.name not in self.skipped:
                    yield loaded, interceptor

    def _skip(self, loaded: LoadedAddon, reason: str, notes: list[str]) -> None:
        """Skip an addon from now on. Concurrent calls may fail, but one note is enough."""
        owner = f"addon {loaded.name!r} of {loaded.source}"
        note = Note(owner, f"{reason}; it is skipped for the rest of the session", "indus addons doctor")
        notes.append(str(note))
        if loaded.name not in self.skipped:
            self.skipped.add(loaded.name)
            self._report(note)


async def _prepare(card: Capability, arguments: JsonValue) -> JsonValue:
    """Return the arguments that will run. Invalid ones stay unchanged, since an addon may correct them."""
    prepared = await prepare_arguments(card, arguments)
    return arguments if isinstance(prepared, ToolResult) else prepared


async def _ask_before(
    interceptor: Interceptor, call: InterceptedCall, deadline_s: float
) -> Deny | Ask | Replace | None:
    if type(interceptor).before is Interceptor.before:
        return None  # not overridden: save the thread
    shown = replace(call, arguments=copy.deepcopy(call.arguments))
    decision = await call_hook(interceptor.before, shown, deadline_s=deadline_s)
    if decision is None or isinstance(decision, Allow):
        return None
    if isinstance(decision, Deny | Ask) and isinstance(decision.reason, str):  # pyright: ignore[reportUnnecessaryIsInstance] — the addon's own code
        return decision
    if isinstance(decision, Replace):
        arguments: JsonValue = decision.arguments
        try:
            compact_json(arguments)
        except NotJson as exc:
            raise AddonError(f"it replaces the arguments by what is {exc}") from exc
        if is_json_object(arguments):
            return decision
        raise AddonError("it replaces the arguments by something other than an object")
    raise AddonError(f"before returned {type(decision).__name__}, not Allow, Ask, Deny or Replace")


async def _ask_after(
    interceptor: Interceptor, call: InterceptedCall, result: ToolResult, deadline_s: float
) -> ToolResult:
    if type(interceptor).after is Interceptor.after:
        return result
    shown = replace(call, arguments=copy.deepcopy(call.arguments))
    changed = await call_hook(interceptor.after, shown, copy_result(result), deadline_s=deadline_s)
    if changed is None:
        return result
    if not isinstance(changed, ToolResult):
        raise AddonError(f"after returned {type(changed).__name__}, not a ToolResult or None")
    return changed


def copy_result(result: ToolResult) -> ToolResult:
    """Copy a result, so that an addon can only change it by returning another."""
    details: JsonObject = copy.deepcopy(dict(result.details))
    structured = copy.deepcopy(result.structured)
    return replace(result, content=copy.deepcopy([*result.content]), structured=structured, details=details)


class InterceptedCard(CardWrapper):
    """A card between a session's interceptors. It's the outermost layer; permissions are inside."""

    def __init__(self, inner: Capability, chain: InterceptorChain) -> None:
        super().__init__(inner)
        self.chain = chain

    def with_inner(self, inner: Capability) -> InterceptedCard:
        """Put the same interceptors around another card."""
        return self if inner is self.inner else InterceptedCard(inner, self.chain)

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Run the inner card between the interceptors."""
        return await self.chain.run(self.inner, arguments, ctx)


# -- hooks ------------------------------------------------------------------------------------
#
# A coroutine function runs in the event loop and is cancelled at its deadline. A plain function may block, so it runs
# in a daemon thread, which is abandoned at its deadline and ends with the process.


_MAX_REASON_CHARS = 500


async def call_hook(function: Callable[..., object], *arguments: object, deadline_s: float) -> object:
    """Call an addon's function, awaiting an awaitable result.

    Raises `AddonError` if it raised, or missed the deadline.
    """
    try:
        with anyio.move_on_after(deadline_s):
            if inspect.iscoroutinefunction(function):
                return await function(*arguments)
            value = await run_in_daemon_thread("hook of an addon", function, *arguments)
            return await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # our task; otherwise the addon cancelled itself
            raise
        raise AddonError("it was cancelled by itself") from exc
    except (Exception, SystemExit) as exc:  # boundary: the addon's own code
        raise AddonError(describe_failure(exc)) from exc
    raise AddonError(f"it was not done within {deadline_s:g} s")


def describe_failure(exc: BaseException) -> str:
    """Describe an exception from an addon's code in one printable line."""
    text = describe_error(exc)
    if not isinstance(exc, CoreError) and not text.startswith(type(exc).__name__):
        text = f"{type(exc).__name__}: {text}"
    return cut_text(" ".join(clean_text(text)[0].split()), _MAX_REASON_CHARS)
