"""HTML as Markdown or plain text, however large or hostile, without holding up the event loop.

The converter is fast but lets nobody else run while it works. A short page is converted in a
thread. A longer one goes to a process of its own, which has a limit of time and of memory and can
be ended at any moment; nothing but the page and the text passes between the two.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from html import unescape
from typing import Any, Final, Literal, TypeAlias, cast

from anyio import fail_after, to_thread

from indusagi.capabilities.egress import WebTrouble

Style: TypeAlias = Literal["markdown", "plain"]
SHORT: Final = 32 * 1024
"""Characters that are converted in well under the time anybody would notice."""
LONGEST_S: Final = 20.0
_HEAD: Final = 64 * 1024
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,500})", re.IGNORECASE)
_SIZE: Final = 8
_MEMORY: Final = 1024 * 1024 * 1024
_EXCLUDED: Final = ["nav", "script", "style", "noscript", "template", "iframe", "svg", "dialog"]


@dataclass(frozen=True, slots=True)
class Converted:
    """A page as text."""

    text: str
    title: str
    shortened: bool
    """Whether parts were left out for lying too deep."""


async def converted(html: str, base_url: str, style: Style) -> Converted:
    """Convert a page; links in it become whole addresses.

    Raises:
        WebTrouble: It cannot be converted, or not in time.
    """
    # The converter takes a text with many of these for a file that is no text.
    html = html.replace("\x00", "")
    try:
        if len(html) <= SHORT:
            answer = await to_thread.run_sync(convert, html, base_url, style)
        else:
            answer = await _in_a_process(html, base_url, style)
    except (ValueError, OSError, TimeoutError) as exc:
        message = f"the page could not be converted: {exc or 'it took too long'}"
        raise WebTrouble(message, code="failed", reason="html") from exc
    text, shortened = answer
    return Converted(text, _title(html), shortened)


def _title(html: str) -> str:
    found = _TITLE.search(html, 0, _HEAD)
    return "" if found is None else " ".join(unescape(found[1]).split())


def convert(html: str, base_url: str, style: Style) -> tuple[str, bool]:
    """Convert a page in this thread: the text, and whether anything was left out.

    Raises:
        ValueError: The converter does not take it.
    """
    import html_to_markdown as converter  # noqa: PLC0415 — a large library, for pages alone

    options = converter.ConversionOptions(
        output_format=style,
        base_url=base_url,
        exclude_selectors=_EXCLUDED,
        inline_data_media="alt_text_only",
        extract_metadata=False,
        preprocessing=converter.PreprocessingOptions(remove_navigation=True, remove_forms=False),
    )
    try:
        found = converter.convert(html, options)
    except converter.ConversionError as exc:
        raise ValueError(str(exc)) from exc
    deep = any(str(warning.kind) == "depth_limit_exceeded" for warning in found.warnings)
    return found.content or "", deep


async def _in_a_process(html: str, base_url: str, style: Style) -> tuple[str, bool]:
    from indusagi.core.child import Child  # noqa: PLC0415 — processes, for large pages alone

    page = _Output()
    child = Child(page)
    # Isolated: what is in the working directory or the environment is not what is run.
    argv = [sys.executable, "-I", "-c", _SCRIPT.format(memory=_MEMORY, seconds=int(LONGEST_S))]
    try:
        with fail_after(LONGEST_S):
            await child.start(argv, {}, None)
            child.write(_packed([base_url, style], html))
            await child.output_ended.wait()
    finally:
        await child.end(0)
    return await to_thread.run_sync(page.answer)


_SCRIPT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds}))
try:
    resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
except (OSError, ValueError):
    pass
from indusagi.capabilities.web.markdown import serve
serve()
"""


def serve() -> None:
    """Answer one request on standard input: what the process is for."""
    size = int.from_bytes(sys.stdin.buffer.read(_SIZE), "big")
    (base_url, style), html = _unpacked(sys.stdin.buffer.read(size))
    try:
        text, shortened = convert(html, base_url, style)
        answer = _packed(["done", shortened], text)
    except ValueError as exc:
        answer = _packed(["refused", str(exc)], "")
    sys.stdout.buffer.write(answer)


def _packed(facts: list[str | bool], text: str) -> bytes:
    """Write a few facts in a line of JSON and the text behind it, the size of all in front."""
    data = f"{json.dumps(facts)}\n{text}".encode("utf-8", "surrogatepass")
    return len(data).to_bytes(_SIZE, "big") + data


def _unpacked(data: bytes) -> tuple[list[Any], str]:
    facts, _, text = data.partition(b"\n")
    return cast("list[Any]", json.loads(facts)), text.decode("utf-8", "surrogatepass")


class _Output:
    """What the process has written."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def wrote(self, data: bytes) -> None:
        self._pieces.append(data)

    def complained(self, data: bytes) -> None:
        """Leave its complaints be: they are Python's, about a page that nobody here wrote."""

    def changed(self) -> None:
        """Look at nothing: whoever waits looks at the events of the process."""

    def answer(self) -> tuple[str, bool]:
        """Read the answer.

        Raises:
            ValueError: There is none.
        """
        try:
            (outcome, more), text = _unpacked(b"".join(self._pieces)[_SIZE:])
        except ValueError:
            raise ValueError("the converter gave up") from None
        if outcome != "done":
            raise ValueError(more)
        return text, bool(more)
