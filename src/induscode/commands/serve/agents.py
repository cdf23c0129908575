"""Sub-agents of a gateway: the `task` card of `indus serve --profile all` where a model is named.

A client's user has agreed to one call of `task`, and not to each call of the agent: every call is checked as that of a
run without a person, also a call of a server's tool. Logs of tasks last as long as the gateway.
"""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from anyio import to_thread

from induscode.session.agents.delegate import SubSessions
from induscode.session.agents.files import load_agents
from induscode.session.agents.sub_session import ParentSession
from induscode.session.contract import RequestBudget
from induscode.session.models import choose_model
from induscode.session.prompt import SystemPrompt, read_project_instructions
from induscode.terminal import print_status

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AsyncExitStack

    from indusagi.runtime.contract import ToolDescriptor
    from induscode.commands.serve.gateway import Gateway
    from induscode.launch.invocation import Invocation
    from induscode.session.contract import RunPlan, RunResult
    from induscode.session.models import ModelChoice


async def open_tasks(stack: AsyncExitStack, invocation: Invocation) -> SubSessions:
    """Make the sub-sessions of a gateway; `stack` removes their logs."""
    directory = await to_thread.run_sync(partial(mkdtemp, prefix="indus-tasks-"))
    stack.push_async_callback(to_thread.run_sync, partial(rmtree, directory, ignore_errors=True))
    files = await to_thread.run_sync(load_agents, invocation.cwd)
    for note in files.notes:
        print_status(note)
    return SubSessions(directory, invocation.cwd, files, has_background=False)


def attach_gateway(tasks: SubSessions, gateway: Gateway, posture: str) -> None:
    """Have tasks use the deck, the servers and the flags of a gateway; each has a budget of its own."""
    session = gateway.session
    invocation, mcp = session.invocation, session.mcp

    async def record_turn(descriptors: Sequence[ToolDescriptor]) -> None:
        mcp.journal.record_turn(descriptors)

    async def make_parent() -> ParentSession:
        choice = await choose_model(invocation, os.environ)
        instructions = await to_thread.run_sync(read_project_instructions, invocation.cwd)
        return ParentSession(
            runner=_GatewayModel(choice),
            deck=gateway.build_agent_deck,
            servers=lambda: {card.name: card.ref.server for card in mcp.capabilities},
            system_prompt=SystemPrompt(invocation.cwd, posture, instructions),
            budget=RequestBudget(invocation.max_requests),
            sink=_ignore,
            on_turn=record_turn,
            leases=mcp.fleet.leases,
        )

    tasks.attach_factory(make_parent)


async def _ignore(_: object) -> None:
    pass


class _GatewayModel:
    """A model that is opened for each task."""

    def __init__(self, choice: ModelChoice) -> None:
        self._choice = choice

    async def run(self, prompt: str, plan: RunPlan) -> RunResult:
        """Run a prompt to its result."""
        # In a thread: the first task pays a second of imports.
        await to_thread.run_sync(import_module, "induscode.session.model_loop")
        from induscode.session.model_loop import open_loop  # noqa: PLC0415 — imported above

        async with open_loop(self._choice) as loop:
            return await loop.run(prompt, plan)
