"""`indus try`: starts a server that isn't configured, shows what it offers, and lets you call it.

Exit codes: 0 tried, 1 a call answered with an error or a finding is serious, 2 usage error, 3 the server failed,
128 + n for signal n.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from indusagi.capabilities.sandbox.behaviour import describe_behaviour
from indusagi.capabilities.sandbox.profile import PROFILES, format_profile
from indusagi.core.app_dirs import state_dir
from indusagi.core.json import is_json_object
from indusagi.core.text import clean_text, escape_unseen, format_count
from indusagi.interop.protocol_bridge.contract import ProtocolFault, StdioServerConfig, is_usable_phase, needs_sign_in
from induscode.boot.catalog import list_tools
from induscode.boot.plans import load_plan, opened_store
from induscode.boot.trial import PackageError, find_former, open_trial, parse_package, pin_definitions, pin_package
from induscode.cli.listing import print_table
from induscode.cli.output import (
    as_json,
    ask_consent,
    build_unknown_name,
    can_ask_user,
    digest_option,
    print_notes,
    write_json,
)
from induscode.cli.signals import run_for_result, run_until_signal
from induscode.cli.terminal import print_line, print_status, print_text
from induscode.commands.call import ANSWERED_WITH_ERROR, FAULT
from induscode.commands.call_data import (
    check_arguments,
    describe_parameters,
    print_blocks,
    print_call_notes,
    read_arguments,
    to_json,
)
from induscode.commands.mcp.configure import AddCommand, add_server, parse_seconds
from induscode.core.consent import build_consent
from induscode.deck.catalog import capability_ids
from induscode.deck.mcp.capability import build_behaviour, definition_pin
from induscode.launch.options import flags, read_invocation
from induscode.search.options import estimate_definition
from induscode.servers.config.dialects import UnresolvedVariableError
from induscode.servers.config.trust import show_arguments, show_url
from induscode.servers.config.writer import own_config_path, read_own_config
from induscode.servers.edits import resolve_paths
from induscode.servers.plan import build_fields, digest_place, parse_server_row, suggest_name

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef, ServerConfig
    from induscode.boot.trial import Package, Trial
    from induscode.conversations.line_dialog import LineDialog
    from induscode.core.consent import Consent
    from induscode.deck.mcp.drift import Drift
    from induscode.deck.mcp.review import Finding
    from induscode.launch.invocation import Invocation

_HELP = """TOOL KEY=VALUE …  call a tool; KEY:=JSON for a value as it stands, or one JSON object
tools             list the tools
show TOOL         show the definition of a tool
quit              stop the server"""
_MAX_ABOUT = 100
_MAX_FINDINGS = 50
_MAX_STDERR_LINES = 5


@flags("--cwd")
@click.command("try", cls=AddCommand)
@click.argument("target", nargs=-1, metavar="(npm:NAME | pypi:NAME | URL | -- COMMAND [ARGUMENT]…)")
@click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="A variable for the process.")
@click.option("-H", "--header", multiple=True, metavar="'NAME: VALUE'", help="A header of requests.")
@click.option(
    "--sandbox",
    "profile",
    type=click.Choice(("off", *PROFILES)),
    default="standard",
    show_default=True,
    help="What its process may touch.",
)
@click.option("--learn", "learns", is_flag=True, help="Watch it, and keep it with no more than it used.")
@click.option("--startup-timeout", metavar="SECONDS", help="How long it may take to come up.")
@click.option("--call", "calls", multiple=True, metavar="'TOOL [KEY=VALUE]…'", help="Call this tool; repeatable.")
@click.option(
    "--compare",
    is_flag=False,
    flag_value="",
    metavar="[VERSION]",
    help="Compare with an earlier version of the package.",
)
@click.option("--keep", metavar="NAME", help="Add it as NAME afterwards, with a question.")
@click.option("--yes", is_flag=True, help="With --keep: agree without a question.")
@digest_option
@as_json
@click.pass_context
def command(
    context: click.Context, target: tuple[str, ...], env: Sequence[str], header: Sequence[str], **options: Any
) -> int:
    """Try a server before you add it: an npm or PyPI package, a URL, or the COMMAND that starts it.

    Nothing is configured and nothing stays: it gets a sandbox, and a home and a workspace that are removed at the end.
    indus lists what it offers, what that costs a model, and findings of a review; then you can call its tools. The
    review knows phrases and shapes of misleading texts. It doesn't find all of them.

    Exit codes: 0 tried, 1 a call answered with an error or a finding is serious, 2 invalid usage, 3 the server failed.
    """
    if options["compare"] and not target:  # `--compare npm:NAME`
        target, options["compare"] = (options["compare"],), ""
    invocation = read_invocation(context)
    sandbox, timeout, _ = (options.pop(key) for key in ("profile", "startup_timeout", "cwd"))
    try:
        package = parse_package(target[0]) if len(target) == 1 else None
    except PackageError as exc:
        raise click.UsageError(str(exc)) from exc
    if package is None and options["compare"] is not None:
        raise click.UsageError("--compare needs a package: npm:NAME or pypi:NAME")
    if package is not None and header:
        raise click.UsageError("-H is for a URL; a package takes variables: -e NAME=VALUE")
    if options["learns"] and sandbox == "off":
        raise click.UsageError("--learn needs a sandbox: leave out --sandbox off")
    try:
        if package is not None:
            wanted = package
            package = run_for_result(lambda _: pin_package(wanted))
            target = package.words
        else:
            target = resolve_paths(target, invocation.cwd)
        fields = build_fields(target, None, header, env)
        fields |= {"sandbox": sandbox} if "command" in fields else {}
        if options["learns"] and "command" not in fields:
            raise click.UsageError("--learn is for a command; a URL starts no process")
        if timeout is not None:
            fields["startup_timeout_sec"] = parse_seconds("startup_timeout", timeout)
        name = _choose_name(invocation, options["keep"], suggest_name([package.name] if package else target))
        return _Attempt(context, invocation, name, fields, package, **options).run()
    except PackageError as exc:
        print_status(str(exc))
        return FAULT


@dataclass(slots=True)
class _Attempt:
    """One server, from the command line to the exit code."""

    context: click.Context
    invocation: Invocation
    name: str
    fields: JsonObject
    """The row that would be added."""
    package: Package | None
    calls: Sequence[str]
    compare: str | None
    keep: str | None
    learns: bool
    yes: bool
    digests: Sequence[str]
    as_json: bool
    trial: Trial | None = None
    findings: Sequence[Finding] = ()
    former: Package | None = None
    drifts: Sequence[Drift] = ()
    outcomes: list[JsonObject] = field(default_factory=list["JsonObject"])
    fault: ProtocolFault | None = None
    is_kept: bool = False

    def run(self) -> int:
        """Try the server, and return the exit code."""
        config = self._build_config(self.fields)
        is_asked = not self.as_json and not self.calls and not self.keep and can_ask_user()
        known_names = _list_known_names(self.invocation)
        code = run_until_signal(lambda token: self._try(config, known_names, token, is_asked=is_asked))
        if code not in {0, FAULT}:
            return code
        is_to_keep = is_asked or (self.keep and (self.yes or not self.as_json))  # JSON has the digest for the next run
        if self.trial is not None and self.fault is None and is_to_keep:
            self._keep(self.trial)
        if self.as_json:
            write_json(self._build_json())
        is_bad = any(finding.severity == "serious" for finding in self.findings)
        is_bad = is_bad or (not is_asked and any(outcome["isError"] for outcome in self.outcomes))
        return code or (ANSWERED_WITH_ERROR if is_bad else 0)

    def _build_config(self, fields: JsonObject) -> ServerConfig:
        row = parse_server_row(self.name, fields, own_config_path("user", self.invocation.cwd), "user")
        try:
            # Without a sign-in, which would be stored.
            return replace(row, auth={}).resolve(os.environ)
        except UnresolvedVariableError as exc:
            raise click.UsageError(str(exc)) from exc

    async def _try(
        self, config: ServerConfig, known_names: Mapping[str, str], token: CancelToken, *, is_asked: bool
    ) -> int:
        from induscode.conversations.line_dialog import find_line_dialog  # noqa: PLC0415 — for a terminal
        from induscode.conversations.server_requests import build_server_handlers  # noqa: PLC0415 — for a terminal

        dialog = find_line_dialog(token) if is_asked else None
        handlers = None if dialog is None else build_server_handlers(dialog)
        try:
            async with open_trial(config, handlers, is_watched=self.learns) as trial:
                self.trial = trial
                self.findings = trial.review(known_names)
                if not self.as_json:
                    self._print_report(trial)
                if self.package is not None and self.compare is not None:
                    await self._compare(self.package, trial)
                for line in self.calls:
                    await self._call(trial, line, token)
                if dialog is not None:
                    await self._converse(trial, dialog, token)
                await self._learn(trial)
        except ProtocolFault as fault:
            self.fault = fault
            print_status(str(fault))
            for line in fault.detail.stderr[-_MAX_STDERR_LINES:]:
                print_status(f"  {clean_text(line)[0]}")
            if needs_sign_in(fault):
                print_status(
                    "it wants a sign-in: give its token with -H 'Authorization: Bearer TOKEN', or add it first"
                )
            return FAULT
        return 0

    # -- what it offers ---------------------------------------------------------------------

    def _print_report(self, trial: Trial) -> None:
        facts = trial.facts
        names = [clean_text(str(facts[key]))[0] for key in ("name", "version") if facts.get(key)]
        print_line(
            f"{self.package or self.name}: {' '.join(names)}, protocol {facts.get('protocol')}, {trial.start_ms} ms"
        )
        for line in _describe_row(self._build_config(self.fields)):
            print_line(f"  {line}")
        print_notes(trial.notes)
        _print_tools(trial)
        others = [item.ref.kind for item in trial.items if item.ref.kind not in {"tool", "instructions"}]
        counts = [format_count(others.count(kind), kind) for kind in dict.fromkeys(others)]
        counts += ["instructions"] if any(item.ref.kind == "instructions" for item in trial.items) else []
        print_line(
            f"{format_count(len(trial.tools), 'tool')}, {trial.tokens:,} tokens{''.join(f', {one}' for one in counts)}"
        )
        print_line(
            f"review: {format_count(len(self.findings), 'finding')}" if self.findings else "review: found nothing"
        )
        for finding in self.findings[:_MAX_FINDINGS]:
            print_line(f"  {finding}")
        if len(self.findings) > _MAX_FINDINGS:
            print_status(f"--json lists all {len(self.findings):,} findings")

    async def _learn(self, trial: Trial) -> None:
        """Limit the row to what the server has used, if it was watched."""
        await trial.learn()
        if trial.behaviour is None or not isinstance(trial.config, StdioServerConfig) or trial.config.sandbox is None:
            return
        limited = trial.config.sandbox.allow(trial.behaviour)
        self.fields = {**self.fields, "sandbox": format_profile(limited)}
        if self.as_json:
            return
        for line in describe_behaviour(trial.behaviour):
            print_line(f"used {escape_unseen(line)}")
        for one in trial.refusals:
            print_line(f"refused: {escape_unseen(str(one))}")

    async def _compare(self, package: Package, trial: Trial) -> None:
        self.former = former = await find_former(package, self.compare or "")
        config = self._build_config({**self.fields, **build_fields(former.words)})
        async with open_trial(config) as other:
            self.drifts = trial.compare(other)
        if self.as_json:
            return
        print_line(
            f"{former}: {format_count(len(self.drifts), 'definition')} differ"
            if self.drifts
            else f"{former}: the same definitions"
        )
        for drift in self.drifts:
            print_line(drift.summary)
            print_text(drift.diff())

    # -- calls ------------------------------------------------------------------------------

    async def _call(self, trial: Trial, line: str, token: CancelToken) -> None:
        """Call the tool that a line names; raises `click.UsageError` if the line is invalid."""
        name, _, rest = line.strip().partition(" ")
        tool = next((tool for tool in trial.tools if tool.ref.name == name), None)
        if tool is None:
            raise build_unknown_name(
                f"It has no tool {name!r}", name, [one.ref.name for one in trial.tools], self.context
            )
        schema = tool.descriptor.parameters
        try:
            if rest.lstrip().startswith("{"):
                given: JsonValue = json.loads(rest)
                arguments = given if is_json_object(given) else {}
            else:
                arguments = read_arguments(shlex.split(rest), {}, schema)
            await check_arguments(arguments, schema)
        except ValueError as exc:  # ArgumentError is one
            raise click.UsageError(f"{name}: {exc}. It takes: {describe_parameters(schema)}", self.context) from exc
        outcome = await trial.call(name, arguments, token)
        self.outcomes.append({"tool": name, "arguments": arguments, **to_json(outcome)})
        if not self.as_json:
            print_blocks(outcome.content, raw=False)
            if outcome.is_error:
                print_status(f"{name} answered with an error")
                print_call_notes(outcome)

    async def _converse(self, trial: Trial, dialog: LineDialog, token: CancelToken) -> None:
        """Let the user call tools until they quit."""
        print_line("Call its tools here. help says how, quit ends it.")
        while (line := await dialog.read_line("try> ")) is not None and line.strip() != "quit":
            word, _, rest = line.strip().partition(" ")
            if word in {"help", "?"}:
                print_text(_HELP)
            elif word == "tools":
                _print_tools(trial)
            elif word == "show":
                found = [tool.raw for tool in trial.tools if tool.ref.name == rest.strip()]
                print_text(json.dumps(found[0], indent=2) if found else f"It has no tool {rest.strip()!r}")
            elif word:
                await self._answer(trial, line, token)

    async def _answer(self, trial: Trial, line: str, token: CancelToken) -> None:
        try:
            await self._call(trial, line, token)
        except click.UsageError as exc:
            print_status(exc.message)
        except ProtocolFault as fault:
            if not is_usable_phase(trial.endpoint.phase):
                raise
            print_status(str(fault))

    # -- the end ----------------------------------------------------------------------------

    def _list_pins(self, trial: Trial) -> Mapping[RemoteToolRef, JsonObject]:
        """Return what's approved: its definitions, and its behaviour if it was watched."""
        if trial.behaviour is None:
            return trial.definitions
        item = build_behaviour(self.name, trial.behaviour)
        return {**trial.definitions, item.ref: item.raw}

    def _build_consent(self, trial: Trial) -> Consent:
        pins: list[JsonValue] = [
            [ref.kind, ref.name, definition_pin(raw)] for ref, raw in sorted(self._list_pins(trial).items(), key=str)
        ]
        lines = [
            *_describe_row(self._build_config(self.fields)),
            f"approves: {format_count(len(trial.definitions), 'definition')} as listed",
        ]
        if trial.behaviour is not None:
            lines.append("limited to what it used: a host or path it asks for later waits for you")
        return build_consent(f"server {self.name!r}", [self.name, self.fields, pins], lines, map(str, self.findings))

    def _keep(self, trial: Trial) -> None:
        """Add the server with exactly these definitions, after a yes."""
        consent = self._build_consent(trial)
        question = f"Keep it as {self.name!r}?"
        if not ask_consent(consent, question, yes=self.yes, digests=self.digests, quiet=self.as_json):
            print_status("nothing was added")
            return
        with redirect_stdout(sys.stderr) if self.as_json else nullcontext():
            add_server(self.context, self.name, self.fields, "user", replace=False, check=False)
        self.is_kept = True
        config = load_plan(self.invocation).configs.get(self.name)
        if config is None:
            return
        place = digest_place(own_config_path("user", self.invocation.cwd), self.name)

        async def pin(_: CancelToken) -> int:
            async with opened_store() as store:
                if not await pin_definitions(store, config, self._list_pins(trial), place):
                    print_status("the ledger could not store the approval: indus ledger verify")
            return 0

        run_until_signal(pin)

    def _build_json(self) -> JsonObject:
        trial, fault, former = self.trial, self.fault, self.former
        offered: JsonObject = {"server": None, "startMs": None, "tokens": 0, "items": [], "notes": [], "digest": None}
        if trial is not None:
            offered = {**trial.as_json(), "digest": self._build_consent(trial).digest}
        return {
            "target": str(self.package or self.name),
            "row": _hide_row(self.fields),
            **offered,
            "findings": [finding.as_json() for finding in self.findings],
            "former": None if former is None else str(former),
            "drifts": [
                {"kind": drift.ref.kind, "name": drift.ref.name, "grade": str(drift.grade), "fields": [*drift.fields]}
                for drift in self.drifts
            ],
            "calls": [*self.outcomes],
            "kept": self.name if self.is_kept else None,
            "fault": None if fault is None else str(fault),
        }


