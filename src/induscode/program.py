"""The options and commands of `indus`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from indusagi import __version__
from induscode.terminal import complain, printable, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

_OVERVIEW = """\
indus {version}: every tool a model may call, in one deck.
Working directory: {cwd}
This version is the kernel, used from Python: `import indusagi.capabilities`.
The options are listed by `indus --help`."""


def run(arguments: Sequence[str]) -> int:
    """Run `indus` with these arguments and return its exit code."""
    try:
        # Not by click's own `main`, which turns a broken pipe into a plain failure.
        with _indus.make_context("indus", list(arguments)) as context:
            _indus.invoke(context)
    except click.exceptions.Exit as exc:  # how click ends after the help
        return exc.exit_code
    except click.ClickException as exc:
        message = exc.format_message()
        stop = "" if message.endswith((".", "?")) else "."
        complain(f"{message}{stop} See 'indus --help'.")
        return exc.exit_code
    return 0


def _directory(_ctx: click.Context, _option: click.Parameter, path: str) -> str:
    """Accept a directory that can be listed and entered, and give its real path."""
    try:
        os.listdir(path)
        os.stat(os.path.join(path, "."))
        return os.path.realpath(path)
    except OSError as exc:
        raise click.BadParameter(f"{path!r}: {exc.strerror}") from exc


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="indus %(version)s")
@click.option(
    "-C",
    "--cwd",
    metavar="DIRECTORY",
    callback=_directory,
    default=".",
    help="Work in DIRECTORY instead of here.",
)
def _indus(cwd: str) -> None:
    """Every tool a model may call, in one deck."""
    # A directory's name may hold line ends: made visible here, it cannot forge a line.
    tell(_OVERVIEW.format(version=__version__, cwd=printable(cwd)))
