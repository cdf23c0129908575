"""Tools, resources and prompts: searchable lists, definitions, and a form to try each one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from anyio import to_thread

from indusagi.core.faults import CoreError
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.text import format_count
from indusagi.runtime.contract import TextContentBlock, ToolOutcome
from induscode.calls.record import find_tool_ref
from induscode.deck.contract import Capability, describe
from induscode.deck.mcp.content import find_text
from induscode.gateway.page.html import (
    Html,
    PageError,
    PageView,
    address,
    build_form,
    build_search,
    link,
    live,
    render,
    shorten,
    show_digest,
    show_facts,
    show_findings,
    show_json,
    show_nothing,
    show_prose,
    show_text,
    table,
    tag,
)
from induscode.search.options import estimate_definition

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.contract import ItemKind
    from induscode.deck.mcp.capability import BridgeCapability
    from induscode.gateway.page.access import PageRequest
    from induscode.gateway.page.source import CallReply

_MAX_ROWS = 200
"""Rows per list; the search finds the rest."""
_MAX_OF_SERVER = 25
"""Tools of a server among those of all."""
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_ANSWER = "answer"
"""Anchor of a form's answer, which the browser scrolls to."""


def _answer_at(path: str, /, **query: str) -> str:
    return f"{address(path, **query)}#{_ANSWER}"


async def show_tools(page: PageRequest) -> PageView:
    """List the tools by server, or those of one; with a query, the matches, best first."""
    query, server = page.get("q").strip(), page.get("server")
    if query:
        cards = await to_thread.run_sync(page.source.find_tools, query, server)
    else:
        cards = [card for card in page.source.deck().shown() if not server or _find_source(card) == server]
    groups: dict[str, list[Capability]] = {}
    for card in cards:
        groups.setdefault("" if query else _find_source(card), []).append(card)
    limit = len(cards) if page.get("all") == "1" else _MAX_ROWS if query or server else _MAX_OF_SERVER
    counted = f"{_count(cards)}{f' of {server}' if server else ''}" + (f" for {query!r}, best first" if query else "")
    content = tag(
        "div",
        build_search("/tools", "What should the tool do?", query, server=server),
        live(
            "items", "tools",
            tag("p", counted, ". ", link("Tools of all servers", "/tools", q=query) if server else None),
            [_show_group(source, group, limit, query, server) for source, group in groups.items()]
            or show_nothing("No tool fits: try other words.")),
    )  # fmt: skip
    return PageView("Tools", content, "tools")


def _count(cards: Sequence[Capability]) -> str:
    tokens = sum(estimate_definition(describe(card)) for card in cards)
    return f"{format_count(len(cards), 'tool')}, about {tokens:,} tokens"


def _show_group(source: str, cards: Sequence[Capability], limit: int, query: str, server: str) -> Html:
    """Show the tools of a source with their total, or the results of a search (without `source`)."""
    rows = [
        (
            link(card.name, "/tool", name=card.name),
            *(() if source else (_link_source(_find_source(card)),)),
            f"{estimate_definition(describe(card)):,}",
            shorten(card.description),
        )
        for card in cards[:limit]
    ]
    heads = ("Tool", "Tokens", "Description") if source else ("Tool", "Source", "Tokens", "Description")
    more = None
    if len(rows) < len(cards):
        whole = {"q": query, "server": server, "all": 1} if query or server else {"server": source}
        more = tag("p", f"The first {len(rows)}. ", link(f"All {len(cards):,} tools", "/tools", **whole))
    title = tag("h2", _link_source(source), tag("small", f" {_count(cards)}", cls="faint")) if source else None
    return render(title, table(heads, rows, caption=f"Tools {source}".strip(), numbers=(1 if source else 2,)), more)


def _link_source(source: str) -> Html | str:
    return source if source == "native" else link(source, "/server", name=source)


def _find_source(card: Capability) -> str:
    ref = find_tool_ref(card)
    return "native" if ref is None else ref.server


