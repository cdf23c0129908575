"""Notebooks as text: cells, outputs, images; invalid members are skipped; large ones are parsed in a worker."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.documents import notebook

from indusagi.capabilities import worker
from indusagi.capabilities.files import media as module
from indusagi.capabilities.files.lines import LONGEST_LINE, LineRange
from indusagi.capabilities.files.media import MAX_IMAGES, SMALL_BYTES, NotebookPage, parse_notebook, read_notebook_page

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

PIXEL = base64.b64encode(b"\x89PNG some bytes").decode()


def code(*outputs: JsonValue, source: JsonValue = "x = 1", count: JsonValue = 3) -> JsonObject:
    return {"cell_type": "code", "source": source, "outputs": list(outputs), "execution_count": count}


def lines(*cells: JsonObject) -> list[str]:
    found = parse_notebook(notebook(*cells))
    assert found is not None
    assert found.cells == len(cells)
    return found.lines


def test_cells_are_numbered_and_shown_with_their_source() -> None:
    text: JsonObject = {"cell_type": "markdown", "source": ["# Title\n", "words"]}
    assert lines(text, code(source="a = 1\nb = 2"), code(count=None)) == [
        "## cell 1: markdown",
        "# Title",
        "words",
        "",
        "## cell 2: code, run as [3]",
        "a = 1",
        "b = 2",
        "",
        "## cell 3: code",
        "x = 1",
        "",
    ]


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ({"output_type": "stream", "name": "stdout", "text": ["a\n", "b"]}, ["a", "b"]),
        ({"output_type": "execute_result", "data": {"text/plain": "42"}}, ["42"]),
        ({"output_type": "display_data", "data": {"text/markdown": "*m*"}}, ["*m*"]),
        ({"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[31mT\x1b[0m"]}, ["T"]),
        ({"output_type": "error", "ename": "E", "evalue": "v"}, ["E: v"]),
        ({"output_type": "pyout", "text": "old"}, ["old"]),
        ({"output_type": ["error"], "text": "odd"}, ["odd"]),
    ],
)
def test_outputs_are_shown_as_text(output: JsonObject, shown: list[str]) -> None:
    assert lines(code(output))[2:] == ["# output:", *shown, ""]


def test_a_long_output_is_cut_with_a_note() -> None:
    found = lines(code({"output_type": "stream", "text": "x" * 12_000}))
    assert found[-2] == "… [+2,000 characters]"


def test_an_image_is_kept_with_the_line_that_stands_for_it() -> None:
    found = parse_notebook(notebook(code({"data": {"image/png": PIXEL, "text/plain": "<fig>"}})))
    assert found is not None
    (image,) = found.images
    assert (image.mime, image.data) == ("image/png", b"\x89PNG some bytes")
    assert found.lines[image.line - 1] == "# output: image/png, 15 bytes"


def test_a_notebook_of_version_3_is_read() -> None:
    cell = {
        "cell_type": "code",
        "input": ["x"],
        "prompt_number": 2,
        "outputs": [{"output_type": "display_data", "png": PIXEL}],
    }
    found = parse_notebook(json.dumps({"worksheets": [{"cells": [cell]}]}).encode())
    assert found is not None
    assert found.lines[:2] == ["## cell 1: code, run as [2]", "x"]
    assert len(found.images) == 1


@pytest.mark.parametrize("output", [1, None, {"data": 5}, {"data": {"image/png": "abcde"}}, {"text": 7}, {}])
def test_an_invalid_output_is_skipped(output: JsonValue) -> None:
    assert lines(code(output))[:2] == ["## cell 1: code, run as [3]", "x = 1"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"worksheets": 3}'])
def test_other_data_is_not_a_notebook(data: bytes) -> None:
    assert parse_notebook(data) is None


def test_a_notebook_may_have_no_cells() -> None:
    found = parse_notebook(notebook())
    assert found is not None
    assert (found.cells, found.lines) == (0, [])


def test_a_cell_without_a_type_is_shown() -> None:
    assert lines({"source": "x"}) == ["## cell 1: unknown", "x", ""]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "cells",
                    "source",
                    "outputs",
                    "data",
                    "text",
                    "image/png",
                    "cell_type",
                    "traceback",
                    "output_type",
                    "worksheets",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_every_json_document_is_parsed_without_an_error(document: JsonValue) -> None:
    found = parse_notebook(json.dumps(document).encode())
    assert found is None or all("\n" not in line for line in found.lines)


# -- pages, in a thread and in a worker ---------------------------------------------------------

ALL = LineRange(1, 2_000, 50_000)


def large_notebook() -> bytes:
    cells: list[JsonObject] = [
        {
            "cell_type": "code",
            "source": f"plot({n})\ud800",
            "outputs": [{"data": {"image/png": base64.b64encode(b"%d" % n + bytes(20_000)).decode()}}],
        }
        for n in range(12)
    ]
    data = notebook(*cells)
    assert len(data) > SMALL_BYTES
    return data


@pytest.mark.process
@pytest.mark.parametrize("wanted", [ALL, LineRange(5, 2, 50_000), LineRange(-3, 2_000, 50_000), LineRange(1, 9, 40)])
async def test_a_page_is_the_same_in_a_thread_and_in_a_worker(
    wanted: LineRange, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = large_notebook()
    from_worker = await read_notebook_page(data, wanted)
    monkeypatch.setattr(module, "SMALL_BYTES", len(data))
    assert from_worker == await read_notebook_page(data, wanted)
    assert isinstance(from_worker, NotebookPage)
    assert (from_worker.cells, from_worker.total) == (12, 48)
    assert len(from_worker.images) <= MAX_IMAGES


@pytest.mark.process
async def test_a_large_notebook_is_parsed_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    build = worker.build_command

    def record(function: object, library: str, limits: None) -> list[str]:
        started.append(function)
        return build(module.parse_notebook_page, library, limits)

    monkeypatch.setattr(worker, "build_command", record)
    assert await read_notebook_page(b"[1, 2]" + b" " * SMALL_BYTES, ALL) == "it is not one"
    assert len(started) == 1
    assert await read_notebook_page(b"[1, 2]", ALL) == "it is not one"
    assert len(started) == 1


async def test_a_long_line_of_a_cell_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL_BYTES", 1_000_000)
    page = await read_notebook_page(notebook({"cell_type": "raw", "source": "x" * 300_000}), ALL)
    assert isinstance(page, NotebookPage)
    assert page.lines[1] == "x" * LONGEST_LINE + "… [+298,000 characters]"


@pytest.mark.process
async def test_a_worker_without_a_result_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def instead(*_: object) -> list[str]:
        return ["/bin/true"]

    monkeypatch.setattr(worker, "build_command", instead)
    assert await read_notebook_page(large_notebook(), ALL) == "the process that reads it ended without a result"
