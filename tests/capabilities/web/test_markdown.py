"""The HTML converter, in a thread and in a worker process."""

from __future__ import annotations

import sys

import pytest

from indusagi.capabilities import worker
from indusagi.capabilities.web.page import SHORT, convert_page
from indusagi.net.address import FetchError

pytestmark = pytest.mark.anyio
BASE = "https://x.example/a/"


async def test_a_long_page_is_converted_like_a_short_one() -> None:
    piece = "<p>Hé <a href='b'>link</a> \U0001f600</p>\n"
    short = await convert_page(piece, BASE, "markdown")
    count = SHORT // len(piece) + 2
    long = await convert_page(f"<title>T</title>{piece * count}", BASE, "markdown")
    assert short.text.strip() == "Hé [link](https://x.example/a/b) \U0001f600"
    assert long.text == "\n".join([short.text] * count)
    assert (short.title, long.title) == ("", "T")


async def test_a_page_nested_too_deep_is_reported() -> None:
    found = await convert_page("<div>" * 50_000 + "x", BASE, "plain")
    assert found.shortened


async def test_nul_characters_do_not_make_a_page_binary() -> None:
    assert (await convert_page("<p>a\x00b" + "\x00" * 5_000, BASE, "plain")).text.strip() == "ab"


@pytest.mark.parametrize("size", [10, SHORT])
async def test_a_page_the_converter_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    with pytest.raises(FetchError, match="could not be converted") as caught:
        await convert_page("x" * size + "<p>", BASE, "nonsense")  # pyright: ignore[reportArgumentType]
    assert caught.value.facts["reason"] == "html"


async def test_an_error_of_the_converter_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    import html_to_markdown  # noqa: PLC0415 — as late as the code under test

    def refuse(*_: object) -> object:
        raise html_to_markdown.InvalidInputError("no")

    monkeypatch.setattr(html_to_markdown, "convert", refuse)
    with pytest.raises(FetchError, match="no"):
        await convert_page("<p>", BASE, "markdown")


async def test_a_worker_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(FetchError, match="could not be converted"):
        await convert_page("x" * (SHORT + 1), BASE, "markdown")


async def test_a_worker_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[str]:
        return [sys.executable, "-Ic", "import os; os._exit(3)"]

    monkeypatch.setattr(worker, "build_command", broken)
    with pytest.raises(FetchError, match="the converter ended without a result"):
        await convert_page("x" * (SHORT + 1), BASE, "markdown")
