"""Pictures and PDF files from the web, as `read` would show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from anyio import to_thread

from indusagi.capabilities.files.media.pdf import MOST_PAGES, read_pdf_pages
from indusagi.capabilities.files.media.picture_apart import fit_image
from indusagi.capabilities.files.text.display import ReadFailure
from indusagi.capabilities.web.layout import laid_open
from indusagi.capabilities.web.page import TextPage, written_out

if TYPE_CHECKING:
    from indusagi.capabilities.files.media.images import EncodedImage
    from indusagi.capabilities.files.media.pdf import PdfPages
    from indusagi.capabilities.web.page import BytesPage

PDF: Final = "application/pdf"


async def picture_of(page: BytesPage) -> EncodedImage | ReadFailure:
    """Make a picture small enough for a model, or say why that cannot be."""
    return await fit_image(page.data, page.kind)


async def text_of(page: BytesPage) -> TextPage | ReadFailure:
    """Take the text out of the first pages of a PDF file, or say why that cannot be."""
    found = await read_pdf_pages(page.data, 1, MOST_PAGES)
    if isinstance(found, ReadFailure):
        return found
    return await to_thread.run_sync(_as_text, found, abandon_on_cancel=True)


def _as_text(found: PdfPages) -> TextPage:
    parts = (
        f"--- page {number} ---\n{text or '[no text on this page]'}\n"
        for number, text in enumerate(found.texts, start=found.first)
    )
    text, hidden = laid_open("".join(parts))
    notes = [f"the text of {len(found.texts)} of its {found.total} pages"]
    if hidden:
        notes.append(written_out(hidden))
    return TextPage(text, PDF, tuple(notes), hidden)
