"""Permission checks in front of real cards: what is allowed, asked about, shown and stored."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.permissions.support import SANDBOXED, Person, StubShell, card, check_call, context, remote, rule, rules
from tests.support.tools import ANYTHING, NOTHING, tool

from indusagi.capabilities.local.fs import LocalFs
from indusagi.capabilities.ports import SandboxState
from indusagi.core.app_dirs import state_dir
from indusagi.runtime.contract import ToolCall, ToolResult
from induscode.deck.contract import DeckContext, Profile
from induscode.deck.provision import ToolDeck, provision_deck
from induscode.permissions.call_facts import gather_facts
from induscode.permissions.check import CheckedCard, Permissions, require_permission
from induscode.permissions.confirm import ApprovalScope, PermissionAnswer
from induscode.permissions.plan_mode import PlanMode
from induscode.permissions.policy import ApprovalMode
from induscode.permissions.rules import Effect, Rule, RuleOrigin, RuleStore

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.files.policy import PathRequest
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.permissions.confirm import PermissionRequest

pytestmark = pytest.mark.anyio


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace with a file, and something beside it."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("inside\n", encoding="utf-8")
    (folder / "src").mkdir()
    (tmp_path / "outside.txt").write_text("outside\n", encoding="utf-8")
    return folder


def text_of(result: ToolResult) -> str:
    return "".join(getattr(block, "text", "") for block in result.content)


# -- allowed without a question -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read", {"path": "a.txt"}),
        ("read", {"file_path": "a.txt"}),
        ("ls", {}),
        ("grep", {"pattern": "x"}),
        ("find", {"query": "*.txt", "path": "src"}),
        ("todo_read", {}),
        ("todo_set", {"items": []}),
        ("process", {"action": "list"}),
    ],
)
async def test_reading_inside_the_workspace_needs_no_question(name: str, arguments: JsonObject, work: Path) -> None:
    assert (await check_call(Permissions(), name, work, **arguments)).allowed


@pytest.mark.parametrize(
    ("name", "arguments", "remedy"),
    [
        ("write", {"path": "b.txt", "content": "x"}, "--allow 'write(b.txt)' or --approval auto"),
        ("edit", {"path": "a.txt", "oldText": "x", "newText": "y"}, "--approval auto-edit"),
        ("bash", {"command": "git status -s"}, "--allow 'bash(git status *)' or --approval all"),
        ("bash", {"command": "a; b c"}, "--allow 'bash(a *)' --allow 'bash(b *)'"),
        ("bash", {"command": "sudo ls"}, "start with --approval all"),
        ("bash", {"command": "rm -r x"}, "--allow 'bash(rm -r x)'"),
        ("process", {"action": "start", "command": "ls"}, "--allow 'bash(ls *)'"),
        ("process", {"action": "write", "id": "job-1", "input": "ls\n"}, "--approval all"),
        ("webfetch", {"url": "https://Example.org./x"}, "--allow webfetch(domain:example.org)"),
        ("websearch", {"query": "x"}, "--allow websearch"),
        ("read", {"path": "../outside.txt"}, "outside.txt)"),
        ("ls", {"path": "/etc"}, "'ls(/etc)'"),
        ("read", {"path": "~/x"}, "--allow"),
    ],
)
async def test_without_an_approver_the_denial_names_the_flags(
    name: str, arguments: JsonObject, remedy: str, work: Path
) -> None:
    result = await check_call(Permissions(), name, work, **arguments)
    assert not result.allowed
    assert result.reason.startswith(f"{name} was not run: this run cannot ask the user.")
    unquoted = remedy.replace("'", "")
    assert unquoted in result.reason.replace("'", "")


async def test_rule_named_in_the_denial_allows_the_call(work: Path) -> None:
    for name, arguments in (
        ("write", {"path": "b.txt", "content": "x"}),
        ("bash", {"command": "git status -s && npm run test -- -v"}),
        ("webfetch", {"url": "https://example.org/x"}),
        ("read", {"path": "../outside.txt"}),
    ):
        person = Person([ApprovalScope.SESSION])
        permissions = Permissions(approver=person)
        assert (await check_call(permissions, name, work, **arguments)).allowed
        given = [rule(text, Effect.ALLOW) for text in person.questions[0].saves]
        assert given
        assert (await check_call(Permissions(given), name, work, **arguments)).allowed


async def test_invalid_arguments_are_reported_without_a_question(work: Path) -> None:
    person = Person([ApprovalScope.ONCE])
    permissions = Permissions(approver=person)
    result = await check_call(permissions, "bash", work, comand="ls")
    assert result.code == "invalid_arguments"
    assert "comand" in result.reason
    wrong: list[JsonValue] = ["ls", [1], float("nan"), {"command": float("inf")}]
    for arguments in wrong:
        refused = await permissions.check(card("bash", work), arguments, context(work))
        assert refused.code == "invalid_arguments"
    looped: JsonObject = {}
    looped["command"] = looped
    assert not (await permissions.check(card("bash", work), looped, context(work))).allowed
    assert not person.questions


async def test_invalid_schema_denies_the_call(work: Path) -> None:
    async def run(arguments: JsonObject, ctx: ToolContext) -> str:
        return "ran"

    broken = tool(run, parameters={"type": "object", "properties": {"a": {"type": "nonsense"}}})
    result = await Permissions(approval=ApprovalMode.ALL).check(broken, {"a": 1}, context(work))
    assert not result.allowed


# -- modes ------------------------------------------------------------------------------------


def plan_mode_on() -> PlanMode:
    plan = PlanMode(approves=False)
    plan.active = True
    return plan


@pytest.mark.parametrize(
    ("approval", "name", "arguments", "allowed"),
    [
        ("auto-edit", "write", {"path": "b.txt", "content": "x"}, True),
        ("auto-edit", "edit", {"path": "a.txt", "oldText": "x", "newText": "y"}, True),
        ("auto-edit", "write", {"path": "../b.txt", "content": "x"}, False),
        ("auto-edit", "write", {"path": ".git/hooks/x", "content": "x"}, False),
        ("auto-edit", "bash", {"command": "ls"}, False),
        ("auto-edit", "read", {"path": "../outside.txt"}, False),
        ("auto-edit", "webfetch", {"url": "https://example.org"}, False),
        ("all", "write", {"path": "../b.txt", "content": "x"}, True),
        ("all", "bash", {"command": "sudo $x"}, True),
        ("all", "webfetch", {"url": "https://example.org"}, True),
        ("all", "read", {"path": "/proc/self/environ"}, False),
        ("ask", "write", {"path": "b.txt", "content": "x"}, False),
    ],
)
async def test_approval_mode_decides_about_calls_that_would_be_asked_about(
    approval: str, name: str, arguments: JsonObject, allowed: bool, work: Path
) -> None:
    permissions = Permissions(approval=ApprovalMode(approval))
    result = await check_call(permissions, name, work, **arguments)
    assert result.allowed is allowed


async def test_approval_all_keeps_deny_rules(work: Path) -> None:
    permissions = Permissions(rules(deny="bash(git clean); webfetch"), approval=ApprovalMode.ALL)
    assert not (await check_call(permissions, "bash", work, command="ls; git clean")).allowed
    assert not (await check_call(permissions, "webfetch", work, url="https://example.org")).allowed
    assert (await check_call(permissions, "bash", work, command="ls")).allowed


async def test_plan_mode_allows_reading_only(work: Path) -> None:
    everything = rules(allow="*; write(**); bash(*); github__*")
    permissions = Permissions(everything, plan=plan_mode_on(), approval=ApprovalMode.ALL)
    assert (await check_call(permissions, "read", work, path="a.txt")).allowed
    assert (await check_call(permissions, "todo_set", work, items=[])).allowed
    denied = [
        await check_call(permissions, "write", work, path="a.txt", content="x"),
        await check_call(permissions, "bash", work, command="ls"),
        await check_call(permissions, "edit", work, path="a.txt", oldText="x", newText="y"),
        await permissions.check(remote(), {}, context(work)),
    ]
    assert not any(result.allowed for result in denied)
    assert "plan mode" in denied[0].reason


# -- sandbox ----------------------------------------------------------------------------------


async def test_without_a_sandbox_rules_allow_no_commands(work: Path) -> None:
    none = SandboxState(kind="none", detail="no bubblewrap")
    permissions = Permissions(rules(allow="bash(ls *)"))
    call: JsonObject = {"command": "ls"}
    result = await permissions.check(card("bash", work), call, context(work, none))
    assert not result.allowed
    assert "no bubblewrap" in result.reason
    assert (await permissions.check(card("bash", work), call, context(work))).allowed
    off = SandboxState(kind="off")
    assert (await permissions.check(card("bash", work), call, context(work, off))).allowed


async def test_shell_without_sandbox_state_counts_as_unsandboxed(work: Path) -> None:
    class Silent:
        pass

    ctx = replace(context(work), shell=Silent())
    result = await Permissions(rules(allow="bash(ls *)")).check(card("bash", work), {"command": "ls"}, ctx)
    assert "the shell does not report one" in result.reason


# -- tools of servers -------------------------------------------------------------------------


async def test_remote_tool_is_asked_about_whatever_its_annotations_say(work: Path) -> None:
    assert not (await Permissions().check(remote(), {}, context(work))).allowed
    for text, allowed in (
        ("github__*", True),
        ("github__create_issue", True),
        ("gitlab__*", False),
        ("*", True),
        ("github__create_issue(title=x)", False),
    ):
        permissions = Permissions(rules(allow=text))
        assert (await permissions.check(remote(), {}, context(work))).allowed is allowed
    permissions = Permissions(rules(allow="github__*", deny="*__create_*"))
    assert not (await permissions.check(remote(), {}, context(work))).allowed
    permissions = Permissions(rules(allow="github__*", deny="github__create_issue(x)"))
    assert not (await permissions.check(remote(), {}, context(work))).allowed


async def test_rule_for_a_remote_tool_ends_when_its_definition_changes(work: Path) -> None:
    person = Person([ApprovalScope.ALWAYS_TOOL])
    permissions = Permissions(approver=person, store=RuleStore())
    assert (await permissions.check(remote(), {}, context(work))).allowed
    assert (await permissions.check(remote(), {"other": 1}, context(work))).allowed
    assert len(person.questions) == 1
    assert not (await permissions.check(remote(text="changed"), {}, context(work))).allowed
    assert len(person.questions) == 2


async def test_rule_for_a_server_holds_for_its_tools_in_this_workspace_only(work: Path, tmp_path: Path) -> None:
    person = Person([ApprovalScope.ALWAYS_SERVER])
    permissions = Permissions(approver=person, store=RuleStore())
    assert (await permissions.check(remote(), {}, context(work))).allowed
    assert (await permissions.check(remote("github__list"), {}, context(work))).allowed
    assert not (await permissions.check(remote("x__y", server="x"), {}, context(work))).allowed
    assert not (await check_call(permissions, "write", work, path="x", content="x")).allowed
    loaded, notes = await anyio.to_thread.run_sync(RuleStore().load)
    assert not notes
    again = Permissions(loaded)
    assert (await again.check(remote("github__list"), {}, context(work))).allowed
    assert not (await again.check(remote("github__list"), {}, context(tmp_path))).allowed


# -- decisions --------------------------------------------------------------------------------


async def test_answer_once_holds_for_one_call(work: Path) -> None:
    person = Person([ApprovalScope.ONCE])
    permissions = Permissions(approver=person)
    assert (await check_call(permissions, "bash", work, command="ls")).allowed
    assert not (await check_call(permissions, "bash", work, command="ls")).allowed


async def test_answer_for_the_session_holds_for_the_prefix_and_is_not_stored(work: Path) -> None:
    person = Person([ApprovalScope.SESSION])
    store = RuleStore()
    permissions = Permissions(approver=person, store=store)
    assert (await check_call(permissions, "bash", work, command="git commit -m x")).allowed
    assert (await check_call(permissions, "bash", work, command="git commit -m y")).allowed
    assert person.questions[0].saves == ("bash(git commit *)",)
    assert not (await check_call(permissions, "bash", work, command="git push")).allowed
    assert await anyio.to_thread.run_sync(store.load) == ((), ())


async def test_answer_for_always_is_stored_outside_the_project(work: Path) -> None:
    permissions = Permissions(approver=Person([ApprovalScope.ALWAYS_TOOL]), store=RuleStore())
    assert (await check_call(permissions, "bash", work, command="npm run test -- -v")).allowed
    loaded, _ = await anyio.to_thread.run_sync(RuleStore().load)
    assert [str(one) for one in loaded] == ["bash(npm run test *)"]
    assert loaded[0].workspace == str(work)
    assert (await check_call(Permissions(loaded), "bash", work, command="npm run test")).allowed


async def test_answer_for_always_without_a_store_holds_for_the_session(work: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    permissions = Permissions(
        approver=Person([ApprovalScope.ALWAYS_TOOL]), store=RuleStore(str(tmp_path / "file" / "rules.json"))
    )
    assert (await check_call(permissions, "bash", work, command="ls")).allowed
    assert (await check_call(permissions, "bash", work, command="ls -l")).allowed
    assert "this session only" in str(permissions.notes[0])


@pytest.mark.parametrize(
    "command",
    [
        "sh -c ls", "bash x.sh", "eval ls", "sudo ls", "ls | xargs ls", "env ls", "python -c x",
        "node -e x", "npx -c x", "uvx --from x y", "python3.12 -c x", "find . -delete", "$x",
    ],
)  # fmt: skip
async def test_c20_always_is_not_offered_for_runners(command: str, work: Path) -> None:
    person = Person([ApprovalScope.ALWAYS_TOOL])
    permissions = Permissions(approver=person)
    allowed = (await check_call(permissions, "bash", work, command=command)).allowed
    if command == "env ls":
        assert person.questions[0].saves == ("bash(ls *)",)
        return
    assert person.questions[0].scopes == (ApprovalScope.ONCE,)
    assert not allowed
    assert permissions.rules == ()


async def test_denial_contains_the_comment_of_the_person(work: Path) -> None:
    class Sayer:
        async def ask(self, question: PermissionRequest) -> PermissionAnswer:
            return PermissionAnswer(None, "not on\x1b[31m Fridays")

    result = await check_call(Permissions(approver=Sayer()), "bash", work, command="ls")
    assert "the user declined: not on<U+001B>[31m Fridays" in result.reason


async def test_failing_approver_denies_the_call(work: Path) -> None:
    class Broken:
        async def ask(self, question: PermissionRequest) -> PermissionAnswer:
            raise RuntimeError("no terminal")

    result = await check_call(Permissions(approver=Broken()), "bash", work, command="ls")
    assert "no terminal" in result.reason


async def test_other_arguments_or_another_sandbox_give_other_facts(work: Path) -> None:
    ctx = context(work)
    facts = await gather_facts(card("bash", work), {"command": "ls"}, ctx)
    other = await gather_facts(card("bash", work), {"command": "ls "}, ctx)
    unheld = await gather_facts(card("bash", work), {"command": "ls"}, context(work, SandboxState(kind="none")))
    assert facts not in (other, unheld)


async def test_order_of_arguments_gives_the_same_facts(work: Path) -> None:
    ctx = context(work)
    one = await gather_facts(card("bash", work), {"command": "ls", "cwd": "src"}, ctx)
    two = await gather_facts(card("bash", work), {"cwd": "src", "command": "ls"}, ctx)
    assert one == two


async def test_concurrent_calls_ask_in_turn_and_the_first_answer_counts(work: Path) -> None:
    person = Person([ApprovalScope.SESSION])
    permissions = Permissions(approver=person)
    result: list[bool] = []

    async def one(command: str) -> None:
        result.append((await check_call(permissions, "bash", work, command=command)).allowed)

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(one, f"git log -n {number}")
    assert result == [True] * 5
    assert len(person.questions) == 1


# -- permission requests ------------------------------------------------------------------------


async def test_c5_request_shows_the_target_of_a_link(work: Path, tmp_path: Path) -> None:
    (work / "docs").mkdir()
    (work / ".indusvx").mkdir()
    os.symlink(work / ".indusvx" / "mcp.json", work / "docs" / "x")
    person = Person()
    permissions = Permissions(rules(allow="write(**)"), approver=person, approval=ApprovalMode.AUTO_EDIT)
    assert not (await check_call(permissions, "write", work, path="docs/x", content="{}")).allowed
    shown = "\n".join(person.questions[0].lines)
    assert f'writes to: "{work}/.indusvx/mcp.json" (protected), given as "docs/x"' in shown


async def test_c5_protected_files_need_a_rule_without_wildcards(work: Path) -> None:
    store = os.path.join(state_dir(), "trust.json")
    for path in (store, "~/.bashrc", "~/.ssh/authorized_keys", ".git/config"):
        permissions = Permissions(rules(allow="write; write(/**); write(~/**); write(**)"))
        result = await check_call(permissions, "write", work, path=path, content="x")
        assert not result.allowed
        assert "protected" in result.reason
    assert (
        await check_call(Permissions(rules(allow="write(.git/x)")), "write", work, path=".git/x", content="")
    ).allowed


async def test_c5_request_shows_the_target_of_a_redirection(work: Path, tmp_path: Path) -> None:
    os.symlink(tmp_path / "outside.txt", work / "link")
    person = Person()
    permissions = Permissions(rules(allow="bash(echo *); write(**)"), approver=person)
    assert not (await check_call(permissions, "bash", work, command="echo x > link")).allowed
    assert f'writes to: "{tmp_path}/outside.txt" (outside)' in "\n".join(person.questions[0].lines)


async def test_request_shows_the_complete_command_escaped(work: Path) -> None:
    command = "ls " + "x" * 5000 + "\u202e\x1b[2K\n\xa0rm \u0430"
    person = Person()
    await check_call(Permissions(approver=person), "bash", work, command=command)
    shown = person.questions[0].lines
    assert all(line.isascii() and line.isprintable() for line in shown)
    assert any("x" * 5000 + "\\u202e\\u001b[2K" in line for line in shown)
    assert 'command: "\\u00a0rm \\u0430"' in shown


async def test_request_shows_every_argument_of_a_remote_tool(work: Path) -> None:
    person = Person()
    await Permissions(approver=person).check(remote(), {"title": "a\nb", "n": [1, {"x": None}]}, context(work))
    lines = person.questions[0].lines
    assert 'argument "title": "a\\nb"' in lines
    assert 'argument "n": [1,{"x":null}]' in lines
    assert 'server: "github"' in lines


async def test_c5_link_that_changes_during_the_question_is_asked_about_again(work: Path, tmp_path: Path) -> None:
    link = work / "link"
    os.symlink(work / "new.txt", link)

    def swap() -> None:
        if len(person.questions) == 1:
            link.unlink()
            link.symlink_to(tmp_path / "outside.txt")

    person = Person([ApprovalScope.ONCE, None], before=swap)
    result = await check_call(Permissions(approver=person), "write", work, path="link", content="x")
    assert not result.allowed
    assert len(person.questions) == 2
    assert "outside.txt" in "\n".join(person.questions[1].lines)


async def test_c5_link_that_keeps_changing_is_denied(work: Path) -> None:
    link = work / "link"
    os.symlink(work / "new.txt", link)

    def swap() -> None:
        link.unlink()
        link.symlink_to(work / f"{len(person.questions)}.txt")

    person = Person([ApprovalScope.ONCE] * 9, before=swap)
    result = await check_call(Permissions(approver=person), "write", work, path="link", content="x")
    assert not result.allowed
    assert len(person.questions) == 3


async def test_arguments_changed_after_the_check_do_not_reach_the_card(work: Path) -> None:
    seen: list[JsonValue] = []
    given: JsonObject = {"a": [1]}

    async def run(arguments: JsonObject, ctx: ToolContext) -> str:
        seen.append(arguments)
        return "ran"

    def swap() -> None:
        given["a"] = [2]

    permissions = Permissions(approver=Person([ApprovalScope.ONCE], before=swap))
    await permissions.run(tool(run), given, context(work))
    assert seen == [{"a": [1]}]


# -- path grants --------------------------------------------------------------------------------


async def test_path_grant_outside_the_workspace_holds_for_one_call(work: Path, tmp_path: Path) -> None:
    ctx = context(work)
    permissions = Permissions(approver=Person([ApprovalScope.ONCE]))
    read = card("read", work)
    result = await permissions.run(read, {"path": "../outside.txt"}, ctx)
    assert "outside" in text_of(result)
    assert not result.is_error
    assert (await permissions.run(read, {"path": "../outside.txt"}, ctx)).details["code"] == "denied"
    assert (await read.run({"path": "../outside.txt"}, ctx)).is_error


async def test_path_grant_for_a_new_file_includes_its_directory(work: Path, tmp_path: Path) -> None:
    permissions = Permissions(rules(allow=f"write({tmp_path}/**)"))
    target = str(tmp_path / "deep" / "er" / "x.txt")
    result = await permissions.run(card("write", work), {"path": target, "content": "x\n"}, context(work))
    assert not result.is_error, text_of(result)
    assert (tmp_path / "deep" / "er" / "x.txt").read_text(encoding="utf-8") == "x\n"


async def test_allowed_directory_outside_is_searched(work: Path, tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    (beside / "in").mkdir(parents=True)
    (beside / "in" / "f.txt").write_text("needle\n", encoding="utf-8")
    os.symlink(tmp_path / "outside.txt", beside / "way out")
    permissions = Permissions(approval=ApprovalMode.ALL)
    ctx = context(work)
    calls: list[tuple[str, JsonObject]] = [
        ("ls", {"path": str(beside), "depth": 3}),
        ("grep", {"path": str(beside), "pattern": "needle"}),
        ("find", {"path": str(beside), "query": "*.txt"}),
    ]
    for name, arguments in calls:
        result = await permissions.run(card(name, work), arguments, ctx)
        assert "f.txt" in text_of(result), text_of(result)


@pytest.mark.process
async def test_bash_starts_in_an_allowed_directory_outside(work: Path, tmp_path: Path) -> None:
    permissions = Permissions(approval=ApprovalMode.ALL)
    async with context(work) as ctx:
        result = await permissions.run(card("bash", work), {"command": "cat outside.txt", "cwd": str(tmp_path)}, ctx)
    assert "outside" in text_of(result)


async def test_call_writes_only_to_checked_paths(work: Path) -> None:
    (work / "b.txt").write_text("b\n", encoding="utf-8")

    class Elsewhere:
        """A card called `write` that writes elsewhere too."""

        name, label, description, read_only = "write", "", "", False
        parameters = ANYTHING

        async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
            said: list[str] = []
            for path in ("b.txt", "a.txt"):
                try:
                    await ctx.fs.write_file(path, "new")
                except PermissionError as exc:
                    said.append(str(exc))
            return ToolResult.text(" ".join(said))

    permissions = Permissions(approval=ApprovalMode.AUTO_EDIT)
    result = await permissions.run(Elsewhere(), {"path": "b.txt", "content": "x"}, context(work))
    assert "not what was allowed" in text_of(result)
    assert (work / "a.txt").read_text(encoding="utf-8") == "inside\n"
    assert (work / "b.txt").read_text(encoding="utf-8") == "new"


async def test_denied_path_stays_denied_behind_a_changed_link(work: Path) -> None:
    (work / ".env").write_text("KEY=1\n", encoding="utf-8")

    class Wanders:
        name, label, description, read_only = "read", "", "", True
        parameters = ANYTHING

        async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
            return ToolResult.text(await ctx.fs.read_text(".env"))

    permissions = Permissions(rules(deny="read(.env)"))
    with pytest.raises(PermissionError, match="deny read"):
        await permissions.run(Wanders(), {"path": "a.txt"}, context(work))


async def test_file_system_without_a_policy_is_unchanged(work: Path) -> None:
    fs = LocalFs(str(work))
    assert fs.under(lambda policy: policy) is fs
    ctx = replace(context(work), fs=fs)
    result = await Permissions().run(card("read", work), {"path": "a.txt"}, ctx)
    assert "inside" in text_of(result)


async def test_file_system_with_another_policy_keeps_its_workspace(work: Path) -> None:
    def anything(request: PathRequest) -> bool:
        return request.resolved.endswith(".txt")

    for looked in (True, False):
        ctx = context(work)
        assert isinstance(ctx.fs, LocalFs)
        if looked:
            await ctx.fs.resolve(".")
        other = ctx.fs.under(lambda policy: replace(policy, permits=anything))
        assert await other.read_text("../outside.txt") == "outside\n"
        with pytest.raises(PermissionError):
            await ctx.fs.read_text("../outside.txt")


async def test_file_system_of_another_type_is_unchanged(work: Path) -> None:
    inner = LocalFs(str(work))

    class Other:
        async def resolve(self, path: str, *, writing: bool = False) -> str:
            return await inner.resolve(path, writing=writing)

        async def read_text(self, path: str) -> str:
            return await inner.read_text(path)

    class Reads:
        name, label, description, read_only = "read", "", "", True
        parameters = ANYTHING

        async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
            return ToolResult.text(await ctx.fs.read_text("a.txt"))

    ctx = replace(context(work), fs=Other())
    assert "inside" in text_of(await Permissions().run(Reads(), {"path": "a.txt"}, ctx))


# -- rules about paths ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deny", "path"),
    [
        ("read(.env)", ".env"),
        ("read(.env)", "src/.env"),
        ("read(.env)", "src/../.ENV"),
        ("read(src/**)", "src/deep/x"),
        ("read(src)", "src/deep/x"),
        ("read(*.pem)", "src/key.pem"),
        ("read(link/**)", "src/x"),
        ("read(src/**)", "link/x"),
        ("read", "a.txt"),
        ("re*", "a.txt"),
        ("*(src/**)", "src/x"),
        ("read(/**/secret/**)", "src/secret/x"),
    ],
)
async def test_denied_path_is_denied_under_every_name(deny: str, path: str, work: Path) -> None:
    os.symlink("src", work / "link")
    permissions = Permissions(rules(allow="read(**)", deny=deny), approval=ApprovalMode.ALL)
    assert not (await check_call(permissions, "read", work, path=path)).allowed


async def test_redirections_count_as_write_and_read(work: Path) -> None:
    given = rules(allow="bash(cat *); write(out/**)", deny="read(secret); write(out/no)")
    permissions = Permissions(given)
    assert (await check_call(permissions, "bash", work, command="cat a.txt > out/yes")).allowed
    for command in ("cat > out/no", "cat < secret > out/yes", "cat a.txt > yes"):
        assert not (await check_call(permissions, "bash", work, command=command)).allowed


@pytest.mark.process
async def test_relative_redirection_is_resolved_from_the_directory_of_the_shell(work: Path, tmp_path: Path) -> None:
    os.symlink(tmp_path, work / "src" / "out")
    permissions = Permissions(rules(allow="bash(*); write(**)"))
    bash = card("bash", work)
    async with context(work) as ctx:
        assert (await permissions.check(bash, {"command": "echo x > out/f"}, ctx)).allowed
        await permissions.run(bash, {"command": "cd src"}, ctx)
        assert not (await permissions.check(bash, {"command": "echo x > out/f"}, ctx)).allowed
        given: JsonObject = {"command": "echo x > out/f", "cwd": "."}
        assert (await permissions.check(bash, given, ctx)).allowed
        given["cwd"] = "src"
        assert not (await permissions.check(bash, given, ctx)).allowed


async def test_search_above_a_denied_path_is_asked_about(work: Path) -> None:
    person = Person()
    permissions = Permissions(rules(deny="grep(src/secret/**)"), approver=person)
    assert (await check_call(permissions, "grep", work, pattern="x", path="a.txt")).allowed
    assert not (await check_call(permissions, "grep", work, pattern="x")).allowed
    assert "may be meant" in person.questions[0].reasons[0]
    assert not (await check_call(permissions, "grep", work, pattern="x", path="src/secret/in")).allowed
    assert len(person.questions) == 1


async def test_unresolvable_path_is_asked_about(work: Path) -> None:
    os.symlink("loop", work / "loop")
    result = await check_call(Permissions(), "read", work, path="a\0b")
    assert not result.allowed
    assert "cannot hold such characters" in result.reason


@pytest.mark.parametrize(
    ("texts", "url", "allowed"),
    [
        ("webfetch(domain:example.org)", "https://example.org/x", True),
        ("webfetch(domain:example.org)", "https://EXAMPLE.org.:8443/", True),
        ("webfetch(domain:example.org)", "https://a.example.org/", False),
        ("webfetch(domain:*.example.org)", "https://a.example.org/", True),
        ("webfetch(domain:*.example.org)", "https://example.org/", False),
        ("webfetch(domain:example.org)", "https://example.org.evil.net/", False),
        ("webfetch(domain:example.org)", "https://example.org@evil.net/", False),
        ("webfetch(domain:example.org)", "https://\u0435xample.org/", False),
        ("webfetch(domain:example.org)", "http://[::1", False),
        ("webfetch(domain:*)", "https://anything.net/", True),
        ("webfetch", "https://anything.net/", True),
        ("websearch", "https://anything.net/", False),
    ],
)
async def test_domain_is_compared_with_the_parsed_url(texts: str, url: str, allowed: bool, work: Path) -> None:
    assert (await check_call(Permissions(rules(allow=texts)), "webfetch", work, url=url)).allowed is allowed


async def test_path_that_a_rule_cannot_name_is_allowed_once_only(work: Path) -> None:
    for path in ("a*b", "a\u202eb", "a\nb"):
        person = Person()
        await check_call(Permissions(approver=person), "write", work, path=path, content="x")
        assert person.questions[0].scopes == (ApprovalScope.ONCE, ApprovalScope.EDITS)


async def test_changed_schema_of_a_card_is_used_for_the_check(work: Path) -> None:
    async def run(arguments: JsonObject, ctx: ToolContext) -> str:
        return "ran"

    permissions = Permissions()
    strict = tool(run, parameters=NOTHING, read_only=True)
    assert not (await permissions.check(strict, {"a": 1}, context(work))).allowed
    assert (await permissions.check(tool(run, read_only=True), {"a": 1}, context(work))).allowed


async def test_denied_domain_covers_subdomains_and_invalid_urls(work: Path) -> None:
    permissions = Permissions(rules(allow="webfetch", deny="webfetch(domain:evil.net)"))
    for url in ("https://evil.net", "https://a.EVIL.net.", "http://[::1"):
        assert not (await check_call(permissions, "webfetch", work, url=url)).allowed
    assert (await check_call(permissions, "webfetch", work, url="https://notevil.net")).allowed


# -- checked cards ------------------------------------------------------------------------------


async def test_every_card_of_a_deck_is_checked(work: Path) -> None:
    deck = provision_deck(Profile.ALL, DeckContext(str(work))).graft([remote()])
    permissions = Permissions()
    box = deck.map_capabilities(lambda one: require_permission(one, permissions)).into_tool_box()
    denied: dict[str, JsonObject] = {
        "write": {"path": "x", "content": "x"},
        "bash": {"command": "ls"},
        "bg-process": {"action": "start", "command": "ls"},
        "websearch": {"query": "x"},
        "memory": {"action": "append", "content": "x"},
        "saas-action": {"action": "discover", "query": "x"},
        "github__create_issue": {},
    }
    for name, arguments in denied.items():
        outcome = await box.runner.run(ToolCall("1", name, arguments))
        assert outcome.result.details["code"] == "denied", text_of(outcome.result)
    passed: dict[str, JsonObject] = {
        "read": {"path": "a.txt"},
        "memory": {"action": "read"},
        "todo": {"action": "read"},
        "enter_plan_mode": {},
        "bg-process": {"action": "list"},
        "task": {"objective": "x"},
    }
    for name, arguments in passed.items():
        outcome = await box.runner.run(ToolCall("1", name, arguments))
        assert outcome.result.details.get("code") != "denied", name
    await deck.context.aclose()


async def test_checked_card_describes_itself_like_the_inner_card(work: Path) -> None:
    permissions = Permissions()
    for inner in (card("bash", work), remote()):
        outer = require_permission(inner, permissions)
        assert require_permission(outer, permissions) is outer
        assert (outer.name, outer.label, outer.description) == (inner.name, inner.label, inner.description)
        assert outer.parameters == inner.parameters
        assert outer.read_only is inner.read_only
        assert outer.foreign is (inner.name != "bash")
        assert outer.descriptor.name == inner.name
        assert "CheckedCard" in repr(outer)
    assert isinstance(outer, CheckedCard)
    deck = ToolDeck([outer], context(work))
    assert deck.into_tool_box().descriptors()[0].annotations == {"readOnlyHint": True}


async def test_card_with_two_permissions_runs_if_both_allow_it(work: Path) -> None:
    above = Permissions(rules(allow="write(**)", deny="write(no)"))
    below = Permissions(rules(allow="write(/**)"))
    both = require_permission(require_permission(card("write", work), above), below)
    assert isinstance(both, CheckedCard)
    assert both.permissions == (below, above)
    ctx = context(work)

    async def wrote(path: str) -> bool:
        return not (await both.run({"path": path, "content": "x\n"}, ctx)).is_error

    assert await wrote("yes")
    assert not await wrote("no")
    assert not await wrote("../x")
    assert not (await require_permission(both, Permissions()).run({"path": "more", "content": "x"}, ctx)).details.get(
        "diff"
    )


async def test_foreign_card_is_recognised_through_wrappers(work: Path) -> None:
    class Around:
        label, description, read_only = "", "", True
        parameters = ANYTHING

        def __init__(self) -> None:
            self.inner = remote()
            self.name = self.inner.name

        async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
            return await self.inner.run(arguments, ctx)

    facts = await gather_facts(Around(), {}, context(work))
    assert (facts.server, facts.pin) == ("github", remote().pin)


async def test_foreign_card_without_a_reference_is_asked_about(work: Path) -> None:
    class Stranger:
        name, label, description, read_only, foreign = "read", "", "", True, True
        parameters = ANYTHING

        async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
            return ToolResult.text("ran")

    result = await Permissions().check(Stranger(), None, context(work))
    assert not result.allowed
    refused = await Permissions().run(Stranger(), "text", context(work))
    assert refused.details["code"] == "invalid_arguments"


async def test_unknown_native_card_counts_as_a_change_unless_read_only(work: Path) -> None:
    async def run(arguments: JsonObject, ctx: ToolContext) -> str:
        return "ran"

    assert (await Permissions().check(tool(run, read_only=True), None, context(work))).allowed
    assert not (await Permissions().check(tool(run), {}, context(work))).allowed
    ask = Permissions(rules(ask="probe"), approver=Person())
    assert not (await ask.check(tool(run, read_only=True), {}, context(work))).allowed


async def test_rules_of_another_workspace_do_not_apply(work: Path) -> None:
    elsewhere = rule("bash(ls *)", Effect.ALLOW, workspace="/elsewhere")
    here = rule("bash(ls *)", Effect.ALLOW, workspace=str(work))
    assert not (await check_call(Permissions([elsewhere]), "bash", work, command="ls")).allowed
    assert (await check_call(Permissions([here]), "bash", work, command="ls")).allowed
    foreign = Rule(effect=Effect.DENY, tool="*", server="github", origin=RuleOrigin.USER)
    assert (await check_call(Permissions([here, foreign]), "bash", work, command="ls")).allowed


def test_stub_shell_reports_the_given_sandbox(tmp_path: Path) -> None:
    assert StubShell(str(tmp_path), SANDBOXED).state is SANDBOXED
