"""The chain of interceptors around a card: order, decisions, failures, cancellation."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from tests.support.deck import capability
from tests.support.dialogs import scripted

from indusagi.capabilities import ToolSpec, define_tool, make_local_context
from indusagi.core.cancel import CancelToken
from indusagi.runtime import JsonContentBlock, TextContentBlock, ToolCall, ToolOutcome, ToolResult, project_content
from induscode.addons import Addon, Allow, Ask, Deny, InterceptedCall, Interceptor, Replace, annotate, replace_texts
from induscode.addons.chain import InterceptedCard, InterceptorChain, LoadedAddon
from induscode.deck.mcp.capability import BridgeCapability
from induscode.deck.provision import ToolDeck
from induscode.permissions.check import CheckedCard, Permissions, require_permission
from induscode.permissions.confirm import PersonApprover
from induscode.permissions.policy import ApprovalMode
from induscode.permissions.rules import Effect, RuleOrigin, parse_rules

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.faults import Note
    from indusagi.core.json import JsonValue
    from induscode.deck.contract import Capability

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@dataclass
class Echo:
    """A card that answers with its text and remembers it."""

    texts: list[str] = field(default_factory=list[str])

    def card(self) -> Capability:
        async def run(arguments: Any, _: ToolContext) -> str:
            self.texts.append(arguments["text"])
            return f"echo {arguments['text']}"

        return define_tool(ToolSpec("echo", "Echo a text.", SCHEMA, run, read_only=True))


@dataclass
class Hooks(Interceptor):
    """An interceptor with its hooks as functions, which logs its name."""

    name: str = "x"
    log: list[str] = field(default_factory=list[str])
    on_before: Callable[[InterceptedCall], object] | None = None
    on_after: Callable[[InterceptedCall, ToolResult], object] | None = None

    async def before(self, call: InterceptedCall, /) -> Any:
        self.log.append(f"{self.name} before")
        return self.on_before(call) if self.on_before else None

    async def after(self, call: InterceptedCall, result: ToolResult, /) -> Any:
        self.log.append(f"{self.name} after")
        return self.on_after(call, result) if self.on_after else None


def load(*interceptors: Interceptor, name: str = "x", required: bool = False, deadline_s: float = 5.0) -> LoadedAddon:
    return LoadedAddon(name, "a test", Addon(interceptors=interceptors, deadline_s=deadline_s), required)


@dataclass
class Chained:
    """A card inside a chain, and the notes that were reported."""

    card: Capability
    notes: list[Note]
    context: ToolContext

    async def call(self, cancel: CancelToken | None = None, **arguments: object) -> ToolOutcome:
        box = ToolDeck([self.card], self.context).into_tool_box()
        call = ToolCall("1", self.card.name, cast("JsonValue", arguments))
        return await box.runner.run(call, cancel)


@pytest.fixture
def echo() -> Echo:
    return Echo()


def chain(inner: Capability, cwd: Path, *addons: LoadedAddon, **missing: str) -> Chained:
    notes: list[Note] = []
    context = make_local_context(str(cwd))
    wrapped = InterceptorChain(addons, context.context_id, missing, notes.append).wrap(inner)
    return Chained(wrapped, notes, context)


# -- order ------------------------------------------------------------------------------------


async def test_before_runs_in_order_and_after_in_reverse(echo: Echo, tmp_path: Path) -> None:
    log: list[str] = []
    first, second, third = (Hooks(name, log) for name in ("first", "second", "third"))
    both = chain(echo.card(), tmp_path, load(first, second, name="a"), load(third, name="b"))
    assert (await both.call(text="hi")).output == "echo hi"
    befores = ["first before", "second before", "third before"]
    assert log == [*befores, "third after", "second after", "first after"]


async def test_each_addon_sees_what_the_one_before_it_made(echo: Echo, tmp_path: Path) -> None:
    def build(mark: str) -> Hooks:
        def extend(call: InterceptedCall) -> Replace:
            return Replace({"text": f"{cast('dict[str, str]', call.arguments)['text']}{mark}"})

        return Hooks(on_before=extend, on_after=lambda _, result: annotate(result, mark))

    one, two = build("1"), build("2")
    both = chain(echo.card(), tmp_path, load(one, name="one"), load(two, name="two"))
    outcome = await both.call(text="x")
    assert echo.texts == ["x12"]
    assert [cast("TextContentBlock", block).text for block in outcome.content] == ["echo x12", "2", "1"]


async def test_an_interceptor_sees_the_call_and_cannot_change_it_in_place(echo: Echo, tmp_path: Path) -> None:
    seen: list[InterceptedCall] = []

    def spoil(call: InterceptedCall) -> Allow:
        seen.append(call)
        cast("dict[str, str]", call.arguments)["text"] = "spoilt"
        return Allow()

    chained = chain(echo.card(), tmp_path, load(Hooks(on_before=spoil)))
    await chained.call(text="whole")
    other = replace(chained.context, context_id=type(chained.context.context_id)("ctx_other"))
    await replace(chained, context=other).call(text="whole")
    assert echo.texts == ["whole", "whole"]
    main, sub = seen
    assert (main.tool, main.read_only, main.server, main.cwd) == ("echo", True, None, str(tmp_path))
    assert [(call.is_sub_agent, call.agent, call.number) for call in (main, sub)] == [
        (False, str(chained.context.context_id), 1),
        (True, "ctx_other", 2),
    ]
    assert main.elapsed_s >= 0


async def test_a_result_changed_in_place_stays_as_it_was(tmp_path: Path) -> None:
    async def run(_: Any, __: ToolContext) -> ToolResult:
        return ToolResult((JsonContentBlock({"n": 1}),), structured={"n": 1})

    def spoil(_: InterceptedCall, result: ToolResult) -> None:
        cast("dict[str, int]", cast("JsonContentBlock", result.content[0]).value)["n"] = 2
        cast("dict[str, int]", result.structured)["n"] = 2

    tool = define_tool(ToolSpec("n", "A number.", {"type": "object"}, run))
    outcome = await chain(tool, tmp_path, load(Hooks(on_after=spoil))).call()
    assert (outcome.output, outcome.structured) == ({"n": 1}, {"n": 1})


# -- decisions --------------------------------------------------------------------------------


async def test_a_denial_names_the_addon_and_the_tool_does_not_run(echo: Echo, tmp_path: Path) -> None:
    log: list[str] = []
    addons = (
        load(Hooks("first", log, on_before=lambda _: Deny("no \x1b[31mcolour")), name="strict"),
        load(Hooks("second", log), name="later"),
    )
    outcome = await chain(echo.card(), tmp_path, *addons).call(text="hi")
    assert outcome.output == "echo was not run: the addon 'strict' denies it: no colour"
    assert dict(outcome.details) == {"code": "denied", "addon": "strict"}
    assert outcome.is_error
    assert echo.texts == []
    # Every `after` runs, so that a log sees the denial whatever its place.
    assert log == ["first before", "second after", "first after"]


async def test_replaced_arguments_are_checked_by_the_tool(echo: Echo, tmp_path: Path) -> None:
    wrong = Hooks(on_before=lambda _: Replace({"text": 5}))
    outcome = await chain(echo.card(), tmp_path, load(wrong)).call(text="hi")
    assert outcome.details["code"] == "invalid_arguments"
    assert echo.texts == []


@pytest.mark.parametrize(("denied", "runs"), [("b", False), ("a", True)])
async def test_permissions_see_the_arguments_that_run(tmp_path: Path, denied: str, runs: bool) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"text of {name}", encoding="utf-8")
    from indusagi.capabilities import read_tool  # noqa: PLC0415 — loads the tools

    rules, problems = parse_rules([f"read(./{denied}.txt)"], Effect.DENY, RuleOrigin.FLAG)
    assert not problems
    swap = Hooks(on_before=lambda _: Replace({"path": "b.txt"}))
    checked = CheckedCard(read_tool(), Permissions(rules))
    outcome = await chain(checked, tmp_path, load(swap)).call(path="a.txt")
    assert ("text of b" in str(outcome.output)) is runs
    assert outcome.is_error is not runs


@pytest.mark.parametrize(("answer", "denies", "runs"), [("y", False, True), ("n", False, False), ("y", True, False)])
async def test_an_addon_has_the_user_asked_whatever_is_allowed(
    echo: Echo, tmp_path: Path, answer: str, denies: bool, runs: bool
) -> None:
    asking = [
        Hooks(on_before=lambda _: Ask("look\u202e at it")),
        Hooks(on_before=lambda _: Replace({"text": "b"}, "twice")),
    ]
    dialog = scripted(answer)
    rules, _ = parse_rules(["echo"], Effect.DENY if denies else Effect.ALLOW, RuleOrigin.FLAG)
    permissions = Permissions(rules, approver=PersonApprover(dialog), approval=ApprovalMode.ALL)
    asked = chain(CheckedCard(echo.card(), permissions), tmp_path, load(*asking))
    outcome = await asked.call(text="a")
    assert outcome.is_error is not runs
    assert echo.texts == (["b"] if runs else [])
    if not denies:
        assert "look at it; twice" in "\n".join(dialog.questions[0].lines)
    # Another call, and one inside this one, isn't asked about.
    assert (
        not (await chain(CheckedCard(echo.card(), permissions), tmp_path, load(Hooks())).call(text="c")).is_error
        or denies
    )


async def test_where_nobody_can_be_asked_the_call_is_denied(echo: Echo, tmp_path: Path) -> None:
    outcome = await chain(echo.card(), tmp_path, load(Hooks(on_before=lambda _: Ask("look")))).call(text="a")
    assert outcome.is_error
    assert "echo was not run: look, and this run can't ask" in str(outcome.output)
    assert echo.texts == []


async def test_further_permissions_are_put_inside_the_interceptors(echo: Echo, tmp_path: Path) -> None:
    first, second = Permissions(), Permissions()
    inner = chain(CheckedCard(echo.card(), first), tmp_path, load(Hooks()))
    card = require_permission(inner.card, second)
    assert require_permission(card, second) is card
    assert isinstance(card, InterceptedCard)
    assert isinstance(card.inner, CheckedCard)
    assert card.inner.permissions == (second, first)
    assert (await replace(inner, card=card).call(text="hi")).output == "echo hi"


async def test_a_servers_result_is_cleaned_before_an_interceptor_sees_it(tmp_path: Path) -> None:
    class Runner:
        async def run(self, call: ToolCall, *_: object, **__: object) -> ToolOutcome:
            return ToolOutcome(call.id, ToolResult.text("to\u200bken"))

    known = capability("srv", "get")
    remote = BridgeCapability.from_definition(known.descriptor, known.ref, known.raw, Runner())
    seen: list[object] = []
    hooks = Hooks(on_after=lambda call, r: seen.append((call.server, project_content(r.content))))
    chained = chain(remote, tmp_path, load(hooks))
    outcome = await chained.call()
    assert seen == [("srv", outcome.output)]
    assert "\u200b" not in str(outcome.output)


# -- failures ---------------------------------------------------------------------------------


def always(value: object) -> Callable[..., object]:
    """Make a hook that returns this value."""
    return lambda *_: value


def fail(*_: object) -> None:
    raise ValueError("boom")


def leave(*_: object) -> None:
    raise SystemExit(3)


BAD = [
    pytest.param({"on_before": fail}, "failed before echo: ValueError: boom", id="before-raises"),
    pytest.param({"on_after": fail}, "failed after echo: ValueError: boom", id="after-raises"),
    pytest.param({"on_before": leave}, "failed before echo: SystemExit: 3", id="before-exits"),
    pytest.param({"on_before": always("yes")}, "before returned str", id="before-type"),
    pytest.param({"on_before": always(Deny(cast("str", None)))}, "before returned Deny", id="deny-without-reason"),
    pytest.param({"on_after": always("yes")}, "after returned str", id="after-type"),
    pytest.param({"on_before": always(Replace(cast("Any", [1])))}, "other than an object", id="replace-list"),
    pytest.param({"on_before": always(Replace(cast("Any", {"a": {1}})))}, "by what is", id="replace-not-json"),
]


@pytest.mark.parametrize(("hooks", "message"), BAD)
async def test_a_failing_addon_is_named_and_skipped_from_then_on(
    echo: Echo, tmp_path: Path, hooks: dict[str, Any], message: str
) -> None:
    log: list[str] = []
    chained = chain(echo.card(), tmp_path, load(Hooks("bad", log, **hooks), name="bad"), load(Hooks("good", log)))
    outcome = await chained.call(text="hi")
    assert outcome.output == "echo hi"
    (note,) = cast("list[str]", outcome.details["notes"])
    assert note.startswith("addon 'bad' of a test: ")
    assert message in note
    assert [str(one) for one in chained.notes] == [note]
    log.clear()
    outcome = await chained.call(text="again")
    assert (outcome.output, "notes" in outcome.details) == ("echo again", False)
    assert log == ["good before", "good after"]


@pytest.mark.parametrize(("hooks", "message"), BAD)
async def test_a_failing_required_addon_refuses_every_call(
    echo: Echo, tmp_path: Path, hooks: dict[str, Any], message: str
) -> None:
    chained = chain(echo.card(), tmp_path, load(Hooks(**hooks), name="must", required=True))
    for _ in range(2):
        outcome = await chained.call(text="hi")
        assert outcome.is_error
        assert (outcome.details["code"], outcome.details["addon"]) == ("addon_failed", "must")
        assert "echo hi" not in str(outcome.output)
        assert "the required addon 'must' failed" in str(outcome.output)
        assert message.removeprefix("failed before echo: ").removeprefix("failed after echo: ") in str(outcome.output)
    assert len(echo.texts) == (2 if "on_after" in hooks else 0)
    assert chained.notes == []


async def test_a_missing_required_addon_refuses_every_call_and_the_others_see_it(echo: Echo, tmp_path: Path) -> None:
    log: list[str] = []
    outcome = await chain(echo.card(), tmp_path, load(Hooks("x", log)), gone="it isn't trusted yet").call(text="hi")
    assert outcome.output == "echo was not run: the required addon 'gone' is missing: it isn't trusted yet"
    assert outcome.details["code"] == "addon_failed"
    assert (log, echo.texts) == (["x after"], [])


class AsyncHang(Interceptor):
    async def before(self, call: InterceptedCall, /) -> None:
        await anyio.sleep_forever()


class ThreadHang(Interceptor):
    def __init__(self) -> None:
        self.release, self.thread = threading.Event(), threading.current_thread()

    def before(self, call: InterceptedCall, /) -> None:
        self.thread = threading.current_thread()
        self.release.wait()


async def test_an_addon_that_hangs_is_skipped_at_its_deadline(echo: Echo, tmp_path: Path) -> None:
    chained = chain(echo.card(), tmp_path, load(AsyncHang(), name="slow", deadline_s=0.05))
    outcome = await chained.call(text="hi")
    assert outcome.output == "echo hi"
    assert "addon 'slow' of a test: failed before echo: it was not done within 0.05 s" in str(outcome.details["notes"])


async def test_a_blocking_addon_is_abandoned_at_its_deadline(echo: Echo, tmp_path: Path) -> None:
    hang = ThreadHang()
    chained = chain(echo.card(), tmp_path, load(hang, name="slow", deadline_s=0.05))
    try:
        outcome = await chained.call(text="hi")
    finally:
        hang.release.set()
    assert outcome.output == "echo hi"
    assert "it was not done within 0.05 s" in str(outcome.details["notes"])
    await anyio.to_thread.run_sync(hang.thread.join, 10)


def test_a_hook_that_ends_after_the_program_is_of_no_consequence(echo: Echo, tmp_path: Path) -> None:
    hang = ThreadHang()
    chained = chain(echo.card(), tmp_path, load(hang, deadline_s=0.05))
    outcome = anyio.run(lambda: chained.call(text="hi"))
    hang.release.set()
    hang.thread.join(60)
    assert (outcome.output, hang.thread.is_alive()) == ("echo hi", False)


async def test_a_hook_that_cancels_itself_is_a_failing_one(echo: Echo, tmp_path: Path) -> None:
    class Cancelling(Interceptor):
        async def before(self, call: InterceptedCall, /) -> None:
            raise asyncio.CancelledError

    outcome = await chain(echo.card(), tmp_path, load(Cancelling(), name="odd")).call(text="hi")
    assert outcome.output == "echo hi"
    assert "addon 'odd' of a test: failed before echo: it was cancelled by itself" in str(outcome.details["notes"])


async def test_notes_of_a_tool_come_before_those_about_addons(tmp_path: Path) -> None:
    async def run(_: Any, __: ToolContext) -> ToolResult:
        return ToolResult.text("done", notes=["of the tool"])

    tool = define_tool(ToolSpec("noting", "Note.", {"type": "object"}, run))
    outcome = await chain(tool, tmp_path, load(Hooks(on_before=fail), name="bad")).call()
    first, second = cast("list[str]", outcome.details["notes"])
    assert (first, "addon 'bad'" in second) == ("of the tool", True)


async def test_calls_at_once_report_a_failing_addon_once(echo: Echo, tmp_path: Path) -> None:
    chained = chain(echo.card(), tmp_path, load(AsyncHang(), name="slow", deadline_s=0.05))
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(lambda text=str(number): chained.call(text=text))
    assert sorted(echo.texts) == ["0", "1", "2", "3", "4"]
    assert len(chained.notes) == 1


async def test_a_card_that_raises_reaches_after_as_an_error(tmp_path: Path) -> None:
    class Raising:
        name = label = description = "raising"
        parameters: dict[str, Any] = {"type": "object"}  # noqa: RUF012 — a card of another author
        read_only = True

        async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
            raise ValueError("inside")

    seen: list[ToolResult] = []
    await chain(Raising(), tmp_path, load(Hooks(on_after=lambda _, r: seen.append(r)))).call()
    assert (seen[0].is_error, seen[0].details["code"]) == (True, "failed")


# -- cancellation -----------------------------------------------------------------------------


async def test_a_cancelled_token_ends_before_and_after_still_sees_the_call(echo: Echo, tmp_path: Path) -> None:
    seen: list[object] = []
    token = CancelToken()

    class Slow(Interceptor):
        async def before(self, call: InterceptedCall, /) -> None:
            token.cancel("by the person")
            await anyio.sleep_forever()

        async def after(self, call: InterceptedCall, result: ToolResult, /) -> None:
            seen.append(result.details["code"])

    outcome = await chain(echo.card(), tmp_path, load(Slow())).call(token, text="hi")
    assert outcome.output == "echo was stopped: by the person"
    assert (seen, echo.texts) == (["cancelled"], [])


async def test_after_sees_a_call_whose_task_is_cancelled(tmp_path: Path) -> None:
    started, seen = anyio.Event(), list[object]()

    async def run(_: Any, __: ToolContext) -> str:
        started.set()
        await anyio.sleep_forever()
        return ""

    tool = define_tool(ToolSpec("wait", "Wait.", {"type": "object"}, run))
    chained = chain(tool, tmp_path, load(Hooks(on_after=lambda _, r: seen.append(r.details["code"]))))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(chained.call)
        await started.wait()
        tasks.cancel_scope.cancel()
    assert seen == ["cancelled"]


# -- results ----------------------------------------------------------------------------------


def test_every_string_of_a_result_is_replaced() -> None:
    blocks = (TextContentBlock("a", {"k": "a"}), JsonContentBlock({"a": ["a", 1, None]}))
    result = ToolResult(blocks, structured=["a"], details={"code": "a", "path": "a"}, is_error=True)
    changed = replace_texts(result, str.upper)
    assert changed.content == (TextContentBlock("A", {"K": "A"}), JsonContentBlock({"A": ["A", 1, None]}))
    assert (changed.structured, dict(changed.details)) == (["A"], {"code": "a", "path": "A"})
    assert changed.is_error
