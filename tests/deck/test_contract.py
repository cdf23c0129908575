"""The vocabulary of the deck: what is checked where it is made, and how it can be spelled."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.deck import AT, capability, ledger_of, with_runner

from indusagi.capabilities import make_local_context
from indusagi.capabilities.ports import WebSettings
from indusagi.core.cancel import CancelToken
from indusagi.interop import EndpointPhase, EndpointStatus, is_terminal_phase, is_usable_phase, protocol_fault
from indusagi.runtime import TextContentBlock, ToolCall, ToolOutcome, ToolResult
from induscode.deck import DeckContext, DeckFault, DeckFramework, Profile, capability_id
from induscode.deck.builtin import build_builtin, build_builtins_for_profile
from induscode.deck.cards.todo import TodoItem
from induscode.deck.catalog import cards_for_profile, find_card, has_capability
from induscode.deck.contract import BackendFault, BridgeFault, BuildFailed, CapabilityCard, UnknownCapability
from induscode.deck.mcp.ledger import (
    BridgeCapability,
    BridgeEntry,
    BridgeKey,
    BridgeOp,
    bridge_content_key,
    bridge_ulid_key,
    project_outcome,
)
from induscode.deck.provision import ToolDeck, build_selected, cards_for_deck_profile, project_result, provision_deck

if TYPE_CHECKING:
    from indusagi.capabilities import ToolContext
    from indusagi.core.json import JsonValue
    from indusagi.interop import FaultKind
    from induscode.deck import Capability

CTX = DeckContext("/")


# -- members of enumerations, by themselves or by their value ---------------------------------


@pytest.mark.parametrize("profile", list(Profile))
def test_finding_1a8_a_profile_can_be_given_by_its_value(profile: Profile) -> None:
    def names(deck: ToolDeck) -> list[str]:
        return [card.name for card in deck.tools()]

    value = str(profile.value)
    assert type(value) is str
    assert names(provision_deck(value, CTX)) == names(provision_deck(profile, CTX))
    assert cards_for_profile(value) == cards_for_profile(profile)
    assert cards_for_deck_profile(value) == cards_for_deck_profile(profile)
    built = build_builtins_for_profile(value, CTX)
    assert len(built) == len(build_builtins_for_profile(profile, CTX))


@given(st.text().filter(lambda text: text not in set(Profile)))
def test_finding_1a8_an_unknown_profile_is_a_fault_that_names_the_known_ones(text: str) -> None:
    for use in (cards_for_profile, cards_for_deck_profile):
        with pytest.raises(DeckFault, match="authoring, survey, all"):
            use(text)
    with pytest.raises(DeckFault):
        provision_deck(text, CTX)


@pytest.mark.parametrize("phase", list(EndpointPhase))
def test_finding_1a8_a_phase_can_be_given_by_its_value(phase: EndpointPhase) -> None:
    value = str(phase.value)
    assert is_usable_phase(value) is is_usable_phase(phase) is (value == "ready")
    assert is_terminal_phase(value) is is_terminal_phase(phase) is (value in {"closed", "faulted"})
    assert EndpointStatus("a", cast("EndpointPhase", value), 0).phase is phase


@pytest.mark.parametrize("question", [is_usable_phase, is_terminal_phase])
def test_finding_1a8_an_unknown_phase_is_refused(question: object) -> None:
    with pytest.raises(ValueError, match="open"):
        question("open")  # pyright: ignore[reportCallIssue]


def test_finding_1a8_an_event_and_a_checklist_take_values_too() -> None:
    key = bridge_ulid_key()
    op = cast("BridgeOp", "retire")
    assert BridgeEntry(op, key, "a", None, 1, AT).op is BridgeOp.RETIRE
    with pytest.raises(DeckFault, match="enroll, retire"):
        BridgeEntry(cast("BridgeOp", "drop"), key, "a", None, 1, AT)
    assert str(TodoItem("x", "done", "normal")) == "[x] x"  # pyright: ignore[reportArgumentType]
    with pytest.raises(DeckFault, match="low, normal, high"):
        TodoItem("x", weight="huge")  # pyright: ignore[reportArgumentType]
    row = CapabilityCard(capability_id("a"), "A", "", ("all",), lambda _: capability("a", "x"))  # pyright: ignore[reportArgumentType]
    assert row.profiles == (Profile.ALL,)
    assert row.in_profile("all")


# -- checked where they are made --------------------------------------------------------------


@pytest.mark.parametrize("name", ["", " ", "a b", "a\n", "\x00", "x" * 257, None, 7])
def test_finding_1a19_an_invalid_id_is_refused(name: object) -> None:
    with pytest.raises(DeckFault, match="id of a capability"):
        capability_id(cast("str", name))
    assert not has_capability(cast("str", name))
    assert find_card(cast("str", name)) is None
    with pytest.raises(UnknownCapability):
        build_builtin(str(name), CTX)


@given(st.text().filter(lambda text: not text.startswith("bk_")))
def test_finding_1a19_an_invalid_key_is_refused(text: str) -> None:
    with pytest.raises(BridgeFault, match="bridge key"):
        BridgeKey(text)


@pytest.mark.parametrize("text", ["junk", "bk_", "bk_1", f"bk_{'g' * 32}", f"bk_{'0' * 33}"])
def test_finding_1a19_a_key_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(BridgeFault, match="bridge key"):
        ledger_of(("a", "x")).retire(cast("BridgeKey", text), "a", AT)


def test_finding_1a19_a_key_that_was_made_can_be_made_again() -> None:
    for key in (bridge_content_key("a", "x", {}), bridge_ulid_key()):
        assert BridgeKey(str(key)) == key


@pytest.mark.parametrize("kind", ["bogus", "", "Transport", "TOOL_ERROR"])
def test_finding_1a19_an_unknown_kind_of_fault_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="spawn_failed"):
        protocol_fault(cast("FaultKind", kind), "words")


def test_finding_1a19_the_next_number_of_a_ledger_cannot_be_set() -> None:
    ledger = ledger_of(("a", "x"))
    with pytest.raises(AttributeError):
        ledger.next_seq = 7  # pyright: ignore[reportAttributeAccessIssue]
    assert ledger.next_seq == 2


# -- building ---------------------------------------------------------------------------------


def give(value: object, ctx: DeckContext) -> object:
    return value


def row(build: object) -> CapabilityCard:
    return CapabilityCard(capability_id("mine"), "Mine", "", (Profile.ALL,), build)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("error", [ValueError("odd"), RuntimeError(), KeyError("x"), OSError()])
def test_finding_1a16_a_builder_that_raises_is_a_failed_build(error: Exception) -> None:
    def build(_: DeckContext) -> Capability:
        raise error

    with pytest.raises(BuildFailed, match=r"'mine' could not be built: .+") as caught:
        build_selected([row(build)], CTX)
    assert caught.value.__cause__ is error
    assert (caught.value.id, bool(caught.value.message)) == ("mine", True)


@pytest.mark.parametrize("built", [None, "text", object(), {"name": "mine"}], ids=lambda built: type(built).__name__)
def test_finding_1a16_a_builder_that_gives_no_card_is_a_failed_build(built: object) -> None:
    with pytest.raises(BuildFailed, match="which has no"):
        build_selected([row(partial(give, built))], CTX)


@pytest.mark.parametrize("name", ["read_state", "checkpoint", "delegate", "saas", "memory"])
def test_finding_1a16_a_handle_that_lacks_its_methods_is_a_backend_fault(name: str) -> None:
    framework = DeckFramework(**{name: object()})  # pyright: ignore[reportArgumentType]
    with pytest.raises(BackendFault, match=f"'{name}'.*has no"):
        provision_deck(Profile.ALL, DeckContext("/", framework))


def test_finding_1a16_so_is_a_search_provider_that_cannot_search() -> None:
    with pytest.raises(BackendFault, match="search"):
        provision_deck("all", DeckContext("/", DeckFramework(search=(object(),))))  # pyright: ignore[reportArgumentType]


class Provider:
    name = "probe"

    async def search(self, query: object) -> list[object]:
        return []


def test_finding_1a18_the_web_handles_of_a_deck_reach_its_tools() -> None:
    web, provider = WebSettings(allow_private=("localhost",)), Provider()
    handles = DeckFramework(web=web, search=(provider,))  # pyright: ignore[reportArgumentType]
    deck = provision_deck(Profile.SURVEY, DeckContext("/", handles))
    assert deck.context.framework.web is web
    assert deck.context.framework.search == (provider,)


# -- whatever a card answers ------------------------------------------------------------------


class Odd:
    """A card that answers with anything."""

    name = label = "odd"
    description = ""
    parameters: dict[str, JsonValue] = {"type": "object"}  # noqa: RUF012 — never changed
    read_only = True

    def __init__(self, answer: object) -> None:
        self.answer = answer

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return cast("ToolResult", self.answer)


async def run_odd(answer: object) -> ToolOutcome:
    box = ToolDeck([Odd(answer)], make_local_context("/")).into_tool_box()
    return await box.runner.run(ToolCall("1", "odd", {}), CancelToken())


@pytest.mark.anyio
@pytest.mark.parametrize(
    "answer",
    [None, b"bytes", object(), {1, 2}, {"a": object()}, float("nan"), {3: "x"}, ToolResult],
    ids=lambda answer: type(answer).__name__,
)
async def test_finding_1a9_an_invalid_result_is_an_error_outcome(answer: object) -> None:
    outcome = await run_odd(answer)
    assert outcome.is_error
    assert (outcome.id, outcome.details["code"]) == ("1", "bad_result")
    assert "odd" in str(outcome.output)


@pytest.mark.anyio
@pytest.mark.parametrize("error", [ValueError(), RuntimeError("no"), ExceptionGroup("g", [OSError()]), KeyError("k")])
async def test_finding_1a9_a_card_that_raises_is_an_error_outcome(error: Exception) -> None:
    outcome = await run_odd(error)
    assert outcome.is_error
    assert not str(outcome.output).rstrip().endswith(":")


@pytest.mark.anyio
@pytest.mark.parametrize("answer", ["text", {"a": [1]}, [1, 2], 3, True, ""])
async def test_finding_1a9_a_plain_value_is_an_answer(answer: JsonValue) -> None:
    outcome = await run_odd(answer)
    assert (outcome.output, outcome.is_error) == (answer, False)


# -- the card of a remote tool, made by hand --------------------------------------------------


class Echo:
    """A runner of the plain kind."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: object = None
    ) -> ToolOutcome:
        self.calls.append(call)
        return ToolOutcome.from_output(call.id, call.input)


