"""PDF files become text in a process of their own, which may hang, crash or lie."""

from __future__ import annotations

import io
import resource
import shutil
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.documents import pdf

from indusagi.capabilities.files.media import pdf as module
from indusagi.capabilities.files.media import pdf_worker
from indusagi.capabilities.files.media.pdf import PdfPages, parse_page_range, read_pdf_pages
from indusagi.capabilities.files.text.display import ReadFailure
from indusagi.capabilities.worker.message import unpacked

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonObject

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
def test_pages_are_understood(given: str | None, pages: tuple[int, int]) -> None:
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
def test_pages_that_cannot_be_meant_are_refused(given: str, code: str) -> None:
    found = parse_page_range(given)
    assert isinstance(found, ReadFailure)
    assert found.code == code


@pytest.mark.process
async def test_the_text_of_pages_is_read() -> None:
    assert await read_pdf_pages(THREE, 1, 10) == PdfPages(1, ["first page", "", "third page"], 3)
    assert await read_pdf_pages(THREE, 3, 3) == PdfPages(3, ["third page"], 3)
    assert await read_pdf_pages(THREE, 7, 9) == PdfPages(7, [], 3)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="needs pdftotext")
async def test_pdftotext_reads_the_same(tmp_path: Path) -> None:
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
async def test_a_document_whose_pages_lead_in_a_circle_ends() -> None:
    loop = THREE.replace(b"/Kids [4 0 R", b"/Kids [2 0 R").replace(b"/Count 3", b"/Count 9")
    assert isinstance(await read_pdf_pages(loop, 1, 10), (PdfPages, ReadFailure))


SAY = """
import json, os, sys

def say(facts):
    head = json.dumps([facts, []]).encode()
    sys.stdout.buffer.write(len(head).to_bytes(8, "big") + head)

"""


def worker(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    def instead(*_: str, **__: str) -> list[str]:
        return [sys.executable, "-Ic", SAY + code]

    monkeypatch.setattr(module, "own_python", instead)


@pytest.mark.process
async def test_a_reader_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    worker(monkeypatch, "import signal\nwhile True: signal.pause()")
    monkeypatch.setattr(module, "DEADLINE_S", 0.2)
    found = await read_pdf_pages(THREE, 1, 10)
    assert isinstance(found, ReadFailure)
    assert found.code == "timeout"


@pytest.mark.process
@pytest.mark.parametrize("code", ["import os; os.abort()", "print('x')", "print('[1' * 9_000_000)"])
async def test_a_reader_that_breaks_down_is_an_answer(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker(monkeypatch, code)
    found = await read_pdf_pages(THREE + bytes(200_000), 1, 10)
    assert found == ReadFailure("the reader of PDF files broke down on it", "failed")


@pytest.mark.process
@pytest.mark.parametrize(("trouble", "code"), [("missing", "unsupported"), ("password", "denied")])
async def test_what_the_reader_cannot_do_is_said(trouble: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker(monkeypatch, f"say({{'trouble': '{trouble}'}})")
    found = await read_pdf_pages(THREE, 1, 10)
    assert isinstance(found, ReadFailure)
    assert found.code == code


@pytest.mark.process
async def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    worker(monkeypatch, "say({'trouble': 'missing'})")
    found = await read_pdf_pages(THREE, 1, 10)
    assert isinstance(found, ReadFailure)
    assert "indus-deck[documents]" in found.why


@pytest.mark.process
async def test_no_secret_of_the_environment_reaches_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    worker(monkeypatch, "say({'pages': sorted(os.environ), 'total': 1})")
    found = await read_pdf_pages(THREE, 1, 10)
    assert isinstance(found, PdfPages)
    assert "SOME_API_KEY" not in found.texts


@pytest.mark.process
async def test_a_reader_that_cannot_be_started_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    found = await read_pdf_pages(THREE, 1, 10)
    assert isinstance(found, ReadFailure)
    assert found.code == "spawn"


def asked(data: bytes, monkeypatch: pytest.MonkeyPatch) -> JsonObject:
    """Run the reader here, with limits that are only noted."""
    given, out = io.BytesIO(b"".join(pdf_worker.request(data, 1, 10))), io.BytesIO()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=given))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=out))
    pdf_worker.main()
    return unpacked(out.getvalue())[0]


class Limits:
    """Takes the limits that would hold for this very process."""

    def __init__(self, *, refusing: bool = False) -> None:
        self.set: list[tuple[int, tuple[int, int]]] = []
        self._refusing = refusing

    def setrlimit(self, kind: int, most: tuple[int, int]) -> None:
        if self._refusing:
            raise ValueError("current limit exceeds maximum limit")
        self.set.append((kind, most))


@pytest.mark.parametrize("refusing", [False, True])
def test_the_reader_limits_itself_where_it_can(refusing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(refusing=refusing)
    monkeypatch.setattr(resource, "setrlimit", limits.setrlimit)
    answer = asked(THREE, monkeypatch)
    assert answer == {"total": 3, "pages": ["first page", "", "third page"]}
    assert len(limits.set) == (0 if refusing else 2)


def test_pages_beyond_what_is_read_at_once_are_not_told_as_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "setrlimit", Limits().setrlimit)
    monkeypatch.setattr(pdf_worker, "MOST_CHARACTERS", 15)
    answer = asked(pdf("first page", "second page", "third page"), monkeypatch)
    cut = "secon\n[the page goes on; 6 characters of it are left out]"
    assert answer == {"total": 3, "pages": ["first page", cut]}
    monkeypatch.setattr(pdf_worker, "MOST_CHARACTERS", 10)
    assert asked(pdf("first page", "second"), monkeypatch)["pages"] == ["first page"]


def test_the_reader_says_when_its_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "setrlimit", Limits().setrlimit)
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    assert asked(THREE, monkeypatch) == {"trouble": "missing"}


class Locked:
    """A library before which every document is locked, or every page is broken."""

    class PdfiumError(RuntimeError):
        """What the library raises for everything."""

    def __init__(self, *, locked: bool) -> None:
        self._locked = locked

    def PdfDocument(self, _data: bytes) -> list[Locked]:  # noqa: N802 — the library's name
        if self._locked:
            raise self.PdfiumError("Failed to load document (PDFium: Incorrect password error).")
        return [self]

    def get_textpage(self) -> Locked:
        raise self.PdfiumError("Failed to load page.")


def test_a_locked_document_and_a_broken_page_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "setrlimit", Limits().setrlimit)
    monkeypatch.setitem(sys.modules, "pypdfium2", Locked(locked=True))
    assert asked(b"", monkeypatch)["trouble"] == "password"
    monkeypatch.setitem(sys.modules, "pypdfium2", Locked(locked=False))
    broken = "[this page cannot be read: Failed to load page.]"
    assert asked(b"", monkeypatch) == {"total": 1, "pages": [broken]}
