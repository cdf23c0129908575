"""Plain output: status lines on standard error, results on standard output."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import datetime, time
from time import monotonic
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

_STDOUT, _STDERR = 1, 2
_output: Callable[[str], object] | None = None
"""Receives status lines instead of standard error, while the screen is active."""
_held: list[str] | None = None
"""Status lines held back during a question; `None` outside of one."""


def escape_unprintable(text: str) -> str:
    """Escape every character that a terminal would interpret or can't display."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def escape_controls(text: str) -> str:
    """Escape characters that a terminal would interpret, except newlines, tabs and spaces of any kind."""
    # Non-ASCII spaces are harmless, except U+2028 and U+2029: they count as spaces but end a line.
    return "".join(
        c
        if c.isprintable() or c in "\n\t" or (c.isspace() and c >= "\xa0" and c not in "\u2028\u2029")
        else c.encode("unicode_escape").decode()
        for c in text
    )


def is_interactive() -> bool:
    """Return whether standard input and output are both terminals."""
    # Python sets a stream to None if it was closed at startup.
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def print_status(message: str) -> None:
    """Print one line for the user on standard error, if it's open."""
    if _output is not None:
        _output(" ".join(message.split()))
        return
    # It's None if it was closed at startup, and `print` would use standard output instead.
    if sys.stderr is None:
        return
    if _held is not None:
        _held.append(message)
        return
    line = escape_unprintable(" ".join(message.split()))
    try:
        if not print_status_line(sys.stderr, line):
            print(f"indus: {line}", file=sys.stderr)  # noqa: T201 — standard error is for users
    except OSError:
        redirect_to_null(_STDERR)


@contextmanager
def redirected_status_lines(output: Callable[[str], object]) -> Generator[None]:
    """Send status lines to `output` inside the block, in the thread that prints them."""
    global _output
    _output = output
    try:
        yield
    finally:
        _output = None


@contextmanager
def held_status_lines() -> Generator[None]:
    """Hold back status lines during a question on the terminal, and print them at the end of the block."""
    global _held
    hide_live_lines()
    held = _held = []
    try:
        yield
    finally:
        _held = None
        for message in held:
            print_status(message)


# -- live lines -------------------------------------------------------------------------------


_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_live: Live | None = None
_live_lines: dict[str, tuple[str, float]] = {}
"""By name: the text, and when its first one was shown."""


