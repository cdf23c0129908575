"""Commands that do no more than show one file: whoever has run one has read the file."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.backends import FileKind
from indusagi.capabilities.files.codec import digest_bytes

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext

_LARGEST = 1024 * 1024
"""Of a larger file no command could have shown much."""
_WORD = r"""'[^'\n]*'|"[^"$`\\\n!]*"|[\w@%+=:,./-]+"""
_WORDS = re.compile(_WORD)
_PLAIN = re.compile(rf"\s*(?:{_WORD})(?:[ \t]+(?:{_WORD}))*\s*")
"""Words in which nothing stands for anything else, and nothing but words."""
_COUNTED = r"-[nc][+-]?\d+|-\d+|-q"
_GREP = r"-[aEFGhHinoPsvwx]+|-[ABCm]\d+"
_OPTIONS = {
    "cat": r"-[AbeEnstTuv]+",
    "nl": r"-[bhf][aetn]",
    "head": _COUNTED,
    "tail": _COUNTED,
    "sed": r"-n",
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
}
"""Who shows a file, with which options; all others change it, follow it or show something else."""
_WITH_A_NUMBER = {"head": "nc", "tail": "nc", "grep": "ABCm", "egrep": "ABCm", "fgrep": "ABCm"}
_LINES = re.compile(r"(\d+|\$)(,(\d+|\$))?p")


@dataclass(frozen=True, slots=True)
class Reading:
    """A file that a command is about to show."""

    path: str
    digest: str


def file_shown(command: str) -> str | None:
    """Name the one file that a command shows; None if it may do anything else."""
    if _PLAIN.fullmatch(command) is None:
        return None
    name, *words = (word.strip("'\"") for word in _WORDS.findall(command))
    if name not in _OPTIONS:
        return None
    options, operands = _parted(name, words)
    if not all(re.fullmatch(_OPTIONS[name], option) for option in options):
        return None
    if name == "sed":
        is_so = options == ["-n"] and len(operands) == 2 and _LINES.fullmatch(operands[0])
    else:
        is_so = len(operands) == (2 if name.endswith("grep") else 1)
    return operands[-1] if is_so else None


def _parted(name: str, words: list[str]) -> tuple[list[str], list[str]]:
    """Tell options from what follows them; a number belongs to the option before it."""
    options: list[str] = []
    while words and words[0].startswith("-") and words[0] != "--":
        option, words = words[0], words[1:]
        if option[1:] and option[1:] in _WITH_A_NUMBER.get(name, "") and words:
            option, words = option + words[0], words[1:]
        options.append(option)
    return options, words[1:] if words[:1] == ["--"] else words


async def about_to_read(command: str, folder: str, ctx: ToolContext) -> Reading | None:
    """Look at the file that a command is about to show, if it is one."""
    name = None if ctx.framework.read_state is None else file_shown(command)
    if name is None:
        return None
    try:
        path = await ctx.fs.resolve(os.path.join(folder, name))
        found = await ctx.fs.stat(path)
        if found.kind is not FileKind.FILE or found.size > _LARGEST:
            return None
        return Reading(path, await _digest(path, ctx))
    except OSError:
        return None


async def remember(reading: Reading, ctx: ToolContext) -> None:
    """Count a file as read, if it is still what it was before it was shown."""
    state = ctx.framework.read_state
    try:
        if state is not None and await _digest(reading.path, ctx) == reading.digest:
            state.record(reading.path, reading.digest)
    except OSError:
        return


async def _digest(path: str, ctx: ToolContext) -> str:
    return await to_thread.run_sync(digest_bytes, await ctx.fs.read_bytes(path, limit=_LARGEST + 1))
