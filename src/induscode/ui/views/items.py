"""Tools, resources and prompts: lists with a search, definitions, and a form to try each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from anyio import to_thread

from indusagi.core.faults import CoreError
from indusagi.core.json import is_json_object
from indusagi.runtime.contract import TextContentBlock
from induscode.calls.record import find_tool_ref
from induscode.deck.contract import describe
from induscode.deck.mcp.content import find_text
from induscode.search.options import estimate_definition
from induscode.ui.contract import PageError, PageView
from induscode.ui.forms import build_fields, read_arguments
from induscode.ui.html import Html, table, tag
from induscode.ui.parts import address, build_form, build_search, link, live, show_json, show_nothing, show_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ToolOutcome
    from induscode.deck.contract import Capability
    from induscode.deck.mcp.capability import BridgeCapability
    from induscode.ui.contract import CallReply, PageRequest

_MOST = 200
"""Rows of one list; the search finds the others."""
_ABOUT = 180
_PICTURES = {"image/png", "image/jpeg", "image/gif", "image/webp"}


def _matches(words: Sequence[str], *texts: str) -> bool:
    whole = " ".join(texts).casefold()
    return all(word in whole for word in words)


async def show_tools(page: PageRequest) -> PageView:
    """List the tools of all servers or of one; with a query those that fit it, the best first."""
    query, server = page.get("q").strip(), page.get("server")
    if query:
        cards = await to_thread.run_sync(page.source.find_tools, query, server)
    else:
        cards = [card for card in page.source.deck().tools() if not server or _find_source(card) == server]
    rows = [
        (
            link(card.name, "/tool", name=card.name),
            "native" if find_tool_ref(card) is None else link(_find_source(card), "/server", name=_find_source(card)),
            f"{estimate_definition(describe(card)):,}",
            _shorten(card.description),
        )
        for card in cards[:_MOST]
    ]
    count = f"{len(cards):,} tools"
    shown = count if len(cards) <= _MOST else f"the first {_MOST} of {count}: search for the others"
    heads = ("Tool", "Source", "Tokens", "Description")
    content = tag(
        "div",
        build_search("/tools", "What should the tool do?", query, server=server),
        live("items", "tools", tag("p", shown), table(heads, rows, caption="Tools", numbers=(2,))),
    )
    return PageView("Tools", content, "tools")


def _find_source(card: Capability) -> str:
    ref = find_tool_ref(card)
    return "native" if ref is None else ref.server


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _ABOUT else f"{line[: _ABOUT - 1]}…"


def _find_card(page: PageRequest, name: str) -> Capability:
    card = next((card for card in page.source.deck().tools() if card.name == name), None)
    if card is not None:
        return card
    disabled = page.source.session.mcp.enrolment.find_disabled(name)
    if disabled is not None:
        raise PageError(f"{name} is {disabled.reason}. Look at the change under “Drift”.")
    raise PageError(f"There is no tool {name!r}")


async def show_tool(page: PageRequest) -> PageView:
    """Show a tool with a form; with a sent form, call it."""
    name = page.get("name")
    card = _find_card(page, name)
    descriptor, ref = describe(card), find_tool_ref(card)
    parameters = cast("JsonObject", dict(descriptor.parameters))
    reply = await _call(page, name, parameters) if page.form else None
    pin = getattr(card, "pin", None)
    facts = tag(
        "dl",
        tag("dt", "Source"),
        tag("dd", "native") if ref is None
        else tag("dd", link(ref.server, "/server", name=ref.server), f", its own name: {ref.name}"),
        tag("dt", "Cost"), tag("dd", f"about {estimate_definition(descriptor):,} tokens"),
        tag("dt", "Changes something"), tag("dd", "no" if card.read_only else "it may"),
        [tag("dt", "Pin"), tag("dd", tag("code", str(pin)))] if pin else None,
    )  # fmt: skip
    form = show_nothing("You may look, and not call.")
    if page.user.can_act:
        form = build_form(page.user, "/tool", build_fields(parameters, page.form), button="Run", name=name)
    content = tag(
        "div",
        facts,
        show_text(descriptor.description),
        tag("h2", "Try it"),
        form,
        reply,
        tag("h2", "Arguments"),
        tag("details", tag("summary", "The schema, as a model gets it"), show_json(parameters)),
    )
    return PageView(name, content, "tools")


async def _call(page: PageRequest, name: str, parameters: JsonObject) -> Html:
    try:
        arguments = read_arguments(parameters, page.form)
    except ValueError as exc:
        return tag("article", tag("p", str(exc)), cls="fault", role="alert")
    reply = await page.source.call(name, arguments, page.get("answer"))
    if reply.question is not None:
        return _build_question(page, name, reply)
    assert reply.outcome is not None
    return show_outcome(reply.outcome)


def _build_question(page: PageRequest, name: str, reply: CallReply) -> Html:
    question = reply.question
    assert question is not None
    hidden = {key: value for key, value in page.form.items() if key not in {"form_key", "answer", "name"}}
    return tag(
        "article",
        tag("h2", question.title),
        show_text("\n".join(question.lines)),
        tag("ul", [tag("li", reason) for reason in question.reasons]),
        build_form(page.user, "/tool", button="Run it once", look="danger", name=name, answer=reply.key, **hidden),
        cls="fault",
        role="alert",
    )


def show_outcome(outcome: ToolOutcome) -> Html:
    """Show what a tool answered: its texts, pictures and structured content."""
    result = outcome.result
    blocks: list[Html] = []
    for block in result.content:
        if isinstance(block, TextContentBlock):
            blocks.append(show_text(block.text))
        else:
            blocks.append(_show_block(block.value))
    if result.structured is not None:
        blocks.append(tag("details", tag("summary", "Structured content"), show_json(result.structured)))
    heading = "The tool answered with an error" if result.is_error else "Result"
    return tag("article", tag("h2", heading), blocks, cls="fault" if result.is_error else "result", role="status")


def _show_block(value: JsonValue) -> Html:
    if is_json_object(value) and value.get("type") == "image" and value.get("mimeType") in _PICTURES:
        data = str(value.get("data", ""))
        # Letters of base64 only: the text becomes part of an address.
        if data.isascii() and all(letter.isalnum() or letter in "+/=" for letter in data):
            return tag("img", src=f"data:{value['mimeType']};base64,{data}", alt="the picture that the tool returned")
    return show_json(value)


# -- resources and prompts ----------------------------------------------------------------------


async def show_resources(page: PageRequest) -> PageView:
    """List the resources and templates of the servers; with a sent form, read one."""
    result = None
    if page.form:
        server, uri = page.get("server"), page.get("uri")
        try:
            read = await page.source.read_resource(server, uri)
            result = tag("article", tag("h2", uri), show_text(find_text(read)), cls="result", role="status")
        except CoreError as exc:
            result = tag("article", tag("p", str(exc)), cls="fault", role="alert")
    items = [
        *page.source.session.mcp.ledger.live_items("resource"),
        *page.source.session.mcp.ledger.live_items("template"),
    ]
    rows = [
        (
            link(item.ref.server, "/server", name=item.ref.server),
            item.ref.name,
            "" if item.ref.kind == "resource" else "template",
            _shorten(item.description),
            build_form(page.user, "/resources", button="Read", server=item.ref.server, uri=item.ref.name)
            if page.user.can_act and item.ref.kind == "resource" else "",
        )
        for item in _filter_items(page, items)
    ]  # fmt: skip
    content = tag(
        "div",
        result,
        build_search("/resources", "Words in address or description", page.query.get("q", "")),
        live("items", "resources",
             table(("Server", "Address", "Kind", "Description", "Actions"), rows[:_MOST], caption="Resources") if rows
             else show_nothing("The servers offer no resources.")),
    )  # fmt: skip
    return PageView("Resources", content, "resources")


def _filter_items(page: PageRequest, items: Sequence[BridgeCapability]) -> Sequence[BridgeCapability]:
    words = page.query.get("q", "").casefold().split()
    return [item for item in items if _matches(words, item.ref.server, item.ref.name, item.description)]


async def show_prompts(page: PageRequest) -> PageView:
    """List the prompts of the servers."""
    items = page.source.session.mcp.ledger.live_items("prompt")
    rows = [
        (
            link(item.ref.server, "/server", name=item.ref.server),
            tag("a", item.ref.name, href=address("/prompt", server=item.ref.server, name=item.ref.name)),
            _shorten(item.description),
        )
        for item in _filter_items(page, items)
    ]
    content = tag(
        "div",
        build_search("/prompts", "Words in name or description", page.query.get("q", "")),
        live("items", "prompts", table(("Server", "Prompt", "Description"), rows[:_MOST], caption="Prompts")
             if rows else show_nothing("The servers offer no prompts.")),
    )  # fmt: skip
    return PageView("Prompts", content, "prompts")


async def show_prompt(page: PageRequest) -> PageView:
    """Show a prompt with a form; with a sent form, its messages."""
    server, name = page.get("server"), page.get("name")
    items = page.source.session.mcp.ledger.live_items("prompt")
    item = next((one for one in items if (one.ref.server, one.ref.name) == (server, name)), None)
    if item is None:
        raise PageError(f"Server {server!r} offers no prompt {name!r}")
    declared = item.raw.get("arguments")
    rows = [one for one in declared if is_json_object(one)] if isinstance(declared, list) else []
    schema: JsonObject = {
        "properties": {str(one.get("name")): {"type": "string", "description": one.get("description")} for one in rows},
        "required": [str(one.get("name")) for one in rows if one.get("required") is True],
    }
    result = None
    if page.form:
        try:
            messages = await page.source.get_prompt(server, name, read_arguments(schema, page.form))
            result = tag("article", tag("h2", "Messages"), show_text(find_text(messages)), cls="result", role="status")
        except (CoreError, ValueError) as exc:
            result = tag("article", tag("p", str(exc)), cls="fault", role="alert")
    form = show_nothing("You may look, and not call.")
    if page.user.can_act:
        form = build_form(
            page.user, "/prompt", build_fields(schema, page.form), button="Get it", server=server, name=name
        )
    return PageView(name, tag("div", show_text(item.description), form, result), "prompts")
