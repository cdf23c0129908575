"""The HTML converter, in a thread and in a worker process."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from indusagi.capabilities.ports import FetchError
from indusagi.capabilities.web import convert, html_worker
from indusagi.capabilities.web.convert import SHORT, convert_page
from indusagi.capabilities.web.html_worker import decode_answer, encode_request

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
    def broken(*_: str, **__: str) -> list[str]:
        return [sys.executable, "-Ic", "import os; os._exit(3)"]

    monkeypatch.setattr(convert, "own_python", broken)
    with pytest.raises(FetchError, match="gave up"):
        await convert_page("x" * (SHORT + 1), BASE, "markdown")


def ask(monkeypatch: pytest.MonkeyPatch, style: Any) -> tuple[str, bool]:
    """Run the worker in this process, with limits recorded instead of set."""
    limits: list[tuple[int, int]] = []

    def note(cpu_s: int, memory_bytes: int) -> None:
        limits.append((cpu_s, memory_bytes))

    given, reply = io.BytesIO(b"".join(encode_request("<p>h\xe9</p>", BASE, style))), io.BytesIO()
    monkeypatch.setattr(html_worker, "limit_ourselves", note)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=given))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=reply))
    html_worker.main()
    monkeypatch.undo()
    assert limits == [(20, 1 << 30)]
    return decode_answer([reply.getvalue()])


def test_the_worker_answers_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, "plain") == ("h\xe9\n", False)
    with pytest.raises(ValueError, match="nonsense"):
        ask(monkeypatch, "nonsense")