def _find_card(page: PageRequest, name: str) -> Capability:
    card = next((card for card in page.source.deck().tools() if card.name == name), None)
    if card is not None:
        return card
    disabled = page.source.session.mcp.enrolment.find_disabled(name)
    if disabled is not None:
        raise PageError(f"{name} is {disabled.reason}. Look at the change under “Changes”.")
    raise PageError(f"There is no tool {name!r}")


async def show_tool(page: PageRequest) -> PageView:
    """Show a tool and its form; call it if the form was submitted."""
    name = page.get("name")
    card = _find_card(page, name)
    descriptor, ref = describe(card), find_tool_ref(card)
    parameters = cast("JsonObject", dict(descriptor.parameters))
    reply = await _call(page, name, parameters) if page.form else None
    pin = getattr(card, "pin", None)
    facts = show_facts({
        "Source": "native" if ref is None
        else [link(ref.server, "/server", name=ref.server), f", its own name: {ref.name}"],
        "Cost": f"about {estimate_definition(descriptor):,} tokens",
        "Changes something": "no" if card.read_only else "it may",
        "Pin": tag("code", str(pin)) if pin else None,
    })  # fmt: skip
    form = show_nothing("You may look, and not call.")
    if page.user.rights.can_try:
        fields = build_fields(parameters, page.form)
        form = build_form(page.user, _answer_at("/tool", name=name), fields, button="Run", look="main")
    findings = () if ref is None else page.source.session.mcp.enrolment.list_findings(ref.server)
    content = tag(
        "div",
        facts,
        show_prose(descriptor.description),
        show_findings(one for one in findings if one.ref == ref),
        tag("details", tag("summary", "Schema of the arguments, as a model gets it"), show_json(parameters)),
        tag("h2", "Try it"),
        form,
        reply,
    )
    return PageView(name, content, "tools")


async def _call(page: PageRequest, name: str, parameters: JsonObject) -> Html:
    try:
        arguments = read_arguments(parameters, page.form)
    except ValueError as exc:
        return _show_problem(exc)
    reply = await page.source.call(name, arguments, page.get("answer"))
    if reply.question is not None:
        return _build_question(page, name, reply)
    assert reply.outcome is not None
    return show_outcome(reply.outcome)


def _build_question(page: PageRequest, name: str, reply: CallReply) -> Html:
    question = reply.question
    assert question is not None
    hidden = {key: value for key, value in page.form.items() if key not in {"form_key", "answer", "name"}}
    target = _answer_at("/tool", name=name)
    return tag(
        "article",
        tag("h2", question.title),
        show_text("\n".join(question.lines)),
        tag("ul", [tag("li", reason) for reason in question.reasons]),
        build_form(page.user, target, button="Run it once", look="danger", answer=reply.key, **hidden),
        id=_ANSWER,
        cls="warning",
        role="alert",
    )


def show_outcome(outcome: ToolOutcome) -> Html:
    """Show a tool result: its text, images and structured content."""
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
    look = "fault" if result.is_error else "result"
    return tag("article", tag("h2", heading), blocks, id=_ANSWER, cls=look, role="status")


def _show_block(value: JsonValue) -> Html:
    if is_json_object(value) and value.get("type") == "image" and value.get("mimeType") in _PICTURES:
        data = str(value.get("data", ""))
        # Only base64 characters: the text becomes part of a URL.
        if data.isascii() and all(letter.isalnum() or letter in "+/=" for letter in data):
            return tag("img", src=f"data:{value['mimeType']};base64,{data}", alt="the picture that the tool returned")
    return show_json(value)


# -- resources and prompts ----------------------------------------------------------------------


