"""Command hooks: which run, what they decide, and that none runs without consent."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.support.model_server import calls, model_server, says
from tests.support.sessions import SessionSetup, to_text

from indusagi.runtime.contract import ToolResult, project_content
from induscode.addons.contract import Ask, Deny, InterceptedCall, Replace
from induscode.addons.hooks import CommandHooks, find_hook_files, list_project_parts
from induscode.addons.loader import AddonConsentStore
from induscode.launch.invocation import Invocation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.support.model_server import ModelServer, Reply

pytestmark = pytest.mark.process
TOUCH = "touch ran; cat > /dev/null"


def write_hooks(path: Path, *commands: str, event: str = "PreToolUse", matcher: str = "", **more: Any) -> Path:
    """Write hooks into a settings file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    limits = [{"timeout": 0.2 if "sleep" in command else 60, **more} for command in commands]
    rows = [{"type": "command", "command": command, **limit} for command, limit in zip(commands, limits, strict=True)]
    path.write_text(json.dumps({"hooks": {event: [{"matcher": matcher, "hooks": rows}]}}), encoding="utf-8")
    return path


def trust(work: Path) -> None:
    """Consent to everything of a project as it is."""
    for part in list_project_parts(str(work), []):
        AddonConsentStore().approve(part.file, part.describe().digest)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


