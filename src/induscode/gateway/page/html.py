"""HTML that's escaped by construction, and the parts that several views share: links, forms, times, states, plots.

Text only becomes markup through `tag`. Every outside string (names, descriptions, results) is escaped where it's
inserted, with invisible characters made visible. Addresses in attributes stay on this site.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import urlencode

from click import ClickException

from indusagi.core.faults import CoreError
from indusagi.core.records import record
from indusagi.core.text import make_visible
from indusagi.core.time import iso_utc, now_ms
from induscode.cli.terminal import format_age, format_time

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue
    from induscode.core.consent import Consent
    from induscode.deck.mcp.review import Finding
    from induscode.gateway.page.access import PageRequest, PageUser

    Action: TypeAlias = Callable[[PageRequest], Awaitable["Node"]]

_VOID: Final = frozenset({"br", "hr", "img", "input", "link", "meta"})
_ADDRESSES: Final = frozenset({"action", "href", "src"})
_LOCAL: Final = ("/", "?", "#", "data:image/png;base64,", "data:image/jpeg;base64,", "data:image/gif;base64,",
                 "data:image/webp;base64,")  # fmt: skip
"""Prefixes of addresses that stay on this site; `//host` doesn't, and is rejected."""
# Like `html.escape`, whose module loads the names of 2,231 characters (0.4 MB) even if no browser visits the gateway.
_IN_TEXT: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_IN_ATTRIBUTES: Final = _IN_TEXT | str.maketrans({'"': "&quot;", "'": "&#x27;"})


class Html(str):
    """Markup. Only this module creates it."""

    __slots__ = ()


Node: TypeAlias = "str | int | float | Html | Iterable[Node] | None"
Attribute: TypeAlias = str | int | float | bool | None


def render(*nodes: Node) -> Html:
    """Join nodes to markup, escaping text and numbers, skipping `None` and flattening sequences."""
    parts: list[str] = []
    for node in nodes:
        if isinstance(node, Html):
            parts.append(node)
        elif isinstance(node, str):
            parts.append(make_visible(node)[0].translate(_IN_TEXT))
        elif isinstance(node, int | float):
            parts.append(str(node))
        elif node is not None:
            parts.append(render(*node))
    return Html("".join(parts))


def tag(name: str, /, *children: Node, **attributes: Attribute) -> Html:
    """Build an element; `ValueError` if an address leads to another site.

    `cls` is `class`, `for_` is `for`, other underscores are hyphens; `None` and False are omitted.
    """
    written = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = {"cls": "class", "for_": "for", "type_": "type"}.get(key, key.replace("_", "-"))
        if value is True:
            written.append(shown)
            continue
        text = str(value)
        if shown in _ADDRESSES and (not text.startswith(_LOCAL) or text.startswith(("//", "/\\"))):
            raise ValueError(f"{text[:40]!r} is not an address of this site")
        written.append(f'{shown}="{make_visible(text)[0].translate(_IN_ATTRIBUTES)}"')
    start = Html(f"<{' '.join(written)}>")
    return start if name in _VOID else Html(f"{start}{render(*children)}</{name}>")


def link_outside(text: str, url: str) -> Html:
    """Build a link to another site, hiding this one from it. Raises `ValueError` unless it's a web address."""
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{url[:40]!r} is not an address of the web")
    return Html(
        f'<a href="{url.translate(_IN_ATTRIBUTES)}" target="_blank" rel="noopener noreferrer">{render(text)}</a>'
    )


_ACTIONS: Final = tag("span", "Actions", cls="unseen")


def table(heads: Sequence[str], rows: Iterable[Sequence[Node]], *, caption: str, numbers: Iterable[int] = ()) -> Html:
    """Build a table with a caption for screen readers and right-aligned `numbers` columns.

    In a narrow window a row becomes a paragraph, so each cell carries its column's name. Roles are explicit because
    browsers drop the implicit ones where the style sheet changes `display`.
    """
    right = frozenset(numbers)
    kinds = ["number" if i in right else None for i in range(len(heads))]
    head = [
        tag("th", name or _ACTIONS, scope="col", role="columnheader", cls=kind)
        for name, kind in zip(heads, kinds, strict=True)
    ]
    body = [
        tag(
            "tr",
            [
                tag("td", cell, role="cell", data_label=name if cell != "" else None, cls=kind)
                for cell, name, kind in zip(row, heads, kinds, strict=True)
            ],
            role="row",
        )
        for row in rows
    ]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption, cls="unseen"),
            tag("thead", tag("tr", head, role="row"), role="rowgroup"),
            tag("tbody", body, role="rowgroup"),
            role="table",
        ),
        cls="wide",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


