"""The tool `read`, called as a model calls it."""

from __future__ import annotations

import base64
import errno
import io
import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import to_thread
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.support.documents import notebook, pdf
from tests.support.scripts import unmeasured
from tests.support.strategies import examples
from tests.support.tools import box_of, call, context

from indusagi.capabilities import worker
from indusagi.capabilities.budget import UNLIMITED, OutputBudget
from indusagi.capabilities.context import ReadState
from indusagi.capabilities.files import atomic_write as locks
from indusagi.capabilities.files import lines
from indusagi.capabilities.files import media as notebook_module
from indusagi.capabilities.files.codec import digest_bytes
from indusagi.capabilities.local.fs import LocalFs
from indusagi.capabilities.tools.read import read_tool
from indusagi.core.cancel import CancelToken
from indusagi.runtime.contract import JsonContentBlock, TextContentBlock, ToolCall, ToolOutcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.ports import WorkT
    from indusagi.core.json import JsonObject, JsonValue

pytestmark = pytest.mark.anyio
NUMBERED = re.compile(r" *(\d+)\t(.*)", re.DOTALL)


async def read(ctx: ToolContext, path: object, **more: JsonValue) -> ToolOutcome:
    return await call(box_of(ctx, read_tool()), "read", {"path": str(path), **more})


def text_of(outcome: ToolOutcome) -> str:
    block = outcome.content[0]
    assert isinstance(block, TextContentBlock)
    return block.text


def lines_of(outcome: ToolOutcome) -> list[tuple[int, str]]:
    """Give the numbered lines, without what stands before and after them."""
    assert not outcome.is_error, text_of(outcome)
    found = (NUMBERED.fullmatch(line) for line in text_of(outcome).split("\n"))
    return [(int(match[1]), match[2]) for match in found if match]


def image_of(outcome: ToolOutcome, at: int = 1) -> Image.Image:
    block = outcome.content[at]
    assert isinstance(block, JsonContentBlock)
    assert isinstance(block.value, dict)
    assert set(block.value) == {"type", "data", "mimeType"}
    assert block.value["type"] == "image"
    image = Image.open(io.BytesIO(base64.b64decode(str(block.value["data"]))))
    assert block.value["mimeType"] == image.get_format_mimetype()
    return image


# -- lines ------------------------------------------------------------------------------------


async def test_lines_are_numbered_and_the_end_of_the_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\n\ttwo\nthree\n")
    outcome = await read(context(tmp_path), "a.py")
    assert text_of(outcome) == ("     1\tone\n     2\t\ttwo\n     3\tthree\n[lines 1-3 of 3; end of file]")
    assert dict(outcome.details) == {
        "path": str(tmp_path / "a.py"),
        "kind": "text",
        "encoding": "utf-8",
        "ending": "lf",
        "mark": False,
        "bytes": 15,
        "lines": 3,
        "digest": digest_bytes(b"one\n\ttwo\nthree\n"),
        "first": 1,
        "last": 3,
        "next": None,
    }


async def test_a_page_names_the_offset_of_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\nb\nc\nd\n")
    ctx = context(tmp_path)
    first = await read(ctx, "a", limit=2)
    assert text_of(first).endswith("[lines 1-2 of 4; next offset=3]")
    assert lines_of(await read(ctx, "a", offset=first.details["next"])) == [(3, "c"), (4, "d")]
    assert text_of(await read(ctx, "a", offset=3, limit=1)).endswith("[line 3 of 4; next offset=4]")


async def test_a_missing_last_newline_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\nb")
    assert text_of(await read(context(tmp_path), "a")).endswith(
        "[lines 1-2 of 2; end of file, without a newline there]"
    )


async def test_a_negative_offset_counts_from_the_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("".join(f"{n}\n" for n in range(1, 11)))
    ctx = context(tmp_path)
    assert lines_of(await read(ctx, "a", offset=-2)) == [(9, "9"), (10, "10")]
    assert lines_of(await read(ctx, "a", offset=-3, limit=1)) == [(8, "8")]
    assert len(lines_of(await read(ctx, "a", offset=-100))) == 10