def _choose_name(invocation: Invocation, wanted: str | None, suggested: str) -> str:
    """Choose a name that no server of the user has."""
    path = own_config_path("user", invocation.cwd)
    taken = read_own_config(path).rows()
    if wanted in taken:
        raise click.UsageError(f"{path} has a server {wanted!r}: keep it under another name")
    names = (suggested, *(f"{suggested}-{number}" for number in range(2, len(taken) + 3)))
    return wanted or next(name for name in names if name not in taken)


def _hide_row(fields: JsonObject) -> JsonObject:
    """Return a row without secrets, for display."""
    shown = {key: value for key, value in fields.items() if key not in {"env", "headers"}}
    if isinstance(args := fields.get("args"), list):
        shown["args"] = [*show_arguments([str(word) for word in args], "shell")]
    if isinstance(url := fields.get("url"), str):
        shown["url"] = show_url(url, "shell")
    return shown


def _describe_row(config: ServerConfig) -> Sequence[str]:
    """Describe what starts, and what it may touch."""
    if not isinstance(config, StdioServerConfig):
        return [f"address: {show_url(config.url)}"]
    profile = config.sandbox
    touches = "off: whatever you may" if profile is None else profile.describe()
    command = shlex.join((config.command, *show_arguments(config.args, "none")))
    return [f"command: {command}", f"sandbox: {touches}"]


def _print_tools(trial: Trial) -> None:
    rows = [
        (
            tool.ref.name,
            estimate_definition(tool.descriptor),
            " ".join(tool.descriptor.description.split())[:_MAX_ABOUT],
        )
        for tool in trial.tools
    ]
    if rows:
        print_table(("TOOL", "TOKENS", "DESCRIPTION"), rows)


def _list_known_names(invocation: Invocation) -> Mapping[str, str]:
    """Map the tools that the user has to their servers, without creating a ledger."""
    names = {str(name): "indus" for name in capability_ids()}
    if os.path.isdir(state_dir()):
        listing = run_for_result(lambda _: list_tools(invocation, check=False))
        names |= {tool.tool or tool.name: tool.source for tool in listing.tools if tool.source in listing.states}
    return names
