"""Alternatives in a pattern: `*.{ts,tsx}` stands for `*.ts` and `*.tsx`."""

from __future__ import annotations

_MOST = 256
"""How many patterns one may stand for; more are not written by anybody who means them."""


class TooManyAlternatives(ValueError):
    """A pattern that stands for more patterns than are tried."""


def expand_braces(glob: str) -> list[str]:
    """Give all the patterns that one with braces stands for; a brace that is not closed is plain.

    Raises:
        TooManyAlternatives: There are more of them than are tried.
    """
    done: list[str] = []
    waiting = [glob]
    while waiting:
        text = waiting.pop()
        found = _innermost(text)
        if found is None:
            done.append(text)
        else:
            start, end = found
            choices = reversed(text[start + 1 : end].split(","))
            waiting.extend(text[:start] + choice + text[end + 1 :] for choice in choices)
        if len(waiting) + len(done) > _MOST:
            raise TooManyAlternatives(f"stands for more than {_MOST} patterns")
    return list(dict.fromkeys(done))


def _innermost(text: str) -> tuple[int, int] | None:
    """Find the first pair of braces with none inside; a backslash takes the meaning from one."""
    start, at = -1, 0
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "{":
            start = at
        elif text[at] == "}" and start >= 0:
            return start, at
        at += 1
    return None
