"""Headless runs in this process with a scripted model: limits, faults, resources, sub-sessions."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.commands.helpers import configured, on_terminal, user_file
from tests.support.forked import CONSTANTS
from tests.support.model_server import LIMIT_S, ModelServer, Reply, calls, model_server, says
from tests.support.scripts import unmeasured
from tests.support.servers import diary, fault, hidden, honest
from tests.support.sessions import SessionSetup, to_text
from tests.support.waiting import is_alive, until

from indusagi.capabilities.leftovers import remove_abandoned_dirs
from indusagi.capabilities.local import make_local_context
from indusagi.core.cancel import CancelToken
from indusagi.core.ids import new_ulid
from indusagi.core.process.tree import MARK
from indusagi.core.text import clean_text, iter_strings
from indusagi.interop.protocol_bridge.contract import EndpointPhase, EndpointStatus, ProtocolFault, ServerLimits
from indusagi.runtime.contract import ToolResult
from induscode.conversations.agents.delegate import SubSessions
from induscode.conversations.contract import ExitCode
from induscode.conversations.run import Run, StdoutWriter, answer_prompt, run_headless
from induscode.conversations.transcript import Transcript, conversations_dir, open_transcript
from induscode.deck.contract import DelegateRequest, describe
from induscode.deck.mcp.store import open_store
from induscode.deck.mcp.store.database import store_path
from induscode.deck.mcp.store.history import deck_at
from induscode.deck.mcp.store.journal import Journal
from induscode.deck.stores import FileCheckpoints
from induscode.launch.invocation import Invocation
from induscode.permissions import PermissionSetup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonValue
    from indusagi.runtime.contract import JsonSchema, ToolDescriptor
    from induscode.deck.contract import Capability
    from induscode.deck.mcp.ledger import BridgeEntry

pytestmark = pytest.mark.process


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Ran]:
    with model_server() as server:
        yield Ran(SessionSetup(tmp_path, server), server, monkeypatch, capfd)


class Ran:
    """Runs a script in a session, and gives its result object."""

    def __init__(
        self,
        setup: SessionSetup,
        server: ModelServer,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        self.setup, self.server = setup, server
        self._monkeypatch, self._capfd = monkeypatch, capfd
        self.err = ""

    def __call__(self, *script: Reply, **flags: Any) -> dict[str, Any]:
        self.server.script[:] = script
        code = self.setup.run_in_process(self._monkeypatch, output_format="json", **flags)
        said = self._capfd.readouterr()
        self.err = said.err
        result: dict[str, Any] = json.loads(said.out) if said.out else {}
        return {**result, "code": code}


# -- what a model is shown -------------------------------------------------------------------------


def configure_hidden(hide: str) -> None:
    """Configure the server that hides a character, in a file of the user's: there, a row may ask for notes only."""
    config = hidden(hide)
    row = {"command": config.command, "args": [*config.args], "env": dict(config.env), "review": "note"}
    configured(user_file(), {"h": row})


@pytest.mark.parametrize(
    ("hide", "shown"),
    [
        ("\\udb40\\udc41", "t<U+E0041>ext"),
        ("\\u2066", "t<U+2066>ext"),
        ("\\u200d", "t<U+200D>ext"),
        ("\\u00ad", "text"),  # a hint for line breaks is not worth showing
        ("\\u001b", "t<U+001B>ext"),
    ],
)
@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_finding_d4_invisible_characters_do_not_reach_a_model(ran: Ran, api: Any, hide: str, shown: str) -> None:
    ran.setup.api = api
    configure_hidden(hide)
    paint = calls("h__paint", colour="red", size="small", kind="oil")
    assert ran(paint, calls("h__refuse"), says("done"))["code"] == 0
    assert len(ran.server.requests) == 3
    for request in ran.server.requests:
        assert [text for text in iter_strings(request) if clean_text(text)[1]] == []
    assert shown in to_text(ran.server.requests[1])


DECK_TOKENS = 3_000
"""Limit for the native tools in a request, in tokens of four bytes, as `indus tools` counts them."""


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_finding_c9_the_native_tools_take_3000_tokens_of_a_request_at_most(ran: Ran, api: Any) -> None:
    ran.setup.api = api
    assert ran(says("hello"))["code"] == 0
    told = ran.server.requests[0]["tools"]
    assert len(told) >= 15
    size = len(json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode())
    # What the protocol wraps around a tool is the provider's, and not ours to save.
    assert (size - len(told) * len('{"type":"function","function":}')) / 4 <= DECK_TOKENS


