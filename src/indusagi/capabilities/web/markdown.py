"""HTML as Markdown or plain text, however large or hostile, without holding up the event loop.

The converter is fast but lets nobody else run while it works. A short page is converted in a
thread. A longer one goes to a process of its own, which has a limit of time and of memory and can
be ended at any moment; nothing but the page and the text passes between the two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from html import unescape
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from indusagi.capabilities.ports import FetchError
from indusagi.capabilities.web import converter
from indusagi.capabilities.web.converter import LONGEST_S, answer, convert, request
from indusagi.capabilities.worker.client import asked
from indusagi.capabilities.worker.interpreter import library_of, own_python

if TYPE_CHECKING:
    from indusagi.capabilities.web.converter import Style

SHORT: Final = 32 * 1024
"""Characters that are converted in well under the time anybody would notice."""
_HEAD: Final = 64 * 1024
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,500})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Converted:
    """A page as text."""

    text: str
    title: str
    shortened: bool
    """Whether parts were left out for lying too deep."""


async def converted(html: str, base_url: str, style: Style) -> Converted:
    """Convert a page; links in it become whole addresses.

    Raises:
        FetchError: It cannot be converted, or not in time.
    """
    # The converter takes a text with many of these for a file that is no text.
    html = html.replace("\x00", "")
    try:
        if len(html) <= SHORT:
            work = partial(convert, html, base_url, style)
            text, shortened = await to_thread.run_sync(work, abandon_on_cancel=True)
        else:
            text, shortened = await _in_a_process(html, base_url, style)
    except (ValueError, OSError) as exc:
        message = f"the page could not be converted: {str(exc) or 'it took too long'}"
        raise FetchError(message, code="failed", reason="html") from exc
    return Converted(text, _title(html), shortened)


def _title(html: str) -> str:
    found = _TITLE.search(html, 0, _HEAD)
    return "" if found is None else " ".join(unescape(found[1]).split())


async def _in_a_process(html: str, base_url: str, style: Style) -> tuple[str, bool]:
    library = await to_thread.run_sync(library_of, "html_to_markdown")
    question = await to_thread.run_sync(request, html, base_url, style)
    argv = own_python(converter.__name__, library=library)
    pieces = await asked(argv, question, LONGEST_S)
    return await to_thread.run_sync(answer, pieces)
