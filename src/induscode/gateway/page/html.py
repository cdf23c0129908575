"""HTML that's escaped by construction: text only becomes markup through `tag`.

Every outside string (names, descriptions, results) is escaped where it's inserted, with invisible characters made
visible. Addresses in attributes stay on this site.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from indusagi.core.text import make_visible

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """Build an element. `cls` is `class`, `for_` is `for`, other underscores are hyphens; `None` and False are omitted.

    Raises:
        ValueError: An address leads to another site.
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


def table(heads: Sequence[str], rows: Iterable[Sequence[Node]], *, caption: str, numbers: Iterable[int] = ()) -> Html:
    """Build a table with a caption for screen readers and right-aligned `numbers` columns.

    In a narrow window a row becomes a paragraph, so each cell carries its column's name. Roles are explicit because
    browsers drop the implicit ones where the style sheet changes `display`.
    """
    right = frozenset(numbers)
    kinds = ["number" if i in right else None for i in range(len(heads))]
    head = [
        tag("th", name, scope="col", role="columnheader", cls=kind) for name, kind in zip(heads, kinds, strict=True)
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