@pytest.mark.parametrize(("window", "is_small"), [(4_096, True), (8_192, True), (16_384, False), (None, False)])
def test_finding_c9_model_with_a_small_context_window_has_fewer_tools(
    ran: Ran, window: int | None, is_small: bool
) -> None:
    assert ran(says("hello"), context_window=window)["code"] == 0
    names = [tool["function"]["name"] for tool in ran.server.requests[0]["tools"]]
    small = ["read", "ls", "grep", "write", "edit", "bash", "task", "find_tools", "describe_tools", "call_tool"]
    assert ({*names} <= {*small}) is is_small
    assert ("More tools are not listed (" in to_text(ran.server.requests[0])) is is_small
    if is_small:
        size = len(json.dumps(ran.server.requests[0], separators=(",", ":")).encode())
        assert size / 4 < 2_400


# -- going on ------------------------------------------------------------------------------------


LONG = "".join(f"line {number}\n" for number in range(1, 30))


def answer_of(ran: Ran) -> str:
    return to_text(ran.server.requests[-1])


@pytest.mark.parametrize("how", ["continue_last", "resume"])
def test_finding_c5_read_state_is_restored_with_a_conversation(ran: Ran, how: str) -> None:
    ran.setup.cwd.mkdir()
    path = ran.setup.cwd / "a.txt"
    path.write_text(LONG, encoding="utf-8")
    first = ran(calls("read", path="a.txt"), says("read"))
    going_on = {how: first["session_id"] if how == "resume" else True}
    edit = calls("edit", path="a.txt", oldText="line 20\n", newText="twenty\n")
    assert ran(edit, says("edited"), **going_on)["code"] == 0
    assert path.read_text(encoding="utf-8") == LONG.replace("line 20\n", "twenty\n")
    # What an edit leaves is known as well.
    write = calls("write", path="a.txt", content="short\n")
    assert ran(write, says("written"), **going_on)["code"] == 0
    assert path.read_text(encoding="utf-8") == "short\n"


def test_finding_c5_file_changed_between_two_runs_counts_as_changed(ran: Ran) -> None:
    ran.setup.cwd.mkdir()
    path = ran.setup.cwd / "a.txt"
    path.write_text(LONG, encoding="utf-8")
    ran(calls("read", path="a.txt"), says("read"))
    path.write_text(LONG + "more\n", encoding="utf-8")
    write = calls("write", path="a.txt", content="lost\n")
    ran(write, says("refused"), continue_last=True)
    assert "it has changed since it was read" in answer_of(ran)
    assert path.read_text(encoding="utf-8") == LONG + "more\n"
    # Another conversation has read nothing.
    ran(write, says("refused"))
    assert "it has not been read yet" in answer_of(ran)


# -- limits and faults -----------------------------------------------------------------------------


def test_request_limit_has_its_own_exit_code(ran: Ran) -> None:
    done = ran(*(calls("ls", path=f"./{'./' * n}") for n in range(5)), max_requests=2)
    assert (done["code"], done["reason"], done["turns"]) == (5, "limit", 2)
    assert "2 requests" in done["error"]


def test_a_session_ends_at_its_limit_of_tokens_or_cost_with_the_figure(ran: Ran) -> None:
    done = ran(calls("ls"), says("never"), max_tokens=10)
    assert (done["code"], done["reason"], done["turns"]) == (ExitCode.LIMIT, "limit", 1)
    assert done["error"] == "--max-tokens 10 is reached: 15 tokens were used"
    done = ran(calls("ls"), says("never"), max_cost=0.5)
    assert (done["code"], done["turns"]) == (ExitCode.LIMIT, 1)
    assert "the model's price is unknown: use --max-tokens" in done["error"]
    done = ran(calls("task", objective="dig"), calls("ls"), says("never"), max_tokens=20)
    assert (done["code"], done["turns"]) == (ExitCode.LIMIT, 2)


def test_jobs_of_a_crashed_run_are_reported(ran: Ran) -> None:
    mark, env = new_ulid(), {**unmeasured(), "PATH": os.environ["PATH"]}
    with subprocess.Popen(["sleep", "600"], env={**env, MARK: mark}) as left:
        try:
            crashed = (
                "from indusagi.capabilities.leftovers import write_receipt\n"
                f"write_receipt({mark!r}, {left.pid}, 'npm run\\x1b[2J dev', '/w')"
            )
            subprocess.run([sys.executable, "-c", crashed], check=True, timeout=60, env=env)
            assert ran(says("hello"))["code"] == 0
            assert "1 job of a run that crashed runs on, such as 'npm run dev'" in ran.err
        finally:
            left.kill()
    assert ran(says("hello"))["code"] == 0
    assert "crashed" not in ran.err


