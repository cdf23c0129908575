"""A large notebook is read in a process of its own, and only what is shown comes back."""

from __future__ import annotations

import base64
import io
import sys
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.documents import notebook

from indusagi.capabilities.files.media import notebook_apart, notebook_worker
from indusagi.capabilities.files.media.notebook import MOST_PICTURES, NotebookPage
from indusagi.capabilities.files.media.notebook_apart import SMALL_BYTES, notebook_page
from indusagi.capabilities.files.text.lines import LONGEST_LINE, Wanted

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject

pytestmark = [pytest.mark.anyio, pytest.mark.process]
ALL = Wanted(1, 2_000, 50_000)


def figures(count: int) -> bytes:
    """Make a notebook that is too large to be read here."""
    cells: list[JsonObject] = [
        {
            "cell_type": "code",
            "source": f"plot({n})\ud800",
            "outputs": [{"data": {"image/png": base64.b64encode(b"%d" % n + bytes(20_000)).decode()}}],
        }
        for n in range(count)
    ]
    data = notebook(*cells)
    assert len(data) > SMALL_BYTES
    return data


@pytest.mark.parametrize("wanted", [ALL, Wanted(5, 2, 50_000), Wanted(-3, 2_000, 50_000), Wanted(1, 2_000, 40)])
async def test_a_page_is_the_same_wherever_it_is_made(wanted: Wanted, monkeypatch: pytest.MonkeyPatch) -> None:
    data = figures(12)
    apart = await notebook_page(data, wanted)
    monkeypatch.setattr(notebook_apart, "SMALL_BYTES", len(data))
    assert apart == await notebook_page(data, wanted)
    assert isinstance(apart, NotebookPage)
    assert (apart.cells, apart.total) == (12, 48)
    assert len(apart.pictures) <= MOST_PICTURES


async def test_a_large_notebook_is_not_parsed_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(*_: object) -> None:
        raise AssertionError("parsed here")

    monkeypatch.setattr(notebook_apart, "page_in", here)
    assert isinstance(await notebook_page(figures(12), ALL), NotebookPage)
    with pytest.raises(AssertionError, match="parsed here"):
        await notebook_page(notebook(), ALL)


@pytest.mark.parametrize("size", [0, SMALL_BYTES])
async def test_what_is_no_notebook_is_told_as_such_whatever_its_size(size: int) -> None:
    assert await notebook_page(b"[1, 2]" + b" " * size, ALL) == "it is not one"


async def test_a_long_line_of_a_cell_is_cut() -> None:
    page = await notebook_page(notebook({"cell_type": "raw", "source": "x" * 300_000}), ALL)
    assert isinstance(page, NotebookPage)
    assert page.lines[1] == "x" * LONGEST_LINE + "… [+298,000 characters]"


@pytest.mark.parametrize(
    ("program", "code", "why"),
    [
        (sys.executable, "pass", "the process that reads it ended without an answer"),
        (sys.executable, "print('[1')", "the process that reads it ended without an answer"),
        (sys.executable, "import time; time.sleep(60)", "that took more than 0 seconds"),
        ("/no/such/python", "", "the process that reads it cannot be started: No such file or directory"),
    ],
)
async def test_a_process_that_gives_no_page_is_told(
    program: str, code: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(*_: str) -> list[str]:
        return [program, "-c", code]

    monkeypatch.setattr(notebook_apart, "own_python", other)
    if "sleep" in code:
        monkeypatch.setattr(notebook_apart, "DEADLINE_S", 0.1)
    with anyio.fail_after(20):
        assert await notebook_page(figures(12), ALL) == why


@pytest.mark.parametrize("data", [figures(12), b"{}"])
def test_the_process_answers_what_it_was_asked(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    question, out = b"".join(notebook_worker.request(data, ALL)), io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(question), encoding="utf-8"))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="utf-8"))
    assert notebook_worker.main() == 0
    assert notebook_worker.answer([out.getvalue()]) == notebook_worker.page_in(data, ALL)
