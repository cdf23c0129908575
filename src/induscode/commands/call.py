"""`indus call`: calls a tool, reads a resource (`@server:uri`) or gets a prompt (`/server:name`).

Exit codes: 0 the tool answered, 1 it answered with an error, 2 usage error, 3 the server failed or the tool is
disabled, 128 + n for signal n.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from indusagi.capabilities.budget import UNLIMITED
from indusagi.capabilities.context import Framework
from indusagi.core.ids import new_ulid
from indusagi.runtime.calls import CallEntry, current_entry
from indusagi.runtime.contract import ToolCall, ToolOutcome, ToolProgress
from induscode.boot.catalog import find_possible_owners, find_server_of_tool
from induscode.boot.plans import FIRST_PROMPT_LIMIT_S, load_plan, opened_store, usage_errors
from induscode.calls.record import FAULT_CODES, CallOrigin, find_tool_ref
from induscode.calls.recorder import open_observers
from induscode.cli.output import build_unknown_name, print_notes, write_json
from induscode.cli.signals import run_with_signals
from induscode.cli.terminal import print_status, show_live_line
from induscode.code_mode.contract import RUN_CODE
from induscode.commands.call_data import (
    ArgumentError,
    check_arguments,
    describe_parameters,
    format_block,
    print_blocks,
    print_call_notes,
    read_arguments,
    read_object,
    save_blocks,
    to_json,
)
from induscode.commands.groups import complete_tool, output_option
from induscode.deck.catalog import capability_cards, has_capability
from induscode.deck.contract import Capability, Profile
from induscode.deck.mcp.boot import BootOptions
from induscode.deck.mcp.enrolment import refuse_disabled
from induscode.deck.provision import ToolDeck
from induscode.launch.options import define_command, read_invocation
from induscode.launch.settings import CODE_ENABLED
from induscode.permissions import build_call_checks
from induscode.servers.plan import ServerPlan, hide_ad_hoc_id, plan_ad_hoc_server

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from indusagi.core.faults import Note
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.boot.session import Session
    from induscode.conversations.line_dialog import LineDialog
    from induscode.launch.invocation import Invocation
    from induscode.servers.config.rows import ServerRow

ANSWERED_WITH_ERROR = 1
MISUSED = 2
FAULT = 3
_MISUSES = frozenset({"invalid_arguments", "unknown_tool"})
_BAR_CELLS = 20
_PROGRESS_INTERVAL_S = 0.2


@define_command("call", "--tools", "--mcp", "--no-mcp", "--no-addons", "--web-allow", "--cwd")
@click.argument("tool", shell_complete=complete_tool)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]…")
@click.option(
    "--json",
    "document",
    metavar="OBJECT|@FILE|-",
    help="All arguments as one JSON object: here, in a file, or on standard input.",
)
@output_option
@click.option("--save", metavar="DIR", help="Write images, audio and other data of the result to new files in DIR.")
@click.option("--stdio", "line", metavar="COMMAND", help="Call a tool of the server that COMMAND starts.")
@click.option("--url", metavar="URL", help="Call a tool of the server at URL.")
@click.option("-H", "--header", multiple=True, metavar="'NAME: VALUE'", help="With --url.")
def command(
    context: click.Context,
    tool: str,
    arguments: tuple[str, ...],
    *,
    document: str | None,
    output: str,
    save: str | None,
    **ad_hoc: Any,
) -> int:
    """Call TOOL with arguments: KEY=VALUE by its schema, KEY:=JSON as it stands.

    Write a list as JSON, or repeat its key. Progress goes to standard error. `@SERVER:URI` reads a resource instead,
    and `/SERVER:PROMPT` gets a prompt.

    Exit codes: 0 answered, 1 the tool answered with an error, 2 invalid usage, 3 its server failed or is missing, or
    the tool is disabled: see indus mcp diff.
    """
    invocation = read_invocation(context)
    if tool == RUN_CODE:  # calling it by name enables it
        invocation = replace(invocation, settings=invocation.settings.with_flag(CODE_ENABLED, True))  # noqa: FBT003 — the value of a setting
        arguments = tuple(map(read_script, arguments))
    call = CallRun(context, invocation, tool, arguments, output, save)
    try:
        # Reads stdin, so do it before the event loop starts: Ctrl-C must interrupt it.
        call.object = {} if document is None else read_object(document)
    except ArgumentError as exc:
        raise click.UsageError(str(exc)) from exc
    line, url, headers = ad_hoc["line"], ad_hoc["url"], ad_hoc["header"]
    if tool.startswith(("@", "/")):
        for flag, value in {"--stdio": line, "--url": url, "--header": headers}.items():
            if value:
                message = f"{flag} can't be used with {tool!r}, which names a configured server: indus mcp add adds one"
                raise click.UsageError(message)
        return call_content(context, tool, arguments, call.object, output, save)
    if line is not None or url is not None or headers:
        sandbox = "standard" if invocation.sandbox == "required" else None
        call.plan = plan_ad_hoc_server(context, line, url, headers, sandbox)
        call.ad_hoc = call.plan.rows[0]
        call.tool = f"{call.ad_hoc.id}__{tool}"
    else:
        # Native tools need no servers (run_code may need any of them), but we still check a file given with --mcp.
        is_native = has_capability(tool)
        plan = load_plan(invocation) if invocation.mcp or not is_native else None
        call.plan = None if is_native else plan
    if output != "json":
        from induscode.conversations.line_dialog import find_line_dialog  # noqa: PLC0415 — for a call that may ask

        call.dialog = find_line_dialog()
    checks = build_call_checks(invocation.cwd, call.dialog)
    print_notes(checks.notes)
    call.wrap = checks.native

    async def execute(token: CancelToken) -> int:
        with usage_errors():
            return await call.execute(token)

    return run_with_signals(execute)


def call_content(
    context: click.Context, text: str, words: Sequence[str], given: JsonObject, output: str, save: str | None
) -> int:
    """Print the resource `@server:uri` or the prompt `/server:name`, and return the exit code."""
    from indusagi.interop.protocol_bridge.bridge import make_inert_context  # noqa: PLC0415 — imports the bridge
    from induscode.boot.runners import MARKS, fetch_content, open_content, parse_reference  # noqa: PLC0415 — as above
    from induscode.conversations.line_dialog import find_line_dialog  # noqa: PLC0415 — for a call that may ask
    from induscode.conversations.server_requests import build_server_handlers  # noqa: PLC0415 — for a terminal

    if text.startswith("@") and (words or given):
        raise click.UsageError(f"{text}: a resource takes no arguments: write them into its URI")
    invocation = read_invocation(context)
    plan = load_plan(invocation)
    server, name = parse_reference(text, plan)
    dialog = find_line_dialog() if output != "json" else None
    checks = build_call_checks(invocation.cwd, dialog)
    print_notes(checks.notes)
    call = CallRun(context, invocation, text, words, output, save)
    try:
        # Prompt arguments are strings.
        arguments = read_arguments(words, given, {"type": "object", "additionalProperties": {"type": "string"}})
    except ArgumentError as exc:
        raise click.UsageError(f"{text}: {exc}") from exc

    async def execute(token: CancelToken) -> int:
        outcomes: list[ToolOutcome] = []
        handlers = None if dialog is None else build_server_handlers(dialog, roots=(invocation.cwd,))
        with token.guard():
            async with AsyncExitStack() as stack:
                origin = CallOrigin(via="call", client="indus")
                calls = await open_observers(stack, invocation.settings, origin, lambda note: print_notes([note]))
                print_notes(calls.unopened)
                observed = replace(make_inert_context(), framework=Framework(observer=calls.combine()))
                bridge, content = await stack.enter_async_context(
                    open_content(plan.narrow([server]), checks.remote, observed, handlers)
                )
                calls.attach_servers(bridge)
                outcomes.append(await fetch_content(content, server, MARKS[text[0]], name, arguments))
        return call.print_outcome(outcomes[0]) if outcomes else 0

    return run_with_signals(execute)


def read_script(word: str) -> str:
    """Turn `code=@FILE` into `code=CONTENT`; return any other word unchanged."""
    key, _, path = word.partition("=@")
    if key != "code" or not path:
        return word
    try:
        with open(path, encoding="utf-8") as file:
            return f"code={file.read()}"
    except (OSError, UnicodeDecodeError) as exc:
        raise click.UsageError(f"code=@{path}: {getattr(exc, 'strerror', None) or exc}") from exc


@dataclass(slots=True)
class CallRun:
    """One call, from the command line to the exit code."""

    context: click.Context
    invocation: Invocation
    tool: str
    words: Sequence[str]
    output: str
    save: str | None
    printed: Sequence[Note] = ()
    """Ledger notes that we've already printed."""
    owners: Sequence[str] = ()
    """Servers that may have the tool."""
    ad_hoc: ServerRow | None = None
    """The server from `--stdio` or `--url`."""
    object: JsonObject = field(default_factory=dict[str, "JsonValue"])
    """The arguments from `--json`."""
    plan: ServerPlan | None = None
    """`None` for a native tool."""
    wrap: Callable[[Capability], Capability] | None = None
    dialog: LineDialog | None = None
    """Asks the user, if there's a terminal."""

    def _show(self, text: str) -> str:
        """Strip the generated id of an ad-hoc server from a message."""
        if self.ad_hoc is None:
            return text
        return hide_ad_hoc_id(text, self.ad_hoc)

    async def execute(self, token: CancelToken) -> int:
        """Open the session, call the tool and print its result."""
        from induscode.boot.session import open_session  # noqa: PLC0415 — imports the deck

        # A script waits for the servers it calls. The others' functions appear once those servers are up.
        options = BootOptions(wait_s=FIRST_PROMPT_LIMIT_S if self.tool == RUN_CODE else None)
        if self.dialog is not None:
            from induscode.conversations.server_requests import build_server_handlers  # noqa: PLC0415 — for a terminal

            self.dialog.cancel = token
            handlers = build_server_handlers(self.dialog, roots=(self.invocation.cwd,))
            options = replace(options, handlers=handlers)
        plan = ServerPlan() if self.plan is None else await self._narrow_plan(self.plan)
        if self.plan is not None and self.tool != RUN_CODE:
            options = replace(options, only=self.owners)
        async with AsyncExitStack() as stack:
            opened: tuple[Session, Capability | None] | None = None
            # On a signal, this scope cancels the opening. A running call and its server only see the token.
            with token.guard():
                # Skip the native cards for a server's tool: they take time to load.
                profile = Profile.ALL if self.plan is None or self.tool == RUN_CODE else None
                session = await stack.enter_async_context(
                    open_session(
                        self.invocation,
                        plan=plan,
                        wrap=self.wrap,
                        profile=profile,
                        options=options,
                        origin=CallOrigin(via="call", client="indus"),
                        on_note=lambda note: print_notes([note]),
                    )
                )
                print_notes(note for note in session.store.notes if note not in self.printed)
                print_notes(session.addons.notes)
                print_notes(session.calls.unopened)
                opened = session, await self._find_card(session)
            if opened is None:
                return 0
            session, card = opened
            if card is None:
                return self._report_missing(session)
            outcome = await self.run(session, card, token)
        return 0 if token.cancelled else self.print_outcome(outcome, card)

    async def _narrow_plan(self, plan: ServerPlan) -> ServerPlan:
        """Keep the servers that may have the tool, or all of them (to suggest similar names) if none does."""
        if self.tool == RUN_CODE or not plan.rows:
            return plan
        known = None
        if plan.configs:
            async with opened_store() as store:
                known = await find_server_of_tool(plan, self.tool, store)
            self.printed = store.notes
        servers = [row.id for row in plan.rows]
        self.owners = find_possible_owners(self.tool, servers) if known is None else [known]
        return plan.narrow(self.owners) if self.owners else plan

    async def _find_card(self, session: Session) -> Capability | None:
        for is_awake in (False, True):
            if is_awake:  # a known server may have added tools since the ledger saw it
                await session.mcp.wake(server for server in self.owners if session.mcp.status_of(server) is not None)
            for card in session.deck().tools():
                if card.name == self.tool:
                    return card
        return None

    def _report_missing(self, session: Session) -> int:
        """Report why we can't find the tool: disabled, server failure, or unknown name."""
        disabled = next((tool for tool in session.mcp.disabled if tool.name == self.tool), None)
        if disabled is not None:
            return self.print_outcome(ToolOutcome("", refuse_disabled(disabled)))
        if self.tool in session.left_out:
            lacking = session.left_out[self.tool]
            raise click.UsageError(f"{self.tool} can do nothing here: {lacking}", self.context)
        plan = session.mcp.plan
        owners = tuple(f"server {row.id!r}" for row in plan.rows)
        reasons = [str(status.fault) for status in session.mcp.status().values() if status.fault is not None]
        reasons += [str(note) for note in plan.notes if note.owner.startswith(owners)]
        tools = [card.name for card in session.deck().tools()]
        if self.ad_hoc is not None:
            if reasons:
                print_status(self._show("; ".join(reasons)))
                return FAULT
            name, *names = map(self._show, (self.tool, *tools))
            raise build_unknown_name(f"the server has no tool {name!r}", name, names, self.context)
        message = f"there is no tool {self.tool!r}"
        server, colon, rest = self.tool.partition(":")
        if colon and any(server == row.id for row in plan.rows):
            kind, mark = ("resource", "@") if "://" in rest else ("prompt", "/")
            refs = {card.name: find_tool_ref(card) for card in session.deck().tools()}
            named = [name for name, ref in refs.items() if ref is not None and (ref.server, ref.name) == (server, rest)]
            meant = (
                f"the tool of that server is {named[0]}"
                if named
                else f"a {kind} is called by: indus call {mark}{self.tool}"
            )
            raise click.UsageError(f"{message}; {meant}", self.context)
        if reasons and self.owners:
            print_status(f"{message}: {'; '.join(reasons)}")
            return FAULT
        for reason in reasons:
            print_status(reason)
        if has_capability(self.tool):
            raise click.UsageError(
                f"--tools leaves out {self.tool!r}: name it there too, or drop --tools", self.context
            )
        names = [*(str(card.id) for card in capability_cards()), *tools]
        raise build_unknown_name(message, self.tool, names, self.context)

    async def read_arguments(self, card: Capability) -> JsonObject:
        """Read the arguments by the card's schema, and check those of a server's tool."""
        schema = card.parameters
        if self.plan is None:
            # Native tools accept no extra arguments; their schemas leave this out for brevity.
            schema = {**schema, "additionalProperties": False}
        try:
            arguments = read_arguments(self.words, self.object, schema)
            if self.plan is not None:  # native tools check their arguments themselves
                await check_arguments(arguments, card.parameters)
        except ArgumentError as exc:
            message = f"{self._show(card.name)}: {exc}. It takes: {describe_parameters(card.parameters)}"
            raise click.UsageError(message, self.context) from exc
        return arguments

    async def run(self, session: Session, card: Capability, token: CancelToken) -> ToolOutcome:
        """Run the tool."""
        arguments = await self.read_arguments(card)
        deck = session.deck()
        # The result is for the user, not a model: don't truncate it, and let `edit` change files it hasn't read.
        framework = replace(deck.context.framework, read_state=None)
        typed = replace(deck.context, budget=UNLIMITED, framework=framework, keeps_jobs=False)
        box = ToolDeck(deck.tools(), typed).into_tool_box()
        call = ToolCall(f"call_{new_ulid()}", card.name, arguments)

        def find_denied(names: Collection[str]) -> Collection[str]:
            from induscode.conversations.deck_limit import find_denied_tools  # noqa: PLC0415 — for a script that searches

            return find_denied_tools(box.runner.cards, box.context, names)

        current_entry.set(CallEntry(box, call.id, find_denied=find_denied))
        name = self._show(card.name)
        try:
            return await box.runner.run(call, token, on_progress=_build_progress_printer(name))
        finally:
            show_live_line(name, "")

    def print_outcome(self, outcome: ToolOutcome, card: Capability | None = None) -> int:
        """Print the result and return the exit code."""
        code, reason = 0, outcome.details.get("code")
        if outcome.is_error:
            is_fault = reason in FAULT_CODES and "server" in outcome.details
            code = MISUSED if reason in _MISUSES else FAULT if is_fault else ANSWERED_WITH_ERROR
        if code not in {MISUSED, FAULT} and self.save is not None:
            try:
                for path in save_blocks(outcome.content, self.save, self._show(self.tool)):
                    print_status(f"saved {path}")
            except OSError as exc:
                print_status(f"--save {self.save}: {exc.strerror or exc}")
                code = code or ANSWERED_WITH_ERROR
        if self.output == "json":
            write_json(to_json(outcome))
            return code
        if code in {MISUSED, FAULT}:
            message = self._show(" ".join(map(format_block, outcome.content)))
            if code == MISUSED and card is not None:
                message += f". It takes: {describe_parameters(card.parameters)}"
            print_status(message)
            return code
        print_blocks(outcome.content, raw=self.output == "raw")
        if outcome.is_error:
            print_status(f"{self._show(self.tool)} answered with an error ({outcome.details.get('code', 'its own')})")
            print_call_notes(outcome)
        return code


def _build_progress_printer(name: str) -> Callable[[ToolProgress], None]:
    """Build a callback that shows progress: as a bar on a terminal, else at most five lines a second."""
    last = -_PROGRESS_INTERVAL_S

    def print_progress(progress: ToolProgress) -> None:
        nonlocal last
        if monotonic() - last < _PROGRESS_INTERVAL_S:
            return
        last = monotonic()
        total = "" if progress.total is None else f"/{progress.total:g}"
        text = f"{progress.done:g}{total} {progress.message}".rstrip()
        if sys.stderr is None or not sys.stderr.isatty():
            print_status(f"{name}: {text}")
            return
        filled = round(_BAR_CELLS * min(1.0, progress.done / progress.total)) if progress.total else 0
        bar = f"{'━' * filled}{'─' * (_BAR_CELLS - filled)}  " if progress.total else ""
        show_live_line(name, f"{bar}{text}")

    return print_progress