def test_repeated_calls_end_the_run_with_a_reason(ran: Ran) -> None:
    done = ran(*[calls("ls")] * 20)
    assert (done["code"], done["reason"]) == (5, "repeat")
    assert len(ran.server.requests) < 10


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (Reply(status=401, error="bad key"), "auth", "check the key"),
        (Reply(status=429, error="slow down"), "rate_limit", "wait"),
        (Reply(status=404, error="no such model"), "not_found", "--model"),
        (Reply(status=500, error="oops"), "server", "oops"),
    ],
)
@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_refusal_of_a_model_is_one_line_and_exit_code_4(ran: Ran, api: Any, reply: Reply, kind: str, said: str) -> None:
    ran.setup.api = api
    done = ran(reply)
    assert (done["code"], done["fault"]["kind"]) == (4, kind)
    assert said in done["error"]


def test_full_context_window_is_reported(ran: Ran) -> None:
    message = "prompt is too long: 250000 tokens > 200000 maximum"
    ran.setup.api = "anthropic"
    done = ran(Reply(status=400, error=message))
    assert (done["code"], done["fault"]["kind"]) == (4, "context_window")


@pytest.mark.parametrize(
    ("api", "finish", "said"),
    [
        ("openai", "length", "token limit"),
        ("anthropic", "max_tokens", "token limit"),
        ("openai", "content_filter", "filter"),
    ],
)
def test_incomplete_answer_is_reported(ran: Ran, api: Any, finish: str | None, said: str) -> None:
    ran.setup.api = api
    done = ran(Reply(text=("half an ans",), finish=finish))
    assert (done["code"], done["result"]) == (0, "half an ans")
    (note,) = done["notes"]
    assert said in note
    assert said in ran.err


def test_dropped_answer_is_requested_once_more(ran: Ran) -> None:
    half = Reply(text=("half an ans",), finish=None)
    done = ran(half, says("a whole answer"))
    assert (done["code"], done["result"], done["notes"]) == (0, "a whole answer", [])
    assert ran.server.requests[0] == ran.server.requests[1]
    done = ran(half, half)
    assert (done["code"], done["result"]) == (0, "half an ans")
    assert done["notes"] == ["the connection dropped; the answer may be incomplete"]


def test_unreachable_model_server_is_reported(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("induscode.conversations.model_loop.providers._FIRST_DELAY_S", 0.01)
    ran.setup.environ["OPENAI_BASE_URL"] = "http://127.0.0.1:9/v1"
    done = ran()
    assert (done["code"], done["fault"]["kind"]) == (4, "connection")
    assert "http://127.0.0.1:9/v1" in done["error"]


def test_without_a_model_one_line_names_three_remedies(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("induscode.conversations.models.choose_model.__defaults__", ((9,),))
    assert run_headless(Invocation(cwd=str(tmp_path), prompt="hi")) == 4
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"prompt": " "}, "nothing to ask"),
        ({"mcp": ("/no/such/file",)}, "no such file"),
        ({"tools": ("raed",)}, "did you mean 'read'"),
        ({"continue_last": True}, "no conversation"),
        ({"base_url": "localhost"}, "is not a server address"),
    ],
)
def test_invalid_input_is_one_line_and_exit_code_2(ran: Ran, flags: dict[str, Any], said: str) -> None:
    prompt = flags.pop("prompt", "hi")
    done = ran(says("never"), prompt=prompt, **flags)
    assert (done["code"], ran.err.count("\n"), ran.server.requests) == (2, 1, [])
    assert said in ran.err


