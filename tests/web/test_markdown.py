"""The converter, in a thread and in a process of its own."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from tests.support.scripts import unmeasured

from indusagi.capabilities.egress import WebTrouble
from indusagi.capabilities.web import converter
from indusagi.capabilities.web.converter import confine, serve
from indusagi.capabilities.web.markdown import SHORT, converted

if TYPE_CHECKING:
    from pathlib import Path

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
async def test_what_the_converter_refuses_is_trouble(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    with pytest.raises(WebTrouble, match="could not be converted") as caught:
        await converted("x" * size + "<p>", BASE, "nonsense")  # pyright: ignore[reportArgumentType]
    assert caught.value.facts["reason"] == "html"


async def test_an_error_of_the_converters_own_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    import html_to_markdown  # noqa: PLC0415 — as late as the code under test

    def refuse(*_: object) -> object:
        raise html_to_markdown.InvalidInputError("no")

    monkeypatch.setattr(html_to_markdown, "convert", refuse)
    with pytest.raises(WebTrouble, match="no"):
        await converted("<p>", BASE, "markdown")


async def test_a_process_that_cannot_be_started_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(WebTrouble, match="could not be converted"):
        await converted("x" * (SHORT + 1), BASE, "markdown")


async def test_a_process_that_dies_is_trouble(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import os; os._exit(3)", encoding="utf-8")
    monkeypatch.setattr(converter, "__file__", str(broken))
    with pytest.raises(WebTrouble, match="gave up"):
        await converted("x" * (SHORT + 1), BASE, "markdown")


def ask(monkeypatch: pytest.MonkeyPatch, style: str) -> tuple[list[object], str]:
    data = json.dumps([BASE, style]).encode() + b"\n<p>h\xc3\xa9</p>"
    given, answer = io.BytesIO(len(data).to_bytes(8, "big") + data), io.BytesIO()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=given))
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=answer))
    serve()
    monkeypatch.undo()
    facts, _, text = answer.getvalue()[8:].partition(b"\n")
    return json.loads(facts), text.decode()


def test_the_process_answers_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, "plain") == (["done", False], "hé\n")
    facts, text = ask(monkeypatch, "nonsense")
    assert (facts[0], text) == ("refused", "")


@pytest.mark.process
def test_the_process_has_limits_of_time_and_memory() -> None:
    code = (
        "import resource\n"
        "from indusagi.capabilities.web.converter import confine\n"
        "confine()\n"
        "print(resource.getrlimit(resource.RLIMIT_CPU)[0])\n"
        "print(resource.getrlimit(resource.RLIMIT_AS)[0] > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
        env=unmeasured(),
    )
    assert done.stdout == "20\nTrue\n"


def test_a_limit_that_cannot_be_set_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def refuse(limit: int, most: tuple[int, int]) -> None:
        tried.append(most[0])
        raise ValueError("not here")

    monkeypatch.setattr("resource.setrlimit", refuse)
    confine()
    assert len(tried) == 2