# -- parts of views ---------------------------------------------------------------------------------


PREFIX = "/ui"
Topic: TypeAlias = Literal["servers", "items", "calls", "cluster", "approvals", "log"]
"""A section's dependency; the section is refetched when it changes."""
_MAX_DESCRIPTION = 180


def link(text: Node, path: str, /, **query: str | int) -> Html:
    """Build a link to a view."""
    return tag("a", text, href=address(path, **query))


def address(path: str, /, **query: str | int) -> str:
    """Build the address of a view, omitting empty parameters."""
    given = {key: value for key, value in query.items() if value != ""}
    return f"{PREFIX}{path}" + (f"?{urlencode(given)}" if given else "")


def build_form(
    user: PageUser, target: str, /, *children: Node, button: str, look: str = "", busy: str | None = None, **hidden: str
) -> Html:
    """Build a form that changes something, with the user's form key, which the site requires.

    `target` is the address of the answering view; without the form, the same address shows the same view. The button
    says `busy` until the answer is there.
    """
    fields = [tag("input", type_="hidden", name=name, value=value) for name, value in hidden.items()]
    key = tag("input", type_="hidden", name="form_key", value=user.form_key)
    submit = tag("button", button, type_="submit", cls=look or None, data_busy=busy)
    return tag("form", key, fields, children, submit, method="post", action=target)


def build_consent(
    user: PageUser, target: str, consent: Consent, /, *children: Node, button: str, action: str, **hidden: str
) -> Html:
    """Build a question of consent: its facts in full, and a form that's bound to their digest."""
    hidden |= {"action": action, "digest": consent.digest}
    return tag(
        "article",
        tag("h2", consent.heading.replace(f" {os.path.expanduser('~')}/", " ~/")),
        show_text("\n".join(consent.details)),
        build_form(user, target, *children, button=button, look="main", **hidden),
        cls="warning",
    )


def build_filter(path: str, button: str, fields: Sequence[Html], /, **hidden: str) -> Html:
    """Build a form that filters a view; `fields` come from `build_field` and `build_choice`."""
    kept = [tag("input", type_="hidden", name=key, value=text) for key, text in hidden.items() if text]
    submit = tag("button", button, type_="submit")
    return tag("form", fields, kept, submit, method="get", action=address(path), cls="filter")


def build_field(name: str, label: str, value: str, hint: str = "", kind: str = "text") -> Html:
    """Build a text field with a label above it."""
    control = tag("input", id=f"by-{name}", name=name, value=value, type_=kind, placeholder=hint or None)
    return tag("span", tag("label", label, for_=f"by-{name}"), control)


def build_entry(
    name: str,
    label: str,
    hint: str = "",
    *,
    value: str = "",
    kind: str = "text",
    choices: Mapping[str, str] | None = None,
    rows: int = 0,
    required: bool = False,
) -> Html:
    """Build a field of a form that changes something: its label, a control, and a hint below."""
    about = f"about-{name}" if hint else None
    given: Mapping[str, Attribute] = {
        "id": f"entry-{name}",
        "name": name,
        "aria_describedby": about,
        "required": required,
    }
    if choices is not None:
        options = [tag("option", text, value=one, selected=one == value) for one, text in choices.items()]
        control = tag("select", options, **given)
    elif rows:
        control = tag("textarea", value, rows=rows, autocomplete="off", spellcheck="false", **given)
    else:
        control = tag("input", type_=kind, value=value or None, autocomplete="off", spellcheck="false", **given)
    shown = tag("small", hint, id=about) if hint else None
    return tag("div", tag("label", label, for_=f"entry-{name}"), control, shown, cls="field")


def build_mark(name: str, label: Node, *, marked: bool = True) -> Html:
    """Build a check mark with its label."""
    box = tag("input", type_="checkbox", name=name, value="1", checked=marked)
    return tag("label", box, tag("span", label), cls="mark-box")


def build_choice(name: str, label: str, choices: Mapping[str, str], chosen: str) -> Html:
    """Build a drop-down with a label above it."""
    options = [tag("option", text, value=value, selected=value == chosen) for value, text in choices.items()]
    return tag("span", tag("label", label, for_=f"by-{name}"), tag("select", options, id=f"by-{name}", name=name))


def show_facts(facts: Mapping[str, Node]) -> Html:
    """Show names and values, omitting `None` and empty text."""
    return tag(
        "dl",
        [(tag("dt", name), tag("dd", value)) for name, value in facts.items() if value is not None and value != ""],
    )


