"""ripgrep: where it is, and how it is asked.

It is run without a shell, without its configuration and with an environment of its own. What a
model gives never stands where an option could: patterns follow `-e`, other values an `=`, paths a
`--`.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

from indusagi.capabilities.search.braces import TooManyAlternatives, expand_braces
from indusagi.capabilities.search.ends import names_return, with_any_end
from indusagi.capabilities.search.request import MAX_FILE_BYTES, Mode
from indusagi.core.paths import find_trusted_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from indusagi.capabilities.search.request import Search

_MOST_THREADS = 4
_SPECIAL = re.compile(r"[*?\[\]{}\\!#]")
_KEPT = ("HOME", "XDG_CONFIG_HOME")
"""Where the rules of whoever runs this are looked for: what of them everybody else sees too."""


def find_ripgrep(workspace: str) -> str | None:
    """Find ripgrep beside Python, where its wheel puts it, or on the way that a shell would look.

    Not for the event loop.
    """
    import sysconfig  # noqa: PLC0415 — for those who search

    own = (os.path.dirname(sys.executable), sysconfig.get_path("scripts"))
    for folder in own:
        program = os.path.join(folder, "rg")
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return program
    return find_trusted_program("rg", os.environ.get("PATH", ""), workspace)


def environment() -> dict[str, str]:
    """Give the environment of a search program: nothing that says how it is to search."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, "LC_ALL": "C.UTF-8"}


def command(program: str, search: Search, target: str, *, in_order: bool, whole: bool) -> list[str]:
    """Write the command line.

    Args:
        program: Where ripgrep is.
        search: What is searched for.
        target: The file or directory to search, relative to where it is run or absolute.
        in_order: Go through the files by path, which only one thread can do.
        whole: The target is a file that was asked for: of whatever size.
    """
    threads = 1 if in_order else min(_MOST_THREADS, os.cpu_count() or 1)
    argv = [program, "--no-config", "--hidden", "--engine=auto", f"--threads={threads}"]
    argv += ["--no-require-git", "--no-ignore-dot", "--no-ignore-messages", "--color=never"]
    argv += [*_how(search), *_which(search)]
    if in_order:
        argv.append("--sort=path")
    if not whole:
        argv.append(f"--max-filesize={MAX_FILE_BYTES}")
    # After the others: of several globs the last one that matches decides.
    argv += [f"--glob=!/{_as_it_is(path)}" for path in search.secrets]
    return [*argv, "--glob=!.git", *_pattern(search), "--", target]


def _how(search: Search) -> Iterator[str]:
    if search.mode is Mode.COUNT:
        yield "--count-matches" if search.multiline else "--count"
        yield from ("--null", "--stats", "--with-filename")
    else:
        yield "--json"
    if search.mode is Mode.FILES:
        yield "--max-count=1"
    if search.mode is Mode.CONTENT:
        yield f"--before-context={search.before}"
        yield f"--after-context={search.after}"
    if not names_return(search):
        yield "--crlf"
    if search.ignore_case:
        yield "--ignore-case"
    if search.multiline:
        yield "--multiline"
    if search.dot_all:
        yield "--multiline-dotall"


def _which(search: Search) -> Iterator[str]:
    if search.no_ignore:
        yield "--no-ignore"
    if search.type is not None:
        yield f"--type={search.type}"
    if search.glob is not None:
        yield from (f"--glob={glob}" for glob in _globs(search.glob))


def _globs(glob: str) -> list[str]:
    """Give what stands for a glob: to ripgrep, `*.ts{,x}` is `*.tsx` alone."""
    try:
        globs = expand_braces(glob)
    except TooManyAlternatives:
        return [glob]
    # A brace that is left over is for ripgrep to complain about.
    return [glob] if any("{" in part for part in globs) else globs


def _as_it_is(path: str) -> str:
    """Write a path such that it matches itself, whatever is in it."""
    return _SPECIAL.sub(r"\\\g<0>", path)


def _pattern(search: Search) -> Iterator[str]:
    pattern = with_any_end(search)
    if search.literal and pattern is None:
        yield "--fixed-strings"
    yield "-e"
    pattern = pattern or search.pattern
    # A comment goes on to the end of its line, also over what ripgrep puts behind the pattern.
    yield f"(?x){pattern}\n" if search.extended and not search.literal else pattern
