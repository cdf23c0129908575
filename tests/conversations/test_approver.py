"""Permission requests and plans as questions to a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from tests.permissions.support import card, check_call, context, remote, rules
from tests.support.dialogs import scripted
from tests.support.waiting import until

from indusagi.capabilities.local import make_local_context
from indusagi.runtime.calls import current_agent
from induscode.cli.dialog import Reply
from induscode.deck.cards import enter_plan_mode_card, exit_plan_mode_card
from induscode.deck.contract import DeckContext
from induscode.launch.invocation import Invocation
from induscode.permissions import load_permissions
from induscode.permissions.check import Permissions
from induscode.permissions.confirm import (
    ApprovalScope,
    PermissionAnswer,
    PermissionRequest,
    PersonApprover,
    build_permission_question,
)
from induscode.permissions.plan_mode import PlanMode
from induscode.permissions.rules import RuleStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.dialogs import ScriptedDialog

    from induscode.deck.contract import Capability

pytestmark = pytest.mark.anyio


def asking(dialog: ScriptedDialog, **fields: object) -> Permissions:
    return Permissions(approver=PersonApprover(dialog), **fields)  # type: ignore[arg-type]


def keys(dialog: ScriptedDialog) -> list[str]:
    return [choice.key for choice in dialog.questions[-1].choices]


# -- calls --------------------------------------------------------------------------------------


async def test_question_says_what_will_happen_why_it_is_asked_and_which_rule_is_stored(tmp_path: Path) -> None:
    dialog = scripted("y")
    assert (await check_call(asking(dialog), "bash", tmp_path, command="git push origin")).allowed
    (question,) = dialog.questions
    assert (question.title, question.prompt) == ("Run git push origin", "Run this command?")
    assert question.brief == ("sandboxed, network on",)
    assert 'command: "git push origin"' in question.lines
    assert "asks because: runs: git push origin" in question.lines
    assert question.default == "n"
    labels = {choice.key: choice.label for choice in question.choices}
    assert [*labels] == ["y", "s", "a", "n"]
    assert labels["s"] == "Yes, and allow git push * for this session"
    assert labels["a"] == "Always allow git push * in this project"
    assert "rule: allow bash(git push *)" in question.lines
    assert not any("agent" in line for line in question.lines)


async def test_question_of_a_sub_agent_names_it(tmp_path: Path) -> None:
    dialog = scripted("y")
    current_agent.set("general/explore")
    await check_call(asking(dialog), "bash", tmp_path, command="git push origin")
    assert dialog.questions[0].lines[0] == "for the agent: general/explore"


async def test_question_about_a_server_names_the_server_and_its_tool(tmp_path: Path) -> None:
    dialog = scripted("v")
    store = RuleStore(str(tmp_path / "permissions.json"))
    permissions = asking(dialog, store=store)
    assert (await permissions.check(remote(), {}, context(tmp_path))).allowed
    assert dialog.questions[0].title == "github → create_issue"
    assert dialog.questions[0].default == "n", "what a server says about its tools grants nothing"
    assert keys(dialog) == ["y", "s", "a", "v", "n"]
    (rule,) = store.load()[0]
    assert (rule.tool, rule.server) == ("*", "github")
    assert (await permissions.check(remote("github__close_issue"), {}, context(tmp_path))).allowed
    assert len(dialog.questions) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "title"),
    [
        ("write", {"path": "b.txt", "content": "x"}, "Create b.txt"),
        ("read", {"path": "/etc/hosts"}, "Read /etc/hosts"),
        ("webfetch", {"url": "https://example.org/x"}, "Fetch example.org/x"),
        ("websearch", {"query": "x"}, "Search the web x"),
        ("bash", {"command": "echo a\necho b\u202e"}, "Run echo a … and 1 more line"),
    ],
)
async def test_title_is_a_verb_and_its_object_for_every_kind_of_call(
    name: str, arguments: dict[str, str], title: str, tmp_path: Path
) -> None:
    dialog = scripted("n")
    await check_call(asking(dialog), name, tmp_path, **arguments)
    assert dialog.questions[0].title == title.format(folder=tmp_path)


async def test_reason_of_a_no_reaches_the_model(tmp_path: Path) -> None:
    result = await check_call(asking(scripted("n use make instead")), "bash", tmp_path, command="npm run test")
    assert not result.allowed
    assert "the user declined: use make instead" in result.reason


@pytest.mark.parametrize("reply", ["n", Reply(cancelled=True)])
async def test_plain_no_and_a_cancelled_question_deny_without_a_reason(reply: str | Reply, tmp_path: Path) -> None:
    result = await check_call(asking(scripted(reply)), "bash", tmp_path, command="npm run test")
    assert not result.allowed
    assert "the user declined\n" in result.reason


async def test_yes_for_the_session_is_asked_once_and_not_stored(tmp_path: Path) -> None:
    dialog = scripted("s")
    store = RuleStore(str(tmp_path / "permissions.json"))
    permissions = asking(dialog, store=store)
    for command in ("git push a", "git push b"):
        assert (await check_call(permissions, "bash", tmp_path, command=command)).allowed
    assert len(dialog.questions) == 1
    assert store.load() == ((), ())


async def test_call_that_a_rule_asks_about_is_offered_once_only(tmp_path: Path) -> None:
    dialog = scripted("y")
    permissions = Permissions(rules(ask="bash(git push *)"), approver=PersonApprover(dialog))
    assert (await check_call(permissions, "bash", tmp_path, command="git push")).allowed
    assert keys(dialog) == ["y", "n"]
    assert any("rule ask bash(git push *)" in line for line in dialog.questions[0].lines)


async def test_several_questions_have_a_place_and_a_yes_for_all_edits_answers_the_rest(tmp_path: Path) -> None:
    places: list[str] = []

    class Patient:
        async def ask(self, request: PermissionRequest) -> PermissionAnswer:
            await until(lambda: request.place().endswith("of 4"))  # the changes of all four have been found
            places.append(request.place())
            return PermissionAnswer(ApprovalScope.EDITS if len(places) == 2 else ApprovalScope.ONCE)

    permissions, results = Permissions(approver=Patient()), list[bool]()

    async def write(name: str) -> None:
        results.append((await check_call(permissions, "write", tmp_path, path=name, content="x")).allowed)

    async with anyio.create_task_group() as tasks:
        for name in "abcd":
            tasks.start_soon(write, name)
    assert results == [True] * 4
    assert places == ["1 of 4", "2 of 4"]
    assert permissions.mode == "auto-edit"


async def test_an_edit_that_cannot_work_or_changes_nothing_is_not_asked_about(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n", encoding="utf-8")
    dialog = scripted()
    ctx = context(tmp_path)
    result = await asking(dialog).run(card("write", tmp_path), {"path": "a.txt", "content": "one\n"}, ctx)
    assert "unchanged" in str(result.content)
    result = await asking(dialog).run(card("edit", tmp_path), {"path": "b.txt", "oldText": "x", "newText": "y"}, ctx)
    assert result.details["code"] == "not_found"
    assert dialog.questions == []


async def test_an_error_that_would_quote_a_file_is_kept_back_until_a_yes(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("the secret\n", encoding="utf-8")
    edit = {"path": "secret.txt", "oldText": "x", "newText": "y"}
    for given in (rules(deny="read(secret.txt)"), rules(ask="read(secret.txt)")):
        permissions = Permissions(given, approver=PersonApprover(dialog := scripted("n")))
        result = await permissions.run(card("edit", tmp_path), {**edit}, context(tmp_path))
        assert len(dialog.questions) == 1
        assert dialog.questions[0].change is None
        assert "the secret" not in str(result)


def test_scopes_outside_the_request_are_not_offered() -> None:
    for scope, key in zip(ApprovalScope, "yseav", strict=True):
        request = PermissionRequest(
            tool="t", server="s", title="t", lines=(), reasons=("a\nb",), saves=("t",), scopes=(scope,)
        )
        question = build_permission_question(request)
        assert [choice.key for choice in question.choices] == [key, "n"]
        assert question.lines[0] == "asks because: a\\nb"


# -- plans --------------------------------------------------------------------------------------

PLAN = "# Tidy up\n1. write\ta \x1b[31mnote"


class Planning:
    """The cards of plan mode, behind the permissions of a run with a person."""

    def __init__(self, folder: Path, dialog: ScriptedDialog, approval: str = "ask") -> None:
        approver = PersonApprover(dialog)
        self.mode = PlanMode(approves=approval != "ask", approver=approver)
        self.mode.folder = str(folder / "state")
        self.folder = folder
        invocation = Invocation(cwd=str(folder), approval=approval)  # type: ignore[arg-type]
        self.setup = load_permissions(invocation, self.mode, approver)

    async def call(self, row: Capability, **arguments: str) -> str:
        assert self.setup.wrap is not None
        result = await self.setup.wrap(row).run(dict(arguments), make_local_context(self.folder))
        return "".join(getattr(block, "text", "") for block in result.content)

    async def present(self) -> str:
        built = DeckContext(str(self.folder))
        await self.call(enter_plan_mode_card().build(built))
        assert self.mode.active
        return await self.call(exit_plan_mode_card().build(built), plan=PLAN)

    async def write(self) -> str:
        return await self.call(card("write", self.folder), path="note.txt", content="x")


@pytest.mark.parametrize("approval", ["ask", "auto-edit", "all"])
async def test_person_is_shown_the_whole_plan_in_every_approval_mode(approval: str, tmp_path: Path) -> None:
    dialog = scripted("y")
    planning = Planning(tmp_path, dialog, approval)
    text = await planning.present()
    assert "The plan is approved and plan mode is off" in text
    assert not planning.mode.active
    (question,) = dialog.questions
    assert question.markdown == PLAN
    assert question.lines[0].startswith("It is kept in ")
    assert question.default == "y"


async def test_approved_plan_still_asks_about_edits(tmp_path: Path) -> None:
    dialog = scripted("y", "n")
    planning = Planning(tmp_path, dialog)
    await planning.present()
    assert "the user declined" in await planning.write()
    assert len(dialog.questions) == 2


async def test_approved_plan_with_accepted_edits_writes_without_asking(tmp_path: Path) -> None:
    dialog = scripted("e")
    planning = Planning(tmp_path, dialog)
    assert "without asking" in await planning.present()
    await planning.write()
    assert (tmp_path / "note.txt").exists()
    assert len(dialog.questions) == 1


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("r add tests", "wants the plan changed: plan mode stays on"),
        ("n not now", "refused the plan: plan mode stays on"),
        (Reply(cancelled=True), "refused the plan: plan mode stays on"),
    ],
)
async def test_refused_plan_keeps_plan_mode_on_and_the_model_reads_the_comment(
    reply: str | Reply, text: str, tmp_path: Path
) -> None:
    planning = Planning(tmp_path, scripted(reply), "all")
    said = await planning.present()
    assert text in said
    comment = reply.partition(" ")[2] if isinstance(reply, str) else ""
    assert (f"The user says: {comment}" in said) == bool(comment)
    assert planning.mode.active
    assert "plan mode: only read-only calls are allowed" in await planning.write()


async def test_system_prompt_says_that_a_person_is_asked(tmp_path: Path) -> None:
    assert "The user is asked" in Planning(tmp_path, scripted()).setup.posture
    assert "The user is asked" in Planning(tmp_path, scripted(), "auto-edit").setup.posture
    unasked = load_permissions(Invocation(cwd=str(tmp_path)))
    assert "cannot ask the user" in unasked.posture