def build_search(path: str, label: str, value: str, /, **fields: str) -> Html:
    """Build a search form: a text field and hidden fields."""
    hidden = [tag("input", type_="hidden", name=key, value=text) for key, text in fields.items() if text]
    field = tag("input", type_="search", name="q", id="q", value=value, autocomplete="off")
    button = tag("button", "Search", type_="submit")
    return tag(
        "form", tag("label", label, for_="q"), field, hidden, button, method="get", action=address(path), role="search"
    )


def live(topics: Topic | Sequence[Topic], name: str, *children: Node) -> Html:
    """Build a section that the script refetches when one of its topics changes."""
    listed = topics if isinstance(topics, str) else " ".join(topics)
    return tag("section", children, id=f"live-{name}", data_topic=listed)


def shorten(text: str) -> str:
    """Shorten a description to one line that fits a table."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_DESCRIPTION else f"{line[: _MAX_DESCRIPTION - 1]}…"


def shorten_path(path: str) -> str:
    """Write a path below the home directory with `~`."""
    home = os.path.expanduser("~")
    return f"~{path[len(home) :]}" if home != "/" and f"{path}/".startswith(f"{home}/") else path


def show_state(state: str) -> Html:
    """Show a state's name in its colour."""
    return tag("span", state, cls=f"state state-{state.partition(' ')[0].rstrip(':')}")


def show_time(at_ms: int) -> Html:
    """Show the age of a time, with the time as tooltip; the script keeps the age current."""
    moment = iso_utc(at_ms)
    return tag("time", format_age(at_ms, now_ms()), datetime=moment, title=moment, cls="age")


def show_moment(at_ms: int) -> Html:
    """Show a time in this machine's zone, with UTC as tooltip."""
    return tag("time", format_time(at_ms, now_ms()), datetime=iso_utc(at_ms), title=f"{iso_utc(at_ms)[:19]}Z (UTC)")


def show_digest(digest: str) -> Html:
    """Show the start of a digest, with the full digest as tooltip."""
    return tag("code", digest[:12], title=digest)


def show_json(value: JsonValue) -> Html:
    """Show a JSON value, indented."""
    return tag("pre", json.dumps(value, indent=2, ensure_ascii=False), tabindex=0)


def show_text(text: str) -> Html:
    """Show program output verbatim."""
    return tag("pre", text, cls="text", tabindex=0)


def show_prose(text: str) -> Html:
    """Show prose with its line breaks."""
    return tag("div", text, cls="prose")


def show_diff(text: str) -> Html:
    """Show a unified diff with a class per kind of line."""
    kinds = {"+": "added", "-": "removed", "@": "place"}
    lines = [
        # The first two lines name the sides.
        tag("span", f"{line}\n", cls="place" if number < 2 else kinds.get(line[:1]))
        for number, line in enumerate(text.splitlines())
    ]
    return tag("pre", lines, cls="diff", tabindex=0)


def show_findings(findings: Iterable[Finding]) -> Html | None:
    """Show what the review found, one finding per line."""
    rows = [tag("li", tag("strong", one.severity), f": {one.place}: {one.message} [{one.check}]") for one in findings]
    return tag("ul", rows) if rows else None


def show_nothing(text: str) -> Html:
    """Say that a list is empty, and how to fill it."""
    return tag("p", text, cls="faint")


# -- plots ------------------------------------------------------------------------------------
#
# Drawings stretch to fit; labels are text next to them, so they keep their size. Colours come from the style sheet.


_WIDTH: Final = 600
_HEIGHT: Final = 100
_COLOURS: Final = 6
"""Classes `line-0` to `line-5` of the style sheet; further lines cycle through them."""
_OUTCOMES: Final = {"failed": "bad", "declined": "warn"}
"""Colours of the lines with these names."""


def draw_lines(
    title: str,
    series: Mapping[str, Sequence[float | None]],
    times: Sequence[str],
    show: Callable[[float], str] | None = None,
) -> Html:
    """Draw lines over a shared time axis. `None` leaves a gap; `times` names each point and the end.

    Each point's values, written by `show`, are a tooltip, which needs no script.
    """
    show = show or format_number
    top = max((value for values in series.values() for value in values if value is not None), default=0.0)
    shapes = [
        tag("line", x1=0, y1=y, x2=_WIDTH, y2=y, cls="axis") for y in (_scale(top, top), _HEIGHT / 2, _scale(0, top))
    ]
    colours = {name: _OUTCOMES.get(name, str(index % _COLOURS)) for index, name in enumerate(series)}
    for name, values in series.items():
        shapes += _draw(values, top, f"line-{colours[name]}")
    shapes += _describe_points(series, times, show)
    legend = [tag("span", tag("i", cls=f"swatch fill-{colours[name]}"), name) for name in series]
    return tag(
        "figure",
        tag("figcaption", tag("span", title), tag("span", legend, cls="legend")),
        tag(
            "div",
            tag("span", show(top) if top else "", cls="top"),
            tag("span", "0", cls="zero"),
            _frame(title, shapes, "plot"),
            tag("span", times[0], cls="from"),
            tag("span", times[-1], cls="until"),
            cls="axes",
        ),
    )


