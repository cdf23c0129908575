"""The text of a PDF, page by page, through a process that a hostile file may ruin."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from anyio import to_thread

from indusagi.capabilities.files.media import pdf_worker
from indusagi.capabilities.files.media.pdf_worker import request
from indusagi.capabilities.files.text.display import DOCUMENTS, ReadFailure
from indusagi.capabilities.worker.client import asked
from indusagi.capabilities.worker.interpreter import library_of, own_python
from indusagi.capabilities.worker.message import unpacked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject

DEFAULT_PAGES = 10
MOST_PAGES = 20
"""In one call."""
DEADLINE_S = 30.0
_NEEDED = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR")
_RANGE = re.compile(r"\s*([0-9]{1,6})\s*(?:(-)\s*([0-9]{1,6})?)?\s*")
_TROUBLES = {
    "missing": ReadFailure(f"to read PDF files, {DOCUMENTS}", "unsupported"),
    "password": ReadFailure("the document is locked with a password", "denied"),
    "damaged": ReadFailure("the document is damaged", "failed"),
}


@dataclass(frozen=True, slots=True)
class PdfPages:
    """Some pages of a document."""

    first: int
    texts: Sequence[str]
    total: int
    """Pages of the whole document."""


def parse_page_range(given: str | None) -> tuple[int, int] | ReadFailure:
    """Understand which pages are meant: `3`, `3-5`, `3-`, or nothing for the first ten."""
    if given is None or not given.strip():
        return 1, DEFAULT_PAGES
    found = _RANGE.fullmatch(given)
    if found is None or int(found[1]) < 1:
        return ReadFailure(f"pages {given!r} is not like '3' or '3-5'", "failed")
    first = int(found[1])
    last = int(found[3]) if found[3] else first + (DEFAULT_PAGES - 1 if found[2] else 0)
    if last < first:
        return ReadFailure(f"pages {given!r} ends before it begins", "failed")
    if last - first >= MOST_PAGES:
        why = f"pages {given!r} are more than {MOST_PAGES}: ask for fewer at a time"
        return ReadFailure(why, "too_large")
    return first, last


async def read_pdf_pages(data: bytes, first: int, last: int) -> PdfPages | ReadFailure:
    """Take the text out of some pages; a process does it, which ends with this call."""
    answer = await _ask(data, first, last)
    if isinstance(answer, ReadFailure):
        return answer
    trouble = answer.get("trouble")
    if isinstance(trouble, str):
        return _TROUBLES[trouble]
    texts = cast("list[str]", answer["pages"])
    # Their lines end in CRLF; a form feed or a stray return is no line of the document.
    return PdfPages(first, [_lines(text) for text in texts], cast("int", answer["total"]))


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "").strip("\n")


async def _ask(data: bytes, first: int, last: int) -> JsonObject | ReadFailure:
    library = await to_thread.run_sync(library_of, "pypdfium2")
    argv = own_python(pdf_worker.__name__, library=library)
    question = request(data, first, last)
    try:
        pieces = await asked(argv, question, DEADLINE_S, _environment())
        answer, _ = await to_thread.run_sync(lambda: unpacked(b"".join(pieces)))
    except TimeoutError:
        return ReadFailure(f"its text could not be read in {DEADLINE_S:.0f} seconds", "timeout")
    except OSError as exc:
        return ReadFailure(f"the reader of PDF files cannot be started: {exc.strerror}", "spawn")
    except ValueError:
        return ReadFailure("the reader of PDF files broke down on it", "failed")
    return answer


def _environment() -> dict[str, str]:
    # Whatever breaks into that process finds no secret of the user's in it.
    return {name: os.environ[name] for name in _NEEDED if name in os.environ}