@pytest.mark.anyio
async def test_finding_1a7_a_capability_is_made_of_four_values_and_runs() -> None:
    runner = Echo()
    made = BridgeCapability("srv__tool", "Says it.", {"type": "object"}, runner)
    assert (made.name, made.label, made.description) == ("srv__tool", "srv__tool", "Says it.")
    assert (made.ref.server, made.ref.name, made.read_only) == ("srv", "tool", False)
    answer = await made.run({"a": 1}, make_local_context("/"))
    assert (answer.is_error, runner.calls[0].name) == (False, "srv__tool")
    assert runner.calls[0].input == {"a": 1}
    # It can be enrolled, and called through a deck.
    deck = ToolDeck([made], make_local_context("/")).into_tool_box()
    outcome = await deck.runner.run(ToolCall("1", "srv__tool", {"b": 2}))
    assert outcome.output == {"b": 2}


@pytest.mark.anyio
async def test_finding_1a7_a_runner_may_be_a_function_or_missing() -> None:
    async def run(arguments: JsonValue, ctx: ToolContext) -> ToolResult:
        return ToolResult.text("done")

    made = BridgeCapability("a__x", "", {}, run)
    assert project_result(await made.run({}, make_local_context("/"))) == "done"
    unconnected = with_runner(made, None)
    assert unconnected == made
    assert (await unconnected.run({}, make_local_context("/"))).is_error


@pytest.mark.parametrize(
    ("name", "description", "parameters", "runner"),
    [
        ("", "", {}, None),
        (7, "", {}, None),
        ("a__x", None, {}, None),
        ("a__x", "", [], None),
        ("a__x", "", {}, object()),
    ],
)
def test_finding_1a7_an_invalid_capability_is_refused_at_once(
    name: object, description: object, parameters: object, runner: object
) -> None:
    with pytest.raises(BuildFailed):
        BridgeCapability(name, description, parameters, runner)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("output", "texts"), [("as it is", ["as it is"]), (None, []), ({"a": 1}, ['{\n  "a": 1\n}']), ("", [""])]
)
@pytest.mark.parametrize("is_error", [True, False])
def test_an_outcome_is_projected_on_a_result(output: JsonValue, texts: list[str], is_error: bool) -> None:
    result = project_outcome(output, is_error)
    assert list(result.content) == [TextContentBlock(text) for text in texts]
    assert result.is_error is is_error