def show_live_line(name: str, text: str) -> None:
    """Show a line with a spinner on standard error, or replace the one of this `name`; without `text`, remove it.

    Only on a terminal, and not during a question. Whoever shows a line removes it.
    """
    global _live
    if text:
        _live_lines[name] = (text, _live_lines.get(name, ("", monotonic()))[1])
    else:
        _live_lines.pop(name, None)
    if not _live_lines or _held is not None:
        hide_live_lines()
    elif _live is None and _output is None and (console := console_for(sys.stderr)) is not None:
        from rich.live import Live  # noqa: PLC0415 — for a terminal only

        _live = Live(
            console=console,
            get_renderable=_format_live_lines,
            refresh_per_second=10,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        _live.start(refresh=True)


def hide_live_lines() -> None:
    """Clear the live lines from the screen. The next change shows them again."""
    global _live
    if _live is not None:
        _live.stop()
        _live = None


def _format_live_lines() -> Text:
    from rich.text import Text  # noqa: PLC0415 — for a terminal only

    now = monotonic()
    mark = _SPINNER[int(now * 10) % len(_SPINNER)]
    lines = [
        f"{mark} {escape_unprintable(name)}: {escape_unprintable(text)} · {now - began:.0f} s"
        for name, (text, began) in [*_live_lines.items()]
    ]
    return Text("\n".join(lines), "dim", no_wrap=True, overflow="ellipsis")


def print_line(text: str) -> None:
    """Print escaped text on standard output; only newlines end a line."""
    for line in text.split("\n"):
        print(escape_unprintable(line))  # noqa: T201 — the result of a command goes to standard output


def print_text(text: str) -> None:
    """Print multi-line text on standard output, with CRLF as newlines and a final newline."""
    visible = escape_controls(text.replace("\r\n", "\n"))
    print(visible, end="" if visible.endswith("\n") else "\n")  # noqa: T201 — see print_line


def is_reader_gone() -> bool:
    """Return whether standard output is a pipe or socket whose reader is gone. Files never are."""
    if sys.stdout is None:
        return False
    watched = select.poll()
    watched.register(_STDOUT, 0)  # POLLERR and POLLHUP are always reported: poll(2)
    return bool(watched.poll(0))


def redirect_to_null(descriptor: int) -> None:
    """Redirect a descriptor to the null device, so that Python's flush at exit doesn't fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


# -- terminals --------------------------------------------------------------------------------------


STATE_STYLES: Mapping[str, str] = {
    **dict.fromkeys(("ready", "enroll"), "green"),
    **dict.fromkeys(("sign in", "not trusted", "off"), "yellow"),
    **dict.fromkeys(("disabled", "untrusted", "changed", "unsandboxed", "unresolved", "retire"), "yellow"),
    **dict.fromkeys(("failed", "faulted", "fault", "quarantine"), "red"),
}
"""Colours of server states and ledger events."""

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def console_for(stream: TextIO | None) -> Console | None:
    """Return a console for a stream, or `None` if it isn't a terminal."""
    if stream is None or not stream.isatty():
        return None
    from rich.console import Console  # noqa: PLC0415 — 50 ms, for a terminal only

    return Console(
        file=stream,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


@contextmanager
def handle_keys(press: Callable[[str], None]) -> Generator[None]:
    """Call `press` with each key typed inside the block, without an echo, if standard input is a terminal.

    Needs a running event loop. Ctrl-C still interrupts.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    import termios  # noqa: PLC0415 — for a terminal only
    import tty  # noqa: PLC0415 — for a terminal only
    from asyncio import get_running_loop  # noqa: PLC0415 — for a terminal only

    loop, descriptor = get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read_key() -> None:
        data = os.read(descriptor, 64)
        if not data:
            loop.remove_reader(descriptor)
        for key in data.decode("utf-8", "replace"):
            press(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read_key)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def stdout_console() -> Console | None:
    """Return a console for standard output, or `None` if it isn't a terminal."""
    return console_for(sys.stdout)


def print_status_line(stream: TextIO, line: str) -> bool:
    """Print a status line with a bold program name; return False if the stream isn't a terminal."""
    console = _live.console if _live is not None else console_for(stream)
    if console is None:
        return False
    from rich.text import Text  # noqa: PLC0415 — for a terminal only

    console.print(Text.assemble(("indus:", "bold"), " ", line), soft_wrap=True)
    return True


def format_age(then_ms: int, now_ms: int) -> str:
    """Format an age in its largest unit: `3 min ago`."""
    seconds = max(0, now_ms - then_ms) // 1000
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "now"


def format_time(at_ms: int, now_ms: int | None = None) -> str:
    """Format a time in the local zone: `2026-11-15 20:08:29`.

    With `now_ms`, it's short: `20:08:29` today, `15 Nov 20:08` this year, else `2025-11-15`.
    """
    moment = datetime.fromtimestamp(at_ms / 1000).astimezone()
    if now_ms is None:
        return f"{moment:%Y-%m-%d %H:%M:%S}"
    now = datetime.fromtimestamp(now_ms / 1000).astimezone()
    if moment.date() == now.date():
        return f"{moment:%H:%M:%S}"
    return f"{moment.day:>2} {moment:%b %H:%M}" if moment.year == now.year else f"{moment:%Y-%m-%d}"


def parse_time(text: str, now_ms: int) -> int:
    """Parse a time (RFC 3339, local without an offset) or a time of today (`19:45`) into Unix milliseconds.

    Raises `ValueError`.
    """
    try:
        today = datetime.fromtimestamp(now_ms / 1000).astimezone().date()
        if text[2:3] == ":":  # `2001-01-01` would be a time with an offset, too
            return round(datetime.combine(today, time.fromisoformat(text)).timestamp() * 1000)
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (OverflowError, OSError) as exc:
        raise ValueError(str(exc)) from exc