def test_unwritable_state_directory_is_reported_and_the_run_goes_on(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    done = ran(calls("ls"), says("hello"))
    assert (done["code"], done["result"]) == (0, "hello")
    assert "cannot be kept" in ran.err
    assert any("cannot be kept" in note for note in done["notes"])
    assert ran(says("never"), continue_last=True)["code"] == 2


def test_full_disk_is_reported_and_the_run_continues(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("induscode.deck.stores.line_log.LineLog.extend", full)
    done = ran(says("hello"))
    assert (done["code"], done["result"]) == (0, "hello")
    assert sum("No space left" in note for note in done["notes"]) == 2


@pytest.mark.anyio
async def test_sigint_ends_a_run_that_waits_for_piped_input(tmp_path: Path) -> None:
    with model_server(says("never")) as server:
        setup = SessionSetup(tmp_path, server, environ={"PYTHONFAULTHANDLER": "1"})
        process = setup.start("", stdin=subprocess.PIPE)
        await until(lambda: _catches(process.pid, signal.SIGINT))
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        process.communicate()


def _catches(pid: int, number: signal.Signals) -> bool:
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        caught = next(line for line in file if line.startswith("SigCgt:"))
    # SIGHUP has no handler before those of the session are set.
    mask = int(caught.split()[1], 16)
    return all(mask >> (one - 1) & 1 for one in (number, signal.SIGHUP))


# -- what the model is shown -----------------------------------------------------------------------


def test_no_tools_flag_starts_no_server_and_sends_no_tools(ran: Ran) -> None:
    ran.setup.mount(honest(id="srv"))
    done = ran(says("hello"), no_tools=True)
    assert (done["code"], done["result"]) == (0, "hello")
    assert not ran.server.requests[0].get("tools")


def test_every_turn_and_its_deck_are_recorded(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    ran.setup.mount(honest(id="srv"), added="allow")
    added = threading.Event()
    record_entries = Journal.record_entries

    def notice(journal: Journal, entries: Sequence[BridgeEntry]) -> None:
        record_entries(journal, entries)
        if any(entry.capability is not None and entry.capability.name == "srv__extra" for entry in entries):
            added.set()

    monkeypatch.setattr(Journal, "record_entries", notice)
    # The second answer comes once the tool that the first one adds is there.
    ran.server.pick = lambda body, reply: added.wait(LIMIT_S) if len(ran.server.requests) == 2 else True
    ran(
        calls("srv__mutate", kind="add"), calls("srv__echo", text="now"), calls("srv__extra", text="late"), says("done")
    )
    assert "late" in to_text(ran.server.requests[3])

    async def read_decks() -> list[list[str]]:
        store = await open_store(store_path())
        try:
            (run, *_) = await store.runs()
            decks = [await deck_at(store, run.run, turn=number) for number in range(1, 6)]
        finally:
            await store.aclose()
        return [[shown.name for shown in deck.descriptors] for deck in decks if deck is not None]

    decks = anyio.run(read_decks)
    assert decks == [[tool["function"]["name"] for tool in body["tools"]] for body in ran.server.requests]
    assert ["srv__extra" in deck for deck in (decks[0], *decks[2:])] == [False, True, True]


def test_failed_call_is_marked_if_the_api_has_an_error_mark(ran: Ran) -> None:
    ran.setup.api = "anthropic"
    ran.setup.mount(honest(id="srv"))
    ran(calls("srv__fail"), says("I see"))
    (answer,) = ran.server.requests[-1]["messages"][-1]["content"]
    assert answer["is_error"] is True
    assert answer["content"][0]["text"].splitlines()[1:-1] == ["it did not work"]


def test_system_prompt_is_identical_in_every_request(ran: Ran) -> None:
    ran(calls("ls"), calls("todo_read"), says("done"))
    briefings = {body["messages"][0]["content"] for body in ran.server.requests}
    tools = {json.dumps(body["tools"]) for body in ran.server.requests}
    assert (len(briefings), len(tools)) == (1, 1)


def test_schemas_are_sent_unchanged(ran: Ran) -> None:
    for api in ("openai", "anthropic"):
        ran.setup.api = api
        ran(says("done"))
        sent = {}
        for tool in ran.server.requests[-1]["tools"]:
            function = tool.get("function", tool)
            sent[function["name"]] = function.get("parameters", function.get("input_schema"))
        assert sent["memory"] == {
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["read", "replace", "append"]},
                "content": {"type": "string"},
            },
            "required": ["action"],
        }


def test_finding_1a5_session_has_no_card_without_a_backend(ran: Ran) -> None:
    ran(says("done"))
    sent = {tool["function"]["name"] for tool in ran.server.requests[-1]["tools"]}
    assert {"task", "memory", "enter_plan_mode", "exit_plan_mode"} <= sent
    assert not {"saas-action", "websearch"} & sent


def test_model_without_images_receives_descriptions(ran: Ran) -> None:
    ran.setup.mount(honest(id="srv"))
    refusal = Reply(status=500, error="image input is not supported by this model")
    done = ran(
        calls("srv__media"),
        refusal,
        calls("srv__media"),
        says("I cannot see it"),
        model="blind",
        base_url=f"{ran.server.url}/v1",
    )
    assert (done["code"], done["result"]) == (0, "I cannot see it")
    _, with_it, without, again = map(to_text, ran.server.requests)
    assert "data:image/png" in with_it
    for body in (without, again):
        assert "data:image/png" not in body
        assert "[image/png, 70 bytes: left out, this model does not take it]" in body


def test_refusal_for_another_reason_is_final(ran: Ran) -> None:
    done = ran(Reply(status=500, error="no image, no vision, nothing"), says("never"))
    assert (done["code"], len(ran.server.requests)) == (4, 1)


# -- handles ---------------------------------------------------------------------------------------


def test_memory_is_a_file_of_the_project(ran: Ran) -> None:
    ran(calls("memory", action="append", content="use tabs"), says("done"))
    path = ran.setup.cwd / ".indusvx" / "memory.md"
    assert path.read_text(encoding="utf-8").strip() == "use tabs"


def test_changes_of_a_turn_can_be_restored(ran: Ran) -> None:
    ran.setup.cwd.mkdir()
    (ran.setup.cwd / "a.txt").write_text("before", encoding="utf-8")
    done = ran(calls("read", path="a.txt"), calls("write", path="a.txt", content="after"), says("done"))
    assert (ran.setup.cwd / "a.txt").read_text(encoding="utf-8") == "after"
    kept = FileCheckpoints(os.path.join(conversations_dir(), done["session_id"], "checkpoints"))
    (node,) = kept.nodes()

    async def restore() -> None:
        context = make_local_context(str(ran.setup.cwd))
        await kept.restore(node, context.fs)
        kept.close()

    anyio.run(restore)
    assert (ran.setup.cwd / "a.txt").read_text(encoding="utf-8") == "before"


def test_sub_session_uses_the_same_servers_without_task(ran: Ran, tmp_path: Path) -> None:
    log = tmp_path / "log"
    ran.setup.mount(honest("--log", log, id="srv"))
    done = ran(
        calls("task", objective="count", context="to three"),
        calls("srv__echo", text="in the sub-session"),
        says("the report"),
        says("all done"),
    )
    assert (done["result"], done["turns"]) == ("all done", 4)
    outer, inner, _, last = ran.server.requests
    names = [tool["function"]["name"] for tool in inner["tools"]]
    apart = {"task", "enter_plan_mode", "exit_plan_mode"}
    assert not apart & set(names)
    assert {*names, *apart} == {tool["function"]["name"] for tool in outer["tools"]}
    assert "count\n\nWhat is known:\nto three" in to_text(inner)
    assert "the prompt" not in to_text({"messages": inner["messages"][1:]})
    assert "the report" in to_text(last)
    assert "in the sub-session" not in to_text(last)
    assert len(diary(log, "start")) == 1
    transcript = open_transcript(str(ran.setup.cwd), resume=done["session_id"])
    assert sum(row["op"] == "turn" for row in transcript.rows()) == 4
    transcript.close()


def test_finding_1a18_sub_session_reports_the_files_it_changed(ran: Ran) -> None:
    whole = str(ran.setup.cwd / "b.txt")
    ran(
        calls("task", objective="write"),
        calls("write", path="a.txt", content="one"),
        calls("write", path=whole, content="two"),
        calls("edit", path="a.txt", oldText="one", newText="three"),
        calls("edit", path="missing.txt", oldText="x", newText="y"),
        says("written"),
        says("done"),
        approval="all",
    )
    assert (ran.setup.cwd / "a.txt").read_text(encoding="utf-8") == "three"
    assert '"files":["a.txt","b.txt"]' in to_text(ran.server.requests[-1])


def test_sub_session_at_its_limit_reports_and_can_be_resumed(ran: Ran) -> None:
    half = Reply(text=("found a bit",), calls=(("ls", {}),))
    done = ran(calls("task", objective="dig", maxTurns=1), half, says("I see"))
    assert done["code"] == 0
    answer = to_text(ran.server.requests[-1])
    assert "Ended early (turns)" in answer
    assert "found a bit" in answer
    identity = answer.partition('"id":"')[2][:26]
    ran(calls("task", objective="go on", resume=identity), says("found all"), says("fine"), resume=done["session_id"])
    inner = to_text(ran.server.requests[-2])
    assert "dig" in inner
    assert "go on" in inner
    assert "found all" in to_text(ran.server.requests[-1])


def test_explore_sub_session_has_read_only_tools(ran: Ran) -> None:
    ran(calls("task", objective="look", agent="explore"), says("seen"), says("done"))
    names = {tool["function"]["name"] for tool in ran.server.requests[1]["tools"]}
    assert "read" in names
    assert not names & {"write", "edit", "bash", "task"}


def test_sub_session_without_budget_reports_it(ran: Ran) -> None:
    done = ran(calls("task", objective="dig"), says("never"), max_requests=1)
    assert (done["code"], done["reason"], len(ran.server.requests)) == (5, "limit", 1)


def test_long_report_is_truncated(ran: Ran) -> None:
    ran(calls("task", objective="tell"), says("x" * 60_000), says("long"))
    assert "[the report went on]" in to_text(ran.server.requests[-1])


def test_task_with_a_damaged_history_is_reported(ran: Ran) -> None:
    done = ran(calls("task", objective="dig"), says("found"), says("fine"))
    tasks = os.path.join(conversations_dir(), done["session_id"], "tasks")
    (identity,) = os.listdir(tasks)
    task = Transcript(os.path.join(tasks, identity), "/")
    task.add_message({"kind": "nonsense"})
    task.close()
    asked = calls("task", objective="go on", resume=identity)
    ran(asked, says("hm"), resume=done["session_id"])
    assert "its stored messages cannot be read" in to_text(ran.server.requests[-1])


@pytest.mark.anyio
async def test_task_before_the_session_is_open_is_an_error(tmp_path: Path) -> None:
    sub_sessions = SubSessions(str(tmp_path), str(tmp_path))
    context = make_local_context(str(tmp_path))
    report = await sub_sessions.run(DelegateRequest(objective="x"), context)
    assert (report.ok, report.reason) == (False, "error")


def test_unknown_task_cannot_be_resumed(ran: Ran) -> None:
    ran(calls("task", objective="x", resume="../../etc"), says("hm"))
    assert "There is no task '../../etc'" in to_text(ran.server.requests[-1])


# -- the gate --------------------------------------------------------------------------------------


def test_headless_run_executes_only_what_a_rule_allows(ran: Ran) -> None:
    ran.setup.mount(honest(id="srv"))
    script = (calls("bash", command="touch made"), calls("srv__echo", text="x"), calls("ls"), says("done"))
    done = ran(*script, approval="ask", allow=("srv__echo",))
    assert [one["name"] for one in done["denied"]] == ["bash"]
    assert not (ran.setup.cwd / "made").exists()
    assert "This run cannot ask the user" in to_text(ran.server.requests[0])
    assert "Allowed: srv__echo." in to_text(ran.server.requests[0])


def test_invalid_rule_is_one_line_and_exit_code_2(ran: Ran) -> None:
    assert ran(says("never"), allow=("bash(",))["code"] == 2
    assert (ran.err.count("\n"), ran.server.requests) == (1, [])
    assert "--allow" in ran.err


class Refusing:
    """A card whose calls are denied."""

    def __init__(self, inner: Capability) -> None:
        self.inner = inner
        self.name, self.label = inner.name, inner.label
        self.description, self.read_only = inner.description, inner.read_only
        self.parameters: JsonSchema = inner.parameters
        self.descriptor: ToolDescriptor = describe(inner)

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        return ToolResult.error(f"{self.name} was not run: this run cannot ask the user", code="denied")


def guarded(ran: Ran, monkeypatch: pytest.MonkeyPatch, *script: Reply, **flags: Any) -> int:
    ran.server.script[:] = script
    for name, value in ran.setup.build_environment().items():
        monkeypatch.setenv(name, value)

    def wrap(card: Capability) -> Capability:
        return Refusing(card) if card.name == "bash" else card

    asked = Invocation(**ran.setup.build_fields(output_format="json", **flags))
    return run_headless(asked, PermissionSetup(wrap=wrap, posture="No commands are allowed here."))


def test_denied_call_is_listed_and_the_run_continues(
    ran: Ran, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert guarded(ran, monkeypatch, calls("bash", command="rm -rf x"), says("I may not")) == 0
    said = capfd.readouterr()
    (denied,) = json.loads(said.out)["denied"]
    assert denied["name"] == "bash"
    assert "this run cannot ask the user" in denied["reason"]
    assert "No commands are allowed here." in to_text(ran.server.requests[0])
    assert guarded(ran, monkeypatch, calls("bash", command="rm -rf x"), says("I may not"), fail_on_denied=True) == 5


def test_sub_session_has_the_permissions_of_its_parent(
    ran: Ran, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = (calls("task", objective="x"), calls("bash", command="ls"), says("no"), says("well"))
    assert guarded(ran, monkeypatch, *script) == 0
    (denied,) = json.loads(capfd.readouterr().out)["denied"]
    assert denied["name"] == "bash"
    assert "this run cannot ask the user" in to_text(ran.server.requests[2])


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_r17_signal_during_server_start_ends_everything(tmp_path: Path) -> None:
    with model_server(says("never")) as server:
        setup = SessionSetup(tmp_path, server)
        log = tmp_path / "log"
        setup.mount(fault("mute", "--log", log, id="late"))
        process = setup.start()
        await until(lambda: bool(diary(log, "start")))
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out, server.requests) == (128 + signal.SIGTERM, "", [])
    assert [is_alive(int(pid)) for pid in diary(log, "start")] == [False]


@pytest.mark.anyio
async def test_r17_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with model_server(Reply(text=("Once",), stalls=True)) as server:
        setup = SessionSetup(tmp_path, server)
        # A server that does not go by itself: closing it in peace takes its time.
        setup.mount(fault("stubborn", "--log", log, id="srv"))
        process = setup.start(output_format="stream-json")
        await until(server.speaking.is_set)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        told = iter(process.stdout.readline, "")
        assert any('"type":"result"' in line for line in told)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    await until(lambda: not any(is_alive(int(pid)) for pid in diary(log, "start")))


@pytest.mark.anyio
async def test_r17_blocked_standard_output_does_not_delay_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONSTANTS, "induscode.conversations.run:_REPORT_S", 0.05)
    with model_server(Reply(text=("x" * 200_000,), stalls=True)) as server:
        setup = SessionSetup(tmp_path, server)
        process = setup.start(verbose=True)
        await until(server.speaking.is_set)
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 1) == b"x"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(timeout=60) == 130
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            process.communicate()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("shape", "gone", "code"), [("text", True, 141), ("stream-json", True, 141), ("json", False, 1), ("text", False, 1)]
)
async def test_unwritable_standard_output_ends_the_run(
    ran: Ran, monkeypatch: pytest.MonkeyPatch, shape: Any, gone: bool, code: int
) -> None:
    """A closed pipe and a full disk have different exit codes."""
    ran.server.script[:] = [says("hello"), says("never")]
    for name, value in ran.setup.build_environment().items():
        monkeypatch.setenv(name, value)
    reading, writing = os.pipe()
    os.close(reading)
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        asked = Invocation(**ran.setup.build_fields(output_format=shape))
        page = StdoutWriter(writing if gone else full)
        found = await answer_prompt(asked, PermissionSetup(), writer=page, cancel=CancelToken())
    finally:
        os.close(writing)
        os.close(full)
    assert found == code
    assert len(ran.server.requests) <= 1


