"""Items of other kinds in the ledger: enrolled, pinned, locked, compared and disabled like tools."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.servers import SERVERS

from indusagi.interop import StdioServerConfig
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from induscode.deck.mcp.boot import BootOptions, boot_bridge
from induscode.deck.mcp.capability import definition_pin
from induscode.deck.mcp.content import CONTENT_KINDS, ContentRefused, ServerContent, UnlistedPrompt, find_text
from induscode.deck.mcp.drift import DriftGrade, compare_definitions, grade_drift
from induscode.deck.mcp.lock import lock_text, read_lock
from induscode.deck.mcp.store import memory_store
from induscode.deck.mcp.store.history import deck_at, read_ledger_log
from induscode.servers.plan import ServerPlan

if TYPE_CHECKING:
    from pathlib import Path

    from induscode.deck.mcp.boot import BootedBridge
    from induscode.deck.mcp.store import LedgerStore

APP = "ui://shelf/app.html"


def library(state: Path) -> StdioServerConfig:
    script = str(SERVERS / "library.py")
    return StdioServerConfig("lib", sys.executable, ["-I", "-S", script, "--state", str(state)])


async def boot(store: LedgerStore, config: StdioServerConfig, locked: Any = None) -> BootedBridge:
    plan = ServerPlan(configs={config.id: config}, locked=locked or {})
    bridge = await boot_bridge(store, plan, BootOptions(kinds=CONTENT_KINDS))
    await bridge.wake(["lib"])
    await bridge.fleet.wait_listed("lib")
    return bridge


@pytest.mark.process
async def test_a_changed_prompt_resource_and_instruction_are_disabled_until_approved(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    store = await memory_store()
    try:
        bridge = await boot(store, library(state))
        kinds = [item.ref.kind for item in bridge.items if item.ref.kind != "tool"]
        assert sorted(kinds) == ["instructions", "prompt", "resource", "resource", "template"]
        assert {tool.ref.kind for tool in bridge.capabilities} == {"tool"}
        assert (await ServerContent(bridge).read_resource("lib", APP))["contents"] != []
        lock = tmp_path / "lock.json"
        lock.write_text(lock_text(bridge.items), "utf-8")
        locked = read_lock(str(lock))
        assert compare_definitions(locked, {item.ref: item.raw for item in bridge.items}) == ()
        entries, notes = await read_ledger_log(store, bridge.journal.run)
        assert ({entry.capability.ref.kind for entry in entries if entry.capability}, notes) == ({"tool", *kinds}, ())
        deck = await deck_at(store, bridge.journal.run)
        assert deck is not None
        assert {card.ref.kind for card in deck.capabilities} == {"tool"}
        await bridge.aclose()

        state.write_text(json.dumps({"prompt": "Other words", "instructions": "Obey.", "app": "<b>", "extra": "x:y"}))
        bridge = await boot(store, library(state))
        content = ServerContent(bridge)
        assert sorted(tool.ref.kind for tool in bridge.disabled) == ["instructions", "prompt", "resource"]
        assert "x:y" not in {item.ref.name for item in content.list_items("resource")}
        with pytest.raises(ContentRefused, match="indus mcp approve lib greet"):
            await content.get_prompt("lib", "greet", {"who": "x"})
        with pytest.raises(ContentRefused, match=r"breaking change of sha256"):
            await content.read_resource("lib", APP)
        with pytest.raises(UnlistedPrompt):
            await content.get_prompt("lib", "other")
        for drifted in bridge.enrolment.quarantined:
            assert bridge.enrolment.approve(drifted.ref, definition_pin(drifted.raw))
        assert bridge.disabled == ()
        assert find_text(await content.get_prompt("lib", "greet", {"who": "Ada"})) == "library greets Ada\n\nnote"
        assert find_text(await content.read_resource("lib", APP)) == "<b>"
        assert [item.description for item in content.list_items("instructions")] == ["Obey."]
        await bridge.aclose()

        # The next run knows all of it without the server.
        bridge = await boot_bridge(
            store, ServerPlan(configs={"lib": library(state)}), BootOptions(kinds=CONTENT_KINDS, lazy=("lib",))
        )
        assert len(bridge.ledger.live_items("resource")) == 3
        assert bridge.disabled == ()
        await bridge.aclose()

        fresh = await memory_store()
        bridge = await boot(fresh, library(state), locked)
        assert {(tool.ref.kind, tool.ref.name) for tool in bridge.disabled} == {
            ("prompt", "greet"),
            ("instructions", "instructions"),
            ("resource", "x:y"),
        }
        await bridge.aclose()
        await fresh.aclose()
    finally:
        await store.aclose()


@pytest.mark.parametrize(
    ("before", "after", "grade"),
    [
        ({"name": "p", "arguments": [{"name": "a"}]}, {"name": "p", "arguments": [{"name": "b"}]}, "breaking"),
        ({"arguments": [{"name": "a"}]}, {"arguments": [{"name": "a", "description": "x"}]}, "routing"),
        ({"uri": "u", "mimeType": "a/b"}, {"uri": "u", "mimeType": "c/d"}, "breaking"),
        ({"uri": "u", "name": "n"}, {"uri": "u", "name": "m"}, "routing"),
        ({"uri": "u", "_meta": {"ui": {"csp": {}}}}, {"uri": "u", "_meta": {"ui": {"csp": {"x": 1}}}}, "breaking"),
        ({"uri": "u", "icons": []}, {"uri": "u", "icons": [{"src": "s"}]}, "routing"),
        ({"instructions": "a"}, {"instructions": "b"}, "routing"),
        ({"uri": "u", "sha256": ["1"]}, {"uri": "u", "sha256": ["2"]}, "breaking"),
    ],
)  # fmt: skip
def test_a_change_is_graded_by_what_clients_rely_on(before: Any, after: Any, grade: str) -> None:
    assert grade_drift(before, after, "resource") == DriftGrade(grade)


def test_the_same_name_of_two_kinds_is_two_items() -> None:
    assert RemoteToolRef("s", "n", "prompt") != RemoteToolRef("s", "n")
