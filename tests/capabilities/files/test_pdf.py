"""The text of PDF files, extracted in a worker."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.documents import pdf

from indusagi.capabilities import worker
from indusagi.capabilities.files import media as module
from indusagi.capabilities.files.lines import ReadFailure
from indusagi.capabilities.files.media import PdfPages, extract_pdf_pages, parse_page_range, read_pdf_pages

if TYPE_CHECKING:
    from pathlib import Path

THREE = pdf("first page", "", "third page")


@pytest.mark.parametrize(
    ("given", "pages"),
    [
        (None, (1, 10)),
        ("", (1, 10)),
        ("3", (3, 3)),
        ("3-5", (3, 5)),
        (" 3 - 5 ", (3, 5)),
        ("4-", (4, 13)),
        ("1-20", (1, 20)),
    ],
)
def test_a_page_range_is_parsed(given: str | None, pages: tuple[int, int]) -> None:
    assert parse_page_range(given) == pages


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("0", "failed"),
        ("x", "failed"),
        ("5-3", "failed"),
        ("-3", "failed"),
        ("1,2", "failed"),
        ("1-21", "too_large"),
        ("9999999", "failed"),
    ],
)
def test_an_invalid_page_range_is_refused(given: str, code: str) -> None:
    found = parse_page_range(given)
    assert isinstance(found, ReadFailure)
    assert found.code == code


@pytest.mark.process
async def test_the_text_of_pages_is_extracted() -> None:
    assert await read_pdf_pages(THREE, 1, 10) == PdfPages(1, ["first page", "", "third page"], 3)
    assert await read_pdf_pages(THREE, 3, 3) == PdfPages(3, ["third page"], 3)
    assert await read_pdf_pages(THREE, 7, 9) == PdfPages(7, [], 3)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="needs pdftotext")
async def test_pdftotext_extracts_the_same_text(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(THREE)
    done = await anyio.run_process(["pdftotext", str(tmp_path / "a.pdf"), "-"])
    found = await read_pdf_pages(THREE, 1, 10)
    assert isinstance(found, PdfPages)
    assert [page.strip() for page in done.stdout.decode().split("\f")[:-1]] == list(found.texts)


@pytest.mark.process
@pytest.mark.parametrize(
    "data", [b"%PDF-1.4\n", b"%PDF-1.4\nnot one at all", THREE[: len(THREE) // 4]], ids=["empty", "nonsense", "cut"]
)
async def test_a_damaged_document_is_refused(data: bytes) -> None:
    found = await read_pdf_pages(data, 1, 10)
    assert found == ReadFailure("the document is damaged", "failed")


@pytest.mark.process
async def test_a_document_with_circular_pages_terminates() -> None:
    loop = THREE.replace(b"/Kids [4 0 R", b"/Kids [2 0 R").replace(b"/Count 3", b"/Count 9")
    assert isinstance(await read_pdf_pages(loop, 1, 10), (PdfPages, ReadFailure))


@pytest.mark.process
@pytest.mark.parametrize(("program", "code"), [("/bin/sleep", "timeout"), ("/bin/true", "failed"), ("/no", "spawn")])
async def test_a_worker_without_a_result_is_reported(program: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def instead(*_: object) -> list[str]:
        return [program, "60"]

    monkeypatch.setattr(worker, "build_command", instead)
    monkeypatch.setattr(module, "DEADLINE_S", 0.3 if code == "timeout" else 20)
    found = await read_pdf_pages(THREE, 1, 10)
    assert isinstance(found, ReadFailure)
    assert found.code == code
    assert found.why.startswith("the PDF reader ")


def test_the_characters_of_all_pages_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CHARACTERS", 15)
    cut = "secon\n[the page continues; 6 characters of it are left out]"
    found = extract_pdf_pages(pdf("first page", "second page", "third page"), 1, 10)
    assert found == PdfPages(1, ["first page", cut], 3)
    monkeypatch.setattr(module, "MAX_CHARACTERS", 10)
    assert extract_pdf_pages(pdf("first page", "second"), 1, 10) == PdfPages(1, ["first page"], 2)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    found = extract_pdf_pages(THREE, 1, 10)
    assert isinstance(found, ReadFailure)
    assert found.code == "unsupported"
    assert "indus-deck[documents]" in found.why


class FailingLibrary:
    """A library for which every document is locked, or every page is damaged."""

    class PdfiumError(RuntimeError):
        """The error that the library raises for everything."""

    def __init__(self, *, locked: bool) -> None:
        self._locked = locked

    def PdfDocument(self, _data: bytes) -> list[FailingLibrary]:  # noqa: N802 — the library's name
        if self._locked:
            raise self.PdfiumError("Failed to load document (PDFium: Incorrect password error).")
        return [self]

    def get_textpage(self) -> FailingLibrary:
        raise self.PdfiumError("Failed to load page.")


def test_a_locked_document_and_a_damaged_page_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdfium2", FailingLibrary(locked=True))
    assert extract_pdf_pages(b"", 1, 10) == ReadFailure("the document is locked with a password", "denied")
    monkeypatch.setitem(sys.modules, "pypdfium2", FailingLibrary(locked=False))
    damaged = "[this page cannot be read: Failed to load page.]"
    assert extract_pdf_pages(b"", 1, 10) == PdfPages(1, [damaged], 1)