class Stage:
    """The hooks of a project, and the notes about them."""

    def __init__(self, work: Path) -> None:
        self.hooks = CommandHooks(Invocation(cwd=str(work), sandbox="off"))
        self.said: list[str] = []
        self.hooks.report = self.said.append

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run something with the hooks, and close them."""

        async def run_and_close() -> Any:
            try:
                return await work()
            finally:
                await self.hooks.aclose()

        result = anyio.run(run_and_close)
        assert not os.path.exists(self.hooks._directory), "what commands read is removed"
        return result

    def before(self, tool: str = "bash", server: str | None = None, **arguments: Any) -> Any:
        return self.run(partial(self.hooks.before, build_call(tool, server, **arguments)))


def build_call(tool: str = "bash", server: str | None = None, **arguments: Any) -> InterceptedCall:
    return InterceptedCall(
        tool=tool, arguments=arguments, read_only=False, server=server, cwd="/w", agent="main", number=1
    )


def answer(**special: object) -> str:
    """Write a command that answers with JSON."""
    return f"echo '{json.dumps({'hookSpecificOutput': special})}'"


# -- decisions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo not this >&2; exit 2", Deny("not this (hook echo not this >&2; exit 2)")),
        ("exit 0", None),
        (answer(permissionDecision="allow"), None),
        (answer(permissionDecision="deny", permissionDecisionReason="no"), "no"),
        ('echo \'{"decision": "block", "reason": "old"}\'', "old"),
        ('echo \'{"continue": false, "stopReason": "stop"}\'', "stop"),
        ("echo '{broken'", "gave no answer: its output is no JSON"),
        ("sleep 600", "gave no answer: it wasn't done within 0.2 s"),
    ],
    ids=["exit-2", "exit-0", "allow", "deny", "block", "continue", "broken", "hangs"],
)
def test_a_hook_denies_or_says_nothing(work: Path, command: str, expected: object) -> None:
    write_hooks(work / ".claude/settings.json", command)
    trust(work)
    decision = Stage(work).before(command="ls")
    if isinstance(expected, str):
        assert isinstance(decision, Deny)
        assert expected in decision.reason
    else:
        assert decision == expected


def test_a_hook_that_fails_is_noted_and_decides_nothing(work: Path) -> None:
    write_hooks(work / ".claude/settings.json", "echo oops >&2; exit 3")
    trust(work)
    stage = Stage(work)
    assert stage.before(command="ls") is None
    assert "it exited with 3: oops" in stage.said[0]


def test_a_hook_asks_and_changes_arguments_under_claudes_names(work: Path) -> None:
    ask = answer(permissionDecision="ask", permissionDecisionReason="look")
    change = answer(updatedInput={"path": "a", "file_path": "/w/b", "edits": [], "old_string": "x", "new_string": "z"})
    write_hooks(work / ".claude/settings.json", ask, change)
    trust(work)
    decision = Stage(work).before("edit", path="a", edits=[{"oldText": "x", "newText": "y"}])
    assert isinstance(decision, Replace)
    assert decision.arguments == {"path": "/w/b", "edits": [{"oldText": "x", "newText": "z"}]}
    assert decision.ask.startswith("look")
    write_hooks(work / ".claude/settings.json", ask)
    trust(work)
    assert isinstance(Stage(work).before(command="ls"), Ask)


@pytest.mark.parametrize(
    ("matcher", "tool", "server", "is_run"),
    [
        ("Bash", "bash", None, True),
        ("bash", "bash", None, True),
        ("Edit|Write", "write", None, True),
        ("Edit", "write", None, False),
        ("*", "anything", None, True),
        ("mcp__memory__.*", "memory__read", "memory", True),
        ("mcp__.*__read", "memory__write", "memory", False),
    ],
)
def test_matchers_name_tools_as_claude_code_or_indus(
    work: Path, matcher: str, tool: str, server: str | None, is_run: bool
) -> None:
    write_hooks(work / ".claude/settings.json", "cat > input", matcher=matcher)
    trust(work)
    Stage(work).before(tool, server, path="a.txt")
    assert (work / "input").exists() is is_run
    if is_run and tool == "write":
        given = json.loads((work / "input").read_text(encoding="utf-8"))
        assert (given["tool_name"], given["hook_event_name"], given["cwd"]) == ("Write", "PreToolUse", str(work))
        assert os.path.isabs(given["tool_input"]["file_path"])


def test_after_a_call_hooks_add_context(work: Path) -> None:
    saw = """grep -q '"content": *"done"' && echo formatted >&2; exit 2"""
    hooks = (saw, answer(additionalContext="see\u202e docs"), "sleep 600")
    write_hooks(work / ".indusvx/settings.json", *hooks, event="PostToolUse")
    trust(work)
    stage = Stage(work)
    result = stage.run(partial(stage.hooks.after, build_call(), ToolResult.text("done")))
    text = str(project_content(result.content))
    assert "done" in text
    assert "[a hook of the session says: formatted]" in text
    assert "[a hook of the session says: see docs]" in text
    assert "wasn't done within 0.2 s" in stage.said[0]


# -- consent ----------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [".claude/settings.json", ".claude/settings.local.json", ".indusvx/settings.json"])
def test_hooks_of_a_project_run_after_a_yes_to_exactly_these(work: Path, file: str) -> None:
    script = work / "guard.sh"
    script.write_text("touch ran\n", encoding="utf-8")
    write_hooks(work / file, 'sh "$CLAUDE_PROJECT_DIR"/guard.sh')
    stage = Stage(work)
    assert stage.before(command="ls") is None
    assert not (work / "ran").exists()
    assert f"indus addons trust hooks:{file}" in str(stage.hooks.notes[0])
    (found,) = find_hook_files(str(work), [])
    assert "touch ran" in found.text
    trust(work)
    stage = Stage(work)
    stage.before(command="ls")
    assert (work / "ran").exists()
    script.write_text("touch pwned\n", encoding="utf-8")
    decision = stage.before(command="ls")
    assert "guard.sh has changed since you trusted it" in decision.reason
    later = Stage(work)
    assert later.before(command="ls") is None
    assert "they have changed since you trusted them" in str(later.hooks.notes[0])
    assert not (work / "pwned").exists()


@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_projects_link_to_hooks_elsewhere_is_no_way_around_consent(work: Path, tmp_path: Path, place: str) -> None:
    outside = write_hooks(tmp_path / "outside/settings.json", f"touch {work}/ran")
    if place == "file":
        (work / ".claude").mkdir()
        (work / ".claude/settings.json").symlink_to(outside)
    else:
        (work / ".claude").symlink_to(outside.parent)
    stage = Stage(work)
    stage.before(command="ls")
    assert not (work / "ran").exists()
    assert "it's a link" in str(stage.hooks.notes[0])


@pytest.mark.parametrize(
    "command", ["./guard.sh", "cd hooks && ./guard.sh", '"${PWD}"/hooks/guard.sh', "sh -c x=hooks/guard.sh"]
)
def test_a_script_is_covered_however_it_is_named_and_a_link_to_one_is_refused(work: Path, command: str) -> None:
    for path in (work / "guard.sh", work / "hooks/guard.sh", work / "hooks/other.sh"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("exit 0\n", encoding="utf-8")
        path.chmod(0o755)
    write_hooks(work / ".claude/settings.json", command)
    (found,) = find_hook_files(str(work), [])
    assert str(work / ("guard.sh" if command == "./guard.sh" else "hooks/guard.sh")) in found.scripts
    trust(work)
    stage = Stage(work)
    for path in found.scripts:
        Path(path).unlink()
        Path(path).symlink_to(work / "hooks/other.sh")
    decision = stage.before(command="ls")
    assert "has changed since you trusted it" in decision.reason
    later = Stage(work)
    assert later.hooks.build_addon() is None
    assert "which is a link" in str(later.hooks.notes[0])


def test_the_users_hooks_run_at_once_and_are_shown_the_first_time(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(os.environ["HOME"])
    write_hooks(home / ".claude/settings.json", "touch ran")
    stage = Stage(work)
    assert "run in your sessions from now on: PreToolUse *: touch ran" in str(stage.hooks.notes[0])
    stage.before(command="ls")
    assert (work / "ran").exists()
    assert Stage(work).hooks.notes == []
    # In the home directory a model may have written them.
    monkeypatch.setenv("HOME", str(work))
    write_hooks(work / ".claude/settings.json", "touch pwned")
    Stage(work).before(command="ls")
    assert not (work / "pwned").exists()


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ('{"PreToolUse": [{"matcher": "(a+)+$", "hooks": []}]}', "the matcher '(a+)+$' can't be read"),
        ('{"PreToolUse": [{"hooks": [{"type": "prompt"}]}]}', "a hook of PreToolUse is no command"),
        ('{"PreCompact": []}', "PreCompact is left out"),
        (f'{{"Stop": [{{"hooks": [{", ".join(["""{"command": "a"}"""] * 51)}]}}]}}', "more than 50 hooks"),
    ],
)
def test_hooks_that_are_not_understood_are_left_out_with_a_note(work: Path, document: str, reason: str) -> None:
    path = work / ".claude/settings.json"
    path.parent.mkdir()
    path.write_text(f'{{"hooks": {document}}}', encoding="utf-8")
    stage = Stage(work)
    assert reason in str(stage.hooks.notes[0])
    assert stage.hooks.build_addon() is None


# -- runs -------------------------------------------------------------------------------------


class HookRun:
    """Runs `indus -p` in a project with hooks, in this process."""

    def __init__(self, folder: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
        self.setup, self.server = SessionSetup(folder, server), server
        self.cwd = self.setup.cwd
        self.cwd.mkdir()
        self._monkeypatch, self._capfd = monkeypatch, capfd
        self.err = ""

    def __call__(self, *script: Reply, **flags: Any) -> dict[str, Any]:
        self.server.script[:] = script
        self.server.requests.clear()
        code = self.setup.run_in_process(self._monkeypatch, output_format="json", sandbox="off", **flags)
        out, self.err = self._capfd.readouterr()
        return {**json.loads(out), "code": code}

    def hook(self, *commands: str, trusted: bool = True, **more: Any) -> None:
        write_hooks(self.cwd / ".claude/settings.json", *commands, **more)
        if trusted:
            trust(self.cwd)


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[HookRun]:
    with model_server() as server:
        yield HookRun(tmp_path, server, monkeypatch, capfd)


def test_without_consent_nothing_runs_in_a_run_and_its_sub_agents(ran: HookRun) -> None:
    for event in ("PreToolUse", "PostToolUse", "UserPromptSubmit", "Stop", "SessionStart"):
        ran.hook(TOUCH, trusted=False, event=event)
        done = ran(calls("ls"), calls("task", objective="look"), calls("ls", path="."), says("seen"), says("done"))
        assert (done["code"], done["result"]) == (0, "done")
        assert "they aren't trusted yet" in ran.err
        assert not (ran.cwd / "ran").exists()
    ran.hook(TOUCH, trusted=True)
    assert ran(calls("ls"), says("done"), no_addons=True)["code"] == 0
    assert not (ran.cwd / "ran").exists()


def test_a_hook_sees_the_mode_and_the_conversation(ran: HookRun) -> None:
    ran.hook("cat > input")
    done = ran(calls("enter_plan_mode"), calls("ls"), says("planned"))
    given = json.loads((ran.cwd / "input").read_text(encoding="utf-8"))
    assert (given["permission_mode"], given["tool_name"], given["session_id"]) == ("plan", "LS", done["session_id"])
    assert Path(given["transcript_path"]).is_file()


def test_calls_of_sub_agents_pass_hooks(ran: HookRun) -> None:
    ran.hook("echo never >&2; exit 2", matcher="LS")
    done = ran(calls("task", objective="look"), calls("ls"), says("denied"), says("done"))
    assert [row["reason"].partition(" (")[0] for row in done["denied"]] == [
        "ls was not run: the addon 'indus:hooks' denies it: never"
    ]


def test_a_hook_asks_even_where_everything_is_allowed_and_never_allows(ran: HookRun) -> None:
    ran.hook(answer(permissionDecision="ask", permissionDecisionReason="look"), matcher="Write|Task")
    done = ran(calls("write", path="a", content="x"), calls("bash", command="echo free"), says("done"))
    assert not (ran.cwd / "a").exists()
    assert "Run it in a session, where you're asked" in done["denied"][0]["reason"]
    assert len(done["denied"]) == 1
    ran.hook(answer(permissionDecision="allow"))
    done = ran(calls("write", path="a", content="x"), says("done"), approval="ask")
    assert "it is denied" in done["denied"][0]["reason"] or "cannot ask" in done["denied"][0]["reason"]
    assert not (ran.cwd / "a").exists()


def test_a_prompt_is_denied_or_gets_facts_and_a_stop_goes_on(ran: HookRun) -> None:
    ran.hook("echo today is Friday", event="UserPromptSubmit")
    ran(says("ok"))
    assert "<session-note>\ntoday is Friday\n</session-note>" in to_text(ran.server.requests[0])
    ran.hook("echo no secrets >&2; exit 2", event="UserPromptSubmit")
    done = ran(says("never"))
    assert (done["code"], done["error"]) == (1, "a hook denies the prompt: no secrets")
    assert ran.server.requests == []
    ran.hook("if grep -q '\"stop_hook_active\":true'; then exit 0; fi; echo run the tests >&2; exit 2", event="Stop")
    done = ran(says("first"), says("second"))
    assert done["result"] == "second"
    assert "A hook of the session says: run the tests" in to_text(ran.server.requests[1])
    ran.hook("echo more >&2; exit 2", event="Stop")
    assert ran(*(says(str(number)) for number in range(20)))["turns"] == 6


def test_a_skill_is_read_in_a_run_and_listed_only_after_consent(ran: HookRun) -> None:
    folder = ran.cwd / ".agents/skills/deploy"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\ndescription: How to deploy.\n---\nCall it off.\n", encoding="utf-8")
    ran(says("none"))
    assert "skill" not in [tool["function"]["name"] for tool in ran.server.requests[0]["tools"]]
    assert "indus addons trust skill:deploy" in ran.err
    trust(ran.cwd)
    done = ran(calls("skill", name="deploy"), says("read"), approval="ask")
    (tool,) = [tool for tool in ran.server.requests[0]["tools"] if tool["function"]["name"] == "skill"]
    assert "- deploy: How to deploy." in tool["function"]["description"]
    assert "Call it off." in to_text(ran.server.requests[1])
    assert done["denied"] == []
