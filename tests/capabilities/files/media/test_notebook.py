"""Notebooks as text: cells, outputs, pictures; whatever is odd is passed over."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.documents import notebook

from indusagi.capabilities.files.media.notebook import read_notebook

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

PIXEL = base64.b64encode(b"\x89PNG some bytes").decode()


def code(*outputs: JsonValue, source: JsonValue = "x = 1", count: JsonValue = 3) -> JsonObject:
    return {"cell_type": "code", "source": source, "outputs": list(outputs), "execution_count": count}


def lines(*cells: JsonObject) -> list[str]:
    found = read_notebook(notebook(*cells))
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
    ],
)
def test_outputs_are_shown_as_text(output: JsonObject, shown: list[str]) -> None:
    assert lines(code(output))[2:] == ["# output:", *shown, ""]


def test_a_long_output_is_cut_and_says_so() -> None:
    found = lines(code({"output_type": "stream", "text": "x" * 12_000}))
    assert found[-2] == "… [+2,000 characters]"


def test_pictures_are_kept_with_the_line_that_stands_for_them() -> None:
    found = read_notebook(notebook(code({"data": {"image/png": PIXEL, "text/plain": "<fig>"}})))
    assert found is not None
    (picture,) = found.pictures
    assert (picture.mime, picture.data) == ("image/png", b"\x89PNG some bytes")
    assert found.lines[picture.line - 1] == "# output: image/png, 15 bytes"


def test_a_notebook_of_version_3_is_read() -> None:
    cell = {
        "cell_type": "code",
        "input": ["x"],
        "prompt_number": 2,
        "outputs": [{"output_type": "display_data", "png": PIXEL}],
    }
    found = read_notebook(json.dumps({"worksheets": [{"cells": [cell]}]}).encode())
    assert found is not None
    assert found.lines[:2] == ["## cell 1: code, run as [2]", "x"]
    assert len(found.pictures) == 1


@pytest.mark.parametrize("output", [1, None, {"data": 5}, {"data": {"image/png": "abcde"}}, {"text": 7}, {}])
def test_an_odd_output_is_passed_over(output: JsonValue) -> None:
    assert lines(code(output))[:2] == ["## cell 1: code, run as [3]", "x = 1"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"worksheets": 3}'])
def test_what_is_no_notebook_is_none(data: bytes) -> None:
    assert read_notebook(data) is None


def test_a_notebook_without_cells_is_one() -> None:
    found = read_notebook(notebook())
    assert found is not None
    assert (found.cells, found.lines) == (0, [])


def test_a_cell_of_no_kind_is_shown() -> None:
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
def test_nothing_in_a_document_breaks_the_reader(document: JsonValue) -> None:
    found = read_notebook(json.dumps(document).encode())
    assert found is None or all("\n" not in line for line in found.lines)
