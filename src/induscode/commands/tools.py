"""`indus tools`: which tools there are, where they come from, and what they cost a model.

Tools of servers are read from the ledger. A server that was never seen is
started once, to be asked.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

import click

from induscode.commands.support.groups import CommandGroup, Lazy, build_unknown_name
from induscode.commands.support.names import complete_tool
from induscode.commands.support.output import as_json, print_notes, print_table, write_json
from induscode.commands.support.runner import run_until_signal
from induscode.console import stdout_console
from induscode.launch.options import flags, name_profile, read_invocation
from induscode.terminal import print_line, print_status, print_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from induscode.commands.support.catalog import ListedTool, Listing

_NOTHING_FOUND = 1
_LONGEST_ABOUT = 160
_HERE = "induscode.commands.tools"

no_check = click.option("--no-check", is_flag=True, help="Start no server, not even one that was never seen.")
_deck = flags("--tools", "--no-tools", "--mcp", "--no-mcp", "--cwd")


@click.command(
    cls=CommandGroup,
    commands={
        "list": Lazy("list the tools, what each costs, and what each server costs", _HERE, "list_"),
        "show": Lazy("show everything that a model is told about a tool", _HERE, "show"),
        "search": Lazy("find tools by words in what is said of them", _HERE, "search"),
    },
    default="list",
)
def command() -> None:
    """List, show and search the tools of the deck."""


def _listing(context: click.Context, *, no_check: bool) -> Listing:
    from induscode.commands.support.catalog import list_tools  # noqa: PLC0415 — brings the deck

    invocation = read_invocation(context)
    found: list[Listing] = []

    async def look(_: CancelToken) -> int:
        found.append(await list_tools(invocation, check=not no_check))
        return 0

    code = run_until_signal(look)
    if not found:
        raise click.exceptions.Exit(code)
    return found[0]


@_deck
@click.command("list")
@as_json
@no_check
@click.pass_context
def list_(context: click.Context, *, as_json: bool, no_check: bool, **_: object) -> int:
    """List the tools, what each costs, and what each server costs.

    The cost is what a model is told about the tool, in tokens of four bytes.
    """
    listing = _listing(context, no_check=no_check)
    print_notes(listing.news)
    if as_json:
        write_json(_as_json(listing.tools, listing))
        return 0
    _show_tools(listing.tools)
    print_line("")
    costs = _costs(listing)
    rows = [(cost["name"], cost["state"], cost["tools"], cost["tokens"]) for cost in costs]
    total = ("all", "", len(listing.tools), sum(one.tokens for one in listing.tools))
    print_table(("SOURCE", "STATE", "TOOLS", "TOKENS"), [*rows, total])
    if listing.disabled:
        print_line("")
        off = [(one.name, one.ref.server, one.grade, one.approve_command) for one in listing.disabled]
        print_table(("DISABLED", "SOURCE", "CHANGE", "APPROVE IT WITH"), off)
    return 0


def _show_tools(tools: Sequence[ListedTool]) -> None:
    heads = ("NAME", "SOURCE", "PROFILE", "TOKENS")
    rows = [(one.name, one.source, name_profile(one.profiles) or "-", one.tokens) for one in tools]
    if stdout_console() is None:
        print_table(heads, rows)
        return
    about = [_describe(one) for one in tools]
    described = [(*row, text) for row, text in zip(rows, about, strict=True)]
    print_table((*heads, "DESCRIPTION"), described)


def _describe(tool: ListedTool) -> str:
    """Give the first sentence of a description, or why models are not shown the tool."""
    if tool.missing is not None:
        return f"(not shown to models: {tool.missing})"
    line = " ".join(tool.descriptor.description.split())
    return line.partition(". ")[0][:_LONGEST_ABOUT]


def _costs(listing: Listing) -> list[JsonObject]:
    """Give a row for the native tools, and one for every server, with or without tools."""
    states = {"native": "built in", **listing.states}
    costs: dict[str, JsonObject] = {
        source: {"name": source, "state": state, "tools": 0, "tokens": 0} for source, state in states.items()
    }
    for one in listing.tools:
        cost = costs[one.source]
        cost["tools"] = cast("int", cost["tools"]) + 1
        cost["tokens"] = cast("int", cost["tokens"]) + one.tokens
    return list(costs.values())


def _as_json(tools: Sequence[ListedTool], listing: Listing) -> JsonObject:
    return {
        "tools": [one.as_json() for one in tools],
        "sources": [*_costs(listing)],
        "total": {"tools": len(tools), "tokens": sum(one.tokens for one in tools)},
        "notes": [str(note) for note in listing.notes],
        "disabled": [one.as_json() for one in listing.disabled],
    }


@_deck
@click.command("show")
@click.argument("name", shell_complete=complete_tool)
@as_json
@no_check
@click.pass_context
def show(context: click.Context, name: str, *, as_json: bool, no_check: bool, **_: object) -> int:
    """Show everything that a model is told about the tool NAME."""
    from induscode.boot.runners import canon_tool_name  # noqa: PLC0415 — brings the deck

    listing = _listing(context, no_check=no_check)
    wanted = canon_tool_name(name)
    found = [one for one in listing.tools if one.name == name]
    found = found or [one for one in listing.tools if canon_tool_name(one.name) == wanted]
    if not found:
        off = next((one for one in listing.disabled if name in {one.name, one.ref.name}), None)
        if off is not None:
            raise click.UsageError(f"{off.name} is {off.reason}; {off.remedy}", context)
        print_notes(listing.news)
        names = [one.name for one in listing.tools]
        raise build_unknown_name(f"There is no tool {name!r}", name, names, context)
    one = found[0]
    said = one.descriptor
    facts: JsonObject = {
        **one.as_json(),
        "description": said.description,
        "parameters": cast("JsonObject", dict(said.parameters)),
        "annotations": dict(said.annotations or {}),
        "outputSchema": cast("JsonObject | None", said.output_schema and dict(said.output_schema)),
    }
    if as_json:
        write_json(facts)
        return 0
    print_line(f"{one.name} ({said.title or one.name})")
    print_line(f"source: {one.source}, profile: {name_profile(one.profiles) or 'none'}")
    print_line(f"read-only: {'yes' if one.read_only else 'no'}, tokens: {one.tokens}")
    print_text(f"\n{said.description}\n")
    print_text(json.dumps(facts["parameters"], indent=2))
    return 0


@_deck
@click.command("search")
@click.argument("words", nargs=-1, required=True)
@as_json
@no_check
@click.pass_context
def search(context: click.Context, words: tuple[str, ...], *, as_json: bool, no_check: bool, **_: object) -> int:
    """Find the tools in whose name, title or description all the WORDS stand.

    The exit code is 1 if there are none.
    """
    listing = _listing(context, no_check=no_check)
    ranked = [(rank, one) for one in listing.tools if (rank := _rank(one, words))]
    found = [one for _, one in sorted(ranked, key=lambda pair: -pair[0])]
    print_notes(listing.news)
    if as_json:
        write_json({"tools": [one.as_json() for one in found]})
    elif found:
        _show_tools(found)
    else:
        print_status(f"no tool has all of these in what is said of it: {' '.join(words)}")
    return 0 if found else _NOTHING_FOUND


def _rank(one: ListedTool, words: Sequence[str]) -> int:
    """Tell how well a tool fits: a word in its name weighs most; 0 if a word is nowhere."""
    said = one.descriptor
    places = ((one.name, 4), (said.title or "", 2), (said.description, 1))
    rank = 0
    for word in words:
        weight = sum(weight for text, weight in places if word.casefold() in text.casefold())
        if not weight:
            return 0
        rank += weight
    return rank
