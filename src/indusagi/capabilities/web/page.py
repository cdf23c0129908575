"""An answer from the web, as what a model can be shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from anyio import to_thread

from indusagi.capabilities.ports import FetchError
from indusagi.capabilities.web import layout
from indusagi.capabilities.web.charset import decoded
from indusagi.capabilities.web.layout import LONGEST_JSON, SHORT_JSON, laid_open, laid_out
from indusagi.capabilities.web.markdown import converted
from indusagi.capabilities.web.media import medium_of
from indusagi.capabilities.worker.client import asked
from indusagi.capabilities.worker.interpreter import own_python
from indusagi.core.text import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.capabilities.web.client import Fetched
    from indusagi.capabilities.web.media import Medium

T = TypeVar("T")
_JSON_S: Final = 10.0
Format: TypeAlias = Literal["markdown", "text", "html", "raw"]
ACCEPT: Final[dict[Format, str]] = {
    "markdown": "text/markdown, text/html;q=0.9, application/xhtml+xml;q=0.9, text/plain;q=0.8, "
    "application/json;q=0.8, */*;q=0.5",
    "text": "text/plain, text/markdown;q=0.9, text/html;q=0.8, application/json;q=0.8, */*;q=0.5",
    "html": "text/html, application/xhtml+xml;q=0.9, */*;q=0.5",
    "raw": "*/*",
}


@dataclass(frozen=True, slots=True)
class TextPage:
    """A page as text, with nothing in it that cannot be seen."""

    text: str
    kind: str
    """The media type of what came."""
    notes: Sequence[str] = ()
    """What a reader should know about the text."""
    hidden: int = 0
    """Characters that could not be seen, and are written out."""


@dataclass(frozen=True, slots=True)
class BytesPage:
    """An answer that is no text."""

    data: bytes
    kind: str
    is_image: bool


async def page_of(fetched: Fetched, form: Format) -> TextPage | BytesPage:
    """Make of an answer what a model can be shown.

    A page that the converter does not take is given as its source.
    """
    medium, kind = medium_of(fetched.headers, fetched.body)
    if medium in {"image", "binary"}:
        return BytesPage(fetched.body, kind, medium == "image")
    content_type = fetched.headers.get("content-type", "")
    read = await _aside(partial(decoded, fetched.body, content_type, whole=fetched.cut is None))
    notes: list[str] = []
    if read.replaced:
        said = f"{format_count(read.replaced, 'place is', 'places are')} not {read.charset}"
        notes.append(f"{said}, and shown as \N{REPLACEMENT CHARACTER}")
    text = read.text
    if form in {"markdown", "text"}:
        text = await _readable(text, medium, fetched.target.url, form, notes)
    visible, hidden = await _aside(partial(laid_open, text))
    if hidden:
        notes.append(written_out(hidden))
    return TextPage(visible, kind, tuple(notes), hidden)


def written_out(hidden: int) -> str:
    """Say how many characters there are that could not be seen."""
    return f"{format_count(hidden, 'character')} that cannot be seen: written as <U+…>"


async def _readable(text: str, medium: Medium, url: str, form: Format, notes: list[str]) -> str:
    if medium == "json":
        return await _laid_out(text)
    if medium != "html":
        return text
    try:
        page = await converted(text, url, "markdown" if form == "markdown" else "plain")
    except FetchError as trouble:
        notes.append(f"{trouble}; this is its source")
        return text
    if page.shortened:
        notes.append("parts of the page were left out, for they are nested too deep")
    elif not page.text.strip():
        notes.append("the page has no text of its own; it may be made by a script in a browser")
    return f"Title: {page.title}\n\n{page.text}" if page.title else page.text


async def _laid_out(text: str) -> str:
    """Lay out JSON: a longer text in a process of its own, as for a page of HTML."""
    if not SHORT_JSON < len(text) <= LONGEST_JSON:
        return await _aside(partial(laid_out, text))
    try:
        pieces = await asked(own_python(layout.__name__), layout.message(text), _JSON_S)
        return layout.text_in(pieces)
    except (OSError, ValueError):  # no process to be had, it took too long, or broke down
        return text


async def _aside(work: Callable[[], T]) -> T:
    """Do work that ends by itself in a thread; a caller that is cancelled does not wait for it."""
    return await to_thread.run_sync(work, abandon_on_cancel=True)
