"""One question from the command line: everything from the prompt to the exit code.

A server that was never seen is waited for before the first request, so that a model never has to do
without a tool that was merely late; so is one that is required. The tools of a server that was seen
before are known, and a call of one waits until it is up. Whatever is missing is said, on standard
error and in the first event, or in the last one if it is known only then.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.faults import CoreError
from indusagi.core.ids import new_ulid
from indusagi.core.signals import ending_signals
from indusagi.core.tasks import BackgroundTask
from induscode.boot.runners import ConfigPathError, check_named_configs
from induscode.boot.session import open_session
from induscode.deck.contract import BackendFault, UnknownCapability
from induscode.session.exits import ExitCode, signal_code
from induscode.session.leftovers import leftover_notes
from induscode.session.models import BadAddress, NoModel, choose_model
from induscode.session.output import Page, reporter_for
from induscode.session.permissions.setup import BadRule, guarding_for
from induscode.session.plan_mode import PlanMode
from induscode.session.prompt import BadPrompt, read_prompt
from induscode.session.question import Question
from induscode.session.resources import make_handles
from induscode.session.system_prompt import Briefing, project_words
from induscode.session.transcript import NoConversation, Transcript, open_transcript
from induscode.terminal import print_status, redirect_to_null

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from typing import IO

    from indusagi.core.cancel import CancelToken
    from induscode.launch.invocation import Invocation
    from induscode.session.models import ModelChoice
    from induscode.session.permissions.setup import Guarding

_CLOSING_S = 5.0
"""How long everything may take to close once the program was told to end."""
_STANDARD_OUTPUT = 1
_MISTAKES = (BadAddress, BadPrompt, BadRule, NoConversation, ConfigPathError, UnknownCapability, BackendFault)


def run_headless(invocation: Invocation, guarding: Guarding | None = None) -> int:
    """Answer the prompt of an invocation and give the exit code of the program.

    Without a guarding of the caller's there is the one that the invocation asks for. Call it in the
    main thread, without a running event loop.
    """
    page = Page(_STANDARD_OUTPUT)
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        code = anyio.run(_told_to_end, invocation, guarding, page)
    except KeyboardInterrupt:
        code = int(ExitCode.INTERRUPTED)
    if code == ExitCode.READER_LEFT:
        redirect_to_null(_STANDARD_OUTPUT)
    if page.stuck:
        # A thread hangs in a write that nobody reads, and would keep the interpreter from ending.
        os._exit(code)
    return code


async def _told_to_end(invocation: Invocation, guarding: Guarding | None, page: Page) -> int:
    async with ending_signals() as token:
        forget = token.on_cancel(lambda: _hurry(token))
        try:
            return await headless(invocation, guarding, page=page, cancel=token)
        finally:
            forget()


def _hurry(token: CancelToken) -> None:
    """See to it that the program ends soon, or at once if it is told again."""
    from asyncio import get_running_loop  # noqa: PLC0415 — loaded wherever a loop runs

    code = signal_code(token.reason or "")

    def leave(*_: object) -> None:
        os._exit(code)

    signal.signal(signal.SIGINT, leave)
    get_running_loop().call_later(_CLOSING_S, leave)


async def headless(
    invocation: Invocation, guarding: Guarding | None, *, page: Page, cancel: CancelToken, stdin: IO[str] | None = None
) -> int:
    """Answer the prompt of an invocation in a running loop, until `cancel` says otherwise."""
    try:
        code = await _answered(invocation, guarding, page, cancel, stdin or sys.stdin)
    except BrokenPipeError:
        code = int(ExitCode.READER_LEFT)
    except _MISTAKES as exc:
        print_status(str(exc))
        code = int(ExitCode.USAGE)
    except NoModel as exc:
        print_status(str(exc))
        code = int(ExitCode.MODEL)
    except (CoreError, OSError) as exc:
        print_status(str(exc))
        code = int(ExitCode.FAILED)
    return signal_code(cancel.reason or "") if cancel.cancelled else code


async def _answered(
    invocation: Invocation, guarding: Guarding | None, page: Page, cancel: CancelToken, stdin: IO[str] | None
) -> int:
    async with AsyncExitStack() as stack:
        opened: tuple[str, Question] | None = None
        # What is opened here stays open beyond the scope, and is closed in peace whatever happens.
        with cancel.guard():
            prompt, note = await to_thread.run_sync(read_prompt, invocation.prompt, stdin, lambda: cancel.cancelled)
            odd = [note] if note else []
            opened = prompt, await _opened(invocation, guarding, page, cancel, stack, odd)
        if opened is None:
            return ExitCode.FAILED
        prompt, run = opened
        missing = run.session.mcp.missing()
        return await run.refused(missing) if missing else await run.conversed(prompt)


async def _opened(
    invocation: Invocation,
    guarding: Guarding | None,
    page: Page,
    cancel: CancelToken,
    stack: AsyncExitStack,
    odd: list[str],
) -> Question:
    await to_thread.run_sync(check_named_configs, invocation)
    choice = await choose_model(invocation, os.environ)
    invocation = _fit_tools(invocation, choice, odd)
    mode = PlanMode(approves=invocation.approval != "ask")
    guarding = guarding or await to_thread.run_sync(guarding_for, invocation, mode)
    odd.extend(map(str, guarding.notes))
    odd.extend(await to_thread.run_sync(leftover_notes))
    transcript = await stack.enter_async_context(_transcript(invocation, odd))
    mode.folder = transcript.directory
    handles = make_handles(invocation.cwd, transcript)
    stack.callback(handles.checkpoints.close)
    loading = await stack.enter_async_context(_loading())
    session = await stack.enter_async_context(
        open_session(invocation, framework=handles.framework(), wrap=guarding.wrap, plan_mode=True, wait=False)
    )
    words = await to_thread.run_sync(project_words, invocation.cwd)
    briefing = Briefing(invocation.cwd, guarding.posture, words)
    reporter = reporter_for(invocation.output_format, page, chatty=_watched())
    run = Question(invocation, session, choice, transcript, handles, briefing, reporter, cancel, odd)
    await loading.wait()
    await session.mcp.wait_for_required()
    await reporter.opened(run.opening())
    if not gc.isenabled():  # everything is imported: from here on there is garbage
        gc.freeze()
        gc.enable()
    return run


SMALL_WINDOW = 16_384
"""Up to so many tokens a model is shown the native tools below, and no others."""
SMALL_WINDOW_TOOLS = ("read", "ls", "grep", "find", "write", "edit", "bash")


def _fit_tools(invocation: Invocation, choice: ModelChoice, odd: list[str]) -> Invocation:
    """Show a model that reads little fewer tools, unless it was said which; and tell so."""
    window = choice.context_window
    if window is None or window > SMALL_WINDOW or invocation.tools or invocation.no_tools:
        return invocation
    names = ", ".join(SMALL_WINDOW_TOOLS)
    odd.append(
        f"{choice.label} reads {window:,} tokens, so of the native tools only {names} are shown; --tools names others"
    )
    return replace(invocation, tools=SMALL_WINDOW_TOOLS)


def _watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


@asynccontextmanager
async def _transcript(invocation: Invocation, odd: list[str]) -> AsyncGenerator[Transcript]:
    """Open the conversation; a new one that cannot be kept is held without being kept."""
    wanted = invocation.resume is not None or invocation.continue_last

    def opened() -> Transcript:
        return open_transcript(invocation.cwd, resume=invocation.resume, last=invocation.continue_last)

    async with AsyncExitStack() as stack:
        try:
            transcript = await to_thread.run_sync(opened)
        except OSError as exc:
            if wanted:
                raise
            odd.append(f"this conversation cannot be kept: {exc}")
            folder = await to_thread.run_sync(partial(mkdtemp, prefix="indus-"))
            stack.push_async_callback(to_thread.run_sync, partial(rmtree, folder))
            path = os.path.join(folder, new_ulid())
            transcript = await to_thread.run_sync(Transcript, path, invocation.cwd)
        stack.callback(transcript.close)
        yield transcript


@asynccontextmanager
async def _loading() -> AsyncGenerator[BackgroundTask]:
    """Load the loop in a thread while servers start: it takes longer than they do."""
    loading = BackgroundTask("loading of the model loop")
    loading.start(to_thread.run_sync(_load, abandon_on_cancel=True))
    try:
        yield loading
    finally:
        loading.cancel()
        await loading.join()


def _load() -> None:
    from importlib import import_module  # noqa: PLC0415 — for this one

    import_module("induscode.session.model_loop")
