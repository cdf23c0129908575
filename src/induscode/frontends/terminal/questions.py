"""The open question: its rows in the live region, and the keys that answer it.

A question about a call shows its title, what it changes and the answers, and disappears with the answer: the call's
line takes its place. Other questions are printed first, and only their answers are part of the live region.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from induscode.cli.dialog import Choice, Question, Reply
from induscode.frontends.terminal.blocks import cut_to_cells, measure_cells, wrap_to_cells
from induscode.frontends.terminal.render import Palette, format_diff_rows, to_visible

_LIST_ROWS = 7
_WHOLE = 1_000_000
"""Rows and columns of a diff that isn't cut."""
_BODY_ROWS = 3
"""Rows of one fact."""
_MARK_HINT = "space marks · a all · enter goes on with the marked ones · esc not now"
HINT = "what should it do instead? (enter: just no)"


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """A question that waits for its answer."""

    question: Question
    reply: asyncio.Future[Reply]
    selected: int = 0
    key: str = ""
    """The choice whose text the user is entering."""
    wanted: str = ""
    """Words that narrow a list."""
    marked: set[str] = field(default_factory=set[str])
    """Keys of marked choices."""

    @property
    def choices(self) -> Sequence[Choice]:
        """The choices that match every word."""
        words = self.wanted.casefold().split()
        return [one for one in self.question.choices if all(word in one.label.casefold() for word in words)]

    @property
    def is_call(self) -> bool:
        """Whether it's about a call: Esc ends the turn, too."""
        return self.question.brief is not None

    @property
    def wants_text(self) -> bool:
        """Whether the user enters a text."""
        return bool(self.key) or not self.question.choices

    def find_choice(self, text: str) -> int | None:
        """Find the choice of a letter or a digit."""
        keys = [choice.key for choice in self.question.choices]
        if text.lower() in keys:
            return keys.index(text.lower())
        return int(text) - 1 if text in {"1", "2", "3", "4", "5"} and int(text) <= len(keys) else None

    def mark(self, text: str) -> None:
        """Mark or unmark the selected choice with a space, one by its key, or all (none if all are marked)."""
        keys = {choice.key for choice in self.question.choices}
        key = self.question.choices[self.selected].key if text == " " else text
        if key == "a":
            self.marked = set[str]() if self.marked == keys else keys
        else:
            self.marked ^= {key} & keys

    def list_rows(self, palette: Palette, width: int, limit: int) -> list[str]:
        """List its rows, at most `limit`."""
        if self.question.picks or self.question.marks:
            return self._list_picks(palette, width, limit)
        tail = [] if self.wants_text else [*self._list_choices(palette, width)][:limit]
        if not self.is_call:
            return tail
        head = ["", *self._list_head(palette, width)][: max(0, limit - len(tail))]
        body, room = [*self._list_body(palette, width)], limit - len(head) - len(tail)
        if len(body) > room:
            left = f"    … {len(body) - room + 1} more rows, d shows all"
            body = [*body[: room - 1], palette.dim(cut_to_cells(left, width))] if room > 0 else []
        return [*head, *body, *tail]

    def list_details(self, palette: Palette, width: int) -> Iterator[str]:
        """Yield everything known about the call, as finished rows."""
        yield from self._list_head(palette, width)
        for line in self.question.lines:
            yield from (f"  {row}" for row in wrap_to_cells(line, width - 2))
        if self.question.change is not None:
            yield from format_diff_rows(palette, self.question.change.diff, _WHOLE, _WHOLE)
        yield ""

    def _list_head(self, palette: Palette, width: int) -> Iterator[str]:
        question, counts = self.question, ""
        if question.change is not None:
            counts = f"  {question.change.counts}"
        place = question.place()
        title = f"{question.title} ({place})" if place else question.title
        rows = [*wrap_to_cells(title, width - 2 - measure_cells(counts))]
        for number, row in enumerate(rows):
            end = palette.dim(counts) if number == len(rows) - 1 else ""
            yield f"{'  ' if number else palette.warn('● ')}{palette.strong(row)}{end}"

    def _list_body(self, palette: Palette, width: int) -> Iterator[str]:
        for line in self.question.brief or ():
            rows = [*wrap_to_cells(line, width - 4)]
            yield from (f"    {row}" for row in rows[:_BODY_ROWS])
        if self.question.change is not None:
            yield from format_diff_rows(palette, self.question.change.diff, width, _WHOLE)

    def _list_choices(self, palette: Palette, width: int) -> Iterator[str]:
        if self.question.prompt:
            yield ""
            yield cut_to_cells(f"  {self.question.prompt}", width)
        for index, choice in enumerate(self.question.choices):
            yield self._format_choice(palette, width, f"{choice.key}  {choice.label}", index)
        if self.is_call:
            yield palette.dim(cut_to_cells("  esc  No, and stop · d details", width))

    def _list_picks(self, palette: Palette, width: int, limit: int) -> list[str]:
        limit = min(limit, _LIST_ROWS) - 1
        first = max(0, self.selected - limit + 1)
        shown = enumerate(self.choices[first : first + limit], first)
        rows = [self._format_choice(palette, width, self._label(choice), index) for index, choice in shown]
        hint = _MARK_HINT if self.question.marks else self.wanted or "type to search"
        return [*rows, cut_to_cells(to_visible(f"  {hint}"), width)]

    def _label(self, choice: Choice) -> str:
        if not self.question.marks:
            return choice.label
        return f"[{'x' if choice.key in self.marked else ' '}] {choice.label}"

    def _format_choice(self, palette: Palette, width: int, text: str, index: int) -> str:
        row = cut_to_cells(to_visible(f"{'▸' if index == self.selected else ' '} {text}"), width)
        return palette.choose(row) if index == self.selected else row
