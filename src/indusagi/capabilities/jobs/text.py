"""What a program wrote, as text for a model: no escapes, no overwritten progress, no bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.capabilities.budget import OutputBudget, clip
from indusagi.capabilities.files.text.display import find_invisible
from indusagi.capabilities.sandbox.capture import KEPT_HEAD_BYTES, KEPT_TAIL_BYTES
from indusagi.runtime.contract import Keep

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from indusagi.capabilities.ports import ShellProcess

SHOWN_BYTES = 30_000
SHOWN_LINES = 1_900
_WHOLE_BYTES = 1024 * 1024
"""Up to here all of it is looked at: a progress bar writes much and leaves little."""
_HEAD_SHARE = 5
_SNIFFED_BYTES = 8 * 1024
_BINARY_SHARE = 0.3
# All begin with the one character, or a megabyte takes fifty times as long, and others wait.
_ESCAPES = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor moves
    # Strings for the terminal: titles, clipboards. One without an end ends with its line, or
    # whatever comes after it would not be shown.
    r"|[\]PX^_](?:[^\x07\x1b]*(?:\x07|\x1b\\)|[^\x07\x1b\n]*)"
    r"|[ -/]*[0-~])"  # everything else
)
_SHORT_ESCAPE = re.compile(r"[\x80-\x9f]")
"""An escape and the character after it, written as one."""
_OVERSTRUCK = re.compile(r"[^\n]\x08")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CONTROL_BYTES = bytes({*range(32), 127} - {*b"\t\n"})
"""The same, but for those that are short escapes."""


@dataclass(frozen=True, slots=True)
class RenderedOutput:
    """What is shown of an output."""

    text: str
    whole: bool
    """Whether nothing was left out."""


def plain_text(data: bytes) -> str:
    """Read an output as a terminal would show it."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    if b"\xc2" in data:
        text = _SHORT_ESCAPE.sub(lambda found: f"\x1b{chr(ord(found[0]) - 0x40)}", text)
    text = _without(_ESCAPES, text)
    if "\r" in text:
        text = "\n".join(_settled(line) for line in text.split("\n"))
    if "\x08" in text:
        text = _without(_OVERSTRUCK, text)
    return text.encode().translate(None, _CONTROL_BYTES).decode()


def _without(pattern: re.Pattern[str], text: str) -> str:
    """Leave out what matches; unlike `sub` this lets others have their turn meanwhile."""
    kept: list[str] = []
    at = 0
    for found in pattern.finditer(text):
        kept.append(text[at : found.start()])
        at = found.end()
    return "".join((*kept, text[at:])) if kept else text


def shows(lines: Iterable[str], text: str) -> bool:
    """Tell whether one of these lines has a text in it, as they are shown."""
    return any(text in line or (_CONTROLS.search(line) and text in plain_text(line.encode())) for line in lines)


def hidden_note(text: str, first: int = 1) -> Sequence[str]:
    """Say what a shown output holds that cannot be seen; nothing if there is nothing.

    Args:
        text: What is shown.
        first: The number of its first line.
    """
    hidden = find_invisible(enumerate(text.split("\n"), first))
    return [f"hidden characters: {', '.join(map(str, hidden))}"] if hidden else []


def _settled(line: str) -> str:
    """Give what the last of several writings over one line has left."""
    return line.rstrip("\r").rpartition("\r")[2]


def is_binary(data: bytes) -> bool:
    """Tell whether this is no text: a NUL byte, or too much that no terminal could show."""
    sample = data[:_SNIFFED_BYTES]
    if not sample:
        return False
    text = sample.decode("utf-8", "replace")
    odd = sum(1 for char in _ESCAPES.sub("", text) if char == "\ufffd" or _CONTROLS.match(char))
    return b"\0" in sample or odd > _BINARY_SHARE * len(text)


def render_output(process: ShellProcess, whole_is_in: str | None) -> RenderedOutput:
    """Read what a command wrote and cut it for a model; not for the event loop.

    Raises:
        OSError: The output could not be kept.
    """
    size = process.output_size()
    start = process.read_output(0, _SNIFFED_BYTES)
    if is_binary(start):
        where = "" if whole_is_in is None else f", kept in {whole_is_in}"
        return RenderedOutput(f"[binary {size:,} bytes{where}]", whole=False)
    if size <= _WHOLE_BYTES:
        return _cut(plain_text(process.read_output()), size, whole_is_in)
    head = plain_text(process.read_output(0, _WHOLE_BYTES // 4))
    tail = plain_text(process.read_output(size - _WHOLE_BYTES))
    return RenderedOutput(_joined(*_ends(head, tail), size, whole_is_in), whole=False)


def _cut(text: str, size: int, whole_is_in: str | None) -> RenderedOutput:
    if OutputBudget(SHOWN_BYTES, SHOWN_LINES).admits(text):
        return RenderedOutput(text, whole=True)
    return RenderedOutput(_joined(*_ends(text, text), size, whole_is_in), whole=False)


def _ends(head: str, tail: str) -> tuple[str, str]:
    first = OutputBudget(SHOWN_BYTES // _HEAD_SHARE, SHOWN_LINES // _HEAD_SHARE)
    rest = OutputBudget(SHOWN_BYTES - first.max_bytes, SHOWN_LINES - first.max_lines)
    return clip(head, first, Keep.HEAD).head, clip(tail, rest, Keep.TAIL).tail


def _joined(head: str, tail: str, size: int, whole_is_in: str | None) -> str:
    is_whole = size <= KEPT_HEAD_BYTES + KEPT_TAIL_BYTES
    what = "The whole is" if is_whole else "Its first and last 32 MiB are"
    where = "" if whole_is_in is None else f" {what} in {whole_is_in}: read it with an offset."
    left_out = max(size - len(head.encode()) - len(tail.encode()), 0)
    return f"{head.rstrip()}\n[… about {left_out:,} of {size:,} bytes left out.{where}]\n{tail}"
