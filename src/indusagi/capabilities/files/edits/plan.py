"""A change of a file, worked out before anything is written: the bytes, and what to say of them.

Pure and synchronous: whoever changes a file reads it, has the change worked out in a thread, and
writes what came out. What cannot be done is a `Refused`, with words for whoever asked for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from indusagi.capabilities.files.edits.elisions import omissions
from indusagi.capabilities.files.edits.excerpt import first_lines, lines_shown, shown_line
from indusagi.capabilities.files.edits.match import MOST_SPANS, Found, Missed, Rung, find
from indusagi.capabilities.files.edits.splice import same_everywhere, splice
from indusagi.capabilities.files.edits.suggest import closest
from indusagi.capabilities.files.text.codec import (
    TextForm,
    decode_lossless,
    digest_bytes,
    encode,
    encode_piece,
    is_text,
)
from indusagi.capabilities.files.text.display import has_gutter, without_gutter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonValue

LARGEST_FILE = 8 * 1024 * 1024
"""Bytes of a file that is changed: what is larger is for a program, and would hold up the rest."""
_MOST_LISTED = 10


@dataclass(frozen=True, slots=True)
class Replacement:
    """One text for another."""

    old: str
    new: str
    every: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """Which lines of a file an answer has shown, from the first on."""

    digest: str
    """That of the bytes of the whole file."""
    lines: int
    whole: bool
    """Whether these lines are all of it, none of them cut."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a file was and what it becomes."""

    before: bytes | None
    """None: there is no such file."""
    after: bytes
    former: str
    text: str
    form: TextForm
    notes: tuple[str, ...] = ()
    unseen: bool = False
    """The file holds what was not read, or what somebody else has written since."""
    glance: Shown | None = None
    """What is known of the file afterwards, where that is its first lines only."""
    facts: dict[str, JsonValue] = field(default_factory=dict[str, "JsonValue"])


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a change cannot be made."""

    code: str
    message: str
    facts: dict[str, JsonValue] = field(default_factory=dict[str, "JsonValue"])
    shown: Shown | None = None
    """What the message shows of the file; it counts as read."""


def overwritten(before: bytes | None, content: str, path: str) -> Change | Refused:
    """Work out what a file becomes that is to hold `content`: in its own encoding and endings."""
    former, form = ("", TextForm()) if not before else decode_lossless(before)
    if not is_text(former):
        former, form = "", TextForm()
    text = content.removeprefix("\ufeff") if form.bom else content
    if form.line_ending == "crlf" and "\r" not in text:
        text = text.replace("\n", "\r\n")
    left_out = _placeholders(text, former, path)
    if left_out is not None:
        return left_out
    try:
        after = form.bom + encode_piece(text, form)
    except OSError as exc:
        return Refused("encoding", exc.strerror or str(exc))
    return Change(before, after, former, text, form, _guess_note(form, text))


def edited(before: bytes, edits: Sequence[Replacement], path: str, *, exactly: bool = False) -> Change | Refused:
    """Work out what a file becomes when texts in it are replaced, one after the other, or none.

    Args:
        before: All of the file.
        edits: What is replaced by what.
        path: Its name, for what is said of it.
        exactly: Nothing is ignored in comparing, and each text must stand in one place only: the
            file is not the one that was read.
    """
    former, form = decode_lossless(before)
    if not is_text(former):
        return Refused("binary", "this is not text; edit changes text files only")
    text = former
    made: list[_Done] = []
    for at, edit in enumerate(edits):
        done = _Edit(text, edit, exactly=exactly).done(form)
        if isinstance(done, Refused):
            return _told_which(done, at, len(edits))
        text = done.text
        made.append(replace(done, text=""))
    left_out = _placeholders(text, former, path)
    if left_out is not None:
        return left_out
    notes = (*_notes_on(made), *_guess_note(form, "".join(edit.new for edit in edits)))
    facts: dict[str, JsonValue] = {
        "replacements": sum(done.count for done in made),
        "rungs": [done.rung.name.lower() for done in made],
    }
    return Change(before, encode(text, form), former, text, form, notes, facts=facts)


_SHOWN_BYTES = 4_096


def stale(data: bytes, code: str, message: str) -> Refused:
    """Refuse for a file that is not known as it is, and show how it is: its size, how it begins.

    What is shown counts as read, so that the same change can be asked for again.
    """
    text, _ = decode_lossless(data[:_SHOWN_BYTES])
    facts: dict[str, JsonValue] = {"size": len(data)}
    if not is_text(text):
        said = f"{message}; read it first. It has {len(data):,} bytes and begins:\n(not text)"
        return Refused(code, said, facts)
    lines = lines_shown(text, is_cut=len(data) > _SHOWN_BYTES)
    whole = len(data) <= _SHOWN_BYTES and text.count("\n", 0, -1) < lines
    if whole:
        said = (
            f"{message}. This is all of it ({len(data):,} bytes), which counts as read now: "
            f"repeat the call if it is still right.\n{first_lines(text)}"
        )
    else:
        said = f"{message}; read it first. It has {len(data):,} bytes and begins:\n{first_lines(text)}"
    return Refused(code, said, facts, Shown(digest_bytes(data), lines, whole))


@dataclass(frozen=True, slots=True)
class _Done:
    """A replacement that was made."""

    text: str
    """All of it, afterwards."""
    rung: Rung
    count: int
    """In how many places."""
    indented: bool = False
    """The lines were given the indentation of the file."""
    numbered: bool = False
    """Line numbers that had been copied along were taken away."""


class _Edit:
    """One replacement in a text."""

    def __init__(self, text: str, edit: Replacement, *, exactly: bool) -> None:
        self._text = text
        self._edit = edit
        self._exactly = exactly

    def done(self, form: TextForm) -> _Done | Refused:
        """Give the text with the replacement made."""
        try:
            encode_piece(self._edit.new, form)
        except OSError as exc:
            return Refused("encoding", exc.strerror or str(exc))
        if self._edit.every and not self._exactly:
            done = self._everywhere()
            if done is not None:
                return done
        found = self._once() if self._exactly else self._found()
        if isinstance(found, Refused):
            return found
        places, edit = found
        count = len(places.spans)
        indented = any(span.lines for span in places.spans)
        return self._too_large(edit, count) or _Done(
            splice(self._text, places, edit.old, edit.new), places.rung, count, indented, edit is not self._edit
        )

    def _everywhere(self) -> _Done | Refused | None:
        """Replace in one go what is the same everywhere: there may be millions of places."""
        edit = self._edit
        new = same_everywhere(self._text, edit.old, edit.new)
        count = 0 if new is None else self._text.count(edit.old)
        if new is None or not count:
            return None
        large = self._too_large(edit, count)
        return large or _Done(self._text.replace(edit.old, new), Rung.EXACT, count)

    def _too_large(self, edit: Replacement, count: int) -> Refused | None:
        size = len(self._text) + count * (len(edit.new) - len(edit.old))
        if size <= LARGEST_FILE:
            return None
        return Refused("too_large", f"the file would have about {size:,} characters")

    def _once(self) -> tuple[Found, Replacement] | Refused:
        """Find a text in a file that is not the one that was read."""
        found = find(self._text, self._edit.old, self._edit.new)
        if isinstance(found, Missed) or found.rung is not Rung.EXACT or len(found.spans) > 1:
            return Refused("stale", "oldText does not stand in it exactly once, letter for letter")
        return found, self._edit

    def _found(self) -> tuple[Found, Replacement] | Refused:
        edit = self._edit
        found = find(self._text, edit.old, edit.new, every=edit.every)
        bare = without_gutter(edit.old) if isinstance(found, Missed) else None
        if bare:
            # Line numbers were copied along.
            new = without_gutter(edit.new)
            if new is None and has_gutter(edit.new):
                message = "oldText has line numbers, newText has them on some lines; leave them out"
                return Refused("no_match", message)
            edit = Replacement(bare, edit.new if new is None else new, edit.every)
            found = find(self._text, edit.old, edit.new, every=edit.every)
        if isinstance(found, Missed):
            return self._missed(found, edit)
        if len(found.spans) > 1 and not edit.every:
            return self._ambiguous(found)
        return found, edit

    def _ambiguous(self, found: Found) -> Refused:
        count = len(found.spans)
        lines = _places(self._text, found)
        listed = "\n".join(f"{number:6d}\t{shown_line(line, 120)}" for number, line in lines)
        many = f"{count:,}" if count < MOST_SPANS else f"at least {count:,}"
        left = f"{count - len(lines)} more" if count < MOST_SPANS else "more"
        more = f"\n… and {left}" if count > len(lines) else ""
        ignored = "" if found.rung is Rung.EXACT else f" (but for {found.rung})"
        return Refused(
            "ambiguous",
            f"oldText stands in {many} places{ignored}; give more lines around the one that is "
            f"meant, or replaceAll to change all of them:\n{listed}{more}",
            {"count": count, "lines": [number for number, _ in lines]},
        )

    def _missed(self, missed: Missed, edit: Replacement) -> Refused:
        tried = ", ".join(list(Rung)[1:])
        parts = [f"oldText is not in the file: compared exactly, then without regard to {tried}."]
        facts: dict[str, JsonValue] = {}
        if missed.lines:
            numbers = ", ".join(map(str, missed.lines[:_MOST_LISTED]))
            parts.append(
                f"At line {numbers} the lines agree but for indentation, and no one rule leads "
                "from the indentation of oldText and newText to that of the file."
            )
        if len(edit.new.strip()) > 1 and edit.new in self._text:
            parts.append("newText is in the file already: the edit may have been made before.")
        near = closest(self._text, edit.old)
        if near is None:
            parts.append("Nothing in the file is like it. Read the file again.")
        else:
            facts = {"closestLine": near.line, "alike": near.alike}
            parts.append(f"Closest at line {near.line} (- oldText, + the file; · space, → tab):\n{near.view}")
        return Refused("no_match", "\n".join(parts), facts)


def _places(text: str, found: Found) -> list[tuple[int, str]]:
    places: list[tuple[int, str]] = []
    number, at = 1, 0
    text = text if "\n" in text else text.replace("\r", "\n")
    for span in found.spans[:_MOST_LISTED]:
        number += text.count("\n", at, span.start)
        at = span.start
        end = text.find("\n", at)
        line = text[text.rfind("\n", 0, at) + 1 : end if end >= 0 else len(text)]
        places.append((number, line))
    return places


def _notes_on(made: Sequence[_Done]) -> list[str]:
    """Say what was not as it was quoted."""
    used = {done.rung for done in made}
    notes = [f"matched without regard to {rung}" for rung in list(Rung)[1:] if rung in used]
    if any(done.indented for done in made):
        notes.append("newText was indented as the file is")
    if any(done.numbered for done in made):
        notes.append("line numbers of read were taken out of the texts")
    return notes


def _guess_note(form: TextForm, written: str) -> tuple[str, ...]:
    """Say of letters in which encoding they were written, where the file does not name its own."""
    if not form.guessed or written.isascii():
        return ()
    return (f"letters were written in {form.encoding}, the guessed encoding of the file",)


def _placeholders(text: str, former: str, path: str) -> Refused | None:
    found = omissions(text, former, path)
    if not found:
        return None
    listed = "\n".join(f"{number:6d}\t{line}" for number, line in found[:_MOST_LISTED])
    return Refused(
        "omission",
        "the text has a comment in the place of code that was left out; nothing was written. "
        f"Give the code itself, or use edit for a part of the file:\n{listed}",
        {"lines": [number for number, _ in found[:_MOST_LISTED]]},
    )


def _told_which(refused: Refused, at: int, count: int) -> Refused:
    if count == 1:
        return refused
    message = f"edit {at + 1} of {count} cannot be made, so none was: {refused.message}"
    return Refused(refused.code, message, {**refused.facts, "edit": at + 1})