def test_heavy_modules_are_loaded_after_the_prompt() -> None:
    heavy = ("pydantic", "pydantic_ai", "mcp", "openai", "anthropic", "httpx2", "jsonschema")
    code = f"import sys, induscode.conversations.run as h; print(set({heavy}) & set(sys.modules))"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=unmeasured())
    assert found.stdout == "set()\n"


_LOADED = """\
import sys
from induscode.__main__ import main
code = main()
print(*{name.partition(".")[0] for name in sys.modules}, sep="\\n", file=sys.stderr)
sys.exit(code)
"""


def test_finding_b13_run_does_not_import_a_provider_sdk(ran: Ran) -> None:
    """The SDK of OpenAI alone takes nearly as long to import as the whole model loop."""
    ran.server.script[:] = [says("hello")]
    told = [f"--{key}={ran.setup.build_fields()[key]}" for key in ("cwd", "prompt", "model")]
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, *[one.replace("--prompt", "--print") for one in told]],
        capture_output=True,
        text=True,
        check=True,
        env={**unmeasured(), **ran.setup.build_environment()},
    )
    loaded = set(done.stderr.split())
    assert done.stdout == "hello\n"
    assert "pydantic_ai" in loaded
    assert loaded & {"openai", "anthropic", "mcp", "mcp_types", "jsonschema", "rich"} == set()


