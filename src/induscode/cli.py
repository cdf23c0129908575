"""The entry point of the commands `indus`, `indusr` and `indusagir`: one program, three names.

It answers `--version` without loading anything, hands the rest to the program, and sees to it that
whatever ends it early is one line and an exit code: 2 for bad input, 1 for a failure, 128 + n for
signal n. A reader who leaves before the end counts as SIGPIPE. An error that cannot be told keeps
its code.
"""

import os
import signal
import sys
from io import TextIOWrapper

import indusagi
import induscode

_FAILED = 1
_DISTRIBUTION = "indus-deck"
_OTHERS = ("indusagi", "induscode")
"""Distributions on PyPI that install packages and commands of the same names as ours."""
_REMEDY = "pip uninstall indusagi induscode indus-deck, then install indus-deck into an environment of its own"


def find_replaced_package() -> str | None:
    """Name a package of ours that another distribution has replaced; None if none is."""
    for package in (indusagi, induscode):
        if getattr(package, "DISTRIBUTION", None) != _DISTRIBUTION:
            return package.__name__
    return None


def find_other_distributions() -> list[str]:
    """List the other distributions that are installed where our packages are.

    One look into one directory: the names of metadata directories tell enough.
    """
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = (name.partition("-") for name in names if name.endswith((".dist-info", ".egg-info")))
    return sorted(one[0] for one in found if one[0].lower() in _OTHERS)


# Checked before anything else is imported: the other modules may be replaced as well, and a line
# that names the cause is of more use than the ImportError that would come of it.
_REPLACED = find_replaced_package()
if _REPLACED is not None:
    sys.exit(
        f"indus: the package {_REPLACED!r} is not the one of indus-deck: another distribution "
        f"(indusagi or induscode of PyPI) has replaced its files. {_REMEDY}."
    )

from indusagi import __version__  # noqa: E402 — after the check
from induscode.terminal import print_line, print_status, redirect_to_null  # noqa: E402 — after the check

_STANDARD_OUTPUT = 1


def main() -> int:
    """Run the program with the arguments of this process and return its exit code."""
    try:
        _write_anything()
        _warn_of_other_distributions()
        code = _run(sys.argv[1:])
        _flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader left, as `head` does
        redirect_to_null(_STANDARD_OUTPUT)
        return 128 + signal.SIGPIPE
    except OSError as exc:
        redirect_to_null(_STANDARD_OUTPUT)
        said = exc.strerror or str(exc)
        print_status(f"{exc.filename}: {said}" if exc.filename else said)
        return _FAILED
    return code


def _run(arguments: list[str]) -> int:
    if arguments in (["--version"], ["-V"]):
        print_line(f"indus {__version__}")
        return 0
    if arguments[:1] == ["serve"]:
        from induscode.commands.serve.signals import install_early_handlers  # noqa: PLC0415 — for this alone

        install_early_handlers()  # whoever starts a gateway may signal it while the rest is being loaded
    from induscode.program import run  # noqa: PLC0415 — brings click, which the version can spare

    return run(arguments)


def _warn_of_other_distributions() -> None:
    others = find_other_distributions()
    if others:
        names = " and ".join(others)
        said = f"{names} of PyPI is installed beside indus-deck and has files of the same names"
        print_status(f"{said}: whichever was installed last has replaced the other's. {_REMEDY}")


def _write_anything() -> None:
    """Escape what the terminal's encoding lacks, rather than fail on it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    # Started with its output closed, Python has no standard output at all.
    if sys.stdout is not None:
        sys.stdout.flush()
