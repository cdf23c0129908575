"""Sub-agents of a gateway: the `task` card of `indus serve --profile all` with a model.

The client's user agreed to one call of `task`, not to each call of the agent. So every call, including calls to server
tools, is checked like one of an unattended run and passes the addon interceptors. If the client has a view, the agent
has the view's tools. Task logs last as long as the gateway.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from shutil import rmtree
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.leftovers import make_owned_dir
from indusagi.runtime.calls import current_entry
from induscode.cli.terminal import print_status
from induscode.conversations.agents.delegate import MOST_KEPT, SubSessions
from induscode.conversations.agents.files import AgentDefinition, load_agents
from induscode.conversations.agents.sub_session import ParentSession
from induscode.conversations.contract import RequestBudget, RunPlan, RunResult
from induscode.conversations.models import ModelChoice, choose_agent_model, choose_model
from induscode.conversations.prompt import InstructionFiles, SystemPrompt
from induscode.gateway.view_box import ViewBox

if TYPE_CHECKING:
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.provision import ToolDeck
    from induscode.gateway.gateway import Gateway
    from induscode.launch.invocation import Invocation


async def open_tasks(stack: AsyncExitStack, invocation: Invocation) -> SubSessions:
    """Create a gateway's sub-sessions; `stack` removes their logs."""
    directory = await to_thread.run_sync(make_owned_dir)
    stack.push_async_callback(to_thread.run_sync, partial(rmtree, directory, ignore_errors=True))
    files = await to_thread.run_sync(load_agents, invocation.cwd)
    for note in files.notes:
        print_status(note)
    return SubSessions(directory, invocation.cwd, files, has_background=False, most_kept=MOST_KEPT)


def attach_gateway(tasks: SubSessions, gateway: Gateway, posture: str) -> None:
    """Make tasks use a gateway's deck, servers and flags, each with a separate budget."""
    session = gateway.session
    invocation, mcp = session.invocation, session.mcp

    async def record_turn(descriptors: Sequence[ToolDescriptor]) -> None:
        mcp.journal.record_turn(descriptors)

    async def make_parent() -> ParentSession:
        choice = await choose_model(invocation, os.environ)
        entry = current_entry.get()
        shown = entry.box.list_originals() if entry is not None and isinstance(entry.box, ViewBox) else None

        @asynccontextmanager
        async def open_runner(agent: AgentDefinition) -> AsyncGenerator[_GatewayModel]:
            from_project = agent.origin == "project"
            yield _GatewayModel(await choose_agent_model(agent.model, invocation, choice, from_project=from_project))

        instructions = await to_thread.run_sync(InstructionFiles, invocation.cwd)
        return ParentSession(
            runner=_GatewayModel(choice),
            deck=partial(_build_deck, gateway, shown),
            servers=lambda: {card.name: card.ref.server for card in mcp.capabilities},
            system_prompt=SystemPrompt(invocation.cwd, posture, instructions.text),
            budget=RequestBudget(invocation.max_requests),
            sink=_ignore,
            on_turn=record_turn,
            leases=mcp.fleet.leases,
            open_runner=open_runner,
        )

    tasks.attach_factory(make_parent)


def _build_deck(gateway: Gateway, shown: Collection[str] | None) -> ToolDeck:
    """Build an agent's deck, checking server calls as strictly as native cards.

    `shown` lists the tools in the client's view by their names in the gateway's box; `None` without a view.
    """
    deck, addons = gateway.build_unchecked_deck(), gateway.session.addons
    if shown is not None:
        qualified = gateway.box().qualified
        names = {qualified.get(name, name) for name in shown}
        deck = deck.retain(lambda card: card.name in names)
    deck = deck.map_capabilities(gateway.checks.native)
    return deck.map_capabilities(addons.wrap) if addons.intercepts else deck


async def _ignore(_: object) -> None:
    pass


class _GatewayModel:
    """A model opened separately for each task."""

    def __init__(self, choice: ModelChoice) -> None:
        self._choice = choice

    async def run(self, prompt: str, plan: RunPlan) -> RunResult:
        """Run a prompt to its result."""
        # In a thread, as the first task spends a second on imports.
        await to_thread.run_sync(import_module, "induscode.conversations.model_loop")
        from induscode.conversations.model_loop import open_loop  # noqa: PLC0415 — imported above

        async with open_loop(self._choice) as loop:
            return await loop.run(prompt, plan)
