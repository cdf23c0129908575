"""`indus call`: one call of one tool, native or of a server.

Exit codes: 0 it answered, 1 it answered with an error, 2 the call makes no sense, 3 a fault between
us and its server or a disabled tool, 128 + n for signal n.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from induscode.commands.ad_hoc import plan_ad_hoc_server
from induscode.commands.support.groups import build_unknown_name
from induscode.commands.support.names import complete_tool
from induscode.commands.support.output import print_notes, write_json
from induscode.commands.support.runner import load_plan, opened_store, run_with_signals, usage_errors
from induscode.launch.options import flags, read_invocation
from induscode.terminal import print_status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from indusagi.core.notes import Note
    from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl
    from indusagi.runtime.contract import ToolOutcome, ToolProgress
    from induscode.boot.session import Session
    from induscode.deck.contract import Capability
    from induscode.deck.mcp.boot import ServerPlan
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.deck.mcp.store import LedgerStore
    from induscode.launch.invocation import Invocation
    from induscode.session.permissions.confirm import PermissionAnswer, PermissionRequest

ANSWERED_WITH_ERROR = 1
MISUSED = 2
FAULT = 3
_FAULTS = frozenset({"transport", "protocol", "timeout", "not_connected", "spawn_failed", "drift"})
"""What a server did not answer. Only of tools of servers: a command that takes too long answers."""
_MISUSES = frozenset({"invalid_arguments", "unknown_tool"})
_PROGRESS_GAP_S = 0.2


@flags("--tools", "--mcp", "--no-mcp", "--web-allow", "--cwd")
@click.command("call")
@click.argument("tool", shell_complete=complete_tool)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]…")
@click.option(
    "--json",
    "whole",
    metavar="OBJECT|@FILE|-",
    help="All arguments as one JSON object: here, in a file, or on standard input.",
)
@click.option(
    "--output",
    type=click.Choice(("text", "json", "raw")),
    default="text",
    show_default=True,
    help="How the answer is written: safe for a terminal, all of it as JSON, or its texts as are.",
)
@click.option("--save", metavar="DIR", help="Write pictures, sounds and other data of the answer to new files in DIR.")
@click.option("--stdio", "line", metavar="COMMAND", help="Call a tool of the server that COMMAND starts.")
@click.option("--url", metavar="URL", help="Call a tool of the server at URL.")
@click.option("-H", "--header", multiple=True, metavar="'NAME: VALUE'", help="With --url.")
@click.pass_context
def command(
    context: click.Context,
    tool: str,
    arguments: tuple[str, ...],
    *,
    whole: str | None,
    output: str,
    save: str | None,
    **ad_hoc: Any,
) -> int:
    """Call TOOL with arguments: KEY=VALUE by its schema, KEY:=JSON as it stands.

    A list is written as JSON, or its key comes several times. Progress goes to standard error.

    Exit codes: 0 answered, 1 the tool answered with an error, 2 a call that makes no sense, 3 its
    server failed or is not there, or the tool is disabled: see indus mcp diff.
    """
    from induscode.commands.support.arguments import ArgumentError, read_object  # noqa: PLC0415 — not for the help

    invocation = read_invocation(context)
    call = _Call(context, invocation, tool, arguments, output, save)
    try:
        # Before there is a loop: standard input is waited for, and an interrupt must end that.
        call.given = {} if whole is None else read_object(whole)
    except ArgumentError as exc:
        raise click.UsageError(str(exc), context) from exc
    line, url, headers = ad_hoc["line"], ad_hoc["url"], ad_hoc["header"]
    if line is not None or url is not None or headers:
        call.plan = plan_ad_hoc_server(context, line, url, headers)
        call.ad_hoc = call.plan.rows[0].id
        call.tool = f"{call.ad_hoc}__{tool}"
    else:
        call.plan = call.servers()
    call.wrap = _gate(invocation.cwd)

    async def work(token: CancelToken) -> int:
        with usage_errors():
            return await call.made(token)

    return run_with_signals(work)


class _Call:
    """One call, from its words to its exit code."""

    def __init__(
        self,
        context: click.Context,
        invocation: Invocation,
        tool: str,
        words: Sequence[str],
        output: str,
        save: str | None,
    ) -> None:
        self._context = context
        self._invocation = invocation
        self.tool = tool
        self._words = words
        self._output = output
        self._save = save
        self._told: Sequence[Note] = ()
        """What was said of the ledger already."""
        self._likely: list[str] = []
        """The servers that the name of the tool speaks of."""
        self.ad_hoc: str | None = None
        """The id of the server that stands on the command line, if one does."""
        self.given: JsonObject = {}
        self.plan: ServerPlan | None = None
        """None for a native tool, which needs no servers."""
        self.wrap: Callable[[Capability], Capability] | None = None

    async def made(self, token: CancelToken) -> int:
        """Open what the call needs, make it, and show what came of it."""
        from induscode.boot.session import open_session  # noqa: PLC0415 — as above
        from induscode.deck.contract import Profile  # noqa: PLC0415 — as above
        from induscode.deck.mcp.boot import ServerPlan  # noqa: PLC0415 — brings the deck

        plan = ServerPlan() if self.plan is None else await self._narrowed(self.plan)
        async with AsyncExitStack() as stack:
            opened: tuple[Session, Capability | None] | None = None
            # Once it runs, the call is told of a signal by the token alone, and so is its server;
            # everything is then closed in peace.
            with token.guard():
                # A tool of a server needs no native ones, and they take time to load.
                profile = Profile.ALL if self.plan is None else None
                session = await stack.enter_async_context(
                    open_session(self._invocation, plan=plan, wrap=self.wrap, profile=profile)
                )
                print_notes(note for note in session.store.notes if note not in self._told)
                opened = session, await self._card(session)
            if opened is None:
                return 0
            session, card = opened
            if card is None:
                return self._missing(session)
            outcome = await self._run(session, card, token)
        # Nobody waits for the answer of a call that was told to end.
        return 0 if token.cancelled else self._shown(outcome, card)

    # -- finding the tool -------------------------------------------------------------------

    def servers(self) -> ServerPlan | None:
        """Find out which servers there are, unless the tool is a native one."""
        from induscode.deck.catalog import has_capability  # noqa: PLC0415 — brings the cards

        if not has_capability(self.tool):
            return load_plan(self._invocation)
        if self._invocation.mcp:  # named by hand: it is checked even if no server is needed
            load_plan(self._invocation)
        return None

    async def _narrowed(self, plan: ServerPlan) -> ServerPlan:
        """Keep the server that is known to have the tool, or those that may have it."""
        known = await self._known_server(plan) if plan.configs else None
        if known is not None:
            return plan.narrow([known])
        self._likely = [row.id for row in plan.rows if self.tool.startswith(f"{row.id}__")]
        return plan.narrow(self._likely) if self._likely else plan

    async def _known_server(self, plan: ServerPlan) -> str | None:
        async with opened_store() as store:
            found = await _server_with(plan, self.tool, store)
        self._told = store.notes
        return found

    async def _card(self, session: Session) -> Capability | None:
        found = _find(session, self.tool)
        if found is not None:
            return found
        # A server that was seen before may have more tools by now.
        await _wake_all(session.mcp.fleet)
        return _find(session, self.tool)

    def _missing(self, session: Session) -> int:
        """Say why there is no such tool: it is disabled, its server is not there, or unknown."""
        if (off := _find_disabled(session, self.tool)) is not None:
            from indusagi.runtime.contract import ToolOutcome  # noqa: PLC0415 — brings the kernel
            from induscode.deck.mcp.enrolment import refuse_disabled  # noqa: PLC0415 — as above

            return self._shown(ToolOutcome("", refuse_disabled(off)))
        if self.tool in session.left_out:
            lacking = session.left_out[self.tool]
            said = f"{self.tool} can do nothing here: {lacking}"
            raise click.UsageError(said, self._context)
        plan = session.mcp.plan
        status = session.mcp.status()
        why = [str(one.fault) for one in status.values() if one.fault is not None]
        why += [str(note) for note in plan.notes if _speaks_of(note, plan)]
        if self.ad_hoc is not None:
            return self._missing_ad_hoc(session, self.ad_hoc, why)
        said = f"there is no tool {self.tool!r}"
        if why and self._likely:
            print_status(f"{said}: {'; '.join(why)}")
            return FAULT
        for reason in why:
            print_status(reason)
        from induscode.deck.catalog import cards_for_profile  # noqa: PLC0415 — brings the cards
        from induscode.deck.contract import Profile  # noqa: PLC0415 — as above

        names = [str(card.id) for card in cards_for_profile(Profile.ALL)]
        names += [card.name for card in session.deck().tools()]
        raise build_unknown_name(said, self.tool, names, self._context)

    def _missing_ad_hoc(self, session: Session, server: str, why: Sequence[str]) -> int:
        """Say why the server on the command line lacks the tool, without the id made for it."""
        if why:
            print_status("; ".join(one.replace(f"server {server!r}", "the server") for one in why))
            return FAULT
        prefix = f"{server}__"
        names = [card.name.removeprefix(prefix) for card in session.deck().tools()]
        name = self.tool.removeprefix(prefix)
        raise build_unknown_name(f"the server has no tool {name!r}", name, names, self._context)

    # -- calling it -------------------------------------------------------------------------

    async def _run(self, session: Session, card: Capability, token: CancelToken) -> ToolOutcome:
        from indusagi.capabilities.budget import UNLIMITED  # noqa: PLC0415 — brings the kernel
        from indusagi.core.ids import new_ulid  # noqa: PLC0415 — as above
        from indusagi.runtime.contract import ToolCall  # noqa: PLC0415 — as above
        from induscode.commands.support.arguments import (  # noqa: PLC0415 — as above
            ArgumentError,
            check_arguments,
            describe_parameters,
            read_arguments,
        )
        from induscode.deck.provision import ToolDeck  # noqa: PLC0415 — as above

        schema = card.parameters
        if self.plan is None:
            # Native tools take no other names; their schemas leave that out to be short.
            schema = {**schema, "additionalProperties": False}
        try:
            arguments = read_arguments(self._words, self.given, schema)
            if self.plan is not None:  # native tools check their arguments themselves
                await check_arguments(arguments, card.parameters)
        except ArgumentError as exc:
            said = f"{card.name}: {exc}. It takes: {describe_parameters(card.parameters)}"
            raise click.UsageError(said, self._context) from exc
        deck = session.deck()
        # No model reads this: whoever typed the call gets the whole answer, and need not have had
        # a file read before it is changed, which one call could not do.
        framework = replace(deck.context.framework, read_state=None)
        typed = replace(deck.context, budget=UNLIMITED, framework=framework, keeps_jobs=False)
        box = ToolDeck(deck.tools(), typed).into_tool_box()
        call = ToolCall(f"call_{new_ulid()}", card.name, arguments)
        return await box.runner.run(call, token, on_progress=_progress(card.name))

    # -- what came of it --------------------------------------------------------------------

    def _shown(self, outcome: ToolOutcome, card: Capability | None = None) -> int:
        from induscode.commands.support.answers import block_text, outcome_json, save_blocks, show_blocks  # noqa: PLC0415 — for a call that ran
        from induscode.commands.support.arguments import describe_parameters  # noqa: PLC0415 — as above

        code = _exit_code(outcome)
        if code not in {MISUSED, FAULT} and self._save is not None:
            try:
                for path in save_blocks(outcome.content, self._save, self.tool):
                    print_status(f"saved {path}")
            except OSError as exc:
                print_status(f"--save {self._save}: {exc.strerror or exc}")
                code = code or ANSWERED_WITH_ERROR
        if self._output == "json":
            write_json(outcome_json(outcome))
            return code
        if code in {MISUSED, FAULT}:
            said = " ".join(map(block_text, outcome.content))
            if code == MISUSED and card is not None:
                said += f". It takes: {describe_parameters(card.parameters)}"
            print_status(said)
            return code
        show_blocks(outcome.content, raw=self._output == "raw")
        if outcome.is_error:
            said = outcome.details.get("code", "its own")
            print_status(f"{self.tool} answered with an error ({said})")
        return code


class _WhoTyped:
    """Answers for the person who typed the call: yes to it, and to it alone."""

    async def ask(self, question: PermissionRequest) -> PermissionAnswer:
        """Say yes, once."""
        from induscode.session.permissions.confirm import ApprovalScope, PermissionAnswer  # noqa: PLC0415 — see _gate

        return PermissionAnswer(ApprovalScope.ONCE)


def _gate(cwd: str) -> Callable[[Capability], Capability]:
    """Put the gate in front of every card: what a rule denies stays denied."""
    from induscode.session.permissions.check import CheckedCard, Permissions  # noqa: PLC0415 — for a call that runs
    from induscode.session.permissions.store import RuleStore, load_startup_rules  # noqa: PLC0415 — as above

    store = RuleStore()
    rules, notes = load_startup_rules(store, cwd)
    print_notes(notes)
    permissions = Permissions(rules, approver=_WhoTyped(), store=store)
    return lambda card: CheckedCard(card, permissions)


def _speaks_of(note: Note, plan: ServerPlan) -> bool:
    return any(note.owner.startswith(f"server {row.id!r}") for row in plan.rows)


def _find(session: Session, name: str) -> Capability | None:
    return next((card for card in session.deck().tools() if card.name == name), None)


def _find_disabled(session: Session, name: str) -> DisabledTool | None:
    return next((one for one in session.mcp.disabled if one.name == name), None)


async def _wake_all(fleet: ServerFleetImpl) -> None:
    from anyio import create_task_group  # noqa: PLC0415 — for those with servers

    async with create_task_group() as tasks:
        for server in fleet.status():
            tasks.start_soon(fleet.wake, server)


async def _server_with(plan: ServerPlan, name: str, store: LedgerStore) -> str | None:
    """Find the server that had a tool of this name when it was seen last."""
    from indusagi.interop.protocol_bridge.client.tools import model_name  # noqa: PLC0415 — as above
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef  # noqa: PLC0415 — for servers
    from induscode.deck.mcp.config.trust import server_identity  # noqa: PLC0415 — as above
    from induscode.deck.mcp.store.events import filter_texts  # noqa: PLC0415 — as above
    from induscode.deck.mcp.store.pins import read_disabled_tools  # noqa: PLC0415 — as above

    disabled = await read_disabled_tools(store, plan.configs.values())
    for row in await store.latest("list"):
        config = plan.configs.get(str(row.facts.get("server")))
        if config is None or row.facts.get("identity") != server_identity(config):
            continue
        tools = filter_texts(row.facts.get("tools"))
        if any(model_name(RemoteToolRef(config.id, tool), (), plan.configured) == name for tool in tools):
            return config.id
    return next((one for one, off in disabled.items() if name in {t.name for t in off}), None)


def _progress(name: str) -> Callable[[ToolProgress], None]:
    """Tell how far a call is, and not faster than anybody can read."""
    from time import monotonic  # noqa: PLC0415 — for a call that runs

    last = -_PROGRESS_GAP_S

    def told(progress: ToolProgress) -> None:
        nonlocal last
        if monotonic() - last < _PROGRESS_GAP_S:
            return
        last = monotonic()
        total = "" if progress.total is None else f"/{progress.total:g}"
        print_status(f"{name}: {progress.done:g}{total} {progress.message}")

    return told


def _exit_code(outcome: ToolOutcome) -> int:
    if not outcome.is_error:
        return 0
    code = outcome.details.get("code")
    if code in _MISUSES:
        return MISUSED
    if code in _FAULTS and "server" in outcome.details:
        return FAULT
    return ANSWERED_WITH_ERROR