async def show_resources(page: PageRequest) -> PageView:
    """List the servers' resources and templates; read one if its form was submitted."""
    result = None
    if page.form:
        server, uri = page.get("server"), page.get("uri").strip()
        try:
            result = _show_result(uri, find_text(await page.source.read_resource(server, uri)))
        except CoreError as exc:
            result = _show_problem(exc)
    found = await _find_items(page, "resource", "template")
    rows = [
        (
            item.ref.name,
            link(item.ref.server, "/server", name=item.ref.server),
            "" if item.ref.kind == "resource" else "template",
            shorten(item.description),
            show_digest(item.pin),
            _build_read_form(page, item) if page.user.rights.can_try else "",
        )
        for item in found[:_MAX_ROWS]
    ]
    heads = ("Address", "Server", "Kind", "Description", "Pin", "Actions")
    listed = _build_list(page, "resource", "What should it be about?", heads, rows, len(found))
    return PageView("Resources", tag("div", result, listed), "resources")


def _build_read_form(page: PageRequest, item: BridgeCapability) -> Html:
    """Build the button that reads a resource, with an address field for a template."""
    target, server, uri = _answer_at("/resources", q=page.query.get("q", "")), item.ref.server, item.ref.name
    if item.ref.kind == "resource":
        return build_form(page.user, target, button="Read", server=server, uri=uri)
    field = tag("input", name="uri", value=uri, aria_label=f"Address, filled in from {uri}", autocomplete="off")
    return build_form(page.user, target, field, " ", button="Read", server=server)


def _show_result(title: str, text: str) -> Html:
    return tag("article", tag("h2", title), show_text(text), id=_ANSWER, cls="result", role="status")


def _show_problem(problem: Exception) -> Html:
    return tag("article", tag("p", str(problem)), id=_ANSWER, cls="fault", role="alert")


def _build_list(
    page: PageRequest, noun: str, label: str, heads: Sequence[str], rows: Sequence[Sequence[Html | str]], count: int
) -> Sequence[Html]:
    """Build a search form and the table of its results, with a remark if `count` exceeds the rows."""
    query, plural = page.query.get("q", ""), f"{noun}s"
    nothing = f"No {noun} fits: try other words." if query else f"The servers offer no {plural}."
    listed = table(heads, rows, caption=plural.capitalize()) if rows else show_nothing(nothing)
    cut = f"{format_count(count, noun)}: the first {len(rows)}. Search for the others." if count > len(rows) else ""
    section = live("items", plural, tag("p", cut) if cut else None, listed)
    return build_search(f"/{plural}", label, query), section


async def _find_items(page: PageRequest, *kinds: ItemKind) -> Sequence[BridgeCapability]:
    """List the servers' items; with a query, the matches, best first."""
    query, ledger = page.query.get("q", "").strip(), page.source.session.mcp.ledger
    if query:
        return await to_thread.run_sync(page.source.find_items, query, kinds)
    return [item for kind in kinds for item in ledger.live_items(kind)]


async def show_prompts(page: PageRequest) -> PageView:
    """List the prompts of the servers."""
    found = await _find_items(page, "prompt")
    rows = [
        (
            tag("a", item.ref.name, href=address("/prompt", server=item.ref.server, name=item.ref.name)),
            link(item.ref.server, "/server", name=item.ref.server),
            shorten(item.description),
            show_digest(item.pin),
        )
        for item in found[:_MAX_ROWS]
    ]
    heads = ("Prompt", "Server", "Description", "Pin")
    listed = _build_list(page, "prompt", "What should it be for?", heads, rows, len(found))
    return PageView("Prompts", tag("div", listed), "prompts")


async def show_prompt(page: PageRequest) -> PageView:
    """Show a prompt and its form; show its messages if the form was submitted."""
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
            result = _show_result("Messages", find_text(messages))
        except (CoreError, ValueError) as exc:
            result = _show_problem(exc)
    form = show_nothing("You may look, and not call.")
    if page.user.rights.can_try:
        fields, target = build_fields(schema, page.form), _answer_at("/prompt", server=server, name=name)
        form = build_form(page.user, target, fields, button="Get it", look="main")
    facts = show_facts({"Server": link(server, "/server", name=server), "Pin": tag("code", item.pin)})
    return PageView(name, tag("div", facts, show_prose(item.description), form, result), "prompts")


# -- forms ------------------------------------------------------------------------------------
#
# Strings, numbers, booleans, enums and lists of strings get their own kind of field; any other schema is a text area
# for JSON. Empty optional fields are omitted from the arguments.