def test_finding_b13_garbage_is_collected_once_everything_is_imported(ran: Ran) -> None:
    gc.disable()
    try:
        assert ran(says("hello"))["code"] == 0
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_finding_b12_library_prints_nothing_on_the_terminal(
    ran: Ran, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pydantic-ai prints no banner in tests and in CI; on a terminal a variable turns it off."""
    for name in [*os.environ]:
        if name == "CI" or name.startswith(("PYTEST", "COV", "PYDANTIC")):
            monkeypatch.delenv(name)
    ran.setup.api = api
    for name, value in ran.setup.build_environment().items():
        monkeypatch.setenv(name, value)
    ran.server.script[:] = [says("hello")]
    given = ran.setup.build_fields()
    told = on_terminal(*("-C", given["cwd"], "-p", given["prompt"], "--model", given["model"]), cwd=ran.setup.cwd)
    assert told == "hello\n"


def test_finding_b12_change_of_a_definition_is_reported_once(ran: Ran) -> None:
    configure_hidden("\\u2066")
    first, second = ran(says("one")), ran(says("two"))
    assert any("invisible characters were removed" in note for note in first["notes"])
    assert second["notes"] == []
    assert ran.err == ""
    long = json.dumps({"description": "d" * 5_000, "inputSchema": {"type": "object"}})
    ran.setup.mount(honest("--rich", long, id="r"))
    third, fourth = ran(says("three")), ran(says("four"))
    wanted = "indus shows models the first 2,048 of the 5,000 characters of its description"
    assert third["notes"] == [f"server 'r', tool 'rich': {wanted}"]
    assert fourth["notes"] == []


_GATED = """\
import json, os, sys
if os.path.exists("dead"):
    sys.exit("it is dead")
if os.path.exists("gate"):
    open("gate").close()  # a FIFO: until it is opened for writing
tools = [{"name": "say", "inputSchema": {"type": "object"}}]
results = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                   "serverInfo": {"name": "require_permission", "version": "1"}},
    "tools/list": {"tools": tools},
    "tools/call": {"content": [{"type": "text", "text": "it is up"}]},
}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        found = results.get(message["method"])
        body = {"result": found} if found else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)
