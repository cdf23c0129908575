"""`/tools`, `/permissions` and `/addons`: the session's tools, the rules for calling them, and its addons."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.faults import Note
from indusagi.core.text import format_count
from induscode.addons.hooks import list_project_parts
from induscode.addons.loader import AddonConsentStore, describe_refusal, discover_addons
from induscode.boot.catalog import NATIVE
from induscode.deck.contract import describe
from induscode.frontends.terminal.slash import (
    SlashCommand,
    SlashError,
    SlashHost,
    confirm,
    confirm_end_of_jobs,
    name_slash_commands,
    split_words,
)
from induscode.permissions.rules import Effect, Rule, RuleOrigin, parse_rule
from induscode.search.options import estimate_definition

if TYPE_CHECKING:
    from induscode.permissions.check import Permissions

_SAVE = "--save"
_ACTIONS = {
    "add": f"allow|ask|deny RULE [{_SAVE}]: add a rule for this session",
    "remove": "N: remove a rule of this session or of your store",
    "mode": "[ask | auto-edit | plan]: change the mode, by default to the next one",
}
_MODES = {
    "ask": "you're asked before anything changes",
    "auto-edit": "workspace files are written without asking",
    "plan": "only what reads runs, until you approve a plan",
    "all": "everything runs that no rule denies",
}
_SEARCHED = "searched"


async def _show_tools(host: SlashHost, rest: str) -> None:
    word, session = rest.casefold(), host.conversation.session
    owners = host.conversation.map_servers()
    deck = session.deck()
    rows = [
        (card.name, owners.get(card.name, NATIVE), cell, card.description.strip().partition("\n")[0], tokens)
        for card in deck.shown()
        for tokens in (0 if card.name in deck.hidden else estimate_definition(describe(card)),)
        for cell in (f"{tokens:,}" if tokens else _SEARCHED,)
    ]
    off = [(tool.name, tool.ref.server, "-", tool.reason, 0) for tool in session.mcp.disabled]
    off += [(name, NATIVE, "-", f"left out: {why}", 0) for name, why in session.left_out.items()]
    shown = [row for row in (*rows, *off) if not word or any(word in cell.casefold() for cell in row[:4])]
    if not shown:
        raise SlashError(f"no tool has {rest!r} in its name, owner or description" if word else "there are no tools")
    host.print_table(("NAME", "OWNER", "TOKENS", "DESCRIPTION"), [row[:4] for row in shown])
    usable = [row for row in shown if row[2] not in {"-", _SEARCHED}]
    total = sum(row[4] for row in usable)
    host.screen.show(f"{format_count(len(usable), 'tool')} shown to the model, about {total:,} tokens")
    found = sum(row[2] == _SEARCHED for row in shown)
    if found:
        host.screen.show(f"{format_count(found, 'tool')} found by the model, with find_tools")
    for tool in session.mcp.disabled:
        if not word or any(row[0] == tool.name for row in shown):
            host.screen.show(f"{tool.name}: {name_slash_commands(tool.remedy)}")


async def _change_permissions(host: SlashHost, rest: str) -> None:
    permissions = host.conversation.permissions.permissions
    if permissions is None:
        raise SlashError("this session has no rules of its own")
    action, _, more = rest.partition(" ")
    if not action:
        _show_rules(host, permissions)
    elif action == "mode":
        try:
            permissions.change_mode(more.strip())
        except ValueError as exc:
            raise SlashError(str(exc)) from exc
        host.screen.show(f"Mode: {permissions.mode}: {_MODES[permissions.mode]}")
    elif action == "add":
        await _add_rule(host, permissions, more.strip())
    elif action == "remove":
        await _remove_rule(host, permissions, split_words(more))
    else:
        raise SlashError(f"/permissions has no action {action!r}; there are: {', '.join(_ACTIONS)}")


def _show_rules(host: SlashHost, permissions: Permissions) -> None:
    host.screen.show(f"Mode: {permissions.mode}: {_MODES[permissions.mode]}")
    rules = permissions.rules
    if not rules:
        host.screen.show("there are no rules: /permissions add allow|ask|deny RULE adds one")
        return
    rows = [
        (str(number), rule.effect.value, rule.origin.value, _describe_scope(rule), str(rule))
        for number, rule in enumerate(rules, start=1)
    ]
    host.print_table(("N", "EFFECT", "ORIGIN", "SCOPE", "RULE"), rows)


def _describe_scope(rule: Rule) -> str:
    """Describe where a rule applies: everywhere, in a workspace, to a server, to one definition of a tool."""
    parts = [] if rule.workspace is None else [os.path.basename(rule.workspace) or rule.workspace]
    parts += [] if rule.server is None else [f"server {rule.server}"]
    parts += [] if rule.pin is None else ["as defined now"]
    return ", ".join(parts) or "everywhere"


async def _add_rule(host: SlashHost, permissions: Permissions, text: str) -> None:
    effect, _, text = text.partition(" ")
    if effect not in set(Effect):
        raise SlashError("write /permissions add allow|ask|deny RULE, as in: add allow bash(git status *)")
    # Don't split the rule into words: it may contain spaces and quotes.
    saves = text.endswith(f" {_SAVE}")
    text = text.removesuffix(f" {_SAVE}").strip()
    if not text:
        raise SlashError("which rule? Write tool or tool(specifier), as in bash(git status *)")
    rule = parse_rule(text, Effect(effect), RuleOrigin.SESSION)
    if not isinstance(rule, Rule):
        raise SlashError(str(rule))
    # The same path or script means something else in another project.
    workspace = await to_thread.run_sync(os.path.realpath, host.conversation.invocation.cwd)
    rule = replace(rule, workspace=workspace)
    if saves:
        await permissions.store_rule(rule)
    else:
        permissions.restore_rules([rule])
    host.screen.show(f"Added {'for this project' if saves else 'for this session'}: {effect} {rule}")


async def _remove_rule(host: SlashHost, permissions: Permissions, words: Sequence[str]) -> None:
    rules = permissions.rules
    if len(words) != 1 or not words[0].isdecimal() or not 1 <= int(words[0]) <= len(rules):
        count = f"a number from 1 to {len(rules)}" if rules else "no number: there are no rules"
        raise SlashError(f"/permissions remove takes {count}")
    rule = rules[int(words[0]) - 1]
    if rule.origin is RuleOrigin.PROJECT:
        raise SlashError(f"rule {words[0]} is the project's: it is changed in {rule.file}")
    if rule.origin is RuleOrigin.FLAG:
        raise SlashError(f"rule {words[0]} is from the command line: start without it")
    if not await permissions.remove_rule(rule):
        raise SlashError(f"rule {words[0]} stands for rows that cannot be read: correct {rule.file}")
    host.screen.show(f"{rule.effect.value} {rule}: removed")


TOOLS = SlashCommand(
    name="tools", usage="[WORD]", describe="tools that the model is shown, and disabled ones", run=_show_tools
)
PERMISSIONS = SlashCommand(
    name="permissions",
    usage="[add EFFECT RULE | remove N | mode NAME]",
    describe="rules about calls, and the mode",
    actions=_ACTIONS,
    run=_change_permissions,
)


async def _change_addons(host: SlashHost, rest: str) -> None:
    action, *labels = split_words(rest) or [""]
    if action == "trust":
        await _trust_parts(host, labels)
    elif action:
        raise SlashError("write /addons, or /addons trust NAME")
    else:
        await _show_addons(host)


async def _trust_parts(host: SlashHost, labels: Sequence[str]) -> None:
    """Ask about addons, skills and hooks of the project, and use those with a yes from now on."""
    invocation, notes = host.conversation.invocation, list[Note]()
    parts = await to_thread.run_sync(list_project_parts, invocation.cwd, notes)
    unknown = [label for label in labels if label not in {part.label for part in parts}]
    if unknown:
        raise SlashError(f"this project has no addon, skill or hooks {unknown[0]!r}: /addons lists them")
    used: list[str] = []
    for part in parts:
        if part.consent == "trusted" or (labels and part.label not in labels):
            continue
        question = part.describe()
        lines = (*part.text.expandtabs(4).split("\n"), *question.details)
        if await confirm(host, f"Trust {part.label} and use it in this project?", lines):
            await to_thread.run_sync(AddonConsentStore().approve, part.file, question.digest)
            used.append(part.label)
    if not used:
        host.screen.show("nothing was changed")
    elif await confirm_end_of_jobs(host, "The session is opened again."):
        host.screen.show(f"in use from now on: {', '.join(used)}")
        host.reopen(replace(invocation, resume=host.conversation.transcript.id, fork=False, continue_last=False))


async def _show_addons(host: SlashHost) -> None:
    conversation = host.conversation
    addons, invocation = conversation.session.addons, conversation.invocation
    rows: list[tuple[str, ...]] = []
    for loaded in addons.loaded:
        if loaded.name == "indus:skills":
            continue  # they have rows below
        cards, hooks = len(loaded.addon.cards), len(loaded.addon.interceptors)
        parts = f"{format_count(cards, 'card')}, {format_count(hooks, 'interceptor')}"
        state = "skipped since it failed" if loaded.name in addons.skipped else "loaded"
        rows.append((loaded.name, loaded.source, f"{state}, required" if loaded.required else state, parts))
    known = {loaded.name for loaded in addons.loaded}
    if not invocation.no_addons and not invocation.no_tools:
        found = await to_thread.run_sync(discover_addons, invocation.cwd)
        for source in (*found.installed, *found.project):
            if source.name not in known:
                known.add(source.name)
                refusal = describe_refusal(source)
                # A trusted addon that isn't loaded was added later, or failed to load, which a note below reports.
                state = "loads with the next session" if refusal is None else refusal.message
                rows.append((source.name, source.source, state, "-"))
    rows += [
        (name, "-", f"required and missing: {why}", "-") for name, why in addons.missing.items() if name not in known
    ]
    rows += [
        (part.label, part.file, "used" if part.consent == "trusted" else "waits for consent", "-")
        for part in conversation.skills.found.values()
    ]
    if rows:
        host.print_table(("NAME", "SOURCE", "STATE", "ADDS"), rows)
    elif invocation.no_addons:
        host.screen.show("no addons: --no-addons is given")
    else:
        host.screen.show("there are no addons: docs/guides/addons.md shows how one is written")
    for note in (*addons.notes, *conversation.skills.notes, *conversation.hooks.notes):
        host.screen.show(name_slash_commands(str(note)))


ADDONS = SlashCommand(
    name="addons",
    usage="[trust NAME]",
    describe="addons, skills and hooks: list, trust those of the project",
    actions={"trust": "[NAME]: look at addons, skills and hooks of the project, and use them"},
    run=_change_addons,
)
