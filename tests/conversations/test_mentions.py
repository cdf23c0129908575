"""Resources that a message mentions, and prompts of servers as slash commands."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.support.servers import SERVERS

from indusagi.interop import StdioServerConfig
from indusagi.interop.protocol_bridge.bridge import make_inert_context
from indusagi.runtime.contract import ToolResult
from induscode.conversations.mentions import attach_mentions, attach_resources
from induscode.deck.mcp.boot import BootOptions, boot_bridge
from induscode.deck.mcp.content import CONTENT_KINDS
from induscode.deck.mcp.store import memory_store
from induscode.frontends.terminal.slash import SlashError
from induscode.frontends.terminal.slash.prompts import list_prompt_commands
from induscode.launch.invocation import Invocation
from induscode.servers.config.rows import Origin, ServerRow
from induscode.servers.plan import ServerPlan

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from induscode.boot.session import Session
    from induscode.deck.contract import Capability

pytestmark = pytest.mark.process


class _Denied:
    """A card behind a check that denies everything, and remembers what it was asked."""

    def __init__(self, card: Capability, asked: list[str]) -> None:
        self._card = card
        self._asked = asked

    async def run(self, arguments: Any, ctx: object) -> ToolResult:
        self._asked.append(f"{self._card.name} {arguments}")
        return ToolResult.error("a rule denies it", code="denied")


@asynccontextmanager
async def session_of(wrap: Callable[[Capability], Capability] | None = None) -> AsyncGenerator[Session]:
    config = StdioServerConfig("lib", sys.executable, ["-I", "-S", str(SERVERS / "library.py")])
    row = ServerRow(config, Origin("mcp.json", "user", "indus"))
    plan = ServerPlan([row], {"lib": config}, {"lib": "trusted"}, configured=("lib",))
    store = await memory_store()
    bridge = await boot_bridge(store, plan, BootOptions(kinds=CONTENT_KINDS))
    try:
        await bridge.list_content()
        native = SimpleNamespace(context=make_inert_context())
        yield cast("Session", SimpleNamespace(mcp=bridge, wrap=wrap, native=native))
    finally:
        await bridge.aclose()
        await store.aclose()


async def test_a_mentioned_resource_is_attached_once_and_others_stay_as_typed() -> None:
    async with session_of() as session:
        typed = "Compare @lib:note:///today, @lib:note:///today and ann@lib:x; see @other:x and @lib:none:x."
        text, notes = await attach_resources(typed, session)
    block = '<resource server="lib" uri="note:///today">\nread by library\n</resource>'
    assert text == f"{typed}\n\n{block}"
    assert len(notes) == 1
    assert notes[0].startswith("@lib:none:x is not attached: ")


async def test_a_mention_in_an_attached_text_attaches_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("see @lib:note:///today and @b.txt", encoding="utf-8")
    (tmp_path / "b.txt").write_text("b", encoding="utf-8")
    async with session_of() as session:
        session.invocation = Invocation(cwd=str(tmp_path))
        text, notes = await attach_mentions("Read @a.txt", session)
    assert text == 'Read @a.txt\n\n<file path="a.txt">\nsee @lib:note:///today and @b.txt\n</file>'
    assert notes == ()


async def test_a_permission_rule_sees_the_read_and_denies_it() -> None:
    asked: list[str] = []
    async with session_of(lambda card: cast("Capability", _Denied(card, asked))) as session:
        text, notes = await attach_resources("@lib:note:///today", session)
    assert (text, notes) == ("@lib:note:///today", ("@lib:note:///today is not attached: a rule denies it",))
    assert asked == ["lib__read_resource {'uri': 'note:///today'}"]


async def test_a_prompt_is_a_command_with_its_arguments() -> None:
    sent: list[str] = []
    async with session_of() as session:
        conversation = cast("Any", SimpleNamespace(session=session))
        commands = list_prompt_commands(conversation)
        host = cast("Any", SimpleNamespace(conversation=conversation, prompt=sent.append))
        command = commands["lib:greet"]
        assert (command.usage, command.describe) == ("who", "Greet a reader (server lib)")
        for words in ("Ada", "who=Ada", '"Ada"'):
            await command.run(host, words)
        assert sent == ["library greets Ada\n\nnote"] * 3
        with pytest.raises(SlashError, match="needs: who"):
            await command.run(host, "")
        with pytest.raises(SlashError, match="takes: who"):
            await command.run(host, "Ada Bob")