"""


@pytest.fixture
def require_permission(ran: Ran) -> Path:
    """Mount a known server that starts only when a file appears."""
    folder = ran.setup.folder / "server"
    folder.mkdir()
    row = {"command": sys.executable, "args": ["-c", _GATED], "cwd": str(folder)}
    ran.setup.rows["s"] = {**row, "env": {}}
    assert ran(says("known now"))["code"] == 0
    return folder


def test_finding_b13_run_does_not_wait_for_a_known_server(ran: Ran, require_permission: Path) -> None:
    """Its tools come from the ledger, and a call waits until the server is ready."""
    os.mkfifo(require_permission / "gate")
    asked = len(ran.server.requests)

    def open_gate() -> None:
        for _ in range(2_000):  # the process has no event loop of its own here
            if len(ran.server.requests) > asked:
                break
            time.sleep(0.01)
        (require_permission / "gate").write_text("")

    opener = threading.Thread(target=open_gate)
    opener.start()
    try:
        done = ran(calls("s__say"), says("done"))
    finally:
        opener.join()
    assert (done["code"], done["notes"]) == (0, [])
    first, second = ran.server.requests[asked:]
    assert "s__say" in [tool["function"]["name"] for tool in first["tools"]]
    assert "it is up" in to_text(second)


def test_finding_b13_run_waits_for_a_required_server(
    ran: Ran, require_permission: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = ServerLimits.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "close_s", 0.1)
    os.mkfifo(require_permission / "gate")
    ran.setup.rows["s"] |= {"required": True, "startupTimeoutSec": 0.3}
    asked = len(ran.server.requests)
    assert ran(says("never"))["code"] == ExitCode.SERVER_MISSING
    assert len(ran.server.requests) == asked


def test_finding_b13_failure_of_a_known_server_is_reported(ran: Ran, require_permission: Path) -> None:
    (require_permission / "dead").touch()
    done = ran(calls("s__say"), says("done"))
    assert done["code"] == 0
    assert any("'s'" in note for note in done["notes"])
    assert "'s'" in ran.err


def test_start_of_a_run_names_its_servers_and_their_faults() -> None:
    fault = ProtocolFault("timeout", "too late")
    servers = [EndpointStatus("a", EndpointPhase.READY, 3), EndpointStatus("b", EndpointPhase.FAULTED, 0, fault)]
    session = SimpleNamespace(
        mcp=SimpleNamespace(status=lambda: {status.server: status for status in servers}),
        deck=lambda: SimpleNamespace(shown=list),
    )
    conversation: Any = SimpleNamespace(
        notes=[],
        list_notes=list,
        session=session,
        transcript=SimpleNamespace(id="t"),
        choice=SimpleNamespace(label="m"),
        invocation=Invocation(cwd="/w"),
    )
    reporter: Any = None
    start = Run(conversation, reporter, CancelToken()).describe_start()
    assert (start["session_id"], start["model"], start["cwd"]) == ("t", "m", "/w")
    assert start["mcp_servers"] == [
        {"name": "a", "phase": "ready", "tools": 3, "fault": None},
        {"name": "b", "phase": "faulted", "tools": 0, "fault": {"kind": "timeout", "message": str(fault)}},
    ]


def test_a_killed_run_that_cannot_be_stored_leaves_no_directory_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    killed = """
import asyncio, os, signal
from induscode.conversations.opening import open_conversation
from induscode.launch.invocation import Invocation

async def run():
    async with open_conversation(Invocation(cwd=os.getcwd(), model="openai:scripted", no_tools=True)):
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(run())
"""
    done = subprocess.run([sys.executable, "-c", killed], cwd=tmp_path, env=unmeasured(), timeout=LIMIT_S)
    assert done.returncode == -signal.SIGKILL
    assert len([*temporary.glob("indus-*")]) == 1
    remove_abandoned_dirs()
    assert [*temporary.glob("indus-*")] == []
