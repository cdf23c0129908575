"""Opens a conversation: everything it needs, in order, and everything closed in reverse.

A thread imports the model loop while the servers start.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from shutil import rmtree

import anyio
from anyio import to_thread

from indusagi.capabilities.leftovers import Receipt, find_leftover_jobs, make_owned_dir
from indusagi.core.ids import new_ulid
from indusagi.core.tasks import BackgroundTask
from indusagi.core.text import clean_text, cut_text, format_count
from indusagi.interop.protocol_bridge.fleet import FleetEvent
from induscode.addons.hooks import CommandHooks
from induscode.addons.skills import SkillSet
from induscode.boot.plans import ConfigFiles, check_named_configs, list_config_files
from induscode.boot.session import open_session
from induscode.calls.record import CallOrigin
from induscode.cli.dialog import Dialog
from induscode.conversations.agents.files import load_agents
from induscode.conversations.compaction import measure_context
from induscode.conversations.contract import SpendLimit
from induscode.conversations.conversation import Conversation, ConversationNotes, build_resources
from induscode.conversations.deck_limit import DeckLimit, DeckSearch
from induscode.conversations.kept_state import KeptState
from induscode.conversations.mentions import open_server_content
from induscode.conversations.models import choose_model
from induscode.conversations.prompt import InstructionFiles, SystemPrompt
from induscode.conversations.server_requests import build_server_handlers
from induscode.conversations.servers import DirectoryServers, LateServers
from induscode.conversations.transcript import Transcript, open_transcript
from induscode.deck.contract import DeckFramework
from induscode.deck.mcp.boot import BootOptions
from induscode.deck.mcp.content import CONTENT_KINDS
from induscode.launch.invocation import Invocation
from induscode.permissions import PermissionSetup, load_permissions
from induscode.permissions.plan_mode import PlanMode
from induscode.search.options import read_search_options

_SAVE_TIMEOUT_S = 2.0
_MAX_COMMAND_CHARS = 60


@asynccontextmanager
async def open_conversation(
    invocation: Invocation,
    permissions: PermissionSetup | None = None,
    *,
    notes: Sequence[str] = (),
    follow_config: bool = False,
    dialog: Dialog | None = None,
    on_event: Callable[[FleetEvent], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    spend: SpendLimit | None = None,
    kept: DirectoryServers | None = None,
) -> AsyncGenerator[Conversation]:
    """Open an invocation's conversation for the duration of the block. Servers start in the background.

    `permissions` overrides the invocation's. With `follow_config`, opening waits for no server, and `reload_config`
    applies configuration changes. With a `dialog`, the user decides on calls, plans and server requests; without one,
    anything that needs the user's consent fails. `on_event` receives server events from the first start on, `on_note`
    the notes of turns; without it they go to the conversation's `notes`. `spend` holds the use of a session's other
    conversations, and `kept` servers that outlive this one.

    Raises:
        NoModelError: No model is available.
        InvalidAddressError: The model server's address is invalid.
        InvalidRuleError: A rule on the command line is invalid.
        ConversationError: The conversation doesn't exist, or another process has it open.
        ConfigPathError: An `--mcp` path doesn't exist or has no usable server.
        UnknownCapability: A tool in `--tools` is unknown.
        BackendFault: A tool in `--tools` lacks its backend.
        OSError: A stored conversation can't be opened.
    """
    warnings = ConversationNotes(notes, on_note)
    async with AsyncExitStack() as stack:
        await to_thread.run_sync(check_named_configs, invocation)
        choice = await choose_model(invocation, os.environ)
        search_options = read_search_options(invocation.settings)
        limit = DeckLimit(choice.label, choice.context_window, invocation.tools or (), search_options)
        kept = kept or DirectoryServers(stack, on_event)
        approver, handlers, sampling = None, None, kept.sampling
        stack.callback(sampling.attach, None)
        if dialog is not None:
            from induscode.permissions.confirm import PersonApprover  # noqa: PLC0415 — loads the table of programs

            approver = PersonApprover(dialog)
            handlers = build_server_handlers(dialog, sampling.complete, (invocation.cwd,))
        mode = PlanMode(approves=invocation.approval != "ask", approver=approver)
        permissions = permissions or await to_thread.run_sync(load_permissions, invocation, mode, approver)
        warnings.extend(map(str, permissions.notes))
        warnings.extend(await to_thread.run_sync(list_leftover_jobs))
        transcript = await stack.enter_async_context(_open_stored(invocation, warnings))
        mode.folder = transcript.directory
        agents = await to_thread.run_sync(load_agents, invocation.cwd)
        warnings.extend(agents.notes)
        resources = build_resources(invocation.cwd, transcript, agents, warnings.report)
        stack.callback(resources.checkpoints.close)
        framework = DeckFramework(
            read_state=resources.read_state,
            checkpoint=resources.checkpoints,
            delegate=resources.delegate,
            memory=resources.memory,
        )
        loading = await stack.enter_async_context(_preload())
        options = BootOptions(
            reloadable=follow_config,
            handlers=handlers,
            on_event=kept.phases if follow_config or on_event else None,
            # Only an interactive user mentions resources and enters prompts.
            kinds=CONTENT_KINDS if follow_config else (),
        )
        skills = await to_thread.run_sync(partial(SkillSet, invocation.cwd, enabled=not invocation.no_addons))
        hooks = await to_thread.run_sync(partial(CommandHooks, invocation, enabled=not invocation.no_addons))
        stack.push_async_callback(hooks.aclose)
        hooks.report, hooks.session, hooks.log = warnings.report, transcript.id, transcript.path
        checks = permissions.permissions
        if checks is not None:
            hooks.find_mode = lambda: "plan" if mode.active else checks.approval.value
        hooks.source = "resume" if transcript.messages() else "startup"
        warnings.extend(map(str, (*skills.notes, *hooks.notes)))
        # Take the snapshot before reading the files, so that edits during the read count as changes.
        config_files = await to_thread.run_sync(lambda: ConfigFiles(list_config_files(invocation)))
        session = await stack.enter_async_context(
            open_session(
                invocation,
                framework=framework,
                limit=limit,
                wrap=permissions.wrap,
                plan_mode=True,
                wait=False,
                options=options,
                origin=CallOrigin(via="session", conversation=transcript.id),
                on_note=warnings.report,
                kept=kept,
                also=[addon for addon in (skills.build_addon(), hooks.build_addon()) if addon is not None],
            )
        )
        permissions.follow(session.mcp)
        skills.content = None if invocation.no_addons else open_server_content(session)
        search = DeckSearch(session.mcp)
        stack.push_async_callback(search.aclose)
        instructions = await to_thread.run_sync(InstructionFiles, invocation.cwd)
        warnings.extend(instructions.notes)
        system_prompt = SystemPrompt(invocation.cwd, permissions.posture, instructions.text)
        state = KeptState(transcript, session.native.context, mode, permissions.permissions)
        facts = await to_thread.run_sync(_restore_state, state)
        warnings.extend(facts)
        if state.last_model not in {"", choice.label}:
            warnings.append(f"this conversation started with {state.last_model}")
        servers = await kept.follow(invocation, config_files) if follow_config else None
        conversation = Conversation(
            invocation=invocation,
            session=session,
            choice=choice,
            transcript=transcript,
            resources=resources,
            permissions=permissions,
            plan_mode=mode,
            system_prompt=system_prompt,
            limit=limit,
            search=search,
            notes=warnings,
            stack=stack,
            loading=loading,
            sampling=sampling,
            skills=skills,
            hooks=hooks,
            spend=spend or SpendLimit(invocation.max_tokens, invocation.max_cost),
            state=state,
            facts=facts,
            servers=servers,
            late_servers=LateServers(session.mcp),
            plan_told=mode.active,
            context_tokens=await to_thread.run_sync(measure_context, transcript),
        )
        try:
            yield conversation
        finally:
            warnings.close()
            await resources.delegate.aclose()
            with anyio.move_on_after(_SAVE_TIMEOUT_S, shield=True):
                await state.save()


def _find_leftovers() -> Sequence[Receipt]:
    """Find jobs that still run without a session. An unusable state directory yields none. Blocks."""
    try:
        return find_leftover_jobs()
    except OSError:  # the ledger store reports an unusable state directory
        return []


def list_leftover_jobs() -> list[str]:
    """Describe jobs that still run after a crash, and how to end them. Blocks."""
    jobs = _find_leftovers()
    if not jobs:
        return []
    command = cut_text(" ".join(clean_text(jobs[0].command)[0].split()), _MAX_COMMAND_CHARS)
    count = format_count(len(jobs), "job of a run that crashed runs", "jobs of runs that crashed run")
    return [f"{count} on, such as {command!r}: `indus mcp doctor --end-leftovers` ends it"]


def _restore_state(state: KeptState) -> list[str]:
    """Restore stored state, and describe jobs that ended or lost their session. Blocks."""
    lost = state.restore()
    marks = {job.mark for job in _find_leftovers()} if lost else set[str]()
    return [f"background job {replace(job, runs=job.mark in marks)}" for job in lost]


@asynccontextmanager
async def _open_stored(invocation: Invocation, notes: list[str]) -> AsyncGenerator[Transcript]:
    """Open the transcript. A new one that can't be stored goes to a temporary directory."""
    async with AsyncExitStack() as stack:
        given = {"resume": invocation.resume, "last": invocation.continue_last, "fork": invocation.fork}
        open_stored = partial(open_transcript, invocation.cwd, **given, scripted=invocation.prompt is not None)
        try:
            transcript = await to_thread.run_sync(open_stored)
        except OSError as exc:
            if invocation.resume is not None or invocation.continue_last:
                raise
            notes.append(f"this conversation cannot be kept: {exc}")
            folder = await to_thread.run_sync(make_owned_dir)
            stack.push_async_callback(to_thread.run_sync, partial(rmtree, folder))
            path = os.path.join(folder, new_ulid())
            transcript = await to_thread.run_sync(Transcript, path, invocation.cwd)
        stack.callback(transcript.close)
        yield transcript


@asynccontextmanager
async def _preload() -> AsyncGenerator[BackgroundTask]:
    """Import the model loop in a thread while servers start, because it takes longer than they do."""
    loading = BackgroundTask("loading of the model loop")

    def load() -> None:
        import_module("induscode.conversations.model_loop")
        if not gc.isenabled():  # collect garbage once the large imports are done
            gc.freeze()
            gc.enable()

    loading.start(to_thread.run_sync(load, abandon_on_cancel=True))
    try:
        yield loading
    finally:
        loading.cancel()
        await loading.join()
