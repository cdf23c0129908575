"""Addons in a run with a model: hooks that raise, hang, deny and change, two in order, and sub-agents' calls."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.addons import TAG, add_project_addon, build_source, install_addon
from tests.support.model_server import calls, model_server, says
from tests.support.scripts import ROOT
from tests.support.servers import honest
from tests.support.sessions import SessionSetup, to_text

from indusagi.core.app_dirs import state_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.model_server import ModelServer, Reply

pytestmark = pytest.mark.process


class AddonRun:
    """Runs `indus -p` with addons as a process, and gives its result object."""

    def __init__(self, folder: Path, server: ModelServer) -> None:
        self.setup, self.server = SessionSetup(folder, server), server
        self.setup.cwd.mkdir()
        (self.setup.cwd / "a.txt").write_text("the text", encoding="utf-8")
        self.err = ""

    def __call__(self, *script: Reply, **flags: Any) -> dict[str, Any]:
        self.server.script[:] = script
        done = self.setup.run_process(output_format="json", **flags)
        self.err = done.err
        return {**json.loads(done.out), "code": done.code}

    def add(self, name: str, hooks: str, options: str = "interceptors=[Hooks()]", *, trusted: bool = True) -> None:
        add_project_addon(self.setup.cwd, name, build_source(hooks, options), trusted=trusted)

    def read(self, number: int) -> str:
        """Give what the model received with a request."""
        return to_text({"messages": self.server.requests[number]["messages"][1:]})


@pytest.fixture
def ran(tmp_path: Path) -> Iterator[AddonRun]:
    with model_server() as server:
        yield AddonRun(tmp_path, server)


READ = calls("read", path="a.txt")
HOOKS = "interceptors=[Hooks()]"
HURRIED = f"{HOOKS}, deadline_s=0.1"
"""For hooks that never end."""


@pytest.mark.parametrize(
    ("hooks", "reason"),
    [
        ("def before(self, call): raise ValueError('boom')", "failed before read: ValueError: boom"),
        ("def after(self, call, result): raise ValueError('boom')", "failed after read: ValueError: boom"),
        ("def before(self, call): time.sleep(600)", "failed before read: it was not done within 0.1 s"),
        ("def after(self, call, result): time.sleep(600)", "failed after read: it was not done within 0.1 s"),
    ],
    ids=["before-raises", "after-raises", "before-hangs", "after-hangs"],
)
def test_an_addon_that_raises_or_hangs_is_named_once_and_the_run_goes_on(
    ran: AddonRun, hooks: str, reason: str
) -> None:
    ran.add("bad", hooks, HURRIED if "sleep" in hooks else HOOKS)
    done = ran(READ, calls("read", path="a.txt", offset=1), says("done"))
    assert (done["code"], done["result"]) == (0, "done")
    assert "the text" in ran.read(1)
    assert ran.err.count(reason) == 1
    note = f"addon 'bad' of {ran.setup.cwd}/.indusvx/addons/bad.py: {reason}; it is skipped for the rest of the session"
    assert [one for one in done["notes"] if "addon" in one] == [f"{note} (indus addons doctor)"]


@pytest.mark.parametrize(
    "hooks",
    ["def before(self, call): raise ValueError('boom')", "def after(self, call, result): time.sleep(600)"],
    ids=["before", "after"],
)
def test_a_required_addon_that_fails_refuses_the_call(ran: AddonRun, hooks: str) -> None:
    ran.add("must", hooks, f"{HURRIED}, required=True")
    assert ran(READ, says("done"))["code"] == 0
    assert "the text" not in ran.read(1)
    assert "the required addon 'must' failed" in ran.read(1)


def test_an_addon_denies_a_call_and_the_model_reads_why(ran: AddonRun) -> None:
    ran.add("strict", "def before(self, call): return Deny('not on a Friday')")
    done = ran(READ, says("done"))
    assert "read was not run: the addon 'strict' denies it: not on a Friday" in ran.read(1)
    assert [one["name"] for one in done["denied"]] == ["read"]


def test_an_addon_changes_a_result(ran: AddonRun) -> None:
    ran.add("loud", "async def after(self, call, result): return replace_texts(result, str.upper)")
    assert ran(READ, says("done"))["code"] == 0
    assert "THE TEXT" in ran.read(1)
    assert "the text" not in ran.read(1)


def test_two_addons_in_order_around_a_servers_tool(ran: AddonRun, tmp_path: Path) -> None:
    ran.setup.mount(honest(id="srv"))
    ran.setup.environ["PYTHONPATH"] = install_addon(tmp_path / "site", "beta", "two", build_source(TAG.format("two")))
    install_addon(tmp_path / "site", "alpha", "one", build_source(TAG.format("one")))
    ran.add("aaa", TAG.format("three"))
    assert ran(calls("srv__echo", text="x"), says("done"))["code"] == 0
    text = ran.read(1)
    assert "x one two three" in text
    assert text.index("after three") < text.index("after two") < text.index("after one")


def test_a_project_addon_without_consent_does_not_load(ran: AddonRun) -> None:
    ran.add("fresh", "def before(self, call): return Deny('never')", trusted=False)
    done = ran(READ, says("done"))
    assert "the text" in ran.read(1)
    path = ran.setup.cwd / ".indusvx/addons/fresh.py"
    expected = f"addon 'fresh' of {path}: not loaded: it isn't trusted yet (indus addons trust fresh)"
    assert expected in done["notes"]
    assert expected in ran.err


def test_permissions_decide_about_the_arguments_that_an_addon_made(ran: AddonRun) -> None:
    ran.add("swap", "def before(self, call): return Replace({'path': 'b.txt', 'content': 'new'})")
    write = calls("write", path="allowed.txt", content="x")
    assert ran(write, says("done"), approval="ask", allow=("write(./allowed.txt)",))["code"] == 0
    assert "write was not run" in ran.read(1)
    assert sorted(path.name for path in ran.setup.cwd.glob("*.txt")) == ["a.txt"]
    assert ran(write, says("done"), approval="ask", allow=("write(./b.txt)",))["code"] == 0
    assert (ran.setup.cwd / "b.txt").read_text(encoding="utf-8") == "new"


def test_interceptors_see_the_calls_of_sub_agents(ran: AddonRun) -> None:
    source = (ROOT / "examples/addons/audit_log.py").read_text(encoding="utf-8")
    add_project_addon(ran.setup.cwd, "audit_log", source)
    ran.add("strict", "def before(self, call): return Deny('no lists') if call.tool == 'ls' else None")
    done = ran(
        calls("task", objective="look"), READ, calls("ls"), says("seen"), calls("read", path="gone.txt"), says("done")
    )
    assert done["result"] == "done"
    assert "ls was not run: the addon 'strict' denies it: no lists" in ran.read(3)
    log = os.path.join(state_dir(), "addons", "audit_log", "audit.jsonl")
    rows = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    assert [(row["tool"], row["sub_agent"], row["outcome"]) for row in rows] == [
        ("read", True, "ok"),
        ("ls", True, "denied"),
        ("task", False, "ok"),
        ("read", False, "not_found"),
    ]
    assert rows[0]["agent"] == rows[1]["agent"] != rows[2]["agent"]
    assert rows[2]["duration_ms"] >= rows[0]["duration_ms"] >= 0


def test_without_addons_none_is_loaded(ran: AddonRun) -> None:
    ran.add("strict", "def before(self, call): return Deny('never')")
    assert ran(READ, says("done"), no_addons=True)["code"] == 0
    assert "the text" in ran.read(1)


def test_a_model_calls_the_card_of_an_addon(ran: AddonRun) -> None:
    card = 'ToolSpec("lucky", "A lucky number.", {"type": "object"}, Hooks.answer, read_only=True)'
    ran.add("extra", "async def answer(arguments, ctx): return 'seven'", f"cards=[define_tool({card})]")
    assert ran(calls("lucky"), says("done"))["code"] == 0
    assert "lucky" in [tool["function"]["name"] for tool in ran.server.requests[0]["tools"]]
    assert "seven" in ran.read(1)
