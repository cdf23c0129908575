"""Jobs of a run that crashed, told to whoever starts the next one."""

from __future__ import annotations

from indusagi.core.text import clean_text, cut_text, format_count

_SHOWN_COMMAND = 60


def leftover_notes() -> list[str]:
    """Say what still runs of a run that is gone, and how to end it; not for the event loop."""
    from indusagi.capabilities.receipts import find_leftover_jobs  # noqa: PLC0415 — with the tools

    try:
        left = find_leftover_jobs()
    except OSError:  # whoever can keep no state is told so elsewhere
        return []
    if not left:
        return []
    command = cut_text(" ".join(clean_text(left[0].command)[0].split()), _SHOWN_COMMAND)
    runs = format_count(len(left), "job of a run that crashed runs", "jobs of runs that crashed run")
    return [f"{runs} on, such as {command!r}: `indus mcp doctor --end-leftovers` ends it"]