_PREFIX: Final = "arg."
_UNSET: Final = "(not given)"
_LONG: Final = ("content", "text", "body", "code", "query", "prompt", "message", "command", "oldText", "newText")
"""Properties whose text tends to exceed one line."""


def build_fields(schema: Mapping[str, JsonValue], values: Mapping[str, str]) -> list[Html]:
    """Build the fields of a schema, filled with the values of a submitted form."""
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else []
    rows: list[Html] = []
    for name, part in properties.items() if is_json_object(properties) else ():
        part = part if is_json_object(part) else {}
        field, label = _PREFIX + name, f"{name}{' *' if name in needed else ''}"
        about = part.get("description")
        hint = tag("small", about, id=f"about.{field}") if isinstance(about, str) and about else None
        control = _build_control(
            field, name, part, values.get(field), required=name in needed, described=hint is not None
        )
        rows.append(tag("div", tag("label", label, for_=field), control, hint, cls="field"))
    return rows


def _build_control(
    field: str, name: str, part: JsonObject, value: str | None, *, required: bool, described: bool
) -> Html:
    about = f"about.{field}" if described else None
    default = part.get("default")
    shown = value if value is not None else "" if default is None else _to_text(default, part)
    choices = [True, False] if part.get("type") == "boolean" else part.get("enum")
    if isinstance(choices, list):
        texts = [_to_text(choice, part) for choice in choices]
        options = [*([] if required else [""]), *texts]
        marked = [tag("option", text or _UNSET, value=text, selected=text == shown) for text in dict.fromkeys(options)]
        return tag("select", marked, id=field, name=field, aria_describedby=about)
    kind = part.get("type")
    if kind in ("integer", "number"):
        step = "1" if kind == "integer" else "any"
        return tag("input", id=field, name=field, type_="number", step=step, value=shown, required=required,
                   aria_describedby=about)  # fmt: skip
    if kind == "string" and name not in _LONG:
        return tag("input", id=field, name=field, value=shown, aria_describedby=about, autocomplete="off")
    rows = 3 if kind == "string" or _is_list_of_texts(part) else 4
    place = None if kind == "string" else "one per line" if _is_list_of_texts(part) else "JSON"
    return tag("textarea", shown, id=field, name=field, rows=rows, placeholder=place, aria_describedby=about)


def read_arguments(schema: Mapping[str, JsonValue], form: Mapping[str, str]) -> JsonObject:
    """Read the arguments of a submitted form; `ValueError` names a field that doesn't parse."""
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else []
    arguments: JsonObject = {}
    for name, part in properties.items() if is_json_object(properties) else ():
        text = form.get(_PREFIX + name, "")
        part = part if is_json_object(part) else {}
        if text or (name in needed and part.get("type") == "string"):
            arguments[name] = _parse(name, text.replace("\r\n", "\n"), part)
    return arguments


def _parse(name: str, text: str, part: JsonObject) -> JsonValue:
    choices = part.get("enum")
    if isinstance(choices, list):
        for choice in choices:
            if _to_text(choice, part) == text:
                return choice
    if part.get("type") == "string":
        return text
    if _is_list_of_texts(part) and not text.lstrip().startswith("["):
        return [line for line in text.split("\n") if line]
    try:
        return cast("JsonValue", json.loads(text))
    except (ValueError, RecursionError) as exc:
        if "type" not in part:  # any value is valid, including unquoted text
            return text
        raise ValueError(f"{name} is not valid JSON: {exc}") from None


def _is_list_of_texts(part: JsonObject) -> bool:
    items = part.get("items")
    return part.get("type") == "array" and is_json_object(items) and items.get("type") == "string"


def _to_text(value: JsonValue, part: JsonObject) -> str:
    if isinstance(value, str) and part.get("type", "string") == "string":
        return value
    if isinstance(value, list) and _is_list_of_texts(part):
        return "\n".join(map(str, cast("Sequence[object]", value)))
    return json.dumps(value, ensure_ascii=False)