def _describe_points(
    series: Mapping[str, Sequence[float | None]], times: Sequence[str], show: Callable[[float], str]
) -> list[Html]:
    """Draw an invisible area around each point that has a value, with its values as tooltip."""
    areas: list[Html] = []
    wide = _WIDTH / max(1, len(times) - 2)
    for index, time in enumerate(times[:-1]):
        values = [(name, value) for name, points in series.items() if (value := points[index])]
        if values:
            text = ", ".join(f"{name} {show(value)}" for name, value in values)
            x = round((index - 0.5) * wide, 1)
            tip = tag("title", f"{time}: {text}")
            areas.append(tag("rect", tip, x=x, y=0, width=round(wide, 1), height=_HEIGHT, cls="area"))
    return areas


def draw_bars(values: Sequence[int], title: str, look: str = "spark") -> Html:
    """Draw a small bar per value on a base line; each shows its value on hover."""
    step, top = _WIDTH / max(1, len(values)), max(values, default=0)
    shapes = [tag("line", x1=0, y1=_HEIGHT, x2=_WIDTH, y2=_HEIGHT, cls="axis")]
    for index, value in enumerate(values):
        height = value / top * (_HEIGHT - 4) if top else 0
        if value:
            x, y = round(index * step, 1), round(_HEIGHT - height, 1)
            shown = tag("title", f"{value:,}")
            shapes.append(tag("rect", shown, x=x, y=y, width=round(step * 0.8, 1), height=round(height, 1), cls="fill"))
    return _frame(f"{title}: {sum(values):,} in all, {top:,} at most", shapes, look)


def draw_bar(title: str, start: float, length: float, end: float, kind: str) -> Html:
    """Draw a waterfall bar, with start and length on a scale up to `end`."""
    whole = end or 1.0
    wide = max(_WIDTH / 150, length / whole * _WIDTH)
    x = min(start / whole * _WIDTH, _WIDTH - wide)
    bar = tag("rect", x=round(x, 1), y=20, width=round(wide, 1), height=_HEIGHT - 40, cls=f"bar {kind}")
    return _frame(title, [bar], "track")


def _frame(title: str, shapes: Sequence[Html], cls: str) -> Html:
    view = f"0 0 {_WIDTH} {_HEIGHT}"
    return tag("svg", tag("title", title), shapes, viewBox=view, preserveAspectRatio="none", role="img", cls=cls)


def _draw(values: Sequence[float | None], top: float, cls: str) -> list[Html]:
    """Draw a line for each gapless run of values, and a dot for a single value."""
    step = _WIDTH / max(1, len(values) - 1)
    lines: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            lines[-1].append(f"{index * step:.1f},{_scale(value, top):.1f}")
    return [
        tag("polyline", points=" ".join(line), cls=cls)
        if len(line) > 1
        else tag("polyline", points=" ".join(line * 2), cls=f"{cls} dot")
        for line in lines
        if line
    ]


def _scale(value: float, top: float) -> float:
    return _HEIGHT - 2 - (value / top * (_HEIGHT - 4) if top else 0.0)


def format_number(value: float) -> str:
    """Format a number compactly: 12,300 is `12.3k`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


# -- views ------------------------------------------------------------------------------------


@record
class PageView:
    """A view: title, content and navigation entry."""

    title: str
    content: Html
    section: str
    status: int = 200
    target: str = ""
    """Where the browser goes instead, after a form that needs no answer of its own."""


class PageError(Exception):
    """A view that can't be shown; the message is for the user."""

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(message)
        self.status = status


async def run_action(page: PageRequest, actions: Mapping[str, Action]) -> Html | None:
    """Run the action of the submitted form, if any, and say what it did or why it failed.

    An action is bound to what was shown: the form has its digest, and `Consent.check_digest` refuses another one.
    """
    if not page.form:
        return None
    act = actions.get(page.form.get("action", ""))
    if act is None:
        raise PageError(f"There is no action {page.form.get('action', '')!r}", 400)
    try:
        return tag("p", await act(page), role="status", cls="said")
    except (CoreError, OSError, ClickException) as exc:
        text = exc.format_message() if isinstance(exc, ClickException) else str(exc)
        return tag("p", text, role="alert", cls="said")