async def test_an_offset_of_zero_is_the_start(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\nb\n")
    assert lines_of(await read(context(tmp_path), "a", offset=0, limit=1)) == [(1, "a")]


async def test_an_offset_past_the_end_names_the_number_of_lines(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\nb\n")
    (tmp_path / "one").write_text("a")
    outcome = await read(context(tmp_path), "a", offset=9)
    assert outcome.details["code"] == "not_found"
    assert text_of(outcome) == "offset 9 is past the end: a has 2 lines"
    assert "has 1 line" in text_of(await read(context(tmp_path), "one", offset=2))


@pytest.mark.parametrize(("data", "but"), [(b"", ""), (b"\xef\xbb\xbf", " but for a byte order mark")])
async def test_an_empty_file_is_reported(data: bytes, but: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(data)
    outcome = await read(context(tmp_path), "a")
    assert text_of(outcome) == f"[a is empty{but}]"
    assert not outcome.is_error


TEXTS = st.lists(
    st.text(st.characters(blacklist_characters="\n\0", blacklist_categories=["Cs"]), max_size=10), max_size=20
).map("\n".join)


@pytest.mark.process
@examples(0.6)
@given(text=TEXTS, ended=st.booleans(), first=st.integers(1, 22), count=st.integers(1, 22))
async def test_sed_prints_the_same_lines(text: str, ended: bool, first: int, count: int, tmp_path: Path) -> None:
    data = (text + ("\n" if ended else "")).encode()
    (tmp_path / "a").write_bytes(data)
    sed = await anyio.run_process(["sed", "-n", f"{first},{first + count - 1}p", str(tmp_path / "a")])
    outcome = await read(context(tmp_path), "a", offset=first, limit=count)
    expected = sed.stdout.decode().removesuffix("\n").split("\n") if sed.stdout else []
    last = expected and expected[-1].endswith("\r") and not sed.stdout.endswith(b"\n")
    expected = [line.removesuffix("\r") for line in expected[:-1]] + [
        line if last else line.removesuffix("\r") for line in expected[-1:]
    ]
    if not expected:
        assert outcome.is_error or "is empty" in text_of(outcome)
        return
    assert lines_of(outcome) == list(enumerate(expected, start=first))
    wc = await anyio.run_process(["wc", "-l", str(tmp_path / "a")])
    assert outcome.details["lines"] == int(wc.stdout.split()[0]) + (not data.endswith(b"\n"))


# -- how much ---------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["x", "x" * 100, "x" * 3_000, "é" * 3_000, "🙂" * 3_000], ids=lambda line: line[:1])
@pytest.mark.parametrize("offset", [1, -2_400])
async def test_a_page_with_its_frame_fits_the_budget(line: str, offset: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(f"\ufeff{line}\u202e\x1b\r\n" + f"{line}\r\n" * 2_500)
    outcome = await read(context(tmp_path), "a", offset=offset)
    assert "spill" not in outcome.details
    assert context(tmp_path).budget.admits(text_of(outcome))
    shown = lines_of(outcome)
    full = len(text_of(outcome).encode()) > 40 * 1024
    assert full or len(shown) == 1_998
    assert outcome.details["next"] == shown[-1][0] + 1


async def test_all_pages_together_are_the_file(tmp_path: Path) -> None:
    text = "".join(f"line {n} {'x' * (n % 300)}\n" for n in range(7_000))
    (tmp_path / "a").write_text(text)
    ctx, offset, got = context(tmp_path), 1, list[str]()
    while offset:
        outcome = await read(ctx, "a", offset=offset)
        got += [line for _, line in lines_of(outcome)]
        following = outcome.details["next"]
        offset = following if isinstance(following, int) else 0
    assert "\n".join(got) + "\n" == text


async def test_a_long_line_is_cut_with_the_number_of_missing_characters(tmp_path: Path) -> None:
    (tmp_path / "min.js").write_text("é" * 5_000 + "\nnext\n")
    (_, long), (_, after) = lines_of(await read(context(tmp_path), "min.js"))
    assert long == "é" * 2_000 + "… [+3,000 characters]"
    assert after == "next"


async def test_at_most_2000_lines_are_shown(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\n" * 5_000)
    ctx = replace(context(tmp_path), budget=UNLIMITED)
    assert len(lines_of(await read(ctx, "a", limit=4_000))) == 2_000


async def test_a_small_budget_shows_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\ny\n")
    outcome = await read(context(tmp_path, OutputBudget(100, 1)), "a")
    assert "     1\tx" in text_of(outcome)


@pytest.mark.process
def test_probe_0_8_three_lines_of_100_mb_take_little_memory(tmp_path: Path) -> None:
    script = f"""
import asyncio, resource
from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.tools.read import read_tool

async def main():
    ctx, tool = make_local_context({str(tmp_path)!r}), read_tool()
    await tool.run({{"path": "small"}}, ctx)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for offset in (1, 900_000, -3):
        result = await tool.run({{"path": "large", "offset": offset, "limit": 3}}, ctx)
        assert result.details["lines"] == 1_250_000, result
        assert result.details["last"] - result.details["first"] == 2
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

asyncio.run(main())
"""
    (tmp_path / "small").write_text("x\n")
    with open(tmp_path / "large", "wb") as file:
        for _ in range(125):
            file.write(b"x" * 79 + b"\n" + ("é" * 39 + "x\n").encode() * 9_999)
    assert (tmp_path / "large").stat().st_size == 100_000_000
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=unmeasured(), check=False
    )
    assert done.returncode == 0, done.stderr
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 12 * 1024 * 1024


async def test_a_file_too_large_to_count_is_shown_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "SCAN_LIMIT_BYTES", 1_000_000)
    (tmp_path / "a").write_text("some line\n" * 200_000)
    ctx = context(tmp_path)
    outcome = await read(ctx, "a", limit=2)
    assert text_of(outcome).endswith("[lines 1-2; the file is too large to count its lines; next offset=3]")
    far = await read(ctx, "a", offset=-1)
    assert (far.details["code"], "tail" in text_of(far)) == ("too_large", True)
    assert ctx.framework.read_state is not None
    assert ctx.framework.read_state.digest(str(tmp_path / "a")) is None


# -- what text is -----------------------------------------------------------------------------

GREEK = "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία\r\n日本語の行\r\n"


@pytest.mark.process
@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"])
async def test_probe_0_8_utf_16_is_read_as_text(encoding: str, tmp_path: Path) -> None:
    made = await anyio.run_process(["iconv", "-f", "UTF-8", "-t", encoding], input=("\ufeff" + GREEK).encode())
    (tmp_path / "a").write_bytes(made.stdout)
    outcome = await read(context(tmp_path), "a")
    assert [line for _, line in lines_of(outcome)] == GREEK.splitlines()
    name = f"{encoding[:6].lower()}-{encoding[6:].lower()}"
    head = f"[encoding: {name}; byte order mark; CRLF line endings]"
    assert text_of(outcome).split("\n")[0] == head


@pytest.mark.parametrize(
    ("data", "head", "shown"),
    [
        (b"caf\xe9\n", "[encoding: latin-1 (guessed)]", "café"),
        (b"\xef\xbb\xbfa\n", "[byte order mark]", "a"),
        (b"a\r\nb\r\n", "[CRLF line endings]", "a"),
        (b"a\rb\rc", "[hidden characters: 2 control characters first in line 1]", "a\rb\rc"),
        (b"a\r\nb\nc\n", "[mixed line endings (1 of 3 are CRLF)]", "a"),
        ("äöüß\n".encode() + b"\xff\n", "[some bytes are not utf-8, shown as \\xNN]", "äöüß"),
        (
            b"\xff\xfea\0\n\0\x00\xd8",
            "[encoding: utf-16-le; byte order mark; some bytes are not utf-16-le, shown as U+FFFD]",
            "a",
        ),
    ],
)
async def test_the_first_line_describes_encoding_and_line_endings(
    data: bytes, head: str, shown: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(data)
    outcome = await read(context(tmp_path), "a")
    assert text_of(outcome).split("\n")[0] == head
    assert lines_of(outcome)[0] == (1, shown)


async def test_r42_invisible_characters_are_reported_and_kept(tmp_path: Path) -> None:
    text = "ok\nif admin\u202e:\n\x1b]52;c;aGk=\x07\nx\U000e0041\u200b\n"
    (tmp_path / "a").write_text(text)
    outcome = await read(context(tmp_path), "a")
    assert text_of(outcome).split("\n")[0] == (
        "[hidden characters: terminal escape sequences in line 3, "
        "text direction controls in line 2, tag characters in line 4, "
        "invisible characters in line 4, control characters in line 3]"
    )
    assert "\n".join(line for _, line in lines_of(outcome)) + "\n" == text


async def test_invisible_characters_of_other_lines_are_not_reported(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("ok\n\u202e\n")
    assert "hidden" not in text_of(await read(context(tmp_path), "a", limit=1))


# -- what is not text -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "type", "mime"),
    [
        (b"\x7fELF\x02\x01\x01" + bytes(100), "ELF program", "application/x-elf"),
        (b"PK\x03\x04rest", "ZIP archive", "application/zip"),
        (b"text\0more", "unknown type", "application/octet-stream"),
    ],
)
async def test_probe_0_8_a_binary_file_is_refused_with_its_type(
    data: bytes, type: str, mime: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(data)
    outcome = await read(context(tmp_path), "a")
    assert (outcome.details["code"], outcome.details["type"]) == ("binary", mime)
    assert type in text_of(outcome)
    assert f"{len(data)} bytes" in text_of(outcome)
    assert data[:64].hex(" ") in text_of(outcome)


async def test_utf_16_without_a_mark_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("hello world\n".encode("utf-16-le"))
    outcome = await read(context(tmp_path), "a")
    assert outcome.details["code"] == "binary"
    assert "UTF-16 text without a byte order mark" in text_of(outcome)
    assert "iconv" in text_of(outcome)


async def test_only_a_line_with_nul_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"line\n" * 5_000 + b"lost\0\0\0\n" + b"line\n" * 10)
    ctx = context(tmp_path)
    assert len(lines_of(await read(ctx, "log", limit=10))) == 10
    assert len(lines_of(await read(ctx, "log", offset=-10))) == 10
    outcome = await read(ctx, "log", offset=4_999, limit=10)
    assert outcome.details["code"] == "binary"
    assert "line 5001 of log holds NUL" in text_of(outcome)


async def test_a_small_image_is_shown_unchanged(tmp_path: Path) -> None:
    Image.new("RGB", (64, 32), "red").save(tmp_path / "a.png")
    outcome = await read(context(tmp_path), "a.png")
    size = (tmp_path / "a.png").stat().st_size
    assert text_of(outcome) == f"[a.png: image/png, 64 by 32 pixels, {size:,} bytes]"
    assert image_of(outcome).size == (64, 32)
    assert outcome.details["type"] == "image/png"


async def test_a_large_image_is_scaled_down_under_any_name(tmp_path: Path) -> None:
    Image.new("RGB", (3_136, 100), "red").save(tmp_path / "picture.txt", "BMP")
    outcome = await read(context(tmp_path), "picture.txt")
    assert "3136 by 100 pixels" in text_of(outcome)
    assert "shown as image/png, 1568 by 50 pixels" in text_of(outcome)
    assert image_of(outcome).size == (1_568, 50)


async def test_a_damaged_or_oversized_image_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\nrest")
    ctx = context(tmp_path)
    assert "damaged" in text_of(await read(ctx, "a.png"))
    monkeypatch.setattr("indusagi.capabilities.tools.read.MAX_DOCUMENT_BYTES", 10_000)
    (tmp_path / "b.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20_000))
    assert (await read(ctx, "b.png")).details["code"] == "too_large"


@pytest.mark.process
async def test_a_pdf_is_shown_as_text_per_page(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(*(f"page {n}" for n in range(1, 13))))
    ctx = context(tmp_path)
    first = text_of(await read(ctx, "a.pdf"))
    assert first.startswith("--- page 1 ---\npage 1\n--- page 2 ---\npage 2\n")
    assert first.endswith("[pages 1-10 of 12; next pages='11-12']")
    rest = await read(ctx, "a.pdf", pages="11-12")
    assert text_of(rest).endswith("[pages 11-12 of 12; end of file]")
    assert (rest.details["pages"], rest.details["firstPage"]) == (12, 11)


@pytest.mark.process
@pytest.mark.parametrize(
    ("pages", "code", "said"),
    [
        ("5", "not_found", "the document has only 1 page"),
        ("x", "failed", "is not like"),
        ("1-30", "too_large", "more than 20"),
    ],
)
async def test_missing_pages_are_reported(pages: str, code: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf("only"))
    outcome = await read(context(tmp_path), "a.pdf", pages=pages)
    assert outcome.details["code"] == code
    assert said in text_of(outcome)


@pytest.mark.process
async def test_a_pdf_without_text_and_a_damaged_pdf_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(""))
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.7\nnonsense")
    (tmp_path / "c.pdf").write_bytes(pdf("\x07bell"))
    assert "[no text on this page]" in text_of(await read(context(tmp_path), "a.pdf"))
    assert "damaged" in text_of(await read(context(tmp_path), "b.pdf"))
    assert "bell" in text_of(await read(context(tmp_path), "c.pdf"))


def _cells() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(out, "PNG")
    figure = base64.b64encode(out.getvalue()).decode()
    broken = base64.b64encode(b"\x89PNG").decode()
    return notebook(
        {"cell_type": "markdown", "source": ["# Title"]},
        {
            "cell_type": "code",
            "source": "plot()\u202e\ud800",
            "outputs": [{"data": {"image/png": figure}}, {"data": {"image/png": broken}}],
        },
    )


async def test_a_notebook_is_shown_as_cells_with_its_images(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_bytes(_cells())
    ctx = context(tmp_path)
    outcome = await read(ctx, "a.ipynb")
    shown = [line for _, line in lines_of(outcome)]
    assert shown[:4] == ["## cell 1: markdown", "# Title", "", "## cell 2: code"]
    assert shown[4] == "plot()\u202e\\ud800"
    assert "hidden characters: text direction controls in line 5" in text_of(outcome)
    assert text_of(outcome).endswith(f"[lines 1-{len(shown)} of {len(shown)}; end of file]")
    assert len(outcome.content) == 2
    assert image_of(outcome).size == (8, 8)
    assert outcome.details["cells"] == 2


async def test_the_type_of_a_notebook_image_is_detected(tmp_path: Path) -> None:
    """A provider that is sent a picture under a wrong type refuses the whole conversation."""
    out = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(out, "WebP")
    figure = base64.b64encode(out.getvalue()).decode()
    output: JsonObject = {"data": {"image/png": figure}}
    cell: JsonObject = {"cell_type": "code", "source": "plot()", "outputs": [output]}
    (tmp_path / "a.ipynb").write_bytes(notebook(cell))
    outcome = await read(context(tmp_path), "a.ipynb")
    assert image_of(outcome).format == "WEBP"


async def test_a_notebook_is_paged(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_bytes(_cells())
    ctx = context(tmp_path)
    first = await read(ctx, "a.ipynb", limit=2)
    assert text_of(first).endswith("[lines 1-2 of 8; next offset=3]")
    assert len(first.content) == 1
    assert lines_of(await read(ctx, "a.ipynb", offset=-7, limit=1)) == [(2, "# Title")]
    past = await read(ctx, "a.ipynb", offset=99)
    assert "the notebook has 8 lines" in text_of(past)


@pytest.mark.process
async def test_a_large_notebook_is_paged_and_its_lines_are_cut(tmp_path: Path) -> None:
    cell: JsonObject = {"cell_type": "raw", "source": "long " * 60_000 + "\nend"}
    (tmp_path / "a.ipynb").write_bytes(notebook(cell))
    (tmp_path / "b.ipynb").write_bytes(b"not one\n" * 50_000)
    ctx = context(tmp_path)
    outcome = await read(ctx, "a.ipynb")
    shown = lines_of(outcome)
    assert shown[1] == (2, ("long " * 400) + "… [+298,000 characters]")
    assert shown[2:] == [(3, "end"), (4, "")]
    state = ctx.framework.read_state
    assert state is not None
    for name in ("a.ipynb", "b.ipynb"):
        await read(ctx, name)
        assert state.digest(str(tmp_path / name)) == digest_bytes((tmp_path / name).read_bytes())
    assert lines_of(await read(ctx, "b.ipynb", offset=-1)) == [(50_000, "not one")]


async def test_a_notebook_may_have_no_cell_or_one(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_bytes(notebook())
    (tmp_path / "b.ipynb").write_bytes(notebook({"cell_type": "raw", "source": "x"}))
    assert "a notebook without cells" in text_of(await read(context(tmp_path), "a.ipynb"))
    assert "a notebook of 1 cell" in text_of(await read(context(tmp_path), "b.ipynb"))


async def test_an_invalid_or_very_large_notebook_is_shown_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.ipynb").write_text('{"cells": [\n<<<<<<< HEAD\n')
    ctx = context(tmp_path)
    broken = await read(ctx, "a.ipynb")
    assert lines_of(broken) == [(1, '{"cells": ['), (2, "<<<<<<< HEAD")]
    assert text_of(broken).startswith("[not shown as a notebook: it is not one]\n")
    monkeypatch.setattr("indusagi.capabilities.tools.read.MAX_NOTEBOOK_BYTES", 10_000)
    (tmp_path / "b.ipynb").write_bytes(notebook() + b"\n" * 10_000)
    large = await read(ctx, "b.ipynb")
    assert json.loads(lines_of(large)[0][1])["cells"] == []
    assert text_of(large).startswith("[not shown as a notebook: it is too large for that]\n")


async def test_a_notebook_shown_as_text_names_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_python(*_: object) -> list[str]:
        return ["/no/such/python"]

    monkeypatch.setattr(notebook_module, "SMALL_BYTES", 0)
    monkeypatch.setattr(worker, "build_command", no_python)
    (tmp_path / "a.ipynb").write_bytes(notebook())
    outcome = await read(context(tmp_path), "a.ipynb")
    assert json.loads(lines_of(outcome)[0][1])["cells"] == []
    why = "the process that reads it cannot be started: No such file or directory"
    assert text_of(outcome).startswith(f"[not shown as a notebook: {why}]\n")


@pytest.mark.parametrize("names", [1, 2])
async def test_a_locked_file_can_be_read(tmp_path: Path, names: int) -> None:
    """A whole file takes its place: before that, the former one is seen."""
    (tmp_path / "a").write_bytes(b"former")
    if names > 1:
        os.link(tmp_path / "a", tmp_path / "b")
    ctx = context(tmp_path)
    async with locks.file_lock(await ctx.fs.resolve("a")):
        for name in ("a", "b")[:names]:
            assert lines_of(await read(ctx, name)) == [(1, "former")]


# -- where there is no file -------------------------------------------------------------------


async def test_a_directory_is_listed(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "b.py").touch()
    (tmp_path / "src" / "a").mkdir()
    (tmp_path / "src" / "link").symlink_to("b.py")
    (tmp_path / "src" / "e\x1b[31m").touch()
    outcome = await read(context(tmp_path), "src")
    assert text_of(outcome).split("\n") == [
        "[src: 1 directory; 3 files]",
        "a/",
        "b.py  0 B",
        "e (hidden characters left out)  0 B",
        "link -> b.py",
    ]
    assert (outcome.is_error, outcome.details["kind"]) == (False, "directory")


async def test_every_name_is_shown_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "data\n[9 more]").touch()
    (tmp_path / "src" / os.fsdecode(b"data\xff")).touch()
    ctx = context(tmp_path)
    listed = text_of(await read(ctx, "src")).split("\n")
    assert listed[1:] == ["data\\n[9 more]  0 B", "data\\xff  0 B"]
    missing = await read(ctx, "src/data")
    assert text_of(missing).endswith("did you mean src/data\\xff or src/data\\n[9 more]?")
    again = await read(ctx, "src/data\\xff")
    assert (again.is_error, again.details["code"]) == (True, "encoding")
    assert "is not valid UTF-8; rename it" in text_of(again)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("file://{folder}/a.txt", "a.txt"),
        ("file://localhost{folder}/a.txt", "a.txt"),
        ("file://{folder}/a%20b.txt", "a b.txt"),
        ("file://{folder}/a%ff.txt", os.fsdecode(b"a\xff.txt")),
        ("file://{folder}/a#b.txt", "a#b.txt"),
        ("file://{folder}/a?b.txt", "a?b.txt"),
        ("file://a.txt", "a.txt"),
        ("file://src/a.txt", "src/a.txt"),
        ("file://[", "["),
        ("file://\u2100/x", "\u2100/x"),
    ],
)
async def test_a_file_url_is_read(address: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("here\n", encoding="utf-8")
    (tmp_path / "a").write_text("another\n", encoding="utf-8")
    outcome = await read(context(tmp_path), address.format(folder=tmp_path))
    assert lines_of(outcome) == [(1, "here")]


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("readme.md", ["README.md"]),
        ("README.rst", ["README.md"]),
        ("src/utls.py", ["src/utils.py", "src/utils_test.py"]),
        ("src/util", ["src/utils.py", "src/utils_test.py"]),
        ("src/zebra", []),
    ],
)
async def test_a_missing_file_is_reported_with_similar_names(asked: str, near: list[str], tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in ("README.md", "src/utils.py", "src/utils_test.py", "src/main.go"):
        (tmp_path / name).touch()
    outcome = await read(context(tmp_path), asked)
    assert (outcome.details["code"], outcome.details["near"]) == ("not_found", near)
    assert all(name in text_of(outcome) for name in near)


async def test_a_missing_directory_and_a_dangling_link_are_reported(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nothing")
    (tmp_path / "file").touch()
    ctx = context(tmp_path)
    assert "neither does a directory for it" in text_of(await read(ctx, "no/such/file"))
    assert "neither does a directory for it" in text_of(await read(ctx, "file/below"))
    dangling = await read(ctx, "link")
    assert dangling.details["code"] == "not_found"
    assert "target does not exist" in text_of(dangling)


async def test_a_missing_file_in_an_unreadable_directory_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(tmp_path)

    async def closed(self: object, path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(type(ctx.fs), "readdir", closed)
    assert text_of(await read(ctx, "a.txt")) == "a.txt does not exist"


async def test_an_invalid_path_is_reported(tmp_path: Path) -> None:
    outcome = await read(context(tmp_path), "a\0b")
    assert outcome.is_error


# -- what must not be opened ------------------------------------------------------------------


async def test_r44_a_fifo_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    outcome = await read(context(tmp_path), "pipe")
    assert (outcome.details["code"], outcome.details["refusal"]) == ("denied", "special")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/stdin", "/dev/full"])
async def test_r44_a_device_is_refused(path: str, tmp_path: Path) -> None:
    outcome = await read(context(tmp_path), path)
    assert outcome.is_error


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("path", ["/proc/self/mem", "/proc/kcore", "/proc/self/pagemap"])
async def test_r44_files_in_proc_are_refused_or_end(path: str, tmp_path: Path) -> None:
    outcome = await read(context(tmp_path), path)
    assert outcome.is_error


@pytest.mark.parametrize("start", [b"", b"text\n" * 5_000])
async def test_r44_a_sparse_file_of_10_gb_is_capped(start: bytes, tmp_path: Path) -> None:
    (tmp_path / "sparse").write_bytes(start)
    os.truncate(tmp_path / "sparse", 10 * 1024**3)
    outcome = await read(context(tmp_path), "sparse")
    assert outcome.is_error is not bool(start)
    assert outcome.details["code"] == "binary" if not start else len(lines_of(outcome)) == 1_998


# -- what is remembered -----------------------------------------------------------------------


async def test_what_was_read_is_recorded_under_the_resolved_path(tmp_path: Path) -> None:
    state = ReadState()
    ctx = context(tmp_path)
    ctx = replace(ctx, framework=replace(ctx.framework, read_state=state))
    (tmp_path / "a").write_bytes(b"a\r\nb\r\nc\r\n")
    (tmp_path / "link").symlink_to("a")
    await read(ctx, "link", offset=2, limit=1)
    resolved = await ctx.fs.resolve("a")
    assert state.digest(resolved) == digest_bytes(b"a\r\nb\r\nc\r\n")
    Image.new("RGB", (8, 8)).save(tmp_path / "p.png")
    await read(ctx, "p.png")
    assert state.digest(await ctx.fs.resolve("p.png")) == digest_bytes((tmp_path / "p.png").read_bytes())


async def test_lines_that_were_not_shown_are_not_recorded(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    (tmp_path / "bin").write_bytes(b"a\0")
    (tmp_path / "short").write_bytes(b"a\n")
    await read(ctx, "bin")
    await read(ctx, "short", offset=5)
    await read(ctx, ".")
    assert ctx.framework.read_state is not None
    for name in ("bin", "short", "."):
        assert ctx.framework.read_state.digest(await ctx.fs.resolve(name)) is None


async def test_read_works_without_a_read_state(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    ctx = replace(ctx, framework=replace(ctx.framework, read_state=None))
    (tmp_path / "a").write_text("a\n")
    assert lines_of(await read(ctx, "a")) == [(1, "a")]


# -- how it is called -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [{"file_path": "a", "offset": "2", "limit": 1.0}, {"filePath": "a", "start_line": 2, "limit": "1"}]
)
async def test_argument_names_of_other_agents_are_accepted(arguments: JsonObject, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\nb\nc\n")
    outcome = await call(box_of(context(tmp_path), read_tool()), "read", arguments)
    assert lines_of(outcome) == [(2, "b")]


@pytest.mark.parametrize("arguments", [{}, {"path": ""}, {"path": "a", "limit": 0}, {"path": "a", "x": 1}])
async def test_invalid_arguments_are_refused(arguments: JsonObject, tmp_path: Path) -> None:
    outcome = await call(box_of(context(tmp_path), read_tool()), "read", arguments)
    assert outcome.details["code"] == "invalid_arguments"


def test_read_is_read_only() -> None:
    assert read_tool().read_only


@pytest.mark.process
def test_importing_read_loads_no_library_for_documents() -> None:
    script = "import sys, indusagi.capabilities.tools.read; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=unmeasured(), check=True
    )
    heavy = {"chardet", "PIL", "pypdfium2", "jsonschema"}
    assert heavy.isdisjoint(done.stdout.split())


class BrokenFs(LocalFs):
    """Files that can be looked at and not be read."""

    async def reading(self, path: str, work: Callable[[BinaryIO], WorkT]) -> WorkT:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)


async def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    outcome = await read(replace(context(tmp_path), fs=BrokenFs(str(tmp_path))), "a")
    assert text_of(outcome) == "a: Input/output error"
    assert outcome.details["code"] == "failed"


class SlowFs(LocalFs):
    """Files of which every read waits until it is let go."""

    def __init__(self, cwd: str) -> None:
        super().__init__(cwd)
        self.reading_now = threading.Event()
        self.go_on = threading.Event()
        self.reads = 0
        self.over = threading.Event()

    async def reading(self, path: str, work: Callable[[BinaryIO], WorkT]) -> WorkT:
        def slowly(file: BinaryIO) -> WorkT:
            try:
                return work(Slow(file, self))  # pyright: ignore[reportArgumentType] — what is used
            finally:
                self.over.set()

        return await super().reading(path, slowly)


class Slow:
    def __init__(self, file: BinaryIO, fs: SlowFs) -> None:
        self._file = file
        self._fs = fs

    def read(self, size: int) -> bytes:
        self._fs.reads += 1
        self._fs.reading_now.set()
        assert self._fs.go_on.wait(60)
        return self._file.read(size)

    def seek(self, at: int) -> int:
        return self._file.seek(at)


async def test_a_cancelled_read_ends_at_once_and_its_thread_soon_after(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("line\n" * 2_000_000)
    fs = SlowFs(str(tmp_path))
    box = box_of(replace(context(tmp_path), fs=fs), read_tool())
    cancel, outcomes = CancelToken(), list[ToolOutcome]()

    async def run() -> None:
        outcomes.append(await box.runner.run(ToolCall("1", "read", {"path": "a"}), cancel))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await to_thread.run_sync(fs.reading_now.wait, 20)
        cancel.cancel("enough")
    assert outcomes[0].details["code"] == "cancelled"
    fs.go_on.set()
    assert await to_thread.run_sync(fs.over.wait, 20)
    assert fs.reads <= 3
