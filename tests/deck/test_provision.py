"""A deck: put together by profile, changed without being changed, called as a box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests.support.deck import capability, with_runner

from indusagi.capabilities.context import ReadState
from indusagi.capabilities.jobs import jobs_of
from indusagi.core.cancel import CancelToken
from indusagi.runtime import JsonContentBlock, TextContentBlock, ToolCall, ToolResult
from induscode.boot.plans import select_tools
from induscode.deck import DeckContext, DeckFramework, Profile
from induscode.deck.builtin import build_builtins_for_profile
from induscode.deck.cards import bg_process
from induscode.deck.cards.checkpoint import CheckpointingCard
from induscode.deck.catalog import cards_for_profile
from induscode.deck.contract import DeckFault
from induscode.deck.provision import ToolDeck, project_result, provision_deck
from induscode.deck.stores import FileCheckpoints

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.capabilities import ToolContext
    from indusagi.core.json import JsonValue
    from indusagi.runtime import JsonSchema, ToolOutcome

pytestmark = pytest.mark.anyio


@dataclass
class Plain:
    """A card with the members that every card has, and no others."""

    name: str = "plain"
    label: str = "Plain"
    description: str = "A plain card."
    read_only: bool = True
    fails: bool = False

    @property
    def parameters(self) -> JsonSchema:
        return {"type": "object"}

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        if self.fails:
            raise ZeroDivisionError("by zero")
        return ToolResult.json({"cwd": ctx.cwd, "given": arguments})


def deck(tmp_path: Path, profile: Profile = Profile.ALL) -> ToolDeck:
    return provision_deck(profile, DeckContext(str(tmp_path)))


async def call(made: ToolDeck, name: str, arguments: JsonValue = None) -> ToolOutcome:
    return await made.into_tool_box().runner.run(ToolCall("call-1", name, arguments))


@pytest.mark.parametrize(("profile", "size"), [("authoring", 7), ("survey", 12), ("all", 19)])
def test_a_profile_gives_its_cards(tmp_path: Path, profile: str, size: int) -> None:
    made = deck(tmp_path, Profile(profile))
    assert len(made.tools()) == size
    assert len(made.into_tool_box().descriptors()) == len(made.shown()) == min(size, 17)


def test_the_list_of_tools_is_the_callers_own(tmp_path: Path) -> None:
    made = deck(tmp_path)
    made.tools().clear()
    assert len(made.tools()) == 19


def test_grafting_keeps_the_deck_it_was_done_to_and_puts_the_new_ones_last(tmp_path: Path) -> None:
    made = deck(tmp_path, Profile.AUTHORING)
    more = made.graft([capability("github", "create_issue"), Plain()])
    assert [card.name for card in more.tools()][-2:] == ["github__create_issue", "plain"]
    assert len(made.tools()) == 7


def test_a_card_with_a_taken_name_is_left_out_with_a_note(tmp_path: Path) -> None:
    made = deck(tmp_path, Profile.AUTHORING).graft([Plain("read"), Plain("x"), Plain("x")])
    assert [card.name for card in made.tools()][-2:] == ["todo_read", "x"]
    assert [note.owner for note in made.notes] == ["tool 'read'", "tool 'x'"]
    assert made.retain(lambda card: card.name == "x").notes == made.notes


def test_a_deck_can_be_narrowed_and_wrapped(tmp_path: Path) -> None:
    made = deck(tmp_path).retain(lambda card: card.name in {"read", "bash"})
    assert [card.name for card in made.tools()] == ["read", "bash"]
    renamed = made.map_capabilities(lambda card: Plain(f"my_{card.name}"))
    assert [card.name for card in renamed.tools()] == ["my_read", "my_bash"]
    assert repr(renamed) == "ToolDeck(my_read, my_bash)"


async def test_an_unknown_tool_is_an_error_outcome(tmp_path: Path) -> None:
    outcome = await call(deck(tmp_path), "reed")
    assert outcome.is_error
    assert "Did you mean 'read'?" in str(outcome.output)


async def test_a_card_that_raises_is_an_error_outcome(tmp_path: Path) -> None:
    made = deck(tmp_path).graft([Plain(fails=True)])
    outcome = await call(made, "plain")
    assert outcome.is_error
    assert "ZeroDivisionError: by zero" in str(outcome.output)


async def test_a_plain_card_receives_its_arguments(tmp_path: Path) -> None:
    made = deck(tmp_path).graft([Plain()])
    outcome = await call(made, "plain", {"a": 1})
    assert outcome.output == {"cwd": str(tmp_path), "given": {"a": 1}}
    descriptor = made.into_tool_box().descriptors()[-1]
    assert (descriptor.title, descriptor.annotations) == ("Plain", {"readOnlyHint": True})


async def test_calls_of_one_deck_share_one_context(tmp_path: Path) -> None:
    made = deck(tmp_path)
    box = made.into_tool_box()
    items: JsonValue = [{"id": "a", "text": "x", "status": "pending"}]
    set_ = ToolCall("1", "todo_set", {"items": items})
    assert not (await box.runner.run(set_, CancelToken())).is_error
    again = made.retain(lambda card: card.name == "todo_read").into_tool_box()
    outcome = await again.runner.run(ToolCall("2", "todo_read", {}))
    assert outcome.details["open"] == 1
    other = await call(deck(tmp_path), "todo_read")
    assert other.details["open"] == 0
    assert box.context is again.context


async def test_the_gate_of_edits_sees_the_read_state_that_was_injected(tmp_path: Path) -> None:
    state = ReadState()
    made = provision_deck(Profile.ALL, DeckContext(str(tmp_path), DeckFramework(read_state=state)))
    (tmp_path / "a.txt").write_text("one\n", encoding="utf-8")
    refused = await call(made, "edit", {"path": "a.txt", "oldText": "one", "newText": "two"})
    assert refused.details["code"] == "not_read"
    await call(made, "read", {"path": "a.txt"})
    assert state.digest(str(tmp_path / "a.txt")) is not None
    done = await call(made, "edit", {"path": "a.txt", "oldText": "one", "newText": "two"})
    assert not done.is_error
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "two\n"


async def test_a_cancelled_call_is_an_error_outcome(tmp_path: Path) -> None:
    token = CancelToken()
    token.cancel("enough")
    box = deck(tmp_path).into_tool_box()
    outcome = await box.runner.run(ToolCall("1", "bash", {"command": "sleep 60"}), token)
    assert outcome.is_error
    assert "enough" in str(outcome.output)


async def test_r42_invisible_characters_in_a_foreign_result_are_made_visible(tmp_path: Path) -> None:
    async def answer(arguments: JsonValue, ctx: ToolContext) -> ToolResult:
        text = "safe\u202eevil\x1b[2J\U000e0041"
        return ToolResult((TextContentBlock(text, {"a": 1}), JsonContentBlock({"t": text})))

    remote = with_runner(capability("s", "t"), answer)
    outcome = await call(deck(tmp_path).graft([remote]), "s__t")
    block = outcome.content[0]
    assert isinstance(block, TextContentBlock)
    assert block.text == "safe<U+202E>evil<U+001B>[2J<U+E0041>"
    assert block.extra == {"a": 1}
    hidden = outcome.content[1]
    assert isinstance(hidden, JsonContentBlock)
    assert hidden.value == {"t": block.text}
    assert outcome.details["unseen"] == 6


async def test_an_answer_without_anything_hidden_is_left_as_it_is(tmp_path: Path) -> None:
    async def answer(arguments: JsonValue, ctx: ToolContext) -> ToolResult:
        return ToolResult.text(text)

    text = "plain\r\n\u2764\ufe0f \U0001f469\u200d\U0001f4bb\r\n"
    outcome = await call(deck(tmp_path).graft([with_runner(capability("s", "t"), answer)]), "s__t")
    assert (outcome.output, dict(outcome.details)) == (text, {})


def test_project_result_loses_no_block() -> None:
    assert project_result(ToolResult.text("x")) == "x"
    assert project_result(ToolResult.json({"a": 1})) == {"a": 1}
    assert project_result(ToolResult(())) == []
    both = ToolResult((TextContentBlock("x"), JsonContentBlock(1)))
    assert project_result(both) == [{"type": "text", "text": "x"}, {"type": "json", "value": 1}]


def test_probe_0_21_the_deck_has_every_tool_of_a_session_once(tmp_path: Path) -> None:
    made = deck(tmp_path)
    names = [card.name for card in made.tools()]
    assert {"enter_plan_mode", "exit_plan_mode", "task", "memory"} <= set(names)
    assert len(set(names)) == len(names)
    assert made.context.framework.read_state is not None
    kept = DeckFramework(checkpoint=FileCheckpoints(tmp_path / "checkpoints"))
    with_rewind = provision_deck(Profile.ALL, DeckContext(str(tmp_path), kept))
    wrapped = [card.name for card in with_rewind.tools() if isinstance(card, CheckpointingCard)]
    assert wrapped == ["write", "edit"]
    # One table of background commands in a deck; a card that is built alone has its own.
    assert bg_process.DaemonTable(in_deck=True).of(made.context) is jobs_of(made.context)
    assert bg_process.DaemonTable().of(made.context) is not jobs_of(made.context)


@pytest.mark.process
async def test_finding_sg_a_deck_lists_one_checklist_and_one_job_table(tmp_path: Path) -> None:
    async with deck(tmp_path).context as ctx:
        made = ToolDeck(deck(tmp_path).tools(), ctx)
        box = made.into_tool_box()
        listed = {tool.name for tool in box.descriptors()}
        assert {"todo_read", "todo_set", "process"} <= listed
        assert not {"todo", "bg-process"} & listed
        items: JsonValue = [{"task": "ship", "weight": "high"}, {"task": "rest", "state": "dropped"}]
        assert not (await box.call("todo", {"action": "set", "items": items})).is_error
        read = str((await box.call("todo_read", {})).output)
        assert "0 of 1 done" in read
        assert "[ ] 1: ship (high)" in read
        assert "[-] 2: rest" in read
        done: JsonValue = [{"id": "1", "text": "ship", "status": "done"}]
        await box.call("todo_set", {"items": done})
        assert "[x] ship (high)" in str((await box.call("todo", {"action": "read"})).output), "its weight stays"
        # Background commands: either name lists, polls and stops what the other one has started.
        started = await box.call("bg-process", {"action": "start", "command": "sleep 60"})
        other = await box.call("process", {"action": "start", "command": "sleep 60"})
        ids = [str(one.result.details["id"]) for one in (started, other)]
        assert ids == ["bg-1", "job-2"]
        for name in ("process", "bg-process"):
            shown = str((await box.call(name, {"action": "list"})).output)
            assert all(key in shown for key in ids)
        assert not (await box.call("process", {"action": "stop", "id": ids[0]})).is_error
        assert not (await box.call("bg-process", {"action": "stop", "id": ids[1]})).is_error


def test_finding_sg_a_second_name_that_is_chosen_alone_is_listed(tmp_path: Path) -> None:
    made = select_tools(deck(tmp_path), ["bg-process", "todo"])
    assert [tool.name for tool in made.into_tool_box().descriptors()] == ["todo", "bg-process"]


@pytest.mark.parametrize(
    ("modern", "old"), [("read-only", Profile.AUTHORING), ("coding", Profile.SURVEY), ("all", Profile.ALL)]
)
def test_finding_sg_names_of_the_command_line_are_profiles(modern: str, old: Profile, tmp_path: Path) -> None:
    context = DeckContext(str(tmp_path))
    expected = [card.name for card in provision_deck(old, context).tools()]
    assert [card.name for card in provision_deck(modern, context).tools()] == expected
    assert [card.name for card in build_builtins_for_profile(modern, context)] == [
        card.name for card in build_builtins_for_profile(old, context)
    ]
    assert [row.id for row in cards_for_profile(modern)] == [row.id for row in cards_for_profile(old)]
    assert Profile(modern) is old


def test_finding_sg_profile_none_has_no_card_and_an_unknown_one_names_all(tmp_path: Path) -> None:
    assert provision_deck("none", DeckContext(str(tmp_path))).tools() == []
    with pytest.raises(
        DeckFault, match="'coding-agent' is not a profile; there are: authoring, survey, all, read-only, coding"
    ):
        provision_deck("coding-agent", DeckContext(str(tmp_path)))


async def test_finding_sg_toolbox_of_a_deck_and_of_a_registry_are_called_by_name(tmp_path: Path) -> None:
    box = provision_deck("coding", DeckContext(str(tmp_path))).into_tool_box()
    async with box.context:
        assert not (await box.call("ls")).is_error
