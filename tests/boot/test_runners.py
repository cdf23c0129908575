"""The deck of a run: narrowed by name, servers planned before any is started, all of it closed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.servers import HONEST_TOOLS, diary, honest
from tests.support.waiting import until

from indusagi.interop.protocol_bridge.contract import ServerLimits
from indusagi.runtime import ToolCall
from induscode.boot.plans import ConfigPathError, canon_tool_name, plan_servers, select_tools
from induscode.boot.runners import load_mcp_capabilities
from induscode.boot.session import open_session
from induscode.deck import DeckContext, Profile
from induscode.deck.contract import UnknownCapability
from induscode.deck.mcp.store import memory_store
from induscode.deck.provision import provision_deck
from induscode.launch.invocation import Invocation
from induscode.servers.config.trust import TrustStore

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.interop import StdioServerConfig
    from induscode.deck.provision import ToolDeck
    from induscode.launch.invocation import SandboxMode

pytestmark = pytest.mark.anyio


def row(config: StdioServerConfig, **more: object) -> dict[str, object]:
    return {"command": config.command, "args": list(config.args), **more}


def put(path: Path, **servers: object) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"servers": servers}), encoding="utf-8")
    return str(path)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


# -- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["web_fetch", "WebFetch", "web-fetch", "webfetch", "WEBFETCH"])
def test_a_native_tool_is_found_under_every_spelling(work: Path, name: str) -> None:
    deck = provision_deck(Profile.ALL, DeckContext(str(work)))
    assert [card.name for card in select_tools(deck, [name]).tools()] == ["webfetch"]
    assert canon_tool_name(name) == "webfetch"


def test_no_names_mean_all_of_them(work: Path) -> None:
    deck = provision_deck(Profile.ALL, DeckContext(str(work)))
    assert select_tools(deck, None) is deck
    assert select_tools(deck, ()) is deck


def test_an_unknown_name_is_told_with_the_near_one(work: Path) -> None:
    deck = provision_deck(Profile.ALL, DeckContext(str(work)))
    with pytest.raises(UnknownCapability, match="did you mean 'grep'"):
        select_tools(deck, ["read", "grp"])


# -- planning ---------------------------------------------------------------------------------


def test_r36_servers_of_a_project_are_planned_as_untrusted(work: Path) -> None:
    put(work / ".indusvx/mcp.json", x={"command": "x", "env": {"T": "${HOME}"}})
    plan = plan_servers(Invocation(cwd=str(work)))
    assert [one.id for one in plan.untrusted] == ["x"]
    assert (dict(plan.configs), dict(plan.consent)) == ({}, {"x": "unknown"})
    (note,) = plan.notes
    assert "it isn't trusted yet" in str(note)
    assert "indus mcp trust x" in str(note)
    trust = TrustStore()
    trust.approve(plan.rows[0], trust.question(plan.rows[0]).digest)
    assert list(plan_servers(Invocation(cwd=str(work))).configs) == ["x"]
    put(work / ".indusvx/mcp.json", x={"command": "y"})
    changed = plan_servers(Invocation(cwd=str(work)))
    assert dict(changed.consent) == {"x": "changed"}
    assert "it has changed since you trusted it" in str(changed.notes[0])


def test_a_file_that_is_named_is_consent_and_a_directory_is_not(work: Path) -> None:
    file = put(work / ".indusvx/mcp.json", x={"command": "x"})
    named = plan_servers(Invocation(cwd=str(work), mcp=(file,)))
    assert list(named.configs) == ["x"]
    assert named.untrusted == ()
    found = plan_servers(Invocation(cwd=str(work), mcp=(".",)))
    assert [one.id for one in found.untrusted] == ["x"]


def test_several_files_are_one_plan_and_of_one_name_the_first_counts(work: Path) -> None:
    put(work / "a.json", x={"command": "a"}, y={"command": "y"})
    put(work / "b.json", x={"command": "b"}, y={"command": "y"}, z={"command": "z"})
    plan = plan_servers(Invocation(cwd=str(work), mcp=("a.json", "b.json")))
    assert list(plan.configs) == ["x", "y", "z"]
    assert plan.configs["x"].command == "a"  # type: ignore[union-attr]
    assert len(plan.notes) == 1


def test_a_path_that_leads_nowhere_is_an_error(work: Path) -> None:
    with pytest.raises(ConfigPathError, match=r"--mcp typo\.json: no such file"):
        plan_servers(Invocation(cwd=str(work), mcp=("typo.json",)))


def test_without_tools_there_are_no_servers(work: Path) -> None:
    put(work / "a.json", x={"command": "a"})
    for off in (
        Invocation(cwd=str(work), mcp=("a.json",), no_tools=True),
        Invocation(cwd=str(work), mcp=("typo.json",), no_mcp=True),
    ):
        assert plan_servers(off).rows == ()


def test_a_row_without_its_variables_is_not_started(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    put(work / "a.json", x={"command": "a", "args": ["${NOT_SET}"]})
    plan = plan_servers(Invocation(cwd=str(work), mcp=("a.json",)))
    assert dict(plan.configs) == {}
    assert "NOT_SET is not set" in str(plan.notes[0])


# -- a run ------------------------------------------------------------------------------------


@pytest.mark.process
async def test_a_session_has_native_and_remote_tools_in_one_box(work: Path) -> None:
    put(work / "a.json", h=row(honest()), bad={"command": "no-such-command"})
    invocation = Invocation(cwd=str(work), mcp=("a.json",), tools=("read",))
    async with open_session(invocation) as session:
        names = [descriptor.name for descriptor in session.box().descriptors()]
        assert names == ["read", *(f"h__{tool}" for tool in HONEST_TOOLS)]
        outcome = await session.box().runner.run(ToolCall("1", "h__echo", {"text": "hi"}))
        assert outcome.output == "hi"
        status = session.mcp.status()
        assert {name: str(one.phase) for name, one in status.items()} == {"h": "ready", "bad": "faulted"}
        assert session.mcp.missing() == ()


@pytest.mark.process
async def test_a_second_session_shows_the_tools_before_the_server_is_up(work: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    put(work / "a.json", h=row(honest("--log", log), start="lazy"))
    invocation = Invocation(cwd=str(work), mcp=("a.json",))
    async with open_session(invocation) as first:
        shown = first.box().descriptors()
    assert len(diary(log, "start")) == 1
    async with open_session(invocation) as second:
        assert second.box().descriptors() == shown
        assert len(diary(log, "start")) == 1
        outcome = await second.box().runner.run(ToolCall("1", "h__echo", {"text": "hi"}))
        assert outcome.output == "hi"
        assert len(diary(log, "start")) == 2


class CountedLimit:
    """Keeps every card, and counts how often."""

    def __init__(self) -> None:
        self.revision = self.fitted = 0

    def fit(self, deck: ToolDeck, /) -> ToolDeck:
        self.fitted += 1
        return deck


async def test_a_deck_is_built_again_for_another_model_only(work: Path) -> None:
    limit = CountedLimit()
    async with open_session(Invocation(cwd=str(work)), limit=limit) as session:
        assert session.deck() is session.deck()
        assert session.box() is session.box()
        assert (limit.fitted, session.notes) == (1, ())
        limit.revision += 1
        session.deck()
        assert limit.fitted == 2


@pytest.mark.process
async def test_what_a_server_lists_later_is_in_the_next_box(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = ServerLimits.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "relist_gap_s", 0.01)
    put(work / "a.json", h=row(honest()))
    async with open_session(Invocation(cwd=str(work), mcp=("a.json",))) as session:
        before, deck = len(session.box().descriptors()), session.deck()
        await session.box().runner.run(ToolCall("1", "h__echo", {"text": "hi"}))
        assert session.deck() is deck, "nothing has changed"
        await session.box().runner.run(ToolCall("1", "h__grow", {"count": 2}))
        await until(lambda: len(session.mcp.disabled) == 2)
        assert len(session.box().descriptors()) == before
        for drift in session.mcp.enrolment.drifts:
            assert session.mcp.enrolment.approve(drift.ref, drift.digest)
        assert len(session.box().descriptors()) == before + 2


@pytest.mark.process
async def test_r36_a_run_without_consent_starts_nothing(work: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    put(work / ".indusvx/mcp.json", h=row(honest("--log", log), required=True))
    async with open_session(Invocation(cwd=str(work))) as session:
        assert session.mcp.status()["h"].trust == "untrusted"
        assert session.mcp.missing() == ("h",)
        assert all("h__" not in one.name for one in session.box().descriptors())
        assert any("isn't trusted yet" in str(note) for note in session.notes)
    assert not log.exists()


async def test_a_run_without_tools_has_none(work: Path) -> None:
    async with open_session(Invocation(cwd=str(work), no_tools=True)) as session:
        assert session.box().descriptors() == ()
        assert session.mcp.capabilities == ()
        assert session.mcp.status() == {}


async def test_every_card_can_be_wrapped(work: Path) -> None:
    wrapped: list[str] = []

    def wrap(card: object) -> object:
        wrapped.append(card.name)  # type: ignore[attr-defined]
        return card

    async with open_session(Invocation(cwd=str(work), tools=("read",)), wrap=wrap) as session:  # type: ignore[arg-type]
        session.box()
    assert wrapped == ["read"]


async def test_servers_can_be_left_to_come_up_in_the_background(work: Path) -> None:
    store = await memory_store()
    invocation = Invocation(cwd=str(work))
    loaded = await load_mcp_capabilities(replace(invocation), store, wait=False)
    assert loaded.capabilities == ()
    await loaded.aclose()
    await store.aclose()


@pytest.mark.process
@pytest.mark.parametrize("mode", ["off", "auto"])
async def test_commands_run_in_the_sandbox_that_was_asked_for(work: Path, mode: SandboxMode) -> None:
    async with open_session(Invocation(cwd=str(work), sandbox=mode)) as session:
        outcome = await session.box().runner.run(ToolCall("1", "bash", {"command": "true"}))
        assert not outcome.is_error
        off = outcome.details["sandbox"] == "none: switched off"
        assert off == (mode == "off")


@pytest.mark.process
@pytest.mark.parametrize("way", ["store", "directory", "nothing"])
async def test_finding_sd_result_can_be_grafted_onto_a_deck(way: str, work: Path) -> None:
    file = put(work / "mcp.json", x=row(honest()))
    invocation = Invocation(cwd=str(work), mcp=(file,))
    store = await memory_store()
    if way == "store":
        loaded = await load_mcp_capabilities(invocation, store)
    elif way == "directory":
        loaded = await load_mcp_capabilities(replace(invocation, cwd="/"), str(work))
    else:
        loaded = await load_mcp_capabilities(invocation)
    deck = provision_deck("read-only", DeckContext(str(work))).graft(loaded)
    box = deck.into_tool_box()
    assert {"read", "x__echo"} <= {tool.name for tool in box.descriptors()}
    assert "hello" in str((await box.call("x__echo", text="hello")).output)
    await loaded.aclose()
    await box.context.aclose()
    await store.aclose()
