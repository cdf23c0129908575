"""The converter, in a thread and in a process of its own."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from indusagi.capabilities.ports import FetchError
from indusagi.capabilities.web import converter, markdown
from indusagi.capabilities.web.converter import answer, request
from indusagi.capabilities.web.markdown import SHORT, converted

pytestmark = pytest.mark.anyio
BASE = "https://x.example/a/"


async def test_a_long_page_is_converted_like_a_short_one() -> None:
    piece = "<p>Hé <a href='b'>link</a> \U0001f600</p>\n"
    short = await converted(piece, BASE, "markdown")
    count = SHORT // len(piece) + 2
    long = await converted(f"<title>T</title>{piece * count}", BASE, "markdown")
    assert short.text.strip() == "Hé [link](https://x.example/a/b) \U0001f600"
    assert long.text == "\n".join([short.text] * count)
    assert (short.title, long.title) == ("", "T")


async def test_a_page_nested_too_deep_says_so() -> None:
    found = await converted("<div>" * 50_000 + "x", BASE, "plain")
    assert found.shortened


async def test_nul_does_not_make_a_page_a_file() -> None:
    assert (await converted("<p>a\x00b" + "\x00" * 5_000, BASE, "plain")).text.strip() == "ab"


@pytest.mark.parametrize("size", [10, SHORT])
async def test_what_the_converter_refuses_is_trouble(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    with pytest.raises(FetchError, match="could not be converted") as caught:
        await converted("x" * size + "<p>", BASE, "nonsense")  # pyright: ignore[reportArgumentType]
    assert caught.value.facts["reason"] == "html"


async def test_an_error_of_the_converters_own_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    import html_to_markdown  # noqa: PLC0415 — as late as the code under test

    def refuse(*_: object) -> object:
        raise html_to_markdown.InvalidInputError("no")

    monkeypatch.setattr(html_to_markdown, "convert", refuse)
    with pytest.raises(FetchError, match="no"):
        await converted("<p>", BASE, "markdown")


async def test_a_process_that_cannot_be_started_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(FetchError, match="could not be converted"):
        await converted("x" * (SHORT + 1), BASE, "markdown")


async def test_a_process_that_dies_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: str, **__: str) -> list[str]:
        return [sys.executable, "-Ic", "import os; os._exit(3)"]

    monkeypatch.setattr(markdown, "own_python", broken)
    with pytest.raises(FetchError, match="gave up"):
        await converted("x" * (SHORT + 1), BASE, "markdown")


def ask(monkeypatch: pytest.MonkeyPatch, style: Any) -> tuple[str, bool]:
    """Have the request answered here, under limits that are only noted."""
    limits: list[tuple[int, int]] = []

    def note(cpu_s: int, memory_bytes: int) -> None:
        limits.append((cpu_s, memory_bytes))

    given, reply = io.BytesIO(b"".join(request("<p>h\xe9</p>", BASE, style))), io.BytesIO()
    monkeypatch.setattr(converter, "limit_ourselves", note)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=given))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=reply))
    converter.main()
    monkeypatch.undo()
    assert limits == [(20, 1 << 30)]
    return answer([reply.getvalue()])


def test_the_process_answers_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, "plain") == ("h\xe9\n", False)
    with pytest.raises(ValueError, match="nonsense"):
        ask(monkeypatch, "nonsense")
